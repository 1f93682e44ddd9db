"""Lowering: replaces operators without a gradient rule by operators that have one.

Recurrent operators become a Scan over the time steps, attention becomes matrix products, and nodes that read a sequence
read its tensors instead. The graph computes the same values as before. Nothing is differentiated here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import onnx_ir as ir

from ...._graph.builder import GraphBuilder
from ...._graph.edits import replace_node
from ...._graph.queries import graphs_in, is_float, kind
from ...._graph.shapes import infer_shapes
from ...path import Passage, passages
from ..context import Lowering, require, require_types
from ..control_flow import inner_builder
from . import attention, recurrent, sequences

LOWERINGS: dict[str, Lowering] = {**attention.LOWERINGS, **recurrent.LOWERINGS, **sequences.LOWERINGS}


def expand(model: ir.Model, sources: Collection[ir.Value], end: ir.Value, known: Collection[str]) -> None:
    """Lower the nodes between ``sources`` and ``end`` that are not ``known`` and have a lowering, in place."""
    op = GraphBuilder(model.graph, prefix="expanded", constant_nodes=True)
    steps = passages(model.graph, set(sources), {end})
    lowered = [step for step in _unknown_nodes(steps, known) if kind(step.node) in LOWERINGS]
    for step in lowered:
        require_types(step)
        _apply_lowering(op, step.node)
    if lowered:
        infer_shapes(model)


def _unknown_nodes(steps: Sequence[Passage], known: Collection[str]) -> Iterator[Passage]:
    """Yield the nodes on the path that are not ``known``, including those in subgraphs."""
    for step in steps:
        for body in graphs_in(step.node):
            sources = step.sources | set(filter(is_float, body.inputs))
            yield from _unknown_nodes(passages(body, sources, set(filter(is_float, body.outputs))), known)
        if kind(step.node) not in known:
            yield step


def _apply_lowering(op: GraphBuilder, node: ir.Node) -> None:
    graph, lowering = node.graph, LOWERINGS[kind(node)]
    require(lowering, node)
    assert isinstance(graph, ir.Graph)
    builder = op if graph is op.graph else inner_builder(op, graph)
    builder.dtype = next((v.dtype for v in node.outputs if v.dtype is not None and is_float(v)), op.dtype)
    replace_node(builder, node, lowering.rule(builder, node))
    graph.sort()

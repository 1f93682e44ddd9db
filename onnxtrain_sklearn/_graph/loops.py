"""Shapes inside Loops, which ONNX's inference leaves unknown: a state may change its shape in each iteration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from .queries import dims, every_node, graphs_in
from .shapes import infer_shapes


def infer_loops(model: ir.Model) -> None:
    """Set the opsets of bodies, and the shapes of Loop states that keep their initial shape; in place."""
    nodes = every_node(model.graph)
    for graph in (graph for node in nodes for graph in graphs_in(node)):
        graph.opset_imports.update(model.graph.opset_imports)
    loops = [node for node in nodes if node.op_type == "Loop" and not node.domain]
    assumed = [state for loop in loops for state in _assume_initial_shapes(loop)]
    while assumed:
        for value in [v for loop in loops for node in _body_nodes(loop) for v in node.outputs]:
            value.shape = None
        infer_shapes(model)
        kept = [state for state in assumed if state.holds()]
        if kept == assumed:
            return
        for state in assumed:
            if state not in kept:
                state.value.shape = state.declared
        assumed = kept


@dataclass(frozen=True, eq=False)
class _LoopState:
    """A state of a Loop, assumed to have the shape of its initial value."""

    value: ir.Value
    declared: ir.Shape | None
    becomes: ir.Value

    def holds(self) -> bool:
        """Whether an iteration keeps the shape, and therefore all do."""
        shape = dims(self.value)
        return shape == dims(self.becomes) and None not in (shape or [])


def _assume_initial_shapes(loop: ir.Node) -> list[_LoopState]:
    body = loop.attributes["body"].as_graph()
    states = []
    for start, x, y in zip(list(loop.inputs)[2:], list(body.inputs)[2:], list(body.outputs)[1:], strict=False):
        if start is not None and start.shape is not None and dims(x) != dims(start):
            states.append(_LoopState(x, x.shape, y))
            x.type, x.shape = start.type, ir.Shape(list(start.shape))
    return states


def _body_nodes(loop: ir.Node) -> Iterator[ir.Node]:
    yield from loop.attributes["body"].as_graph().all_nodes()

"""The path of the gradient: the nodes through which an output depends on trained parameters.

:func:`path` starts from names in the graph, :func:`path_between` from values, also within a subgraph. The engines
differentiate these nodes only and refuse an operator only if it is on the path.

Gradients flow through floating-point values: a path through a bool or an integer has a zero gradient, and so has one
through a node that stops it. A value that a subgraph reads counts as read by the node that contains the subgraph.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from dataclasses import dataclass

import onnx_ir as ir

from .._ir.queries import is_float, reads
from ..graph import stops_gradient


@dataclass(frozen=True)
class PathNode:
    """A node on the path of the gradient.

    Attributes
    ----------
    node : onnx_ir.Node
    inputs, outputs : frozenset of int
        Positions of the inputs and outputs on the path.
    sources : frozenset of onnx_ir.Value
        The values that receive a gradient, including those that the node's subgraphs read.
    """

    node: ir.Node
    inputs: frozenset[int]
    outputs: frozenset[int]
    sources: frozenset[ir.Value]

    def unsupported_type(self, known: Collection[ir.DataType]) -> str | None:
        """Return the reason if a value on the path has a type that is not among ``known``."""
        values = [x for i, x in enumerate(self.node.inputs) if x is not None and i in self.inputs]
        values += [y for i, y in enumerate(self.node.outputs) if i in self.outputs]
        other = [v.dtype.name for v in values if v.dtype is not None and v.dtype not in known]
        names = ", ".join(sorted(dtype.name for dtype in known))
        return f"it computes in {other[0]}, and gradients are known in {names} only" if other else None


def path(graph: ir.Graph, wrt: Collection[str], of: ir.Value) -> list[PathNode]:
    """Return the nodes between the inputs and initializers named in ``wrt`` and ``of``, in the order of the graph."""
    return path_between(graph, {v for v in [*graph.inputs, *graph.initializers.values()] if v.name in wrt}, {of})


def path_between(graph: ir.Graph, sources: Set[ir.Value], ends: Set[ir.Value]) -> list[PathNode]:
    """Return the nodes of ``graph`` between ``sources`` (in it or in an outer graph) and ``ends``, in order."""
    downstream, upstream, found = dependent(graph, sources), set(ends), []
    for node in reversed(graph):
        outputs = frozenset(i for i, v in enumerate(node.outputs) if v in upstream)
        on_path = downstream.intersection(reads(node))
        if outputs and on_path:
            upstream |= on_path
            inputs = frozenset(i for i, x in enumerate(node.inputs) if x in on_path)
            found.append(PathNode(node, inputs, outputs, frozenset(on_path)))
    return found[::-1]


def dependent(graph: ir.Graph, sources: Set[ir.Value]) -> set[ir.Value]:
    """Return ``sources`` and the floating-point values of ``graph`` that depend on them."""
    downstream = set(sources)
    for node in graph:
        if not stops_gradient(node) and not downstream.isdisjoint(reads(node)):
            downstream.update(filter(is_float, node.outputs))
    return downstream

"""The path of the gradient: the nodes between the trained parameters and the loss.

Gradients flow through floating-point values only: a path through a bool or an integer has a zero gradient, and so has
one through a node that stops it. A value that a subgraph reads counts as read by the node that contains the subgraph.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from dataclasses import dataclass

import onnx_ir as ir

from .._graph.queries import is_float, reads
from .._graph.stopped import stops_gradient


@dataclass(frozen=True)
class Passage:
    """A node on the path of the gradient, with the positions of the outputs and inputs on the path.

    ``sources`` are the values that receive a gradient, including those that the node's subgraphs read.
    """

    node: ir.Node
    inputs: frozenset[int]
    outputs: frozenset[int]
    sources: frozenset[ir.Value]

    def other_type(self, known: Collection[ir.DataType]) -> str | None:
        """Return why the node cannot be differentiated: a value on the path has a type that is not ``known``."""
        values = [x for i, x in enumerate(self.node.inputs) if x is not None and i in self.inputs]
        values += [y for i, y in enumerate(self.node.outputs) if i in self.outputs]
        other = [v.dtype.name for v in values if v.dtype is not None and v.dtype not in known]
        names = ", ".join(sorted(dtype.name for dtype in known))
        return f"it computes in {other[0]}, and gradients are known in {names} only" if other else None


def path(graph: ir.Graph, wrt: Collection[str], of: ir.Value) -> list[Passage]:
    """Return the nodes between the inputs and initializers named in ``wrt`` and ``of``, in the order of the graph."""
    return passages(graph, {v for v in [*graph.inputs, *graph.initializers.values()] if v.name in wrt}, {of})


def dependent(graph: ir.Graph, sources: Set[ir.Value]) -> set[ir.Value]:
    """Return ``sources`` and the floating-point values of ``graph`` that depend on them."""
    below = set(sources)
    for node in graph:
        if not stops_gradient(node) and not below.isdisjoint(reads(node)):
            below.update(filter(is_float, node.outputs))
    return below


def passages(graph: ir.Graph, sources: Set[ir.Value], ends: Set[ir.Value]) -> list[Passage]:
    """Return the nodes of ``graph`` between ``sources`` (in it or in an outer graph) and ``ends``, in order."""
    below, above, found = dependent(graph, sources), set(ends), []
    for node in reversed(graph):
        outputs = frozenset(i for i, v in enumerate(node.outputs) if v in above)
        leaving = below.intersection(reads(node))
        if outputs and leaving:
            above |= leaving
            inputs = frozenset(i for i, x in enumerate(node.inputs) if x in leaving)
            found.append(Passage(node, inputs, outputs, frozenset(leaving)))
    return found[::-1]

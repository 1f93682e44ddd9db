"""What an engine asks of a graph: which nodes the gradient passes, and what is known of a node and its values.

The gradient passes floating-point values only: what goes through a bool or an int on its way has the gradient zero. A
value that a subgraph reads counts as read by the node that holds the subgraph.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from .._graph.builder import is_float, reads

Dims: TypeAlias = "list[int | str | None]"


@dataclass(frozen=True)
class Passage:
    """A node that the gradient passes: it comes in at these outputs and leaves at these inputs (positions).

    ``sources`` are the values that it leaves at, those that the subgraphs of the node read among them.
    """

    node: ir.Node
    inputs: frozenset[int]
    outputs: frozenset[int]
    sources: frozenset[ir.Value]

    def other_type(self, known: Collection[ir.DataType]) -> str | None:
        """Return the reason why the gradient cannot pass: a value on its way is of a type that is not ``known``."""
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
        if not below.isdisjoint(reads(node)):
            below.update(filter(is_float, node.outputs))
    return below


def passages(graph: ir.Graph, sources: Set[ir.Value], ends: Set[ir.Value]) -> list[Passage]:
    """Return the nodes of ``graph`` between ``sources``, of it or around it, and ``ends``, in their order."""
    below, above, found = dependent(graph, sources), set(ends), []
    for node in reversed(graph):
        outputs = frozenset(i for i, v in enumerate(node.outputs) if v in above)
        leaving = below.intersection(reads(node))
        if outputs and leaving:
            above |= leaving
            inputs = frozenset(i for i, x in enumerate(node.inputs) if x in leaving)
            found.append(Passage(node, inputs, outputs, frozenset(leaving)))
    return found[::-1]


def kind(node: ir.Node) -> str:
    """Return the operator type, behind its domain where that is not ONNX's own."""
    return node.op_type if not node.domain else f"{node.domain}.{node.op_type}"


def describe(node: ir.Node) -> str:
    """Return the start of a sentence about ``node``."""
    name = f"Node {node.name!r}" if node.name else f"The node that computes {node.outputs[0].name!r}"
    return f"{name} ({kind(node)})"


def opset(node: ir.Node) -> int:
    """Return the version of ONNX's own operators in the graph of ``node``."""
    return node.graph.opset_imports.get("", 0) if node.graph is not None else 0


def attribute(node: ir.Node, name: str, default: Any) -> Any:
    """Return the value of an attribute; ONNX's default is the caller's to know."""
    return node.attributes[name].value if name in node.attributes else default


def operand(node: ir.Node, index: int) -> ir.Value | None:
    """Return the input at ``index``, None where it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def constant(value: ir.Value) -> np.ndarray | None:
    """Return what ``value`` always is, None where it can change from run to run."""
    tensor = None if value.is_graph_input() else ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def dims(value: ir.Value | None) -> Dims | None:
    """Return the dimensions of ``value``: numbers, names given by the model, and None for those that are not known."""
    if value is None or value.shape is None:
        return None
    sizes = [d if isinstance(d, int) else d.value for d in value.shape]
    return [None if isinstance(d, str) and d.startswith("unk__") else d for d in sizes]


def fixed(sizes: Dims | None) -> bool:
    """Whether every dimension is a number."""
    return sizes is not None and all(isinstance(d, int) for d in sizes)

"""The path of the gradient, and the places on it where an infinite derivative must not reach the loss.

:func:`path` starts from names in the graph, :func:`path_between` from values, also within a subgraph. The engines
differentiate these nodes only and refuse an operator only if it is on the path. Gradients flow through floating-point
values: a path through a bool or an integer has a zero gradient, and so has one through a node that stops it. A value
that a subgraph reads counts as read by the node that contains the subgraph.

The chain rule multiplies derivatives, and zero times infinity is NaN. In two places the right gradient is zero:

- *Norms at zero.* The derivative of a root is infinite at zero. Its operand may be a sum of squares, whose derivative
  is zero there. Both engines take the subgradient zero instead, as ``torch.cdist`` and ``torch.linalg.norm`` do
  (:func:`is_norm`). The root of a value that may be anything, such as a parameter, keeps its infinite derivative.
- *Dropped results*, as in ``Where(x > 0, Log(x), 0)``. Where the condition drops a result, its cotangent is zero, but
  the derivative there may be infinite or NaN. :func:`mark_selected` marks the nodes upstream of a Where, and their
  rules return zero where the cotangent is zero. A NaN that is not dropped still reaches the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Set
from dataclasses import dataclass

import onnx_ir as ir

from .._ir.queries import every_node, is_float, number_of, operand, reads
from ..graph import Names, stops_gradient


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
    downstream = dependent(graph, sources)
    upstream = set(ends)
    found = []
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


# Gradients that are right but cannot be differentiated again.

_ONCE = "gradient_without_derivative"
"""Prefix of the names of nodes whose gradient has no derivative. Names mark them because a saved graph keeps names."""


def forbid_derivative(value: ir.Value, taken: Names) -> ir.Value:
    """Mark the node that computes ``value``, a gradient that is right at a point but not in its neighborhood."""
    node = value.producer()
    assert node is not None
    node.name = taken.free(_ONCE)
    return value


def forbids_derivative(node: ir.Node) -> bool:
    """Return True if a node is marked by :func:`forbid_derivative`."""
    return (node.name or "").startswith(_ONCE)


# Norms at zero.

_DEPTH = 32
"""Nodes upstream of a root that are examined; a norm has fewer."""

_MOVES = frozenset("Concat Expand Flatten Gather Identity Reshape Slice Squeeze Tile Transpose Unsqueeze".split())
"""Operators that only move elements of their first operand (Concat: of all operands)."""

_SUMS = frozenset("Add Mean ReduceMax ReduceMean ReduceMin ReduceSum Sum".split())
"""Operators that keep flatness: their result is zero only where the operands are, and flat there if these are."""


def is_norm(node: ir.Node, wanted: Collection[int]) -> bool:
    """Return True if ``node`` is a root of a value whose derivative is zero wherever the value is zero.

    Roots are Sqrt, and Pow with an exponent of at least 1/2 and below 1. ``wanted`` holds the positions of the operands
    that need a gradient: a trained exponent may leave that range.
    """
    if node.op_type == "Pow":
        power = number_of(node.inputs[1])
        if 1 in wanted or power is None or not 0.5 <= power < 1:
            return False
    elif node.op_type != "Sqrt":
        return False
    return _is_flat_at_zero(node.inputs[0], _DEPTH)


def _is_flat_at_zero(value: ir.Value | None, depth: int) -> bool:
    """Return True if a value is never negative, and its own derivative is zero wherever it is zero."""
    node = None if value is None else value.producer()
    if node is None or node.domain or not depth:
        return False
    if node.op_type in _FLAT:
        return _FLAT[node.op_type](node)
    if node.op_type in ("Div", "Mul"):
        first, second = node.inputs
        if node.op_type == "Mul" and (first is second or _is_positive(first)):
            return first is second or _is_flat_at_zero(second, depth - 1)
        return _is_positive(second) and _is_flat_at_zero(first, depth - 1)
    if node.op_type in _SUMS | _MOVES:
        every = node.op_type in ("Add", "Concat", "Mean", "Sum")
        return all(_is_flat_at_zero(x, depth - 1) for x in (node.inputs if every else node.inputs[:1]))
    return False


def _is_positive(value: ir.Value | None) -> bool:
    """Return True for a single positive constant."""
    return (number_of(value) or 0) > 0


_FLAT: dict[str, Callable[[ir.Node], bool]] = {
    "Clip": lambda node: number_of(operand(node, 1)) == 0,
    "Max": lambda node: any(number_of(x) == 0 for x in node.inputs),
    "Pow": lambda node: _is_positive(node.inputs[1]) and (number_of(node.inputs[1]) or 0) % 2 == 0,
    "ReduceSumSquare": lambda node: True,
    "Relu": lambda node: True,
}
"""Operators whose result is flat at zero for any operand, with a condition on the node. (Relu, Clip and Max are flat
from the left.)"""


# Results that a Where drops.

SELECTED, MISSING = "selected by a condition", "selected by IsNaN"
"""Keys of a node's ``meta``, set by :func:`mark_selected`."""

STEEP = frozenset("Acos Acosh Asin Atanh Cosh Exp Log Reciprocal Sinh Sqrt Tan".split())
"""Unary operators with an unbounded derivative."""

_INFINITE = frozenset({"Acos", "Acosh", "Asin", "Atanh", "Log", "Reciprocal", "Sqrt"})
"""Steep operators with an infinite derivative at a finite number."""

UNBOUNDED = frozenset("Div LogSoftmax Mul Pow ReduceL2 ReduceLogSum ReduceLogSumExp Softmax".split())
"""Operators, beside steep ones, whose rules multiply by numbers that may be infinite or NaN."""

_PASSED = (
    STEEP
    | UNBOUNDED
    | frozenset(
        "Abs Add Cast Ceil Clip Cos Elu Erf Expand Flatten Gather Identity LeakyRelu Max Min Neg Relu Reshape Sigmoid "
        "Sin Slice Softplus Split Squeeze Sub Sum Tanh Transpose Unsqueeze Where Dropout".split()
    )
)
"""Operators through which :func:`mark_selected` passes its marks upstream. Matrix products stop the marks, because they
mix a dropped element with all others."""


def mark_selected(graph: ir.Graph) -> bool:
    """Mark the nodes whose results a Where selects, in their ``meta``; return True if one of them is steep."""
    steep = False
    for node in every_node(graph):
        if node.op_type == "Where" and not node.domain:
            steep |= _mark_upstream(node, MISSING if _tests_for_nan(node.inputs[0]) else SELECTED)
    return steep


def _mark_upstream(where: ir.Node, mark: str) -> bool:
    front = list(where.inputs[1:])
    seen = set()
    steep = False
    while front:
        value = front.pop()
        node = None if value is None else value.producer()
        if node is None or node in seen or node.domain or node.op_type not in _PASSED:
            continue
        seen.add(node)
        node.meta[mark] = True
        steep |= node.op_type in STEEP | {"LogSoftmax", "Softmax"} and (mark == MISSING or node.op_type in _INFINITE)
        front += node.inputs[1:] if node.op_type == "Where" else node.inputs
    return steep


def _tests_for_nan(condition: ir.Value | None, depth: int = 4) -> bool:
    node = None if condition is None else condition.producer()
    if node is None or not depth:
        return False
    if node.op_type == "IsNaN":
        return True
    passes = node.op_type in ("And", "Cast", "Expand", "Not", "Or", "Unsqueeze")
    return passes and any(_tests_for_nan(x, depth - 1) for x in node.inputs)

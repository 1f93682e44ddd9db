"""What a gradient rule receives, the path from parameters to the loss, and questions that rules ask of a graph.

A rule is a function of a :class:`Reverse`, one node in the reverse pass. It returns one thunk per input, in their
order; a thunk returns the cotangent of that input, of its shape and type. Only the thunks of wanted inputs are called.
A thunk that returns None stands for a zero gradient. None instead of a thunk, or a missing thunk, means that there is
no rule for that input. Emitted operators are standard ONNX, of the opset of the graph. The tables hold each rule in a
:class:`~onnxtrain_sklearn._ir.supported.Supported`, beside the attributes, inputs and outputs that it supports.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import numpy as np
import onnx_ir as ir

from .._ir.queries import Dims, attribute, constant, describe, dims, every_node, fixed, is_float, operand, opset, reads
from .._ir.supported import Supported
from ..exceptions import UnsupportedOperatorError
from ..graph import GraphBuilder, Operand, Setting, stops_gradient

Thunk: TypeAlias = Callable[[], "ir.Value | None"]
Cotangents: TypeAlias = "dict[ir.Value, list[ir.Value]]"
GradientRule: TypeAlias = "Supported[Callable[[Reverse], Sequence[Thunk | None]]]"

Lowering: TypeAlias = "Supported[Callable[[GraphBuilder, ir.Node], Sequence[ir.Value | None]]]"


class NewerOpsetNeeded(UnsupportedOperatorError):
    """The gradient of a node needs operators that the opset of the graph does not have yet."""

    def __init__(self, message: str, opset: int) -> None:
        super().__init__(message)
        self.opset = opset


DIFFERENTIATED_TYPES = (ir.DataType.DOUBLE, ir.DataType.FLOAT, ir.DataType.FLOAT16)
REMEDY = "Freeze the parameters before it, or put other operators in its place."


@dataclass(frozen=True)
class Reverse:
    """One node in the reverse pass.

    Attributes
    ----------
    op : GraphBuilder
        Emits nodes; Python floats become constants of the type of the node's first float output.
    node : onnx_ir.Node
    cotangents : tuple of (value or None)
        Gradient with respect to each output, of its shape; None where it is zero.
    wanted : frozenset of int
        Positions of the inputs whose gradient is needed.
    """

    op: GraphBuilder
    node: ir.Node
    cotangents: tuple[ir.Value | None, ...]
    wanted: frozenset[int]

    @property
    def g(self) -> ir.Value:
        """The gradient with respect to the first output."""
        cotangent = self.cotangents[0]
        assert cotangent is not None
        return cotangent

    @property
    def y(self) -> ir.Value:
        """The first output."""
        return self.node.outputs[0]

    @property
    def opset(self) -> int:
        """The opset version of the default ONNX domain in the graph."""
        return opset(self.node)

    def x(self, index: int = 0) -> ir.Value:
        """Return a required input."""
        value = operand(self.node, index)
        assert value is not None
        return value

    def further_output(self, index: int, dtype: ir.DataType, shape: ir.Shape | None = None) -> ir.Value:
        """Return an optional output of the forward node; it is added where it is missing."""
        self.node.resize_outputs(max(index + 1, len(self.node.outputs)))
        for value in self.node.outputs:
            value.name = value.name or ""
        value = self.node.outputs[index]
        if not value.name:
            value.name, value.dtype, value.shape = self.op.name(self.node.op_type), dtype, shape
        return value

    def has(self, index: int) -> bool:
        """Return True if an optional input is given."""
        return operand(self.node, index) is not None

    def attribute(self, name: str, default: object) -> Any:
        """Return an attribute of the node."""
        return attribute(self.node, name, default)

    def constant(self, index: int, what: str) -> np.ndarray:
        """Return the value of a constant input; refuse if it is not constant."""
        array = constant(self.x(index))
        return self.refuse(f"{what} must be constant") if array is None else array

    def rank(self, value: ir.Value | None = None) -> int:
        """Return the rank of a value, by default the first input; refuse if it is unknown."""
        shape = dims(self.x() if value is None else value)
        return self.refuse("the rank of its input is not known") if shape is None else len(shape)

    def need_opset(self, version: int, what: str) -> None:
        """Refuse an older opset; the engine then converts the graph to this one."""
        if self.opset < version:
            raise NewerOpsetNeeded(str(unsupported(self.node, f"{what} needs opset {version} or newer")), version)

    def refuse(self, reason: str) -> NoReturn:
        """Raise the error that names the node, the reason and the remedy."""
        raise unsupported(self.node, reason)

    def again(self, *inputs: Operand, outputs: int = 1, **changes: Setting) -> ir.Value:
        """Emit the node's operator once more, with its attributes, on other inputs; return the first output."""
        attributes = {name: a.value for name, a in self.node.attributes.items()} | changes
        return self.op.emit(self.node.op_type, *inputs, outputs=outputs, **attributes)[0]

    @property
    def is_selected(self) -> bool:
        """True if a condition selects the result of the node, so that zero cotangents stay zero."""
        return MISSING in self.node.meta or SELECTED in self.node.meta

    def keep_zeros(self, value: ir.Value, slope: ir.Value | None = None, by: ir.Value | None = None) -> ir.Value:
        """Return ``value``, a product with ``slope``, as zero where that is zero if a condition selects the result.

        By default the slope is the first cotangent. ``by`` is the other factor; a constant one needs no such care.
        """
        known = None if by is None else constant(by)
        if not self.is_selected or (known is not None and np.isfinite(known).all()):
            return value
        return self.op.Where(self.op.Equal(self.g if slope is None else slope, 0.0), 0.0, value)

    def sum_to(self, value: ir.Value, index: int) -> ir.Value:
        """Sum ``value``, which has the shape of the first output, over the axes along which an input was broadcast."""
        return sum_to(self, value, dims(self.y), self.x(index))


def require_types(passage: Passage) -> None:
    """Refuse a gradient through float types for which runtimes have few kernels."""
    reason = passage.other_type(DIFFERENTIATED_TYPES)
    if reason:
        raise unsupported(passage.node, reason)


def require(known: Supported[object], node: ir.Node, through: Collection[int] = ()) -> None:
    """Refuse a node with settings, or a gradient ``through`` outputs, that its rule does not support."""
    reason = known.unknown(node) or known.missing(node, through)
    if reason:
        raise unsupported(node, reason)


def unsupported(node: ir.Node, reason: str) -> UnsupportedOperatorError:
    """Return the error that names the node, the reason and the remedy."""
    return UnsupportedOperatorError(f"{describe(node)} cannot be differentiated: {reason}. {REMEDY}")


def sum_to(r: Reverse, value: ir.Value, source: Dims | None, target: ir.Value) -> ir.Value:
    """Sum ``value``, of shape ``source``, over the axes along which ``target`` was broadcast."""
    sizes = dims(target)
    axes = broadcast_axes(source, sizes)
    if axes is None:
        return _sum_at_run_time(r, value, target)
    assert source is not None
    assert sizes is not None
    if not axes:
        return value
    lead = list(range(len(source) - len(sizes)))
    if axes == lead:
        return sum_over(r, value, source, axes)
    kept = r.op.ReduceSum(value, axes=axes, keepdims=True)
    return kept if not lead else r.op.Squeeze(kept, axes=lead)


def sum_over(r: Reverse, value: ir.Value, source: Dims, axes: list[int]) -> ir.Value:
    """Sum over the leading axes and drop them; for the rows of a matrix, a product with ones is faster."""
    if len(source) == 2 and axes == [0] and isinstance(source[0], int):
        return r.op.MatMul(np.ones(source[0], r.op.dtype.numpy()), value)
    return r.op.ReduceSum(value, axes=axes, keepdims=False)


def broadcast_axes(source: Dims | None, target: Dims | None) -> list[int] | None:
    """Return the axes of ``source`` along which ``target`` was broadcast, None if they are known only at run time."""
    if source is None or target is None:
        return None
    lead = len(source) - len(target)
    axes = list(range(lead))
    for i, (m, n) in enumerate(zip(source[lead:], target, strict=True), start=lead):
        if n == 1 and m != 1:
            axes.append(i)
        elif n is None or (m != n and n != 1):
            return None
    return axes


def _sum_at_run_time(r: Reverse, value: ir.Value, target: ir.Value) -> ir.Value:
    """Find the broadcast axes at run time: those whose sizes differ once the shapes are right-aligned.

    If Expand or ConstantOfShape made the leading ones, onnxruntime would infer too many and refuse the graph.
    """
    r.need_opset(13, "its gradient, with shapes that are not known,")
    op = r.op
    shape, wide = op.Shape(target), op.Shape(value)
    missing = op.Unsqueeze(op.Sub(op.Size(wide), op.Size(shape)), axes=[0])
    aligned = op.Pad(shape, op.Concat(missing, np.zeros(1, np.int64), axis=0), np.array(1, np.int64))
    axes = op.Squeeze(op.NonZero(op.Not(op.Equal(aligned, wide))), axes=[0])
    return op.Reshape(op.ReduceSum(value, axes=axes, keepdims=True, noop_with_empty_axes=1), shape)


def shape_of(op: GraphBuilder, value: ir.Value) -> Operand:
    """Return the shape of ``value`` as an operand: a constant if it is fixed."""
    sizes = dims(value)
    return np.array(sizes, np.int64) if fixed(sizes) else op.Shape(value)


def reshape_to(op: GraphBuilder, value: ir.Value, like: ir.Value) -> ir.Value:
    """Reshape ``value`` to the shape of ``like``, which has the same number of elements."""
    sizes = dims(like)
    if sizes is not None and 0 in sizes:
        return zeros_like(op, like)
    if sizes is not None and sum(not isinstance(d, int) for d in sizes) <= 1:
        return op.Reshape(value, np.array([d if isinstance(d, int) else -1 for d in sizes], np.int64))
    return op.Reshape(value, op.Shape(like))


def zeros_like(op: GraphBuilder, value: ir.Value) -> ir.Value:
    """Return zeros of the shape and type of ``value``."""
    return filled_like(op, value, 0)


def filled_like(op: GraphBuilder, value: ir.Value, number: float) -> ir.Value:
    """Return a tensor of the shape and type of ``value``, filled with ``number``."""
    return op.ConstantOfShape(shape_of(op, value), value=ir.tensor([number], dtype=value.dtype or op.dtype))


def count(op: GraphBuilder, value: ir.Value) -> Operand:
    """Return the number of elements of ``value``, as a float."""
    sizes = dims(value)
    if fixed(sizes):
        return float(np.prod(np.array(sizes, np.float64)))
    return op.Cast(op.Size(value), to=op.dtype)


def mask(op: GraphBuilder, condition: ir.Value) -> ir.Value:
    """Return 1 where ``condition`` holds, else 0."""
    return op.Cast(condition, to=op.dtype)


def positive_axes(r: Reverse, axes: Sequence[int], rank: int) -> list[int]:
    """Return the axes as non-negative numbers."""
    return sorted(axis % rank if rank else 0 for axis in axes)


def flat_index(op: GraphBuilder, value: ir.Value) -> ir.Value:
    """Return the positions 0, 1, 2, ... of the elements of ``value``, in its shape."""
    size = op.Size(value)
    return op.Reshape(op.Range(np.array(0), size, np.array(1)), shape_of(op, value))


def scatter_flat(r: Reverse, cotangent: ir.Value, index: ir.Value, like: ir.Value, *, repeats: bool) -> ir.Value:
    """Scatter-add ``cotangent`` at the flat positions ``index`` into zeros of the shape of ``like``."""
    op = r.op
    zeros = op.ConstantOfShape(op.Unsqueeze(op.Size(like), axes=[0]), value=ir.tensor([0], dtype=op.dtype))
    added = scatter_add(r, zeros, op.Reshape(index, [-1]), op.Reshape(cotangent, [-1]), 0, repeats=repeats)
    return reshape_to(op, added, like)


def scatter_add(
    r: Reverse, zeros: ir.Value, index: ir.Value, cotangent: ir.Value, axis: int, *, repeats: bool
) -> ir.Value:
    """Scatter ``cotangent`` into ``zeros`` at ``index``; repeated indices need an operator that accumulates."""
    if not repeats:
        return r.op.ScatterElements(zeros, index, cotangent, axis=axis)
    r.need_opset(16, "its gradient, which adds up,")
    return r.op.ScatterElements(zeros, index, cotangent, axis=axis, reduction="add")


# Roots of values that are never negative, such as the sum of squares in a norm or a distance.
#
# The derivative of the root is infinite at zero and that of a square is zero there; their product would be NaN. Both
# engines take the subgradient zero instead, as ``torch.cdist`` and ``torch.linalg.norm`` do. The root of a value that
# may be anything, such as a parameter, keeps its infinite derivative.


_DEPTH = 32
"""Nodes before a root that are looked at; a norm has fewer."""

_MOVED = frozenset("Concat Expand Flatten Gather Identity Reshape Slice Squeeze Tile Transpose Unsqueeze".split())
"""Operators whose numbers are some of those that they read first (all of them: Concat)."""

_ADDED = frozenset("Add Mean ReduceMax ReduceMean ReduceMin ReduceSum Sum".split())
"""Operators whose result is flat where those of their operands are, all of which are at zero."""


def is_norm(node: ir.Node, wanted: Collection[int]) -> bool:
    """Return True for Sqrt, and Pow by 1/2 or more up to 1, of a value that cannot go below zero and is flat there.

    ``wanted`` are the positions of the operands with a gradient: an exponent that is trained may get smaller.
    """
    if node.op_type == "Pow":
        power = None if node.inputs[1] is None else constant(node.inputs[1])
        if 1 in wanted or power is None or power.size != 1 or not 0.5 <= power.item() < 1:
            return False
    elif node.op_type != "Sqrt":
        return False
    return _is_flat_at_zero(node.inputs[0], _DEPTH)


def _is_flat_at_zero(value: ir.Value | None, depth: int) -> bool:
    """Return True if a value is never negative, and its own derivative is zero wherever it is zero."""
    node = None if value is None else value.producer()
    if node is None or node.domain or not depth:
        return False
    if node.op_type in _LEAVES:
        return _LEAVES[node.op_type](node)
    if node.op_type in ("Div", "Mul"):
        first, second = node.inputs
        if node.op_type == "Mul" and (first is second or _is_positive(first)):
            return first is second or _is_flat_at_zero(second, depth - 1)
        return _is_positive(second) and _is_flat_at_zero(first, depth - 1)
    if node.op_type in _ADDED | _MOVED:
        whole = node.op_type in ("Add", "Concat", "Mean", "Sum")
        return all(_is_flat_at_zero(x, depth - 1) for x in (node.inputs if whole else node.inputs[:1]))
    return False


def _is_positive(value: ir.Value | None) -> bool:
    """Return True for one positive constant."""
    array = None if value is None else constant(value)
    return array is not None and array.size == 1 and array.item() > 0


def _is_even_power(node: ir.Node) -> bool:
    power = None if node.inputs[1] is None else constant(node.inputs[1])
    return power is not None and power.size == 1 and power.item() > 0 and power.item() % 2 == 0


def _is_bounded_by_zero(node: ir.Node) -> bool:
    bounds = [operand(node, 1)] if node.op_type == "Clip" else list(node.inputs)
    return any(x is not None and (a := constant(x)) is not None and a.size == 1 and a.item() == 0 for x in bounds)


_LEAVES: dict[str, Callable[[ir.Node], bool]] = {
    "Clip": _is_bounded_by_zero,
    "Max": _is_bounded_by_zero,
    "Pow": _is_even_power,
    "ReduceSumSquare": lambda node: True,
    "Relu": lambda node: True,
}
"""What values are computed by that are flat at zero, and when; of Relu and bounds, from the left."""


# Nodes whose results are read only where a condition selects them, such as ``Where(x > 0, Log(x), 0)``.
#
# Where the condition leaves a result out, its cotangent is zero, but a derivative there may be infinite or NaN, and
# zero times that is NaN. Rules of such nodes return zero where the cotangent is zero. A NaN that is selected still
# shows.


SELECTED, MISSING = "selected by a condition", "selected by IsNaN"
"""Keys of a node's ``meta``."""

STEEP = frozenset("Acos Acosh Asin Atanh Cosh Exp Log Reciprocal Sinh Sqrt Tan".split())
"""Operators of one operand with a derivative that is not bounded."""

OTHERS = frozenset("Div LogSoftmax Mul Pow ReduceL2 ReduceLogSum ReduceLogSumExp Softmax".split())
"""Further operators whose rules multiply by numbers that may be infinite or NaN."""

_PASSED = (
    STEEP
    | OTHERS
    | frozenset(
        "Abs Add Cast Ceil Clip Cos Elu Erf Expand Flatten Gather Identity LeakyRelu Max Min Neg Relu Reshape Sigmoid "
        "Sin Slice Softplus Split Squeeze Sub Sum Tanh Transpose Unsqueeze Where Dropout".split()
    )
)
"""Operators through which an element stays apart from most others; not products of matrices."""


def mark_selected(graph: ir.Graph) -> bool:
    """Mark nodes whose results a condition selects, in their ``meta``; return whether one of them is steep."""
    steep = False
    for node in every_node(graph):
        if node.op_type == "Where" and not node.domain:
            kind = MISSING if _tests_for_nan(node.inputs[0]) else SELECTED
            steep |= _mark(node, kind)
    return steep


def _mark(where: ir.Node, kind: str) -> bool:
    front, seen, steep = list(where.inputs[1:]), set(), False
    while front:
        value = front.pop()
        node = None if value is None else value.producer()
        if node is None or node in seen or node.domain or node.op_type not in _PASSED:
            continue
        seen.add(node)
        node.meta[kind] = True
        steep |= node.op_type in STEEP | {"LogSoftmax", "Softmax"} and (kind == MISSING or node.op_type in _ENDLESS)
        front += node.inputs[1:] if node.op_type == "Where" else node.inputs
    return steep


_ENDLESS = frozenset({"Acos", "Acosh", "Asin", "Atanh", "Log", "Reciprocal", "Sqrt"})
"""Operators with an infinite derivative at a finite number."""


def _tests_for_nan(condition: ir.Value | None, depth: int = 4) -> bool:
    node = None if condition is None else condition.producer()
    if node is None or not depth:
        return False
    if node.op_type == "IsNaN":
        return True
    passes = node.op_type in ("And", "Cast", "Expand", "Not", "Or", "Unsqueeze")
    return passes and any(_tests_for_nan(x, depth - 1) for x in node.inputs)


# The path of the gradient: the nodes between the trained parameters and the loss.
#
# Gradients flow through floating-point values only: a path through a bool or an integer has a zero gradient, and so has
# one through a node that stops it. A value that a subgraph reads counts as read by the node that contains the subgraph.


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

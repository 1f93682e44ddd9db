"""The interface of gradient rules, and the operations that several rules emit.

A rule is a function of a :class:`Reverse`, one node in the reverse pass. It returns one thunk per input, in order. The
thunk of an input returns its cotangent (the gradient with respect to it), of the input's shape and type, or None where
the gradient is zero. Only the thunks of wanted inputs are called. None in place of a thunk, or a missing thunk, means
that there is no rule for that input. Rules emit standard ONNX operators of the graph's opset. A registry holds each
rule in a :class:`~onnxtrain_sklearn._ir.supported.Supported`, beside the attributes, inputs and outputs that it
supports.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import numpy as np
import onnx_ir as ir

from .._ir.queries import Dims, attribute, constant, dims, fixed, node_label, operand, opset
from .._ir.supported import Supported
from ..exceptions import UnsupportedOperatorError
from ..graph import GraphBuilder, Operand, Setting
from .path import MISSING, SELECTED, PathNode

Thunk: TypeAlias = Callable[[], "ir.Value | None"]
Cotangents: TypeAlias = "dict[ir.Value, list[ir.Value]]"
"""For each value the cotangents that its readers contribute, to be summed."""
GradientRule: TypeAlias = "Supported[Callable[[Reverse], Sequence[Thunk | None]]]"


class NewerOpsetNeeded(UnsupportedOperatorError):
    """The gradient of a node needs operators that the graph's opset lacks; the engine then converts the graph."""

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
        """Return the optional output ``index`` of the forward node, which is added if the node does not have it."""
        self.node.resize_outputs(max(index + 1, len(self.node.outputs)))
        for value in self.node.outputs:
            value.name = value.name or ""
        value = self.node.outputs[index]
        if not value.name:
            value.name = self.op.name(self.node.op_type)
            value.dtype = dtype
            value.shape = shape
        return value

    def has(self, index: int) -> bool:
        """Return True if the node has the optional input ``index``."""
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
        """Refuse an older opset; the engine then converts the graph to ``version``."""
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
        """True if a Where selects the node's result, so that zero cotangents must stay zero."""
        return MISSING in self.node.meta or SELECTED in self.node.meta

    def keep_zeros(self, value: ir.Value, slope: ir.Value | None = None, by: ir.Value | None = None) -> ir.Value:
        """Return the product ``value = slope * by``, with zeros where ``slope`` is zero if a Where selects the result.

        Zero times infinity would be NaN. By default ``slope`` is the first cotangent. If ``by`` is a finite constant,
        the product needs no correction, because zero times it is zero.
        """
        known = None if by is None else constant(by)
        if not self.is_selected or (known is not None and np.isfinite(known).all()):
            return value
        return self.op.Where(self.op.Equal(self.g if slope is None else slope, 0.0), 0.0, value)

    def sum_to(self, value: ir.Value, index: int) -> ir.Value:
        """Sum ``value``, of the shape of the first output, over the axes along which input ``index`` was broadcast."""
        return sum_to(self, value, dims(self.y), self.x(index))


def require_types(step: PathNode) -> None:
    """Refuse a gradient through float types for which runtimes have few kernels."""
    reason = step.unsupported_type(DIFFERENTIATED_TYPES)
    if reason:
        raise unsupported(step.node, reason)


def require(known: Supported[object], node: ir.Node, through: Collection[int] = ()) -> None:
    """Refuse ``node`` if its rule does not support its settings, or a gradient ``through`` these outputs."""
    reason = known.unknown(node) or known.missing(node, through)
    if reason:
        raise unsupported(node, reason)


def unsupported(node: ir.Node, reason: str) -> UnsupportedOperatorError:
    """Return the error that names the node, the reason and the remedy."""
    return UnsupportedOperatorError(f"{node_label(node)} cannot be differentiated: {reason}. {REMEDY}")


def sum_to(r: Reverse, value: ir.Value, source: Dims | None, target: ir.Value) -> ir.Value:
    """Sum ``value``, of shape ``source``, over the axes along which ``target`` was broadcast."""
    sizes = dims(target)
    axes = broadcast_axes(source, sizes)
    if axes is None:
        # Find the axes at run time: those whose sizes differ once the shapes are right-aligned. Pad prepends the sizes
        # of 1; with Expand or ConstantOfShape, onnxruntime would infer a wrong rank and refuse the graph.
        r.need_opset(13, "its gradient, with shapes that are not known,")
        op = r.op
        shape, wide = op.Shape(target), op.Shape(value)
        missing = op.Unsqueeze(op.Sub(op.Size(wide), op.Size(shape)), axes=[0])
        aligned = op.Pad(shape, op.Concat(missing, np.zeros(1, np.int64), axis=0), np.array(1, np.int64))
        found = op.Squeeze(op.NonZero(op.Not(op.Equal(aligned, wide))), axes=[0])
        return op.Reshape(op.ReduceSum(value, axes=found, keepdims=True, noop_with_empty_axes=1), shape)
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
    """Sum over the leading axes and drop them.

    For the rows of a matrix, a product with ones takes a fifth of ReduceSum's time (6 instead of 34 µs for layers
    [64,128,10] at batch size 200, onnxruntime 1.19.2).
    """
    if len(source) == 2 and axes == [0] and isinstance(source[0], int):
        return r.op.MatMul(np.ones(source[0], r.op.dtype.numpy()), value)
    return r.op.ReduceSum(value, axes=axes, keepdims=False)


def broadcast_axes(source: Dims | None, target: Dims | None) -> list[int] | None:
    """Return the axes of ``source`` along which ``target`` was broadcast; None if they are known only at run time."""
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
    """Return 1 where ``condition`` holds, else 0, as numbers of the gradient's type."""
    return op.Cast(condition, to=op.dtype)


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
    """Add ``cotangent`` to ``zeros`` at ``index``; with ``repeats``, use an operator that accumulates."""
    if not repeats:
        return r.op.ScatterElements(zeros, index, cotangent, axis=axis)
    r.need_opset(16, "its gradient, which adds up,")
    return r.op.ScatterElements(zeros, index, cotangent, axis=axis, reduction="add")

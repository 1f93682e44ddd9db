"""Gradient rules of reductions, softmax, cumulative sums and products, and determinants.

With ``keepdims=0`` the reduced axes are restored with size 1; then the cotangent is broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import onnx_ir as ir

from ...._graph.builder import GraphBuilder, Operand
from ...._graph.one_hot import is_one_hot
from ...._graph.queries import attribute, constant, dims, fixed, operand
from ...._graph.supported import Supported
from ...selection import OTHERS
from ..context import GradientRule, Reverse, Thunk, count, mask, shape_of

Reduction = Callable[[Reverse, GraphBuilder, ir.Value, ir.Value, ir.Value], ir.Value]


def _axes_of_reduction(r: Reverse) -> list[int] | ir.Value | None:
    """Return the reduced axes: None for all, [] for none, a graph value if they are known only at run time."""
    given = operand(r.node, 1)
    known = None if given is None else constant(given)
    if given is not None and known is None:
        return given
    axes = r.attribute("axes", None) if known is None else known.tolist()
    if axes is None or len(axes) == 0:
        return [] if r.attribute("noop_with_empty_axes", 0) else None
    return [int(axis) for axis in axes]


def _reduction_rule(rule: Reduction, r: Reverse) -> Sequence[Thunk]:
    axes = _axes_of_reduction(r)
    kept = r.attribute("keepdims", 1) or axes is None or axes == []  # a scalar needs no reshape
    g, y = (v if kept else r.op.Unsqueeze(v, axes=axes) for v in (r.g, r.y))
    if r.is_selected and r.node.op_type in OTHERS:
        return [lambda: r.keep_zeros(rule(r, r.op, g, r.x(), y), slope=g)]
    return [lambda: rule(r, r.op, g, r.x(), y)]


def _broadcast_to_input(r: Reverse, g: ir.Value) -> ir.Value:
    """Broadcast the cotangent of a reduction to the shape of its input."""
    same = dims(r.y) is not None and dims(r.y) == dims(r.x()) and None not in (dims(r.y) or [])
    return g if same else r.op.Expand(g, shape_of(r.op, r.x()))


def _mean_gradient(r: Reverse, op: GraphBuilder, g: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    n, m = count(op, x), count(op, r.y)
    share: Operand = n / m if isinstance(n, float) and isinstance(m, float) and m else op.Div(n, m)
    return _broadcast_to_input(r, op.Div(g, share))


def _extreme_gradient(r: Reverse, op: GraphBuilder, g: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """Equal extremes share the gradient."""
    hit = mask(op, op.Equal(x, y))
    return op.Mul(hit, op.Div(g, _reduced_by(r, "ReduceSum", hit)))


def _reduced_by(r: Reverse, operator: str, value: ir.Value) -> ir.Value:
    """Reduce ``value`` by another operator over the same axes, with keepdims."""
    axes = _axes_of_reduction(r)
    if axes == []:
        return value
    noop = r.attribute("noop_with_empty_axes", 0) if isinstance(axes, ir.Value) else None
    return r.op.emit(operator, value, axes=axes, keepdims=1, noop_with_empty_axes=noop)[0]


def _prod(r: Reverse, op: GraphBuilder, g: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """The derivative is ``y / x``; at a zero it is the product of the other elements, 0 if another one is 0."""
    zero = op.Equal(x, 0.0)
    nonzero = op.Where(zero, 1.0, x)
    zeros = mask(op, zero)
    others_zero = op.Sub(_reduced_by(r, "ReduceSum", zeros), zeros)
    others = op.Div(_reduced_by(r, "ReduceProd", nonzero), nonzero)
    return op.Mul(g, op.Where(op.Greater(others_zero, 0.5), 0.0, others))


def _l2(r: Reverse, op: GraphBuilder, g: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """The gradient at the origin, the kink, is 0."""
    return op.Mul(g, op.Div(x, op.Where(op.Equal(y, 0.0), 1.0, y)))


# Arguments: node, builder, cotangent of the output, input, output. Cotangent and output keep the reduced axes.
REDUCTIONS: dict[str, Reduction] = {
    "ReduceL1": lambda r, op, g, x, y: op.Mul(g, op.Sign(x)),
    "ReduceL2": _l2,
    "ReduceLogSum": lambda r, op, g, x, y: _broadcast_to_input(r, op.Div(g, _reduced_by(r, "ReduceSum", x))),
    "ReduceLogSumExp": lambda r, op, g, x, y: op.Mul(g, op.Exp(op.Sub(x, y))),
    "ReduceMax": _extreme_gradient,
    "ReduceMean": _mean_gradient,
    "ReduceMin": _extreme_gradient,
    "ReduceProd": _prod,
    "ReduceSum": lambda r, op, g, x, y: _broadcast_to_input(r, g),
    "ReduceSumSquare": lambda r, op, g, x, y: op.Mul(g, op.Mul(x, 2.0)),
}


def _softmax_axes(r: Reverse) -> list[int]:
    """Return the normalized axes: before opset 13 all from ``axis`` on."""
    if r.opset >= 13:
        return [r.attribute("axis", -1)]
    rank = r.rank()
    return list(range(r.attribute("axis", 1) % rank, rank)) if rank else [0]


def _softmax_rule(r: Reverse) -> Sequence[Thunk]:
    op, weighted = r.op, r.keep_zeros(r.op.Mul(r.g, r.y))
    total = op.ReduceSum(weighted, axes=_softmax_axes(r), keepdims=True)
    if r.is_selected:  # a row without a finite score is NaN
        slope = op.Sub(r.g, total)
        return [lambda: r.keep_zeros(op.Mul(r.y, slope), slope)]
    return [lambda: op.Sub(weighted, op.Mul(r.y, total))]


def _log_softmax_rule(r: Reverse) -> Sequence[Thunk]:
    op, axes = r.op, _softmax_axes(r)
    picked, total = _picked(r, axes), _total_of_one_hot(r, axes)
    if total is None:
        total = op.ReduceSum(r.g if picked is None else picked[1], axes=axes, keepdims=True)

    def gradient() -> ir.Value:
        share = r.keep_zeros(op.Mul(op.Exp(r.y), total), total)
        if picked is None:
            return op.Sub(r.g, share)
        return op.ScatterElements(op.Neg(share), *picked, axis=axes[0], reduction="add")

    return [gradient]


def _total_of_one_hot(r: Reverse, axes: Sequence[int]) -> ir.Value | None:
    """Return the sum over the classes of a cotangent that is a product of a column with one-hot rows: the column."""
    node, shape = r.g.producer(), dims(r.y)
    if node is None or node.op_type != "Mul" or not shape or axes not in ([-1], [len(shape) - 1]):
        return None
    for column, rows in (node.inputs, node.inputs[::-1]):
        made = None if column is None else column.producer()
        narrow = made.inputs[0] if made is not None and made.op_type == "Expand" else column
        if is_one_hot(rows) and dims(rows) == shape and dims(narrow) == [*shape[:-1], 1]:
            return narrow
    return None


def _picked(r: Reverse, axes: Sequence[int]) -> tuple[ir.Value, ir.Value] | None:
    """Return indices and values of a cotangent that is zero but for few elements along the axis of a softmax.

    So is that of the log-likelihood of one class in many. Adding them to the rest saves a tensor of zeros, or two.
    """
    node = r.g.producer()
    if node is None or node.op_type != "ScatterElements" or attribute(node, "reduction", "none") != "add":
        return None
    zeros, index, updates = node.inputs
    assert zeros is not None
    assert index is not None
    assert updates is not None
    sizes, few = dims(r.y), dims(index)
    if len(axes) != 1 or not (_are_zeros(zeros) and fixed(sizes) and fixed(few)):
        return None
    axis = axes[0] % len(sizes)
    others = all(sizes[i] == few[i] for i in range(len(sizes)) if i != axis)
    return (index, updates) if others and attribute(node, "axis", 0) % len(sizes) == axis else None


def _are_zeros(value: ir.Value) -> bool:
    made = value.producer()
    if made is None or made.op_type != "ConstantOfShape":
        return False
    number = attribute(made, "value", None)
    return number is None or not number.numpy().any()


def _cumsum_rule(r: Reverse) -> Sequence[Thunk]:
    return [lambda: r.again(r.g, r.x(1), reverse=1 - int(r.attribute("reverse", 0)))]


def _cumprod_rule(r: Reverse) -> Sequence[Thunk]:
    """Divide sums of ``g y`` by ``x``; for the first zero, the products are recomputed without it."""
    op, x, axis, reverse = r.op, r.x(), r.x(1), int(r.attribute("reverse", 0))
    zero = op.Equal(x, 0.0)
    first = op.And(zero, op.Less(op.CumSum(mask(op, zero), axis, reverse=reverse), 1.5))
    without = r.again(op.Where(first, 1.0, x), axis)

    def sums(products: ir.Value) -> ir.Value:
        return op.CumSum(op.Mul(r.g, products), axis, exclusive=r.attribute("exclusive", 0), reverse=1 - reverse)

    others = op.Div(sums(r.y), op.Where(zero, 1.0, x))
    return [lambda: op.Where(zero, op.Where(first, sums(without), 0.0), others)]


def _no_gradient_of_input(r: Reverse) -> Sequence[Thunk]:
    return [lambda: None]


def _det_rule(r: Reverse) -> Sequence[Thunk]:
    """The gradient is the matrix of cofactors, computed from minors: valid for singular matrices too."""
    op, n = r.op, (dims(r.x()) or [None])[-1]
    if not isinstance(n, int):
        r.refuse("the size of its matrices is not known")
    g = op.Unsqueeze(r.g, axes=[-2, -1])
    if n == 1:
        return [lambda: g]
    lead = list(range(r.rank() - 2))
    left = np.array([[j for j in range(n) if j != i] for i in range(n)])
    minors = op.Gather(op.Gather(r.x(), left, axis=-1), left, axis=len(lead))  # (..., row, rows, column, columns)
    minors = op.Transpose(minors, perm=[*lead, *(len(lead) + axis for axis in (0, 2, 1, 3))])
    signs = (-1.0) ** np.add.outer(np.arange(n), np.arange(n))
    return [lambda: op.Mul(op.Mul(op.Det(minors), signs.astype(op.dtype.numpy())), g)]


RULES: dict[str, GradientRule] = {
    **{
        name: Supported(partial(_reduction_rule, rule), "axes keepdims noop_with_empty_axes", inputs=2)
        for name, rule in REDUCTIONS.items()
    },
    "CumProd": Supported(_cumprod_rule, "exclusive reverse", inputs=2),
    "CumSum": Supported(_cumsum_rule, "exclusive reverse", inputs=2),
    "Det": Supported(_det_rule),
    "Hardmax": Supported(_no_gradient_of_input, "axis"),
    "LogSoftmax": Supported(_log_softmax_rule, "axis"),
    "Softmax": Supported(_softmax_rule, "axis"),
}

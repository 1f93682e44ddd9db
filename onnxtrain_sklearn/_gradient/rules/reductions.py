"""Gradient rules of reductions, softmax, cumulative sums and products, determinants and Fourier transforms.

A reduction is one line of :data:`REDUCTIONS`. With ``keepdims=0`` its reduced axes are restored with size 1 first, so
that the cotangent broadcasts to the input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import onnx_ir as ir

from ..._ir.queries import attribute, constant, dims, fixed, operand
from ..._ir.supported import Supported
from ..._model.loss_terms import is_one_hot
from ...graph import GraphBuilder, Operand
from ..path import UNBOUNDED, forbid_derivative
from ..reverse import GradientRule, Reverse, Thunk, count, mask, scatter_add, shape_of, zeros_like

Reduction = Callable[[Reverse, GraphBuilder, ir.Value, ir.Value, ir.Value], ir.Value]
"""Called with node, builder, cotangent of the output, input, and output; cotangent and output keep the reduced axes."""


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
    kept = r.attribute("keepdims", 1) or axes is None or axes == []  # all axes, or none, are reduced: no Unsqueeze
    g, y = (v if kept else r.op.Unsqueeze(v, axes=axes) for v in (r.g, r.y))
    if r.is_selected and r.node.op_type in UNBOUNDED:
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
    """Divide the cotangent equally among equal extremes."""
    hit = mask(op, op.Equal(x, y))
    return op.Mul(hit, op.Div(g, _reduced_by(r, "ReduceSum", hit)))


def _reduced_by(r: Reverse, operator: str, value: ir.Value) -> ir.Value:
    """Reduce ``value`` by another operator over the same axes, with keepdims."""
    axes = _axes_of_reduction(r)
    if axes == []:
        return value
    noop = r.attribute("noop_with_empty_axes", 0) if isinstance(axes, ir.Value) else None
    return r.op.emit(operator, value, axes=axes, keepdims=1, noop_with_empty_axes=noop)[0]


def _product_gradient(r: Reverse, op: GraphBuilder, g: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """Multiply the cotangent by ``y / x``, or at a zero by the product of the other elements."""
    zero = op.Equal(x, 0.0)
    nonzero = forbid_derivative(op.Where(zero, 1.0, x), op.taken)
    zeros = mask(op, zero)
    others_zero = op.Sub(_reduced_by(r, "ReduceSum", zeros), zeros)
    others = op.Div(_reduced_by(r, "ReduceProd", nonzero), nonzero)
    return op.Mul(g, op.Where(op.Greater(others_zero, 0.5), 0.0, others))


REDUCTIONS: dict[str, Reduction] = {
    "ReduceL1": lambda r, op, g, x, y: op.Mul(g, op.Sign(x)),
    "ReduceL2": lambda r, op, g, x, y: op.Mul(g, op.Div(x, op.Where(op.Equal(y, 0.0), 1.0, y))),  # 0 at the origin
    "ReduceLogSum": lambda r, op, g, x, y: _broadcast_to_input(r, op.Div(g, _reduced_by(r, "ReduceSum", x))),
    "ReduceLogSumExp": lambda r, op, g, x, y: op.Mul(g, op.Exp(op.Sub(x, y))),
    "ReduceMax": _extreme_gradient,
    "ReduceMean": _mean_gradient,
    "ReduceMin": _extreme_gradient,
    "ReduceProd": _product_gradient,
    "ReduceSum": lambda r, op, g, x, y: _broadcast_to_input(r, g),
    "ReduceSumSquare": lambda r, op, g, x, y: op.Mul(g, op.Mul(x, 2.0)),
}


def _softmax_axes(r: Reverse) -> list[int]:
    """Return the axes over which the softmax is taken: ``axis``, or before opset 13 all axes from ``axis`` on."""
    if r.opset >= 13:
        return [r.attribute("axis", -1)]
    rank = r.rank()
    return list(range(r.attribute("axis", 1) % rank, rank)) if rank else [0]


def _softmax_rule(r: Reverse) -> Sequence[Thunk]:
    op, weighted = r.op, r.keep_zeros(r.op.Mul(r.g, r.y))
    total = op.ReduceSum(weighted, axes=_softmax_axes(r), keepdims=True)
    if r.is_selected:  # a Where may drop a row of infinite scores, whose softmax is NaN: its gradient is 0, not 0 * NaN
        slope = op.Sub(r.g, total)
        return [lambda: r.keep_zeros(op.Mul(r.y, slope), slope)]
    return [lambda: op.Sub(weighted, op.Mul(r.y, total))]


def _log_softmax_rule(r: Reverse) -> Sequence[Thunk]:
    op, axes = r.op, _softmax_axes(r)
    picked = _picked_cotangents(r, axes)
    total = _total_of_one_hot(r, axes)
    if total is None:
        total = op.ReduceSum(r.g if picked is None else picked[1], axes=axes, keepdims=True)

    def gradient() -> ir.Value:
        share = r.keep_zeros(op.Mul(op.Exp(r.y), total), total)
        if picked is None:
            return op.Sub(r.g, share)
        return op.ScatterElements(op.Neg(share), *picked, axis=axes[0], reduction="add")

    return [gradient]


def _total_of_one_hot(r: Reverse, axes: Sequence[int]) -> ir.Value | None:
    """If the cotangent is ``column * one_hot``, return ``column``: that is its sum over the classes. Else None."""
    node, shape = r.g.producer(), dims(r.y)
    if node is None or node.op_type != "Mul" or not shape or axes not in ([-1], [len(shape) - 1]):
        return None
    for column, rows in (node.inputs, node.inputs[::-1]):
        made = None if column is None else column.producer()
        narrow = made.inputs[0] if made is not None and made.op_type == "Expand" else column
        if is_one_hot(rows) and dims(rows) == shape and dims(narrow) == [*shape[:-1], 1]:
            return narrow
    return None


def _picked_cotangents(r: Reverse, axes: Sequence[int]) -> tuple[ir.Value, ir.Value] | None:
    """Return the indices and values of a sparse cotangent: one that is scattered into zeros along the softmax's axis.

    The log-likelihood of one class in many has such a cotangent. Adding the values to the rest of the gradient saves
    one or two tensors of zeros.
    """
    node = r.g.producer()
    if node is None or node.op_type != "ScatterElements" or attribute(node, "reduction", "none") != "add":
        return None
    zeros, index, updates = node.inputs
    assert zeros is not None
    assert index is not None
    assert updates is not None
    made = zeros.producer()
    if made is None or made.op_type != "ConstantOfShape":
        return None
    number = attribute(made, "value", None)  # None: zero
    if number is not None and number.numpy().any():
        return None
    sizes, few = dims(r.y), dims(index)
    if len(axes) != 1 or not (fixed(sizes) and fixed(few)):
        return None
    axis = axes[0] % len(sizes)
    others = all(sizes[i] == few[i] for i in range(len(sizes)) if i != axis)
    return (index, updates) if others and attribute(node, "axis", 0) % len(sizes) == axis else None


def _cumprod_rule(r: Reverse) -> Sequence[Thunk]:
    """Divide the cumulative sums of ``g y`` by ``x``; for the first zero, compute the products again without it."""
    op = r.op
    x = r.x()
    axis = r.x(1)
    reverse = int(r.attribute("reverse", 0))
    zero = op.Equal(x, 0.0)
    first = op.And(zero, op.Less(op.CumSum(mask(op, zero), axis, reverse=reverse), 1.5))
    without = r.again(op.Where(first, 1.0, x), axis)

    def sums(products: ir.Value) -> ir.Value:
        return op.CumSum(op.Mul(r.g, products), axis, exclusive=r.attribute("exclusive", 0), reverse=1 - reverse)

    others = op.Div(sums(r.y), forbid_derivative(op.Where(zero, 1.0, x), op.taken))
    return [lambda: op.Where(zero, op.Where(first, sums(without), 0.0), others)]


def _det_rule(r: Reverse) -> Sequence[Thunk]:
    """Multiply by the matrix of cofactors, which minors give for singular matrices too."""
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


# Fourier transforms: linear, so that the adjoint is the transform in the opposite direction.
#
# With ``F`` the matrix of the transform over ``N`` values, the inverse is ``conj(F) / N``: so the gradient of ``F`` is
# ``N`` times the inverse transform, and that of the inverse is ``F / N``. Truncated values have a zero cotangent,
# padding is cropped, and the cotangent of a real input is the real part.


def _dft_rule(r: Reverse) -> Sequence[Thunk]:
    # Before opset 20 the axis is an attribute, by default 1; since then an input, by default -2.
    given = r.attribute("axis", 1) if r.opset < 20 else -2
    if r.opset >= 20 and r.has(2):
        given = r.constant(2, "the axis of the transform").item()
    axis = int(given) % r.rank()
    inverse = r.attribute("inverse", 0)
    onesided = r.attribute("onesided", 0)
    size = (dims(r.x()) or [None] * r.rank())[axis]
    if not isinstance(size, int):
        r.refuse("the size of the axis that it transforms is not known")
    length = 2 * (size - 1) if onesided and inverse else size
    if r.has(1):
        length = int(r.constant(1, "the length of the transform").item())
    if onesided and inverse and length != 2 * (size - 1):
        r.refuse("runtimes disagree on a dft_length that is not the one of its input")
    if onesided and inverse:

        def half_spectrum() -> ir.Value:
            """Return the cotangent of a half spectrum: all bins but the first and last stand for conjugates too."""
            weight = np.full(length // 2 + 1, 2 / length)
            weight[[0, -1]] = 1 / length
            column = weight.reshape(-1, *[1] * (r.rank() - 1 - axis)).astype(r.op.dtype.numpy())
            return r.op.Mul(_transform_along(r, r.g, axis, onesided=1), column)

        return [half_spectrum]
    return [lambda: _resized(r, _like_input(r, _complex_cotangent(r, r.g, axis, length)), axis, length, size)]


def _transform_along(r: Reverse, value: ir.Value, axis: int, **settings: int) -> ir.Value:
    if r.opset < 20:
        return r.op.DFT(value, None, axis=axis, **settings)
    return r.op.DFT(value, None, np.array(axis), **settings)


def _complex_cotangent(r: Reverse, cotangent: ir.Value, axis: int, length: int) -> ir.Value:
    """Return the complex cotangent of the transformed values; it is zero for bins that were left out."""
    inverse = r.attribute("inverse", 0)
    if r.attribute("onesided", 0):
        cotangent = _resized(r, cotangent, axis, length // 2 + 1, length)
    return r.op.Mul(_transform_along(r, cotangent, axis, inverse=1 - inverse), 1 / length if inverse else float(length))


def _like_input(r: Reverse, value: ir.Value) -> ir.Value:
    """Return the real part if the input is real."""
    parts = (dims(r.x()) or [None])[-1]
    if parts not in (1, 2):
        r.refuse("it is not known whether its input is real or complex")
    return value if parts == 2 else r.op.Slice(value, [0], [1], [-1])


def _resized(r: Reverse, value: ir.Value, axis: int, size: int, wanted: int) -> ir.Value:
    """Truncate an axis at its end, or pad it with zeros."""
    ends = np.zeros((2, r.rank(r.y)), np.int64)
    ends[1, axis] = wanted - size
    return r.op.Pad(value, ends.ravel()) if wanted != size else value


def _stft_rule(r: Reverse) -> Sequence[Thunk | None]:
    """Apply the inverse transform to the cotangents of the frames, and sum where frames overlap."""
    if "onesided" not in r.node.attributes:
        r.refuse("shape inference takes its attribute onesided for 0 where it is left out, and runtimes for 1; give it")
    op = r.op
    shape = dims(r.x()) or [None] * 3
    bins = dims(r.y) or [None] * 4
    step = int(r.constant(1, "the step of its frames").item())
    # The length of a frame: the input frame_length, else the length of the window, else that of the signal.
    if r.has(3):
        length = int(r.constant(3, "the length of its frames").item())
    else:
        known = (dims(r.x(2)) or [None])[0] if r.has(2) else shape[1]
        length = known if isinstance(known, int) else r.refuse("the length of its frames is not known")
    if not isinstance(bins[1], int):
        r.refuse("the number of its frames is not known")
    places = np.add.outer(np.arange(bins[1]) * step, np.arange(length))
    frames = _like_input(r, _complex_cotangent(r, r.g, 2, length))

    def of_signal() -> ir.Value:
        cotangents = op.Mul(frames, op.Reshape(r.x(2), [-1, 1])) if r.has(2) else frames
        flat = op.Reshape(cotangents, [0, places.size, -1])
        index = op.Expand(places.reshape(1, -1, 1), op.Shape(flat))
        return scatter_add(r, zeros_like(op, r.x()), index, flat, 1, repeats=True)

    def of_window() -> ir.Value:
        return op.ReduceSum(op.Mul(frames, op.Gather(r.x(), places, axis=1)), axes=[0, 1, 3], keepdims=False)

    return of_signal, None, of_window


RULES: dict[str, GradientRule] = {
    **{
        name: Supported(partial(_reduction_rule, rule), "axes keepdims noop_with_empty_axes", inputs=2)
        for name, rule in REDUCTIONS.items()
    },
    "CumProd": Supported(_cumprod_rule, "exclusive reverse", inputs=2),
    "CumSum": Supported(
        lambda r: [lambda: r.again(r.g, r.x(1), reverse=1 - int(r.attribute("reverse", 0)))],
        "exclusive reverse",
        inputs=2,
    ),
    "Det": Supported(_det_rule),
    "Hardmax": Supported(lambda r: [lambda: None], "axis"),
    "LogSoftmax": Supported(_log_softmax_rule, "axis"),
    "Softmax": Supported(_softmax_rule, "axis"),
    "DFT": Supported(_dft_rule, "axis inverse onesided", inputs=3),
    "STFT": Supported(_stft_rule, "onesided", inputs=4),
}

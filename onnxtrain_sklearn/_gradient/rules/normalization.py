"""Gradient rules of normalizations, and the forward form of BatchNormalization that shares the batch's statistics.

With ``z`` the normalized value, ``s`` the standard deviation and means over the normalized axes, the cotangent ``h`` of
``z`` gives ``x`` the cotangent ``(h - mean(h) - z mean(h z)) / s`` (:func:`_centered_back`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ..._ir.edits import replace_node
from ..._ir.queries import dims, fixed
from ..._ir.supported import Supported
from ...graph import GraphBuilder, Operand
from ..reverse import GradientRule, Reverse, Thunk, reshape_to, shape_of

_EPSILON = 1e-5
"""The default of ONNX."""


def normalize_by_moments(op: GraphBuilder, node: ir.Node) -> None:
    """Replace a node in training mode by nodes that compute the batch statistics, and the operator in inference mode.

    The gradient shares the statistics.
    """
    r = Reverse(op, node, (), frozenset())
    types = {value.dtype for value in (*node.inputs, *node.outputs) if value is not None and value.name}
    if r.opset < 14 or not _in_training_mode(r) or len(types) > 1 or r.x().dtype not in _NORMALIZED_TYPES:
        return
    mean, _, variance = _batch_moments(r, _per_channel(r))
    result = op.BatchNormalization(
        *(r.x(i) for i in range(3)), mean, variance, epsilon=r.attribute("epsilon", _EPSILON)
    )
    replace_node(op, node, [result, _running(r, 1, mean), _running(r, 2, variance)])


# Parts that several rules share.


def _mean_over(op: GraphBuilder, x: ir.Value, axes: list[int]) -> ir.Value:
    return op.ReduceMean(x, axes=axes, keepdims=True)


def _standardize(r: Reverse, x: ir.Value, axes: list[int]) -> tuple[ir.Value, ir.Value]:
    """Return the normalized value and the reciprocal of the deviation."""
    op = r.op
    centered, variance = _moments(r, x, axes)
    inverse = _reciprocal_deviation(r, variance)
    return op.Mul(centered, inverse), inverse


def _reciprocal_deviation(r: Reverse, variance: ir.Value) -> ir.Value:
    return r.op.Reciprocal(r.op.Sqrt(r.op.Add(variance, r.attribute("epsilon", _EPSILON))))


def _moments(r: Reverse, x: ir.Value, axes: list[int]) -> tuple[ir.Value, ir.Value]:
    op = r.op
    centered = op.Sub(x, _mean_over(op, x, axes))
    return centered, _mean_over(op, op.Mul(centered, centered), axes)


def _centered_back(op: GraphBuilder, h: ir.Value, z: ir.Value, inverse: ir.Value, axes: list[int]) -> ir.Value:
    means = op.Add(_mean_over(op, h, axes), op.Mul(z, _mean_over(op, op.Mul(h, z), axes)))
    return op.Mul(op.Sub(h, means), inverse)


def _elements_along(r: Reverse, axes: list[int]) -> Operand:
    """Return the number of elements along these axes, as a float."""
    sizes = [(dims(r.x()) or [])[axis] for axis in axes]
    if fixed(sizes):
        return float(np.prod(sizes))
    return r.op.Cast(r.op.ReduceProd(r.op.Gather(r.op.Shape(r.x()), np.array(axes)), keepdims=False), to=r.op.dtype)


def _cotangent_of_statistic(r: Reverse, index: int) -> ir.Value | None:
    """Return the cotangent of an output with a statistic, cast to the type of the value."""
    cotangent = r.cotangents[index] if index < len(r.cotangents) else None
    same = cotangent is None or r.node.outputs[index].dtype is r.op.dtype
    return cotangent if same else r.op.Cast(cotangent, to=r.op.dtype)


# Rules.


def _layer_normalization_rule(r: Reverse) -> Sequence[Thunk]:
    """Differentiate the normalized value, and the optional outputs: the mean and the reciprocal of the deviation."""
    op, rank, g = r.op, r.rank(), r.cotangents[0]
    axes = list(range(r.attribute("axis", -1) % rank, rank))
    if op.dtype is ir.DataType.FLOAT:  # the kernel's own statistics are float32 whatever the type of the input
        mean, inverse = (r.further_output(i, ir.DataType.FLOAT) for i in (1, 2))
        z = op.Mul(op.Sub(r.x(), mean), inverse)
    else:
        z, inverse = _standardize(r, r.x(), axes)

    def of_value() -> ir.Value:
        cotangents = [] if g is None else [_centered_back(op, op.Mul(g, r.x(1)), z, inverse, axes)]
        of_mean, of_inverse = _cotangent_of_statistic(r, 1), _cotangent_of_statistic(r, 2)
        if of_mean is not None:
            cotangents.append(op.Expand(op.Div(of_mean, _elements_along(r, axes)), shape_of(op, r.x())))
        if of_inverse is not None:
            cotangents.append(
                op.Mul(z, op.Div(op.Mul(op.Neg(of_inverse), op.Mul(inverse, inverse)), _elements_along(r, axes)))
            )
        return cotangents[0] if len(cotangents) == 1 else op.Sum(*cotangents)

    return (
        of_value,
        lambda: None if g is None else r.sum_to(op.Mul(g, z), 1),
        lambda: None if g is None else r.sum_to(g, 2),
    )


def _rms_normalization_rule(r: Reverse) -> Sequence[Thunk]:
    """Apply the rule of LayerNormalization without centering."""
    op, x, rank = r.op, r.x(), r.rank()
    axes = list(range(r.attribute("axis", -1) % rank, rank))
    inverse = op.Reciprocal(op.Sqrt(op.Add(_mean_over(op, op.Mul(x, x), axes), r.attribute("epsilon", _EPSILON))))
    z, h = op.Mul(x, inverse), op.Mul(r.g, r.x(1))
    return (
        lambda: op.Mul(op.Sub(h, op.Mul(z, _mean_over(op, op.Mul(h, z), axes))), inverse),
        lambda: r.sum_to(op.Mul(r.g, z), 1),
    )


def _instance_normalization_rule(r: Reverse) -> Sequence[Thunk]:
    op = r.op
    c = _per_channel(r)
    axes = list(range(2, r.rank()))
    z, inverse = _standardize(r, r.x(), axes)
    return (
        lambda: _centered_back(op, r.g, z, op.Mul(inverse, c.spread(r.x(1))), axes),
        lambda: c.sums(op.Mul(r.g, z)),
        lambda: c.sums(r.g),
    )


def _group_normalization_rule(r: Reverse) -> Sequence[Thunk]:
    """Differentiate a GroupNormalization, whose scale and bias are per group before opset 21 and per channel since."""
    op = r.op
    c = _per_channel(r)
    groups = r.attribute("num_groups", 1)
    shape = [0, groups, -1]  # 0 keeps the batch size
    z, inverse = _standardize(r, op.Reshape(r.x(), shape), [2])
    whole = reshape_to(op, z, r.x())
    if r.opset >= 21:
        h = op.Reshape(op.Mul(r.g, c.spread(r.x(1))), shape)
        scale, bias = (lambda: c.sums(op.Mul(r.g, whole))), (lambda: c.sums(r.g))
    else:
        grouped = op.Reshape(r.g, shape)
        h = op.Mul(grouped, op.Reshape(r.x(1), [-1, 1]))
        scale = lambda: op.ReduceSum(op.Mul(grouped, z), axes=[0, 2], keepdims=False)  # noqa: E731
        bias = lambda: op.ReduceSum(grouped, axes=[0, 2], keepdims=False)  # noqa: E731
    return lambda: reshape_to(op, _centered_back(op, h, z, inverse, [2]), r.x()), scale, bias


def _lp_normalization_rule(r: Reverse) -> Sequence[Thunk]:
    """Differentiate ``x / norm``; a zero vector stays zero, and the gradient at this kink is 0."""
    op = r.op
    x = r.x()
    axes = [r.attribute("axis", -1)]
    p = r.attribute("p", 2)
    # Use ReduceSum, because onnxruntime 1.19 lacks ReduceL1 and ReduceL2 in float64 below opset 18.
    total = op.ReduceSum(op.Abs(x) if p == 1 else op.Mul(x, x), axes=axes, keepdims=True)
    norm = total if p == 1 else op.Sqrt(total)
    along = op.ReduceSum(op.Mul(r.g, r.y), axes=axes, keepdims=True)
    direction = r.y if p == 2 else op.Sign(x)
    cotangent = op.Div(op.Sub(r.g, op.Mul(direction, along)), norm)
    return [lambda: op.Where(op.Equal(norm, 0.0), 0.0, cotangent)]


def _mean_variance_normalization_rule(r: Reverse) -> Sequence[Thunk]:
    """Differentiate a normalization whose epsilon is added to the deviation; runtimes differ in its exact value."""
    op, rank = r.op, r.rank()
    axes = sorted(axis % rank if rank else 0 for axis in r.attribute("axes", [0, 2, 3]))
    centered, variance = _moments(r, r.x(), axes)
    inverse = op.Reciprocal(op.Add(op.Sqrt(variance), 1e-9))
    return [lambda: _centered_back(op, r.g, op.Mul(centered, inverse), inverse, axes)]


def _local_response_normalization_rule(r: Reverse) -> Sequence[Thunk]:
    """Differentiate ``x s**-beta``, where a band matrix gives s, a sum of squares over neighboring channels."""
    op = r.op
    shape = dims(r.x()) or [None, None]
    size = r.attribute("size", 1)
    alpha = r.attribute("alpha", 1e-4) / size
    beta = r.attribute("beta", 0.75)
    bias = r.attribute("bias", 1.0)
    if not isinstance(shape[1], int):
        r.refuse("the number of its channels is not known")
    places = np.arange(shape[1])
    ahead = places - places[:, None]
    band = ((-((size - 1) // 2) <= ahead) & (ahead <= size // 2)).astype(op.dtype.numpy())
    x, g = (op.Reshape(value, [0, shape[1], -1]) for value in (r.x(), r.g))
    sums = op.Add(op.Mul(op.MatMul(band, op.Mul(x, x)), alpha), bias)
    direct = op.Mul(g, op.Pow(sums, -beta))
    around = op.MatMul(band.T.copy(), op.Div(op.Mul(direct, x), sums))
    return [lambda: reshape_to(op, op.Sub(direct, op.Mul(op.Mul(x, 2 * alpha * beta), around)), r.x())]


# BatchNormalization, and the form of its forward pass that shares the statistics of the batch.
#
# In training mode the gradient needs mean and variance of the batch, which the operator does not return. So the forward
# pass computes them by reductions too, and normalizes by them in inference mode, whose kernel takes 0.27 to 0.55 of the
# time of training mode.
#
# Most products and sums here have one number per channel. Where a channel has few pixels, runtimes broadcast such
# numbers slowly, and BatchNormalization in inference mode computes the product and the sum instead.


_ADDED_TO_VARIANCE = 2.0**-10
"""An epsilon e for which 1 - e + e is exactly 1: with variance 1 - e, BatchNormalization divides by one, unrounded."""

_FEW_PIXELS = 64
"""Up to this many pixels per channel, BatchNormalization is the faster form of a product with a number for each channel
(8 images of 2x2 with 512 channels: 14 instead of 41 µs). With more, broadcasting takes no longer, and on several
threads less time: ``python benchmarks/convolutions.py``."""

_NORMALIZED_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""The types for which onnxruntime's CPU has a kernel of BatchNormalization."""


@dataclass(frozen=True)
class _PerChannel:
    """Arithmetic on values of one shape, (N, C, ...), and vectors with a number for each channel."""

    op: GraphBuilder
    rank: int
    n_normalized: int
    """The number of channels if BatchNormalization is the faster form of products and sums, else 0."""

    @property
    def axes(self) -> list[int]:
        """All axes but the channel axis."""
        return [0, *range(2, self.rank)]

    def sums(self, value: ir.Value) -> ir.Value:
        return self.op.ReduceSum(value, axes=self.axes, keepdims=False)

    def means(self, value: ir.Value) -> ir.Value:
        return self.op.ReduceMean(value, axes=self.axes, keepdims=False)

    def spread(self, vector: ir.Value) -> ir.Value:
        """Return the vector in a shape that broadcasts to the values."""
        return self.op.Reshape(vector, [-1, *[1] * (self.rank - 2)]) if self.rank > 2 else vector

    def minus(self, value: ir.Value, vector: ir.Value) -> ir.Value:
        """Return ``value - vector``."""
        if self.n_normalized:
            return self._normalized(value, self._all(1), self._all(0), vector)
        return self.op.Sub(value, self.spread(vector))

    def times(self, value: ir.Value, factor: ir.Value, shift: ir.Value | None = None) -> ir.Value:
        """Return ``value * factor``, or ``value * factor + shift``."""
        if self.n_normalized:
            return self._normalized(value, factor, self._all(0) if shift is None else shift, self._all(0))
        product = self.op.Mul(value, self.spread(factor))
        return product if shift is None else self.op.Add(product, self.spread(shift))

    def _normalized(self, value: ir.Value, scale: Operand, shift: Operand, mean: Operand) -> ir.Value:
        return self.op.BatchNormalization(
            value, scale, shift, mean, self._all(1 - _ADDED_TO_VARIANCE), epsilon=_ADDED_TO_VARIANCE
        )

    def _all(self, number: float) -> np.ndarray:
        return np.full(self.n_normalized, number, self.op.dtype.numpy())


def _per_channel(r: Reverse) -> _PerChannel:
    channels, *pixels = (dims(r.x()) or [None])[1:] or [None]
    few = fixed(pixels) and bool(pixels) and math.prod(pixels) <= _FEW_PIXELS
    n_normalized = channels if isinstance(channels, int) and few and r.op.dtype in _NORMALIZED_TYPES else 0
    return _PerChannel(r.op, r.rank(), n_normalized)


def _in_training_mode(r: Reverse) -> bool:
    """Return True in training mode: before opset 14, if the node has more than one output."""
    further = r.opset < 14 and any(output.name for output in r.node.outputs[1:])
    return further or bool(r.attribute("training_mode", 0))


def _batch_moments(r: Reverse, c: _PerChannel) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return the mean of each channel, the centered values, and the variance."""
    mean = c.means(r.x())
    centered = c.minus(r.x(), mean)
    return mean, centered, c.means(r.op.Mul(centered, centered))


def _running(r: Reverse, output: int, new: ir.Value) -> ir.Value | None:
    """Return a running statistic averaged with the batch statistic; None if the node has no such output."""
    if len(r.node.outputs) <= output or not r.node.outputs[output].name:
        return None
    old = r.attribute("momentum", 0.9)
    return r.op.Add(r.op.Mul(r.x(output + 2), old), r.op.Mul(new, 1 - old))


def _with_batch_statistics(r: Reverse) -> Sequence[Thunk]:
    """Apply the rule of training mode, where outputs 1 and 2 are the running statistics after this minibatch."""
    op = r.op
    g = r.cotangents[0]
    c = _per_channel(r)
    old = r.attribute("momentum", 0.9)
    if any(cotangent is not None for cotangent in r.cotangents[3:]):
        r.refuse("runtimes disagree on what its saved statistics are")
    of_mean, of_variance = (_cotangent_of_statistic(r, i) for i in (1, 2))
    _, centered, variance = _batch_moments(r, c)
    inverse = _reciprocal_deviation(r, variance)
    count = _elements_along(r, c.axes)
    rows, divided = _before_division(r, c, centered, inverse)

    def of_scale(g: ir.Value) -> ir.Value:
        return divided(c.sums(op.Mul(g, rows)))

    def of_output(g: ir.Value) -> ir.Value:
        # divided again: the values that are multiplied by this mean, `rows`, are not divided either
        means = c.times(rows, op.Div(divided(of_scale(g)), count), op.Div(c.sums(g), count))
        return c.times(op.Sub(g, means), op.Mul(inverse, r.x(1)))

    def of_value() -> ir.Value:
        cotangents = [] if g is None else [of_output(g)]
        if of_mean is not None:
            share = op.Div(op.Mul(of_mean, 1 - old), count)
            cotangents.append(op.Expand(c.spread(share), shape_of(op, r.x())))
        if of_variance is not None:
            cotangents.append(c.times(centered, op.Div(op.Mul(of_variance, 2 * (1 - old)), count)))
        return cotangents[0] if len(cotangents) == 1 else op.Sum(*cotangents)

    return (
        of_value,
        lambda: None if g is None else of_scale(g),
        lambda: None if g is None else c.sums(g),
        lambda: _of_old_statistic(r, of_mean, 3),
        lambda: _of_old_statistic(r, of_variance, 4),
    )


def _of_old_statistic(r: Reverse, cotangent: ir.Value | None, index: int) -> ir.Value | None:
    if cotangent is not None and r.x(index).producer() is not None:
        r.refuse("kernels overwrite its running statistics, which the gradient of what computes them may need")
    return None if cotangent is None else r.op.Mul(cotangent, r.attribute("momentum", 0.9))


def _before_division(
    r: Reverse, c: _PerChannel, centered: ir.Value, inverse: ir.Value
) -> tuple[ir.Value, Callable[[ir.Value], ir.Value]]:
    """Return the value to multiply cotangents by, and the function that divides sums of the products by the deviation.

    Dividing the sums, one number per channel, is faster than dividing the values. Undivided sums may overflow in
    float16.
    """
    if r.op.dtype is ir.DataType.FLOAT16:
        return c.times(centered, inverse), lambda value: value
    return centered, lambda value: r.op.Mul(value, inverse)


def _with_running_statistics(r: Reverse) -> Sequence[Thunk]:
    op = r.op
    c = _per_channel(r)
    inverse = _reciprocal_deviation(r, r.x(4))
    factor = op.Mul(r.x(1), inverse)

    def of_scale() -> ir.Value:
        rows, divided = _before_division(r, c, c.minus(r.x(), r.x(3)), inverse)
        return divided(c.sums(op.Mul(r.g, rows)))

    return (
        lambda: c.times(r.g, factor),
        of_scale,
        lambda: c.sums(r.g),
        lambda: op.Neg(op.Mul(c.sums(r.g), factor)),
        lambda: op.Mul(op.Mul(of_scale(), -0.5), op.Mul(factor, inverse)),
    )


RULES: dict[str, GradientRule] = {
    "GroupNormalization": Supported(_group_normalization_rule, "epsilon num_groups", inputs=3),
    "InstanceNormalization": Supported(_instance_normalization_rule, "epsilon", inputs=3),
    "LRN": Supported(_local_response_normalization_rule, "alpha beta bias size"),
    "LayerNormalization": Supported(_layer_normalization_rule, "axis epsilon", inputs=3, outputs=3, cotangents=3),
    "LpNormalization": Supported(_lp_normalization_rule, "axis p"),
    "MeanVarianceNormalization": Supported(_mean_variance_normalization_rule, "axes"),
    "RMSNormalization": Supported(_rms_normalization_rule, "axis epsilon", inputs=2),
    "BatchNormalization": Supported(
        lambda r: _with_batch_statistics(r) if _in_training_mode(r) else _with_running_statistics(r),
        "epsilon momentum training_mode",
        inputs=5,
        outputs=5,
        cotangents=5,
    ),
}

"""Gradient rules of normalizations: ``(x - mean) / deviation``, scaled and shifted.

With ``z`` the normalized value, ``s`` the deviation and means over the normalized axes, the cotangent ``h`` of ``z``
gives ``x`` the cotangent ``(h - mean(h) - z mean(h z)) / s``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ...._graph.builder import GraphBuilder, Operand
from ...._graph.queries import dims, fixed
from ...._graph.supported import Supported
from ..context import GradientRule, Reverse, Thunk, positive_axes, reshape_to, shape_of

SMALL = 1e-5


def _mean_over(op: GraphBuilder, x: ir.Value, axes: list[int]) -> ir.Value:
    return op.ReduceMean(x, axes=axes, keepdims=True)


def _standardize(r: Reverse, x: ir.Value, axes: list[int]) -> tuple[ir.Value, ir.Value]:
    """Return the normalized value and the reciprocal of the deviation."""
    op = r.op
    centered, variance = _moments(r, x, axes)
    inverse = reciprocal_deviation(r, variance)
    return op.Mul(centered, inverse), inverse


def reciprocal_deviation(r: Reverse, variance: ir.Value) -> ir.Value:
    return r.op.Reciprocal(r.op.Sqrt(r.op.Add(variance, r.attribute("epsilon", SMALL))))


def _moments(r: Reverse, x: ir.Value, axes: list[int]) -> tuple[ir.Value, ir.Value]:
    op = r.op
    centered = op.Sub(x, _mean_over(op, x, axes))
    return centered, _mean_over(op, op.Mul(centered, centered), axes)


def _centered_back(op: GraphBuilder, h: ir.Value, z: ir.Value, inverse: ir.Value, axes: list[int]) -> ir.Value:
    means = op.Add(_mean_over(op, h, axes), op.Mul(z, _mean_over(op, op.Mul(h, z), axes)))
    return op.Mul(op.Sub(h, means), inverse)


def elements_along(r: Reverse, axes: list[int]) -> Operand:
    """Return the number of elements along these axes, as a float."""
    sizes = [(dims(r.x()) or [])[axis] for axis in axes]
    if fixed(sizes):
        return float(np.prod([int(str(size)) for size in sizes]))
    return r.op.Cast(r.op.ReduceProd(r.op.Gather(r.op.Shape(r.x()), np.array(axes)), keepdims=False), to=r.op.dtype)


def cotangent_of_statistic(r: Reverse, index: int) -> ir.Value | None:
    """Return the cotangent of a statistic, cast to the type of the value."""
    cotangent = r.cotangents[index] if index < len(r.cotangents) else None
    return (
        cotangent
        if cotangent is None or r.node.outputs[index].dtype is r.op.dtype
        else r.op.Cast(cotangent, to=r.op.dtype)
    )


def _layer_normalization_rule(r: Reverse) -> Sequence[Thunk]:
    """The optional outputs are the mean and the reciprocal of the deviation."""
    op, rank, g = r.op, r.rank(), r.cotangents[0]
    axes = list(range(r.attribute("axis", -1) % rank, rank))
    z, inverse = _layer_statistics(r, axes)

    def of_value() -> ir.Value:
        cotangents = [] if g is None else [_centered_back(op, op.Mul(g, r.x(1)), z, inverse, axes)]
        of_mean, of_inverse = cotangent_of_statistic(r, 1), cotangent_of_statistic(r, 2)
        if of_mean is not None:
            cotangents.append(op.Expand(op.Div(of_mean, elements_along(r, axes)), shape_of(op, r.x())))
        if of_inverse is not None:
            cotangents.append(
                op.Mul(z, op.Div(op.Mul(op.Neg(of_inverse), op.Mul(inverse, inverse)), elements_along(r, axes)))
            )
        return cotangents[0] if len(cotangents) == 1 else op.Sum(*cotangents)

    return (
        of_value,
        lambda: None if g is None else r.sum_to(op.Mul(g, z), 1),
        lambda: None if g is None else r.sum_to(g, 2),
    )


def _layer_statistics(r: Reverse, axes: list[int]) -> tuple[ir.Value, ir.Value]:
    """Return mean and reciprocal deviation; the kernel's own are float32 whatever the type of the input."""
    if r.op.dtype is not ir.DataType.FLOAT:
        return _standardize(r, r.x(), axes)
    mean, inverse = (r.further_output(i, ir.DataType.FLOAT) for i in (1, 2))
    return r.op.Mul(r.op.Sub(r.x(), mean), inverse), inverse


def _rms_normalization_rule(r: Reverse) -> Sequence[Thunk]:
    """As for LayerNormalization, without the means."""
    op, x, rank = r.op, r.x(), r.rank()
    axes = list(range(r.attribute("axis", -1) % rank, rank))
    inverse = op.Reciprocal(op.Sqrt(op.Add(_mean_over(op, op.Mul(x, x), axes), r.attribute("epsilon", SMALL))))
    z, h = op.Mul(x, inverse), op.Mul(r.g, r.x(1))
    return (
        lambda: op.Mul(op.Sub(h, op.Mul(z, _mean_over(op, op.Mul(h, z), axes))), inverse),
        lambda: r.sum_to(op.Mul(r.g, z), 1),
    )


def _channels(r: Reverse, value: ir.Value) -> ir.Value:
    """Reshape a vector with one number per channel so that it broadcasts to the input, (N, C, ...)."""
    rank = r.rank()
    return r.op.Reshape(value, [-1, *[1] * (rank - 2)]) if rank > 2 else value


def _channel_sums(r: Reverse, value: ir.Value) -> ir.Value:
    rank = r.rank()
    return r.op.ReduceSum(value, axes=[0, *range(2, rank)], keepdims=False)


def _instance_normalization_rule(r: Reverse) -> Sequence[Thunk]:
    op, axes = r.op, list(range(2, r.rank()))
    z, inverse = _standardize(r, r.x(), axes)
    return (
        lambda: _centered_back(op, r.g, z, op.Mul(inverse, _channels(r, r.x(1))), axes),
        lambda: _channel_sums(r, op.Mul(r.g, z)),
        lambda: _channel_sums(r, r.g),
    )


def _group_normalization_rule(r: Reverse) -> Sequence[Thunk]:
    """Scale and bias have one number per group before opset 21, and one per channel since."""
    op, groups = r.op, r.attribute("num_groups", 1)
    shape = [0, groups, -1]  # 0 keeps the batch size
    z, inverse = _standardize(r, op.Reshape(r.x(), shape), [2])
    whole = reshape_to(op, z, r.x())
    if r.opset >= 21:
        h = op.Reshape(op.Mul(r.g, _channels(r, r.x(1))), shape)
        scale, bias = (lambda: _channel_sums(r, op.Mul(r.g, whole))), (lambda: _channel_sums(r, r.g))
    else:
        grouped = op.Reshape(r.g, shape)
        h = op.Mul(grouped, op.Reshape(r.x(1), [-1, 1]))
        scale = lambda: op.ReduceSum(op.Mul(grouped, z), axes=[0, 2], keepdims=False)  # noqa: E731
        bias = lambda: op.ReduceSum(grouped, axes=[0, 2], keepdims=False)  # noqa: E731
    return lambda: reshape_to(op, _centered_back(op, h, z, inverse, [2]), r.x()), scale, bias


def _lp_normalization_rule(r: Reverse) -> Sequence[Thunk]:
    """A zero vector stays zero; the gradient at this kink is 0."""
    op, x, axes, p = r.op, r.x(), [r.attribute("axis", -1)], r.attribute("p", 2)
    # Sums, as onnxruntime 1.19 lacks ReduceL1 and ReduceL2 in float64 below opset 18.
    total = op.ReduceSum(op.Abs(x) if p == 1 else op.Mul(x, x), axes=axes, keepdims=True)
    norm = total if p == 1 else op.Sqrt(total)
    along = op.ReduceSum(op.Mul(r.g, r.y), axes=axes, keepdims=True)
    direction = r.y if p == 2 else op.Sign(x)
    cotangent = op.Div(op.Sub(r.g, op.Mul(direction, along)), norm)
    return [lambda: op.Where(op.Equal(norm, 0.0), 0.0, cotangent)]


def _mean_variance_normalization_rule(r: Reverse) -> Sequence[Thunk]:
    """Runtimes agree only on the magnitude of the epsilon that is added to the deviation."""
    op, rank = r.op, r.rank()
    axes = positive_axes(r, r.attribute("axes", [0, 2, 3]), rank)
    centered, variance = _moments(r, r.x(), axes)
    inverse = op.Reciprocal(op.Add(op.Sqrt(variance), 1e-9))
    return [lambda: _centered_back(op, r.g, op.Mul(centered, inverse), inverse, axes)]


def _local_response_normalization_rule(r: Reverse) -> Sequence[Thunk]:
    """The output is ``x s**-beta``; a band matrix sums squares, and their cotangents, over neighboring channels."""
    op, shape, size = r.op, dims(r.x()) or [None, None], r.attribute("size", 1)
    alpha, beta, bias = r.attribute("alpha", 1e-4) / size, r.attribute("beta", 0.75), r.attribute("bias", 1.0)
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


RULES: dict[str, GradientRule] = {
    "GroupNormalization": Supported(_group_normalization_rule, "epsilon num_groups", inputs=3),
    "InstanceNormalization": Supported(_instance_normalization_rule, "epsilon", inputs=3),
    "LRN": Supported(_local_response_normalization_rule, "alpha beta bias size"),
    "LayerNormalization": Supported(_layer_normalization_rule, "axis epsilon", inputs=3, outputs=3, cotangents=3),
    "LpNormalization": Supported(_lp_normalization_rule, "axis p"),
    "MeanVarianceNormalization": Supported(_mean_variance_normalization_rule, "axes"),
    "RMSNormalization": Supported(_rms_normalization_rule, "axis epsilon", inputs=2),
}

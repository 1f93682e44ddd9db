"""Normalizations: the value less its mean, over its deviation, scaled and shifted.

With ``z`` the normalized value, ``1/s`` the deviation's reciprocal and means over the normalized axes, the gradient of
``z`` times a slope ``h`` is ``(h - mean(h) - z mean(h z)) / s``.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ..._graph.builder import GraphBuilder
from ..reverse import Reverse, Rule, Thunk, reshape_to

EPSILON = 1e-5


def _mean(op: GraphBuilder, x: ir.Value, axes: list[int]) -> ir.Value:
    return op.ReduceMean(x, axes=axes, keepdims=True)


def _standardize(r: Reverse, x: ir.Value, axes: list[int]) -> tuple[ir.Value, ir.Value]:
    """Return the normalized value and the reciprocal of the deviation."""
    op = r.op
    centred = op.Sub(x, _mean(op, x, axes))
    variance = _mean(op, op.Mul(centred, centred), axes)
    inverse = op.Reciprocal(op.Sqrt(op.Add(variance, r.attribute("epsilon", EPSILON))))
    return op.Mul(centred, inverse), inverse


def _back(op: GraphBuilder, h: ir.Value, z: ir.Value, inverse: ir.Value, axes: list[int]) -> ir.Value:
    common = op.Add(_mean(op, h, axes), op.Mul(z, _mean(op, op.Mul(h, z), axes)))
    return op.Mul(op.Sub(h, common), inverse)


def _layer_normalization(r: Reverse) -> Sequence[Thunk]:
    op, rank = r.op, r.rank()
    axes = list(range(r.attribute("axis", -1) % rank, rank))
    z, inverse = _layer_statistics(r, axes)
    return (
        lambda: _back(op, op.Mul(r.g, r.x(1)), z, inverse, axes),
        lambda: r.sum_to(op.Mul(r.g, z), 1),
        lambda: r.sum_to(r.g, 2),
    )


def _layer_statistics(r: Reverse, axes: list[int]) -> tuple[ir.Value, ir.Value]:
    """The kernel gives mean and deviation away, but in float32 even where its input is not."""
    if r.op.dtype is not ir.DataType.FLOAT:
        return _standardize(r, r.x(), axes)
    mean, inverse = (r.further_output(i, ir.DataType.FLOAT) for i in (1, 2))
    return r.op.Mul(r.op.Sub(r.x(), mean), inverse), inverse


def _rms_normalization(r: Reverse) -> Sequence[Thunk]:
    """There is no mean to subtract, neither from the value nor from its slope."""
    op, x, rank = r.op, r.x(), r.rank()
    axes = list(range(r.attribute("axis", -1) % rank, rank))
    inverse = op.Reciprocal(op.Sqrt(op.Add(_mean(op, op.Mul(x, x), axes), r.attribute("epsilon", EPSILON))))
    z, h = op.Mul(x, inverse), op.Mul(r.g, r.x(1))
    return (
        lambda: op.Mul(op.Sub(h, op.Mul(z, _mean(op, op.Mul(h, z), axes))), inverse),
        lambda: r.sum_to(op.Mul(r.g, z), 1),
    )


def _channels(r: Reverse, value: ir.Value) -> ir.Value:
    """Give a vector of one number a channel the axes that broadcast it to the input, (N, C, ...)."""
    rank = r.rank()
    return r.op.Reshape(value, [-1, *[1] * (rank - 2)]) if rank > 2 else value


def _channel_sums(r: Reverse, value: ir.Value) -> ir.Value:
    rank = r.rank()
    return r.op.ReduceSum(value, axes=[0, *range(2, rank)], keepdims=False)


def _instance_normalization(r: Reverse) -> Sequence[Thunk]:
    op, axes = r.op, list(range(2, r.rank()))
    z, inverse = _standardize(r, r.x(), axes)
    return (
        lambda: _back(op, op.Mul(r.g, _channels(r, r.x(1))), z, inverse, axes),
        lambda: _channel_sums(r, op.Mul(r.g, z)),
        lambda: _channel_sums(r, r.g),
    )


def _batch_normalization(r: Reverse) -> Sequence[Thunk]:
    return _with_batch_statistics(r) if r.attribute("training_mode", 0) else _with_running_statistics(r)


def _with_batch_statistics(r: Reverse) -> Sequence[Thunk]:
    """The running statistics are not read for the first output."""
    op, axes = r.op, [0, *range(2, r.rank())]
    z, inverse = _standardize(r, r.x(), axes)
    return (
        lambda: _back(op, op.Mul(r.g, _channels(r, r.x(1))), z, inverse, axes),
        lambda: _channel_sums(r, op.Mul(r.g, z)),
        lambda: _channel_sums(r, r.g),
        lambda: None,
        lambda: None,
    )


def _with_running_statistics(r: Reverse) -> Sequence[Thunk]:
    op = r.op
    inverse = op.Reciprocal(op.Sqrt(op.Add(r.x(4), r.attribute("epsilon", EPSILON))))
    factor = op.Mul(r.x(1), inverse)
    z = op.Mul(op.Sub(r.x(), _channels(r, r.x(3))), _channels(r, inverse))
    return (
        lambda: op.Mul(r.g, _channels(r, factor)),
        lambda: _channel_sums(r, op.Mul(r.g, z)),
        lambda: _channel_sums(r, r.g),
        lambda: op.Neg(op.Mul(_channel_sums(r, r.g), factor)),
        lambda: op.Mul(op.Mul(_channel_sums(r, op.Mul(r.g, z)), -0.5), op.Mul(factor, inverse)),
    )


def _group_normalization(r: Reverse) -> Sequence[Thunk]:
    """Scale and bias have one number a group before opset 21, and one a channel since."""
    op, groups = r.op, r.attribute("num_groups", 1)
    shape = [0, groups, -1]  # 0: the batch as it is
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
    return lambda: reshape_to(op, _back(op, h, z, inverse, [2]), r.x()), scale, bias


def _lp_normalization(r: Reverse) -> Sequence[Thunk]:
    op, x, axes, p = r.op, r.x(), [r.attribute("axis", -1)], r.attribute("p", 2)
    norm = op.emit(f"ReduceL{p}", x, axes=axes, keepdims=1)[0]
    along = op.ReduceSum(op.Mul(r.g, r.y), axes=axes, keepdims=True)
    direction = r.y if p == 2 else op.Sign(x)
    return [lambda: op.Div(op.Sub(r.g, op.Mul(direction, along)), norm)]


RULES: dict[str, Rule] = {
    "BatchNormalization": _batch_normalization,
    "GroupNormalization": _group_normalization,
    "InstanceNormalization": _instance_normalization,
    "LayerNormalization": _layer_normalization,
    "LpNormalization": _lp_normalization,
    "RMSNormalization": _rms_normalization,
}

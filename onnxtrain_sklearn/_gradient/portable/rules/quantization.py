"""Gradient rules of ranges, random numbers and quantization."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ...._graph.queries import dims, fixed
from ...._graph.supported import Supported
from ..context import GradientRule, Reverse, Thunk, filled_like, mask, reshape_to, sum_to


def _nothing_rule(r: Reverse) -> Sequence[Thunk]:
    """All gradients are zero: the output does not depend on the inputs, or is piecewise constant, or is random."""
    return [lambda: None] * len(r.node.inputs)


def _range_rule(r: Reverse) -> Sequence[Thunk]:
    """Elements are ``start + i delta``; the limit only determines their number."""
    op, g = r.op, r.g
    steps = op.Cast(op.Range(np.array(0), op.Size(g), np.array(1)), to=op.dtype)
    return (
        lambda: op.ReduceSum(g, keepdims=False),
        lambda: None,
        lambda: op.ReduceSum(op.Mul(g, steps), keepdims=False),
    )


def _dequantize_rule(r: Reverse) -> Sequence[Thunk | None]:
    """The output is ``(x - zero) scale``, with one scale per tensor, per index of an axis, or per block along it."""
    op, scale, zero = r.op, r.x(1), r.node.inputs[2:]
    axis, block = r.attribute("axis", 1), r.attribute("block_size", 0)

    def of_scale() -> ir.Value:
        cotangent = op.Mul(r.g, r.again(r.x(), filled_like(op, scale, 1), *zero))
        if block:
            return _block_sums(r, cotangent, axis % r.rank(), block)
        if r.rank(scale) == 0 or r.rank() == 0:
            return reshape_to(op, op.ReduceSum(cotangent, keepdims=False), scale)
        others = [i for i in range(r.rank()) if i != axis % r.rank()]
        sums = op.ReduceSum(cotangent, axes=others, keepdims=False) if others else cotangent
        return sum_to(r, sums, [(dims(r.x()) or [])[axis % r.rank()]], scale)

    return None, of_scale, None


def _block_sums(r: Reverse, cotangent: ir.Value, axis: int, block: int) -> ir.Value:
    """Sum over the blocks of an axis; the last block may be shorter."""
    op, shape, blocks = r.op, dims(r.x()) or [], (dims(r.x(1)) or [None] * r.rank())[axis]
    after = shape[axis + 1 :]
    if not fixed([shape[axis], blocks, *after]):
        r.refuse("the sizes from its axis on must be fixed")
    ends = np.zeros((2, len(shape)), np.int64)
    ends[1, axis] = int(str(blocks)) * block - int(str(shape[axis]))
    parts = op.Reshape(op.Pad(cotangent, ends.ravel()), [*[0] * axis, blocks, block, *after])
    return op.ReduceSum(parts, axes=[axis + 1], keepdims=False)


def _dynamic_quantize_rule(r: Reverse) -> Sequence[Thunk]:
    """The second output, the scale, is ``(max(x, 0) - min(x, 0)) / 255``."""
    op, x = r.op, r.x()
    g = op.Div(r.cotangents[1], 255.0)

    def at(extreme: ir.Value, beyond: ir.Value) -> ir.Value:
        hits = mask(op, op.And(op.Equal(x, extreme), beyond))
        return op.Div(hits, op.Max(op.ReduceSum(hits, keepdims=False), 1.0))

    low, high = op.ReduceMin(x, keepdims=False), op.ReduceMax(x, keepdims=False)
    return [lambda: op.Mul(g, op.Sub(at(high, op.Greater(high, 0.0)), at(low, op.Less(low, 0.0))))]


RULES: dict[str, GradientRule] = {
    "Bernoulli": Supported(_nothing_rule, "dtype seed"),
    "DequantizeLinear": Supported(_dequantize_rule, "axis block_size", inputs=3),
    "DynamicQuantizeLinear": Supported(_dynamic_quantize_rule, outputs=3, cotangents=2),
    "EyeLike": Supported(_nothing_rule, "dtype k"),
    "MelWeightMatrix": Supported(_nothing_rule, "output_datatype", inputs=5),
    "RandomNormalLike": Supported(_nothing_rule, "dtype mean scale seed"),
    "RandomUniformLike": Supported(_nothing_rule, "dtype high low seed"),
    "Range": Supported(_range_rule, inputs=3),
}

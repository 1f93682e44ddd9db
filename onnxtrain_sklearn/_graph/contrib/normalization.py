"""Layer normalizations with the sums, biases and embeddings that were fused into them.

onnxruntime stores two of them in the default domain, in opsets where ONNX has no such operator.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from .context import Fused, FusionRule, Outputs, plus


def _layer_normalized(f: Fused, x: ir.Value, scale: ir.Value, bias: ir.Value | None, epsilon: float) -> ir.Value:
    """Return the values normalized over the last axis."""
    if f.op.opset >= 17:
        return f.op.LayerNormalization(x, scale, bias, axis=-1, epsilon=epsilon)
    return _normalized(f, x, scale, bias, epsilon, -1)[0]


def _normalized(
    f: Fused, x: ir.Value, scale: ir.Value, bias: ir.Value | None, epsilon: float, axis: int
) -> Sequence[ir.Value]:
    """Return the normalized values, the mean and the inverse standard deviation."""
    op, axes = f.op, _normalized_axes(f, x, axis)
    mean = op.ReduceMean(x, axes=axes)
    centered = op.Sub(x, mean)
    inverse = op.Reciprocal(op.Sqrt(op.Add(op.ReduceMean(op.Mul(centered, centered), axes=axes), epsilon)))
    return [plus(op, op.Mul(op.Mul(centered, inverse), scale), bias), mean, inverse]


def _normalized_axes(f: Fused, x: ir.Value, axis: int) -> list[int]:
    return [-1] if axis == -1 else list(range(axis - f.rank(x) if axis >= 0 else axis, 0))


def _root_mean_square(f: Fused, x: ir.Value, scale: ir.Value, epsilon: float, axis: int = -1) -> Sequence[ir.Value]:
    """Return the normalized values and the inverse root mean square."""
    op = f.op
    inverse = op.Reciprocal(op.Sqrt(op.Add(op.ReduceMean(op.Mul(x, x), axes=_normalized_axes(f, x, axis)), epsilon)))
    return [op.Mul(op.Mul(x, inverse), scale), inverse]


def _epsilon(f: Fused, default: float) -> float:
    return float(f.attribute("epsilon", default))


def _lower_early_layer(f: Fused) -> Outputs:
    """Lower a LayerNormalization before opset 17, in which ONNX introduced it."""
    return _normalized(f, f.x(0), f.x(1), f.given(2), _epsilon(f, 1e-5), f.attribute("axis", -1))


def _lower_simplified(f: Fused) -> Outputs:
    return _root_mean_square(f, f.x(0), f.x(1), _epsilon(f, 1e-5), f.attribute("axis", -1))


def _lower_skip_layer(f: Fused) -> Outputs:
    total = plus(f.op, f.op.Add(f.x(0), f.x(1)), f.given(4))
    return [_layer_normalized(f, total, f.x(2), f.given(3), _epsilon(f, 1e-12)), *_refuse_statistics(f), total]


def _lower_skip_simplified(f: Fused) -> Outputs:
    total = plus(f.op, f.op.Add(f.x(0), f.x(1)), f.given(3))
    return [_root_mean_square(f, total, f.x(2), _epsilon(f, 1e-12))[0], *_refuse_statistics(f), total]


def _refuse_statistics(f: Fused) -> list[None]:
    """Refuse the outputs mean and inverse standard deviation, which onnxruntime leaves unwritten."""
    if f.wants(1) or f.wants(2):
        f.refuse("its outputs mean and inv_std_var are not known")
    return [None, None]


def _lower_embedding(f: Fused) -> Outputs:
    """Add the embeddings of words, positions and segments; count the words of the mask."""
    op, ids = f.op, f.x(0)
    total = op.Add(op.Gather(f.x(2), ids), _position_embeddings(f, ids))
    segments, table = f.given(1), f.given(4)
    if (segments is None) != (table is None):
        f.refuse("it has segments without their embedding, or the other way round")
    if segments is not None and table is not None:
        total = op.Add(total, op.Gather(table, segments))
    y = _layer_normalized(f, total, f.x(5), f.x(6), _epsilon(f, 1e-12))
    return [y, _unmasked_words(f) if f.wants(1) else None, total]


def _position_embeddings(f: Fused, ids: ir.Value) -> ir.Value:
    """Return the embeddings of the given positions, or of the first ones."""
    given = f.given(8)
    if given is not None:
        return f.op.Gather(f.x(3), given)
    return f.op.Slice(f.x(3), [0], f.op.Slice(f.op.Shape(ids), [1], [2], [0]), [0])


def _unmasked_words(f: Fused) -> ir.Value:
    """Return the number of unmasked words of each row; zero without a mask."""
    op, mask = f.op, f.given(7)
    if mask is None:
        rows = op.Slice(op.Shape(f.x(0)), [0], [1], [0])
        return op.ConstantOfShape(rows, value=ir.tensor([0], dtype=ir.DataType.INT32))
    return op.ReduceSum(op.Cast(mask, to=ir.DataType.INT32), axes=[1], keepdims=False)


LOWERINGS = {
    "LayerNormalization": FusionRule(
        _lower_early_layer, "axis epsilon", inputs=3, outputs=3, defaults={"stash_type": 1}
    ),
    "SimplifiedLayerNormalization": FusionRule(
        _lower_simplified, "axis epsilon", inputs=2, outputs=2, defaults={"stash_type": 1}
    ),
    "com.microsoft.EmbedLayerNormalization": FusionRule(
        _lower_embedding, "epsilon mask_index_type", inputs=9, outputs=3
    ),
    "com.microsoft.SkipLayerNormalization": FusionRule(_lower_skip_layer, "epsilon", inputs=5, outputs=4),
    "com.microsoft.SkipSimplifiedLayerNormalization": FusionRule(
        _lower_skip_simplified, "epsilon", inputs=4, outputs=4
    ),
}

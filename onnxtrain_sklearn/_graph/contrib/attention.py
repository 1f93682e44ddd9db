"""Attention of onnxruntime's domain as products, added masks and a softmax."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from .context import Fused, FusionRule, Outputs, plus


def _lower_attention(f: Fused) -> Outputs:
    """Compute queries, keys and values by one product with their joined weights."""
    op, heads = f.op, f.needed("num_heads")
    width = f.size(f.x(1), 1)
    sizes = [int(n) for n in f.attribute("qkv_hidden_sizes", None) or [width // 3] * 3]
    if f.given(4) is not None:
        f.refuse("it has a past")
    every = plus(op, op.MatMul(f.x(0), f.x(1)), f.given(2))
    q, k, v = (_split_heads(f, part, heads) for part in op.emit("Split", every, outputs=3, axis=-1, split=sizes))
    return [_attend(f, q, k, v, f.given(3), f.given(5), sizes[0] // heads)]


def _lower_multi_head(f: Fused) -> Outputs:
    """Read keys and values as matrices, as heads (those of an encoder), or packed into one input."""
    op = f.op
    q, k, v, size = _unpack_heads(f) if f.given(2) is None else _separate_heads(f)
    if (f.given(6) is None) != (f.given(7) is None):
        f.refuse("it has a past of keys without one of values, or the other way round")
    past = f.given(6)
    if past is not None:
        k, v = op.Concat(past, k, axis=2), op.Concat(f.x(7), v, axis=2)
    return [_attend(f, q, k, v, f.given(4), f.given(5), size), k, v]


def _separate_heads(f: Fused) -> tuple[ir.Value, ir.Value, ir.Value, int]:
    """Return queries, keys and values as heads, and the size of a head."""
    heads, width = f.needed("num_heads"), f.size(f.x(0), 2)
    ranks = [f.rank(f.x(i)) for i in range(3)]
    if ranks[0] != 3 or ranks[1] != ranks[2] or ranks[1] not in (3, 4):
        f.refuse("its queries, keys and values must have three axes, or the last two four")
    inputs = [f.x(i) for i in range(3)]
    if f.given(3) is not None:
        if ranks[1] == 4:
            f.refuse("it has a bias beside keys that come as heads")
        inputs = [f.op.Add(x, part) for x, part in zip(inputs, _split_biases(f, f.x(3), width), strict=True)]
    q, k, v = (x if rank == 4 else _split_heads(f, x, heads) for rank, x in zip(ranks, inputs, strict=True))
    return q, k, v, width // heads


def _unpack_heads(f: Fused) -> tuple[ir.Value, ir.Value, ir.Value, int]:
    """Do the same for (rows, sequence, heads, 3, size), or queries and (rows, sequence, heads, 2, size)."""
    if f.given(3) is not None:
        f.refuse("it has a bias beside packed keys and values")
    packed = f.x(0) if f.given(1) is None else f.x(1)
    if f.rank(packed) != 5:
        f.refuse("its keys and values are packed into one axis with others")
    parts = [
        f.op.Transpose(f.op.Gather(packed, np.array(i), axis=3), perm=[0, 2, 1, 3]) for i in range(f.size(packed, 3))
    ]
    q, k, v = parts if f.given(1) is None else [_split_heads(f, f.x(0), f.needed("num_heads")), *parts]
    return q, k, v, f.size(packed, 4)


def _split_biases(f: Fused, bias: ir.Value, width: int) -> list[ir.Value]:
    sizes = [width, width, f.size(bias, 0) - 2 * width]
    return list(f.op.emit("Split", bias, outputs=3, axis=0, split=sizes))


def _split_heads(f: Fused, value: ir.Value, heads: int) -> ir.Value:
    """Return (rows, sequence, heads * size) as (rows, heads, sequence, size)."""
    return f.op.Transpose(f.op.Reshape(value, [0, 0, heads, -1]), perm=[0, 2, 1, 3])


def _attend(
    f: Fused,
    q: ir.Value,
    k: ir.Value,
    v: ir.Value,
    mask: ir.Value | None,
    bias: ir.Value | None,
    size: int,
) -> ir.Value:
    op = f.op
    scale = float(f.attribute("scale", 0.0)) or 1 / math.sqrt(size)
    scores = op.Mul(op.MatMul(q, op.Transpose(k, perm=[0, 1, 3, 2])), scale)
    scores = plus(op, scores, bias)
    if mask is not None:
        scores = op.Add(scores, _mask_penalty(f, mask, q, k))
    if f.attribute("unidirectional", 0):
        lowest = float(np.finfo(op.dtype.numpy()).min) / 2
        scores = op.Where(_causal_mask(f, q, k), scores, lowest)
    y = op.MatMul(op.Softmax(scores, axis=-1 if op.opset >= 13 else 3), v)
    return op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), [0, 0, -1])


def _mask_penalty(f: Fused, mask: ir.Value, q: ir.Value, k: ir.Value) -> ir.Value:
    """Return the summand of the scores: zero where a key counts, a large negative number elsewhere."""
    op, rank = f.op, f.rank(mask)
    if rank == 1:
        allowed = _within_bounds(f, mask, q, k)
    elif rank in (2, 3):
        allowed = op.Unsqueeze(op.Greater(mask, 0), axes=[1, 2] if rank == 2 else [1])
    else:
        f.refuse(f"its mask has {rank} axes")
    return op.Mul(op.Cast(op.Not(allowed), to=op.dtype), float(f.attribute("mask_filter_value", -10000.0)))


def _within_bounds(f: Fused, ends: ir.Value, q: ir.Value, k: ir.Value) -> ir.Value:
    """Read a mask of one axis: the ends of the keys of each row; in Attention then also their starts."""
    op = f.op
    rows = _axis_length(f, q, 0)
    starts = f.node.op_type == "Attention"
    parts = op.Reshape(ends, op.Concat(np.array([-1]) if starts else np.array([1]), rows, axis=0))
    columns = op.Range(np.array(0), op.Squeeze(_axis_length(f, k, 2), axes=[0]), np.array(1))
    bounds = op.Unsqueeze(op.Cast(parts, to=ir.DataType.INT64), axes=[2, 3, 4])
    below = op.Less(columns, op.Gather(bounds, np.array(0), axis=0))
    if not starts:
        return below
    zeros = op.ConstantOfShape(op.Concat(np.array([1]), rows, np.array([1, 1, 1]), axis=0), value=ir.tensor([0]))
    begun = op.Less(columns, op.Gather(op.Concat(bounds, zeros, axis=0), np.array(1), axis=0))
    return op.And(below, op.Not(begun))


def _axis_length(f: Fused, value: ir.Value, axis: int) -> ir.Value:
    return f.op.Slice(f.op.Shape(value), [axis], [axis + 1], [0])


def _causal_mask(f: Fused, q: ir.Value, k: ir.Value) -> ir.Value:
    """Return which keys each query may see; keys in excess of the queries come first."""
    op = f.op
    total, new = _axis_length(f, k, 2), _axis_length(f, q, 2)
    columns = op.Range(np.array(0), op.Squeeze(total, axes=[0]), np.array(1))
    rows = op.Add(op.Range(np.array(0), op.Squeeze(new, axes=[0]), np.array(1)), op.Sub(total, new))
    return op.Not(op.Greater(op.Unsqueeze(columns, axes=[0]), op.Unsqueeze(rows, axes=[1])))


def _lower_rotary(f: Fused) -> Outputs:
    """Rotate pairs of features by the angles of their positions, in (rows, sequence, heads, features)."""
    op, x = f.op, f.x(0)
    flat = f.rank(x) == 3
    half = f.size(f.x(2), 1)
    heads, turned = f.attribute("num_heads", 0), f.attribute("rotary_embedding_dim", 0)
    if turned and flat and not heads:
        f.refuse("num_heads is missing")
    if flat:
        value = op.Reshape(x, [0, 0, heads, -1] if heads else [0, 0, -1, 2 * half])
    else:
        value = op.Transpose(x, perm=[0, 2, 1, 3])
    c, s = (_rotation_angles(f, table, value) for table in (f.x(2), f.x(3)))
    paired = bool(f.attribute("interleaved", 0))
    a, b = _feature_pairs(f, value, 2 * half, paired)
    parts = [op.Sub(op.Mul(a, c), op.Mul(b, s)), op.Add(op.Mul(a, s), op.Mul(b, c))]
    if paired:
        stacked = op.Concat(*(op.Unsqueeze(part, axes=[4]) for part in parts), axis=4)
        parts = [op.Reshape(stacked, [0, 0, 0, 2 * half])]
    if turned:
        parts.append(op.Slice(value, [2 * half], [np.iinfo(np.int32).max], [3]))
    y = parts[0] if len(parts) == 1 else op.Concat(*parts, axis=3)
    return [op.Reshape(y, [0, 0, -1]) if flat else op.Transpose(y, perm=[0, 2, 1, 3])]


def _rotation_angles(f: Fused, table: ir.Value, value: ir.Value) -> ir.Value:
    """Return the cosines or sines; a single position is that of the first element, else each has its own."""
    op, positions = f.op, f.x(1)
    if f.rank(positions) == 1:
        steps = op.Range(np.array(0), op.Squeeze(_axis_length(f, value, 1), axes=[0]), np.array(1))
        positions = op.Unsqueeze(op.Add(op.Cast(positions, to=ir.DataType.INT64), steps), axes=[0])
    return op.Unsqueeze(op.Gather(table, positions, axis=0), axes=[2])


def _feature_pairs(f: Fused, value: ir.Value, turned: int, paired: bool) -> tuple[ir.Value, ir.Value]:
    """Return the features that are rotated together: neighbors, or the two halves."""
    if paired:
        return f.op.Slice(value, [0], [turned], [3], [2]), f.op.Slice(value, [1], [turned], [3], [2])
    return f.op.Slice(value, [0], [turned // 2], [3]), f.op.Slice(value, [turned // 2], [turned], [3])


LOWERINGS = {
    "com.microsoft.Attention": FusionRule(
        _lower_attention,
        "mask_filter_value num_heads qkv_hidden_sizes scale unidirectional",
        inputs=6,
        defaults={"do_rotary": 0, "past_present_share_buffer": 0, "rotary_embedding_dim": 0},
    ),
    "com.microsoft.MultiHeadAttention": FusionRule(
        _lower_multi_head, "mask_filter_value num_heads scale unidirectional", inputs=8, outputs=3
    ),
    "com.microsoft.RotaryEmbedding": FusionRule(
        _lower_rotary,
        "interleaved num_heads rotary_embedding_dim",
        inputs=4,
        defaults={"is_packed_batching": 0, "scale": 1.0},
    ),
}

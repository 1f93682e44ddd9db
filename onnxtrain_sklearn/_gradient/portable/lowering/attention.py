"""Lowering of Attention and RotaryEmbedding to matrix products, masks and softmax, as the standard defines them.

Queries whose keys are all masked give zeros and have zero gradients. Batch size and sequence lengths may be symbolic;
the number and the size of heads are fixed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ...._graph.builder import GraphBuilder
from ...._graph.queries import attribute, dims, operand
from ...._graph.supported import Supported
from ..context import Lowering, unsupported


def _expand_attention(op: GraphBuilder, node: ir.Node) -> Sequence[ir.Value | None]:
    q, k, v, mask, past_key, past_value = (operand(node, i) for i in range(6))
    assert q is not None
    flat = len(dims(q) or []) == 3
    queries = _as_heads(op, node, q, "q_num_heads")
    keys, values = _as_heads(op, node, k, "kv_num_heads"), _as_heads(op, node, v, "kv_num_heads")
    if past_key is not None and past_value is not None:
        keys, values = _longer(op, past_key, keys), _longer(op, past_value, values)
    heads, width = _fixed_size(node, queries, 1), _fixed_size(node, queries, 3)
    scale = attribute(node, "scale", None)
    every = op.Transpose(_shared(op, node, keys, heads), perm=[0, 1, 3, 2])
    scores = op.MatMul(op.Mul(queries, 1 / np.sqrt(width).item() if scale is None else float(scale)), every)
    softcap = attribute(node, "softcap", 0.0)
    if softcap:
        scores = op.Mul(op.Tanh(op.Mul(scores, 1.0 / softcap)), float(softcap))
    y = op.MatMul(_attention_weights(op, node, scores, mask, past_key), _shared(op, node, values, heads))
    if flat:
        y = op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), [0, 0, heads * _fixed_size(node, values, 3)])
    return [y, keys, values]


def _fixed_size(node: ir.Node, value: ir.Value, axis: int) -> int:
    sizes = dims(value)
    size = None if sizes is None else sizes[axis]
    if not isinstance(size, int):
        raise unsupported(node, "the numbers and sizes of its heads must be fixed")
    return size


def _as_heads(op: GraphBuilder, node: ir.Node, value: ir.Value | None, name: str) -> ir.Value:
    """Return queries, keys or values as (batch, heads, sequence, size)."""
    assert value is not None
    sizes = dims(value)
    if sizes is None or len(sizes) not in (3, 4):
        raise unsupported(node, "the ranks of its inputs are not known")
    if len(sizes) == 4:
        return value
    heads = attribute(node, name, 0)
    width = _fixed_size(node, value, 2) // heads
    parted = op.Reshape(value, [0, 0, heads, width])
    parted.shape = ir.Shape([*sizes[:2], heads, width])
    return _shaped(op.Transpose(parted, perm=[0, 2, 1, 3]), [sizes[0], heads, sizes[1], width])


def _shaped(value: ir.Value, sizes: Sequence[int | str | None]) -> ir.Value:
    value.shape = ir.Shape(sizes)
    return value


def _longer(op: GraphBuilder, past: ir.Value, new: ir.Value) -> ir.Value:
    sizes = dims(new) or [None] * 4
    return _shaped(op.Concat(past, new, axis=2), [*sizes[:2], None, sizes[3]])


def _shared(op: GraphBuilder, node: ir.Node, value: ir.Value, heads: int) -> ir.Value:
    """Repeat the heads of keys or values for consecutive groups of query heads (grouped-query attention)."""
    own = _fixed_size(node, value, 1)
    if own == heads:
        return value
    if heads % own:
        raise unsupported(node, f"{heads} heads of queries cannot share {own} heads of keys")
    wide = op.Expand(op.Unsqueeze(value, axes=[2]), np.array([1, 1, heads // own, 1, 1]))
    return op.Reshape(wide, [0, heads, -1, _fixed_size(node, value, 3)])


def _attention_weights(
    op: GraphBuilder, node: ir.Node, scores: ir.Value, mask: ir.Value | None, past: ir.Value | None
) -> ir.Value:
    """Return the softmax over the allowed keys, zero elsewhere; infinities, which have no gradient, are avoided."""
    allowed = [_causal_keys(op, scores, past)] if attribute(node, "is_causal", 0) else []
    if mask is not None:
        _require_full_width(node, mask, scores)
        if mask.dtype is ir.DataType.BOOL:
            allowed.append(mask)
        else:
            scores = op.Add(scores, mask)
            allowed.append(op.Greater(mask, -np.inf))
    if not allowed:
        return op.Softmax(scores, axis=-1)
    both = allowed[0] if len(allowed) == 1 else op.And(*allowed)
    lowest = float(np.finfo(op.dtype.numpy()).min) / 2
    return op.Where(both, op.Softmax(op.Where(both, scores, lowest), axis=-1), 0.0)


def _causal_keys(op: GraphBuilder, scores: ir.Value, past: ir.Value | None) -> ir.Value:
    """Return the causal mask: for each query the keys up to its position; past keys precede all queries."""
    shape = op.Shape(scores)
    rows, columns = (
        op.Range(np.array(0), op.Squeeze(op.Slice(shape, [axis], [axis + 1], [0]), axes=[0]), np.array(1))
        for axis in (2, 3)
    )
    if past is not None:
        rows = op.Add(rows, op.Slice(op.Shape(past), [2], [3], [0]))
    return op.LessOrEqual(op.Unsqueeze(columns, axes=[0]), op.Unsqueeze(rows, axes=[1]))


def _require_full_width(node: ir.Node, mask: ir.Value, scores: ir.Value) -> None:
    """Refuse a mask narrower than the keys: its meaning has changed between versions."""
    width = (dims(mask) or [None])[-1]
    keys = (dims(operand(node, 1)) or [None, None])[-2]
    past = operand(node, 4)
    more = 0 if past is None else (dims(past) or [None] * 4)[2]
    total = keys + more if isinstance(keys, int) and isinstance(more, int) else keys if more == 0 else None
    if width is None or width != total:
        raise unsupported(node, "its mask is not known to be as wide as its keys")


def _expand_rotary(op: GraphBuilder, node: ir.Node) -> Sequence[ir.Value]:
    """Rotate pairs of features; the axes are (batch, sequence, heads, features) here."""
    x, cosine, sine, positions = (operand(node, i) for i in range(4))
    assert x is not None
    sizes = dims(x)
    flat = sizes is not None and len(sizes) == 3
    heads = attribute(node, "num_heads", 0)
    if flat and not heads:
        raise unsupported(node, "num_heads is missing")
    width = _fixed_size(node, x, 2) // heads if flat else _fixed_size(node, x, 3)
    value = op.Reshape(x, [0, 0, heads, width]) if flat else op.Transpose(x, perm=[0, 2, 1, 3])
    turned = attribute(node, "rotary_embedding_dim", 0) or width
    c, s = (_angles_of_positions(op, table, positions, turned // 2) for table in (cosine, sine))
    paired = bool(attribute(node, "interleaved", 0))
    a, b = _rotated_pairs(op, value, turned, paired)
    parts = [op.Sub(op.Mul(c, a), op.Mul(s, b)), op.Add(op.Mul(s, a), op.Mul(c, b))]
    if paired:
        stacked = op.Concat(*(op.Unsqueeze(part, axes=[4]) for part in parts), axis=4)
        parts = [op.Reshape(stacked, [0, 0, 0, turned])]
    if turned < width:
        parts.append(op.Slice(value, [turned], [width], [3]))
    y = parts[0] if len(parts) == 1 else op.Concat(*parts, axis=3)
    return [op.Reshape(y, [0, 0, heads * width]) if flat else op.Transpose(y, perm=[0, 2, 1, 3])]


def _angles_of_positions(op: GraphBuilder, table: ir.Value | None, positions: ir.Value | None, count: int) -> ir.Value:
    assert table is not None
    chosen = table if positions is None else op.Gather(table, positions, axis=0)
    return op.Unsqueeze(op.Slice(chosen, [0], [count], [2]), axes=[2])


def _rotated_pairs(op: GraphBuilder, value: ir.Value, turned: int, paired: bool) -> tuple[ir.Value, ir.Value]:
    """Return the two features of each rotated pair: interleaved neighbors, or the two halves."""
    if paired:
        return op.Slice(value, [0], [turned], [3], [2]), op.Slice(value, [1], [turned], [3], [2])
    return op.Slice(value, [0], [turned // 2], [3]), op.Slice(value, [turned // 2], [turned], [3])


LOWERINGS: dict[str, Lowering] = {
    "Attention": Supported(_expand_attention, "is_causal kv_num_heads q_num_heads scale softcap", inputs=6, outputs=3),
    "RotaryEmbedding": Supported(_expand_rotary, "interleaved num_heads rotary_embedding_dim", inputs=4),
}

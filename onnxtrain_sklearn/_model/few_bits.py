"""Products with a frozen matrix of few bits: onnxruntime's MatMulNBits, which holds blocks of 4 or 8 bit integers.

The matrix stays as it is. The gradient passes through its dequantized floats, which :func:`dequantize_products`
computes in ONNX's own operators, and a low-rank change is added beside the product.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from .._ir.edits import replace_node
from .._ir.queries import attribute, kind, operand
from .._ir.shapes import infer_shapes
from ..exceptions import UnsupportedOperatorError
from ..graph import GraphBuilder

KIND = "com.microsoft.MatMulNBits"


def is_product_of_few_bits(node: ir.Node) -> bool:
    """Return True if a node multiplies by a matrix of few bits through which the gradient can pass."""
    return kind(node) == KIND


def matrix_shape(value: ir.Value) -> tuple[int, int] | None:
    """Return the outputs and inputs of a matrix of few bits; None if ``value`` is none, or also read otherwise."""
    uses = list(value.uses())
    if not uses or not all(is_product_of_few_bits(node) and index == 1 for node, index in uses):
        return None
    first = uses[0].node
    inside = all(node.graph is value.graph for node, _ in uses)
    return (attribute(first, "N", 0), attribute(first, "K", 0)) if inside else None


def dequantize_products(model: ir.Model, nodes: Iterable[ir.Node]) -> bool:
    """Replace products of few bits among ``nodes`` by products with floats, in place; return True if there were any."""
    found = [node for node in nodes if is_product_of_few_bits(node)]
    op = GraphBuilder(model.graph, prefix="dequantized", constant_nodes=True)
    for node in found:
        x, bias = operand(node, 0), operand(node, 5)
        assert x is not None
        op.dtype = x.dtype or op.dtype
        product = op.MatMul(x, op.Transpose(_floats(op, node), perm=[1, 0]))
        replace_node(op, node, [product if bias is None else op.Add(product, bias)])
    if found:
        model.graph.sort()
        infer_shapes(model)
    return bool(found)


def _floats(op: GraphBuilder, node: ir.Node) -> ir.Value:
    """Emit the dequantized matrix, (N, K): ``(integers - zero point) * scale``, with a scale for each block of a row.

    The format: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits
    """
    _, packed, scales, zeros, order = (operand(node, i) for i in range(5))
    n, k, bits, block = (int(attribute(node, name, 0)) for name in ("N", "K", "bits", "block_size"))
    bits = bits or 4
    blocks = -(-k // block) if block > 0 else 0
    reasons = {
        f"it has {bits} bits, and its gradient is known for 4 and 8": bits not in (4, 8),
        "its columns have another order (g_idx)": order is not None,
        f"its sizes N={n}, K={k}, block_size={block} must be positive": min(n, k, block) < 1,
        "its weights are laid out for one processor (weight_prepacked)": bool(attribute(node, "weight_prepacked", 0)),
    }
    for reason, holds in reasons.items():
        if holds:
            raise UnsupportedOperatorError(f"Node {node.name!r} ({KIND}) cannot be differentiated: {reason}.")
    assert packed is not None
    assert scales is not None
    integers = op.Reshape(_unpacked(op, packed, [n, blocks, -1], bits), [n, blocks, -1])
    if zeros is None:
        shift = op.constant(np.full((1, 1, 1), 2 ** (bits - 1), op.dtype.numpy()))
    elif zeros.dtype == ir.DataType.UINT8:  # packed like the integers; each row begins with a new byte
        rows = op.Slice(op.Reshape(_unpacked(op, zeros, [n, 1, -1], bits), [n, -1]), [0], [blocks], [1])
        shift = op.Reshape(op.Cast(rows, to=op.dtype), [n, blocks, 1])
    else:
        shift = op.Reshape(zeros, [n, blocks, 1])
    floats = op.Mul(op.Sub(op.Cast(integers, to=op.dtype), shift), op.Reshape(scales, [n, blocks, 1]))
    return op.Slice(op.Reshape(floats, [n, -1]), [0], [k], [1])


def _unpacked(op: GraphBuilder, packed: ir.Value, shape: list[int], bits: int) -> ir.Value:
    """Emit the integers of bytes, along a last axis; with 4 bits, the lower half of a byte comes first."""
    whole = op.Reshape(packed, shape)
    if bits == 8:
        return whole
    four = np.array(4, np.uint8)
    high = op.BitShift(whole, four, direction="RIGHT")
    low = op.BitShift(op.BitShift(whole, four, direction="LEFT"), four, direction="RIGHT")
    return op.Concat(op.Unsqueeze(low, axes=[3]), op.Unsqueeze(high, axes=[3]), axis=3)

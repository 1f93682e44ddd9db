"""Matrix products with a transposed left operand, in the forms that take the least time on a CPU.

The gradients of weights are such products. onnxruntime transposes the left operand a few rows at a time, and once more
for each block of columns of the right one. Where these are few columns, it takes less time to transpose them and the
result; where they are many, to transpose the left operand once. onnxruntime's fusions would undo a Transpose before or
behind a Gemm, and one of a matrix before a MatMul.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from .._graph.builder import GraphBuilder
from .._graph.edits import replace_node
from .._graph.queries import attribute, dims, fixed, operand

LEAST_NARROW, MOST_COLUMNS = 4096, 12
"""Elements of the left operand from which on, and columns up to which, the right operand is transposed."""

LEAST_ROWS, LEAST_INPUTS, LEAST_COLUMNS = 128, 64, 512
"""Rows and columns of the left operand, and columns of the right one, from which on the left one is transposed once."""


def transpose_operands(graph: ir.Graph) -> None:
    """Replace the products with a transposed left operand that take less time in another form, in place."""
    op = GraphBuilder(graph, prefix="onnxtrain/products")
    for node in [node for node in graph if _is_plain_product(node)]:
        values = _faster_product(op, node)
        if values:
            replace_in_order(op, node, values)


def replace_in_order(op: GraphBuilder, node: ir.Node, values: Sequence[ir.Value]) -> None:
    """Replace a node by those that compute ``values``, the last in place of its output, where it was in the order.

    The order is kept where values are freed as the backward pass goes.
    """
    nodes = [made for made in (value.producer() for value in values) if made is not None]
    op.graph.remove(nodes)
    op.graph.insert_before(node, nodes)
    replace_node(op, node, [values[-1]])


def _is_plain_product(node: ir.Node) -> bool:
    """Whether a node is the product of a transposed matrix and a matrix of float32, times one."""
    if (node.domain, node.op_type) != ("", "Gemm") or node.outputs[0].dtype is not ir.DataType.FLOAT:
        return False
    settings = {"transA": 0, "transB": 0, "alpha": 1.0}
    return [attribute(node, *one) for one in settings.items()] == [1, 0, 1.0] and operand(node, 2) is None


def _faster_product(op: GraphBuilder, node: ir.Node) -> Sequence[ir.Value]:
    """Emit the form of a product with a transposed left operand that is faster; return what it computes, [] if none."""
    left, right = node.inputs[:2]
    sizes, others = dims(left), dims(right)
    if left is None or right is None or not (fixed(sizes) and fixed(others)):
        return []
    rows, inputs, columns = *sizes, others[1]
    if 2 <= columns <= MOST_COLUMNS and rows * inputs >= LEAST_NARROW:
        transposed = op.Transpose(right, perm=[1, 0])
        product = op.MatMul(transposed, left)
        return [transposed, product, op.Transpose(product, perm=[1, 0])]
    if rows >= LEAST_ROWS and inputs >= LEAST_INPUTS and columns >= LEAST_COLUMNS:
        stacked = op.Reshape(left, [1, rows, inputs])
        transposed = op.Transpose(stacked, perm=[0, 2, 1])
        matrix = op.Reshape(transposed, [inputs, rows])
        return [stacked, transposed, matrix, op.MatMul(matrix, right)]
    return []

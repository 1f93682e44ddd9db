"""Matrix products with a transposed left operand, in the forms that take the least time on a CPU.

The gradients of weights are such products. onnxruntime transposes the left operand a few rows at a time, and once more
for each block of columns of the right one. Where these are few columns, it takes less time to transpose them and the
result; where they are many, to transpose the left operand once. onnxruntime's fusions would undo a Transpose before or
behind a Gemm, and one of a matrix before a MatMul.
"""

from __future__ import annotations

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
    products = [node for node in graph if _is_plain_product(node)]
    if sum([_transpose_operand(op, node) for node in products]):
        graph.sort()


def _is_plain_product(node: ir.Node) -> bool:
    """Whether a node is the product of a transposed matrix and a matrix of float32, times one."""
    if (node.domain, node.op_type) != ("", "Gemm") or node.outputs[0].dtype is not ir.DataType.FLOAT:
        return False
    settings = {"transA": 0, "transB": 0, "alpha": 1.0}
    return [attribute(node, *one) for one in settings.items()] == [1, 0, 1.0] and operand(node, 2) is None


def _transpose_operand(op: GraphBuilder, node: ir.Node) -> bool:
    """Replace a product with a transposed left operand if another form is faster; return whether it is."""
    left, right = node.inputs[:2]
    sizes, others = dims(left), dims(right)
    if left is None or right is None or not (fixed(sizes) and fixed(others)):
        return False
    rows, inputs, columns = *sizes, others[1]
    if 2 <= columns <= MOST_COLUMNS and rows * inputs >= LEAST_NARROW:
        product = op.MatMul(op.Transpose(right, perm=[1, 0]), left)
        replace_node(op, node, [op.Transpose(product, perm=[1, 0])])
        return True
    if rows >= LEAST_ROWS and inputs >= LEAST_INPUTS and columns >= LEAST_COLUMNS:
        transposed = op.Transpose(op.Reshape(left, [1, rows, inputs]), perm=[0, 2, 1])
        replace_node(op, node, [op.MatMul(op.Reshape(transposed, [inputs, rows]), right)])
        return True
    return False

"""The shares of rows repeated for each class: onnxruntime takes twice the time to multiply a few classes by a column.

The shares are the weights of the rows divided by their sum. The host writes the matrix where the weights change, which
is seldom. The graph reads it in place of the column, and sums the loss over classes and rows at once.
"""

from __future__ import annotations

import onnx_ir as ir

from .._graph.builder import GraphBuilder
from .._graph.edits import remove_unread
from .._graph.queries import attribute, constant, dims, fixed, kind, operand
from .cpu_products import replace_in_order
from .loss_graph import LOSS, WEIGHT

REPEATED = "onnxtrain/repeated_shares"

REPEATED_CLASSES = 64
"""Classes up to which the shares are repeated: the longer the rows, the less a column takes."""


def repeat_shares(graph: ir.Graph) -> int:
    """Let ``graph`` read the matrix of shares where it multiplies by their column; return its columns, 0: nowhere."""
    column = next((value for value in graph.inputs if value.name == WEIGHT), None)
    readers = [] if column is None else [node for node in column.consumers() if _multiplied_columns(node)]
    if column is None or not readers:
        return 0
    classes = max(_multiplied_columns(node) for node in readers)
    matrix = ir.val(REPEATED, column.dtype, ((dims(column) or [0])[0], classes))
    graph.inputs.append(matrix)
    for node in readers:
        if _multiplied_columns(node) == classes:
            node.replace_input_with(list(node.inputs).index(column), matrix)
    _sum_at_once(graph, column, matrix)
    if not column.uses():
        graph.inputs.remove(column)
    return classes


def _multiplied_columns(node: ir.Node) -> int:
    """Return the columns of a matrix that a node multiplies by one column, 0 if it does not or they are many."""
    if kind(node) != "Mul":
        return 0
    sizes = dims(node.outputs[0])
    shapes = sorted(str(dims(value)) for value in node.inputs)
    if not fixed(sizes) or len(sizes) != 2 or not 1 < sizes[1] <= REPEATED_CLASSES:
        return 0
    return sizes[1] if shapes == sorted(map(str, ([sizes[0], 1], sizes))) else 0


def _sum_at_once(graph: ir.Graph, column: ir.Value, matrix: ir.Value) -> None:
    """Replace the loss ``sum_i s_i sum_j m_ij``, or its negative, by ``sum_ij s_ij m_ij``."""
    total = next(value for value in graph.outputs if value.name == LOSS).producer()
    weighted = None if total is None or not is_sum(total, []) else _made_by(total, "Mul")
    rows = None if weighted is None else next((v for v in weighted.inputs if v is not column), None)
    if total is None or weighted is None or rows is None or column not in weighted.inputs:
        return
    made = rows.producer()
    negated = made is not None and kind(made) == "Neg"
    inner = _made_by(made, "ReduceSum") if made is not None and negated else made
    if inner is None or not is_sum(inner, [1]) or dims(inner.inputs[0]) != dims(matrix):
        return
    op = GraphBuilder(graph, dtype=matrix.dtype or ir.DataType.FLOAT, prefix="onnxtrain/repeated")
    product = op.Mul(matrix, inner.inputs[0])
    loss = op.ReduceSum(product, keepdims=False)
    replace_in_order(op, total, [product, loss, op.Neg(loss)] if negated else [product, loss])
    remove_unread(graph, [node for node in dict.fromkeys((inner, made, weighted)) if node is not None])


def _made_by(node: ir.Node, operator: str) -> ir.Node | None:
    """Return the node behind the first input of ``node`` if it is of this type."""
    source = node.inputs[0]
    made = None if source is None else source.producer()
    return made if made is not None and kind(made) == operator else None


def is_sum(node: ir.Node, axes: list[int]) -> bool:
    """Whether a node is a sum over ``axes`` of a matrix, which are kept; over all and none kept, without axes."""
    if kind(node) != "ReduceSum" or attribute(node, "keepdims", 1) != bool(axes):
        return False
    given = operand(node, 1)
    known = attribute(node, "axes", []) if given is None else constant(given)
    found = None if known is None else [int(axis) % 2 for axis in known]
    return found == axes and not (found == [] and attribute(node, "noop_with_empty_axes", 0))

"""Normalize the weights of rows on the host, and let the gradient graph read the results.

The share of a row is its weight divided by the sum of all. Most minibatches have equal shares, so the host computes
them seldom, and can give them to the graph in faster forms: at the labels of the rows, or repeated for each class.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from .._ir.edits import remove_unread
from .._ir.queries import attribute, constant, dims, fixed, kind, operand
from .._model.loss_terms import LEAST_TOTAL
from ..graph import GraphBuilder
from .loss_graph import LOSS, TARGET, WEIGHT, one_hot_table
from .pass_rewrites import replace_in_order

KEPT_SHARES = 2
"""Shares that are kept: without weights those of a full minibatch and of the last one, which is padded, alternate."""


class RowShares:
    """The shares of the rows; those of most minibatches are equal.

    They are a column, and a matrix of so many equal columns.

    Attributes
    ----------
    column, matrix : ndarray
    equal : float or None
        The share of each row; None where they differ.
    of_ones : bool
        Whether all weights were one.
    """

    def __init__(self, weights: np.ndarray, columns: int = 0) -> None:
        self._weights, self._known = weights, b""
        self._kept: dict[bytes, tuple[np.ndarray, float | None, bool]] = {}
        self.column = np.zeros((len(weights), 1), weights.dtype)
        self.matrix = np.zeros((len(weights), columns), weights.dtype)
        self.equal: float | None = None
        self.of_ones = False

    def update(self) -> None:
        """Compute the shares if the weights have changed."""
        content = self._weights.tobytes()
        if content == self._known:
            return
        if content in self._kept:
            self.column[...], self.equal, self.of_ones = self._kept[content]
        else:
            self._compute(content)
        self.matrix[...], self._known = self.column, content

    def _compute(self, content: bytes) -> None:
        np.divide(self._weights[:, None], max(self._weights.sum(), LEAST_TOTAL), self.column)
        are_equal = content == content[: self._weights.itemsize] * len(self._weights)
        self.equal = float(self.column[0, 0]) if are_equal else None
        self.of_ones = are_equal and bool(self._weights[0] == 1)
        if len(self._kept) < KEPT_SHARES:
            self._kept[content] = self.column.copy(), self.equal, self.of_ones


class LabeledShares:
    """A matrix with the negative share of each row at its label, and zeros elsewhere; NaN for a label that is no class.

    Parameters
    ----------
    labels : ndarray of int of shape (n_rows,)
        Those of the minibatch in the buffers.
    shares : RowShares
        They are up to date.
    """

    def __init__(self, labels: np.ndarray, shares: RowShares) -> None:
        self._labels, self._shares = labels, shares
        self.matrix = np.zeros_like(shares.matrix)
        self._rows = one_hot_table(self.matrix.shape[1]).astype(self.matrix.dtype)
        self._scale, self._table = 1.0, -self._rows

    def update(self) -> None:
        """Compute the matrix for the labels in the buffers."""
        equal = self._shares.equal
        scale = 1.0 if equal is None else equal
        if scale != self._scale:
            self._scale, self._table = scale, self._rows * -scale
        self._table.take(self._labels, 0, self.matrix, "wrap")  # as Gather counts, and without a buffer of the result
        if equal is None:
            np.multiply(self.matrix, self._shares.matrix, self.matrix)


# The log loss by the shares of the rows at their labels: two nodes in place of five.
#
# With one-hot labels y and shares s of the rows, a graph computes the loss -sum s y log p and its gradient s (p - y). A
# row of the matrix d = -s y has one number, so the host takes it from a small table, in less time than the graph looks
# up its label. The loss is sum d log p then, and its gradient s p + d.


LABELED = "onnxtrain/labeled_shares"


class _LogLoss(NamedTuple):
    """The nodes of the loss and of its gradient that read one-hot labels, and those behind them."""

    labels: ir.Node
    by_label: ir.Node
    sums: list[ir.Node]
    excess: ir.Node
    gradient: ir.Node


def take_labeled_shares(graph: ir.Graph) -> bool:
    """Rewire ``graph``, which reads the matrix of shares, to read d instead of labels; return whether it can."""
    inputs = {value.name: value for value in graph.inputs}
    shares, target = inputs.get(REPEATED), inputs.get(TARGET)
    nodes = None if shares is None or target is None else _log_loss(shares, target)
    if shares is None or target is None or nodes is None:
        return False
    op = GraphBuilder(graph, dtype=shares.dtype or ir.DataType.FLOAT, prefix="onnxtrain/labeled")
    labeled = ir.val(LABELED, shares.dtype, shares.shape)
    graph.inputs.append(labeled)
    by_class = op.Mul(labeled, nodes.by_label.inputs[nodes.by_label.inputs[0] is nodes.labels.outputs[0]])
    replace_in_order(op, nodes.sums[-1], [by_class, op.ReduceSum(by_class, keepdims=False)])
    weighted = op.Mul(nodes.excess.inputs[0], shares)
    replace_in_order(op, nodes.gradient, [weighted, op.Add(weighted, labeled)])
    remove_unread(graph, [nodes.labels, nodes.by_label, *nodes.sums[:-1], nodes.excess])
    graph.inputs.remove(target)
    return True


def _log_loss(shares: ir.Value, target: ir.Value) -> _LogLoss | None:
    """Return the nodes of -sum s y log p and s (p - y) if no others read one-hot labels y; None if there are others."""
    labels = next(iter(_sole_readers(target, "Gather")), None)
    if labels is None or not _looks_up_one_hot_rows(labels, target):
        return None
    readers = {kind(node): node for node in labels.outputs[0].consumers()}
    if readers.keys() != {"Mul", "Sub"} or len(labels.outputs[0].uses()) != 2:
        return None
    by_label, excess = readers["Mul"], readers["Sub"]
    sums = _sole_readers(by_label.outputs[0], "Mul", "ReduceSum", "Neg")
    gradient = _sole_readers(excess.outputs[0], "Mul")
    if not (sums and gradient and shares in sums[0].inputs and shares in gradient[0].inputs):
        return None
    whole = is_sum(sums[1], []) and sums[2].outputs[0].name == LOSS and excess.inputs[1] is labels.outputs[0]
    return _LogLoss(labels, by_label, sums, excess, gradient[0]) if whole else None


def _looks_up_one_hot_rows(node: ir.Node, labels: ir.Value) -> bool:
    """Return True if a Gather reads the rows of the table of one-hot labels at the labels."""
    source = operand(node, 0)
    table = None if source is None else constant(source)
    if table is None or table.ndim != 2 or not np.array_equal(table, one_hot_table(table.shape[1]), equal_nan=True):
        return False
    return operand(node, 1) is labels and attribute(node, "axis", 0) == 0


def _sole_readers(value: ir.Value, *operators: str) -> list[ir.Node]:
    """Return the nodes of these types behind ``value``, each the only reader of what is before; [] if they differ."""
    found: list[ir.Node] = []
    for operator in operators:
        nodes = [use.node for use in value.uses()]
        if len(nodes) != 1 or value.is_graph_output() or kind(nodes[0]) != operator:
            return []
        found.append(nodes[0])
        value = found[-1].outputs[0]
    return found


# The shares of rows repeated for each class: onnxruntime takes twice the time to multiply a few classes by a column.
#
# The shares are the weights of the rows divided by their sum. The host writes the matrix where the weights change,
# which is seldom. The graph reads it in place of the column, and sums the loss over classes and rows at once.


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
    """Return True if a node sums a matrix over ``axes`` and keeps them; without axes, over all, keeping none."""
    if kind(node) != "ReduceSum" or attribute(node, "keepdims", 1) != bool(axes):
        return False
    given = operand(node, 1)
    known = attribute(node, "axes", []) if given is None else constant(given)
    found = None if known is None else [int(axis) % 2 for axis in known]
    return found == axes and not (found == [] and attribute(node, "noop_with_empty_axes", 0))

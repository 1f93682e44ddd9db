"""Rewrite a gradient graph: faster products, order and shapes of the gradients, gathering on a device.

The gradients of weights are products with a transposed left operand. onnxruntime transposes it a few rows at a time,
and once more for each block of columns of the right operand. If there are few columns, it takes less time to transpose
them and the result; if there are many, to transpose the left operand once. onnxruntime's fusions would undo a Transpose
before or behind a Gemm, and one of a matrix before a MatMul.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from .._ir.edits import remove_unread, replace_input, replace_node
from .._ir.queries import attribute, constant, dims, fixed, kind, operand
from .._model.loss_terms import LEAST_TOTAL
from .._ort.binding import Array, DeviceArray
from .._ort.sessions import InferenceSession
from ..graph import GraphBuilder, copy_type
from .loss_graph import LOSS, TARGET, WEIGHT, one_hot_table

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
    """Return True if a node is a float32 Gemm of a transposed and a plain matrix, with alpha 1 and no bias."""
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


# Order of the gradients in a training graph: onnxruntime computes each of them while its operands are at hand.
#
# onnxruntime begins with the last node that no other reads and runs what it needs, then goes to the one before. In the
# order of a backward pass it would begin with the gradient of the first layer and compute the others behind it: it
# would keep the operands of all of them until then, and read them anew from memory.


def last_layer_last(graph: ir.Graph) -> None:
    """Move the nodes that no other reads to the end of the graph, in reverse order, in place.

    They compute the gradients, those of the last layer first.
    """
    ends = [node for node in graph if not any(value.uses() for value in node.outputs)]
    graph.remove(ends)
    graph.extend(reversed(ends))


# The shapes in which a pass writes the gradients of its parameters.
#
# A Reshape at the end of a graph copies the whole gradient into the memory that is bound to the output. The vector of
# gradients is flat, so the memory can be bound in the shape in which the gradient is computed instead.


RESHAPING = frozenset(("Flatten", "Reshape", "Squeeze", "Unsqueeze"))
"""Operators that change nothing but the shape."""


def return_before_reshapes(graph: ir.Graph, names: Collection[str]) -> None:
    """Return the gradients of ``names`` in the shapes in which they are computed, under their names."""
    wanted = {f"{name}_grad" for name in names}
    outputs, dropped = list(graph.outputs), list[ir.Node]()
    returned = set(outputs)
    for i, output in enumerate(outputs):
        node = output.producer()
        if output.name not in wanted or node is None or kind(node) not in RESHAPING or output.uses():
            continue
        source, name = node.inputs[0], output.name
        if source is None or source in returned or source.dtype is not output.dtype:
            continue
        if _is_computed(source, graph):
            outputs[i], output.name, source.name = source, None, name
            returned.add(source)
            dropped.append(node)
    graph.outputs.clear()  # once: to find each of them among all takes longer than the rest
    graph.outputs.extend(outputs)
    graph.remove(dropped, safe=True)


def _is_computed(value: ir.Value, graph: ir.Graph) -> bool:
    """Return True if ``graph`` computes ``value``, in a known shape."""
    node = value.producer()
    return node is not None and node.graph is graph and fixed(dims(value))


def in_written_shapes(session: InferenceSession, gradients: Mapping[str, Array]) -> dict[str, Array]:
    """Return views of the arrays in the shapes in which the session writes them, where it knows all sizes."""
    shapes = {value.name: value.shape for value in session.get_outputs()}
    return {name: _in_shape(array, shapes[name]) for name, array in gradients.items()}


def _in_shape(array: Array, shape: list[object] | None) -> Array:
    if shape == [*array.shape] or not fixed(shape):
        return array
    return array.part(0, shape) if isinstance(array, DeviceArray) else array.reshape(shape)


# Gathering of the minibatch inside the graph, from data that are in the memory of the device.


DATA, ROW_NUMBERS = "onnxtrain/data/", "onnxtrain/rows"


def gather_rows(graph: ir.Graph, names: Sequence[str], batch: int) -> None:
    """Gather the minibatch inside ``graph``: each of these inputs becomes a Gather of rows from all data."""
    op = GraphBuilder(graph, prefix="onnxtrain/gather")
    rows = ir.val(ROW_NUMBERS, ir.DataType.INT64, (batch,))
    graph.inputs.append(rows)
    for value in [v for v in graph.inputs if v.name in names]:
        shape = ["n_samples", *list(value.shape or ())[1:]]
        data = ir.Value(name=f"{DATA}{value.name}", type=value.type, shape=ir.Shape(shape))
        replace_input(graph, value, data, copy_type(op.Gather(data, rows, axis=0), value))
    graph.sort()


# The weights of the rows, normalized on the host and read by the gradient graph in faster forms.


KEPT_WEIGHTS = 2
"""Shares that are kept: without weights those of a full minibatch and of the last one, which is padded, alternate."""


class NormalizedWeights:
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
        if len(self._kept) < KEPT_WEIGHTS:
            self._kept[content] = self.column.copy(), self.equal, self.of_ones


class WeightsAtLabels:
    """A matrix with the negative share of each row at its label, and zeros elsewhere; NaN for a label that is no class.

    Parameters
    ----------
    labels : ndarray of int of shape (n_rows,)
        Those of the minibatch in the buffers.
    shares : NormalizedWeights
        They are up to date.
    """

    def __init__(self, labels: np.ndarray, shares: NormalizedWeights) -> None:
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


WEIGHTS_AT_LABELS = "onnxtrain/weights_at_labels"


class _LogLoss(NamedTuple):
    """The nodes of the loss and of its gradient that read one-hot labels, and those behind them."""

    labels: ir.Node
    by_label: ir.Node
    sums: list[ir.Node]
    excess: ir.Node
    gradient: ir.Node


def read_weights_at_labels(graph: ir.Graph) -> bool:
    """Rewire ``graph``, which reads the matrix of shares, to read d instead of labels; return whether it can."""
    inputs = {value.name: value for value in graph.inputs}
    shares, target = inputs.get(WEIGHT_MATRIX), inputs.get(TARGET)
    nodes = None if shares is None or target is None else _log_loss(shares, target)
    if shares is None or target is None or nodes is None:
        return False
    op = GraphBuilder(graph, dtype=shares.dtype or ir.DataType.FLOAT, prefix="onnxtrain/labeled")
    labeled = ir.val(WEIGHTS_AT_LABELS, shares.dtype, shares.shape)
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


WEIGHT_MATRIX = "onnxtrain/weight_matrix"

WEIGHT_MATRIX_CLASSES = 64
"""Classes up to which the shares are repeated: the longer the rows, the less a column takes."""


def read_weight_matrix(graph: ir.Graph) -> int:
    """Let ``graph`` read the matrix of shares where it multiplies by their column; return its columns, 0: nowhere."""
    column = next((value for value in graph.inputs if value.name == WEIGHT), None)
    readers = [] if column is None else [node for node in column.consumers() if _multiplied_columns(node)]
    if column is None or not readers:
        return 0
    classes = max(_multiplied_columns(node) for node in readers)
    matrix = ir.val(WEIGHT_MATRIX, column.dtype, ((dims(column) or [0])[0], classes))
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
    if not fixed(sizes) or len(sizes) != 2 or not 1 < sizes[1] <= WEIGHT_MATRIX_CLASSES:
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

"""Rewrite a gradient graph into equal forms that run faster: products, order, shapes, weights of rows, gathering.

:func:`~.programs.pass_program` applies these rewrites after differentiation. Each leaves the results as they are, up to
rounding.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from .._ir.edits import remove_unread, replace_input, replace_node
from .._ir.queries import attribute, constant, dims, fixed, kind, operand
from .._model.loss_terms import LEAST_TOTAL
from .._ort.binding import Array, DeviceArray
from .._ort.sessions import InferenceSession
from ..graph import GraphBuilder, copy_type
from .loss_graph import LOSS, TARGET, WEIGHT, one_hot_table

# Products: the gradient of a weight is a product with a transposed left operand.
#
# onnxruntime transposes it a few rows at a time, and once more for each block of columns of the right operand. If there
# are few columns, it is faster to transpose these columns, and then the result; if there are many, to transpose the
# left operand once, beforehand. The Reshapes around the latter are needed: onnxruntime's fusions would undo a Transpose
# before or behind a Gemm, and one of a matrix before a MatMul. ``python benchmarks/products.py`` measures the bounds.

LEAST_NARROW, MOST_COLUMNS = 4096, 12
"""The right operand is transposed if the left one has at least so many elements, and the right one at most so many
columns."""

LEAST_ROWS, LEAST_INPUTS, LEAST_COLUMNS = 128, 64, 512
"""Smallest numbers of rows and columns of the left operand, and of columns of the right one, to transpose the left."""


def transpose_operands(graph: ir.Graph) -> None:
    """Replace the products with a transposed left operand that take less time in another form, in place."""
    op = GraphBuilder(graph, prefix="onnxtrain/products")
    plain = {"transA": 0, "transB": 0, "alpha": 1.0}
    for node in list(graph):
        if kind(node) != "Gemm" or node.outputs[0].dtype is not ir.DataType.FLOAT or operand(node, 2) is not None:
            continue
        if [attribute(node, *one) for one in plain.items()] != [1, 0, 1.0]:
            continue
        left, right = node.inputs[:2]
        sizes, others = dims(left), dims(right)
        if left is None or right is None or not (fixed(sizes) and fixed(others)):
            continue
        rows, inputs, columns = *sizes, others[1]
        if 2 <= columns <= MOST_COLUMNS and rows * inputs >= LEAST_NARROW:
            transposed = op.Transpose(right, perm=[1, 0])
            product = op.MatMul(transposed, left)
            replace_in_order(op, node, [transposed, product, op.Transpose(product, perm=[1, 0])])
        elif rows >= LEAST_ROWS and inputs >= LEAST_INPUTS and columns >= LEAST_COLUMNS:
            stacked = op.Reshape(left, [1, rows, inputs])
            transposed = op.Transpose(stacked, perm=[0, 2, 1])
            matrix = op.Reshape(transposed, [inputs, rows])
            replace_in_order(op, node, [stacked, transposed, matrix, op.MatMul(matrix, right)])


def replace_in_order(op: GraphBuilder, node: ir.Node, values: Sequence[ir.Value]) -> None:
    """Replace a node by the nodes that compute ``values``, at its position; the last value replaces its output.

    The order of the nodes must stay, because the backward pass frees values as it goes.
    """
    nodes = [made for made in (value.producer() for value in values) if made is not None]
    op.graph.remove(nodes)
    op.graph.insert_before(node, nodes)
    replace_node(op, node, [values[-1]])


# Order: onnxruntime computes each gradient while its operands are at hand.
#
# onnxruntime takes the nodes whose results no other node reads (here those that compute gradients), last to first, and
# runs each after all nodes that it needs. In the order of a backward pass, the gradient of the first layer would be
# computed first, after the whole backward pass. The operands of the other gradients would have to be kept until then,
# and be read again from memory.


def compute_last_layer_first(graph: ir.Graph) -> None:
    """Move the nodes whose results no other node reads to the end of the graph, in reverse order, in place.

    These nodes compute the gradients. onnxruntime then computes those of the last layer first.
    """
    ends = [node for node in graph if not any(value.uses() for value in node.outputs)]
    graph.remove(ends)
    graph.extend(reversed(ends))


# Shapes: a Reshape at the end of a graph copies the whole gradient into the memory that is bound to the output.
#
# This is unnecessary, because the vector of gradients is flat: the memory can be bound in the shape before the Reshape.


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
        maker = source.producer()
        if maker is not None and maker.graph is graph and fixed(dims(source)):
            outputs[i], output.name, source.name = source, None, name
            returned.add(source)
            dropped.append(node)
    graph.outputs.clear()  # replace all outputs at once, because searching for each of them is slow
    graph.outputs.extend(outputs)
    graph.remove(dropped, safe=True)


def in_written_shapes(session: InferenceSession, gradients: Mapping[str, Array]) -> dict[str, Array]:
    """Return views of the ``gradients`` in the shapes of the session's outputs, if all sizes of a shape are known."""
    shapes = {value.name: value.shape for value in session.get_outputs()}
    found = {}
    for name, array in gradients.items():
        shape, view = shapes[name], array
        if shape != [*array.shape] and fixed(shape):
            view = array.part(0, shape) if isinstance(array, DeviceArray) else array.reshape(shape)
        found[name] = view
    return found


# Normalized weights: the weights of the rows divided by their sum, as a matrix that repeats them for each class.
#
# onnxruntime takes twice as long to multiply a few columns by a broadcast column. So the host writes a matrix when the
# weights change, which is rare. The graph reads this matrix, and sums the loss over classes and rows at once.


WEIGHT_MATRIX = "onnxtrain/weight_matrix"

WEIGHT_MATRIX_CLASSES = 64
"""Largest number of classes for which the weights are repeated: in longer rows, broadcasting costs less."""


def read_weight_matrix(graph: ir.Graph) -> int:
    """Rewire ``graph`` to read a matrix where it multiplies by the column of weights; return its columns, 0 for none.

    The loss ``sum_i s_i sum_j m_ij``, or its negative, becomes ``sum_ij s_ij m_ij``.
    """
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

    # Find the sum over the rows of loss times weight; the loss of a row is the sum of a row of a matrix.
    total = next(value for value in graph.outputs if value.name == LOSS).producer()
    weighted = None if total is None or not is_sum(total, []) else _maker(total, "Mul")
    rows = None if weighted is None else next((v for v in weighted.inputs if v is not column), None)
    if total is not None and weighted is not None and rows is not None and column in weighted.inputs:
        made = rows.producer()
        negated = made is not None and kind(made) == "Neg"
        inner = _maker(made, "ReduceSum") if made is not None and negated else made
        if inner is not None and is_sum(inner, [1]) and dims(inner.inputs[0]) == dims(matrix):
            op = GraphBuilder(graph, dtype=matrix.dtype or ir.DataType.FLOAT, prefix="onnxtrain/repeated")
            product = op.Mul(matrix, inner.inputs[0])
            loss = op.ReduceSum(product, keepdims=False)
            replace_in_order(op, total, [product, loss, op.Neg(loss)] if negated else [product, loss])
            remove_unread(graph, [node for node in dict.fromkeys((inner, made, weighted)) if node is not None])
    if not column.uses():
        graph.inputs.remove(column)
    return classes


def _multiplied_columns(node: ir.Node) -> int:
    """Return the columns of a matrix that a node multiplies by one column; 0 for other nodes and many columns."""
    if kind(node) != "Mul":
        return 0
    sizes = dims(node.outputs[0])
    shapes = sorted(str(dims(value)) for value in node.inputs)
    if not fixed(sizes) or len(sizes) != 2 or not 1 < sizes[1] <= WEIGHT_MATRIX_CLASSES:
        return 0
    return sizes[1] if shapes == sorted(map(str, ([sizes[0], 1], sizes))) else 0


def _maker(node: ir.Node, operator: str) -> ir.Node | None:
    """Return the node that computes the first input of ``node`` if it is of this type."""
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


# Weights at the labels: the log loss in two nodes instead of five.
#
# With one-hot labels y and normalized weights s of the rows, a graph computes the loss -sum s y log p and its gradient
# s (p - y). Let d = -s y. A row of this matrix has one number that is not zero. The host copies it from a small table,
# faster than the graph looks up the label. Then the loss is sum d log p, and its gradient s p + d.


WEIGHTS_AT_LABELS = "onnxtrain/weights_at_labels"


def read_weights_at_labels(graph: ir.Graph) -> bool:
    """Rewire ``graph``, which reads the matrix of weights, to read d instead of labels; return True if it could."""
    inputs = {value.name: value for value in graph.inputs}
    weights, target = inputs.get(WEIGHT_MATRIX), inputs.get(TARGET)
    labels = None if target is None else next(iter(_sole_readers(target, "Gather")), None)
    if weights is None or target is None or labels is None:
        return False

    # Require that the labels index the table of one-hot rows.
    source = operand(labels, 0)
    table = None if source is None else constant(source)
    if table is None or table.ndim != 2 or not np.array_equal(table, one_hot_table(table.shape[1]), equal_nan=True):
        return False
    if operand(labels, 1) is not target or attribute(labels, "axis", 0) != 0:
        return False

    # Only two nodes may read the one-hot rows: the loss -sum s (y log p), and the gradient s (p - y).
    one_hot = labels.outputs[0]
    readers = {kind(node): node for node in one_hot.consumers()}
    if readers.keys() != {"Mul", "Sub"} or len(one_hot.uses()) != 2:
        return False
    by_label, excess = readers["Mul"], readers["Sub"]
    sums = _sole_readers(by_label.outputs[0], "Mul", "ReduceSum", "Neg")
    gradient = _sole_readers(excess.outputs[0], "Mul")
    if not (sums and gradient and weights in sums[0].inputs and weights in gradient[0].inputs):
        return False
    if not is_sum(sums[1], []) or sums[2].outputs[0].name != LOSS or excess.inputs[1] is not one_hot:
        return False

    op = GraphBuilder(graph, dtype=weights.dtype or ir.DataType.FLOAT, prefix="onnxtrain/labeled")
    at_labels = ir.val(WEIGHTS_AT_LABELS, weights.dtype, weights.shape)
    graph.inputs.append(at_labels)
    by_class = op.Mul(at_labels, by_label.inputs[by_label.inputs[0] is one_hot])
    replace_in_order(op, sums[-1], [by_class, op.ReduceSum(by_class, keepdims=False)])
    weighted = op.Mul(excess.inputs[0], weights)
    replace_in_order(op, gradient[0], [weighted, op.Add(weighted, at_labels)])
    remove_unread(graph, [labels, by_label, *sums[:-1], excess])
    graph.inputs.remove(target)
    return True


def _sole_readers(value: ir.Value, *operators: str) -> list[ir.Node]:
    """Return the chain of nodes of these types downstream of ``value``; [] unless each is its input's only reader."""
    found: list[ir.Node] = []
    for operator in operators:
        nodes = [use.node for use in value.uses()]
        if len(nodes) != 1 or value.is_graph_output() or kind(nodes[0]) != operator:
            return []
        found.append(nodes[0])
        value = found[-1].outputs[0]
    return found


# The host's part of these two rewrites: it computes the weights that the graph reads.


KEPT_WEIGHTS = 2
"""Number of cached results: two alternate without ``sample_weight``, for a full minibatch and the padded last one."""


class NormalizedWeights:
    """The weights of the rows of a minibatch divided by their sum, recomputed only if the weights have changed.

    Attributes
    ----------
    column, matrix : ndarray
        The normalized weights as a column, and a matrix that repeats this column for each class.
    equal : float or None
        The normalized weight if it is the same in all rows; else None.
    of_ones : bool
        Whether all weights were one before normalization.
    """

    def __init__(self, weights: np.ndarray, columns: int = 0) -> None:
        self._weights, self._known = weights, b""
        self._kept: dict[bytes, tuple[np.ndarray, float | None, bool]] = {}
        self.column = np.zeros((len(weights), 1), weights.dtype)
        self.matrix = np.zeros((len(weights), columns), weights.dtype)
        self.equal: float | None = None
        self.of_ones = False

    def update(self) -> None:
        """Normalize the weights if they have changed."""
        content = self._weights.tobytes()
        if content == self._known:
            return
        if content in self._kept:
            self.column[...], self.equal, self.of_ones = self._kept[content]
        else:
            np.divide(self._weights[:, None], max(self._weights.sum(), LEAST_TOTAL), self.column)
            are_equal = content == content[: self._weights.itemsize] * len(self._weights)
            self.equal = float(self.column[0, 0]) if are_equal else None
            self.of_ones = are_equal and bool(self._weights[0] == 1)
            if len(self._kept) < KEPT_WEIGHTS:
                self._kept[content] = self.column.copy(), self.equal, self.of_ones
        self.matrix[...], self._known = self.column, content


class WeightsAtLabels:
    """A matrix with the negative normalized weight of each row at its label, and zeros elsewhere.

    A row whose label is no class is NaN.

    Parameters
    ----------
    labels : ndarray of int of shape (n_rows,)
        The labels in the buffers, read at each update.
    weights : NormalizedWeights
        The caller updates them first.
    """

    def __init__(self, labels: np.ndarray, weights: NormalizedWeights) -> None:
        self._labels, self._weights = labels, weights
        self.matrix = np.zeros_like(weights.matrix)
        self._rows = one_hot_table(self.matrix.shape[1]).astype(self.matrix.dtype)
        self._scale, self._table = 1.0, -self._rows

    def update(self) -> None:
        """Compute the matrix for the labels in the buffers."""
        equal = self._weights.equal
        scale = 1.0 if equal is None else equal
        if scale != self._scale:
            self._scale, self._table = scale, self._rows * -scale
        # "wrap" counts negative labels from the end, like Gather, and does not buffer the result.
        self._table.take(self._labels, 0, self.matrix, "wrap")
        if equal is None:
            np.multiply(self.matrix, self._weights.matrix, self.matrix)


# Gathering of the minibatch inside the graph, from data that are in the memory of the device.


DATA, ROW_NUMBERS = "onnxtrain/data/", "onnxtrain/rows"


def gather_rows(graph: ir.Graph, names: Sequence[str], batch_size: int) -> None:
    """Gather the minibatch inside ``graph``: each of these inputs becomes a Gather of rows from all data."""
    op = GraphBuilder(graph, prefix="onnxtrain/gather")
    rows = ir.val(ROW_NUMBERS, ir.DataType.INT64, (batch_size,))
    graph.inputs.append(rows)
    for value in [v for v in graph.inputs if v.name in names]:
        shape = ["n_samples", *list(value.shape or ())[1:]]
        data = ir.Value(name=f"{DATA}{value.name}", type=value.type, shape=ir.Shape(shape))
        replace_input(graph, value, data, copy_type(op.Gather(data, rows, axis=0), value))
    graph.sort()

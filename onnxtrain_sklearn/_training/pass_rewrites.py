"""Rewrite a gradient graph: faster products, order and shapes of the gradients, gathering on a device.

The gradients of weights are products with a transposed left operand. onnxruntime transposes it a few rows at a time,
and once more for each block of columns of the right operand. If there are few columns, it takes less time to transpose
them and the result; if there are many, to transpose the left operand once. onnxruntime's fusions would undo a Transpose
before or behind a Gemm, and one of a matrix before a MatMul.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir

from .._ir.edits import replace_input, replace_node
from .._ir.queries import attribute, dims, fixed, kind, operand
from .._ort.binding import Array, DeviceArray
from .._ort.sessions import InferenceSession
from ..graph import GraphBuilder, copy_type

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

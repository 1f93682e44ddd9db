"""Simplifies the gradient graph: removes redundant Expand and Reshape nodes, multiplications by one, and unused nodes.

Only nodes of the gradient are simplified; the user's graph is unchanged.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from ..._graph.edits import bypass, remove_unread
from ..._graph.queries import Dims, constant, dims, fixed

BROADCASTING = frozenset("Add And Div Equal Greater Less Mul Or Pow Sub Sum Where".split())


def tidy(graph: ir.Graph, own: Collection[ir.Node], trained: Collection[ir.Value]) -> None:
    """Simplify the nodes ``own`` of ``graph``, in place; shapes must be inferred before.

    The numbers in ``trained`` change from step to step, so a factor that begins as one stays.
    """
    for node in own:
        if node.op_type in BROADCASTING and not node.domain:
            for i, x in enumerate(node.inputs):
                if x is not None and _needless(node, i, x):
                    node.replace_input_with(i, x.producer().inputs[0])  # type: ignore[union-attr]
        if node.op_type == "Mul":
            _drop_one(node, trained)
        if node.op_type == "Reshape":
            _skip_reshape(node)
    remove_unread(graph, [node for node in own if node.graph is graph])


def _needless(node: ir.Node, index: int, x: ir.Value) -> bool:
    """Whether ``x`` is an Expand whose operand ``node`` would broadcast to the same result.

    A Sum broadcasts one operand at most: of three, onnxruntime's kernel for CUDA adds two that are broadcast along
    different axes wrongly.
    """
    producer, whole = x.producer(), dims(node.outputs[0])
    if producer is None or producer.op_type != "Expand" or not fixed(whole):
        return False
    shapes = [dims(producer.inputs[0] if i == index else v) for i, v in enumerate(node.inputs)]
    if node.op_type == "Sum" and any(shape != whole for i, shape in enumerate(shapes) if i != index):
        return False
    return _broadcast_shape(shapes) == whole


def _broadcast_shape(shapes: list[Dims | None]) -> Dims | None:
    known = [shape for shape in shapes if shape is not None and fixed(shape)]
    if len(known) < len(shapes):
        return None
    return list(np.broadcast_shapes(*[tuple(int(str(d)) for d in shape) for shape in known]))


def _drop_one(node: ir.Node, trained: Collection[ir.Value]) -> None:
    """Replace a product with the constant 1 by the other factor."""
    for one, other in (node.inputs, node.inputs[::-1]):
        array = None if one is None or one in trained else constant(one)
        product = node.outputs[0]
        if array is not None and array.size == 1 and array.item() == 1 and other is not None:
            same = dims(other) == dims(product) and fixed(dims(other)) and other.dtype is product.dtype
            if same and not product.is_graph_output():
                bypass(node, other)
                return


def _skip_reshape(node: ir.Node) -> None:
    """Let a Reshape read what a Reshape before it reads; onnxruntime 1.21 does not load some such pairs."""
    x, shape = node.inputs[0], None if node.inputs[1] is None else constant(node.inputs[1])
    producer = None if x is None else x.producer()
    copies_sizes = shape is None or not shape.all()
    if producer is not None and (producer.domain, producer.op_type) == ("", "Reshape") and not copies_sizes:
        node.replace_input_with(0, producer.inputs[0])

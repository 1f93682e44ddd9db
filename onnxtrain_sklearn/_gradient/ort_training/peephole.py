"""Peephole optimizations: faster nodes in place of those that onnxruntime-training's builder emits, equal in value.

:data:`FORMS` maps an operator to a function that emits the faster nodes, or returns None where there is no gain. Times
are for layers [64,128,10] at batch size 200 on one thread, onnxruntime 1.19.2.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from ..._graph.builder import GraphBuilder
from ..._graph.edits import replace_node
from ..._graph.queries import attribute, constant, dims, kind, operand
from ..._graph.shapes import infer_shapes

Form = Callable[[GraphBuilder, ir.Node], "ir.Value | None"]


def _relu_gradient(op: GraphBuilder, node: ir.Node) -> ir.Value | None:
    """ReluGrad branches on every element (104 µs); a mask does not (24 µs). At 0 the gradient is 0 in both."""
    cotangent, x = node.inputs
    assert cotangent is not None
    assert x is not None
    dtype = x.dtype or cotangent.dtype or op.dtype
    return op.Mul(cotangent, op.Cast(op.Greater(x, np.zeros((), dtype.numpy())), to=dtype))


def _column_sums(op: GraphBuilder, node: ir.Node) -> ir.Value | None:
    """Sum over the rows of a matrix, as for a bias, by a product with ones (6 µs; ReduceSum 34 µs)."""
    matrix, axes = node.inputs[0], operand(node, 1)
    shape = dims(matrix)
    if matrix is None or matrix.dtype is None or axes is None or shape is None or len(shape) != 2:
        return None
    reduced = constant(axes)
    if reduced is None or reduced.tolist() != [0] or not isinstance(shape[0], int):
        return None
    total = op.MatMul(np.ones((1, shape[0]), matrix.dtype.numpy()), matrix)
    return total if attribute(node, "keepdims", 1) else op.Squeeze(total, axes=[0])


FASTER_FORMS: dict[str, Form] = {"com.microsoft.ReluGrad": _relu_gradient, "ReduceSum": _column_sums}


def use_faster_forms(model: ir.Model) -> ir.Model:
    """Replace nodes of ``model`` by their faster forms, in place."""
    op = GraphBuilder(model.graph, prefix="fast")
    for operator, form in FASTER_FORMS.items():
        nodes = [n for n in model.graph if kind(n) == operator]
        for node in nodes:
            faster = form(op, node)
            if faster is not None:
                replace_node(op, node, [faster])
        if nodes and "." in operator:  # nodes of other domains blocked shape inference; they are gone now
            infer_shapes(model)
    model.graph.sort()
    return model

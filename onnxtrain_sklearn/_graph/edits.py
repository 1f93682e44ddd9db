"""Edits of graphs, in place."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from .builder import GraphBuilder
from .shapes import infer_shapes


def multiply_by_columns(model: ir.Model) -> ir.Model:
    """Multiply by a column where a product is with a vector, in place; ranks must have been inferred.

    onnxruntime fuses a transposition with the product behind it, and what it then computes for a vector is wrong.
    """
    graph = model.graph
    op = GraphBuilder(graph, prefix="by_column", constant_nodes=True)
    found = [node for node in graph if node.op_type == "MatMul" and not node.domain and _is_by_vector(node)]
    for node in found:
        first, second = node.inputs
        assert second is not None
        result = op.Squeeze(op.MatMul(first, op.Unsqueeze(second, axes=[1])), axes=[-1])
        old = node.outputs[0]
        result.type, result.shape = old.type, old.shape
        ir.convenience.replace_all_uses_with(old, result, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        result.name, old.name = old.name, None
    if found:
        graph.sort()
        infer_shapes(model)
    return model


def _is_by_vector(node: ir.Node) -> bool:
    first, second = (None if value is None or value.shape is None else len(value.shape) for value in node.inputs)
    return second == 1 and first != 1


def swap_initializers(graph: ir.Graph, weights: Mapping[str, np.ndarray]) -> None:
    """Replace the values of initializers by name, in place."""
    for name, array in weights.items():
        graph.initializers[name].const_value = ir.tensor(np.asarray(array, order="C"), name=name)


def initializers_to_inputs(graph: ir.Graph, names: list[str]) -> None:
    """Turn initializers into graph inputs, in place, so that a session reads them from memory that we own."""
    for name in names:
        value = graph.initializers.pop(name)
        value.const_value = None
        graph.inputs.append(value)

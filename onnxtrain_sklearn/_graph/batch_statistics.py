"""BatchNormalization nodes in training mode: their batch statistics and running statistics."""

from __future__ import annotations

import onnx_ir as ir

from ..exceptions import UnsupportedOperatorError
from .edits import copy_initializer
from .queries import int_attribute


def normalizes_by_batch(node: ir.Node) -> bool:
    """Whether a BatchNormalization is in training mode; before opset 14 it then has further outputs."""
    is_batch_norm = node.op_type == "BatchNormalization" and not node.domain
    return is_batch_norm and bool(int_attribute(node, "training_mode", 0) or len(node.outputs) > 1)


def use_running_statistics(node: ir.Node) -> None:
    """Switch a BatchNormalization to inference mode."""
    node.attributes.pop("training_mode", None)
    node.resize_outputs(1)


def separate_running_statistics(graph: ir.Graph) -> None:
    """Separate the running statistics of BatchNormalizations in training mode: exporters merge equal ones."""
    seen: set[ir.Value] = set()
    for node in [n for n in graph.all_nodes() if normalizes_by_batch(n)]:
        _require_running_statistics(graph, node)
        for i in (3, 4):
            x = node.inputs[i]
            if x in seen:
                assert x is not None
                node.replace_input_with(i, copy_initializer(graph, x, f"{x.name}/{node.name}"))
            elif x is not None:
                seen.add(x)


def _require_running_statistics(graph: ir.Graph, node: ir.Node) -> None:
    statistics, updated = node.inputs[3:5], node.outputs[1:]
    reason = ""
    if node.graph is not graph:
        reason = "it is in a subgraph"
    elif graph.opset_imports[""] < 14:
        reason = "before opset 14 its training mode is not supported"
    elif any(x is None or x.name not in graph.initializers for x in statistics):
        reason = "its running statistics are not initializers"
    elif len(updated) != 2 or any(not v.name or v.uses() or v.is_graph_output() for v in updated):
        reason = "it must have three outputs, of which nothing reads the last two"
    if reason:
        raise UnsupportedOperatorError(
            f"Node {node.name!r} (BatchNormalization) is in training mode and cannot be trained: {reason}. Export the "
            f"model in evaluation mode (in PyTorch: model.eval())."
        )

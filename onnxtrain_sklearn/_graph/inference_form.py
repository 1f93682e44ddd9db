"""The inference form of a graph: Dropout and BatchNormalization in inference mode, no random numbers."""

from __future__ import annotations

import onnx_ir as ir

from ..exceptions import ModelError
from .batch_axis import free_batch_axis
from .batch_statistics import normalizes_by_batch, use_running_statistics
from .edits import bypass, copy_type, keep_outputs
from .random_nodes import replace_random


def alone(source: ir.Model, output: str) -> ir.Model:
    """Return the inference form of ``source`` with one output."""
    model = inference_form(source)
    free_batch_axis(model)
    keep_outputs(model, [v for v in model.graph.outputs if v.name == output], inputs=True)
    return model


def inference_form(model: ir.Model) -> ir.Model:
    """Return a clone for inference: no Dropout, running statistics in BatchNormalization, means for random numbers."""
    clone = model.clone()
    for node in list(clone.graph.all_nodes()):
        if node.op_type == "Dropout" and not node.domain:
            _bypass(node)
        elif normalizes_by_batch(node):
            use_running_statistics(node)
    replace_random(clone.graph)
    return clone


def _bypass(node: ir.Node) -> None:
    source, dropped, graph = node.inputs[0], node.outputs[0], node.graph
    assert source is not None
    assert graph is not None
    if len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1] in graph.outputs):
        raise ModelError(f"The mask of Dropout node {node.name!r} is used: the graph has no inference form.")
    if dropped in graph.outputs:
        identity = ir.node("Identity", [source], name=f"{node.name}/identity")
        graph.insert_before(node, identity)
        identity.outputs[0].name, source = dropped.name, identity.outputs[0]
        graph.outputs[graph.outputs.index(dropped)] = source
        copy_type(source, dropped)
        dropped.name = None
    bypass(node, source)

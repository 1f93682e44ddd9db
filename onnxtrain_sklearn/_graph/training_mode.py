"""Graphs exported in evaluation mode, switched over to training: BatchNormalization and Dropout.

What the exporter folded into other nodes or left out is not in the graph any more; it is reported, not guessed.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..exceptions import ModelError, warn
from .batch_statistics import normalizes_by_batch
from .builder import GraphBuilder
from .constants import tensor_of
from .edits import replace_by_initializer
from .names import names_of
from .queries import constant, describe, every_node, operand
from .tensorflow_operators import TF2ONNX
from .torch_program import PRODUCER, call_of, scope_of
from .versions import RENEWED_OPSET, in_opset

_FIRST_OPSETS = {"BatchNormalization": 14, "Dropout": 12}
"""The first opsets in which these operators have a training mode of their own."""

_FOLDING = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


def in_training_mode(model: ir.Model) -> ir.Model:
    """Return a model whose BatchNormalization and Dropout nodes are in training mode.

    Raises ModelError if there is none, and warns if a part of them was folded into other nodes.
    """
    folded = folded_normalizations(model)
    result = _in_opset_of_training(model)
    nodes = [node for node in every_node(result.graph) if _evaluates(node)]
    if not nodes and not any(_trains(node) for node in every_node(result.graph)):
        raise ModelError(
            f"training_mode=True: the graph has no BatchNormalization and no Dropout to switch over."
            f"{_told(folded)} {_OF_KERAS if model.producer_name == TF2ONNX else _ADVICE}, or leave "
            f"training_mode=False: the graph is then trained as it is."
        )
    names = names_of(result.graph)
    for node in nodes:
        if node.graph is not result.graph:
            raise ModelError(f"{describe(node)} cannot be switched to training mode: it is in a subgraph.")
        if node.op_type == "Dropout":
            _drop(result.graph, node)
        else:
            _normalize_by_batch(result.graph, node)
            for value, kind in zip(node.outputs[1:], ("mean", "variance"), strict=True):
                value.name = names.free(f"{node.name}/{kind}")
    if folded:
        warn(f"training_mode=True switches over {len(nodes)} node(s).{_told(folded)} {_ADVICE} to train it too.")
    return result


_ADVICE = (
    "Export the model without folding (in PyTorch: torch.onnx.export(..., dynamo=True, optimize=False), or "
    "dynamo=False with training=TrainingMode.TRAINING and do_constant_folding=False, which keeps Dropout too)"
)


_OF_KERAS = (
    "tf2onnx makes a factor and a summand of the four arrays of a BatchNormalization, which cannot be told apart "
    "again. Export from Keras on PyTorch (torch.onnx.export(model, (example,), path, dynamo=False, "
    "training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False))"
)


def _told(folded: list[str]) -> str:
    if not folded:
        return ""
    more = f" and {len(folded) - 3} more" if len(folded) > 3 else ""
    return (
        f" The exporter folded the BatchNormalization of {', '.join(map(repr, folded[:3]))}{more} into the products "
        f"before it: it is gone."
    )


def folded_normalizations(model: ir.Model) -> list[str]:
    """Return the names of the nodes, or of PyTorch's modules, whose BatchNormalization became a part of a product."""
    found = []
    for node in (n for n in every_node(model.graph) if n.op_type in _FOLDING and not n.domain):
        call = call_of(node)
        if call is not None and "batch_norm" in call.function:
            found.append(scope_of(node) or node.name or "")
        elif call is None and _has_made_up_weights(model, node):
            found.append(node.name or "")
    return found


def _has_made_up_weights(model: ir.Model, node: ir.Node) -> bool:
    """Whether the older exporter of PyTorch names the weight and the bias of a convolution after the operator.

    It does so where it computed both: from a convolution and the BatchNormalization behind it.
    """
    operands = [value.name or "" for value in node.inputs[1:3] if value is not None]
    return model.producer_name == PRODUCER and len(operands) == 2 and all(n.startswith("onnx::Conv") for n in operands)


def _in_opset_of_training(model: ir.Model) -> ir.Model:
    """Return a clone, in a newer opset where the operators have no training mode yet."""
    opset = model.graph.opset_imports[""]
    kinds = {node.op_type for node in every_node(model.graph) if not node.domain}
    if all(opset >= first for kind, first in _FIRST_OPSETS.items() if kind in kinds):
        result = model.clone()
    else:
        result = in_opset(model, RENEWED_OPSET)
        result.producer_name = model.producer_name
    result.meta.update(model.meta)
    return result


def _evaluates(node: ir.Node) -> bool:
    """Whether a node is a BatchNormalization or a Dropout that can be switched over."""
    if node.domain or node.op_type not in _FIRST_OPSETS or _trains(node):
        return False
    mode = operand(node, 2)
    return node.op_type == "BatchNormalization" or mode is None or constant(mode) is not None


def _trains(node: ir.Node) -> bool:
    """Whether a node is in training mode."""
    if node.op_type != "Dropout" or node.domain:
        return normalizes_by_batch(node)
    mode = operand(node, 2)
    known = None if mode is None else constant(mode)
    return known is not None and bool(known)


def _drop(graph: ir.Graph, node: ir.Node) -> None:
    ratio = operand(node, 1)
    if ratio is not None and constant(ratio) is None:
        raise ModelError(f"{describe(node)} cannot be switched to training mode: its ratio is not a constant.")
    on = GraphBuilder(graph, prefix="training_mode", constant_nodes=True).constant(np.array(True))
    node.resize_inputs(3)
    node.replace_input_with(2, on)
    graph.sort()


def _normalize_by_batch(graph: ir.Graph, node: ir.Node) -> None:
    """Switch a BatchNormalization over, with statistics that are initializers."""
    for value in node.inputs[3:5]:
        tensor = None if value is None or value.name in graph.initializers else tensor_of(value)
        if value is not None and tensor is not None:
            replace_by_initializer(graph, value, tensor.numpy(), names_of(graph).free(f"{value.name}/statistic"))
    node.attributes["training_mode"] = ir.AttrInt64("training_mode", 1)
    node.resize_outputs(3)
    for value in node.outputs[1:]:
        value.type = node.outputs[0].type

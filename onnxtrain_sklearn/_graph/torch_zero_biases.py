"""Biases of convolutions that PyTorch's newer exporter computes as zeros, where the module has none.

With ``optimize=False`` it expands a zero to the shape of the bias. For ``Conv3d``, and for ``padding="same"``, that
shape has an axis too many, which current releases of onnxruntime refuse. A bias of zeros is removed.
"""

from __future__ import annotations

import onnx_ir as ir

from .constants import tensor_of
from .queries import every_node, operand


def drop_zero_biases(graph: ir.Graph) -> None:
    """Remove the computed zeros that convolutions add, in place; their nodes stay for the removal of unused ones."""
    for node in every_node(graph):
        bias = operand(node, 2) if node.op_type == "Conv" and not node.domain else None
        if bias is not None and _expands_zero(bias.producer()):
            node.resize_inputs(2)


def _expands_zero(node: ir.Node | None) -> bool:
    """Whether a node expands a constant zero, which only type conversions may stand before."""
    if node is None or node.op_type != "Expand":
        return False
    source = node.inputs[0]
    while source is not None and (cast := source.producer()) is not None and cast.op_type in ("Cast", "CastLike"):
        source = cast.inputs[0]
    return source is not None and _is_constant_zero(source)


def _is_constant_zero(value: ir.Value) -> bool:
    node = value.producer()
    tensor = tensor_of(value) if node is not None and node.op_type == "Constant" else None
    return tensor is not None and not tensor.numpy().any()

"""A graph in another floating-point type."""

from __future__ import annotations

import onnx_ir as ir

from .queries import all_values
from .weights import TRAINED_TYPES, array_of


def in_dtype(model: ir.Model, dtype: ir.DataType) -> ir.Model:
    """Return a clone in which every float32 and float64 tensor, input and type attribute is of type ``dtype``."""
    clone = model.clone()
    for value in all_values(clone):
        if value.dtype in TRAINED_TYPES and not _is_single(value.producer()):
            value.type = ir.TensorType(dtype)  # setting value.dtype would change the original, which shares the object
        if value.const_value is not None and value.const_value.dtype in TRAINED_TYPES:
            array = array_of(value).astype(TRAINED_TYPES[dtype])
            value.const_value = ir.tensor(array, name=value.name)
    for node in clone.graph.all_nodes():
        _attributes_in_dtype(node, dtype)
    return clone


def _is_single(node: ir.Node | None) -> bool:
    """Whether a node always returns float32, as the operators of ai.onnx.ml before version 5 do."""
    return node is not None and node.domain == "ai.onnx.ml" and node.op_type != "TreeEnsemble"


def _attributes_in_dtype(node: ir.Node, dtype: ir.DataType) -> None:
    for key in ("to", "dtype", "output_datatype"):
        if key in node.attributes and node.attributes[key].value in TRAINED_TYPES:
            node.attributes[key] = ir.AttrInt64(key, dtype.value)
    for attribute in list(node.attributes.values()):
        if attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype in TRAINED_TYPES:
            array = attribute.value.numpy().astype(TRAINED_TYPES[dtype])
            node.attributes[attribute.name] = ir.AttrTensor(attribute.name, ir.tensor(array))

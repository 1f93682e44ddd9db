"""Models whose tensors have names of their own.

``onnx_ir`` renames a tensor together with the value that holds it, and writes the name into the protobuf that the
tensor was read from. That one belongs to the user, and may be read again.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

from .queries import every_node


def from_proto(proto: onnx.ModelProto) -> ir.Model:
    """Return the model of ``proto``, which later changes of the model leave as it is; the numbers are not copied."""
    model = ir.from_proto(proto)
    for graph in model.graphs():
        for value in graph.initializers.values():
            value.const_value = None if value.const_value is None else _own(value.const_value)
    for nodes in (every_node(model.graph), *(function.all_nodes() for function in model.functions.values())):
        for node in nodes:
            _own_attributes(node)
    return model


def _own_attributes(node: ir.Node) -> None:
    for name, attribute in list(node.attributes.items()):
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.TENSOR:
            node.attributes[name] = ir.AttrTensor(name, _own(attribute.as_tensor()))
        elif attribute.type == ir.AttributeType.TENSORS:
            node.attributes[name] = ir.AttrTensors(name, [_own(tensor) for tensor in attribute.as_tensors()])


def _own(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return a tensor with a name of its own that reads its numbers from ``tensor``, if that is part of a protobuf."""
    if not isinstance(tensor, ir.TensorProtoTensor):
        return tensor
    notes, shape = dict(tensor.metadata_props), ir.Shape(tensor.shape)
    if tensor.dtype == ir.DataType.STRING:
        return ir.StringTensor(
            tensor.numpy(), shape=shape, name=tensor.name, doc_string=tensor.doc_string, metadata_props=notes
        )
    return ir.LazyTensor(
        lambda: tensor, tensor.dtype, shape, name=tensor.name, doc_string=tensor.doc_string, metadata_props=notes
    )

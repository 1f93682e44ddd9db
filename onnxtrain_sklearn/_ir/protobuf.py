"""Convert models between onnx-ir and protobuf.

:func:`from_proto` and :func:`from_bytes` read models that this package made or has validated; ``_importers/load`` reads
the models of users. :func:`to_proto` writes one, and :func:`fill_initializers` and
:func:`erase_initializers` change the weights of a written one, so that fits of one structure share all the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx
import onnx.helper
import onnx_ir as ir

from .._ort.wrong_kernels import make_exact
from .queries import every_node


def from_bytes(content: bytes) -> ir.Model:
    """Return the model that :func:`to_proto` wrote."""
    return from_proto(onnx.load_model_from_string(content))


def from_proto(proto: onnx.ModelProto) -> ir.Model:
    """Return the model of ``proto`` without copying the numbers; later changes of the model do not change ``proto``."""
    model = ir.from_proto(proto)
    for graph in model.graphs():
        for value in graph.initializers.values():
            value.const_value = None if value.const_value is None else _detached(value.const_value)
    for nodes in (every_node(model.graph), *(function.all_nodes() for function in model.functions.values())):
        for node in nodes:
            for name, attribute in list(node.attributes.items()):
                if attribute.is_ref():
                    continue
                if attribute.type == ir.AttributeType.TENSOR:
                    node.attributes[name] = ir.AttrTensor(name, _detached(attribute.as_tensor()))
                elif attribute.type == ir.AttributeType.TENSORS:
                    node.attributes[name] = ir.AttrTensors(name, [_detached(t) for t in attribute.as_tensors()])
    return model


def _detached(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return a tensor with a name of its own that reads its numbers from ``tensor``, if that is part of a protobuf.

    onnx-ir renames a tensor together with its value, and writes the name into the protobuf that the tensor came from.
    That protobuf belongs to the user, who may read it again.
    """
    if not isinstance(tensor, ir.TensorProtoTensor):
        return tensor
    notes = dict(tensor.metadata_props)
    shape = ir.Shape(tensor.shape)
    if tensor.dtype == ir.DataType.STRING:
        return ir.StringTensor(
            tensor.numpy(), shape=shape, name=tensor.name, doc_string=tensor.doc_string, metadata_props=notes
        )
    return ir.LazyTensor(
        lambda: tensor, tensor.dtype, shape, name=tensor.name, doc_string=tensor.doc_string, metadata_props=notes
    )


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """Return ``model`` as protobuf, with only the opset domains that its nodes use.

    Signed integer weights become unsigned if products of signed integers saturate on this processor.
    """
    used = {node.domain for node in every_node(model.graph)} | {""}
    for domain in set(model.opset_imports) - used:
        del model.opset_imports[domain]
    proto = ir.to_proto(model)
    zipped = {node.output[0]: node for node in proto.graph.node if node.op_type == "ZipMap"}
    for output in (value for value in proto.graph.output if value.name in zipped):  # onnx-ir has no type for dicts
        keys = {attribute.name for attribute in zipped[output.name].attribute}
        key = onnx.TensorProto.STRING if "classlabels_strings" in keys else onnx.TensorProto.INT64
        number = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
        row = onnx.helper.make_map_type_proto(key, number)
        output.type.CopyFrom(onnx.helper.make_sequence_type_proto(row))
    make_exact(proto)
    return proto


def fill_initializers(proto: onnx.ModelProto, arrays: Mapping[str, np.ndarray]) -> None:
    """Overwrite initializers by name with arrays of their types, in place."""
    for tensor in proto.graph.initializer:
        if tensor.name in arrays:
            tensor.raw_data = np.ascontiguousarray(arrays[tensor.name]).tobytes()


def erase_initializers(proto: onnx.ModelProto, names: Collection[str]) -> None:
    """Overwrite initializers by name with zeros, in place."""
    for tensor in proto.graph.initializer:
        if tensor.name in names:
            tensor.raw_data = bytes(len(tensor.raw_data))

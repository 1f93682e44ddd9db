"""ONNX's shape inference over the part of a model whose types or shapes are not known in full.

The pass of ``onnx_ir`` writes and reads the whole model, which takes most of its time. Here the nodes whose outputs
are known in full are left out, but for constants and integers that others read: sizes are computed from them. Of the
result only the types and shapes are read.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.shape_inference
import onnx_ir as ir
import onnx_ir.serde as serde

from .._support.printable import printable
from .queries import graphs_in, reads

_LARGE = 1000
"""Bytes from which inference gets the type of an initializer and not its numbers."""

_MANY = 2**17
"""Known integers in one value above which inference does without them."""

_log = logging.getLogger(__name__)


def infer_types(model: ir.Model) -> None:
    """Fill in what ONNX infers with its known integers, in place; what fails as a whole leaves the model as it is."""
    _order_initializers(model.graph)
    nodes = _unknown_part(model.graph)
    if not nodes:
        return
    proto = _proto_of(model, nodes)
    try:
        inferred = onnx.shape_inference.infer_shapes(
            proto, check_type=True, strict_mode=False, data_prop=knows_few_integers(proto)
        )
    except Exception as error:
        _log.warning("Shape inference failed: %s", printable(str(error)))
        return
    _declare_values(nodes, inferred.graph)


def knows_few_integers(proto: onnx.ModelProto) -> bool:
    """Whether inference with known integers stays small: it holds each in 200 bytes, however they are computed.

    A Range of two numbers, or a chain of Concat that repeat their input, takes all memory from a few bytes.
    """
    counts = {t.name: t.dims[0] if t.dims else 1 for t in proto.graph.initializer if len(t.dims) < 2}
    single = {t.name: _number(t) for t in proto.graph.initializer if math.prod(t.dims) == 1}
    for node in proto.graph.node:
        count = sum(counts.get(name, 0) for name in node.input)
        held = node.attribute[0] if node.op_type == "Constant" and node.attribute else None
        if held is not None:
            count = math.prod(held.t.dims) if held.HasField("t") else max(1, len(held.ints))
            if count == 1 and node.output:
                single[node.output[0]] = _number(held.t) if held.HasField("t") else float(held.i or held.f)
        elif node.op_type == "Range" and len(node.input) == 3 and all(name in single for name in node.input):
            start, limit, delta = (single[name] for name in node.input)
            count = math.ceil((limit - start) / delta) if delta else 0
        elif node.op_type != "Concat":
            count = max((counts.get(name, 0) for name in node.input), default=0)
        if count > _MANY:
            return False
        counts |= dict.fromkeys(node.output, count)
    return True


def _number(tensor: Any) -> float:
    """Return the one number of a tensor; 0 for what is no number."""
    array = ir.from_proto(tensor).numpy().ravel()
    return float(array[0]) if array.size == 1 and array.dtype.kind in "iuf" and np.isfinite(array[0]) else 0.0


def _order_initializers(graph: ir.Graph) -> None:
    """Give initializers the types of their tensors, and move the large ones to the end, in place.

    Parameters have the order of the initializers, and sums over all of them are to stay the same to the last bit.
    """
    values = list(graph.initializers.values())
    for value in values:
        tensor = value.const_value
        if tensor is not None and (value.shape is None or value.type is None):
            value.shape = ir.Shape(tensor.shape.numpy()) if value.shape is None else value.shape
            value.dtype = tensor.dtype if value.dtype is None else value.dtype
    ordered = sorted(values, key=_is_large_initializer)
    if ordered != values:
        graph.initializers.clear()
        graph.initializers.update((value.name or "", value) for value in ordered)


def _is_large_initializer(value: ir.Value) -> bool:
    return value.const_value is None or value.const_value.nbytes > _LARGE


def _unknown_part(graph: ir.Graph) -> list[ir.Node]:
    """Return the nodes with outputs that are not known, and those that compute constants and integers for them."""
    part = {node for node in graph if not _is_inferred(node)}
    for node in reversed(graph) if part else ():
        if node in part:
            part.update(p for x in reads(node) if (p := x.producer()) is not None and _may_tell_sizes(p, x))
    return [node for node in graph if node in part] if part else []


def _is_inferred(node: ir.Node) -> bool:
    return not graphs_in(node) and all(not value.name or _is_static(value) for value in node.outputs)


def _is_static(value: ir.Value) -> bool:
    sizes = value.shape
    return isinstance(value.type, ir.TensorType) and sizes is not None and all(type(size) is int for size in sizes)


def _may_tell_sizes(producer: ir.Node, value: ir.Value) -> bool:
    return producer.op_type == "Constant" or (value.dtype is not None and value.dtype.is_integer())


def _proto_of(model: ir.Model, nodes: Sequence[ir.Node]) -> onnx.ModelProto:
    """Return a model of ``nodes`` of the graph alone; what they read of it are inputs, the small constants beside."""
    graph, proto = model.graph, onnx.ModelProto(ir_version=model.ir_version)
    for domain, version in {**model.opset_imports, **graph.opset_imports}.items():
        proto.opset_import.add(domain=domain, version=version)
    for value in _values_read(graph, nodes):
        _write_value(proto.graph.input.add(), value)
        if value.const_value is not None and not _is_large_initializer(value):
            serde.serialize_tensor_into(proto.graph.initializer.add(), value.const_value)
            proto.graph.initializer[-1].name = value.name or ""
    for node in nodes:
        serde.serialize_node_into(proto.graph.node.add(), node)
        for value in node.outputs:
            if value.name and value.type is not None:
                _write_value(proto.graph.value_info.add(), value)
    return proto


def _write_value(proto: Any, value: ir.Value) -> None:
    """Write name, type and shape into a ValueInfoProto, as onnx_ir does, which takes five times as long."""
    kind = value.type
    if not isinstance(kind, ir.TensorType):
        serde.serialize_value_into(proto, value)
        return
    proto.name = value.name
    tensor = proto.type.tensor_type
    tensor.elem_type = kind.dtype.value
    if value.shape is not None:
        tensor.shape.SetInParent()
        for size in value.shape:
            if isinstance(size, int):
                tensor.shape.dim.add(dim_value=size)
            elif size.value is None:  # an empty name would count as one
                tensor.shape.dim.add()
            else:
                tensor.shape.dim.add(dim_param=size.value)


def _values_read(graph: ir.Graph, nodes: Sequence[ir.Node]) -> Iterable[ir.Value]:
    """Return the inputs of the graph, and the values of it that ``nodes`` read and do not compute."""
    found, own = dict.fromkeys(graph.inputs), set(nodes)
    for value in (value for node in nodes for value in reads(node)):
        if value.graph is graph and value.producer() not in own:
            found[value] = None
    return found


def _declare_values(nodes: Iterable[ir.Node], inferred: Any, others: Iterable[ir.Value] = ()) -> None:
    """Give the outputs of ``nodes``, what their subgraphs hold, and ``others`` the types that a GraphProto declares."""
    types = {v.name: v.type for v in (*inferred.input, *inferred.value_info, *inferred.output)}
    values = list(others)
    for node, source in zip(nodes, inferred.node, strict=True):
        values.extend(node.outputs)
        if inner := graphs_in(node):
            protos = [graph for a in source.attribute for graph in ([a.g] if a.HasField("g") else a.graphs)]
            for graph, proto in zip(inner, protos, strict=True):
                _declare_values(graph, proto, [*graph.inputs, *graph.initializers.values()])
    for value in values:
        if value.name and value.name in types:
            _declare_value(value, _tensor_type(types[value.name]))


def _tensor_type(kind: Any) -> Any:
    """Return the type of the tensors in a TypeProto, also of those in sequences."""
    while kind.WhichOneof("value") in ("sequence_type", "optional_type"):
        kind = getattr(kind, kind.WhichOneof("value")).elem_type
    return kind.tensor_type


def _declare_value(value: ir.Value, kind: Any) -> None:
    if kind.HasField("shape"):
        sizes = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in kind.shape.dim]
        if value.shape is None or value.shape != sizes:
            value.shape = ir.Shape(sizes)
    if kind.elem_type and value.dtype != kind.elem_type:
        value.dtype = ir.DataType(kind.elem_type)

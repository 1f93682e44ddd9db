"""ONNX's shape inference over a whole model.

The pass of ``onnx_ir`` does the same and reads the whole result back as a model, which takes most of its time. Here
only the types and shapes in the result are read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import onnx.shape_inference
import onnx_ir as ir

_LARGE = 1000
"""Bytes from which inference gets the type of an initializer and not its numbers."""

_log = logging.getLogger(__name__)


def infer_types(model: ir.Model) -> None:
    """Fill in what ONNX infers with its known integers, in place; what fails as a whole leaves the model as it is."""
    with _initializers_as_inputs(model.graph):
        proto = ir.to_proto(model)
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=False, data_prop=True)
    except Exception as error:
        _log.warning("Shape inference failed: %s", error)
        return
    _declare_values(model.graph, inferred.graph)


@contextmanager
def _initializers_as_inputs(graph: ir.Graph) -> Iterator[None]:
    """Declare initializers as inputs temporarily, and leave out the numbers of the large ones."""
    inputs, initializers = list(graph.inputs), list(graph.initializers.values())
    held = {value: value.const_value for value in initializers}
    for value in initializers:
        _declare_initializer(graph, value)
    try:
        yield
    finally:
        for value in initializers:
            value.const_value = held[value]
            graph.initializers.add(value)
        graph.inputs.clear()
        graph.inputs.extend(inputs)


def _declare_initializer(graph: ir.Graph, value: ir.Value) -> None:
    tensor = value.const_value
    if tensor is not None:
        value.shape = ir.Shape(tensor.shape.numpy()) if value.shape is None else value.shape
        value.dtype = tensor.dtype if value.dtype is None else value.dtype
    if not value.is_graph_input():
        graph.inputs.append(value)
    if tensor is None or tensor.nbytes > _LARGE:
        value.const_value = None
        graph.initializers.pop(str(value.name))


def _declare_values(graph: ir.Graph, inferred: Any) -> None:
    """Give the values of a graph and its subgraphs the types that a GraphProto declares."""
    types = {v.name: v.type for v in (*inferred.input, *inferred.value_info, *inferred.output)}
    values = [*graph.inputs, *graph.initializers.values()]
    for node, source in zip(graph, inferred.node, strict=True):
        values.extend(node.outputs)
        for name, attribute in node.attributes.items():
            if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
                _declare_subgraphs(attribute, next(a for a in source.attribute if a.name == name))
    for value in values:
        if value.name and value.name in types:
            _declare_value(value, _tensor_type(types[value.name]))


def _declare_subgraphs(attribute: ir.Attr, source: Any) -> None:
    if attribute.type == ir.AttributeType.GRAPH:
        _declare_values(attribute.as_graph(), source.g)
        return
    for graph, inferred in zip(attribute.as_graphs(), source.graphs, strict=True):
        _declare_values(graph, inferred)


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

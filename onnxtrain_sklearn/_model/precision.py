"""Train graphs of float16 and bfloat16 in float32, and convert graphs between float32 and float64.

:func:`widen` makes the float32 graph that is trained, and records the narrow types of the file in the metadata of the
model; :func:`kept_types` collects them. :func:`narrowed` restores these types in the exported graph, which casts its
weights to float32 where they are read, so that it computes the same numbers as the estimator on every runtime.
:func:`in_dtype` converts a whole graph from float32 to float64, or back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from .._ir.edits import KEPT_TYPE, bypass, insert_after
from .._ir.limits import require_one_message
from .._ir.queries import all_values
from ..exceptions import ModelError
from ..graph import GraphBuilder, copy_type
from .weights import TRAINED_TYPES, array_of

NARROW_TYPES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
"""The types that are trained in float32."""


TYPES_OF_FILE = "onnxtrain_sklearn.types_of_file"
"""Key of the metadata of a widened model: the narrow types of its tensors in the file, by name."""


@dataclass(frozen=True)
class KeptTypes:
    """The float16 or bfloat16 types that the file has for weights and inputs, by name, and for the output."""

    weights: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    output: str | None = None

    def __bool__(self) -> bool:
        return bool(self.weights or self.inputs or self.output)

    def rounded(self, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return float32 weights rounded to the narrow types in which the file stores them."""
        result = dict(weights)
        for name in (name for name in weights if name in self.weights):
            array = weights[name]
            with np.errstate(over="ignore"):
                result[name] = array.astype(ir.DataType[self.weights[name]].numpy()).astype(array.dtype)
            if not np.isfinite(result[name][np.isfinite(array)]).all():
                raise ModelError(
                    f"The trained weight {name!r} holds {float(np.abs(array).max()):g}, which is beyond the range of "
                    f"{self.weights[name].lower()}, the type of the file. Train with a lower learning rate or a "
                    f"penalty, or convert the file to float32."
                )
        return result


NOTHING_KEPT = KeptTypes()


def widen(model: ir.Model) -> bool:
    """Replace float16 and bfloat16 by float32, in place; return True if the model has such values.

    The graph then rounds its inputs to their original types.
    """
    if not any(value.dtype in NARROW_TYPES for value in all_values(model)):
        return False
    held = [value.const_value for value in all_values(model) if value.const_value is not None]
    in_memory = sum(t.nbytes for t in held if t.dtype not in NARROW_TYPES and not isinstance(t, ir.ExternalTensor))
    require_one_message(in_memory + sum(2 * t.nbytes for t in held if t.dtype in NARROW_TYPES), " in float32")
    model.meta[TYPES_OF_FILE] = {v.name: v.dtype.name for v in all_values(model) if v.dtype in NARROW_TYPES}
    kept = [v for v in model.graph.inputs if v.dtype in NARROW_TYPES]
    for value in (*model.graph.outputs, *all_values(model)):
        # Constants, inputs and outputs get their types back on export. All other values are computed in float32.
        border = value.is_graph_input() or value.is_graph_output()
        constant_node = (node := value.producer()) is not None and node.op_type == "Constant" and not node.domain
        if value.dtype in NARROW_TYPES and (value.const_value is not None or constant_node or border):
            value.metadata_props[KEPT_TYPE] = value.dtype.name

    # Convert the tensors, the types of values and the attributes that hold a type or a tensor.
    for value in all_values(model):
        if value.const_value is not None and value.const_value.dtype in NARROW_TYPES:
            value.const_value = ir.tensor(value.const_value.numpy().astype(np.float32), name=value.name)
        if isinstance(value.type, ir.TensorType) and value.dtype in NARROW_TYPES:
            value.type = ir.TensorType(ir.DataType.FLOAT)  # a clone shares the type object
        elif isinstance(value.type, ir.SequenceType | ir.OptionalType) and value.dtype in NARROW_TYPES:
            value.type = type(value.type)(ir.TensorType(ir.DataType.FLOAT))
    for node in model.graph.all_nodes():
        for key in ("to", "dtype", "output_dtype", "stash_type"):
            if key in node.attributes and node.attributes[key].value in NARROW_TYPES:
                node.attributes[key] = ir.AttrInt64(key, ir.DataType.FLOAT.value)
        for attribute in list(node.attributes.values()):
            if attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype in NARROW_TYPES:
                array = attribute.value.numpy().astype(np.float32)
                node.attributes[attribute.name] = ir.AttrTensor(attribute.name, ir.tensor(array))

    # Rewire consumers of the inputs to their rounded numbers.
    for value in kept:
        op = GraphBuilder(model.graph, prefix="rounded", constant_nodes=True)
        users = list(value.uses())
        dtype = ir.DataType[value.metadata_props[KEPT_TYPE]]
        rounded = copy_type(op.Cast(op.Cast(value, to=dtype), to=ir.DataType.FLOAT), value)
        for node, index in users:
            node.replace_input_with(index, rounded)
        model.graph.sort()
    return True


def kept_types(graph: ir.Graph, output: ir.Value) -> KeptTypes:
    """Return the types that :func:`widen` recorded for the initializers, the inputs and the trained output."""

    def of(values: Any) -> dict[str, str]:
        return {v.name: v.metadata_props[KEPT_TYPE] for v in values if KEPT_TYPE in v.metadata_props}

    initializers = (v for v in graph.initializers.values() if v.dtype == ir.DataType.FLOAT)
    return KeptTypes(of(initializers), of(graph.inputs), output.metadata_props.get(KEPT_TYPE))


def narrowed(model: ir.Model, kept: KeptTypes) -> ir.Model:
    """Restore the file's types of weights, inputs and outputs, in place; return the model."""
    graph = model.graph
    if not kept:
        return model
    op = GraphBuilder(graph, prefix="kept", constant_nodes=True)
    for value in list(graph.inputs):
        if value.name is not None and value.name in kept.inputs:
            dtype = ir.DataType[kept.inputs[value.name]]
            value.type = ir.TensorType(dtype)
            for node, _ in list(value.uses()):  # the Cast by which widen() rounds the input
                if node.op_type == "Cast" and node.attributes["to"].as_int() == dtype.value:
                    bypass(node, value)
    for name, type_name in kept.weights.items():
        if name in graph.initializers:  # store the weight in its type, and cast it where it is read
            value, dtype = graph.initializers[name], ir.DataType[type_name]
            users = list(value.uses())
            array = array_of(value).astype(dtype.numpy())
            value.type, value.const_value = ir.TensorType(dtype), ir.tensor(array, name=value.name)
            wide = op.Cast(value, to=ir.DataType.FLOAT)
            for node, index in users:
                node.replace_input_with(index, wide)
    if kept.output is not None:
        output_type = ir.DataType[kept.output]
        for value in list(graph.outputs):
            if isinstance(value.type, ir.TensorType) and value.dtype in TRAINED_TYPES:
                insert_after(op, value, lambda x: op.Cast(x, to=output_type)).type = ir.TensorType(output_type)
    for value in (*graph.inputs, *all_values(model)):
        value.metadata_props.pop(KEPT_TYPE, None)
    graph.sort()
    return model


def in_dtype(model: ir.Model, dtype: ir.DataType) -> ir.Model:
    """Return a clone in which every float32 and float64 tensor, input and type attribute is of type ``dtype``."""
    clone = model.clone()
    for value in all_values(clone):
        # operators of ai.onnx.ml before version 5 always return float32, so their results keep this type
        maker = value.producer()
        single = maker is not None and maker.domain == "ai.onnx.ml" and maker.op_type != "TreeEnsemble"
        if value.dtype in TRAINED_TYPES and not single:
            value.type = ir.TensorType(dtype)  # setting value.dtype would change the original, which shares the object
        if value.const_value is not None and value.const_value.dtype in TRAINED_TYPES:
            array = array_of(value).astype(TRAINED_TYPES[dtype])
            value.const_value = ir.tensor(array, name=value.name)
    for node in clone.graph.all_nodes():
        for key in ("to", "dtype", "output_datatype"):
            if key in node.attributes and node.attributes[key].value in TRAINED_TYPES:
                node.attributes[key] = ir.AttrInt64(key, dtype.value)
        for attribute in list(node.attributes.values()):
            if attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype in TRAINED_TYPES:
                held = attribute.value.numpy().astype(TRAINED_TYPES[dtype])
                node.attributes[attribute.name] = ir.AttrTensor(attribute.name, ir.tensor(held))
    return clone

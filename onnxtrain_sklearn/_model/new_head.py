"""Replace the last layer of a graph by a new linear one, for fine-tuning on other targets.

:func:`graph_of_features` cuts the graph before its last layer, or at a tensor that the user names. :func:`with_head`
puts a linear layer of zeros there, in the float types that :func:`types_of_head` finds in the file.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .._importers.quantization import before_rounding, is_fake, is_within_fakes
from .._ir.edits import KEPT_TYPE, keep_outputs
from .._ir.queries import is_float
from .._ir.shapes import infer_shapes
from ..exceptions import ModelError, nearest
from ..graph import GraphBuilder, names_of
from .activation import activation_of, as_rows
from .precision import TYPES_OF_FILE

FEATURES_OUTPUT = "features"
"""Name of the output with the features, where a tensor has more than two axes."""


KEEPS_NUMBERS = frozenset({"Cast", "Flatten", "Identity", "Reshape"})
"""Operators after the last layer that change no number."""


LISTED = 8
"""Tensors that a message lists, at most."""


@dataclass(frozen=True)
class HeadTypes:
    """The narrow types of weights and output in the file, which a new head takes; None: the type of the graph."""

    weights: str | None = None
    output: str | None = None


SAME_TYPES = HeadTypes()


def types_of_head(model: ir.Model, output: str | None) -> HeadTypes:
    """Return the types of a new head: those of the layer that it replaces, else that of its features, ``output``."""
    final = _first_float(model.graph)
    layer = _last_layer(final)
    weight = None if layer is None else _stored_weight(layer.inputs[1])
    kept = None if weight is None else weight.metadata_props.get(KEPT_TYPE)
    of_file = model.meta.get(TYPES_OF_FILE, {}).get(output)
    return HeadTypes(kept or of_file, final.metadata_props.get(KEPT_TYPE))


def graph_of_features(model: ir.Model, output: str | None, final: ir.Value | None = None) -> tuple[ir.Model, str]:
    """Return a graph that ends in the features of a new head, (N, n_features), and the name of its output.

    Parameters
    ----------
    model : onnx_ir.Model
        It is not changed.
    output : str or None
        The tensor with the features; None: the input of the last layer.
    final : onnx_ir.Value, optional
        The output of ``model`` that the last layer is looked for from; by default the first float one.
    """
    name = output
    if name is None:
        layer = _last_layer(final or _first_float(model.graph))
        last = None if layer is None else layer.inputs[0]
        name = None if last is None or last.producer() is None else last.name
    model = infer_shapes(model.clone())
    values = {v.name or "": v for node in model.graph for v in node.outputs if _may_be_features(v)}
    if name is None:
        raise ModelError(
            f"new_head=True replaces the last layer, and the graph does not end in one that is certain: a MatMul or "
            f"Gemm with weights, and a final activation. Name the tensor with the features, "
            f"model=GraphModel(..., output=...): {_listing(model.graph)}."
        )
    if name not in values:
        raise ModelError(
            f"output={name!r} is no float tensor inside the graph, so it cannot feed a new head."
            f"{nearest(name, values)} The last ones are {_listing(model.graph)}."
        )
    features, graph = values[name], model.graph
    if features.shape is None or len(features.shape) != 2:
        op = GraphBuilder(graph, prefix=FEATURES_OUTPUT, constant_nodes=True)
        rows = as_rows(op, features)
        flat = rows if rows is not features else op.Flatten(features, axis=1)
        flat.name, flat.type = names_of(graph).free(FEATURES_OUTPUT), features.type
        features = flat
    graph.outputs[:] = [features]
    graph.sort()
    keep_outputs(model, graph.outputs, inputs=True)
    return model, features.name or ""


def with_head(
    model: ir.Model, features: str, n_features: int, n_outputs: int, types: HeadTypes
) -> tuple[ir.Model, tuple[str, str]]:
    """Return the graph with a linear layer of zeros on the features, and the names of its weights and its bias."""
    model = model.clone()
    graph, taken = model.graph, names_of(model.graph)
    output = next(v for v in graph.outputs if v.name == features)
    dtype = output.dtype or ir.DataType.FLOAT
    op, zeros = GraphBuilder(graph, dtype=dtype, prefix="head"), np.zeros((n_features, n_outputs), dtype.numpy())
    names = taken.free("head.weight"), taken.free("head.bias")
    weight, bias = op.parameter(names[0], zeros), op.parameter(names[1], np.zeros(n_outputs, dtype.numpy()))
    scores = op.Add(op.MatMul(output, weight), bias)
    scores.name = taken.free("scores")
    for value, kept in ((weight, types.weights), (bias, types.weights), (scores, types.output)):
        if kept is not None:
            value.metadata_props[KEPT_TYPE] = kept
    graph.outputs[:] = [scores]
    keep_outputs(model, graph.outputs, inputs=True)
    return infer_shapes(model), names


def _first_float(graph: ir.Graph) -> ir.Value:
    return next((v for v in graph.outputs if v.producer() is not None and is_float(v)), graph.outputs[0])


def _last_layer(final: ir.Value) -> ir.Node | None:
    """Return the node that multiplies by the weights of the scores; None where it is not certain."""
    activation = activation_of(final)
    value: ir.Value | None = final if activation is None else activation.base
    node = None if value is None else _before_forms(value)
    if node is not None and node.op_type == "Add":
        products = [_before_forms(x) for x in node.inputs if x is not None and _stored_weight(x) is None]
        node = products[0] if len(products) == 1 else None
    layer = node is not None and node.op_type in ("MatMul", "Gemm") and _stored_weight(node.inputs[1]) is not None
    return node if layer else None


def _before_forms(value: ir.Value) -> ir.Node | None:
    """Return the node that computes the numbers of a value, before nodes that change their type, form or grid."""
    node = value.producer()
    while node is not None and (node.op_type in KEEPS_NUMBERS or is_fake(node)) and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node


def _stored_weight(value: ir.Value | None) -> ir.Value | None:
    """Return the stored value that ``value`` is, or is cast or rounded from; None if it is computed."""
    value = None if value is None else before_rounding(value)
    node = None if value is None else value.producer()
    while node is not None and node.op_type == "Cast" and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return None if value is None or ir.convenience.get_const_tensor(value) is None else value


def _may_be_features(value: ir.Value) -> bool:
    """Return True if a value is computed, of floats, and no intermediate step of a rounding."""
    node = value.producer()
    return is_float(value) and not is_within_fakes(value) and node is not None and node.op_type != "Constant"


def _listing(graph: ir.Graph) -> str:
    """Return the names of the last tensors that may be features, for a message."""
    values = [v for node in graph for v in node.outputs if _may_be_features(v)]
    names = [v.name for v in values if v.shape is not None and len(v.shape) > 1]
    return ", ".join(repr(name) for name in names[::-1][:LISTED])

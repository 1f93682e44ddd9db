"""Replace the last layer of a graph by a new head, split off the frozen part, or join outputs.

For fine-tuning on other targets, :func:`graph_of_features` cuts a graph before its last layer, or at a tensor that the
user names. :func:`with_head` appends a linear layer of zeros, in the float types that :func:`types_of_head` finds in
the file. :func:`frozen_part` splits off the nodes that depend on no trained weight, so that fine-tuning computes
their results once for all rows. :func:`join_outputs` joins several outputs for one loss.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .._importers.quantization import before_rounding, is_fake, is_within_fakes
from .._ir.edits import KEPT_TYPE, keep_outputs, read_as_input, swap_initializers
from .._ir.queries import dims, is_float, reads
from .._ir.shapes import infer_shapes
from ..exceptions import ModelError, nearest
from ..graph import GraphBuilder, names_of
from .activation import activation_of, as_rows
from .modes import is_random
from .precision import TYPES_OF_FILE

FEATURES_OUTPUT = "features"
"""Name of the output with the flattened features, if the features have more than two axes."""


KEEPS_NUMBERS = frozenset({"Cast", "Flatten", "Identity", "Reshape"})
"""Operators that may follow the last layer, because they only change the shape or type."""


LISTED = 8
"""Most tensors that a message lists."""


@dataclass(frozen=True)
class HeadTypes:
    """The types of a new head's weights and output, if the file has float16 or bfloat16 there; else None."""

    weights: str | None = None
    output: str | None = None


SAME_TYPES = HeadTypes()


def types_of_head(model: ir.Model, output: str | None) -> HeadTypes:
    """Return the types of a new head: those of the layer that it replaces, else the type of the features ``output``."""
    final = _first_float(model.graph)
    layer = _last_layer(final)
    weight = None if layer is None else _stored_weight(layer.inputs[1])
    kept = None if weight is None else weight.metadata_props.get(KEPT_TYPE)
    of_file = model.meta.get(TYPES_OF_FILE, {}).get(output)
    return HeadTypes(kept or of_file, final.metadata_props.get(KEPT_TYPE))


def graph_of_features(
    model: ir.Model, output: str | None, final: ir.Value | None = None, *, setting: str = "output"
) -> tuple[ir.Model, str]:
    """Return a graph whose output is the features for a new head, (N, n_features), and the name of this output.

    Parameters
    ----------
    model : onnx_ir.Model
        It is not changed.
    output : str or None
        The tensor with the features; by default the input of the last layer.
    final : onnx_ir.Value, optional
        The output from which to search for the last layer; by default the first float output of ``model``.
    setting : str
        The setting of ``GraphModel`` that names the tensor, for messages.
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
            f"{'new_head=True replaces' if setting == 'output' else 'transform reads the input of'} the last layer, "
            f"and the graph does not end in one that is certain: a MatMul or Gemm with weights, and a final "
            f"activation. Name the tensor with the features, model=GraphModel(..., {setting}=...): "
            f"{_listing(model.graph)}."
        )
    if name not in values:
        raise ModelError(
            f"{setting}={name!r} is no float tensor inside the graph, so it cannot "
            f"{'feed a new head' if setting == 'output' else 'be the result of transform'}."
            f"{nearest(name, values)} The last ones are {_listing(model.graph)}."
        )
    features, graph = values[name], model.graph
    if features.shape is None or len(features.shape) != 2:
        op = GraphBuilder(graph, prefix=FEATURES_OUTPUT, constant_nodes=True)
        rows = as_rows(op, features)
        flat = rows if rows is not features else op.Flatten(features, axis=1)
        flat.name = names_of(graph).free(FEATURES_OUTPUT)
        flat.type = features.type
        features = flat
    graph.outputs[:] = [features]
    graph.sort()
    keep_outputs(model, graph.outputs, inputs=True)
    return model, features.name or ""


def has_hidden_layer(final: ir.Value) -> bool:
    """Return True if the last layer before ``final`` is certain, and reads the result of another product with weights.

    A linear model on numbers that are scaled first has none.
    """
    layer = _last_layer(final)
    return layer is not None and layer.inputs[0] is not None and bool(_layers_before(layer.inputs[0]))


def narrowest_layer(final: ir.Value) -> str | None:
    """Return the name of the hidden layer with the fewest units, the first of several; None if it is not certain."""
    layer = _last_layer(final)
    if layer is None:
        return None
    products = [node for node in [*_layers_before(layer.inputs[0]), layer] if node.op_type != "Conv"]
    hidden = [node for node in products if _layers_before(node.inputs[0])]
    narrowest = min(hidden, key=_n_inputs, default=None)
    return None if narrowest is None or narrowest.inputs[0] is None else narrowest.inputs[0].name


def _n_inputs(layer: ir.Node) -> int:
    """Return the number of units that a product with stored weights reads."""
    weight = layer.inputs[1]
    sizes = None if weight is None else dims(weight)
    turned = layer.op_type == "Gemm" and (layer.attributes.get_int("transB", 0) == 1)
    return int(str(sizes[1 if turned else -2])) if sizes is not None and len(sizes) > 1 else 2**31


def _layers_before(value: ir.Value | None) -> list[ir.Node]:
    """Return the products with stored weights upstream of a value, in the order of the graph."""
    found = list[ir.Node]()
    front = [value]
    seen = set[ir.Node]()
    while front:
        node = None if (one := front.pop()) is None else one.producer()
        if node is None or node in seen:
            continue
        seen.add(node)
        front += node.inputs
        if node.op_type in ("MatMul", "Gemm", "Conv") and _stored_weight(node.inputs[1]) is not None:
            found.append(node)
    graph = found[0].graph if found else None
    order = {} if graph is None else {node: i for i, node in enumerate(graph)}
    return sorted(found, key=lambda node: order.get(node, -1))


def with_head(
    model: ir.Model, features: str, n_features: int, n_scores: int, types: HeadTypes
) -> tuple[ir.Model, tuple[str, str]]:
    """Return the graph with a linear layer of zeros after the features, and the names of its weights and bias."""
    model = model.clone()
    graph, taken = model.graph, names_of(model.graph)
    output = next(v for v in graph.outputs if v.name == features)
    dtype = output.dtype or ir.DataType.FLOAT
    op = GraphBuilder(graph, dtype=dtype, prefix="head")
    zeros = np.zeros((n_features, n_scores), dtype.numpy())
    names = taken.free("head.weight"), taken.free("head.bias")
    weight, bias = op.parameter(names[0], zeros), op.parameter(names[1], np.zeros(n_scores, dtype.numpy()))
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
    """Return the node that multiplies by the weights of the last layer; None if it cannot be found for certain."""
    activation = activation_of(final)
    value: ir.Value | None = final if activation is None else activation.base
    node = None if value is None else _computing_node(value)
    if node is not None and node.op_type == "Add":
        products = [_computing_node(x) for x in node.inputs if x is not None and _stored_weight(x) is None]
        node = products[0] if len(products) == 1 else None
    layer = node is not None and node.op_type in ("MatMul", "Gemm") and _stored_weight(node.inputs[1]) is not None
    return node if layer else None


def _computing_node(value: ir.Value) -> ir.Node | None:
    """Return the node that computes the numbers of a value, upstream of casts, reshapes and roundings."""
    node = value.producer()
    while node is not None and (node.op_type in KEEPS_NUMBERS or is_fake(node)) and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node


def _stored_weight(value: ir.Value | None) -> ir.Value | None:
    """Return the initializer from which ``value`` is read, possibly by a cast or rounding; None if it is computed."""
    value = None if value is None else before_rounding(value)
    node = None if value is None else value.producer()
    while node is not None and node.op_type == "Cast" and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return None if value is None or ir.convenience.get_const_tensor(value) is None else value


def _may_be_features(value: ir.Value) -> bool:
    """Return True if a new head can read ``value``: it is computed, holds floats and is no step of a rounding."""
    node = value.producer()
    return is_float(value) and not is_within_fakes(value) and node is not None and node.op_type != "Constant"


def _listing(graph: ir.Graph) -> str:
    """Return the names of the last tensors that may be features, for a message."""
    values = [v for node in graph for v in node.outputs if _may_be_features(v)]
    names = [v.name for v in values if v.shape is not None and len(v.shape) > 1]
    return ", ".join(repr(name) for name in names[::-1][:LISTED])


MOST_VALUES = 4
"""Most values at which a graph is cut, because each value is computed and stored for all rows."""


@dataclass(frozen=True, eq=False)
class FrozenPart:
    """A graph in two parts, of which only the second depends on trained weights.

    Attributes
    ----------
    first : onnx_ir.Model
        Computes the values at which the graph is cut, its outputs, from the inputs of the graph.
    second : onnx_ir.Model
        Computes the scores from the values at the cut and other inputs of the graph.
    """

    first: ir.Model
    second: ir.Model


def frozen_part(
    model: ir.Model, scores: str, trained: Collection[str], weights: Mapping[str, np.ndarray]
) -> FrozenPart | None:
    """Return the graph in two parts, cut where trained weights begin; None if no value is worth precomputing.

    ``trained`` names the trained weights; ``weights`` holds the current values of the frozen weights.
    """
    # Cut at the values that are computed from the data alone and read by nodes that depend on trained weights.
    of_data = set(model.graph.inputs)
    of_weights = {v for v in model.graph.initializers.values() if v.name in trained}
    cut = dict[str, None]()
    for node in model.graph:
        read = list(reads(node))
        if not of_weights.isdisjoint(read):
            of_weights.update(node.outputs)
            cut |= {v.name or "": None for v in read if v.producer() is not None and v in of_data - of_weights}
        elif not of_data.isdisjoint(read):
            of_data.update(node.outputs)
    names = list(cut)
    # random numbers change in each step, so they cannot be precomputed
    if not 0 < len(names) <= MOST_VALUES or any(is_random(node) for node in model.graph.all_nodes()):
        return None
    first, second = model.clone(), model.clone()
    swap_initializers(first.graph, weights)
    keep_outputs(first, [_named(first.graph, name) for name in names], inputs=True)
    for name in names:
        read_as_input(second.graph, _named(second.graph, name))
    keep_outputs(second, [v for v in second.graph.outputs if v.name == scores], inputs=True)
    return FrozenPart(first, second)


def _named(graph: ir.Graph, name: str) -> ir.Value:
    return next(v for node in graph for v in node.outputs if v.name == name)


def join_outputs(model: ir.Model) -> tuple[ir.Model, tuple[int, ...]]:
    """Return the model with its float outputs joined along axis 1, and their numbers of columns.

    A model with one float output is returned unchanged, with an empty tuple.
    """
    outputs = [value for value in model.graph.outputs if is_float(value)]
    if len(outputs) < 2:
        return model, ()
    result = model.clone()
    result.meta.update(model.meta)
    graph = result.graph
    named = {value.name: value for value in graph.outputs}
    op = GraphBuilder(graph, prefix="joined", constant_nodes=True)
    parts, widths = [], []
    for value in (named[value.name] for value in outputs):
        sizes = dims(value)
        if sizes is None or not 1 <= len(sizes) <= 2 or not all(isinstance(n, int) for n in sizes[1:]):
            raise ModelError(
                f"A loss on several outputs needs each as a column or a matrix of a known number of columns, but "
                f"{value.name!r} has shape {value.shape}. Name the one to train: model=GraphModel(..., output=...)."
            )
        parts.append(value if len(sizes) == 2 else op.Unsqueeze(value, axes=[1]))
        widths.append(int(str(sizes[1])) if len(sizes) == 2 else 1)
    joined = op.Concat(*parts, axis=1)
    joined.name = names_of(graph).free("outputs")
    graph.outputs[:] = [joined]
    return infer_shapes(result), tuple(widths)

"""The graphs of a training session: trained weights, gradients, the update, the whole step."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from .._graph.builder import GraphBuilder
from .._graph.edits import copy_type, initializers_to_inputs
from .._graph.protobuf import to_proto
from .._graph.queries import dims
from .._graph.weights import array_of
from ..exceptions import ModelError, nearest
from .classic_optimizers import MOMENTS, UPDATE_COUNT, Update, attributes_of, emit_updates
from .training_parameters import TrainingParameters
from .training_state import TrainingState
from .vjp import float_names, require_names, vjp_graph


def loss_output(graph: ir.Graph, name: str) -> str:
    """Return the name of the loss; raise ValueError if it is not an output of one element."""
    outputs = {v.name or "": v for v in graph.outputs}
    if name not in outputs:
        raise ModelError(f"loss_output_name={name!r} is no output of the graph.{nearest(name, outputs)}")
    if (shape := dims(outputs[name])) is None or any(size != 1 for size in shape):
        found = "an unknown shape" if shape is None else f"shape {outputs[name].shape}"
        raise ModelError(f"The loss must have one element, but {name!r} has {found}. Reduce it first.")
    return name


def trained_weights(graph: ir.Graph, parameters: TrainingParameters) -> dict[str, np.ndarray]:
    """Return the weights to train by name, in the order of the graph."""
    floats = float_names(list(graph.initializers.values()))
    wanted, excluded = (
        require_names(sorted(getattr(parameters, role)), floats, role)
        for role in ("weights_to_train", "weights_not_to_train")
    )
    if both := set(wanted) & set(excluded):
        raise ValueError(f"weights_to_train and weights_not_to_train both name {sorted(both)}.")
    left_out = {*excluded, *_immutable(graph, parameters.immutable_weights)}
    names = [name for name in floats if (name in wanted or not wanted) and name not in left_out]
    if not names:
        raise ModelError("There is no weight to train: the graph has no float initializer that is not left out.")
    for role in ("optimizer_attributes_map", "optimizer_int_attributes_map"):
        require_names(list(getattr(parameters, role)), names, role)
    for name in names if parameters.training_optimizer_name else ():
        attributes_of(parameters, name)
    return {name: array_of(graph.initializers[name]) for name in names}


def _immutable(graph: ir.Graph, rules: Mapping[str, Mapping[int, float]]) -> Collection[str]:
    """Return the initializers of one element whose position and value match the rules."""
    found = set()
    for node in graph:
        for position, expected in rules.get(node.op_type, {}).items():
            value = node.inputs[position] if position < len(node.inputs) else None
            held = None if value is None else value.const_value
            if value is not None and held is not None and held.size == 1 and float(held.numpy().item()) == expected:
                found.add(value.name or "")
    return found


def session_graphs(
    model: ir.Model, loss: str, parameters: TrainingParameters, state: TrainingState, engine: str
) -> tuple[onnx.ModelProto, onnx.ModelProto | None]:
    """Return the gradient graph and the update graph; write the files that the parameters name."""
    names = list(state.weights)
    if parameters.loss_scale:
        gradient = _scaled_gradients(model, names, loss, parameters.loss_scale, engine)
    else:
        gradient = _gradients(model, names, loss, engine)
    initializers_to_inputs(gradient.graph, names)
    proto = to_proto(gradient)
    update = None
    if parameters.training_optimizer_name:
        graph = ir.Graph([], [], nodes=[], opset_imports={"": 18}, name="update")
        update = to_proto(_with_update(ir.Model(graph, ir_version=8), parameters, state))
    if path := parameters.model_after_graph_transforms_path:
        onnx.save(to_proto(model.clone()), path)
    if path := parameters.model_with_gradient_graph_path:
        onnx.save(proto, path)
    if path := parameters.model_with_training_graph_path:
        onnx.save(proto if update is None else to_proto(_with_update(gradient, parameters, state)), path)
    return proto, update


def _gradients(model: ir.Model, names: Sequence[str], loss: str, engine: str) -> ir.Model:
    return vjp_graph(model, [v.name or "" for v in model.graph.outputs], names, engine, seeded=(), ones=[loss])


def _scaled_gradients(model: ir.Model, names: Sequence[str], loss: str, scale: float, engine: str) -> ir.Model:
    """Return the graph with gradients of the loss, computed from ``scale`` times the loss and divided by it."""
    source = model.clone()
    value = next(v for v in source.graph.outputs if v.name == loss)
    scaled = GraphBuilder(source.graph, dtype=value.dtype or ir.DataType.FLOAT, prefix="loss_scale").Mul(
        value, float(scale)
    )
    source.graph.outputs.append(copy_type(scaled, value))
    result = _gradients(source, names, scaled.name or "", engine)
    graph = result.graph
    op = GraphBuilder(graph, prefix="loss_scale")
    graph.outputs[:] = [v for v in graph.outputs if v.name != scaled.name]
    wanted = {f"{name}_grad" for name in names}
    for i, gradient in enumerate(graph.outputs):
        if (name := gradient.name) in wanted:
            op.dtype = gradient.dtype or ir.DataType.FLOAT
            gradient.name = op.name("scaled")
            new = graph.outputs[i] = copy_type(op.Div(gradient, float(scale)), gradient)
            new.name = name
    return result


def _with_update(model: ir.Model, parameters: TrainingParameters, state: TrainingState) -> ir.Model:
    """Emit the update into a graph, in place; weights and gradients that it does not have become inputs."""
    graph = model.graph
    rate = ir.val(parameters.lr_params_feed_name, ir.DataType.FLOAT, (1,))
    graph.inputs.append(rate)
    op = GraphBuilder(graph, prefix="update")
    named = {v.name: v for v in [*graph.inputs, *graph.outputs]}
    updates = {}
    for name, array in state.weights.items():
        dtype = ir.DataType.from_numpy(array.dtype)
        specs = [name, f"{name}_grad", *(f"{moment}_{name}" for moment in state.moments.get(name, ()))]
        values = [named.get(one) or ir.val(one, dtype, array.shape) for one in specs]
        count = ir.val(f"{UPDATE_COUNT}_{name}", ir.DataType.INT64, (1,))
        graph.inputs.extend(value for value in [*values, count] if value.name not in named)
        weight, gradient, *moments = values
        updates[name] = Update(weight, gradient, moments, rate, count)
    for name, results in emit_updates(op, parameters, updates).items():
        for end, value in zip(("", *(f"{moment}_" for moment in MOMENTS)), results, strict=False):
            value.name, value.type, value.shape = (
                f"New_{end}{name}",
                updates[name].weight.type,
                updates[name].weight.shape,
            )
            graph.outputs.append(value)
    return model

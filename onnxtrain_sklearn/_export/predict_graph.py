"""The graph that predicts with the state of a training: its weights are inputs, so that it follows each step."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from .._inference.graph import inference_model
from .._ir.edits import initializers_to_inputs, replace_inputs
from ..graph import GraphBuilder
from .source import AVERAGE, PARAMETERS, STATISTICS, ExportSource, cut_members, members_of, reserve_names
from .step_graph import StepGraph


@dataclass(frozen=True, eq=False)
class PredictGraph:
    """The graph that predicts.

    ``state`` maps each of its inputs for weights to the name of the tensor of the state that is given to it.
    """

    model: ir.Model
    state: dict[str, str]


def predict_graph(source: ExportSource, step: StepGraph) -> PredictGraph:
    """Return the graph whose inputs are rows of data, and the vectors that it predicts with."""
    parts, layout = source.parts, source.parts.parameters
    held = {**parts.frozen, **layout.prediction_views()}
    known = parts.model.weights()
    weights = {name: held[name].astype(known[name].dtype) for name in known}
    model = inference_model(parts.model, weights, source.head)
    read = [name for name in (*layout.names, *layout.running_statistics) if name in model.graph.initializers]
    initializers_to_inputs(model.graph, read)
    op = GraphBuilder(model.graph, dtype=ir.DataType.from_numpy(parts.model.dtype), prefix="cut")
    reserve_names(op, source, [one.name for one in step.state])
    trained = {one.role: one for one in step.state}
    vectors = {trained.get(AVERAGE, trained[PARAMETERS]): layout.names}
    if STATISTICS in trained:
        vectors[trained[STATISTICS]] = layout.running_statistics
    found = {}
    for one, names in vectors.items():
        value = ir.val(op.taken.free(one.name), ir.DataType.from_numpy(one.value.dtype), one.value.shape)
        arrays = dict(cut_members(op, value, members_of(layout, names)))
        model.graph.inputs.append(value)
        replace_inputs(model.graph, {name: array for name, array in arrays.items() if name in read})
        found[value.name or ""] = one.name
    model.graph.sort()
    return PredictGraph(model, found)

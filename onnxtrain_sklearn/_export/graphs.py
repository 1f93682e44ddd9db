"""The graphs of a folder: which ones a ``form`` has, and the last changes before they are files.

``graph_entries`` makes the graphs of a step, an epoch and predictions. Where a table is preprocessed before the
network, that graph is put in front of each. ``compact_proto`` makes the files small.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import onnx
import onnx_ir as ir

from .._ir.edits import append_graph, replace_inputs
from .._ir.protobuf import to_proto
from ..exceptions import ModelError
from ..graph import GraphBuilder, Names
from .epoch_graph import epoch_graph
from .manifest import GraphEntry, epoch_entry, predict_entry, step_entry
from .predict_graph import PredictGraph, predict_graph
from .several_networks import joined_graphs
from .source import TARGETS, ExportSource
from .step_graph import StepGraph, step_graph

TRAINING_FORMS = {"step": ("step",), "epoch": ("epoch",), "both": ("step", "epoch")}
"""The training graphs of a folder by the parameter ``form``."""


def require_known_form(form: str, target: str) -> None:
    """Raise unless both are among the choices of ``export_training``."""
    if form not in TRAINING_FORMS:
        raise ValueError(f"form must be one of {', '.join(map(repr, TRAINING_FORMS))}, got {form!r}.")
    if target not in TARGETS:
        raise ValueError(f"target must be one of {', '.join(map(repr, TARGETS))}, got {target!r}.")


def training_graphs(source: ExportSource) -> tuple[StepGraph, PredictGraph]:
    """Return the graph of a step and the graph that predicts, with the preprocessing of a table in front of both."""
    if source.others:
        step, predict = joined_graphs(source)
    else:
        step = step_graph(source)
        predict = predict_graph(source, step)
    if source.front is not None:
        # Preprocessing has no trained weights. In the graphs it computes the inputs of the network from each minibatch,
        # so that a loop gives the rows as they are in the table.
        _put_in_front(source.front, step.model.graph, step.batch)
        _put_in_front(source.front, predict.model.graph, "N")
        step = replace(step, data=tuple(value.name or "" for value in source.front.graph.inputs))
    return step, predict


def graph_entries(step: StepGraph, predict: PredictGraph, form: str) -> dict[str, GraphEntry]:
    """Return the graphs of ``form`` and the one that predicts, with their roles for the manifest."""
    found = {}
    if "epoch" in TRAINING_FORMS[form]:
        epoch = epoch_graph(step)  # first: compact_proto shortens the names inside the graph of the step
        found["epoch"] = epoch_entry(epoch, compact_proto(epoch.model, "epoch"))
    if "step" in TRAINING_FORMS[form]:
        found["step"] = step_entry(step, compact_proto(step.model, "step"))
    return found | {"predict": predict_entry(predict, compact_proto(predict.model, "predict"))}


def _put_in_front(front: ir.Model, graph: ir.Graph, rows: int | str) -> None:
    """Compute the inputs of ``graph`` that are named as outputs of ``front`` by its nodes, in place."""
    for domain, version in front.graph.opset_imports.items():
        if graph.opset_imports.setdefault(domain, version) != version:
            raise ModelError(
                f"The steps before the network are in opset {version} of {domain or 'ai.onnx'!r}, and the network is "
                f"in {graph.opset_imports[domain]}: convert them to one (onnx.version_converter)."
            )
    own, op = front.clone().graph, GraphBuilder(graph, prefix="front")
    names = [value.name or "" for value in own.outputs]
    columns = [ir.Value(name=v.name, type=v.type, shape=ir.Shape([rows, *(v.shape or ())[1:]])) for v in own.inputs]
    computed = dict(zip(names, append_graph(op, own, columns, "front/"), strict=True))
    replace_inputs(graph, computed)
    taken = {value.name for value in (*graph.inputs, *graph.outputs)} | graph.initializers.keys()
    if clash := [column.name for column in columns if column.name in taken]:
        raise ModelError(
            f"The table has a column {clash[0]!r}, and the training graphs have an input or a weight of this name: "
            f"rename the column."
        )
    graph.inputs[:] = [*columns, *graph.inputs]
    graph.sort()


def compact_proto(model: ir.Model, name: str, taken: Collection[str] = ()) -> onnx.ModelProto:
    """Return ``model`` as small protobuf: short names inside it, and no types that a runtime infers itself.

    The model is changed. None of the new names is among those that are ``taken``.
    """
    graphs = list(model.graphs())
    kept = {*model.graph.inputs, *model.graph.outputs}
    names = Names([*taken, *(value.name or "" for value in kept)])
    for graph in graphs:
        results = [value for node in graph for value in node.outputs]
        for value in (*graph.inputs, *list(graph.initializers.values()), *results):
            if value.name and value not in kept:  # an omitted output has no name
                value.name = names.numbered("v")
    for node in model.graph.all_nodes():
        node.name = names.numbered("n")
        node.metadata_props.clear()
        node.doc_string = None
    ends = {value for graph in graphs for value in (*graph.inputs, *graph.outputs, *graph.initializers.values())}
    for value in (value for node in model.graph.all_nodes() for value in node.outputs if value not in ends):
        value.type = value.shape = None
    model.graph.name, model.producer_name, model.doc_string = name, "onnxtrain-sklearn", None
    model.metadata_props.clear()
    return to_proto(model)

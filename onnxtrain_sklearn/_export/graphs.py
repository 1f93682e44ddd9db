"""The graphs of a folder, all made from the graph of a step: an epoch, predictions, several networks.

``training_graphs`` returns step and predictions: of one network, or of several that share minibatches. If a table is
preprocessed before the network, that graph is put in front of both. ``graph_entries`` adds the epoch, and makes a small
file of each graph that a ``form`` has, with the role of each input and output.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnx_ir as ir

from .._inference.graph import Decoding, averaged_predictions, inference_model
from .._ir.edits import (
    append_graph,
    append_nodes,
    append_output,
    initializers_to_inputs,
    keep_outputs,
    remove_unread_initializers,
    replace_inputs,
)
from .._ir.protobuf import to_proto
from ..exceptions import ModelError
from ..graph import GraphBuilder, Names, copy_type
from .exported import (
    AVERAGE,
    PARAMETERS,
    STATISTICS,
    STEP,
    TARGETS,
    ExportedTraining,
    cut_members,
    members_of,
    reserve_names,
)
from .step_graph import StepGraph, TargetInput, step_graph

TRAINING_FORMS = {"step": ("step",), "epoch": ("epoch",), "both": ("step", "epoch")}
"""The training graphs of a folder by the parameter ``form``."""


def require_known_form(form: str, target: str) -> None:
    """Raise unless both are among the choices of ``export_training``."""
    if form not in TRAINING_FORMS:
        raise ValueError(f"form must be one of {', '.join(map(repr, TRAINING_FORMS))}, got {form!r}.")
    if target not in TARGETS:
        raise ValueError(f"target must be one of {', '.join(map(repr, TARGETS))}, got {target!r}.")


def training_graphs(exported: ExportedTraining) -> tuple[StepGraph, PredictGraph]:
    """Return the graph of a step and the graph that predicts, with the preprocessing of a table in front of both."""
    if exported.others:
        # each network has its own step and predictions; one graph takes all steps on the same minibatch
        each = (exported, *exported.others)
        steps = [step_graph(one) for one in each]
        predictions = [predict_graph(one, own) for one, own in zip(each, steps, strict=True)]
        columns = () if exported.front is None else exported.front.graph.inputs
        step = _joined_steps(steps, [value.name or "" for value in columns])
        predict = _joined_predictions(predictions, exported.decoding)
    else:
        step = step_graph(exported)
        predict = predict_graph(exported, step)
    if exported.front is not None:
        # Preprocessing has no trained weights. In the graphs it computes the inputs of the network from each minibatch,
        # so that a loop gives the rows as they are in the table.
        _put_in_front(exported.front, step.model.graph, step.batch_size)
        _put_in_front(exported.front, predict.model.graph, "N")
        step = replace(step, data=tuple(value.name or "" for value in exported.front.graph.inputs))
    return step, predict


@dataclass(frozen=True, eq=False)
class GraphEntry:
    """A graph of the folder, as a model and as the file's content, with the roles of its inputs and outputs by name."""

    model: ir.Model
    proto: onnx.ModelProto
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def graph_entries(step: StepGraph, predict: PredictGraph, form: str) -> dict[str, GraphEntry]:
    """Return the graphs of ``form`` and the one that predicts, with their roles for the manifest."""
    inputs = dict.fromkeys(step.data, "data")
    inputs |= {one.name: "target" for one in step.targets}
    inputs |= {one.factor: "target_weight" for one in step.targets if one.factor is not None}
    inputs |= {step.weight: "sample_weight", step.rate: "learning_rate"}
    inputs |= {name: role for role, name in step.factors.items()}
    inputs |= dict.fromkeys(step.random, "random") | {one.name: "state" for one in step.state}
    state = {one.output: "state" for one in step.state}
    found = {}
    if "epoch" in TRAINING_FORMS[form]:
        # made first, because compact_proto shortens the names inside the graph of the step
        model, order, losses = epoch_graph(step)
        proto = compact_proto(model, "epoch")
        found["epoch"] = GraphEntry(model, proto, {**inputs, order: "order"}, {losses: "losses", **state})
    if "step" in TRAINING_FORMS[form]:
        proto = compact_proto(step.model, "step")
        found["step"] = GraphEntry(step.model, proto, inputs, {step.loss: "loss", **state})
    graph = predict.model.graph
    proto = compact_proto(predict.model, "predict")
    roles = {value.name or "": "data" for value in graph.inputs} | dict.fromkeys(predict.state, "state")
    results = {value.name or "": "prediction" for value in graph.outputs}
    return {**found, "predict": GraphEntry(predict.model, proto, roles, results)}


def _put_in_front(front: ir.Model, graph: ir.Graph, rows: int | str) -> None:
    """Let the outputs of ``front`` replace the inputs of ``graph`` of the same names, in place."""
    for domain, version in front.graph.opset_imports.items():
        if graph.opset_imports.setdefault(domain, version) != version:
            raise ModelError(
                f"The preprocessing uses opset {version} of {domain or 'ai.onnx'!r}, but the network uses "
                f"{graph.opset_imports[domain]}. Convert both to one opset (onnx.version_converter)."
            )
    own = front.clone().graph
    op = GraphBuilder(graph, prefix="front")
    names = [value.name or "" for value in own.outputs]
    columns = [ir.Value(name=v.name, type=v.type, shape=ir.Shape([rows, *(v.shape or ())[1:]])) for v in own.inputs]
    computed = dict(zip(names, append_graph(op, own, columns, "front/"), strict=True))
    replace_inputs(graph, computed)
    taken = {value.name for value in (*graph.inputs, *graph.outputs)} | graph.initializers.keys()
    if clash := [column.name for column in columns if column.name in taken]:
        raise ModelError(
            f"The table has a column {clash[0]!r}, but the training graphs have an input or a weight of this name. "
            f"Rename the column."
        )
    graph.inputs[:] = [*columns, *graph.inputs]
    graph.sort()


def compact_proto(model: ir.Model, name: str, taken: Collection[str] = ()) -> onnx.ModelProto:
    """Return ``model`` as small protobuf: with short inner names, and without types that a runtime infers itself.

    The model itself is changed. New names avoid those in ``taken``.
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
    # Metadata of exporters, such as stack traces, would only make the file larger.
    model.graph.name, model.producer_name, model.doc_string = name, "onnxtrain-sklearn", None
    model.metadata_props.clear()
    return to_proto(model)


# An epoch as one graph.


def epoch_graph(step: StepGraph) -> tuple[ir.Model, str, str]:
    """Return the graph of an epoch, and the names of its input ``order`` and its output ``losses``.

    It is a Loop over the step, which gathers each minibatch from all rows. The row numbers of each minibatch are in
    ``order``, of shape (steps, batch_size); -1 is a place without a row. The other inputs and outputs have the names of
    the step's. Learning rates and random numbers have one more axis than those of a step, the first one.
    """
    given = {value.name or "": value for value in step.model.graph.inputs}
    op = GraphBuilder(
        ir.Graph([], [], nodes=[], name="epoch", opset_imports=dict(step.model.opset_imports)), prefix="epoch"
    )
    op.taken.update(given)

    # The inputs: all rows of data, and a value for each step of rates and random numbers.
    by_row = {*step.by_row, step.weight}
    by_step = {step.rate, *step.random, *step.factors.values()}
    outer: dict[str, ir.Value] = {}
    for name, value in given.items():
        sizes = list(value.shape or ())
        shape = ["N", *sizes[1:]] if name in by_row else ["S", *sizes] if name in by_step else sizes
        outer[name] = ir.Value(name=name, type=value.type, shape=ir.Shape(shape))
    order = ir.val(op.taken.free("order"), ir.DataType.INT64, ("S", step.batch_size))
    op.graph.inputs.extend([*outer.values(), order])
    # The body of the loop gathers a minibatch and takes the step, whose initializers move out of the loop.
    body, graph = op.body("body"), step.model.graph.clone()
    initializers = list(graph.initializers.values())
    graph.initializers.clear()
    for value in initializers:
        value.name = op.taken.free(f"step/{value.name}")
        op.graph.initializers.add(value)
    i = body.input("i", ir.DataType.INT64, ())
    going = body.input("going", ir.DataType.BOOL, ())
    rows = body.Gather(order, i)
    # A place without a row takes one of the minibatch, with weight 0: no further row of an embedding occurs.
    kept = body.Where(body.Less(rows, 0), body.ReduceMax(rows, keepdims=False), rows)
    inputs = []
    for value in graph.inputs:
        name, dtype = value.name or "", value.dtype
        assert dtype is not None
        if name in by_step:
            inputs.append(body.Gather(outer[name], i))
        elif name == step.weight:
            own = body.Gather(outer[name], kept)
            inputs.append(body.Mul(own, body.Cast(body.GreaterOrEqual(rows, 0), to=dtype)))
        elif name in by_row:
            inputs.append(body.Gather(outer[name], kept))
        else:  # state, which the loop carries from step to step
            inputs.append(body.input(name, dtype, [int(str(size)) for size in value.shape or ()]))
    stays = copy_type(body.Identity(going), going)
    found = append_nodes(body, graph, inputs)
    for result, old in zip(found, step.model.graph.outputs, strict=True):
        copy_type(result, old)
    body.graph.outputs.extend([stays, *found[1:], found[0]])
    body.graph.sort()

    # The loop; its state are the tensors of the step's state.
    size = op.Shape(order, start=0, end=1) if op.opset >= 15 else op.Slice(op.Shape(order), [0], [1], [0])
    count = op.Squeeze(size, axes=[0])
    held = [outer[one.name] for one in step.state]
    results = op.emit("Loop", count, np.array(True), *held, body=body.graph, outputs=len(held) + 1)
    losses = op.taken.free("losses")
    loss = next(v for v in step.model.graph.outputs if v.name == step.loss)
    append_output(op.graph, results[-1], losses, ir.val("like", loss.dtype, ("S",)))
    for one, value in zip(step.state, results, strict=False):
        append_output(op.graph, value, one.output, given[one.name])
    return ir.Model(op.graph, ir_version=step.model.ir_version), order.name or "", losses


# Predictions by the state of a training.


@dataclass(frozen=True, eq=False)
class PredictGraph:
    """The graph that predicts; ``state`` maps each of its inputs for weights to the tensor of the state to feed."""

    model: ir.Model
    state: dict[str, str]


def predict_graph(exported: ExportedTraining, step: StepGraph) -> PredictGraph:
    """Return the graph that predicts; the vectors of weights are inputs, so that it follows each step of training."""
    parts = exported.parts
    layout = exported.parts.parameters
    held = {**parts.frozen, **layout.prediction_views()}
    known = parts.graph.weights()
    weights = {name: held[name].astype(known[name].dtype) for name in known}
    # The distribution is left out: an ensemble averages the last output.
    model = inference_model(parts.graph, weights, replace(exported.decoding, distribution=None))
    read = [name for name in (*layout.names, *layout.running_statistics) if name in model.graph.initializers]
    initializers_to_inputs(model.graph, read)
    op = GraphBuilder(model.graph, dtype=ir.DataType.from_numpy(parts.graph.dtype), prefix="cut")
    reserve_names(op, exported, [one.name for one in step.state])
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


# Several networks in one graph: each takes the step that it would take alone, on the same minibatch.
#
# Targets, weights of the rows, rates and the number of steps are one for all. Data, random numbers and the vectors of
# the state are each network's own: their names end in its number. The loss is the mean of theirs, and so is the
# prediction.


def name_in_network(name: str, number: int) -> str:
    """Return the name of data or of a tensor of the state of one of several networks."""
    return f"{name}/{number}"


def _joined_steps(steps: Sequence[StepGraph], columns: Iterable[str]) -> StepGraph:
    """Return the step of all networks, made of their graphs; only its data may be named like one of ``columns``."""
    first, op = steps[0], _new_graph(steps[0].model)
    # Fixed names: of data, which the preprocessing computes, and of vectors, which files of a state hold.
    op.taken.update(columns)
    for number, step in enumerate(steps):
        vectors = (one.name for one in step.state if one.role != STEP)
        op.taken.update(name_in_network(name, number) for name in (*step.data, *vectors))
    # The inputs that all networks read.
    before = {value.name: value for value in first.model.graph.inputs}
    count = [one.name for one in first.state if one.role == STEP]
    common = [*(one.name for one in first.targets), first.weight, first.rate, *first.factors.values(), *count]
    shared = {name: _add_input(op, before[name], op.taken.free(name)) for name in common}
    # The step of each network, with inputs of its own beside the shared ones.
    inputs, outputs = list[dict[str, ir.Value]](), list[dict[str, ir.Value]]()
    for number, step in enumerate(steps):
        graph, given = step.model.graph, dict(shared)
        for value in graph.inputs:
            if (name := value.name or "") not in shared:
                own = name_in_network(name, number)
                given[name] = _add_input(op, value, op.taken.free(own) if name in step.random else own)
        names = [value.name or "" for value in graph.outputs]
        results = append_graph(op, graph, [given[value.name or ""] for value in graph.inputs])
        inputs.append(given)
        outputs.append(dict(zip(names, results, strict=True)))
    # The mean of the losses, and the next state: the number of steps once, the vectors of each network.
    loss = op.taken.free("loss")
    total = op.Mean(*(own[step.loss] for step, own in zip(steps, outputs, strict=True)))
    append_output(op.graph, total, loss, outputs[0][first.loss])
    counts = [(0, one) for one in first.state if one.role == STEP]
    each = [(number, one) for number, step in enumerate(steps) for one in step.state if one.role != STEP]
    state = []
    for number, one in (*counts, *each):
        name = inputs[number][one.name].name or ""
        value = outputs[number][one.output]
        state.append(replace(one, name=name, output=op.taken.free(f"new_{name}")))
        append_output(op.graph, value, state[-1].output, value)
    op.graph.sort()
    return StepGraph(
        model=ir.Model(op.graph, ir_version=first.model.ir_version),
        data=tuple(own[name].name or "" for own, step in zip(inputs, steps, strict=True) for name in step.data),
        targets=tuple(TargetInput(shared[one.name].name or "") for one in first.targets),
        weight=shared[first.weight].name or "",
        rate=shared[first.rate].name or "",
        loss=loss,
        random=tuple(own[name].name or "" for own, step in zip(inputs, steps, strict=True) for name in step.random),
        state=tuple(state),
        batch_size=first.batch_size,
        factors={role: shared[name].name or "" for role, name in first.factors.items()},
    )


def _joined_predictions(each: Sequence[PredictGraph], decoding: Decoding) -> PredictGraph:
    """Return the graph of the mean prediction, made of the networks' graphs."""
    first = each[0].model
    op = _new_graph(each[0].model)
    state = dict[str, str]()
    likes = list(first.graph.outputs)
    names = [value.name or "" for value in first.graph.outputs]
    results = []
    for number, one in enumerate(each):
        inputs = one.model.graph.inputs
        own = [_add_input(op, value, name_in_network(value.name or "", number)) for value in inputs]
        op.taken.update(value.name or "" for value in own)
        state |= {name_in_network(name, number): name_in_network(known, number) for name, known in one.state.items()}
        results.append(append_graph(op, one.model.graph, own))
    op.taken.update(names)
    classes = decoding.classes if isinstance(decoding.classes, np.ndarray) else None
    for value, like, name in zip(averaged_predictions(op, results, decoding.task, classes), likes, names, strict=True):
        append_output(op.graph, value, name, like)
    model = ir.Model(op.graph, ir_version=first.ir_version)
    keep_outputs(model, list(op.graph.outputs))  # drops the labels of the single networks
    remove_unread_initializers(op.graph)
    op.graph.sort()
    return PredictGraph(model, state)


def _new_graph(like: ir.Model) -> GraphBuilder:
    opsets = dict(like.graph.opset_imports)
    return GraphBuilder(ir.Graph([], [], nodes=[], name="networks", opset_imports=opsets), prefix="network")


def _add_input(op: GraphBuilder, like: ir.Value, name: str) -> ir.Value:
    value = copy_type(ir.Value(name=name), like)
    op.graph.inputs.append(value)
    return value

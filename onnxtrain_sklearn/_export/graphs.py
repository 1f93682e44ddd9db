"""The graphs of a folder, all made from the graph of a step: an epoch, predictions, several networks.

``training_graphs`` returns step and predictions: of one network, or of several that share minibatches. If a table is
preprocessed before the network, that graph is put in front of both. ``graph_entries`` adds the epoch, and makes a small
file of each graph that a ``form`` has, with the role of each input and output.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnx_ir as ir

from .._inference.ensemble import averaged_predictions
from .._inference.graph import Head, inference_model
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
from .source import (
    AVERAGE,
    PARAMETERS,
    STATISTICS,
    STEP,
    TARGETS,
    ExportSource,
    StateTensor,
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


@dataclass(frozen=True, eq=False)
class GraphEntry:
    """A graph of the folder, as a model and as the file's content, with the roles of its inputs and outputs by name."""

    model: ir.Model
    proto: onnx.ModelProto
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def step_entry(step: StepGraph, proto: onnx.ModelProto) -> GraphEntry:
    """Return the entry of the graph of a step."""
    return GraphEntry(step.model, proto, _roles(step), {step.loss: "loss", **_state_outputs(step)})


def epoch_entry(epoch: EpochGraph, proto: onnx.ModelProto) -> GraphEntry:
    """Return the entry of the graph of an epoch."""
    roles = _roles(epoch.step) | {epoch.order: "order"}
    return GraphEntry(epoch.model, proto, roles, {epoch.loss: "losses", **_state_outputs(epoch.step)})


def predict_entry(predict: PredictGraph, proto: onnx.ModelProto) -> GraphEntry:
    """Return the entry of the graph that predicts."""
    roles = {value.name or "": "data" for value in predict.model.graph.inputs} | dict.fromkeys(predict.state, "state")
    return GraphEntry(predict.model, proto, roles, {v.name or "": "prediction" for v in predict.model.graph.outputs})


def _roles(step: StepGraph) -> dict[str, str]:
    """Return the roles of the inputs of a step by name."""
    roles = dict.fromkeys(step.data, "data")
    roles |= {one.name: "target" for one in step.targets}
    roles |= {one.factor: "target_weight" for one in step.targets if one.factor is not None}
    roles |= {step.weight: "sample_weight", step.rate: "learning_rate"}
    roles |= {name: role for role, name in step.factors.items()}
    return roles | dict.fromkeys(step.random, "random") | {one.name: "state" for one in step.state}


def _state_outputs(step: StepGraph) -> dict[str, str]:
    return {one.output: "state" for one in step.state}


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


@dataclass(frozen=True, eq=False)
class EpochGraph:
    """The graph of an epoch; its inputs and outputs have the names of the step's.

    The input ``order`` of shape (steps, batch) holds the row numbers of each minibatch; -1 is a place without a row.
    Learning rates and random numbers have one more axis than those of a step, the first one.
    """

    model: ir.Model
    step: StepGraph
    order: str
    loss: str


def epoch_graph(step: StepGraph) -> EpochGraph:
    """Return the graph that runs the step for each row of ``order``."""
    given = {value.name or "": value for value in step.model.graph.inputs}
    op = GraphBuilder(
        ir.Graph([], [], nodes=[], name="epoch", opset_imports=dict(step.model.opset_imports)), prefix="epoch"
    )
    op.taken.update(given)
    state = [one.name for one in step.state]
    outer = {name: _outer_input(op, value, name, step) for name, value in given.items()}
    order = ir.val(op.taken.free("order"), ir.DataType.INT64, ("S", step.batch))
    op.graph.inputs.append(order)
    body = _loop_body(op, step, outer, order)
    count = op.Squeeze(op.Shape(order, start=0, end=1) if op.opset >= 15 else _count_of_steps(op, order), axes=[0])
    results = op.emit(
        "Loop", count, np.array(True), *(outer[name] for name in state), body=body.graph, outputs=len(state) + 1
    )
    losses = op.taken.free("losses")
    loss = next(v for v in step.model.graph.outputs if v.name == step.loss)
    append_output(op.graph, results[-1], losses, ir.val("like", loss.dtype, ("S",)))
    for one, value in zip(step.state, results, strict=False):
        append_output(op.graph, value, one.output, given[one.name])
    model = ir.Model(op.graph, ir_version=step.model.ir_version)
    return EpochGraph(model, step, order.name or "", losses)


def _by_step(step: StepGraph) -> set[str]:
    """Return the names of the inputs that have a value for each step."""
    return {step.rate, *step.random, *step.factors.values()}


def _count_of_steps(op: GraphBuilder, order: ir.Value) -> ir.Value:
    return op.Slice(op.Shape(order), starts=[0], ends=[1], axes=[0])


def _outer_input(op: GraphBuilder, value: ir.Value, name: str, step: StepGraph) -> ir.Value:
    """Add the input of the epoch that stands for an input of the step."""
    sizes = list(value.shape or ())
    shape = ["N", *sizes[1:]] if name in (*step.by_row, step.weight) else sizes
    shape = ["S", *sizes] if name in _by_step(step) else shape
    own = ir.Value(name=name, type=value.type, shape=ir.Shape(shape))
    op.graph.inputs.append(own)
    return own


def _loop_body(op: GraphBuilder, step: StepGraph, outer: Mapping[str, ir.Value], order: ir.Value) -> GraphBuilder:
    """Return the builder of the loop's body: gather the minibatch, take the step."""
    body, graph = op.body("body"), step.model.graph.clone()
    taken = list(graph.initializers.values())
    graph.initializers.clear()
    for value in taken:
        value.name = op.taken.free(f"step/{value.name}")
        op.graph.initializers.add(value)
    i = body.input("i", ir.DataType.INT64, ())
    going = body.input("going", ir.DataType.BOOL, ())
    rows = body.Gather(order, i)
    # A place without a row takes one of the minibatch, with weight 0: no further row of an embedding occurs.
    kept = body.Where(body.Less(rows, 0), body.ReduceMax(rows, keepdims=False), rows)
    inputs: dict[str, ir.Value] = {}
    for value in graph.inputs:
        name = value.name or ""
        inputs[name] = _of_step(body, step, value, outer[name], i, rows, kept)
    stays = copy_type(body.Identity(going), going)
    results = append_nodes(body, graph, [inputs[value.name or ""] for value in graph.inputs])
    for result, old in zip(results, step.model.graph.outputs, strict=True):
        copy_type(result, old)
    body.graph.outputs.extend([stays, *results[1:], results[0]])
    body.graph.sort()
    return body


def _of_step(
    body: GraphBuilder,
    step: StepGraph,
    value: ir.Value,
    outer: ir.Value,
    i: ir.Value,
    rows: ir.Value,
    kept: ir.Value,
) -> ir.Value:
    """Return the value of an input of the step in the body: gathered for this step, or carried through the loop."""
    name = value.name or ""
    if name in _by_step(step):
        return body.Gather(outer, i)
    if name == step.weight:
        own = body.Gather(outer, kept)
        present = body.Cast(body.GreaterOrEqual(rows, 0), to=value.dtype or ir.DataType.FLOAT)
        return body.Mul(own, present)
    if name in step.by_row:
        return body.Gather(outer, kept)
    assert value.dtype is not None
    return body.input(name, value.dtype, [int(str(d)) for d in value.shape or ()])


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


def joined_graphs(source: ExportSource) -> tuple[StepGraph, PredictGraph]:
    """Return the step and the predictions of the network and of the others that are trained beside it."""
    each = (source, *source.others)
    steps = [step_graph(one) for one in each]
    predictions = [predict_graph(one, step) for one, step in zip(each, steps, strict=True)]
    columns = () if source.front is None else source.front.graph.inputs
    return _joined_steps(steps, [value.name or "" for value in columns]), _joined_predictions(predictions, source.head)


def name_in_network(name: str, number: int) -> str:
    """Return the name of data or of a tensor of the state of one of several networks."""
    return f"{name}/{number}"


JoinedValues = Mapping[str, ir.Value]
"""Values of the joined graph by the names that they have in the graph of one network."""


@dataclass(frozen=True, eq=False)
class _Network:
    """The step of one network, and what its inputs and outputs have become."""

    step: StepGraph
    inputs: JoinedValues
    outputs: JoinedValues

    def names(self, inputs: Iterable[str]) -> tuple[str, ...]:
        """Return the names that these inputs have now."""
        return tuple(self.inputs[name].name or "" for name in inputs)


def _joined_steps(steps: Sequence[StepGraph], columns: Iterable[str]) -> StepGraph:
    """Return the step of all networks, made of their graphs; only its data may be named like one of ``columns``."""
    first, op = steps[0], _new_graph(steps[0].model)
    exact = [name for number, step in enumerate(steps) for name in _exact_names(step, number)]
    op.taken.update(columns, exact)
    before = {value.name: value for value in first.model.graph.inputs}
    shared = {name: _add_input(op, before[name], op.taken.free(name)) for name in _shared_names(first)}
    networks = [_added(op, step, number, shared) for number, step in enumerate(steps)]
    known, loss = networks[0], op.taken.free("loss")
    total = op.Mean(*(one.outputs[one.step.loss] for one in networks))
    append_output(op.graph, total, loss, known.outputs[first.loss])
    state = tuple(_joined_state(op, networks))
    op.graph.sort()
    return StepGraph(
        model=ir.Model(op.graph, ir_version=first.model.ir_version),
        data=tuple(name for one in networks for name in one.names(one.step.data)),
        targets=tuple(map(TargetInput, known.names(one.name for one in first.targets))),
        weight=shared[first.weight].name or "",
        rate=shared[first.rate].name or "",
        loss=loss,
        random=tuple(name for one in networks for name in one.names(one.step.random)),
        state=state,
        batch=first.batch,
        factors={role: shared[name].name or "" for role, name in first.factors.items()},
    )


def _new_graph(like: ir.Model) -> GraphBuilder:
    opsets = dict(like.graph.opset_imports)
    return GraphBuilder(ir.Graph([], [], nodes=[], name="networks", opset_imports=opsets), prefix="network")


def _shared_names(step: StepGraph) -> list[str]:
    """Return the names of the inputs that all networks read."""
    count = [one.name for one in step.state if one.role == STEP]
    return [*(one.name for one in step.targets), step.weight, step.rate, *step.factors.values(), *count]


def _exact_names(step: StepGraph, number: int) -> Iterator[str]:
    """Yield the fixed names: those of data, which the preprocessing computes, and of vectors in files of a state."""
    vectors = (one.name for one in step.state if one.role != STEP)
    yield from (name_in_network(name, number) for name in (*step.data, *vectors))


def _add_input(op: GraphBuilder, like: ir.Value, name: str) -> ir.Value:
    value = copy_type(ir.Value(name=name), like)
    op.graph.inputs.append(value)
    return value


def _added(op: GraphBuilder, step: StepGraph, number: int, shared: JoinedValues) -> _Network:
    """Append the step of a network, with inputs of its own beside the shared ones."""
    graph = step.model.graph
    inputs, outputs = dict(shared), [value.name or "" for value in graph.outputs]
    for value in graph.inputs:
        if (name := value.name or "") not in shared:
            own = name_in_network(name, number)
            inputs[name] = _add_input(op, value, op.taken.free(own) if name in step.random else own)
    results = append_graph(op, graph, [inputs[value.name or ""] for value in graph.inputs])
    return _Network(step, inputs, dict(zip(outputs, results, strict=True)))


def _joined_state(op: GraphBuilder, networks: Sequence[_Network]) -> Iterator[StateTensor]:
    """Yield the number of steps and the vectors of each network, as the inputs are; make their next values outputs."""
    counts = [(networks[0], one) for one in networks[0].step.state if one.role == STEP]
    vectors = ((network, one) for network in networks for one in network.step.state if one.role != STEP)
    for network, one in (*counts, *vectors):
        name, value = network.inputs[one.name].name or "", network.outputs[one.output]
        found = replace(one, name=name, output=op.taken.free(f"new_{name}"))
        append_output(op.graph, value, found.output, value)
        yield found


def _joined_predictions(each: Sequence[PredictGraph], head: Head) -> PredictGraph:
    """Return the graph of the mean prediction, made of the networks' graphs."""
    first, op, state = each[0].model, _new_graph(each[0].model), dict[str, str]()
    likes, names, results = list(first.graph.outputs), [value.name or "" for value in first.graph.outputs], []
    for number, one in enumerate(each):
        inputs = one.model.graph.inputs
        own = [_add_input(op, value, name_in_network(value.name or "", number)) for value in inputs]
        op.taken.update(value.name or "" for value in own)
        state |= {name_in_network(name, number): name_in_network(known, number) for name, known in one.state.items()}
        results.append(append_graph(op, one.model.graph, own))
    op.taken.update(names)
    classes = head.classes if isinstance(head.classes, np.ndarray) else None
    for value, like, name in zip(averaged_predictions(op, results, head.task, classes), likes, names, strict=True):
        append_output(op.graph, value, name, like)
    model = ir.Model(op.graph, ir_version=first.ir_version)
    keep_outputs(model, list(op.graph.outputs))  # drops the labels of the single networks
    remove_unread_initializers(op.graph)
    op.graph.sort()
    return PredictGraph(model, state)

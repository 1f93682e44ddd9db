"""Several networks in one training graph: each takes the step that it would take alone, on the same minibatch.

Targets, weights of the rows, rates and the number of steps are one for all. Data, random numbers and the vectors of the
state are each network's own: their names end in its number. The loss is the mean of theirs, and so is the prediction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from .._inference.ensemble import averaged_predictions
from .._inference.graph import Head
from .._ir.edits import append_graph, append_output, keep_outputs, remove_unread_initializers
from ..graph import GraphBuilder, copy_type
from .predict_graph import PredictGraph, predict_graph
from .source import STEP, ExportSource, StateTensor
from .step_graph import StepGraph, step_graph
from .target_inputs import TargetInput


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

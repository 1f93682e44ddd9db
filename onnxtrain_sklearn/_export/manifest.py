"""The manifest of a folder of training graphs: what a loop in any language needs to know."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from .._inference.head import Head
from .._support.components import Component
from .epoch_graph import EpochGraph
from .predict_graph import PredictGraph
from .row_weights import label_weights
from .source import ExportSource, OutputSource, StateTensor
from .step_graph import StepGraph
from .target_inputs import TargetInput

FORMAT, VERSION = "onnxtrain-sklearn training", 1
MANIFEST, STATE_FILE = "manifest.json", "state.safetensors"


@dataclass(frozen=True, eq=False)
class GraphEntry:
    """A graph of the folder: its roles of inputs and outputs, by name, and the file's content."""

    model: ir.Model
    proto: onnx.ModelProto
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def step_entry(step: StepGraph, proto: onnx.ModelProto) -> GraphEntry:
    """Return the entry of the graph of a step."""
    return GraphEntry(step.model, proto, _roles(step), {step.loss: "loss"} | _new_state(step))


def epoch_entry(epoch: EpochGraph, proto: onnx.ModelProto) -> GraphEntry:
    """Return the entry of the graph of an epoch."""
    roles = _roles(epoch.step) | {epoch.order: "order"}
    return GraphEntry(epoch.model, proto, roles, {epoch.loss: "losses"} | _new_state(epoch.step))


def predict_entry(predict: PredictGraph, proto: onnx.ModelProto) -> GraphEntry:
    """Return the entry of the graph that predicts."""
    roles = {value.name or "": "data" for value in predict.model.graph.inputs} | dict.fromkeys(predict.state, "state")
    return GraphEntry(predict.model, proto, roles, {v.name or "": "prediction" for v in predict.model.graph.outputs})


def _roles(step: StepGraph) -> dict[str, str]:
    roles = dict.fromkeys(step.data, "data")
    roles |= {one.name: "target" for one in step.targets}
    roles |= {one.factor: "target_weight" for one in step.targets if one.factor is not None}
    roles |= {step.weight: "sample_weight", step.rate: "learning_rate"}
    roles |= {name: role for role, name in step.factors.items()}
    return roles | dict.fromkeys(step.random, "random") | {one.name: "state" for one in step.state}


def _new_state(step: StepGraph) -> dict[str, str]:
    return {one.output: "state" for one in step.state}


def manifest_of(
    source: ExportSource, step: StepGraph, entries: Mapping[str, GraphEntry], files: Mapping[str, Mapping[str, object]]
) -> dict[str, Any]:
    """Return the manifest, as values of JSON; ``entries`` are the graphs by name, ``files`` hashes by file."""
    settings = source.parts.settings
    return {
        "format": FORMAT,
        "version": VERSION,
        **source.facts,
        **_facts_of_targets(source, step),
        "optimizer": component_fact(settings.optimizer),
        "penalty": {"alpha": settings.alpha, "l1_ratio": settings.l1_ratio},
        "max_grad_norm": settings.max_grad_norm,
        "ema_decay": settings.ema_decay,
        "inputs": _named_inputs(step, entries.get("epoch")),
        "loss_output": step.loss,
        "batch_size": step.batch,
        "padding": source.parts.meeting is None,
        "random": _fact_of_random_numbers(source, step),
        "state": {"file": STATE_FILE, "tensors": [_state_fact(one) for one in step.state]},
        "graphs": {name: _graph_fact(name, entry) for name, entry in entries.items()},
        "files": dict(files),
    }


def _fact_of_random_numbers(source: ExportSource, step: StepGraph) -> dict[str, Any]:
    """Return which inputs take random numbers; ``minibatches``: the first axis of theirs, where they have it."""
    fact = {"inputs": list(step.random), "seed": source.parts.settings.seed, "draws": source.parts.state.draws}
    return fact if source.minibatches == 1 else {**fact, "minibatches": source.minibatches}


def _named_inputs(step: StepGraph, epoch: GraphEntry | None) -> dict[str, str]:
    """Return the inputs that a loop gives beside data and state, by role."""
    order = {} if epoch is None else {role: name for name, role in epoch.inputs.items() if role == "order"}
    return {"sample_weight": step.weight, "learning_rate": step.rate, **step.factors, **order}


def component_fact(component: object) -> dict[str, Any]:
    """Return name and parameters of a loss, an optimizer or a schedule."""
    name = vars(type(component)).get("name", type(component).__name__)  # a class that inherits its name is another one
    parameters = component.get_params(deep=False) if isinstance(component, Component) else {}
    return {"name": str(name), "parameters": {key: json_value(value) for key, value in parameters.items()}}


def json_value(value: object) -> Any:
    """Return a value of JSON: numbers, texts and lists of them as they are, other objects as text."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray | list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, Component):
        return component_fact(value)
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def _class_labels(classes: np.ndarray | list[np.ndarray] | None) -> Any:
    return None if classes is None else json_value([json_value(c) for c in classes])


def _facts_of_targets(source: ExportSource, step: StepGraph) -> dict[str, Any]:
    """Return what is trained: task, classes, target and loss, or those of each of several outputs."""
    if source.outputs:
        facts = [_output_fact(one, name) for one, name in zip(source.outputs, step.targets, strict=True)]
        return {"task": "several outputs", "classes": None, "target": None, "targets": facts, "loss": None}
    head, positions, weights = source.head, source.head.positions is not None, label_weights(source)
    return {
        "task": head.task,
        "classes": _class_labels(head.classes),
        "target": _target_fact(head, step.targets[0], weights) | _ignored_fact(source.ignore_label, positions),
        "loss": component_fact(source.parts.settings.loss),
    }


def _output_fact(one: OutputSource, target: TargetInput) -> dict[str, Any]:
    """Return what the manifest says of one of several outputs."""
    head, name = one.head, one.loss.name
    further = f"{name}_probabilities" if head.has_probabilities else f"{name}_scores"
    return {
        "output": name,
        "task": head.task,
        "classes": _class_labels(head.classes),
        **_target_fact(head, target, one.label_weights),
        **_ignored_fact(one.ignore_label, head.positions is not None),
        "weight_input": target.factor,
        "loss": component_fact(one.loss.loss),
        "loss_weight": one.loss.weight,
        "predictions": [name] if head.task == "regression" else [f"{name}_label", further],
    }


def _target_fact(head: Head, target: TargetInput, known: tuple[float, ...] | None) -> dict[str, Any]:
    fact = {"input": target.name, "kind": _kind_of_target(head), "row_shape": list(head.row_shape)}
    return fact | {"label_weights": None if known is None else list(known)}


def _ignored_fact(label: object, at_positions: bool) -> dict[str, Any]:
    """Return the label at a position that does not count; JSON has no NaN."""
    label = json_value(label)
    if isinstance(label, float) and math.isnan(label):
        return {"ignore_label": None, "ignores_nan": True}
    return {"ignore_label": label} if at_positions else {}


def _kind_of_target(head: Head) -> str:
    """Return what the target holds: indices of classes, 0 or 1, numbers, or indices at each position."""
    if head.positions is not None:
        return "class index at each position, -1: ignored"
    kinds = {"multiclass": "class index", "binary": "class index as a number", "regression": "number"}
    return kinds.get(head.task, "indicator")


def _state_fact(one: StateTensor) -> dict[str, Any]:
    fact: dict[str, Any] = {"name": one.name, "output": one.output, "role": one.role}
    fact |= {"type": one.value.dtype.name, "shape": list(one.value.shape)}
    return fact | ({"tensors": list(_member_facts(one.members))} if one.members else {})


def _member_facts(members: Iterable[tuple[str, tuple[int, ...]]]) -> Iterable[dict[str, Any]]:
    offset = 0
    for name, shape in members:
        yield {"name": name, "shape": list(shape), "offset": offset}
        offset += int(np.prod(shape, dtype=np.int64))


def _graph_fact(name: str, entry: GraphEntry) -> dict[str, Any]:
    graph = entry.model.graph
    return {
        "file": f"{name}.onnx",
        "ir_version": entry.proto.ir_version,
        "opset": {one.domain: one.version for one in entry.proto.opset_import},
        "inputs": _value_facts(graph.inputs, entry.inputs),
        "outputs": _value_facts(graph.outputs, entry.outputs),
        "operators": sorted({f"{n.domain}.{n.op_type}".lstrip(".") for n in graph.all_nodes()}),
    }


def _value_facts(values: Sequence[ir.Value], roles: Mapping[str, str]) -> list[dict[str, Any]]:
    return [_value_fact(value, roles[value.name or ""]) for value in values]


def _value_fact(value: ir.Value, role: str) -> dict[str, Any]:
    shape = None if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
    kind = value.dtype
    name = "sequence" if kind is None or isinstance(value.type, ir.SequenceType) else kind.name.lower()
    names = {"float": "float32", "double": "float64"}
    return {"name": value.name, "role": role, "type": names.get(name, name), "shape": shape}

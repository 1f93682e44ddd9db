"""The manifest of training graphs: all that a loop in any language has to know about them, as JSON.

``manifest_of`` makes it from the training, the step and the entries of the graphs (``GraphEntry``: the role of each
input and output). ``read_manifest`` reads one, which may come from an untrusted source, so it is checked against the
patterns of ``SHAPE`` before it is used. The JSON schema in the documentation describes it to authors of other loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from .._inference.graph import Decoding
from .._training.rows_meet import where_rows_meet
from .._utils.params import Component
from .._utils.untrusted_text import json_object
from ..exceptions import ModelError
from ..optimizers import Optimizer
from ..optimizers.base import OPTIONS
from .exported import ExportedOutput, ExportedTraining, StateTensor
from .graphs import GraphEntry
from .step_graph import StepGraph, TargetInput, label_weights

FORMAT, VERSION = "onnxtrain-sklearn training", 1
MANIFEST, STATE_FILE = "manifest.json", "state.safetensors"


def manifest_of(
    exported: ExportedTraining,
    step: StepGraph,
    entries: Mapping[str, GraphEntry],
    files: Mapping[str, Mapping[str, object]],
) -> dict[str, Any]:
    """Return the manifest, as values of JSON; ``entries`` are the graphs by name, ``files`` hashes by file."""
    settings = exported.parts.settings
    # the inputs that a loop gives beside data and state, by role
    order = {} if "epoch" not in entries else {r: n for n, r in entries["epoch"].inputs.items() if r == "order"}
    inputs = {"sample_weight": step.weight, "learning_rate": step.rate, **step.factors, **order}
    random = {"inputs": list(step.random), "seed": settings.seed, "draws": exported.parts.optimizer_state.draws}
    if exported.minibatches > 1:
        random["minibatches"] = exported.minibatches  # the first axis of the random inputs
    return {
        "format": FORMAT,
        "version": VERSION,
        **exported.facts,
        **_facts_of_targets(exported, step),
        "optimizer": component_fact(settings.optimizer),
        "penalty": {"alpha": settings.alpha, "l1_ratio": settings.l1_ratio},
        "max_grad_norm": settings.max_grad_norm,
        "ema_decay": settings.ema_decay,
        "inputs": inputs,
        "loss_output": step.loss,
        "batch_size": step.batch_size,
        "padding": where_rows_meet(exported.parts.graph, exported.parts.settings) is None,
        "random": random,
        "state": {"file": STATE_FILE, "tensors": [_state_fact(one) for one in step.state]},
        "graphs": {name: _graph_fact(name, entry) for name, entry in entries.items()},
        "files": dict(files),
    }


def component_fact(component: object) -> dict[str, Any]:
    """Return name and parameters of a loss, an optimizer or a schedule, as values of JSON."""
    # a subclass of a component inherits its registered name, but is another component: it goes by the name of its class
    name = vars(type(component)).get("name", type(component).__name__)
    parameters = component.get_params(deep=False) if isinstance(component, Component) else {}
    own = {key: value for key, value in parameters.items() if not (key in OPTIONS and isinstance(component, Optimizer))}
    return {"name": str(name), "parameters": {key: json_value(value) for key, value in own.items()}}


def json_value(value: object) -> Any:
    """Return a value as JSON: numbers, texts and lists of them as they are, other objects as text."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray | list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, Component):
        return component_fact(value)
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def _class_labels(classes: np.ndarray | list[np.ndarray] | None) -> Any:
    return None if classes is None else json_value([json_value(c) for c in classes])


def _facts_of_targets(exported: ExportedTraining, step: StepGraph) -> dict[str, Any]:
    """Return task, classes, target and loss, or those of each of several outputs."""
    if exported.outputs:
        facts = [_output_fact(one, name) for one, name in zip(exported.outputs, step.targets, strict=True)]
        return {"task": "several outputs", "classes": None, "target": None, "targets": facts, "loss": None}
    decoding = exported.decoding
    positions = exported.decoding.positions is not None
    weights = label_weights(exported)
    return {
        "task": decoding.task,
        "classes": _class_labels(decoding.classes),
        "target": _target_fact(decoding, step.targets[0], weights) | _ignored_fact(exported.ignore_label, positions),
        "loss": component_fact(exported.parts.settings.loss),
    }


def _output_fact(one: ExportedOutput, target: TargetInput) -> dict[str, Any]:
    """Return the manifest's entry for one of several outputs."""
    decoding, name = one.decoding, one.loss.name
    further = f"{name}_probabilities" if decoding.has_probabilities else f"{name}_scores"
    return {
        "output": name,
        "task": decoding.task,
        "classes": _class_labels(decoding.classes),
        **_target_fact(decoding, target, one.label_weights),
        **_ignored_fact(one.ignore_label, decoding.positions is not None),
        "weight_input": target.factor,
        "loss": component_fact(one.loss.loss),
        "loss_weight": one.loss.weight,
        "predictions": [name] if decoding.task == "regression" else [f"{name}_label", further],
    }


def _target_fact(decoding: Decoding, target: TargetInput, known: tuple[float, ...] | None) -> dict[str, Any]:
    # the kind of the target's values, in words for authors of loops
    kinds = {"multiclass": "class index", "binary": "class index as a number", "regression": "number"}
    kind = kinds.get(decoding.task, "indicator")
    if decoding.positions is not None:
        kind = "class index at each position, -1: ignored"
    fact = {"input": target.name, "kind": kind, "row_shape": list(decoding.row_shape)}
    return fact | {"label_weights": None if known is None else list(known)}


def _ignored_fact(label: object, at_positions: bool) -> dict[str, Any]:
    """Return the label whose positions do not count; NaN, which JSON lacks, has a key of its own."""
    label = json_value(label)
    if isinstance(label, float) and math.isnan(label):
        return {"ignore_label": None, "ignores_nan": True}
    return {"ignore_label": label} if at_positions else {}


def _state_fact(one: StateTensor) -> dict[str, Any]:
    fact: dict[str, Any] = {"name": one.name, "output": one.output, "role": one.role}
    fact |= {"type": one.value.dtype.name, "shape": list(one.value.shape)}
    if one.members:
        sizes = [math.prod(shape) for _, shape in one.members]
        offsets = accumulate(sizes, initial=0)
        fact["tensors"] = [
            {"name": name, "shape": list(shape), "offset": offset}
            for (name, shape), offset in zip(one.members, offsets, strict=False)
        ]
    return fact


def _graph_fact(name: str, entry: GraphEntry) -> dict[str, Any]:
    graph = entry.model.graph
    return {
        "file": f"{name}.onnx",
        "ir_version": entry.proto.ir_version,
        "opset": {one.domain: one.version for one in entry.proto.opset_import},
        "inputs": [_value_fact(value, entry.inputs[value.name or ""]) for value in graph.inputs],
        "outputs": [_value_fact(value, entry.outputs[value.name or ""]) for value in graph.outputs],
        "operators": sorted({f"{n.domain}.{n.op_type}".lstrip(".") for n in graph.all_nodes()}),
    }


def _value_fact(value: ir.Value, role: str) -> dict[str, Any]:
    shape = None if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
    kind = value.dtype
    name = "sequence" if kind is None or isinstance(value.type, ir.SequenceType) else kind.name.lower()
    names = {"float": "float32", "double": "float64"}
    return {"name": value.name, "role": role, "type": names.get(name, name), "shape": shape}


# Reading a manifest. ``SHAPE`` holds the keys that :class:`~.loop.Training` and ``load_state`` read, and no others.


_LARGEST = 2**53
"""Integers below it are exact in every reader of JSON: many read numbers as float64."""


def read_manifest(text: bytes | str, what: str) -> dict[str, Any]:
    """Return the manifest in a text; raise ModelError, with a message that begins with ``what``, if it is not valid."""
    manifest = json_object(text, what)
    if manifest.get("format") != FORMAT:
        raise ModelError(f"{what} is not the manifest of training graphs: its 'format' must be {FORMAT!r}.")
    if manifest.get("version") != VERSION:
        raise ModelError(
            f"{what} is of version {manifest.get('version')!r}, but this package reads version {VERSION}. Install the "
            f"version of onnxtrain-sklearn that wrote it ({str(manifest.get('generator'))[:100]}), or export it again."
        )
    _require(manifest, SHAPE, "", what)
    _require_targets(manifest, what)
    tensors = [one["name"] for one in manifest["state"]["tensors"]]
    if len(set(tensors)) < len(tensors):
        raise _wrong(what, "state.tensors", "names a tensor twice")
    if other := manifest["graphs"].keys() - {"step", "epoch", "predict"}:
        raise _wrong(what, "graphs", f"names the graph {min(other)!r}, which is none of step, epoch and predict")
    for key, graph in manifest["graphs"].items():
        if graph["file"] not in manifest["files"]:
            raise _wrong(what, f"graphs.{key}.file", "is not among the files")
    if manifest["graphs"] and manifest["state"]["file"] not in manifest["files"]:
        raise _wrong(what, "state.file", "is not among the files")
    return manifest


def _require_targets(manifest: Mapping[str, Any], what: str) -> None:
    """Raise unless there is a target, or several, with the classes that it needs."""
    several = "targets" in manifest
    if several and (not manifest["targets"] or manifest["target"] is not None):
        raise _wrong(what, "targets", "must be the targets of outputs that are trained together, or absent")
    if not several and manifest["target"] is None:
        raise _wrong(what, "target", "must be an object")
    own = {"task": manifest.get("task"), "classes": manifest.get("classes")}
    found = manifest["targets"] if several else [{**manifest["target"], **own}]
    for one in found:
        _require_classes(one, what)
        if several:
            _require(one, _OUTPUT, "targets.", what)


def _require_classes(one: Mapping[str, Any], what: str) -> None:
    """Raise unless a target that holds labels has classes, and as many weights."""
    task: Any = one.get("task")
    classes: Any = one.get("classes")
    weights: Any = one.get("label_weights")
    if task == "several outputs" or not isinstance(task, str):
        raise _wrong(what, "task", f"is {task!r}, which no target has")
    if task == "regression" and "position" not in one["kind"]:
        return
    several: list[Any] = classes if task == "multioutput" and isinstance(classes, list) else [classes]
    if not several or not all(_are_labels(own) for own in several):
        raise _wrong(what, "classes", "must be lists of different labels, all texts, truth values or numbers")
    if weights is not None and len(weights) != len(several[0]):
        raise _wrong(what, "label_weights", f"has {len(weights)} numbers for {len(several[0])} classes")


def _are_labels(values: object) -> bool:
    if not isinstance(values, list) or not values:
        return False
    if not all(isinstance(one, bool | int | float | str) for one in values) or len(set(map(repr, values))) < len(
        values
    ):
        return False
    if any(isinstance(one, int) and abs(one) >= 2**63 for one in values):
        return False
    kinds = {str if isinstance(one, str) else bool if isinstance(one, bool) else float for one in values}
    return len(kinds) == 1


def _wrong(what: str, key: str, why: str) -> ModelError:
    return ModelError(f"{what} is not valid: {key!r} {why}. Export the training graphs again.")


# Patterns of JSON values: a type, a tuple of choices, a list of one pattern, an object of patterns, or a ``_Kind``.


class _Kind(NamedTuple):
    """A test of a value, and a description of the values that pass it, for messages."""

    fits: Callable[[Any], bool]
    told: str


def _integer(least: int) -> _Kind:
    return _Kind(
        lambda value: type(value) is int and least <= value < _LARGEST, f"an integer of {least} or more, below 2**53"
    )


def _is_number(value: Any) -> bool:
    small = not isinstance(value, int) or abs(value) < 2**1000
    return type(value) in (int, float) and small and math.isfinite(value)


def is_plain_name(name: object) -> bool:
    """Return True if a name can be that of a file in the folder itself, on every system."""
    return isinstance(name, str) and bool(name) and name not in (".", "..") and not set(name) & set("/\\:\0")


_number = _Kind(_is_number, "a finite number")
_plain_name = _Kind(is_plain_name, "the name of a file in the folder itself")
_count = _Kind(lambda value: value is None or _integer(0).fits(value), "null or an integer of 0 or more")
_shape = _Kind(
    lambda value: isinstance(value, list) and all(map(_integer(0).fits, value)) and math.prod(value) < _LARGEST,
    "a list of sizes",
)
_label = _Kind(lambda value: value is None or isinstance(value, bool | str) or _is_number(value), "a label")
_COMPONENT = {"name": str, "parameters": dict}
_TASKS = ("regression", "binary", "multiclass", "multilabel", "multioutput", "several outputs")
_KINDS = (
    *("class index", "class index as a number", "indicator", "number"),
    "class index at each position, -1: ignored",
)
_TARGET = {
    "input": str,
    "kind": _KINDS,
    "row_shape": _shape,
    "label_weights?": (None, [_number]),
    "ignore_label?": _label,
    "ignores_nan?": bool,
}
_OUTPUT = {**_TARGET, "output": str, "weight_input": str, "predictions": [str], "label_weights": (None, [_number])}
_GRAPH = {"file": _plain_name}
SHAPE: dict[str, Any] = {
    "task": _TASKS,
    "target": (None, _TARGET),
    "targets?": [_TARGET],
    "learning_rate": _COMPONENT,
    "weight_decay_schedule?": _COMPONENT,
    "dropout_schedule?": _COMPONENT,
    "progress?": {
        "step?": _integer(0), "epoch?": _integer(0), "samples?": _integer(0), "total_steps?": _count,
        "plateaus?": _integer(0),
    },
    "hyperparameters": {
        "learning_rate_init": _number, "max_iter?": _count, "drop_last?": bool, "accumulate?": _integer(1),
    },
    "batch_size": _integer(1),
    "padding": bool,
    "random": {"inputs": [str], "seed": _integer(0), "draws": _integer(0), "minibatches?": _integer(2)},
    "state": {
        "file": _plain_name,
        "tensors": [
            {"name": str, "output": str, "role": str, "type": ("float32", "float64", "int64"), "shape": _shape},
        ],
    },
    "graphs": {"step?": _GRAPH, "epoch?": _GRAPH, "predict?": _GRAPH},
    "files": dict,
    "inputs": {
        "sample_weight": str, "learning_rate": str, "order?": str, "weight_decay_factor?": str, "dropout_factor?": str,
    },
    "loss_output": str,
    "constants?": dict,
}  # fmt: skip
"""Patterns of the keys that are read; a key that ends in a question mark may be absent. Other keys are ignored."""


def _require(value: Any, pattern: Any, key: str, what: str) -> None:
    """Raise ModelError unless a value of JSON fits a pattern."""
    if isinstance(pattern, _Kind):
        if not pattern.fits(value):
            raise _wrong(what, key, f"must be {pattern.told}, got {repr(value)[:60]}")
    elif isinstance(pattern, dict):
        if not isinstance(value, dict):
            raise _wrong(what, key, "must be an object")
        for name, inner in pattern.items():
            plain = name.removesuffix("?")
            if plain in value:
                _require(value[plain], inner, f"{key}.{plain}" if key else plain, what)
            elif plain == name:
                raise ModelError(
                    f"{what} lacks {(f'{key}.{name}' if key else name)!r}. Export the training graphs again."
                )
    elif isinstance(pattern, list):
        if not isinstance(value, list):
            raise _wrong(what, key, "must be a list")
        for i, one in enumerate(value):
            _require(one, pattern[0], f"{key}[{i}]", what)
    elif isinstance(pattern, tuple):
        plain = [one for one in pattern if one is None or isinstance(one, str)]
        if any(value is one or (isinstance(value, str) and value == one) for one in plain):
            return
        if len(plain) == len(pattern):
            raise _wrong(what, key, f"must be one of {', '.join(map(repr, plain))}, got {repr(value)[:60]}")
        # of the other patterns, a tuple has only one
        _require(value, next(one for one in pattern if not (one is None or isinstance(one, str))), key, what)
    elif not isinstance(value, pattern):
        raise _wrong(what, key, f"must be of the type {pattern.__name__}, got {repr(value)[:60]}")

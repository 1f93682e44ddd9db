"""What a manifest must hold before anything is done by it: it may come from anywhere.

:data:`SHAPE` says what :class:`~.training.Training` and ``load_state`` read; the JSON schema in the documentation
describes all of it to authors of other loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .._support.json_text import json_object
from ..exceptions import ModelError
from .manifest import FORMAT, VERSION

_LARGEST = 2**53
"""Integers below it are exact in JSON, whoever reads it."""


def read_manifest(text: bytes | str, what: str) -> dict[str, Any]:
    """Return the manifest in a text; raise ModelError, which begins with ``what``, if it is none."""
    manifest = json_object(text, what)
    if manifest.get("format") != FORMAT:
        raise ModelError(f"{what} is not the manifest of training graphs: its 'format' must be {FORMAT!r}.")
    if manifest.get("version") != VERSION:
        raise ModelError(
            f"{what} is of version {manifest.get('version')!r}, and this package reads version {VERSION}. Install the "
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
    found = manifest["targets"] if several else [{**manifest["target"], **_facts(manifest, "task", "classes")}]
    for one in found:
        _require_classes(one, what)
        if several:
            _require(one, _OUTPUT, "targets.", what)


def _facts(manifest: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: manifest.get(name) for name in names}


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


# --- patterns: a type, a tuple of values or patterns, a list of a pattern, an object of patterns, a kind ---


class _Kind(NamedTuple):
    """A test of a value, and what fits it, for messages."""

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
    """Whether a name is that of a file in a folder, on every system."""
    return isinstance(name, str) and bool(name) and name not in (".", "..") and not set(name) & set("/\\:\0")


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(map(_integer(0).fits, value)) and math.prod(value) < _LARGEST


_number = _Kind(_is_number, "a finite number")
_plain_name = _Kind(is_plain_name, "the name of a file in the folder itself")
_count = _Kind(lambda value: value is None or _integer(0).fits(value), "null or an integer of 0 or more")
_shape = _Kind(_is_shape, "a list of sizes")
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
"""The keys that are read; one that ends in a question mark may be absent. Other keys are not looked at."""


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
        _require_one_of(value, pattern, key, what)
    elif not isinstance(value, pattern):
        raise _wrong(what, key, f"must be of the type {pattern.__name__}, got {repr(value)[:60]}")


def _require_one_of(value: Any, choices: tuple[Any, ...], key: str, what: str) -> None:
    plain = [one for one in choices if one is None or isinstance(one, str)]
    if any(value is one or (isinstance(value, str) and value == one) for one in plain):
        return
    others = [one for one in choices if not (one is None or isinstance(one, str))]
    if not others:
        raise _wrong(what, key, f"must be one of {', '.join(map(repr, plain))}, got {repr(value)[:60]}")
    _require(value, others[0], key, what)

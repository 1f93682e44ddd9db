"""The pickled form of a training run: plain data that name classes.

A pickle contains no path of a private module: only public types have to be trusted, and modules can move.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

PACKAGE = __name__.partition(".")[0]

CLASSES: Mapping[str, str] = {
    "Curve": "_training.history",
    "Device": "_runtime.devices",
    "EpochLog": "_training.history",
    "FittedFile": "_given.ml_files",
    "FittedModel": "_fitted.model",
    "FlatParameters": "_training.parameters",
    "Head": "_inference.head",
    "History": "_training.history",
    "KeptTypes": "_graph.narrow",
    "OptimizerState": "_training.step",
    "LowRank": "_graph.low_rank",
    "Origin": "_fitted.provenance",
    "OutputForm": "_graph.trainable",
    "Positions": "_graph.positions",
    "Run": "_estimators.run",
    "Start": "_estimators.start",
    "TargetRange": "_data.target_range",
    "TargetScale": "_data.target_scale",
    "Table": "_fitted.tables",
    "TableColumn": "_fitted.tables",
    "TablePipeline": "_fitted.table_graph",
    "TensorSpec": "_graph.trainable",
    "TrainableModel": "_graph.trainable",
}
"""The private classes whose objects a run holds, with their current modules."""

_KIND, _STATE = f"{PACKAGE} class", "state"


def plain(value: object) -> Any:
    """Return ``value`` with objects of private classes replaced by dicts; :func:`restored` is the inverse."""
    return _plain(value, {})


def _plain(value: Any, seen: dict[int, tuple[object, object]]) -> Any:
    """Convert recursively; ``seen`` holds visited objects, so that shared objects stay shared."""
    if id(value) in seen:
        return seen[id(value)][1]
    kind = type(value)
    if f"{PACKAGE}.{CLASSES.get(kind.__name__)}" == kind.__module__:
        result: dict[str, Any] = {_KIND: kind.__name__}
        seen[id(value)] = value, result
        state = value.__getstate__() if hasattr(value, "__getstate__") else vars(value)
        result[_STATE] = {name: _plain(item, seen) for name, item in (state or {}).items()}
        return result
    if kind is dict:
        return {key: _plain(item, seen) for key, item in value.items()}
    return kind(_plain(item, seen) for item in value) if kind in (list, tuple) else value


def restored(value: object) -> Any:
    """Return ``value`` with the objects that dicts represent."""
    return _restored(value, {})


def _restored(value: Any, seen: dict[int, Any]) -> Any:
    if id(value) in seen:
        return seen[id(value)][1]
    kind: Any = type(value)
    if kind is dict and _KIND in value:
        return _object(value, value[_KIND], value[_STATE], seen)
    if kind is dict:
        return {key: _restored(item, seen) for key, item in value.items()}
    return kind(_restored(item, seen) for item in value) if kind in (list, tuple) else value


def _object(value: Any, name: str, state: Mapping[str, Any], seen: dict[int, Any]) -> Any:
    """Return the object of the class ``name`` that ``value`` represents."""
    cls = getattr(importlib.import_module(f"{PACKAGE}.{CLASSES[name]}"), name)
    result = cls.__new__(cls)
    seen[id(value)] = value, result
    found = {key: _restored(item, seen) for key, item in state.items()}
    if hasattr(result, "__setstate__"):
        result.__setstate__(found)
    else:
        vars(result).update(found)
    return result

"""Pickles, clones and copies of estimators: the fitted state as plain data without private paths, and back.

A pickle of an estimator that trains a graph contains no path of a private module: users need to trust only public
types, and private modules can move. Those of estimators for raw tables also name ``_recipes.preprocessing`` and
``_ort.devices``, which therefore stay where they are. An attribute that a pickle lacks, such as a cache, gets the
default of its field.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar

from sklearn.base import clone

from .._fitted.fitted_model import is_estimator
from .._fitted.skl2onnx_bridge import register_waiting
from .._ir.files import without_program
from .._ort import devices, packages
from .._ort.devices import Device
from .._training.programs import is_usable
from .._utils.params import copied
from ..callbacks.base import ACTIVE
from ..exceptions import warn
from .fitted_state import LiveSessions
from .parameters import SET

EstimatorT = TypeVar("EstimatorT")

PACKAGE = __name__.partition(".")[0]

CLASSES: Mapping[str, str] = {
    "StepKind": "_training.step",
    "Curve": "_training.history",
    "Device": "_ort.devices",
    "EpochLog": "_training.history",
    "FittedFile": "_pretrained.ml_files",
    "FittedModel": "_fitted.fitted_model",
    "FittedState": "_estimators.fitted_state",
    "FlatParameters": "_training.parameters",
    "Decoding": "_inference.graph",
    "History": "_training.history",
    "KeptTypes": "_model.precision",
    "OptimizerState": "_training.step_parts",
    "LowRank": "_model.weights",
    "Origin": "_fitted.fitted_model",
    "OutputForm": "_model.trainable",
    "OwnLoss": "_model.own_loss",
    "Positions": "_model.links",
    "Start": "_estimators.fitted_state",
    "TargetRange": "_data.target_scale",
    "TargetScale": "_data.target_scale",
    "Table": "_fitted.fitted_model",
    "TableColumn": "_fitted.fitted_model",
    "TablePipeline": "_fitted.text_encoder",
    "TensorSpec": "_model.trainable",
    "TrainableModel": "_model.trainable",
}
"""The private classes whose objects a fitted state holds, by name, with the modules that define them now."""

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
        held = {name: item for name, item in (state or {}).items() if not isinstance(item, LiveSessions)}
        result[_STATE] = {name: _plain(item, seen) for name, item in held.items()}
        return result
    if kind is dict:
        return {key: _plain(item, seen) for key, item in value.items()}
    return kind(_plain(item, seen) for item in value) if kind in (list, tuple) else value


def restored(value: object) -> Any:
    """Return ``value``, in which objects of private classes replace the dicts that :func:`plain` made of them."""
    return _restored(value, {})


def _restored(value: Any, seen: dict[int, Any]) -> Any:
    if id(value) in seen:
        return seen[id(value)][1]
    kind: Any = type(value)
    if kind is dict and _KIND in value:
        name = value[_KIND]
        cls = getattr(importlib.import_module(f"{PACKAGE}.{CLASSES[name]}"), name)
        result = cls.__new__(cls)
        seen[id(value)] = value, result
        found = {key: _restored(item, seen) for key, item in value[_STATE].items()}
        # Attributes that the pickle lacks get their defaults; constant defaults are attributes of the class already.
        for one in fields(cls) if is_dataclass(cls) else ():
            if one.name not in found and one.default_factory is not MISSING:
                vars(result)[one.name] = one.default_factory()
        if hasattr(result, "__setstate__"):
            result.__setstate__(found)
        else:
            vars(result).update(found)
        return result
    if kind is dict:
        return {key: _restored(item, seen) for key, item in value.items()}
    return kind(_restored(item, seen) for item in value) if kind in (list, tuple) else value


# Copies of an estimator: clones, deep copies, and pickles, which load even if their device or engine is missing.


def _without_programs(state: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters, in which a model that is an ONNXProgram, which cannot be copied, is replaced."""
    return state | {"model": without_program(state["model"])} if "model" in state else state


def cloned(estimator: EstimatorT) -> EstimatorT:
    """Return an unfitted copy; a fitted model among the parameters stays fitted."""
    original: Any = estimator
    parameters = _without_programs(original.get_params(deep=False))
    copies: dict[str, Any] = {n: v if n == "model" and is_estimator(v) else copied(v) for n, v in parameters.items()}
    twin = type(estimator)(**copies)
    for name in ("_metadata_request", "_sklearn_output_config"):
        if name in vars(estimator):
            setattr(twin, name, copy.deepcopy(vars(estimator)[name]))
    if SET in vars(estimator):  # clones share their callbacks, as in scikit-learn
        vars(twin)[SET] = vars(estimator)[SET]
    return twin


def state_of_copy(state: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes to pickle or copy: the parameters, and the fitted state as plain data."""
    state = _without_programs(state)
    state.pop(ACTIVE, None)  # a callback copies the estimator in training
    return {**state, "_state": plain(state["_state"])} if "_state" in state else state


def restore_copy(estimator: Any, state: Mapping[str, object]) -> None:
    """Restore a pickled or copied estimator; if its device or engine is missing here, use the CPU or another engine."""
    register_waiting()  # so that skl2onnx, imported by now, converts what is loaded here
    if "_state" not in state:
        return
    fitted = estimator._state = restored(state["_state"])
    fitted.device = resumed_device(estimator, fitted.device)
    if not is_usable(estimator.engine):
        _go_on_with(estimator, f"by the engine {estimator.engine!r}", engine="auto")


def resumed_device(estimator: object, device: Device) -> Device:
    """Start and return the device of a loaded estimator; if it is not available, warn and return the CPU."""
    found = devices.resumed(device)
    if found is not None:
        return found
    runtime = vars(estimator).get("runtime")
    if runtime is not None:
        runtime = clone(runtime).set_params(providers=None, provider_options=None)
    _go_on_with(estimator, f"on {device.providers[0]}", device="cpu", runtime=runtime)
    cpu = devices.resolve_device()
    vars(estimator)["device_"] = cpu.name
    return cpu


def _go_on_with(estimator: object, was: str, **parameters: object) -> None:
    """Replace parameters of an unpickled estimator that this environment lacks, with a warning that names the first."""
    name, value = next(iter(parameters.items()))
    warn(
        f"This {type(estimator).__name__} was trained {was}, which this environment (onnxruntime "
        f"{packages.version()}) lacks: it goes on with {name}={value!r}."
    )
    vars(estimator).update({name: value for name, value in parameters.items() if hasattr(estimator, name)})

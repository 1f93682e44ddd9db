"""Converts the estimators of LightGBM and XGBoost by the converters of onnxmltools.

A converter that the user has registered with skl2onnx is used. Otherwise that of onnxmltools is registered while a
model is converted, and removed afterwards.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from sklearn.base import is_classifier

from .._support.typing import Estimator
from ..exceptions import ModelError
from . import skl2onnx_bridge

_CONVERTERS = {
    "lightgbm": "onnxmltools.convert.lightgbm.operator_converters.LightGbm:convert_lightgbm",
    "xgboost": "onnxmltools.convert.xgboost.operator_converters.XGBoost:convert_xgboost",
}
"""The functions that convert, by the package of the estimator."""

_ESTIMATORS = frozenset(
    "LGBMClassifier LGBMRegressor XGBClassifier XGBRegressor XGBRFClassifier XGBRFRegressor".split()
)
_OPTIONS = {"zipmap": [True, False, "columns"], "nocl": [True, False]}
_LOCK = threading.RLock()


def library_of(estimator: Estimator) -> str | None:
    """Return the package of an estimator, LightGBM or XGBoost; None for other ones."""
    for kind in type(estimator).__mro__:
        package = kind.__module__.partition(".")[0]
        if package in _CONVERTERS and kind.__name__ in _ESTIMATORS:
            return package
    return None


@contextmanager
def converters_of_boosters(parts: Iterable[Estimator]) -> Iterator[None]:
    """Register missing converters of ``parts`` within the context."""
    boosters = {type(part): part for part in parts if library_of(part)}
    found = {kind: part for kind, part in boosters.items() if not skl2onnx_bridge.has_converter(kind)}
    if not found:
        yield
        return
    with _LOCK:
        try:
            for part in found.values():
                _register(part)
            yield
        finally:
            for kind in found:
                skl2onnx_bridge.forget(kind, _alias(kind))


def _register(part: Estimator) -> None:
    shapes = skl2onnx_bridge.shapes()
    kind, of_classes = type(part), is_classifier(part)
    if part.get_params().get("zero_as_missing"):
        raise ModelError(f"{kind.__name__}(zero_as_missing=True) has no right ONNX form. Fit it without.")
    declare = (
        shapes.calculate_linear_classifier_output_shapes
        if of_classes
        else shapes.calculate_linear_regressor_output_shapes
    )
    skl2onnx_bridge.package().update_registered_converter(
        kind, _alias(kind), declare, _converter(part), options=_OPTIONS if of_classes else None
    )


def _converter(part: Estimator) -> Callable[..., None]:
    library = library_of(part)
    assert library is not None
    module, _, function = _CONVERTERS[library].partition(":")
    try:
        found: Callable[..., None] = getattr(importlib.import_module(module), function)
    except ImportError as error:
        raise ModelError(
            f"skl2onnx has no converter for {type(part).__name__}. Install onnxmltools, whose converter is then used "
            f"(pip install onnxmltools), or register another one with skl2onnx.update_registered_converter."
        ) from error
    return found


def _alias(kind: type) -> str:
    return f"Onnxtrain{kind.__module__}{kind.__qualname__}"


_OBJECTIVES = {
    "count:poisson": "poisson",
    "gamma": "gamma",
    "l1": "absolute_error",
    "mae": "absolute_error",
    "poisson": "poisson",
    "reg:absoluteerror": "absolute_error",
    "reg:gamma": "gamma",
    "regression_l1": "absolute_error",
}
"""The losses by the objective of a regressor; all others are trained with the squared error."""


def loss_of_booster(estimator: Estimator) -> str:
    """Return the loss of a regressor."""
    objective = getattr(estimator, "objective_", None) or getattr(estimator, "objective", None)
    return _OBJECTIVES.get(str(objective), "squared_error")

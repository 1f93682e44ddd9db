"""The parameters of an estimator, checked; those that concern the loop, resolved."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Protocol

import numpy as np
from sklearn.base import is_classifier, is_outlier_detector, is_regressor
from sklearn.utils import check_scalar

from .._given.comparison import is_foreign, output_kinds
from .._optimizers.lbfgs import LBFGS, BaseOptimizer
from .._training.loop import TrainerSettings
from .._training.parameters import Trainable
from ..exceptions import ModelError, instead_of, nearest
from ..losses import Loss
from ..models import ModelSource, resolve_builder
from ..schedules import Schedule, resolve_schedule

AUTO_BATCH = 200
"""Rows of a minibatch where ``batch_size="auto"``, as in scikit-learn's MLP."""

LBFGS_PIECE = 4096
"""Rows of the pieces that the full batch of L-BFGS is accumulated from."""


class Parameters(Protocol):
    """The parameters of both estimators, as their constructors store them."""

    model: ModelSource
    loss: str | Loss
    optimizer: str | BaseOptimizer
    learning_rate_init: float
    learning_rate: str | Schedule
    max_iter: int
    trainable: Trainable
    output: str | None
    output_kind: str
    tol: float
    n_iter_no_change: float
    early_stopping: bool
    max_grad_norm: float | None
    verbose: bool | int
    engine: str
    session_options: Mapping[str, object] | None


def check_parameters(estimator: Parameters) -> None:
    """Raise TypeError or ValueError, naming the parameter, where one that needs no data to tell is wrong.

    Names of losses, optimizers, schedules, engines and devices are checked where they are looked up.
    """
    for name in ("shuffle", "early_stopping", "warm_start"):
        if not isinstance(getattr(estimator, name), bool | np.bool_):
            raise TypeError(f"{name} must be True or False, {instead_of(getattr(estimator, name))}.")
    if not isinstance(estimator.verbose, bool | np.bool_):
        check_scalar(estimator.verbose, "verbose", Integral, min_val=0)
    _check_output(estimator)
    _check_output_kind(estimator)
    _check_class_weight(getattr(estimator, "class_weight", None))
    if not isinstance(estimator.session_options, Mapping | None):
        raise TypeError(f"session_options must be a dict or None, {instead_of(estimator.session_options)}.")


def _check_output(estimator: Parameters) -> None:
    output, model = estimator.output, estimator.model
    if not isinstance(output, str | None):
        raise TypeError(f"output must be the name of an output of the graph or None, {instead_of(output)}.")
    if output is not None and resolve_builder(model) is not None:
        builder = "None (MLP())" if model is None else repr(model) if isinstance(model, str) else type(model).__name__
        raise ValueError(
            f"output={output!r} names an output of a given ONNX graph; model is {builder}, whose graph has one output. "
            f"Leave output=None."
        )


def _check_output_kind(estimator: Parameters) -> None:
    kind, model = estimator.output_kind, estimator.model
    known = output_kinds(estimator)
    if kind not in known:
        valid = ", ".join(map(repr, known))
        raise ValueError(f"output_kind must be one of {valid}, got {kind!r}.{nearest(str(kind), known)}")
    if kind != "auto" and not is_foreign(model):
        raise ValueError(
            f"output_kind={kind!r} is for given ONNX graphs: what a fitted model or a builder of this package gives is "
            f"known. Leave output_kind='auto'."
        )


def require_own_kind(estimator: Parameters) -> None:
    """Raise ModelError where an estimator is not of the kind of the fitted model that it is to train."""
    model, name = estimator.model, type(estimator.model).__name__
    if is_classifier(model) and not is_classifier(estimator):
        raise ModelError(f"{name} is a classifier: take OrtGradientClassifier to train it.")
    if is_outlier_detector(model) and not is_classifier(estimator):
        raise ModelError(
            f"{name} tells outliers from inliers: take OrtGradientClassifier to train it, with -1 and 1 in y."
        )
    if is_regressor(model) and not is_regressor(estimator):
        raise ModelError(f"{name} is a regressor: take OrtGradientRegressor to train it.")


def _check_class_weight(class_weight: object) -> None:
    if isinstance(class_weight, Mapping | list | None) or (
        isinstance(class_weight, str) and class_weight == "balanced"
    ):
        dicts = class_weight if isinstance(class_weight, list) else [class_weight]
        numbers = [w for one in dicts if isinstance(one, Mapping) for w in one.values()]
        if wrong := [w for w in numbers if not isinstance(w, Real) or not 0 <= float(w) < math.inf]:
            raise ValueError(f"class_weight must not hold negative weights or what is no number, got {wrong[0]!r}.")
        return
    raise ValueError(
        f"class_weight must be a dict from labels to weights, 'balanced' or None (several labels a row: a list of "
        f"dicts), {instead_of(class_weight)}."
    )


def trainer_settings(estimator: Parameters) -> TrainerSettings:
    """Return the settings of the loop; TypeError or ValueError says which parameter is wrong."""
    check_parameters(estimator)
    _check_number(estimator, "learning_rate_init", Real, 0.0)
    _check_number(estimator, "max_iter", Integral, 1)
    patience: object = estimator.n_iter_no_change
    if not (isinstance(patience, Real) and patience == math.inf):
        _check_number(estimator, "n_iter_no_change", Integral, 1)
    _check_number(estimator, "alpha", Real, 0.0)
    _check_number(estimator, "l1_ratio", Real, 0.0, 1.0)
    _check_number(estimator, "validation_fraction", Real, 0.0, 1.0, ends="neither")
    if estimator.max_grad_norm is not None:
        _check_number(estimator, "max_grad_norm", Real, 0.0, ends="neither")
    check_scalar(estimator.tol, "tol", Real)
    if math.isnan(estimator.tol):
        raise ValueError(f"tol must be a number, got {estimator.tol!r}.")
    return TrainerSettings(
        learning_rate_init=float(estimator.learning_rate_init),
        schedule=resolve_schedule(estimator.learning_rate),
        max_iter=int(estimator.max_iter),
        tol=float(estimator.tol),
        n_iter_no_change=float(estimator.n_iter_no_change),
        early_stopping=bool(estimator.early_stopping),
        verbose=bool(estimator.verbose),
    )


def batch_limit(batch_size: int | str, optimizer: BaseOptimizer) -> int:
    """Return the rows of a batch that the data may still be too few for."""
    if isinstance(optimizer, LBFGS):
        return LBFGS_PIECE
    if isinstance(batch_size, str):
        if batch_size != "auto":
            raise ValueError(f"batch_size must be 'auto' or an integer >= 1, got {batch_size!r}.")
        return AUTO_BATCH
    check_scalar(batch_size, "batch_size", Integral, min_val=1)
    return int(batch_size)


def _check_number(
    estimator: Parameters, name: str, kind: type, low: float, high: float | None = None, *, ends: str = "both"
) -> None:
    value = getattr(estimator, name)
    check_scalar(value, name, kind, min_val=low, max_val=high, include_boundaries=ends)
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value!r}.")

"""Validates the parameters of an estimator, and resolves those of the loop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real

from sklearn.base import is_classifier, is_outlier_detector, is_regressor

from .._callbacks.tasks import has_hooks
from .._given.comparison import is_foreign
from .._optimizers.lbfgs import LBFGS, BaseOptimizer
from .._runtime.custom_operators import know_libraries
from .._support.typing import ClassWeight
from .._training.loop import TrainerSettings
from ..exceptions import ModelError
from ..models import resolve_builder
from ..schedules import resolve_schedule
from .parameters import Parameters

AUTO_BATCH = 200
"""Rows of a minibatch with ``batch_size="auto"``, as in scikit-learn's MLP."""

LBFGS_PIECE = 4096
"""Rows of the pieces from which L-BFGS accumulates the full batch."""


def check_estimator_parameters(estimator: Parameters) -> None:
    """Raise TypeError or ValueError, naming the parameter, if one is invalid for any data.

    Names of losses, optimizers, schedules, engines and devices are checked where they are looked up.
    """
    estimator.check_declared()
    _check_output(estimator)
    _check_output_kind(estimator)
    _check_training_mode(estimator)
    if not isinstance(estimator.loss, Mapping):  # else each output checks its own
        _check_class_weight(getattr(estimator, "class_weight", None))


def _check_output(estimator: Parameters) -> None:
    output, model = estimator.output, estimator.model
    if output is not None and resolve_builder(model) is not None:
        builder = "None (MLP())" if model is None else repr(model) if isinstance(model, str) else type(model).__name__
        raise ValueError(
            f"output={output!r} names an output of a given ONNX graph; model is {builder}, whose graph has one output. "
            f"Leave output=None."
        )


def _check_output_kind(estimator: Parameters) -> None:
    kind = estimator.output_kind
    if kind != "auto" and not is_foreign(estimator.model):
        raise ValueError(
            f"output_kind={kind!r} is for given ONNX graphs: what a fitted model or a builder of this package gives is "
            f"known. Leave output_kind='auto'."
        )


def _check_training_mode(estimator: Parameters) -> None:
    if estimator.training_mode and not is_foreign(estimator.model):
        raise ValueError(
            "training_mode=True is for given ONNX graphs: what a builder of this package makes trains in that mode "
            "anyway, and fitted models have none. Leave training_mode=False."
        )


def require_own_kind(estimator: Parameters) -> None:
    """Raise ModelError if the estimator and its fitted model are of different kinds, e.g. regressor and classifier."""
    model, name = estimator.model, type(estimator.model).__name__
    if is_classifier(model) and not is_classifier(estimator):
        raise ModelError(f"{name} is a classifier: take OrtGradientClassifier to train it.")
    if is_outlier_detector(model) and not is_classifier(estimator):
        raise ModelError(
            f"{name} tells outliers from inliers: take OrtGradientClassifier to train it, with -1 and 1 in y."
        )
    if is_regressor(model) and not is_regressor(estimator):
        raise ModelError(f"{name} is a regressor: take OrtGradientRegressor to train it.")


def _check_class_weight(class_weight: ClassWeight) -> None:
    dicts = class_weight if isinstance(class_weight, list) else [class_weight]
    numbers = [w for one in dicts if isinstance(one, Mapping) for w in one.values()]
    if wrong := [w for w in numbers if not isinstance(w, Real) or not 0 <= float(w) < math.inf]:
        raise ValueError(f"class_weight must contain non-negative numbers, got {wrong[0]!r}.")


def trainer_settings(estimator: Parameters) -> TrainerSettings:
    """Return the settings of the loop; TypeError or ValueError names an invalid parameter."""
    check_estimator_parameters(estimator)
    know_libraries(estimator.session_options)  # before the graph is read, in sessions of its own
    return TrainerSettings(
        learning_rate_init=float(estimator.learning_rate_init),
        schedule=resolve_schedule(estimator.learning_rate),
        max_iter=int(estimator.max_iter),
        tol=float(estimator.tol),
        n_iter_no_change=float(estimator.n_iter_no_change),
        early_stopping=bool(estimator.early_stopping),
        accumulate=int(estimator.accumulate),
        all_epochs=isinstance(estimator.early_stopping, str),
        verbose=int(estimator.verbose),
        callbacks=[one for one in estimator.callbacks or () if callable(one) and not has_hooks(one)],
        decay_schedule=resolve_schedule(estimator.weight_decay_schedule, "weight_decay_schedule"),
        dropout_schedule=resolve_schedule(estimator.dropout_schedule, "dropout_schedule"),
    )


def batch_limit(batch_size: int | str, optimizer: BaseOptimizer) -> int:
    """Return the largest number of rows per batch; the data may have fewer."""
    if isinstance(optimizer, LBFGS):
        return LBFGS_PIECE
    return AUTO_BATCH if isinstance(batch_size, str) else int(batch_size)

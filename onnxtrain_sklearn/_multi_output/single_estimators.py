"""Each of several outputs as a classifier or a regressor of its own, which knows how targets are read and scored."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from typing import Any

from .._data.inputs import Inputs, frame_arrays, is_frame
from .._estimators.classifier import OrtGradientClassifier
from .._estimators.parameters import Parameters
from .._estimators.regressor import OrtGradientRegressor
from .._estimators.settings import check_estimator_parameters
from ..exceptions import InvalidParameterError, ModelError, nearest
from ..losses import Loss, resolve_loss

OutputEstimator = OrtGradientClassifier | OrtGradientRegressor

SETTINGS = ("output_kind", "class_axis", "ignore_label", "class_weight")
"""The parameters that may be given by output."""


def output_estimators(estimator: Any) -> dict[str, OutputEstimator]:
    """Return an estimator for each output that has a loss; it is not fitted."""
    losses, found = _losses_by_output(estimator), {}
    for name in SETTINGS:
        given = getattr(estimator, name)
        if isinstance(given, Mapping):
            _require_outputs(name, given, losses)
    for output, loss in losses.items():
        with naming(output):
            found[output] = _single(estimator, output, loss)
            check_estimator_parameters(found[output])
    return found


@contextmanager
def naming(output: str) -> Iterator[None]:
    """Say in errors which output they are about."""
    try:
        yield
    except (ValueError, TypeError) as error:
        if type(error) not in (ValueError, TypeError, ModelError, InvalidParameterError):
            raise
        raise type(error)(f"Output {output!r}: {error}") from error


def loss_weights(estimator: Any) -> dict[str, float]:
    """Return the weight of the loss on each output."""
    losses, given = _losses_by_output(estimator), estimator.loss_weights or {}
    _require_outputs("loss_weights", given, losses)
    wrong = [w for w in given.values() if not isinstance(w, Real) or not 0 <= float(w) < math.inf]
    if wrong:
        raise ValueError(f"loss_weights must be finite numbers, not negative, got {wrong[0]!r}.")
    weights = {name: float(given.get(name, 1.0)) for name in losses}
    if not any(weights.values()):
        raise ValueError("loss_weights are all zero: nothing would be trained.")
    return weights


def _losses_by_output(estimator: Parameters) -> dict[str, Loss]:
    if not isinstance(estimator.loss, Mapping) or not estimator.loss:
        raise ValueError(
            f"loss must be a dict with a loss for each output of the graph that is trained, such as "
            f"{{'label': 'log_loss', 'size': 'squared_error'}}, got {estimator.loss!r}."
        )
    found = {}
    for name, loss in estimator.loss.items():
        with naming(name):
            found[name] = resolve_loss(loss)
    return found


def _require_outputs(what: str, given: Mapping[str, object], losses: Mapping[str, Loss]) -> None:
    if unknown := [name for name in given if name not in losses]:
        raise ValueError(f"{what} names {unknown[0]!r}, an output without a loss.{nearest(str(unknown[0]), losses)}")


def _single(estimator: Parameters, output: str, loss: Loss) -> OutputEstimator:
    """Return the estimator of one output, a classifier or a regressor by the tasks of the loss."""
    classifies, regresses = bool(loss.tasks - {"regression"}), "regression" in loss.tasks
    if classifies and regresses:
        raise ValueError(
            f"{type(loss).__name__} is for regression and for classification. Say which it is here by its attribute "
            f"tasks: frozenset({{'regression'}}), or those of classification."
        )
    kind: Any = OrtGradientClassifier if classifies else OrtGradientRegressor
    parameters = {}
    for name in SETTINGS:
        given = getattr(estimator, name)
        by_output = isinstance(given, Mapping)
        if by_output and output in given and name not in kind.declared:
            raise ValueError(f"{name} is for classification, and {type(loss).__name__} is a loss for regression.")
        if name in kind.declared and (not by_output or output in given):
            parameters[name] = given[output] if by_output else given
    training_mode = estimator.training_mode
    single: OutputEstimator = kind(estimator.model, loss=loss, training_mode=training_mode, **parameters)
    return single


def by_output(data: Any, outputs: Mapping[str, object], what: str) -> dict[str, Any]:
    """Return data by output as a dict; they are one, :class:`Inputs`, or a data frame with columns by their names."""
    if is_frame(data):
        data = frame_arrays(data, list(outputs))
    data = data.arrays if isinstance(data, Inputs) else data
    if not isinstance(data, Mapping):
        raise TypeError(
            f"{what} must be a dict of arrays by output of the graph, Inputs(dict), which scikit-learn can split, or a "
            f"data frame whose columns are named after the outputs {list(outputs)}, got {type(data).__name__}."
        )
    if unknown := [name for name in data if name not in outputs]:
        raise ValueError(f"{what} names {unknown[0]!r}, an output without a loss.{nearest(str(unknown[0]), outputs)}")
    if missing := [name for name in outputs if name not in data]:
        raise ValueError(f"{what} lacks the output(s) {missing}; it must have all that have a loss: {list(outputs)}.")
    return dict(data)


def weights_by_output(sample_weight: Any, outputs: Mapping[str, object]) -> dict[str, Any]:
    """Return the weights of the rows for each output; None: all are one. One array is for all of them."""
    if not isinstance(sample_weight, Mapping | Inputs) and not is_frame(sample_weight):
        return dict.fromkeys(outputs, sample_weight)
    given = sample_weight.arrays if isinstance(sample_weight, Inputs) else sample_weight
    if isinstance(given, Mapping):
        given = {**dict.fromkeys(outputs), **given}
    return by_output(given, outputs, "sample_weight")

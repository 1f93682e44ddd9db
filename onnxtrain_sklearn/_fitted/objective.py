"""The objective that a model was fitted with: its loss, with its settings, and the weights of its classes.

Training uses the same objective: :func:`loss_of` returns the loss or the nearest one of this package,
:func:`class_weight_of` the class weights. A meta-estimator has the objective of its members if all have the same one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import (
    AdaBoostRegressor,
    BaggingClassifier,
    BaggingRegressor,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import HuberRegressor, QuantileRegressor, RANSACRegressor, RidgeClassifier, RidgeClassifierCV
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier, OutputCodeClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier, MultiOutputRegressor, RegressorChain
from sklearn.svm import SVR, NuSVR
from sklearn.utils.validation import check_is_fitted

from .._model.trainable import TrainableModel
from .._utils.typing import ClassWeight, Estimator
from ..exceptions import warn
from ..losses import EpsilonInsensitive, Huber, Loss, Quantile, Tweedie
from . import sklearn_private
from .convert import library_of, loss_of_booster
from .fitted_model import walk
from .model_record import ModelRecord, record_of

SQUARED_ERROR = "squared_error"

POWERS = {"PoissonRegressor": 1, "GammaRegressor": 2}
"""For generalized linear models, the power of the mean to which the variance is proportional."""

PROBLEMS = (OneVsOneClassifier, OneVsRestClassifier, OutputCodeClassifier, MultiOutputClassifier, ClassifierChain)
"""Classifiers that hold one estimator for each of several binary or single-label problems."""


def loss_of(record: ModelRecord, source: TrainableModel) -> str | Loss:
    """Return the loss that the last step was fitted with, or the nearest one of this package."""
    if record.gives_labels:
        return _loss_of_labels(record)
    found = _loss_of_numbers(record.last)
    # A deviance loss needs a mean that is the exponential of the score: no sum of such means, and no other link.
    deviance = found in ("poisson", "gamma") or isinstance(found, Tweedie)
    return SQUARED_ERROR if deviance and source.link != "exp" else found


def _loss_of_labels(record: ModelRecord) -> str:
    """Return the loss of a classifier: the log loss of probabilities, or a loss of margins."""
    last = record.last
    if hasattr(last.estimators_[0] if record.is_one_vs_one else last, "predict_proba"):
        return "log_loss"
    while parts := _members(last) or (last.estimators_ if isinstance(last, PROBLEMS) else []):
        last = record_of(parts[0]).last
    squared = isinstance(last, RidgeClassifier | RidgeClassifierCV) or getattr(last, "loss", None) == "squared_hinge"
    return "squared_hinge" if squared else "hinge"


def _loss_of_numbers(last: Any) -> str | Loss:
    """Return the loss of a regressor."""
    if library_of(last) is not None:
        return loss_of_booster(last)
    power = getattr(last, "power", POWERS.get(type(last).__name__, 0))
    if power >= 1:
        return {1: "poisson", 2: "gamma"}.get(power) or Tweedie(power)
    if isinstance(last, QuantileRegressor):
        return Quantile(last.quantile)
    if isinstance(last, HuberRegressor):
        return Huber(float(last.epsilon * last.scale_))
    if isinstance(last, SVR):
        return EpsilonInsensitive(last.epsilon)
    if isinstance(last, NuSVR):
        return "absolute_error"  # the model does not store its epsilon
    if isinstance(last, TransformedTargetRegressor):
        return _in_units_of_targets(_loss_of_numbers(record_of(last.regressor_).last), last.transformer_)
    members = _members(last)
    if members:
        found = [_loss_of_numbers(record_of(one).last) for one in members]
        return found[0] if len(set(map(repr, found))) == 1 else SQUARED_ERROR

    name = getattr(last, "criterion", None) if hasattr(last, "tree_") or hasattr(last, "estimators_") else None
    name = getattr(last, "loss", name)
    if name in ("absolute_error", "poisson", "gamma"):
        return str(name) if name == "absolute_error" or hasattr(last, "loss") else SQUARED_ERROR
    if name == "quantile":
        return Quantile(getattr(last, "quantile", None) or last.alpha)
    if name == "huber":
        of_boosting = isinstance(last, GradientBoostingRegressor)  # its delta is a quantile of the latest residuals
        return Huber(sklearn_private.huber_delta(last) if of_boosting else last.epsilon)
    if name in ("epsilon_insensitive", "squared_epsilon_insensitive"):
        return EpsilonInsensitive(last.epsilon, squared=name != "epsilon_insensitive")
    return SQUARED_ERROR


def _members(last: Any) -> Sequence[Estimator]:
    """Return the members of a meta-estimator that determine its objective; [] for other estimators."""
    if isinstance(last, RANSACRegressor):
        return [last.estimator_]
    if isinstance(last, StackingRegressor | StackingClassifier):
        return [last.final_estimator_]
    several = (
        AdaBoostRegressor,
        BaggingClassifier,
        BaggingRegressor,
        MultiOutputRegressor,
        RegressorChain,
        VotingClassifier,
        VotingRegressor,
    )
    return list(last.estimators_) if isinstance(last, several) else []


def _in_units_of_targets(loss: str | Loss, transformer: Any) -> str | Loss:
    """Return the loss on the original targets, given the ``loss`` on targets that ``transformer`` transformed.

    A quantile stays a quantile under any monotone transform. A margin, such as Huber's delta, can be converted only if
    the targets were just shifted and scaled.
    """
    points = np.linspace(0.1, 1.1, 5)[:, None] * np.ones(int(getattr(transformer, "n_features_in_", 1)))
    with np.errstate(all="ignore"):
        steps = np.diff(np.asarray(transformer.inverse_transform(points), np.float64), axis=0)
    if loss == "absolute_error":
        return loss
    if isinstance(loss, Quantile):
        return loss if (steps > 0).all() else Quantile(1 - loss.quantile) if (steps < 0).all() else SQUARED_ERROR
    if isinstance(loss, Huber | EpsilonInsensitive):
        scale = np.abs(steps) / 0.25
        if not np.allclose(scale, scale[0, 0], rtol=1e-6):
            return SQUARED_ERROR
        factor = float(scale[0, 0])
        if isinstance(loss, Huber):
            return Huber(loss.delta * factor)
        return EpsilonInsensitive(loss.epsilon * factor, squared=loss.squared)
    return SQUARED_ERROR


# Class weights. They can be taken over from an estimator with one label per row. They cannot if a model consists of
# binary problems with class weights of their own; then there is a warning.


def class_weight_of(estimator: Estimator) -> ClassWeight:
    """Return the class weights that a classifier was fitted with; None if they are all equal, or unknown."""
    try:
        check_is_fitted(estimator)
    except NotFittedError:
        return None
    return _own_class_weight(record_of(estimator).last)[0]


def warn_of_lost_class_weights(estimator: Estimator) -> None:
    """Warn if parts of a classifier were fitted with class weights that are not those of its labels."""
    record = record_of(estimator)
    given = {type(part).__name__ for _, part in walk(record.last) if _weighs_classes(part)}
    if given and not _own_class_weight(record.last)[1]:
        warn(
            f"The class weights of {min(given)} within this {record.last_name} are not taken over: they are for the "
            f"classes of its inner problems, not for the labels of the model. All classes weigh the same. Set "
            f"class_weight to 'balanced' or to a dict by label to weigh them, or to {{}} to silence this warning.",
            UserWarning,
        )


def _weighs_classes(part: Any) -> bool:
    """Return True if an estimator, fitted or not, has parameters that set class weights."""
    given = [getattr(part, name, None) for name in ("class_weight", "is_unbalance", "scale_pos_weight")]
    return any(value is not None and value is not False and value != 1 for value in given)


def _own_class_weight(last: Any) -> tuple[ClassWeight, bool]:
    """Return the class weights of an estimator, and True if they are known from its parameters or from all members'."""
    if library_of(last) is not None:
        return _class_weight_of_booster(last), True
    if isinstance(last, CalibratedClassifierCV):
        return None, True  # the calibration weighs all rows equally
    members = _members(last)
    if members:
        found = [_own_class_weight(record_of(one).last) for one in members]
        if len({repr(weight) for weight, _ in found}) > 1 or not all(known for _, known in found):
            return None, False
        return _by_label(found[0][0], last.classes_), True
    weight = getattr(last, "class_weight", None)
    if isinstance(last, HistGradientBoostingClassifier):
        return _by_label(weight, last.classes_), True
    if isinstance(weight, str) and weight == "balanced_subsample":
        return "balanced", True  # "balanced_subsample" is balanced for each tree's sample, so on average for all rows
    return weight, hasattr(last, "class_weight")


def _by_label(weight: ClassWeight, classes: np.ndarray) -> ClassWeight:
    """Return class weights by label, given weights by position; members of ensembles know labels by position."""
    if not isinstance(weight, Mapping):
        return weight
    return {classes[int(position)]: number for position, number in weight.items()}


def _class_weight_of_booster(last: Any) -> ClassWeight:
    """Return the class weights of LightGBM's or XGBoost's classifier."""
    given = last.get_params()
    weight: ClassWeight = given.get("class_weight")
    if weight is not None:
        return weight
    if given.get("is_unbalance"):
        return "balanced"
    factor = given.get("scale_pos_weight")
    if factor in (None, 1, 1.0) or len(last.classes_) != 2:
        return None
    return {last.classes_[1]: float(factor)}

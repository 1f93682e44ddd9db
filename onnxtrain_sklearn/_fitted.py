"""Fitted scikit-learn models as trainable graphs.

A model is converted in float32, pruned to the output that is trained, and its operators of ai.onnx.ml are rewritten.
Its numbers are named by where they come from, and its outputs brought into a form that a loss can be taken on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, is_classifier, is_regressor
from sklearn.multiclass import OneVsOneClassifier
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from ._conversion import converted, first_step, follow, last_step, walk
from ._graph.builder import infer_shapes
from ._graph.model import TrainableModel, trainable_model
from ._graph.rewrite import rewrite
from ._labels import are_indicators, classes_of_outputs, expose_labels, keep_votes_of_labels
from ._origins import Origin, named
from ._scores import as_probabilities, drop_needless_norms, expose_scores, prune, tie_normal_density
from ._votes import CHOICE, PAIRS, keep_threshold, keep_votes
from .exceptions import ModelError, UnsupportedOperatorError
from .losses import Loss, Quantile


@dataclass(frozen=True)
class FittedModel:
    """What is known of a fitted model beside its graph.

    Attributes
    ----------
    origins : tuple of Origin
        Of every parameter.
    classes : ndarray, list of ndarray or None
        The labels of a classifier; a list where it predicts several a row that are not all 0 or 1.
    n_features : int
    feature_names : ndarray or None
    loss : str or Loss
        What is minimised where the user has not said.
    n_labels : int or None
        Labels that a classifier predicts for a row, where it predicts several.
    """

    origins: tuple[Origin, ...]
    classes: np.ndarray | list[np.ndarray] | None
    n_features: int
    feature_names: np.ndarray | None
    loss: str | Loss
    n_labels: int | None = None

    def known_classes(self, classes: Any, y: Any) -> Any:
        """Return the labels that rows may have; those that the user names, and ``y``, must be of the model's kind."""
        if self.classes is None:
            return classes
        self._require_labels(np.shape(y))
        given, known = listed(classes), listed(self.classes)
        if classes is not None and given != known:
            raise ValueError(f"classes={given} are not those of the fitted model, {known}.")
        return self.classes

    def _require_labels(self, shape: tuple[int, ...]) -> None:
        given = shape[1] if len(shape) > 1 else 1
        if self.n_labels is not None and given != self.n_labels:
            raise ValueError(
                f"The fitted model predicts {self.n_labels} labels a row, and y has {given}, being of shape {shape}. "
                f"Give a matrix with a column for each label."
            )
        if self.n_labels is None and given > 1:
            raise ValueError(f"The fitted model predicts one label a row, and y has {given}, being of shape {shape}.")


def listed(classes: Any) -> Any:
    """Return classes as a list, or those of several labels as a list of lists."""
    several = isinstance(classes, list | tuple) and any(np.ndim(known) for known in classes)
    return [np.asarray(known).tolist() for known in classes] if several else np.asarray(classes).tolist()


def is_estimator(model: Any) -> bool:
    """Whether ``model`` is a scikit-learn estimator, fitted or not."""
    return isinstance(model, BaseEstimator) and hasattr(model, "fit")


def takes_nan(model: Any) -> bool:
    """Whether a scikit-learn model takes missing values."""
    return bool(get_tags(first_step(model)).input_tags.allow_nan)


def fitted_model(estimator: Any) -> tuple[TrainableModel, FittedModel]:
    """Return a fitted model as a trainable graph, and what else is known of it.

    Raises
    ------
    NotFittedError
    ModelError
        The model cannot be converted, or holds nothing that can be trained; the message says why.
    """
    check_is_fitted(estimator)
    _refuse_other_kinds(estimator)
    outputs = classes_of_outputs(estimator) if is_classifier(estimator) else None
    model, watched = converted(estimator)
    prune(model, 1 if is_classifier(estimator) else 0)
    keep_votes(model.graph, estimator, watched)
    keep_votes_of_labels(model.graph, estimator, watched)
    infer_shapes(model)
    drop_needless_norms(model.graph)
    rewritten = rewrite(model)
    origins = named(rewritten.model, rewritten.roles, watched, estimator)
    origins = [as_probabilities(rewritten.model, one, estimator) for one in origins]
    for origin in origins:
        tie_normal_density(rewritten.model, origin, estimator, watched)
    if outputs is None:
        expose_scores(rewritten.model, estimator)
    else:
        expose_labels(rewritten.model, estimator, outputs)
    keep_threshold(rewritten.model.graph, estimator)
    special = {name: name for name in (PAIRS, CHOICE) if name in {v.name for v in rewritten.model.graph.outputs}}
    try:
        source = trainable_model(infer_shapes(rewritten.model), **special)
    except UnsupportedOperatorError:
        raise
    except ModelError as error:
        raise ModelError(_without_gradient(estimator)) from error
    kept = tuple(o for o in origins if o.name in source.parameters and not _is_setting(o, source, estimator))
    if not kept:
        raise ModelError(_without_gradient(estimator))
    return replace(source, parameters=tuple(origin.name for origin in kept)), FittedModel(
        origins=kept,
        classes=_classes(estimator, outputs),
        n_labels=None if outputs is None else len(outputs),
        n_features=int(estimator.n_features_in_),
        feature_names=getattr(estimator, "feature_names_in_", None),
        loss=_loss_of(estimator, source),
    )


def _refuse_other_kinds(estimator: Any) -> None:
    name = type(estimator).__name__
    if not (is_classifier(estimator) or is_regressor(estimator)):
        raise ModelError(
            f"A fitted {name} predicts neither numbers nor classes. Give a regressor, a classifier, or a pipeline that "
            f"ends in one."
        )
    for part in (part for _, part in walk(estimator)):
        if any(np.asarray(known).dtype.kind in "OUS" for known in getattr(part, "categories_", ())):
            raise ModelError(
                f"{type(part).__name__} encodes text, and the graph that is trained takes a matrix of numbers. Encode "
                f"such columns first, and give the model that was fitted on what comes out."
            )


def _classes(estimator: Any, outputs: list[np.ndarray] | None) -> np.ndarray | list[np.ndarray] | None:
    if outputs is not None:
        return np.arange(len(outputs)) if are_indicators(outputs) else outputs
    return np.asarray(estimator.classes_) if is_classifier(estimator) else None


def _without_gradient(estimator: Any) -> str:
    return (
        f"This {type(estimator).__name__} holds no number that its output has a gradient for: what it predicts changes "
        f"in steps, as counts of neighbours and of votes do, or not at all."
    )


def _is_setting(origin: Origin, source: TrainableModel, estimator: Any) -> bool:
    """Whether a parameter is no fitted number: what a scaler leaves out, an intercept that was not to be fitted."""
    if origin.attribute:
        owner = follow(estimator, origin.owner)
        return "intercept" in str(origin.attribute[0]) and getattr(owner, "fit_intercept", True) is False
    if origin.role in ("base_values", "imputed"):  # leaves can say the same; a constant that the user chose
        return True
    numbers = source.model.graph.initializers[origin.name].const_value
    neutral = {"offset": 0.0, "scale": 1.0}.get(origin.role)
    return neutral is not None and numbers is not None and bool((numbers.numpy() == neutral).all())


def _loss_of(estimator: Any, source: TrainableModel) -> str | Loss:
    """Return what the last estimator minimises, as far as there is a loss for it here."""
    last = last_step(estimator)
    if is_classifier(estimator):
        machine = last.estimators_[0] if isinstance(last, OneVsOneClassifier) else last
        return "log_loss" if hasattr(machine, "predict_proba") else "hinge"
    name = type(last).__name__
    if source.link == "exp":
        if isinstance(getattr(last, "loss", None), str):  # of trees
            return last.loss
        power = float(getattr(last, "power", {"PoissonRegressor": 1, "GammaRegressor": 2}.get(name, 0)))
        return {1.0: "poisson", 2.0: "gamma"}.get(power, "squared_error")
    if name == "QuantileRegressor":
        return Quantile(last.quantile)
    return {"HuberRegressor": "huber"}.get(name, "squared_error")

"""Find the steps of a fitted scikit-learn model, and record its last step, task, classes and decision rule.

:func:`record_of` returns the record. All modules of this package read the record instead of examining the estimator
again. :func:`unwrapped` removes searches, thresholds and other wrappers.

This module imports a third of scikit-learn, so only modules that deal with fitted models import it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
from sklearn.base import is_classifier, is_clusterer, is_outlier_detector, is_regressor
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier, OutputCodeClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.semi_supervised import SelfTrainingClassifier
from sklearn.svm import SVC, NuSVC
from sklearn.utils import get_tags

from .._utils.typing import Estimator
from . import sklearn_private
from .fitted_model import FEATURES, is_estimator


def last_step(estimator: Estimator, *, thresholds: bool = True) -> Any:
    """Return the last estimator of a pipeline, without its wrappers; ``thresholds`` is that of :func:`unwrapped`."""
    estimator = unwrapped(estimator, thresholds=thresholds)
    while hasattr(estimator, "steps"):
        estimator = unwrapped(estimator.steps[-1][1], thresholds=thresholds)
    return estimator


def first_step(estimator: Estimator) -> Any:
    """Return the first estimator of a pipeline, also within a TransformedTargetRegressor."""
    estimator = unwrapped(estimator)
    if hasattr(estimator, "steps"):
        return first_step(estimator.steps[0][1])
    return first_step(estimator.regressor_) if isinstance(estimator, TransformedTargetRegressor) else estimator


def columns_taken(estimator: Estimator) -> int | None:
    """Return the number of columns that the converter of an estimator takes, or None if it is unknown.

    The converter of a TransformedTargetRegressor takes the columns that its inner pipeline's last step takes.
    """
    if isinstance(estimator, TransformedTargetRegressor):
        return columns_taken(last_step(estimator.regressor_))
    return getattr(estimator, "n_features_in_", None)


def features_of(estimator: Estimator) -> dict[str, Any]:
    """Return the attributes ``n_features_in_`` and ``feature_names_in_``, as far as the fitted estimator has them."""
    found = {name: getattr(estimator, name) for name in FEATURES if hasattr(estimator, name)}
    inner = unwrapped(estimator)
    if len(found) < len(FEATURES) and isinstance(inner, TransformedTargetRegressor):
        return features_of(inner.regressor_) | found
    return found


def unwrapped(estimator: Estimator, *, thresholds: bool = True) -> Any:
    """Remove the wrappers of an estimator, also in pipelines: searches, self-training, FrozenEstimators, thresholds.

    skl2onnx does not support all of these wrappers, and ignores thresholds. Without ``thresholds``, which change the
    labels, the others are removed.
    """
    if isinstance(estimator, FrozenEstimator):
        return unwrapped(estimator.estimator, thresholds=thresholds)
    is_threshold = isinstance(estimator, FixedThresholdClassifier | TunedThresholdClassifierCV)
    if isinstance(estimator, SelfTrainingClassifier) or (is_threshold and thresholds):
        return unwrapped(estimator.estimator_, thresholds=thresholds)
    if isinstance(estimator, sklearn_private.BaseSearchCV) and hasattr(estimator, "best_estimator_"):
        return unwrapped(estimator.best_estimator_, thresholds=thresholds)
    if isinstance(estimator, Pipeline):
        steps = [(name, unwrapped(step, thresholds=thresholds)) for name, step in estimator.steps]
        if any(new is not old for (_, new), (_, old) in zip(steps, estimator.steps, strict=True)):
            estimator = copy.copy(estimator)
            estimator.steps = steps
    return estimator


def takes_nan(model: Estimator) -> bool:
    """Return True if a scikit-learn model takes missing values, in some columns at least."""
    first = first_step(model)
    if isinstance(first, FeatureUnion):
        return all(takes_nan(part) for _, part in first.transformer_list if is_estimator(part))
    if isinstance(first, ColumnTransformer):  # each part takes other columns, so one part that takes NaN suffices
        parts = getattr(first, "transformers_", first.transformers)
        return any(takes_nan(part) for _, part, _ in parts if is_estimator(part))
    return bool(get_tags(first).input_tags.allow_nan)


EstimatorTask: TypeAlias = Literal["regression", "classification", "outlier_detection", "clustering", "none"]


@dataclass(frozen=True)
class Threshold:
    """A decision threshold of a classifier of two classes.

    Attributes
    ----------
    rule : estimator
        The meta-estimator that holds the threshold.
    limit : float
    positive : int
        Index of the class that is predicted if the limit is reached.
    of_probabilities : bool
        True if the probability is compared with the limit, False if the decision function is.
    """

    rule: Any
    limit: float
    positive: int
    of_probabilities: bool


@dataclass(frozen=True)
class ModelRecord:
    """The last step of a fitted model and what it predicts.

    Attributes
    ----------
    estimator : estimator
        The model itself.
    last : estimator
        The last step of its pipelines, without searches, thresholds and other wrappers.
    task : {"regression", "classification", "outlier_detection", "clustering", "none"}
    outputs : tuple of ndarray or None
        The classes of each label of a classifier that predicts several labels per row.
    has_probabilities, has_decision_function : bool
        Whether the model has ``predict_proba`` and ``decision_function``.
    threshold : Threshold or None
    """

    estimator: Any
    last: Any
    task: EstimatorTask
    outputs: tuple[np.ndarray, ...] | None
    has_probabilities: bool
    has_decision_function: bool
    threshold: Threshold | None

    @property
    def name(self) -> str:
        """The name of the model's class."""
        return type(self.estimator).__name__

    @property
    def last_name(self) -> str:
        """The name of the class of the model's last step."""
        return type(self.last).__name__

    @property
    def gives_labels(self) -> bool:
        """True if the model predicts classes: a classifier, or an outlier detector, whose classes are -1 and 1."""
        return self.task in ("classification", "outlier_detection")

    @property
    def has_indicators(self) -> bool:
        """True if the model predicts several labels per row, each of which is 0 or 1."""
        if self.outputs is None or len(self.outputs) < 2:
            return False
        return all(known.dtype.kind in "biuf" and np.array_equal(known, [0, 1]) for known in self.outputs)

    @property
    def is_libsvm(self) -> bool:
        """True if the model is a classifier of LIBSVM, which compares classes by pairs."""
        return isinstance(self.last, SVC | NuSVC)

    @property
    def is_one_vs_one(self) -> bool:
        """True if the model holds a classifier for each pair of classes."""
        return isinstance(self.last, OneVsOneClassifier)

    @property
    def has_output_codes(self) -> bool:
        """True if the model chooses the class with the nearest code, and has no decision function."""
        return isinstance(self.last, OutputCodeClassifier)

    @property
    def is_linear_by_descent(self) -> bool:
        """True if the model is a linear classifier that was fitted by stochastic gradient descent."""
        return isinstance(self.last, SGDClassifier)

    @property
    def is_chain(self) -> bool:
        """True if the model is a chain, which passes the predicted label of each estimator to the next ones."""
        return isinstance(self.last, ClassifierChain)

    @property
    def has_one_per_label(self) -> bool:
        """True if the model holds a fitted estimator for each of several labels."""
        several = isinstance(self.last, OneVsRestClassifier) and bool(getattr(self.last, "multilabel_", False))
        return several or isinstance(self.last, MultiOutputClassifier | ClassifierChain)

    @cached_property
    def members(self) -> tuple[ModelRecord, ...]:
        """The records of the estimators of the labels, in the order in which they were fitted."""
        return tuple(map(record_of, self.last.estimators_)) if self.has_one_per_label else ()

    @cached_property
    def classes(self) -> np.ndarray | list[np.ndarray] | None:
        """The classes in the order of the scores; if a row has several labels, a list with the classes of each label.

        If every label is 0 or 1, the classes are the positions of the labels.
        """
        if self.outputs is not None:
            return np.arange(len(self.outputs)) if self.has_indicators else list(self.outputs)
        if self.task == "outlier_detection":
            return np.array([-1, 1])
        return np.asarray(self.estimator.classes_) if self.task == "classification" else None


_TASKS: dict[EstimatorTask, Callable[[Estimator], bool]] = {
    "classification": is_classifier,
    "outlier_detection": is_outlier_detector,
    "regression": is_regressor,
    "clustering": is_clusterer,
}


def record_of(estimator: Estimator) -> ModelRecord:
    """Return the record of a fitted model."""
    last = last_step(estimator)
    task: EstimatorTask = next((task for task, has_task in _TASKS.items() if has_task(estimator)), "none")
    return ModelRecord(
        estimator=estimator,
        last=last,
        task=task,
        outputs=_outputs_of_step(last) if task == "classification" else None,
        has_probabilities=hasattr(estimator, "predict_proba"),
        has_decision_function=hasattr(estimator, "decision_function"),
        threshold=_threshold(estimator),
    )


def _outputs_of_step(last: Estimator) -> tuple[np.ndarray, ...] | None:
    """Return the classes of each label of a classifier that predicts several labels per row; None for one label."""
    classes = getattr(last, "classes_", None)
    if isinstance(classes, list):
        return tuple(np.asarray(known) for known in classes)
    binarizer = getattr(last, "_label_binarizer", None)  # ridge classifiers and neural networks have one
    several = bool(getattr(last, "multilabel_", False)) or getattr(binarizer, "y_type_", "").startswith("multilabel")
    return tuple(np.arange(2) for _ in np.asarray(classes)) if several else None


def _threshold(estimator: Estimator) -> Threshold | None:
    """Return the decision threshold of the outermost meta-estimator that has one."""
    rule: Any = estimator
    while not isinstance(rule, FixedThresholdClassifier | TunedThresholdClassifierCV):
        if isinstance(rule, FrozenEstimator):
            rule = rule.estimator
        elif isinstance(rule, SelfTrainingClassifier):
            rule = rule.estimator_
        elif isinstance(rule, sklearn_private.BaseSearchCV):
            rule = rule.best_estimator_
        elif hasattr(rule, "steps"):
            rule = rule.steps[-1][1]
        else:
            return None
    of_probabilities = sklearn_private.response_method(rule) == "predict_proba"
    if isinstance(rule, TunedThresholdClassifierCV):
        limit = rule.best_threshold_
        label = sklearn_private.positive_label(rule)
    else:
        automatic = isinstance(rule.threshold, str)
        limit = (0.5 if of_probabilities else 0.0) if automatic else rule.threshold
        label = rule.pos_label
    positive = list(rule.classes_).index(label) if label is not None else 1
    return Threshold(rule, float(limit), positive, of_probabilities)

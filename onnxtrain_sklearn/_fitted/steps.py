"""The steps of fitted scikit-learn models that are made of others.

This module imports a third of scikit-learn, so only what deals with a fitted model imports it.
"""

from __future__ import annotations

import copy
from typing import Any

from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import FixedThresholdClassifier, TunedThresholdClassifierCV
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.semi_supervised import SelfTrainingClassifier
from sklearn.utils import get_tags

from .._support.typing import Estimator
from . import sklearn_private
from .model import FEATURES, is_estimator


def last_step(estimator: Estimator) -> Any:
    """Return the last estimator of a pipeline."""
    estimator = unwrapped(estimator)
    while hasattr(estimator, "steps"):
        estimator = unwrapped(estimator.steps[-1][1])
    return estimator


def first_step(estimator: Estimator) -> Any:
    """Return the first estimator of a pipeline, also within a TransformedTargetRegressor."""
    estimator = unwrapped(estimator)
    if hasattr(estimator, "steps"):
        return first_step(estimator.steps[0][1])
    return first_step(estimator.regressor_) if isinstance(estimator, TransformedTargetRegressor) else estimator


def columns_taken(estimator: Estimator) -> int | None:
    """Return the number of columns that the converter of an estimator takes, None where it is not known.

    A TransformedTargetRegressor is converted behind the steps that come before its last one.
    """
    if isinstance(estimator, TransformedTargetRegressor):
        return columns_taken(last_step(estimator.regressor_))
    return getattr(estimator, "n_features_in_", None)


def features_of(estimator: Estimator) -> dict[str, Any]:
    """Return the attributes that scikit-learn checks data with; a TransformedTargetRegressor keeps names within."""
    found = {name: getattr(estimator, name) for name in FEATURES if hasattr(estimator, name)}
    inner = unwrapped(estimator)
    if len(found) < len(FEATURES) and isinstance(inner, TransformedTargetRegressor):
        return features_of(inner.regressor_) | found
    return found


def unwrapped(estimator: Estimator) -> Any:
    """Return the estimator within searches, thresholds, self-training and FrozenEstimators, also in pipelines.

    skl2onnx does not support all of them, and ignores thresholds.
    """
    if isinstance(estimator, FrozenEstimator):
        return unwrapped(estimator.estimator)
    if isinstance(estimator, FixedThresholdClassifier | TunedThresholdClassifierCV | SelfTrainingClassifier):
        return unwrapped(estimator.estimator_)
    if isinstance(estimator, sklearn_private.BaseSearchCV) and hasattr(estimator, "best_estimator_"):
        return unwrapped(estimator.best_estimator_)
    if isinstance(estimator, Pipeline):
        steps = [(name, unwrapped(step)) for name, step in estimator.steps]
        if any(new is not old for (_, new), (_, old) in zip(steps, estimator.steps, strict=True)):
            estimator = copy.copy(estimator)
            estimator.steps = steps
    return estimator


def takes_nan(model: Estimator) -> bool:
    """Whether a scikit-learn model takes missing values, in some columns at least."""
    first = first_step(model)
    if isinstance(first, FeatureUnion):
        return all(takes_nan(part) for _, part in first.transformer_list if is_estimator(part))
    if isinstance(first, ColumnTransformer):  # each has columns of its own
        parts = getattr(first, "transformers_", first.transformers)
        return any(takes_nan(part) for _, part, _ in parts if is_estimator(part))
    return bool(get_tags(first).input_tags.allow_nan)

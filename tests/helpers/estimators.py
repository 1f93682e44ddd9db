"""Small estimators of fixed seeds, and rows for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from sklearn.datasets import make_classification
from sklearn.preprocessing import scale

from onnxtrain_sklearn import MLP, Linear, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn._utils.params import accepts


def scaled_blobs(n: int = 90, classes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    X, y = make_classification(
        n, 5, n_informative=5, n_redundant=0, n_classes=classes, n_clusters_per_class=1, class_sep=2.0, random_state=0
    )
    return scale(X), y


def small_classifier(**parameters: object) -> OrtGradientClassifier:
    defaults = {"learning_rate_init": 0.05, "max_iter": 20, "batch_size": 16, "random_state": 0}
    return OrtGradientClassifier(MLP((8,))).set_params(**defaults | parameters)


def small_regressor(**parameters: object) -> OrtGradientRegressor:
    defaults = {"learning_rate_init": 0.05, "max_iter": 20, "batch_size": 16, "random_state": 0}
    return OrtGradientRegressor(Linear()).set_params(**defaults | parameters)


def is_declared(rules: Iterable[Any], value: object) -> bool:
    """Return True if one of the rules that a class declares for a parameter takes a value."""
    return any(accepts(rule, value) for rule in rules)

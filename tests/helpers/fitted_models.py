"""Fitted models, and estimators that train them."""

from __future__ import annotations

import numpy as np
from sklearn.linear_model import (
    LogisticRegression,
    Ridge,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientRegressor

rng = np.random.default_rng(0)


X = rng.normal(size=(80, 3)).astype(np.float32)


NUMBER = X @ np.array([1.0, -2.0, 0.5]) + 0.3 * rng.normal(size=80)


POSITIVE = np.exp(NUMBER / 4)


BINARY = (NUMBER > 0).astype(int)


THREE = np.digitize(NUMBER, [-1.0, 1.0])


OLD, NEW = slice(0, 40), slice(40, None)


def regressor(model, **parameters):
    defaults = {"max_iter": 5, "learning_rate_init": 0.01, "random_state": 0}
    return OrtGradientRegressor(model, **defaults | parameters)


def classifier(model, **parameters):
    defaults = {"max_iter": 5, "learning_rate_init": 0.01, "random_state": 0}
    return OrtGradientClassifier(model, **defaults | parameters)


def ridge():
    return make_pipeline(StandardScaler(), Ridge()).fit(X[OLD], NUMBER[OLD])


def logistic(y=BINARY):
    return make_pipeline(StandardScaler(), LogisticRegression()).fit(X[OLD], y[OLD])

"""A graph that was exported can be trained further: it starts from what it predicts, and finds the same weights."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.preprocessing import scale

from onnxtrain_sklearn import MLP, OrtGradientClassifier, OrtGradientRegressor

CANCER = load_breast_cancer(return_X_y=True)
X, BINARY = scale(CANCER[0]), CANCER[1]
FLOWERS, SPECIES = load_iris(return_X_y=True)

CASES = {
    "binary": (OrtGradientClassifier, X, BINARY, {}),
    "labels": (OrtGradientClassifier, X, np.array(["malignant", "benign"])[BINARY], {}),
    "several classes": (OrtGradientClassifier, FLOWERS, SPECIES, {}),
    "several labels": (OrtGradientClassifier, X, np.c_[BINARY, 1 - BINARY, BINARY], {}),
    "margins": (OrtGradientClassifier, X, BINARY, {"loss": "hinge"}),
    "focal": (OrtGradientClassifier, FLOWERS, SPECIES, {"loss": "focal"}),
    "numbers": (OrtGradientRegressor, FLOWERS, FLOWERS[:, 0], {}),
    "two numbers": (OrtGradientRegressor, FLOWERS, FLOWERS[:, :2], {}),
    "log link": (OrtGradientRegressor, FLOWERS, SPECIES, {"loss": "poisson"}),
}


@pytest.mark.filterwarnings("ignore:Training has not converged")
@pytest.mark.parametrize("case", CASES)
def test_exported_graph_starts_where_the_estimator_ended(case):
    kind, data, target, settings = CASES[case]
    first = kind(MLP((8,)), max_iter=3, random_state=0, **settings).fit(data, target)
    second = kind(first.to_onnx(), max_iter=1, learning_rate_init=0.0, **settings).fit(data, target)
    np.testing.assert_array_equal(second.predict(data), first.predict(data))
    assert list(second.weights_) == list(first.weights_)
    if kind is OrtGradientClassifier:
        np.testing.assert_array_equal(second.decision_function(data), first.decision_function(data))


@pytest.mark.filterwarnings("ignore:Training has not converged")
def test_exported_graph_goes_on_as_the_estimator_does():
    settings = {"optimizer": "sgd", "shuffle": False, "max_iter": 5, "alpha": 0, "random_state": 0}
    first = OrtGradientClassifier(MLP((8,)), **settings).fit(X, BINARY)
    second = OrtGradientClassifier(first.to_onnx(), **settings).fit(X, BINARY)
    first.set_params(warm_start=True).fit(X, BINARY)
    for name, array in first.weights_.items():
        np.testing.assert_allclose(second.weights_[name], array, rtol=0, atol=1e-6, err_msg=name)

"""Data and settings that nobody should give: each call raises an error that says what is wrong."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_array_equal
from sklearn.linear_model import LogisticRegression, Ridge

from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientRegressor, Runtime
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.hostile import X, fit_once, net, y

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def test_data_that_the_graph_cannot_run_on():
    """The first and last rows, on which it is tried, are right."""
    model = net("e = Gather(E, X) Y = MatMul(e, W)", x="int64[N] X", E=np.ones((5, 3), np.float32))
    numbers = np.array([0, 1, 9, 9, 2, 1])
    for settings in ({}, {"early_stopping": True, "validation_split": 0.5}):
        with pytest.raises(ModelError, match=r"does not run on the data: .*Gather.*out of data bounds"):
            OrtGradientRegressor(model, max_iter=1, random_state=0, **settings).fit(numbers, np.ones(6))
    trained = OrtGradientRegressor(model, max_iter=1).fit(numbers % 5, np.ones(6))
    with pytest.raises(ModelError, match="does not run on the data"):
        trained.predict(numbers)


def test_a_fitted_model_takes_no_dict():
    fitted = Ridge().fit(X, y)
    with pytest.raises(TypeError, match="got a dict of arrays"):
        OrtGradientRegressor(fitted).fit({"X": X}, y)
    with pytest.raises(ValueError, match=r"inhomogeneous|differ in length"):
        OrtGradientRegressor(fitted).fit(X, [1, 2, 3, [4.0]])
    classifier = LogisticRegression().fit(X, np.arange(8) % 2)
    with pytest.raises(ValueError, match="its rows differ in length"):
        OrtGradientClassifier(classifier).fit(X, [[0], [1, 1]] * 4)


@pytest.mark.parametrize(
    "settings",
    [
        {"runtime": Runtime(providers=3)},
        {"runtime": Runtime(providers="CPUExecutionProvider")},
        {"runtime": Runtime(provider_options=1.5)},
    ],
)
def test_providers_that_are_no_list(settings):
    with pytest.raises(TypeError, match="providers must list names, provider_options one dict for each; got provider"):
        fit_once(net(), **settings)


@pytest.mark.parametrize("name", ["early_stopping", "warm_start", "shuffle"])
def test_switches_that_are_none(name):
    estimator = OrtGradientClassifier(**{name: np.array([1, 2])})
    for call in (estimator.fit, estimator.partial_fit):
        with pytest.raises(TypeError, match=f"The {name!r} parameter of OrtGradientClassifier must be a bool"):
            call(X, np.arange(8) % 2, classes=[0, 1])


def test_patience_that_is_no_number():
    with pytest.raises(TypeError, match="'n_iter_no_change' parameter"):
        OrtGradientRegressor(n_iter_no_change=np.array([1, 2])).fit(X, y)


@pytest.mark.skipif(sp.coo_array([1]).ndim != 1, reason="SciPy before 1.13 has no sparse arrays of one axis")
def test_sparse_labels_of_one_axis():
    labels = np.arange(8) % 2
    trained = [OrtGradientClassifier(max_iter=2, random_state=0).fit(X, y) for y in (labels, sp.coo_array(labels))]
    assert_array_equal(trained[0].predict_proba(X), trained[1].predict_proba(X))


def test_no_rows_of_a_graph_of_several_axes():
    with pytest.raises(ValueError, match=r"0 sample\(s\)"):
        OrtGradientRegressor(net(x="float[N,3,1] X", body="F = Flatten(X) Y = MatMul(F, W)")).fit(X[:0, :, None], y[:0])


def test_labels_of_another_type_than_the_classes():
    trained = OrtGradientClassifier(max_iter=1).fit(X, np.arange(8) % 2)
    with pytest.raises((TypeError, ValueError), match="labels"):
        trained.partial_fit(X, ["a", "b"] * 4)
    with pytest.raises(ValueError, match=r"inhomogeneous|Expected 2D array"):
        fit_once(net(x="float[N,3,1] X", body="F = Flatten(X) Y = MatMul(F, W)")).fit([[1.0, 2.0, 3.0], [1.0]], [1, 2])

"""``monotonic_cst`` of the MLP: predictions of 10,000 pairs of rows, which differ in one column, never fall or rise."""

from __future__ import annotations

import pickle

import numpy as np
import onnxruntime
import pandas as pd
import pytest

from onnxtrain_sklearn import MLP, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import InvalidParameterError
from onnxtrain_sklearn.models import Embedded
from onnxtrain_sklearn.models.layers import ACTIVATIONS, NOT_MONOTONE
from tests.helpers.environment import each_engine

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

SIGNS = [1, -1, 0, 0]


def rows(n, seed=0):
    return np.random.RandomState(seed).uniform(-2, 2, (n, 4)).astype(np.float32)


X = rows(500)
Y = X[:, 0] ** 2 - X[:, 1] ** 2 + np.sin(3 * X[:, 2])  # against the signs in half of the rows


def pairs(column, n=10_000):
    """Rows, and the same rows with more in a column, in small and in large steps."""
    low, rng = rows(n, seed=1) * 2, np.random.RandomState(2)
    high = low.copy()
    high[:, column] += np.where(rng.rand(n) < 0.5, rng.uniform(0, 4, n), rng.uniform(0, 0.01, n))
    return low, high


def regressor(cst, **parameters):
    net = OrtGradientRegressor(MLP((16, 16), monotonic_cst=cst), max_iter=60, learning_rate_init=0.01, random_state=0)
    return net.set_params(**parameters)


def largest_fall(predict, signs=SIGNS):
    """The largest step in the wrong direction, in shares of the spread of the predictions."""
    falls = []
    for column in np.flatnonzero(signs):
        low, high = map(predict, pairs(column))
        falls.append(((low - high) * signs[column]).max() / low.std())
    return max(falls)


@each_engine
def test_predictions_and_files_are_monotonic(engine):
    assert largest_fall(regressor(None, engine=engine).fit(X, Y).predict) > 0.1
    net = regressor(SIGNS, engine=engine).fit(X, Y)
    session = onnxruntime.InferenceSession(net.to_onnx().SerializeToString())
    copy = pickle.loads(pickle.dumps(net))
    for predict in (net.predict, copy.predict, lambda Z: session.run(None, {"X": Z})[0].ravel()):
        assert largest_fall(predict) < 1e-6


@each_engine
def test_probabilities_are_monotonic(engine):
    labels = np.where(X[:, 0] - X[:, 1] + 0.5 * Y > 0, "yes", "no")
    net = OrtGradientClassifier(MLP((16,), monotonic_cst=SIGNS), max_iter=30, random_state=0, engine=engine)
    net.fit(X, labels)
    assert net.score(X, labels) > 0.6
    assert largest_fall(lambda Z: net.decision_function(Z)) < 1e-6
    assert largest_fall(lambda Z: net.predict_proba(Z)[:, 1]) < 1e-6


@pytest.mark.parametrize("activation", sorted(set(ACTIVATIONS) - set(NOT_MONOTONE)))
def test_every_activation_is_monotonic(activation):
    net = regressor(SIGNS, model__activation=activation, max_iter=10).fit(X * 100 + 50, Y)  # the graph scales X
    assert largest_fall(lambda Z: net.predict(Z * 100 + 50)) < 1e-6


def test_weights_of_any_sign_give_the_numbers_of_the_formula():
    net = regressor(SIGNS, target_scaling=None).fit(X, Y)
    w = {name: array.astype(np.float64) for name, array in net.weights_.items()}
    signs = np.array(SIGNS)[:, np.newaxis]
    h = X.astype(np.float64)
    for i in range(3):
        weight = w[f"layers.{i}.weight"]
        used = np.abs(weight) if i else np.where(signs == 0, weight, signs * np.abs(weight))
        assert (weight < 0).any()
        h = h @ used + w[f"layers.{i}.bias"]
        if i < 2:
            h[:, :8], h[:, 8:] = np.maximum(h[:, :8], 0), np.minimum(h[:, 8:], 0)
    np.testing.assert_allclose(net.predict(X), h.ravel(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [np.exp, lambda x: -np.exp(-x), np.tanh])
def test_curves_of_every_bend_are_learned(shape):
    def target(rows):
        return shape(1.5 * rows[:, 0]) - rows[:, 1] + np.sin(3 * rows[:, 2])

    net = regressor(SIGNS, model__hidden_layer_sizes=(32, 32), max_iter=150).fit(X, target(X))
    unseen = rows(500, seed=5)
    assert net.score(unseen, target(unseen)) > 0.9


def test_columns_by_name_and_by_index():
    frame = pd.DataFrame(X, columns=["size", "age", "b", "c"])
    expected = regressor(SIGNS).fit(X, Y).predict(X)
    for cst in ({"size": 1, "age": -1}, {0: 1, 1: -1}, np.array(SIGNS)):
        np.testing.assert_array_equal(regressor(cst).fit(frame, Y).predict(frame), expected)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: regressor([1, 0]).fit(X, Y), ValueError, "has 2 signs, but X has 4 columns"),
        (lambda: regressor({"a": 1}).fit(X, Y), ValueError, "names column 'a', but X has no names"),
        (lambda: regressor({4: 1}).fit(X, Y), ValueError, "names column 4, but X has 4 columns"),
        (lambda: regressor([2, 0, 0, 0]).fit(X, Y), InvalidParameterError, "-1, 0 and 1"),
        (lambda: regressor(SIGNS, model__activation="gelu").fit(X, Y), InvalidParameterError, "never falls"),
        (lambda: regressor(SIGNS, model__residual=True).fit(X, Y), InvalidParameterError, "needs residual=False"),
        (lambda: regressor(SIGNS, model__normalization="layer").fit(X, Y), InvalidParameterError, "normalization=None"),
        (lambda: OrtGradientRegressor(Embedded(model=MLP(monotonic_cst=SIGNS))).fit(X, Y), ValueError, "embeddings"),
        (lambda: regressor(SIGNS, loss="gaussian_nll").fit(X, Y), ValueError, "one score a target"),
        (
            lambda: OrtGradientClassifier(MLP(monotonic_cst=SIGNS)).fit(X, np.arange(500) % 3),
            ValueError,
            "of more classes",
        ),
    ],
)
def test_unsuitable_constraints_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()

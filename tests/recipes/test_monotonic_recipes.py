"""``monotonic_cst`` of RealMLP: predictions of 10,000 pairs of rows, which differ in one column, never fall or rise."""

from __future__ import annotations

import pickle

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from onnxtrain_sklearn import OrtGradientRegressor, RealMLP, RealMLPClassifier, RealMLPRegressor, RowBlocks
from onnxtrain_sklearn.exceptions import InvalidParameterError
from tests.helpers.environment import each_engine

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

SIGNS = {"size": 1, "age": -1}


def frame(n, seed=0):
    rng = np.random.RandomState(seed)
    X = pd.DataFrame(rng.uniform(-2, 2, (n, 3)).astype(np.float32), columns=["size", "b", "age"])
    X.loc[rng.rand(n) < 0.1, "b"] = np.nan
    X["kind"] = rng.choice(["red", "blue", "green"], n)
    return X


X = frame(400)
BUMPS = X["size"] ** 2 - X["age"] ** 2 + np.sin(3 * X["b"].fillna(0))  # against the signs in half of the rows
Y = BUMPS.to_numpy() + (X["kind"] == "red")


def pairs(column, n=10_000):
    """Rows, and the same rows with more in a column, in small and in large steps, some far from the data."""
    low, rng = frame(n, seed=1), np.random.RandomState(2)
    low[column] *= np.where(rng.rand(n) < 0.8, 1.5, 1e4).astype(np.float32)
    steps = np.where(rng.rand(n) < 0.5, rng.uniform(0, 4, n), rng.uniform(0, 0.01, n))
    return low, low.assign(**{column: low[column] + steps.astype(np.float32)})


def regressor(variant="td-s", **parameters):
    settings = {"hidden_layer_sizes": (16, 16), "max_iter": 15, "random_state": 0, "monotonic_cst": SIGNS}
    settings |= {"n_ensembles": 2} if variant == "auto" else {}
    return RealMLPRegressor(variant, **(settings | parameters))


def largest_fall(predict):
    """The largest step in the wrong direction, in shares of the spread of the predictions."""
    falls = []
    for column, sign in SIGNS.items():
        low, high = map(predict, pairs(column))
        falls.append(((low - high) * sign).max() / low.std())
    return max(falls)


def run_file(model):
    session = onnxruntime.InferenceSession(model.to_onnx().SerializeToString())
    return lambda Z: session.run(None, {name: Z[[name]].to_numpy() for name in Z.columns})


@each_engine
@pytest.mark.parametrize("variant", ["td", "td-s", "auto"])
def test_predictions_and_files_are_monotonic(variant, engine):
    assert largest_fall(regressor(variant, monotonic_cst=None, engine=engine).fit(X, Y).predict) > 0.1
    model = regressor(variant, engine=engine).fit(X, Y)
    copy, run = pickle.loads(pickle.dumps(model)), run_file(model)
    for predict in (model.predict, copy.predict, lambda Z: run(Z)[0].ravel()):
        assert largest_fall(predict) < 2e-6


@each_engine
@pytest.mark.parametrize("variant", ["td", "auto"])
def test_probabilities_are_monotonic(variant, engine):
    labels = np.where(X["size"] - X["age"] + 0.5 * BUMPS > 0, "yes", "no")
    settings = {"hidden_layer_sizes": (16, 16), "max_iter": 15, "random_state": 0, "engine": engine}
    model = RealMLPClassifier(variant, n_ensembles=2, monotonic_cst=SIGNS, **settings).fit(X, labels)
    assert model.score(X, labels) > 0.7
    run = run_file(model)
    assert largest_fall(lambda Z: model.predict_proba(Z)[:, 1]) < 2e-6
    assert largest_fall(lambda Z: run(Z)[1][:, 1]) < 2e-6


@pytest.mark.parametrize("variant", ["td", "td-s"])
@pytest.mark.parametrize("shape", [np.exp, lambda x: -np.exp(-x), np.tanh])
def test_curves_of_every_bend_are_learned(shape, variant):
    def target(rows):
        bend = shape(1.5 * rows["size"]) - rows["age"] + np.sin(3 * rows["b"].fillna(0))
        return (bend + (rows["kind"] == "red")).to_numpy()

    model = regressor(variant, hidden_layer_sizes=(32, 32), max_iter=64).fit(X, target(X))
    unseen = frame(500, seed=5)
    assert model.score(unseen, target(unseen)) > 0.75  # 0.81 and more without constraints


def test_weights_of_any_sign_give_the_numbers_of_the_formula():
    rows = X[["size", "b", "age"]].fillna(0).to_numpy()
    network = RealMLP("td", (8, 6), embedding=None, dropout=0.0, monotonic_cst=[1, 0, -1])
    net = OrtGradientRegressor(network, target_scaling=None, max_iter=20, learning_rate_init=0.1, random_state=0)
    net.fit(rows, Y)
    w = {name: array.astype(np.float64) for name, array in net.weights_.items()}
    places, signs = [0, 2, 1], np.array([1.0, -1.0, 0.0])  # constrained columns come first
    scale = np.where(signs == 0, w["scale"], np.abs(w["scale"]))
    h = rows[:, places].astype(np.float64) * scale
    for i in range(3):
        weight = w[f"layers.{i}.weight"]
        own = signs[:, np.newaxis] if i == 0 else np.ones((len(weight), 1))
        assert (weight < 0).any()
        h = h @ np.where(own == 0, weight, own * np.abs(weight)) / np.sqrt(len(weight)) + w[f"layers.{i}.bias"]
        if i < 2:
            ways = np.where(np.arange(h.shape[1]) < h.shape[1] // 2, 1, -1)
            z = h * ways
            h = 1.0507009873554805 * np.where(z > 0, z, 1.6732632423543772 * np.expm1(np.minimum(z, 0))) * ways
    np.testing.assert_allclose(net.predict(rows), h.ravel(), rtol=1e-4, atol=1e-4)


def test_columns_by_name_index_and_array_give_equal_models():
    expected = regressor(max_iter=2).fit(X, Y).predict(X)
    for signs in ({0: 1, 2: -1}, [1, 0, -1, 0], np.array([1, 0, -1, 0])):
        np.testing.assert_array_equal(regressor(monotonic_cst=signs, max_iter=2).fit(X, Y).predict(X), expected)
    unnamed = X[["size", "b", "age"]].to_numpy()
    by_array = regressor(monotonic_cst=[1, 0, -1], max_iter=2).fit(unnamed, Y).predict(unnamed)
    by_index = regressor(monotonic_cst={0: 1, 2: -1}, max_iter=2).fit(unnamed, Y).predict(unnamed)
    np.testing.assert_array_equal(by_array, by_index)


def test_signs_without_a_column_constrain_nothing():
    free = regressor(monotonic_cst=None, linear_part=False).fit(X, Y).predict(X)
    np.testing.assert_array_equal(regressor(monotonic_cst=[0, 0, 0, 0]).fit(X, Y).predict(X), free)


def test_missing_numbers_of_a_constrained_column_have_an_effect_of_their_own():
    holes = X.copy()
    holes.loc[::4, "size"] = np.nan
    target = np.where(holes["size"].isna(), 10.0, holes["size"])  # above those of all numbers
    model = regressor("td", max_iter=64).fit(holes, target)
    assert model.score(holes, target) > 0.9
    assert largest_fall(model.predict) < 2e-6


def test_embedded_columns_beside_constrained_ones():
    model = regressor("td", embedding="piecewise_linear").fit(X, Y)
    assert largest_fall(model.predict) < 2e-6


def test_search_over_signs():
    search = GridSearchCV(regressor(max_iter=4), {"monotonic_cst": [None, SIGNS]}, cv=2).fit(X, X["size"] - X["age"])
    assert clone(search.best_estimator_).monotonic_cst == search.best_params_["monotonic_cst"]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: regressor(monotonic_cst={"kind": 1}).fit(X, Y), ValueError, "column 'kind' holds categories"),
        (lambda: regressor(monotonic_cst={"width": 1}).fit(X, Y), ValueError, "names column 'width', but the columns"),
        (lambda: regressor(monotonic_cst=[1, 0]).fit(X, Y), ValueError, "has 2 signs, but X has 4 columns"),
        (lambda: regressor(monotonic_cst={"size": 2}).fit(X, Y), InvalidParameterError, "-1, 0 and 1"),
        (lambda: regressor(loss="gaussian_nll").fit(X, Y), ValueError, "one score a target"),
        (lambda: regressor(linear_part=True).fit(X, Y), ValueError, "needs monotonic_cst=None"),
        (lambda: RealMLPClassifier(monotonic_cst=SIGNS).fit(X, X["kind"]), ValueError, "of more classes"),
        (
            lambda: regressor().fit(X.assign(size=pd.date_range("2020", periods=len(X))), Y),
            ValueError,
            "column 'size' holds categories or times",
        ),
        (
            lambda: RealMLP(activation="mish", monotonic_cst=[1]).build(1, 1),
            InvalidParameterError,
            "never falls",
        ),
        (
            lambda: RealMLP(categories={0: 3}, monotonic_cst=[1, 0]).build(2, 1),
            ValueError,
            "column 0 holds categories",
        ),
    ],
)
def test_unsuitable_constraints_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_tables_in_files_are_constrained_by_name(tmp_path):
    columns = ["size", "b", "age"]
    X[columns].assign(y=Y).to_csv(tmp_path / "table.csv", index=False)
    model = regressor("td", max_iter=4).fit(RowBlocks(tmp_path / "table.csv", target="y", buffer_rows=100))
    assert largest_fall(lambda Z: model.predict(Z[columns])) < 2e-6

"""Trees behind scalers split rows as scikit-learn's float64 does, whose predictions are the right ones here."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_diabetes, load_digits
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    AdaBoostRegressor,
    BaggingRegressor,
    ExtraTreesClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
    VotingRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, RobustScaler, StandardScaler

from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientRegressor

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

KEEP = {"learning_rate_init": 1e-12, "max_iter": 1, "batch_size": 500, "random_state": 0}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_forest_behind_scaler_splits_integers_as_in_float64(seed, dtype):
    X, y = load_digits(return_X_y=True)
    model = make_pipeline(StandardScaler(), RandomForestClassifier(10, random_state=seed)).fit(X[:600], y[:600])
    net = OrtGradientClassifier(model, **KEEP).fit(X[:600].astype(dtype), y[:600])
    np.testing.assert_allclose(
        net.predict_proba(X.astype(dtype)), model.predict_proba(X), atol=3e-5
    )  # zeros keep a distance of 1e-6


@pytest.mark.parametrize(
    "model",
    [
        make_pipeline(MinMaxScaler(), ExtraTreesClassifier(10, random_state=0)),
        make_pipeline(RobustScaler(), PCA(5), RandomForestRegressor(10, random_state=0)),
        make_pipeline(SimpleImputer(), StandardScaler(), HistGradientBoostingRegressor(max_iter=20)),
        make_pipeline(StandardScaler(), BaggingRegressor(n_estimators=5, random_state=0)),
        make_pipeline(StandardScaler(), AdaBoostRegressor(n_estimators=10, random_state=0)),
    ],
    ids=lambda model: type(model[-1]).__name__,
)
def test_trees_split_numbers_that_float32_does_not_hold(model):
    X, y = load_diabetes(return_X_y=True)
    classifies = hasattr(model[-1], "predict_proba")
    y = (y > 140).astype(int) if classifies else y
    model.fit(X, y)
    net = (OrtGradientClassifier if classifies else OrtGradientRegressor)(model, **KEEP).fit(X, y)
    ours, right = (one.predict_proba(X) if classifies else one.predict(X) for one in (net, model))
    np.testing.assert_allclose(ours, right, rtol=1e-5, atol=3e-5)


def table():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(np.round(rng.normal(40, 30, (300, 2)), 1), columns=["a", "b"])
    X.loc[::7, "a"] = np.nan
    X["kind"] = rng.choice(["x", "y", "z"], 300)
    return X, X["b"].to_numpy() * (X["kind"] == "x") + rng.normal(size=300)


@pytest.mark.parametrize("last", [HistGradientBoostingRegressor(max_iter=20), RandomForestRegressor(10)])
def test_the_file_takes_the_columns_of_a_table_as_float64(last):
    X, y = table()
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    model = make_pipeline(
        make_column_transformer((numbers, ["a", "b"]), (OneHotEncoder(sparse_output=False), ["kind"])), last
    ).fit(X, y)
    net = OrtGradientRegressor(model, learning_rate_init=0.01, max_iter=3, random_state=0).fit(X, y)
    session = onnxruntime.InferenceSession(net.to_onnx().SerializeToString())
    assert {one.name: one.type for one in session.get_inputs()}["a"] == "tensor(double)"
    found = session.run(None, {name: X[[name]].to_numpy() for name in X})[0].ravel()
    right = net.to_sklearn().predict(X)
    np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-4)
    assert not np.allclose(right, model.predict(X), rtol=1e-5)


def test_scaler_before_trees_is_not_trained():
    X, y = load_diabetes(return_X_y=True)
    trees = RandomForestRegressor(5, max_depth=3, random_state=0)
    model = make_pipeline(StandardScaler(), VotingRegressor([("linear", Ridge()), ("trees", trees)])).fit(X, y)
    net = OrtGradientRegressor(model, learning_rate_init=0.01, max_iter=3, random_state=0).fit(X, y)
    assert not any(name.startswith("standardscaler") for name in net.weights_)
    assert any("coef" in name for name in net.weights_)
    np.testing.assert_allclose(net.to_sklearn(X).predict(X), net.predict(X), rtol=1e-5)

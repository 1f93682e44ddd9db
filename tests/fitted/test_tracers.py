"""Fitted numbers that do not tell which attribute they come from: ones, zeros, identity matrices."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.decomposition import PCA
from sklearn.linear_model import Lasso, Ridge
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler

from onnxtrain_sklearn import OrtGradientRegressor

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 3))
X = ((X - X.mean(axis=0)) / X.std(axis=0)).astype(np.float32)
y = X @ np.array([1.0, 2.0, 3.0]) + 1


def with_attributes(estimator, **attributes):
    vars(estimator).update(attributes)
    return estimator


ONE, ZERO, IDENTITY = np.ones(3), np.zeros(3), np.eye(3)

SCALERS = {
    "standard": with_attributes(StandardScaler().fit(X), scale_=ONE, var_=ONE, mean_=ZERO),
    "standard, ones but one": with_attributes(StandardScaler().fit(X), scale_=np.array([1.0, 0.5, 1.0])),
    "robust": with_attributes(RobustScaler().fit(X), scale_=ONE, center_=ZERO),
    "largest": with_attributes(MaxAbsScaler().fit(X), scale_=ONE, max_abs_=ONE),
    "range": with_attributes(MinMaxScaler().fit(X), scale_=ONE, min_=ZERO),
    "axes": with_attributes(PCA(3).fit(X), components_=IDENTITY, mean_=ZERO),
}


def pipelines():
    for name, scaler in SCALERS.items():
        yield pytest.param(make_pipeline(scaler, Ridge().fit(scaler.transform(X), y)), id=name)


def written_back(model, targets):
    tuned = OrtGradientRegressor(model, learning_rate_init=0.01, max_iter=3, random_state=0).fit(X, targets)
    back = tuned.to_sklearn()
    assert_allclose(back.predict(X), tuned.predict(X), rtol=1e-5, atol=1e-5)
    assert np.abs(back.predict(X) - model.predict(X)).max() > 1e-3  # something was trained
    return tuned, back


@pytest.mark.parametrize("model", pipelines())
def test_trivial_numbers_of_a_scaler_are_written_back(model):
    tuned, back = written_back(model, y + 1)
    held = {"components_", "scale_", "min_", "mean_", "center_"} & vars(model[0]).keys()
    trained = {name.rpartition(".")[2] + "_" for name in tuned.weights_ if not name.startswith("ridge")}
    assert trained
    assert trained <= held
    for attribute in trained:
        assert np.any(vars(back[0])[attribute] != vars(model[0])[attribute]), attribute


def test_zeros_of_a_lasso_are_written_back():
    model = make_pipeline(
        with_attributes(StandardScaler(with_mean=False).fit(X), scale_=ONE, var_=ONE), Lasso(alpha=1e3).fit(X, y)
    )
    tuned, _ = written_back(model, y)
    assert sorted(tuned.weights_) == ["lasso.coef", "lasso.intercept", "standardscaler.scale"]


def test_symmetric_matrices_are_written_back():
    ridge = with_attributes(Ridge().fit(X, np.stack([y, y, y], axis=1)), coef_=IDENTITY, intercept_=ZERO)
    written_back(ridge, np.stack([y, y + 1, y - 2], axis=1))
    with pytest.warns(match="Maximum iterations"):
        network = MLPRegressor(hidden_layer_sizes=(3,), max_iter=1).fit(X, y)
    coefs, intercepts = [IDENTITY, network.coefs_[1]], [ZERO, np.zeros(1)]
    written_back(with_attributes(network, coefs_=coefs, intercepts_=intercepts), y)


def test_given_model_is_unchanged():
    model = Pipeline([("scaler", SCALERS["standard"]), ("ridge", Ridge().fit(X, y))])
    before = {name: np.copy(value) for name, value in vars(SCALERS["standard"]).items()}
    written_back(model, y + 1)
    for name, value in vars(SCALERS["standard"]).items():
        np.testing.assert_array_equal(value, before[name])

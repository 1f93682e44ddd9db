"""Rates of insurance with exposure as weights, beside scikit-learn, and intervals that MAPIE conformalizes."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits
from sklearn.linear_model import GammaRegressor, PoissonRegressor

from onnxtrain_sklearn import Linear, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.losses import Quantile
from tests.helpers.environment import each_engine

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@each_engine
@pytest.mark.parametrize("loss", ["poisson", "gamma"])
def test_coefficients_with_exposure_are_those_of_scikit_learn(loss, engine):
    rng = np.random.default_rng(0)
    X, exposure = rng.normal(size=(2000, 3)), rng.uniform(0.05, 1, 2000)
    rate = np.exp(X @ [0.4, -0.3, 0.2] - 1)
    if loss == "poisson":
        y, reference = rng.poisson(rate * exposure) / exposure, PoissonRegressor(alpha=0, tol=1e-10, max_iter=1000)
    else:
        y, reference = rate * rng.gamma(2, 0.5, 2000), GammaRegressor(alpha=0, tol=1e-10, max_iter=1000)
    reference.fit(X, y, exposure)
    net = OrtGradientRegressor(Linear(), loss=loss, optimizer="lbfgs", alpha=0, tol=1e-9, max_iter=500, engine=engine)
    net.fit(X, y, exposure)
    assert_allclose(net.coef_.ravel(), reference.coef_, atol=2e-3)
    assert_allclose(net.predict(X), reference.predict(X), rtol=1e-2)
    assert np.abs(reference.coef_ - clone(reference).fit(X, y).coef_).max() > 4e-3


def test_mapie_conformalizes_quantiles():
    regression = pytest.importorskip("mapie.regression")
    X, y = load_diabetes(return_X_y=True)
    net = OrtGradientRegressor(
        Linear(), learning_rate_init=0.05, max_iter=60, tol=0, n_iter_no_change=100, random_state=0
    )
    each = [clone(net).set_params(loss=Quantile(q)).fit(X[:200], y[:200]) for q in (0.1, 0.9, 0.5)]
    conformal = regression.ConformalizedQuantileRegressor(each, confidence_level=0.8, prefit=True)
    conformal.conformalize(X[200:320], y[200:320])
    low, high = conformal.predict_interval(X[320:])[1][:, :, 0].T
    assert 0.7 < np.mean((low <= y[320:]) & (y[320:] <= high)) < 0.92


@pytest.mark.parametrize("style", ["split", "prefit", "cross"])
def test_mapie_conformalizes_predictions(style):
    regression = pytest.importorskip("mapie.regression")
    X, y = load_diabetes(return_X_y=True)
    net = OrtGradientRegressor(Linear(), learning_rate_init=0.05, max_iter=60, random_state=0)
    if style == "cross":
        conformal = regression.CrossConformalRegressor(net, confidence_level=0.8, cv=4)
        conformal.fit_conformalize(X[:320], y[:320])
    else:
        prefit = style == "prefit"
        net = net.fit(X[:200], y[:200]) if prefit else net
        conformal = regression.SplitConformalRegressor(net, confidence_level=0.8, prefit=prefit)
        conformal = conformal if prefit else conformal.fit(X[:200], y[:200])
        conformal.conformalize(X[200:320], y[200:320])
    low, high = conformal.predict_interval(X[320:])[1][:, :, 0].T
    assert 0.7 < np.mean((low <= y[320:]) & (y[320:] <= high)) < 0.92


@pytest.mark.parametrize("style", ["split", "prefit", "cross"])
def test_mapie_conformalizes_labels(style):
    classification = pytest.importorskip("mapie.classification")
    X, y = load_digits(n_class=3, return_X_y=True)
    X, y = X / 16 + np.random.default_rng(0).normal(size=X.shape), np.array(["a", "b", "c"])[y]
    net = OrtGradientClassifier(Linear(), learning_rate_init=0.05, max_iter=20, random_state=0)
    if style == "cross":
        conformal = classification.CrossConformalClassifier(net, confidence_level=0.8, cv=3)
        conformal.fit_conformalize(X[:350], y[:350])
    else:
        prefit = style == "prefit"
        net = net.fit(X[:200], y[:200]) if prefit else net
        conformal = classification.SplitConformalClassifier(net, confidence_level=0.8, prefit=prefit)
        conformal = conformal if prefit else conformal.fit(X[:200], y[:200])
        conformal.conformalize(X[200:350], y[200:350])
    chosen = conformal.predict_set(X[350:])[1][:, :, 0]
    right = chosen[np.arange(len(chosen)), np.searchsorted(["a", "b", "c"], y[350:])]
    assert 0.7 < np.mean(right) < 0.92

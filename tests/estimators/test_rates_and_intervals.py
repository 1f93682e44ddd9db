"""Rates of insurance with exposure as weights, beside scikit-learn, and intervals that MAPIE conformalizes."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.linear_model import GammaRegressor, PoissonRegressor

from onnxtrain_sklearn import Linear, OrtGradientRegressor
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

"""Targets that are all equal are predicted exactly, whatever the regressor."""

from __future__ import annotations

import pickle

import numpy as np
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import Ridge

from onnxtrain_sklearn import (
    MLP,
    Linear,
    OrtGradientRegressor,
    RealMLPRegressor,
    TabMRegressor,
)
from onnxtrain_sklearn.losses import LOSSES
from tests.helpers.environment import each_engine

RNG = np.random.RandomState(0)
X = RNG.randn(60, 3)
FAR = (100 * RNG.randn(20, 3)).astype(np.float32)
VALUE = 1234.567
LOSS_NAMES = [
    name
    for name, kind in LOSSES.items()
    if "regression" in kind.tasks and kind.target_scaling and name != "reconstruction"
]

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RECIPES = {
    "RealMLP": lambda **settings: RealMLPRegressor(**{"n_ensembles": 1, "max_iter": 2, "random_state": 0} | settings),
    "TabM": lambda **settings: TabMRegressor(max_iter=2, random_state=0, **settings),
}


def regressor(model=None, **settings):
    return OrtGradientRegressor(model, **{"max_iter": 3, "random_state": 0, **settings})


def assert_exact(predicted, value=VALUE):
    assert_array_equal(predicted, np.full(predicted.shape, value, np.float32).astype(predicted.dtype))


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "n_ensembles"), [("RealMLP", 3), ("TabM", 1)])
def test_recipes_predict_a_constant_target_exactly(recipe, n_ensembles):
    fitted = RECIPES[recipe](n_ensembles=n_ensembles).fit(X, np.full(60, VALUE))
    assert_exact(fitted.predict(FAR))


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_recipes_predict_the_constant_one_of_several_targets_exactly(recipe):
    y = np.column_stack([X[:, 0], np.full(60, VALUE)])
    predicted = recipe().fit(X, y).predict(FAR)
    assert_exact(predicted[:, 1])
    assert np.ptp(predicted[:, 0]) > 0


@each_engine
@pytest.mark.parametrize("loss", LOSS_NAMES)
def test_regressors_predict_a_constant_target_exactly(loss, engine):
    fitted = regressor(loss=loss, engine=engine).fit(X, np.full(60, VALUE))
    assert_exact(fitted.predict(FAR))


def test_the_exported_graph_and_copies_do():
    fitted = regressor().fit(X, np.column_stack([X[:, 0], np.full(60, -VALUE)]))
    session = onnxruntime.InferenceSession(fitted.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    (exported,) = session.run(None, {session.get_inputs()[0].name: FAR})
    assert_exact(exported[:, 1], -VALUE)
    assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(FAR), fitted.predict(FAR))


@pytest.mark.parametrize("loss", ["squared_error", "poisson"])
def test_the_coefficients_are_those_of_a_constant(loss):
    fitted = regressor(Linear(), loss=loss).fit(X, np.full(60, VALUE))
    assert_array_equal(fitted.coef_, np.zeros_like(fitted.coef_))
    expected = np.log(VALUE) if loss == "poisson" else VALUE
    assert_allclose(fitted.intercept_, expected, rtol=1e-6)


def test_targets_of_several_axes():
    y = RNG.randn(60, 2, 2)
    y[:, 1, 0] = VALUE
    predicted = regressor(MLP((4,))).fit(X, y).predict(FAR)
    assert predicted.shape == (20, 2, 2)
    assert_exact(predicted[:, 1, 0])
    assert np.ptp(predicted[:, 0, 0]) > 0


def test_rows_of_weight_zero_do_not_count():
    y = np.full(60, VALUE)
    y[:5] = 0.0
    fitted = regressor().fit(X, y, sample_weight=(y > 0).astype(float))
    assert_exact(fitted.predict(FAR))


def test_later_rows_of_other_targets_are_learned():
    fitted = regressor(learning_rate_init=0.01).partial_fit(X[:1], [VALUE])
    assert_exact(fitted.predict(FAR))
    for _ in range(50):
        fitted.partial_fit(X, VALUE + 2 * X[:, 0])
    assert np.corrcoef(fitted.predict(X), X[:, 0])[0, 1] > 0.9
    warm = regressor(warm_start=True, max_iter=50, learning_rate_init=0.01).fit(X, np.full(60, VALUE))
    assert np.corrcoef(warm.fit(X, VALUE + 2 * X[:, 0]).predict(X), X[:, 0])[0, 1] > 0.9


def test_given_model_keeps_its_scores():
    old = Ridge().fit(X, X[:, 0])
    tuned = regressor(old).partial_fit(X[:1], [3.0])
    assert np.ptp(tuned.predict(X)) > 0.5


def test_a_graph_without_intercept_has_none():
    fitted = regressor(Linear(fit_intercept=False)).fit(X, np.full(60, VALUE))
    assert_allclose(fitted.predict(np.zeros((1, 3))), 0.0, atol=1e-3)

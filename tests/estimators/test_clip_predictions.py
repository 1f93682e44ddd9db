"""Predictions clipped to the range of the targets that were trained on."""

from __future__ import annotations

import pickle

import numpy as np
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score

from onnxtrain_sklearn import MLP, Linear, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.data import line
from tests.helpers.environment import each_engine
from tests.helpers.training import quietly, weights_equal

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, Y = line(80, outputs=2)
Y = Y * [100.0, 1.0] + [1000.0, 0.0]
FAR = (X * 20).astype(np.float32)


def clipped_regressor(model=None, **settings):
    settings = {"learning_rate_init": 0.02, "max_iter": 20, "batch_size": 32, "random_state": 0, **settings}
    return OrtGradientRegressor(model, clip_predictions=True, **settings)


def run_graph(estimator, rows):
    model = estimator.to_onnx()
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: rows})[0]


@each_engine
@pytest.mark.parametrize("loss", ["squared_error", "absolute_error", "poisson"])
@pytest.mark.parametrize("columns", [0, [0, 1]], ids=["one", "two"])
def test_each_output_has_own_bounds(loss, columns, engine):
    y = np.abs(Y[:, columns])
    clipped = clipped_regressor(MLP((8,)), loss=loss, engine=engine).fit(X, y)
    free = clone(clipped).set_params(clip_predictions=False).fit(X, y)
    assert weights_equal(clipped, free)
    assert clipped.loss_curve_ == free.loss_curve_
    found, beyond = clipped.predict(FAR).reshape(len(X), -1), free.predict(FAR).reshape(len(X), -1)
    low, high = np.float32(y.min(axis=0)), np.float32(y.max(axis=0))
    assert ((beyond < low) | (beyond > high)).any(axis=0).all()
    assert_array_equal(found, np.clip(beyond, low, high))
    assert_array_equal(run_graph(clipped, FAR).reshape(found.shape), found)


def test_given_graphs_are_clipped():
    for n_outputs, y in ((1, Y[:, 0]), (2, Y)):
        graph = Linear().build(4, n_outputs, random_state=0)
        clipped = clipped_regressor(graph).fit(X, y)
        free = clone(clipped).set_params(clip_predictions=False).fit(X, y)
        assert_array_equal(
            clipped.predict(FAR), np.clip(free.predict(FAR), *np.float32([y.min(axis=0), y.max(axis=0)]))
        )


def test_a_fitted_model_is_clipped_but_not_given_back():
    ridge = Ridge().fit(X, Y[:, 0])
    clipped = clipped_regressor(ridge, learning_rate_init=0).fit(X, Y[:, 0])
    expected = np.clip(ridge.predict(FAR), Y[:, 0].min(), Y[:, 0].max())
    assert_allclose(clipped.predict(FAR), expected, rtol=1e-5)
    with pytest.raises(ModelError, match=r"clip_predictions=True: .*to_onnx\(\)"):
        clipped.to_sklearn()
    clipped.set_params(clip_predictions=False).partial_fit(X, Y[:, 0])
    assert_allclose(clipped.to_sklearn().predict(FAR), ridge.predict(FAR), rtol=1e-5)


def test_later_rows_widen_the_range():
    passes = clipped_regressor(Linear(initialization="glorot_uniform"), learning_rate_init=0)
    for scale in (1.0, 3.0, 2.0):
        passes.partial_fit(X, Y[:, 0] * scale)
    found = passes.predict(X * np.float32(1e6))
    assert (found.min(), found.max()) == (np.float32(Y[:, 0].min()), np.float32(3 * Y[:, 0].max()))
    warm = clipped_regressor(Linear(initialization="glorot_uniform"), learning_rate_init=0, warm_start=True, max_iter=1)
    quietly(warm.fit, X, Y[:, 0])
    quietly(warm.fit, X, Y[:, 0] - 5000)
    assert warm.predict(X * np.float32(1e6)).min() == np.float32(Y[:, 0].min() - 5000)
    assert warm.set_params(warm_start=False).fit(X, Y[:, 0]).predict(X * np.float32(1e6)).min() > 0


def test_turned_on_later_it_knows_the_rows_before():
    random = Linear(initialization="glorot_uniform")
    late = OrtGradientRegressor(random, learning_rate_init=0, random_state=0).partial_fit(X, 2 * Y[:, 0])
    assert late.predict(X * np.float32(1e6)).max() > 1e5
    late.set_params(clip_predictions=True).partial_fit(X, Y[:, 0])
    assert late.predict(X * np.float32(1e6)).max() == np.float32(2 * Y[:, 0].max())


def test_rows_that_are_not_trained_on_do_not_count():
    y, weights = Y[:, 0].copy(), np.ones(len(Y))
    y[0], weights[0] = 1e5, 0.0
    clipped = clipped_regressor(Linear(), max_iter=2).fit(X, y, weights)
    assert clipped.predict(X * np.float32(1e6)).max() == np.float32(y[1:].max())
    stopped = clipped_regressor(Linear(), max_iter=2, early_stopping=True).fit(X, Y[:, 0])
    given = clipped_regressor(Linear(), max_iter=2).fit(X[:40], Y[:40, 0], X_val=X, y_val=Y[:, 0])
    assert given.predict(X * np.float32(1e6)).max() == np.float32(Y[:40, 0].max())
    assert len(stopped.validation_scores_) == 2


@pytest.mark.parametrize("scoring", [None, "r2", "neg_mean_absolute_error"])
def test_validation_scores_are_those_of_clipped_predictions(scoring):
    clipped = clipped_regressor(Linear(), learning_rate_init=0, max_iter=1, scoring=scoring)
    clipped.fit(X[:40], Y[:40, 0], X_val=FAR, y_val=Y[:, 0])
    found = clipped.predict(FAR)
    error = -np.abs(found - Y[:, 0]).mean()
    expected = error if scoring == "neg_mean_absolute_error" else r2_score(Y[:, 0], found)
    assert clipped.validation_scores_ == [pytest.approx(expected, rel=1e-6)]


def test_pickles_keep_the_range():
    clipped = clipped_regressor().fit(X, Y)
    copy = pickle.loads(pickle.dumps(clipped))
    assert_array_equal(copy.predict(FAR), clipped.predict(FAR))
    assert_array_equal(copy.partial_fit(X, 2 * Y).predict(FAR), clipped.partial_fit(X, 2 * Y).predict(FAR))


def test_clipping_keeps_nan():
    clipped = clipped_regressor(Linear(), max_iter=2).fit(X, Y)
    rows = X.copy()
    rows[0] = np.nan
    found = run_graph(clipped, rows)
    assert np.isnan(found[0]).all()
    assert np.isfinite(found[1:]).all()

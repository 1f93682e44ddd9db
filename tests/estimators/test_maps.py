"""Regression on targets of several axes: images, maps and series, of the shape of the graph's output."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import onnx.numpy_helper
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split

from onnxtrain_sklearn import LBFGS, MLP, SGD, Linear, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError
from onnxtrain_sklearn.losses import LOSSES
from tests.contracts.test_losses import REFERENCES
from tests.helpers.environment import each_engine
from tests.helpers.graphs import model
from tests.helpers.step_options import configured
from tests.helpers.training import NEVER

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

WEIGHT = np.array([[1, -2], [3, 0.5], [1, 2]], np.float32)
NET = model(x="float[N, 4, 3] X", y="float[N, 4, 2] Y", weights="float[3, 2] W = {1, -2, 3, 0.5, 1, 2}")
NUMBERS = sorted(
    name
    for name, loss in LOSSES.items()
    if name != "reconstruction"
    and "regression" in loss.tasks
    and loss().targets == "labels"
    and loss().n_scores("regression", 1) == 1
)


def series(n=23, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4, 3)).astype(np.float32) * 0.3
    return X, np.abs(X @ rng.normal(size=(3, 2)) + 0.1 * rng.normal(size=(n, 4, 2))) + 0.1


def regressor(net=NET, **parameters):
    defaults = {"optimizer": SGD(), "learning_rate_init": 0.05, "shuffle": False, "max_iter": 3, "tol": NEVER}
    return configured(OrtGradientRegressor(net), **defaults | parameters)


def numpy_weights(loss, X, y, weights, size=5, group=1, rate=0.05, epochs=3):
    """The weights after gradient descent in float64, with slopes of the loss by central differences."""
    w, value = WEIGHT.astype(float), lambda s, y: REFERENCES[loss](s, y, "regression")
    for _ in range(epochs):
        for start in range(0, len(X), size * group):
            rows = slice(start, start + size * group)
            s, h = X[rows].astype(float) @ w, 1e-6
            slope = (value(s + h, y[rows]) - value(s - h, y[rows])) / (2 * h)
            share = weights[rows] / weights[rows].sum() / y[0].size
            w = w - rate * np.einsum("ntf,ntk,n->fk", X[rows], slope, share)
    return w


@each_engine
@pytest.mark.parametrize("loss", NUMBERS)
def test_every_loss_is_the_mean_over_rows_of_the_mean_over_a_row(loss, engine):
    X, y = series()
    weights = np.random.default_rng(1).uniform(0, 2, len(X))
    fitted = regressor(loss=loss, engine=engine, batch_size=5).fit(X, y, sample_weight=weights)
    assert_allclose(fitted.weights_["W"], numpy_weights(loss, X, y, weights), rtol=2e-4, atol=2e-5)


@each_engine
def test_accumulated_minibatches_are_one(engine):
    X, y = series()
    fitted = regressor(engine=engine, batch_size=5, optimizer__accumulate=2).fit(X, y)
    assert_allclose(fitted.weights_["W"], numpy_weights("squared_error", X, y, np.ones(23), group=2), rtol=1e-4)


@pytest.mark.parametrize("optimizer", [SGD(), LBFGS()])
def test_rows_may_be_flat(optimizer):
    X, y = series()
    fitted = regressor(optimizer=optimizer).fit(X, y)
    flat = regressor(optimizer=optimizer).fit(X, y.reshape(len(y), -1))
    assert_array_equal(fitted.weights_["W"], flat.weights_["W"])
    assert fitted.predict(X).shape == y.shape
    assert_array_equal(flat.predict(X), fitted.predict(X).reshape(len(y), -1))


def test_predictions_are_those_of_the_file():
    X, y = series()
    fitted = regressor().fit(X, y)
    found = onnxruntime.InferenceSession(fitted.to_onnx().SerializeToString()).run(None, {"X": X})[0]
    assert found.shape == y.shape
    assert_array_equal(found, fitted.predict(X))
    twin = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(twin.predict(X), found)
    assert_array_equal(twin.partial_fit(X, y).weights_["W"], fitted.partial_fit(X, y).weights_["W"])


def test_score_compares_all_errors_with_those_of_the_mean_row():
    X, y = series()
    weights = np.random.default_rng(1).uniform(0, 2, len(X))
    fitted = regressor().fit(X, y, X_val=X, y_val=y, sample_weight_val=weights)
    off = np.average((y - fitted.predict(X)) ** 2, axis=0, weights=weights)
    spread = np.average((y - np.average(y, axis=0, weights=weights)) ** 2, axis=0, weights=weights)
    assert_allclose(fitted.score(X, y, weights), 1 - off.sum() / spread.sum())
    assert_allclose(fitted.validation_scores_[-1], 1 - off.sum() / spread.sum(), rtol=1e-6)
    with pytest.raises(ValueError, match=r"y has shape \(23, 2, 4\)"):
        fitted.score(X, y.transpose(0, 2, 1))


def test_searches_callbacks_early_stopping_and_warm_starts():
    X, y = series(60)
    seen = []
    net = regressor(early_stopping=True, callbacks=[lambda epoch: seen.append(epoch.validation_score)], random_state=0)
    search = GridSearchCV(net, {"learning_rate_init": [0.0, 0.2]}, cv=3).fit(X, y)
    assert search.best_params_ == {"learning_rate_init": 0.2}
    assert search.score(X, y) > search.cv_results_["mean_test_score"][0]
    assert np.isfinite(seen).all()
    once, twice = regressor(max_iter=2), regressor(max_iter=1, warm_start=True)
    assert_array_equal(once.fit(X, y).weights_["W"], twice.fit(X, y).fit(X, y).weights_["W"])


@pytest.mark.parametrize("loss", ["squared_error", "poisson"])
def test_builders_predict_in_the_shape_of_the_targets(loss):
    X, y = series(60)
    X = X.reshape(len(X), -1)
    make = OrtGradientRegressor(Linear(), loss=loss, optimizer="lbfgs", clip_predictions=True, random_state=0)
    flat = clone(make).fit(X, y.reshape(len(y), -1))
    fitted = make.fit(X, y)
    assert_allclose(fitted.predict(X).reshape(len(y), -1), flat.predict(X), rtol=1e-4)
    assert_allclose(np.maximum(fitted.predict(X).min(axis=0), y.min(axis=0)), fitted.predict(X).min(axis=0), rtol=1e-6)
    found = onnxruntime.InferenceSession(fitted.to_onnx().SerializeToString()).run(None, {"X": X})[0]
    assert_array_equal(found, fitted.predict(X))


def test_given_graphs_are_clipped_by_element():
    X, y = series(60)
    fitted = regressor(clip_predictions=True, max_iter=1).fit(X, y * [[0.1], [1], [1], [1]])
    low, high = ((y * [[0.1], [1], [1], [1]]).astype(np.float32).min(axis=0), (y[:, 0] * 0.1).max())
    assert (fitted.predict(10 * X) >= low).all()
    assert fitted.predict(10 * X)[:, 0].max() <= high + 1e-6


def test_shapes_that_do_not_fit_are_refused():
    X, y = series()
    with pytest.raises(ValueError, match=r"'Y' has shape \('n', 4, 2\), but y has shape \('n', 2, 4\)"):
        regressor().fit(X, y.transpose(0, 2, 1))
    with pytest.raises(ValueError, match=r"8 column\(s\), but y has 4 outputs"):
        regressor().fit(X, y[:, :, 0])
    with pytest.raises(ModelError, match="it must be"):
        OrtGradientClassifier(NET).fit(X, y[:, 0, 0] > 0.5)
    fitted = regressor().fit(X, y)
    with pytest.raises(ValueError, match=r"y has shape \('n', 8\), expected \('n', 4, 2\)"):
        fitted.partial_fit(X, y.reshape(len(y), -1))
    with pytest.raises(ValueError, match="NaN"):
        regressor().fit(X, np.where(y > 0.5, np.nan, y))


def upsampling_net(channels=6, seed=0):
    """A net that doubles the sides of images of any size."""
    rng = np.random.default_rng(seed)
    arrays = {
        "first": rng.normal(size=(channels, 1, 3, 3)) / 3,
        "up": rng.normal(size=(channels, channels, 2, 2)) / 3,
        "last": rng.normal(size=(1, channels, 3, 3)) / 6,
        "bias": np.zeros(1),
    }
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        net (float[N, 1, H, W] X) => (float[N, 1, P, Q] image) {
          a = Conv <pads = [1, 1, 1, 1]> (X, first)
          b = Relu (a)
          c = ConvTranspose <strides = [2, 2]> (b, up)
          d = Relu (c)
          image = Conv <pads = [1, 1, 1, 1]> (d, last, bias)
        }""")
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items())
    return proto


@pytest.mark.long
def test_a_net_that_upsamples_learns_to_sharpen_digits():
    images = load_digits().images[:600, None].astype(np.float32) / 16
    small = images.reshape(-1, 1, 4, 2, 4, 2).mean(axis=(3, 5))
    train, test = train_test_split(np.arange(600), random_state=0)
    net = OrtGradientRegressor(
        upsampling_net(), learning_rate_init=0.02, batch_size=32, max_iter=25, tol=NEVER, random_state=0
    ).fit(small[train], images[train])
    coarse = np.repeat(np.repeat(small, 2, axis=2), 2, axis=3)
    spread = ((images[test] - images[test].mean(axis=0)) ** 2).sum()
    assert net.score(small[test], images[test]) > 1 - ((images - coarse)[test] ** 2).sum() / spread + 0.05
    assert net.predict({"X": images[:3]}).shape == (3, 1, 16, 16)


def test_networks_that_take_images_give_images():
    images = load_digits().images[:200].astype(np.float32) / 16
    noisy = images + np.random.default_rng(0).normal(0, 0.3, images.shape).astype(np.float32)
    net = OrtGradientRegressor("convnet", learning_rate_init=0.01, max_iter=5, random_state=0).fit(noisy, images)
    assert net.predict(noisy).shape == images.shape
    wide = OrtGradientRegressor(MLP((8,)), max_iter=2, random_state=0).fit(noisy.reshape(200, -1), images[:, None])
    assert wide.predict(noisy.reshape(200, -1)).shape == (200, 1, 8, 8)

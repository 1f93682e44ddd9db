"""The moving average of the weights, against a reference in float64: it predicts, and training goes on without it."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import MLP, AdamW, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import DivergenceError, InvalidParameterError
from tests.helpers.environment import each_engine
from tests.helpers.network import NAMES, largest_error, trained
from tests.helpers.observed import trained_on_device
from tests.helpers.step_options import configured
from tests.helpers.steps import mlp, mlp_weights
from tests.helpers.training import NEVER

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 4)).astype(np.float32)
y = (np.tanh(X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.normal(size=40)).astype(np.float32)
TOLERANCE = 1e-4


def regressor(model=None, **settings):
    defaults = {"learning_rate_init": 0.02, "max_iter": 3, "batch_size": 8, "shuffle": False, "tol": NEVER}
    return configured(OrtGradientRegressor(model or mlp()), **defaults | {"random_state": 0} | settings)


class Average:
    """The moving average from zero, divided by what the powers of the decay leave out of one."""

    def __init__(self, decay):
        self.decay, self.t, self.sums = decay, 0, dict.fromkeys(NAMES, 0.0)
        self.values = []

    def __call__(self, w):
        self.t += 1
        self.sums = {name: self.decay * s + (1 - self.decay) * w[name] for name, s in self.sums.items()}
        self.values.append({name: s / (1 - self.decay**self.t) for name, s in self.sums.items()})


def reference(decay, **settings):
    average = Average(decay)
    raw, _ = trained(
        mlp_weights(), X, y, **({"rate": 0.02, "batch": 8, "epochs": 3, "decay": 0.01} | settings), after=average
    )
    return average.values, raw


def raw_of(estimator):
    return estimator._state.trained_weights()


@each_engine
@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9, 0.999])
def test_the_average_is_its_formula(decay, engine, where):
    fitted = regressor(optimizer__ema_decay=decay, engine=engine).fit(X, y)
    assert trained_on_device(fitted) == (where == "device")
    averages, raw = reference(decay)
    assert largest_error(fitted.weights_, averages[-1], mlp_weights()) < TOLERANCE
    assert largest_error(raw_of(fitted), raw, mlp_weights()) < TOLERANCE
    if decay:
        assert largest_error(raw, averages[-1], mlp_weights()) > 10 * TOLERANCE


def test_predictions_scores_and_files_take_the_average(where):
    scores = {"X_val": X[:20], "y_val": y[:20]}
    fitted = regressor(optimizer__ema_decay=0.9).fit(X, y, **scores)
    averages, _ = reference(0.9)

    def predictions(w, rows):
        hidden = np.tanh(rows @ w[NAMES[0]] + w[NAMES[1]])
        return (hidden @ w[NAMES[2]] + w[NAMES[3]]).ravel()

    expected = predictions(averages[-1], X.astype(np.float64))
    assert_allclose(fitted.predict(X), expected, atol=1e-5)
    session = onnxruntime.InferenceSession(fitted.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    assert_allclose(session.run(None, {"X": X})[0].ravel(), expected, atol=1e-5)
    for epoch, score in enumerate(fitted.validation_scores_, start=1):
        off = predictions(averages[5 * epoch - 1], X[:20].astype(np.float64)) - y[:20]
        assert score == pytest.approx(1 - (off**2).sum() / ((y[:20] - y[:20].mean()) ** 2).sum(), abs=1e-5)
    plain = regressor().fit(X, y, **scores)
    assert_array_equal(plain.loss_curve_, fitted.loss_curve_)
    assert np.abs(np.subtract(plain.validation_scores_, fitted.validation_scores_)).min() > 1e-3


@pytest.mark.parametrize("how", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_copies_go_on_exactly(how, where):
    fitted = regressor(optimizer__ema_decay=0.9).partial_fit(X, y)
    twin = how(fitted)
    assert_array_equal(twin.predict(X), fitted.predict(X))
    for one in (fitted, twin):
        one.partial_fit(X, y).partial_fit(X, y)
    straight = regressor(optimizer__ema_decay=0.9).fit(X, y)
    for name in NAMES:
        assert_array_equal(twin.weights_[name], fitted.weights_[name])
        assert_array_equal(straight.weights_[name], fitted.weights_[name])
        assert_array_equal(raw_of(twin)[name], raw_of(fitted)[name])


def test_average_may_be_switched_between_calls():
    fitted = regressor(max_iter=1, warm_start=True).fit(X, y)
    fitted.set_params(optimizer__ema_decay=0.5).fit(X, y)
    _, raw = reference(0.5, epochs=1)
    averages, _ = reference(0.5, epochs=2)
    every = []
    trained(mlp_weights(), X, y, rate=0.02, batch=8, epochs=2, decay=0.01, after=lambda w: every.append(dict(w)))
    average = Average(0.5)
    for w in every[5:]:
        average(w)
    assert largest_error(fitted.weights_, average.values[-1], mlp_weights()) < TOLERANCE
    fitted.set_params(optimizer__ema_decay=None)
    fitted.fit(X, y)
    _, raw = reference(0.5)
    assert largest_error(fitted.weights_, raw, mlp_weights()) < TOLERANCE
    assert len(averages) == 10


@pytest.mark.parametrize("stopping", ["best_epoch", True])
def test_the_best_epoch_is_that_of_the_average(stopping):
    settings = {"early_stopping": stopping, "n_iter_no_change": np.inf, "max_iter": 12, "learning_rate_init": 0.05}
    fitted = regressor(MLP((12,)), optimizer__ema_decay=0.8, **settings).fit(X[:30], y[:30], X_val=X[30:], y_val=y[30:])
    best = int(np.argmax(fitted.validation_scores_)) + 1
    assert fitted.score(X[30:], y[30:]) == pytest.approx(max(fitted.validation_scores_), abs=1e-6)
    short = regressor(MLP((12,)), optimizer__ema_decay=0.8, max_iter=best, learning_rate_init=0.05).fit(X[:30], y[:30])
    for name, array in short.weights_.items():
        assert_array_equal(fitted.weights_[name], array)
        assert_array_equal(raw_of(fitted)[name], raw_of(short)[name])


def test_divergence_leaves_finite_averages():
    fitted = regressor(optimizer__ema_decay=0.9).partial_fit(X, y)
    before = fitted.weights_
    with pytest.raises(DivergenceError):
        fitted.set_params(learning_rate_init=1e30).partial_fit(X, y)
    for name in NAMES:
        assert_array_equal(fitted.weights_[name], before[name])
    fitted.set_params(learning_rate_init=0.01).partial_fit(X, y)
    assert np.isfinite(fitted.predict(X)).all()


def test_running_statistics_are_not_averaged(where):
    graph = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]> g (float[N, 4] X) => (float[N, 1] Y)
        <float[4, 1] W = {0.1, 0.2, 0.3, 0.4}, float[4] s = {1, 1, 1, 1}, float[4] b = {0, 0, 0, 0},
         float[4] m = {0, 0, 0, 0}, float[4] v = {1, 1, 1, 1}>
        { B, n, u = BatchNormalization <training_mode = 1> (X, s, b, m, v) Y = MatMul(B, W) }"""
    )
    plain = regressor(graph, engine="portable").fit(X, y).weights_
    averaged = regressor(graph, engine="portable", optimizer__ema_decay=0.9).fit(X, y).weights_
    for name in ("m", "v"):
        assert_array_equal(averaged[name], plain[name])
    assert np.abs(averaged["W"] - plain["W"]).max() > 1e-3


def test_with_accumulation_frozen_weights_and_factors():
    fitted = regressor(
        optimizer__ema_decay=0.7,
        optimizer__accumulate=2,
        optimizer__learning_rate_factors={"*.bias": 0.0},
        trainable=["layers.0.*"],
        max_iter=1,
    ).fit(X, y)
    averages, _ = reference(0.7, batch=16, epochs=1, rates=dict.fromkeys(NAMES[1:], 0.0))
    assert largest_error(fitted.weights_, averages[-1], mlp_weights()) < TOLERANCE
    resumed = fitted.set_params(trainable="all", warm_start=True)
    begin = raw_of(resumed)
    resumed.set_params(learning_rate_init=0.0).fit(X, y)
    for name in NAMES:  # another selection begins from the weights themselves
        assert_allclose(resumed.weights_[name], begin[name], rtol=0, atol=1e-7)


@each_engine
@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer__ema_decay": 0.9},
        {"optimizer__accumulate": 3},
        {"optimizer__learning_rate_factors": {"W": 0.5}, "optimizer__weight_decay_factors": {"W": 2.0}},
        {"optimizer": AdamW(weight_decay_schedule="linear")},
        {"dropout_schedule": "flat_cos"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_graphs_in_float64(settings, engine, recwarn):
    bodies = {kind: f"""<ir_version: 8, opset_import: ["": 18]> g ({kind}[N, 4] X) => ({kind}[N, 1] Y)
        <{kind}[4, 1] W = {{0.1, 0.2, 0.3, 0.4}}, {kind} r = {{0.4}}, bool t = {{1}}>
        {{ D = Dropout(X, r, t) Y = MatMul(D, W) }}""" for kind in ("float", "double")}  # fmt: skip
    found = {
        kind: regressor(onnx.parser.parse_model(body), engine=engine, **settings).fit(X, y).weights_["W"]
        for kind, body in bodies.items()
    }
    plain = regressor(onnx.parser.parse_model(bodies["double"]), engine=engine).fit(X, y).weights_["W"]
    assert found["double"].dtype == np.float64
    assert_allclose(found["float"], found["double"], rtol=0, atol=1e-5)
    assert np.abs(found["double"] - plain).max() > 1e-4
    assert not [w for w in recwarn if "dropout" in str(w.message)]


def test_labels():
    labels = (y > 0).astype(int)
    plain = OrtGradientClassifier(max_iter=20, random_state=0, tol=NEVER).fit(X, labels)
    fitted = OrtGradientClassifier(max_iter=20, random_state=0, tol=NEVER, optimizer=AdamW(ema_decay=0.9)).fit(
        X, labels
    )
    assert fitted.predict_proba(X).shape == (40, 2)
    assert np.abs(fitted.predict_proba(X) - plain.predict_proba(X)).max() > 1e-4
    assert_array_equal(raw_of(fitted)["layers.0.weight"], plain.weights_["layers.0.weight"])


def test_wrong_values():
    for value in (1.0, -0.1, np.nan, "0.9"):
        with pytest.raises(InvalidParameterError, match="'ema_decay' parameter of AdamW must be"):
            regressor(optimizer__ema_decay=value).fit(X, y)
    with pytest.raises(ValueError, match="Invalid parameter 'ema_decay' for estimator LBFGS"):
        regressor(optimizer="lbfgs", optimizer__ema_decay=0.9)

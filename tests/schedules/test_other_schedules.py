"""Schedules of weight decay and of dropout, against references in float64."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import Adam, AdamW, OrtGradientRegressor, clear_cache
from onnxtrain_sklearn.exceptions import ModelError, OnnxTrainWarning
from onnxtrain_sklearn.optimizers import OPTIMIZERS, Optimizer
from onnxtrain_sklearn.schedules import Constant, Cosine, FlatCosine, Linear, Progress, StepDecay
from tests.helpers.environment import OWN_MEMORY, available_engines, each_engine
from tests.helpers.network import NAMES, largest_error, trained
from tests.helpers.observed import record_sessions
from tests.helpers.random_numbers import Draws
from tests.helpers.step_options import configured, with_options
from tests.helpers.steps import mlp, mlp_weights
from tests.helpers.training import NEVER

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 4)).astype(np.float32)
y = (np.tanh(X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.normal(size=40)).astype(np.float32)
STEPS, TOLERANCE = 15, 1e-4  # three epochs of five batches
MINIBATCH = sorted(n for n, kind in OPTIMIZERS.items() if issubclass(kind, Optimizer))

DROPOUT = onnx.parser.parse_model(
    """<ir_version: 8, opset_import: ["": 18]> g (float[N, 4] X) => (float[N, 1] Y)
    <float[4, 1] W = {0.1, 0.2, 0.3, 0.4}, float r = {0.4}, float s = {0.2}, bool t = {1}>
    { D = Dropout(X, r, t) E = Dropout(D, s, t) Y = MatMul(E, W) }"""
)


def regressor(model=None, **settings):
    defaults = {"learning_rate_init": 0.01, "max_iter": 3, "batch_size": 8, "shuffle": False, "tol": NEVER}
    return configured(OrtGradientRegressor(model or mlp()), **defaults | {"random_state": 0} | settings)


@each_engine
@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("name", MINIBATCH)
def test_weight_decay_follows_its_schedule(name, engine, where, monkeypatch):
    if where == "device":
        monkeypatch.setitem(OWN_MEMORY, "CPUExecutionProvider", "cpu")
    rate = 0.002 if name == "lion" else 0.01
    settings = {"learning_rate_init": rate, "optimizer": OPTIMIZERS[name](weight_decay=0.5), "engine": engine}
    fitted = regressor(optimizer__weight_decay_schedule="flat_cos", learning_rate="linear", **settings).fit(X, y)
    reference = {"rate": rate, "batch": 8, "epochs": 3, "optimizer": name, "decay": 0.5, "rate_at": line}
    expected, _ = trained(mlp_weights(), X, y, decay_at=flat_cosine, **reference)
    assert largest_error(fitted.weights_, expected, mlp_weights()) < TOLERANCE
    constant, _ = trained(mlp_weights(), X, y, **reference)
    assert largest_error(constant, expected, mlp_weights()) > 10 * TOLERANCE


def line(t):
    return 1 - t / STEPS


def flat_cosine(t):
    return FlatCosine(total_steps=STEPS).factor(Progress(step=t))


def test_with_factors_by_parameter():
    fitted = regressor(
        optimizer=AdamW(weight_decay=0.5, weight_decay_schedule=Cosine(), weight_decay_factors={"*.bias": 0.0}),
    ).fit(X, y)
    decays = {"layers.0.bias": 0.0, "layers.1.bias": 0.0}
    cosine = Cosine(total_steps=STEPS)
    expected, _ = trained(
        mlp_weights(), X, y, rate=0.01, batch=8, epochs=3, decay=0.5, decays=decays,
        decay_at=lambda t: cosine.factor(Progress(step=t)),
    )  # fmt: skip
    assert largest_error(fitted.weights_, expected, mlp_weights()) < TOLERANCE


@pytest.mark.skipif("ort-training" not in available_engines(), reason="needs onnxruntime-training")
def test_fused_kernels_are_kept(monkeypatch):
    clear_cache()
    graphs = record_sessions(monkeypatch, lambda graph, *_, **__: onnx.load_model_from_string(graph).graph)
    regressor(optimizer__weight_decay_schedule="linear").fit(X, y)
    assert "AdamOptimizer" in {node.op_type for graph in graphs for node in graph.node}


def test_constant_schedules_change_no_graph():
    plain = regressor(optimizer="adam").fit(X, y)
    same = regressor(optimizer=Adam(weight_decay_schedule=Constant()), dropout_schedule="constant").fit(X, y)
    for name in NAMES:
        assert_array_equal(same.weights_[name], plain.weights_[name])
    assert not any(same._state.live.step.settings.scheduled)


class Decaying(Optimizer):
    """An optimizer of the user that ignores the coefficient."""

    def __init__(self, weight_decay=0.5, **options):
        super().__init__(**options)
        self.weight_decay = weight_decay

    def update(self, op, p, g, state, k):
        g = op.Add(g, op.Mul(p, self._decay(k)))
        return op.Sub(p, op.Mul(g, k["learning_rate"])), {}

    def _decay(self, coefficients):
        return float(self.weight_decay)


class Following(Decaying):
    def _decay(self, coefficients):
        return coefficients.get("weight_decay", self.weight_decay)


class Computing(Decaying):
    def scalars(self, learning_rate, t):
        return {"learning_rate": learning_rate, "decay": self.weight_decay}

    def _decay(self, coefficients):
        return coefficients["decay"]


@pytest.mark.parametrize("kind", [Following, Computing])
def test_optimizers_of_the_user(kind):
    fitted = regressor(optimizer=with_options(kind(), weight_decay_schedule="flat_cos")).fit(X, y)
    expected, _ = trained(
        mlp_weights(), X, y, rate=0.01, batch=8, epochs=3, optimizer="sgd", decay=0.5, decay_at=flat_cosine
    )
    assert largest_error(fitted.weights_, expected, mlp_weights()) < TOLERANCE
    assert fitted.optimizer.weight_decay == 0.5


def test_an_optimizer_that_cannot_follow_is_refused():
    regressor(optimizer=Decaying()).fit(X, y)
    with pytest.raises(ModelError, match=r"Decaying.update does not follow weight_decay_schedule.*k.get"):
        regressor(optimizer=with_options(Decaying(), weight_decay_schedule="linear")).fit(X, y)


def dropout_reference(fitted, factor_at):
    """SGD on the squared error of the linear graph, with the masks that the seed gives."""
    w, seed = np.array([0.1, 0.2, 0.3, 0.4]), fitted._state.seed
    numbers = Draws(seed, (8, 4), (8, 4))
    for t in range(STEPS):
        rows = slice(8 * (t % 5), 8 * (t % 5) + 8)
        dropped = X[rows].astype(np.float64)
        for uniform, ratio in zip(numbers.at(t), (0.4, 0.2), strict=True):
            ratio = ratio * factor_at(t)
            dropped = dropped * (uniform >= ratio) / (1 - ratio)
        w = w - 0.05 * 2 * dropped.T @ (dropped @ w - y[rows]) / 8
    return w


@each_engine
@pytest.mark.parametrize("where", ["host", "device"])
def test_dropout_follows_its_schedule(engine, where, monkeypatch):
    if where == "device":
        monkeypatch.setitem(OWN_MEMORY, "CPUExecutionProvider", "cpu")
    settings = {"optimizer": "sgd", "learning_rate_init": 0.05, "engine": engine}
    fitted = regressor(DROPOUT, dropout_schedule="flat_cos", **settings).fit(X, y)
    assert_allclose(fitted.weights_["W"].ravel(), dropout_reference(fitted, flat_cosine), rtol=0, atol=1e-5)
    plain = regressor(DROPOUT, **settings).fit(X, y)
    assert_allclose(plain.weights_["W"].ravel(), dropout_reference(plain, lambda t: 1.0), rtol=0, atol=1e-5)
    assert np.abs(plain.weights_["W"] - fitted.weights_["W"]).max() > 1e-3


def test_all_ratios_at_zero_drop_nothing():
    fitted = regressor(DROPOUT, dropout_schedule=StepDecay(1, 1e-9), optimizer="sgd", max_iter=1).fit(X, y)
    zero_from_second = dropout_reference(fitted, lambda t: 1e-9**t)
    again = regressor(DROPOUT, dropout_schedule=StepDecay(1, 1e-9), optimizer="sgd", learning_rate_init=0.05).fit(X, y)
    assert_allclose(again.weights_["W"].ravel(), zero_from_second, rtol=0, atol=1e-5)


def test_ratios_stay_below_one():
    with pytest.raises(ValueError, match=r"dropout_schedule gives the factor .* a ratio of 0.4.* must stay below 1"):
        regressor(DROPOUT, dropout_schedule=Linear(final=3.0)).fit(X, y)


@pytest.mark.parametrize("how", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_copies_go_on_exactly(how):
    settings = {"dropout_schedule": "flat_cos", "optimizer": AdamW(weight_decay_schedule="cosine")}
    fitted = regressor(DROPOUT, **settings).partial_fit(X, y)
    twin = how(fitted)
    for one in (fitted, twin, fitted, twin):
        one.partial_fit(X, y)
    straight = regressor(DROPOUT, **settings).fit(X, y)
    assert_array_equal(twin.weights_["W"], fitted.weights_["W"])
    assert_array_equal(straight.weights_["W"], fitted.weights_["W"])


def test_schedules_may_change_between_calls():
    fitted = regressor(max_iter=1, warm_start=True, optimizer=AdamW(weight_decay=0.5)).fit(X, y)
    fitted.set_params(optimizer__weight_decay_schedule=Linear(total_steps=STEPS)).fit(X, y).fit(X, y)
    expected, _ = trained(
        mlp_weights(), X, y, rate=0.01, batch=8, epochs=3, decay=0.5, decay_at=lambda t: 1.0 if t < 5 else line(t)
    )
    assert largest_error(fitted.weights_, expected, mlp_weights()) < TOLERANCE


def test_parameters_within_a_schedule():
    estimator = regressor(optimizer__weight_decay_schedule="flat_cos", dropout_schedule="linear")
    estimator.set_params(optimizer__weight_decay_schedule__flat=0.25, dropout_schedule__final=0.5)
    assert (estimator.optimizer.weight_decay_schedule.flat, estimator.dropout_schedule.final) == (0.25, 0.5)


def test_a_graph_without_dropout_gets_a_warning():
    with pytest.warns(OnnxTrainWarning, match="dropout_schedule has no effect: the graph has no Dropout"):
        regressor(dropout_schedule="linear").fit(X, y)


@pytest.mark.parametrize(
    "setting", [{"weight_decay_schedule": "linear"}, {"weight_decay_factors": {"*": 0.5}}], ids=["schedule", "factors"]
)
def test_multiplying_a_weight_decay_of_zero_warns(setting):
    (name,) = setting
    with pytest.warns(UserWarning, match=f"{name} has no effect, because AdamW has weight_decay=0"):
        decayed = regressor(optimizer=AdamW(weight_decay=0.0, **setting)).fit(X, y)
    plain = regressor(optimizer=AdamW(weight_decay=0.0)).fit(X, y)
    for name in NAMES:
        assert_array_equal(decayed.weights_[name], plain.weights_[name])


def test_unsupported_schedules_are_refused():
    sign = type("Signs", (Optimizer,), {"update": lambda *a: None})()
    with pytest.raises(ValueError, match="dropout_schedule has no effect with LBFGS"):
        regressor(optimizer="lbfgs", dropout_schedule="linear").fit(X, y)
    for owner, name in (("optimizer__", "weight_decay_schedule"), ("", "dropout_schedule")):
        with pytest.raises(ValueError, match=f"Unknown {name} 'lineer'. Did you mean 'linear'"):
            regressor(**{owner + name: "lineer"}).fit(X, y)
        with pytest.raises(TypeError, match=rf"{name} must be .*got the class Cosine; give an instance: Cosine\(\)"):
            regressor(**{owner + name: Cosine}).fit(X, y)
    with pytest.raises(ValueError, match=r"weight_decay_schedule multiplies .* which Signs lacks"):
        regressor(optimizer=with_options(sign, weight_decay_schedule="linear")).fit(X, y)
    assert AdamW().weight_decay_schedule == "constant"

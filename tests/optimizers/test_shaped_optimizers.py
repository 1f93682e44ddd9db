"""Optimizers of whole parameters in training: settings of a step, copies, checkpoints, files, exported graphs."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone

from onnxtrain_sklearn import MLP, SGD, Linear, OrtGradientClassifier, OrtGradientRegressor, clear_cache
from onnxtrain_sklearn.exceptions import DivergenceError, ModelError
from onnxtrain_sklearn.optimizers import LAMB, Adafactor, AdamW, Lion, Muon, Optimizer, Slot
from tests.helpers.checkpoints import same
from tests.helpers.environment import OWN_MEMORY, each_engine
from tests.helpers.network import largest_error, trained
from tests.helpers.observed import record_sessions
from tests.helpers.step_options import configured, with_options
from tests.helpers.steps import mlp, mlp_weights
from tests.helpers.training import NEVER
from tests.helpers.training_graphs import goes_on

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

rng = np.random.default_rng(0)
X = rng.normal(size=(40, 4)).astype(np.float32)
y = (np.tanh(X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.normal(size=40)).astype(np.float32)
SHAPED = [LAMB(weight_decay=0.1), Muon(weight_decay=0.3), Adafactor(weight_decay=0.1)]
TOLERANCE = 1e-4

each_shaped = pytest.mark.parametrize("optimizer", SHAPED, ids=lambda o: o.name)


def regressor(optimizer, **settings):
    defaults = {"learning_rate_init": 0.02, "max_iter": 3, "batch_size": 8, "shuffle": False, "tol": NEVER}
    given = {"random_state": 0, "optimizer": optimizer, **settings}
    return configured(OrtGradientRegressor(mlp()), **(defaults | given))


def reference(optimizer, **settings):
    given = {"rate": 0.02, "batch": 8, "epochs": 3, "decay": optimizer.weight_decay, **settings}
    return trained(mlp_weights(), X, y, optimizer=optimizer.name, **given)[0]


@each_engine
@each_shaped
@pytest.mark.parametrize("where", ["host", "device"])
def test_penalty_and_clipping_precede_the_update(optimizer, engine, where, monkeypatch):
    if where == "device":
        monkeypatch.setitem(OWN_MEMORY, "CPUExecutionProvider", "cpu")
    fitted = regressor(optimizer, alpha=0.5, optimizer__max_grad_norm=0.3, engine=engine).fit(X, y)
    assert largest_error(fitted.weights_, reference(optimizer, alpha=0.5, limit=0.3), mlp_weights()) < TOLERANCE


@each_shaped
@pytest.mark.parametrize("where", ["host", "device"])
def test_accumulated_minibatches_are_one_step(optimizer, where, monkeypatch):
    if where == "device":
        monkeypatch.setitem(OWN_MEMORY, "CPUExecutionProvider", "cpu")
    fitted = regressor(optimizer, batch_size=4, optimizer__accumulate=2).fit(X, y)
    assert largest_error(fitted.weights_, reference(optimizer), mlp_weights()) < TOLERANCE


@each_shaped
@pytest.mark.parametrize("where", ["host", "device"])
def test_weights_are_averaged(optimizer, where, monkeypatch):
    if where == "device":
        monkeypatch.setitem(OWN_MEMORY, "CPUExecutionProvider", "cpu")
    seen = []
    given = {"rate": 0.02, "batch": 8, "epochs": 3, "decay": optimizer.weight_decay, "optimizer": optimizer.name}
    trained(mlp_weights(), X, y, after=lambda w: seen.append(dict(w)), **given)
    shares = 0.8 ** np.arange(len(seen))[::-1]
    expected = {n: sum(s * w[n] for s, w in zip(shares, seen, strict=True)) / shares.sum() for n in seen[0]}
    fitted = regressor(optimizer, optimizer__ema_decay=0.8).fit(X, y)
    assert largest_error(fitted.weights_, expected, mlp_weights()) < TOLERANCE


@each_shaped
def test_schedules_change_rate_and_weight_decay(optimizer):
    fitted = regressor(optimizer, learning_rate="linear", optimizer__weight_decay_schedule="cosine").fit(X, y)
    steps = 15

    def linear(t):
        return 1 - t / steps

    def cosine(t):
        return 0.5 * (1 + np.cos(np.pi * t / steps))

    expected = reference(optimizer, rate_at=linear, decay_at=cosine)
    assert largest_error(fitted.weights_, expected, mlp_weights()) < TOLERANCE
    assert largest_error(reference(optimizer, rate_at=linear), expected, mlp_weights()) > 10 * TOLERANCE


@each_shaped
@pytest.mark.parametrize("how", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))], ids=["copied", "pickled"])
def test_copies_go_on_to_the_same_bits(optimizer, how):
    one = regressor(optimizer).partial_fit(X, y)
    other = how(one)
    assert same(one.partial_fit(X, y), other.partial_fit(X, y))


@each_shaped
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"alpha": 0.3, "optimizer__max_grad_norm": 0.5, "optimizer__ema_decay": 0.8},
        {
            "optimizer__accumulate": 2,
            "optimizer__learning_rate_factors": {"layers.0.*": 0.5},
            "optimizer__weight_decay_factors": {"*.bias": 0.0},
        },
    ],
    ids=str,
)
def test_exported_graphs_go_on(optimizer, settings, tmp_path):
    folder = goes_on(regressor(optimizer, max_iter=2, **settings), X, y, tmp_path, tolerance=2e-6)
    own = [one for one in folder.manifest["state"]["tensors"] if one["role"] == "optimizer"]
    assert {one["name"] for one in own} == set(regressor(optimizer).partial_fit(X, y)._state.optimizer_state.slots)


@each_shaped
def test_training_info_holds_the_arrays_of_each_parameter(optimizer, tmp_path):
    from onnxtrain_sklearn import load_training

    model = regressor(optimizer).partial_fit(X, y)
    (tmp_path / "model.onnx").write_bytes(model.to_training_onnx().SerializeToString())
    training = load_training(tmp_path / "model.onnx", shuffle=False).partial_fit(X, y, learning_rate=0.02)
    model.partial_fit(X, y)
    other = clone(model).partial_fit(X, y).load_state(training.state)
    for name, array in model.weights_.items():
        np.testing.assert_allclose(other.weights_[name], array, rtol=0, atol=2e-6)
    for name, array in model._state.optimizer_state.slots.items():
        np.testing.assert_allclose(other._state.optimizer_state.slots[name], array, rtol=1e-4, atol=1e-6)


def test_state_of_another_shape_is_refused():
    model = regressor(Adafactor()).partial_fit(X, y)
    name, array = next(iter(model._state.optimizer_state.slots.items()))
    state = {**model._state.optimizer_state.slots, "parameters": model._state.parameters.vector, "step": np.array(5)}
    before = model.weights_
    with pytest.raises(ModelError, match=rf"holds '{name}' of shape \[1\], and the estimator has"):
        model.load_state({**state, name: array.ravel()[:1]})
    with pytest.raises(ModelError, match=r"set the optimizer that the state was trained with"):
        regressor(SGD(0.9)).partial_fit(X, y).load_state(state)
    assert all(np.array_equal(array, before[n]) for n, array in model.weights_.items())


@each_shaped
def test_divergence_resets_the_arrays_and_is_an_error(optimizer):
    wild = np.where(np.arange(40) < 39, y, np.inf).astype(np.float32)
    model = regressor(optimizer).partial_fit(X, y)
    with pytest.raises((DivergenceError, ValueError)):
        model.partial_fit(X, wild)
    huge = regressor(optimizer, learning_rate_init=1e30)
    with pytest.raises(DivergenceError):
        huge.fit(X, 1e20 * y)


@each_shaped
def test_lazy_updates_of_a_matrix_are_refused(optimizer):
    lazy = OrtGradientClassifier(Linear(), optimizer=with_options(optimizer, lazy_rows=True), random_state=0)
    with pytest.raises(ModelError, match=rf"{type(optimizer).__name__}.update combines .* Set lazy_rows=False"):
        lazy.fit(sp.random(40, 300, 0.02, "csr", np.float32, 0), np.arange(40) % 3)


class Whitened(Optimizer):
    """An optimizer of a user: a slot of its own shape, a count, and AdamW for a layer by its name."""

    elementwise = False

    def for_parameter(self, p):
        return AdamW() if p.name.startswith("layers.1") else self

    def slots(self, p):
        return {"scale": Slot((1,), 2.0), "mean": Slot((*p.shape[:-1], 1))}

    def update(self, op, p, g, state, k):
        mean = op.Add(state["mean"], op.ReduceMean(g, axes=[-1], keepdims=True))
        scale = op.Mul(state["scale"], 0.5)
        return op.Sub(p, op.Mul(op.Mul(op.Sub(g, mean), scale), k["learning_rate"])), {"scale": scale, "mean": mean}


def test_optimizer_of_a_user_chooses_by_name_and_keeps_arrays(tmp_path):
    model = regressor(Whitened(), max_iter=1, batch_size=40).fit(X, y)
    state = model._state.optimizer_state.slots
    assert {n: a.shape for n, a in state.items()} == {
        "scale/layers.0.weight": (1,), "mean/layers.0.weight": (4, 1),
        "scale/layers.0.bias": (1,), "mean/layers.0.bias": (1,),
        "first_moment/layers.1.weight": (6, 1), "second_moment/layers.1.weight": (6, 1),
        "first_moment/layers.1.bias": (1,), "second_moment/layers.1.bias": (1,),
    }  # fmt: skip
    assert state["scale/layers.0.weight"] == 1.0
    goes_on(regressor(Whitened(), max_iter=2), X, y, tmp_path, tolerance=2e-6)


def test_one_optimizer_for_all_parameters_keeps_vectors():
    class Named(Lion):
        def for_parameter(self, p):
            return self

    one, other = (OrtGradientClassifier(MLP((5,)), optimizer=o, random_state=0) for o in (Named(), Lion()))
    one.partial_fit(X, y > 0, [False, True])
    other.partial_fit(X, y > 0, [False, True])
    assert one._state.optimizer_state.slots.keys() == {"momentum"}
    assert all(np.array_equal(array, other.weights_[name]) for name, array in one.weights_.items())


@pytest.mark.long
def test_large_products_of_an_update_take_all_threads(monkeypatch):
    monkeypatch.setattr("onnxtrain_sklearn._ort.devices.available_threads", lambda: 2)
    seen = record_sessions(monkeypatch, lambda *_, **named: named["threads"])
    clear_cache()
    for width, expected in ((8, {1}), (120, {1, 2})):
        seen.clear()
        OrtGradientRegressor(MLP((width, width)), optimizer=Muon(), batch_size=4, random_state=0).partial_fit(X, y)
        assert set(seen) == expected

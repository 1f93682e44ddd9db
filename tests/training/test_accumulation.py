"""Gradients of several minibatches in one step: as one minibatch of all their rows."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import onnx.parser
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import LBFGS, SGD, Adam, AdamW, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.optimizers.base import OPTIONS
from tests.helpers.environment import each_engine
from tests.helpers.network import NAMES, largest_error, trained
from tests.helpers.observed import trained_on_device
from tests.helpers.step_options import configured
from tests.helpers.steps import mlp, mlp_weights
from tests.helpers.training import NEVER

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

rng = np.random.default_rng(0)
X = rng.normal(size=(50, 4)).astype(np.float32)
y = (np.tanh(X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.normal(size=50)).astype(np.float32)
WEIGHTS = rng.uniform(0.05, 3.0, 50)
TOLERANCE = 1e-4

CASES = {
    "plain": {},
    "penalty": {"alpha": 2.0},
    "clipping": {"optimizer__max_grad_norm": 0.2},
    "penalty and clipping": {"alpha": 2.0, "optimizer": SGD(momentum=0.9, max_grad_norm=0.2)},
    "factors": {"optimizer": Adam(learning_rate_factors={"*.bias": 0.1})},
}


def regressor(model=None, **settings):
    defaults = {"learning_rate_init": 0.01, "max_iter": 3, "batch_size": 4, "shuffle": False, "tol": NEVER}
    return configured(OrtGradientRegressor(model or mlp()), **defaults | {"random_state": 0} | settings)


@each_engine
@pytest.mark.parametrize("accumulate", [2, 3, 5, 100])
@pytest.mark.parametrize("case", CASES)
def test_a_group_is_one_minibatch_of_all_its_rows(case, accumulate, engine, where):
    """Thirteen minibatches, the last of two rows; each group but the last is full."""
    settings = {"engine": engine} | CASES[case]
    fitted = regressor(optimizer__accumulate=accumulate, **settings).fit(X, y, WEIGHTS)
    assert trained_on_device(fitted) == (where == "device")
    optimizer = settings.get("optimizer", AdamW())
    expected, losses = trained(
        mlp_weights(), X, y, rate=0.01, batch=4 * accumulate, epochs=3, sample_weight=WEIGHTS,
        optimizer=type(optimizer).__name__.lower(), decay=getattr(optimizer, "weight_decay", 0.0),
        alpha=settings.get("alpha", 0.0), **({"momentum": 0.9} if isinstance(optimizer, SGD) else {}),
        limit=settings.get("optimizer__max_grad_norm", optimizer.max_grad_norm),
        rates={n: 0.1 for n in NAMES if n.endswith("bias")} if case == "factors" else None,
    )  # fmt: skip
    assert largest_error(fitted.weights_, expected, mlp_weights()) < TOLERANCE
    assert_allclose(fitted.loss_curve_, losses, rtol=1e-5)
    plain = regressor(**settings).fit(X, y, WEIGHTS)
    assert largest_error(plain.weights_, expected, mlp_weights()) > 10 * TOLERANCE


def test_steps_of_the_schedule_are_updates():
    rates = []
    settings = {"callbacks": [lambda epoch: rates.append(epoch.learning_rate)], "learning_rate": "linear"}
    fitted = regressor(optimizer__accumulate=5, max_iter=4, **settings).fit(X, y)
    assert fitted._state.history.progress.step == 12
    assert fitted._state.optimizer_state.t == 12
    assert_allclose(rates, [0.01 * (1 - (3 * i + 2) / 12) for i in range(4)])


def test_shuffled_rows_are_those_of_the_large_batch():
    small = regressor(optimizer__accumulate=4, shuffle=True, random_state=3).fit(X, y)
    large = regressor(batch_size=16, shuffle=True, random_state=3).fit(X, y)
    for name in NAMES:
        assert_allclose(small.weights_[name], large.weights_[name], rtol=0, atol=1e-6)


def test_classes_and_rows_of_weight_zero():
    labels, weights = (y > 0).astype(int) + (y > 1), np.where(np.arange(50) % 3, WEIGHTS, 0.0)
    common = {"learning_rate_init": 0.02, "max_iter": 5, "random_state": 0, "shuffle": False, "tol": NEVER}
    common |= {"alpha": 0}
    small = OrtGradientClassifier(batch_size=5, **common).set_params(optimizer__accumulate=3).fit(X, labels, weights)
    large = OrtGradientClassifier(batch_size=15, **common).fit(X, labels, weights)
    for name, array in large.weights_.items():
        assert_allclose(small.weights_[name], array, rtol=0, atol=1e-5)


def test_batch_statistics_are_those_of_each_minibatch(where):
    graph = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]> g (float[N, 4] X) => (float[N, 1] Y)
        <float[4, 1] W = {0.1, 0.2, 0.3, 0.4}, float[4] s = {1, 1, 1, 1}, float[4] b = {0, 0, 0, 0},
         float[4] m = {0, 0, 0, 0}, float[4] v = {1, 1, 1, 1}>
        { B, n, u = BatchNormalization <training_mode = 1> (X, s, b, m, v) Y = MatMul(B, W) }"""
    )
    fitted = regressor(
        graph, optimizer__accumulate=2, batch_size=10, max_iter=1, learning_rate_init=0.0, engine="portable"
    )
    fitted.fit(X, y)
    mean = np.zeros(4)
    for rows in np.split(X.astype(np.float64), 5):
        mean = 0.9 * mean + 0.1 * rows.mean(axis=0)
    assert_allclose(fitted.weights_["m"], mean, rtol=0, atol=1e-6)


def test_one_changes_nothing():
    plain, same = regressor().fit(X, y), regressor(optimizer__accumulate=1).fit(X, y)
    for name in NAMES:
        assert_array_equal(same.weights_[name], plain.weights_[name])


@pytest.mark.parametrize("how", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_copies_go_on_exactly(how, where):
    fitted = regressor(optimizer__accumulate=3).partial_fit(X, y)
    twin = how(fitted)
    for one in (fitted, twin):
        one.partial_fit(X, y)
    straight = regressor(optimizer__accumulate=3, max_iter=2).fit(X, y)
    for name in NAMES:
        assert_array_equal(twin.weights_[name], fitted.weights_[name])
        assert_array_equal(straight.weights_[name], fitted.weights_[name])


def test_accumulate_may_change_between_calls():
    fitted = regressor(max_iter=1, warm_start=True, optimizer="sgd").fit(X, y)
    fitted.set_params(optimizer__accumulate=4).fit(X, y)
    first, _ = trained(mlp_weights(), X, y, rate=0.01, batch=4, optimizer="sgd")
    expected, _ = trained(first, X, y, rate=0.01, batch=16, optimizer="sgd")
    assert largest_error(fitted.weights_, expected, mlp_weights()) < TOLERANCE


@pytest.mark.parametrize("option", OPTIONS)
def test_lbfgs_has_no_options_of_a_step(option):
    with pytest.raises(ValueError, match=f"Invalid parameter '{option}' for estimator LBFGS"):
        regressor(optimizer="lbfgs", **{f"optimizer__{option}": 2})
    with pytest.raises(TypeError, match=option):
        LBFGS(**{option: 2})

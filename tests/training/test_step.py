"""A training step: penalty, clipping, padding, frozen parameters, updates in pieces, and what is set up once."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import SGD, Adam, AdamW, OrtGradientRegressor, clear_cache
from onnxtrain_sklearn.exceptions import ModelError
from onnxtrain_sklearn.losses import LOSSES
from tests.helpers.environment import each_engine
from tests.helpers.observed import record_sessions
from tests.helpers.steps import data, fill, mlp, new_like, new_step, one_step
from tests.helpers.training import quietly
from tests.helpers.tuning import tune


@each_engine
@pytest.mark.parametrize(("alpha", "l1_ratio"), [(0.3, 0.0), (0.3, 1.0), (0.3, 0.25)])
def test_penalty_is_its_formula(alpha, l1_ratio, engine):
    X, y = data()
    weights = np.linspace(0.5, 1.5, 8)
    plain, penalized = (
        new_step(mlp(), batch=8, alpha=strength, l1_ratio=l1_ratio, engine=engine) for strength in (0.0, alpha)
    )
    total = fill(plain, X, y, weights)
    fill(penalized, X, y, weights)
    parameters = penalized.parameters
    parameters.view("layers.0.weight")[0, 0] = plain.parameters.view("layers.0.weight")[0, 0] = 0
    W = parameters.vector[parameters.penalized].astype(np.float64)
    assert W.size == 4 * 6 + 6
    value = alpha * (l1_ratio * np.abs(W).sum() + (1 - l1_ratio) / 2 * (W @ W)) / total
    assert_allclose(penalized.compute_gradients(total) - plain.compute_gradients(total), value, rtol=1e-5)
    slope = np.zeros(parameters.vector.size)
    slope[parameters.penalized] = alpha * (l1_ratio * np.sign(W) + (1 - l1_ratio) * W) / total
    assert_allclose(parameters.gradient - plain.parameters.gradient, slope, rtol=0, atol=1e-6)


def test_penalty_skips_vectors():
    step = new_step(mlp(), batch=8, trainable=["layers.0.bias"], alpha=0.5)
    total = fill(step, *data())
    assert step.compute_gradients(total) == new_like(step, alpha=0.0).compute_gradients(total)


def test_clipping_limits_the_norm_of_all_gradients():
    free = new_step(mlp(), batch=8)
    total = fill(free, *data())
    start = free.parameters.vector.copy()
    one_step(free, 1.0, total)
    whole = start - free.parameters.vector
    norm = np.linalg.norm(whole)
    for limit in (norm / 3, norm * 3):
        clipped = new_like(free, max_grad_norm=float(limit))
        one_step(clipped, 1.0, total)
        assert_allclose(start - clipped.parameters.vector, whole * min(1, limit / norm), rtol=0, atol=1e-6)


def test_clipping_comes_after_the_penalty():
    free = new_step(mlp(), batch=8, alpha=50.0)
    total = fill(free, *data())
    start = free.parameters.vector.copy()
    one_step(free, 1.0, total)
    clipped = new_like(free, alpha=50.0, max_grad_norm=0.1)
    one_step(clipped, 1.0, total)
    direction = start - free.parameters.vector
    expected = 0.1 * direction / np.linalg.norm(direction)
    assert_allclose(start - clipped.parameters.vector, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("loss", ["squared_error", "poisson"])
def test_padded_batch_is_the_unpadded_one(loss):
    X, y = data(5)
    y, weights = np.abs(y), np.array([1, 0.5, 2, 1, 3])
    link = LOSSES[loss]().link("regression")
    results = []
    for batch in (5, 8, 50):
        step = new_step(mlp(), batch=batch, loss=LOSSES[loss](), link=link, optimizer=AdamW(), alpha=0.1)
        total = fill(step, X, y, weights)
        results.append([one_step(step, 0.01, total), *step.parameters.vector, *step.parameters.gradient])
    assert_allclose(results[1], results[0], rtol=0, atol=1e-6)
    assert_allclose(results[2], results[0], rtol=0, atol=1e-6)


def test_rows_of_weight_zero_add_nothing():
    X, y = data()
    step = new_step(mlp(), batch=8)
    weights = np.array([1, 1, 1, 0, 1, 0, 1, 1.0])
    total = fill(step, X, y, weights)
    loss = step.compute_gradients(total)
    gradient = step.parameters.gradient.copy()
    fill(step, np.where(weights[:, None] > 0, X, 1e3), np.where(weights > 0, y, -1e3), weights)
    assert_allclose(step.compute_gradients(total), loss, rtol=1e-6)
    assert_allclose(step.parameters.gradient, gradient, rtol=0, atol=1e-6)


@pytest.mark.parametrize("trainable", ["layers.1.*", ["layers.0.bias"], lambda name, array: array.ndim == 1])
def test_frozen_parameters_keep_every_bit(trainable):
    X, y = data(60)
    proto = mlp()
    regressor = OrtGradientRegressor(proto, trainable=trainable, max_iter=5, batch_size=8, alpha=0.1, random_state=0)
    quietly(regressor.fit, X, y)
    changed = set()
    for initializer in proto.graph.initializer:
        before, after = onnx.numpy_helper.to_array(initializer), regressor.weights_[initializer.name]
        changed |= {initializer.name} if before.tobytes() != after.tobytes() else set()
    selected = {
        "layers.1.*": {"layers.1.weight", "layers.1.bias"},
        "['layers.0.bias']": {"layers.0.bias"},
    }
    assert changed == selected.get(str(trainable), {"layers.0.bias", "layers.1.bias"})


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("optimizer", [SGD(momentum=0.9), AdamW(), Adam()], ids=repr)
def test_update_in_pieces_is_the_update_of_the_whole(optimizer, clip, monkeypatch):
    vectors = []
    for piece, least in ((10**6, 10**6), (16, 10**6), (7, 10**6), (7, 20)):
        tune(monkeypatch, piece=piece, least_elements=least)
        step = new_step(mlp(), batch=8, optimizer=optimizer, max_grad_norm=clip)
        assert len(step.parameters.vector) == 37
        for seed in range(3):
            one_step(step, 0.01, fill(step, *data(seed=seed)))
        vectors.append(step.parameters.vector.copy())
    for vector in vectors[1:]:
        assert_allclose(vector, vectors[0], rtol=0, atol=1e-7)


def test_forgotten_state_is_that_before_the_first_step():
    step = new_step(mlp(), batch=8, optimizer=AdamW())
    total, start = fill(step, *data()), step.parameters.vector.copy()
    one_step(step, 0.01, total)
    first = step.parameters.vector.copy()
    one_step(step, 0.01, total)
    step.forget_state()
    step.parameters.vector[...] = start
    one_step(step, 0.01, total)
    assert_array_equal(step.parameters.vector, first)


@pytest.fixture
def created(monkeypatch):
    """The sessions that were created, as they are created."""
    clear_cache()
    return record_sessions(monkeypatch)


def test_a_step_creates_its_sessions_once(created, monkeypatch):
    tune(monkeypatch, least_elements=10**6)  # NumPy needs no session
    step = new_step(mlp(), batch=8, alpha=0.1, l1_ratio=0.5, max_grad_norm=1.0)
    assert len(created) == 4
    for seed in range(3):
        one_step(step, 0.01, fill(step, *data(seed=seed)))
    assert len(created) == 4


def test_epochs_and_minibatches_create_no_session(created):
    X, y = data(50)
    counts = []
    for epochs in (1, 5):
        clear_cache()
        created.clear()
        quietly(OrtGradientRegressor(mlp(), batch_size=8, max_iter=epochs, tol=-np.inf, random_state=0).fit, X, y)
        counts.append(len(created))
    assert counts[0] == counts[1]


def test_second_partial_fit_creates_no_session(created):
    X, y = data(50)
    regressor = OrtGradientRegressor(mlp(), batch_size=8, alpha=0.1, random_state=0).partial_fit(X, y)
    created.clear()
    for rows in (50, 50, 8, 3):
        regressor.partial_fit(X[:rows], y[:rows])
    assert created == []
    regressor.predict(X)
    assert len(created) == 1
    regressor.predict(X[:5])
    assert len(created) == 1


def test_rows_must_stay_rows():
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[N, 4] X) => (float[1, 1] Y) <float[4, 1] W = {1, 2, 3, 4}, int64[1] axes = {0}>
        { H = MatMul(X, W) Y = ReduceMean (H, axes) }""")
    with pytest.raises(ModelError, match="'Y' has 1 rows for 8 input rows; each input row must give one"):
        new_step(proto, batch=8)


def test_axes_behind_the_batch_must_be_fixed():
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[N, T] X) => (float[N, 1] Y) <float[1, 1] W = {1}, int64[1] axes = {1}>
        { H = ReduceMean (X, axes) Y = MatMul(H, W) }""")
    with pytest.raises(ModelError, match=r"Every axis of a graph input but the first must be fixed .*\(None, None\)"):
        new_step(proto, batch=8)

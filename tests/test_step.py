"""A training step against PyTorch, scikit-learn and numpy: the numbers, and that nothing is set up twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.neural_network import MLPClassifier, MLPRegressor

from onnxtrain_sklearn import MLP, SGD, Adam, AdamW, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn._gradient.engine import available_engines
from onnxtrain_sklearn._graph.protobuf import load
from onnxtrain_sklearn._graph.trainable import trainable_model
from onnxtrain_sklearn._runtime import devices, sessions
from onnxtrain_sklearn._training import host_step as _step
from onnxtrain_sklearn._training.base_step import StepParts
from onnxtrain_sklearn._training.host_step import HostStep
from onnxtrain_sklearn._training.loss_graph import TARGET, StepSettings
from onnxtrain_sklearn._training.parameters import FlatParameters
from onnxtrain_sklearn._training.step import OptimizerState
from onnxtrain_sklearn.exceptions import ModelError
from onnxtrain_sklearn.losses import LOSSES, LogLoss, SquaredError
from tests.helpers.training import quietly

DATA = Path(__file__).parent / "data"
each_engine = pytest.mark.parametrize("engine", available_engines())


def new_step(proto, *, batch, trainable=None, dtype=None, output=None, **settings):
    """A step for regression, unless the settings say otherwise."""
    model = trainable_model(load(proto), output)
    defaults = {"loss": SquaredError(), "task": "regression", "link": "identity", "n_outputs": 1, "optimizer": SGD()}
    defaults |= {"alpha": 0.0, "l1_ratio": 0.0, "max_grad_norm": None, "engine": available_engines()[0], "seed": 0}
    defaults |= {"device": devices.resolve_device(), "session_options": None}
    weights = model.weights()
    chosen = {name: weights.pop(name) for name in trainable or model.parameters}
    parameters = FlatParameters(chosen, np.dtype(dtype or model.dtype))
    settings = StepSettings(**(defaults | settings))
    return HostStep(StepParts(model, settings, parameters, weights, OptimizerState(), batch))


def fill(step, X, y, weights=None):
    """Put rows into the buffers, padded as a minibatch is; return the sum of their weights."""
    weights = np.ones(len(X)) if weights is None else weights
    buffers = step.buffers(step.batch)
    for buffer, rows in ((buffers.columns["X"], X), (buffers.columns[TARGET], y)):
        buffer[: len(X)] = np.reshape(rows, (len(X), *buffer.shape[1:]))
        buffer[len(X) :] = buffer[0]
    buffers.sample_weight[...] = 0
    buffers.sample_weight[: len(X)] = weights
    return float(np.sum(weights))


def data(n=8, k=4, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, k)).astype(np.float32), rng.normal(size=n).astype(np.float32)


def mlp(hidden=(6,), activation="tanh", n_features=4, n_outputs=1, seed=0):
    """A graph whose biases are not zero."""
    proto, rng = MLP(hidden, activation).build(n_features, n_outputs, random_state=seed), np.random.default_rng(seed)
    for initializer in proto.graph.initializer:
        if initializer.name.endswith("bias"):
            array = rng.normal(size=tuple(initializer.dims)).astype(np.float32)
            initializer.CopyFrom(onnx.numpy_helper.from_array(array, initializer.name))
    return proto


# PyTorch


OPTIMIZERS = {"sgd": (SGD(momentum=0.9), 0.05), "adamw": (AdamW(weight_decay=0.01), 0.003)}


@pytest.fixture(scope="module")
def torch_run():
    with np.load(DATA / "mlp.npz") as archive:
        return dict(archive)


def assert_final(run, name, weights):
    prefix = f"final/{name}/"
    final = {key.removeprefix(prefix): array for key, array in run.items() if key.startswith(prefix)}
    assert set(final) == set(weights)
    for parameter, array in final.items():
        assert_allclose(weights[parameter], array, rtol=0, atol=1e-5, err_msg=parameter)


@each_engine
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_pytorch(name, engine, torch_run):
    optimizer, rate = OPTIMIZERS[name]
    settings = {"loss": LogLoss(), "task": "multiclass", "link": "softmax", "n_outputs": 3, "engine": engine}
    step = new_step((DATA / "mlp.onnx").read_bytes(), batch=16, optimizer=optimizer, **settings)
    losses = []
    for i in range(20):
        columns = step.buffers(step.batch).columns
        columns["x0"][...], columns[TARGET][...] = torch_run["x0"][i], torch_run["y"][i]
        losses.append(step.run(rate, 16.0))
        if i == 0:
            for parameter in step.parameters.names:
                gradient = step.parameters.gradient_view(parameter)
                assert_allclose(gradient, torch_run[f"grad/{parameter}"], rtol=0, atol=1e-6, err_msg=parameter)
    assert_allclose(losses, torch_run[f"loss/{name}"], rtol=0, atol=1e-5)
    assert_final(torch_run, name, step.parameters.weights())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_partial_fits_are_those_of_pytorch(name, torch_run):
    optimizer, rate = OPTIMIZERS[name]
    classifier = OrtGradientClassifier(
        DATA / "mlp.onnx", optimizer=optimizer, learning_rate_init=rate, batch_size=16, shuffle=False
    )
    for X, y in zip(torch_run["x0"], torch_run["y"], strict=True):
        classifier.partial_fit(X, y, classes=[0, 1, 2])
    assert_allclose(classifier.loss_curve_, torch_run[f"loss/{name}"], rtol=0, atol=1e-5)
    assert_final(torch_run, name, classifier.weights_)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_epoch_of_minibatches_is_that_of_pytorch(name, torch_run):
    optimizer, rate = OPTIMIZERS[name]
    classifier = OrtGradientClassifier(
        DATA / "mlp.onnx", optimizer=optimizer, learning_rate_init=rate, batch_size=16, shuffle=False, max_iter=1
    )
    quietly(classifier.fit, torch_run["x0"].reshape(320, 10), torch_run["y"].ravel())
    assert_allclose(classifier.loss_, torch_run[f"loss/{name}"].mean(), rtol=0, atol=1e-5)
    assert_final(torch_run, name, classifier.weights_)


# scikit-learn


class HalfSquaredError(SquaredError):
    """The loss of scikit-learn's MLPRegressor."""

    def __call__(self, op, scores, y, link):
        return op.Mul(super().__call__(op, scores, y, link), 0.5)


SOLVERS = {
    "sgd": ({"solver": "sgd", "momentum": 0.0}, SGD(), 0.1),
    "momentum": ({"solver": "sgd", "momentum": 0.9, "nesterovs_momentum": False}, SGD(momentum=0.9), 0.05),
    "nesterov": ({"solver": "sgd", "momentum": 0.9}, SGD(momentum=0.9, nesterov=True), 0.05),
    "adam": ({"solver": "adam", "epsilon": 1e-10}, Adam(epsilon=1e-10), 0.003),
}


def partial_fit(estimator, X, y, labels):
    estimator.partial_fit(X, y, **({} if labels is None else {"classes": labels}))


def start_from(estimator, proto, X, y, labels):
    """Give a network of scikit-learn the weights of a graph, and an optimizer that has taken no step."""
    partial_fit(estimator, X, y, labels)
    del estimator._optimizer
    arrays = {i.name: onnx.numpy_helper.to_array(i) for i in proto.graph.initializer}
    for i, (weight, bias) in enumerate(zip(estimator.coefs_, estimator.intercepts_, strict=True)):
        weight[...], bias[...] = arrays[f"layers.{i}.weight"], arrays[f"layers.{i}.bias"]


@pytest.mark.parametrize(("solver", "alpha"), [("momentum", 0.0), *((solver, 0.5) for solver in SOLVERS)])
@pytest.mark.parametrize(("task", "activation"), [("regression", "relu"), ("binary", "tanh"), ("classes", "logistic")])
def test_steps_are_those_of_scikit_learn(task, activation, solver, alpha):
    settings, optimizer, rate = SOLVERS[solver]
    rng = np.random.default_rng(0)
    batches = rng.normal(size=(20, 30, 5)).astype(np.float32).astype(np.float64)
    labels = {"regression": None, "binary": [0, 1], "classes": [0, 1, 2]}[task]
    target = rng.normal(size=(20, 30)) if labels is None else rng.integers(len(labels), size=(20, 30))
    proto = mlp((8, 6), activation, n_features=5, n_outputs=3 if task == "classes" else 1)
    common = {"learning_rate_init": rate, "batch_size": 30, "alpha": alpha, "shuffle": False}
    network = {"hidden_layer_sizes": (8, 6), "activation": activation}
    peer = (MLPRegressor if labels is None else MLPClassifier)(**network, **settings, **common)
    start_from(peer, proto, batches[0], target[0], labels)
    loss = HalfSquaredError() if labels is None else "log_loss"
    kind = OrtGradientRegressor if labels is None else OrtGradientClassifier
    own = kind(proto, loss=loss, optimizer=optimizer, **common)
    for X, y in zip(batches, target, strict=True):
        partial_fit(peer, X, y, labels)
        partial_fit(own, X, y, labels)
    assert_allclose(own.loss_curve_, peer.loss_curve_[1:], rtol=1e-5)
    for i, (weight, bias) in enumerate(zip(peer.coefs_, peer.intercepts_, strict=True)):
        assert_allclose(own.weights_[f"layers.{i}.weight"], weight, rtol=0, atol=1e-5)
        assert_allclose(own.weights_[f"layers.{i}.bias"], bias, rtol=0, atol=1e-5)


# Penalty, clipping, padding


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
    assert_allclose(penalized.gradients(total) - plain.gradients(total), value, rtol=1e-5)
    slope = np.zeros(parameters.vector.size)
    slope[parameters.penalized] = alpha * (l1_ratio * np.sign(W) + (1 - l1_ratio) * W) / total
    assert_allclose(parameters.gradient - plain.parameters.gradient, slope, rtol=0, atol=1e-6)


def test_penalty_leaves_out_what_has_no_matrix():
    step = new_step(mlp(), batch=8, trainable=["layers.0.bias"], alpha=0.5)
    total = fill(step, *data())
    assert step.gradients(total) == new_like(step, alpha=0.0).gradients(total)


def new_like(step, **changes):
    """The same step with other settings, on the same rows."""
    names = step.parameters.names
    other = new_step(mlp(), batch=step.batch, trainable=names, **changes)
    buffers, like = step.buffers(step.batch), other.buffers(step.batch)
    for name, column in buffers.columns.items():
        like.columns[name][...] = column
    like.sample_weight[...] = buffers.sample_weight
    return other


def test_clipping_limits_the_norm_of_all_gradients():
    free = new_step(mlp(), batch=8)
    total = fill(free, *data())
    start = free.parameters.vector.copy()
    free.run(1.0, total)
    whole = start - free.parameters.vector
    norm = np.linalg.norm(whole)
    for limit in (norm / 3, norm * 3):
        clipped = new_like(free, max_grad_norm=float(limit))
        clipped.run(1.0, total)
        assert_allclose(start - clipped.parameters.vector, whole * min(1, limit / norm), rtol=0, atol=1e-6)


def test_clipping_comes_after_the_penalty():
    free = new_step(mlp(), batch=8, alpha=50.0)
    total = fill(free, *data())
    start = free.parameters.vector.copy()
    free.run(1.0, total)
    clipped = new_like(free, alpha=50.0, max_grad_norm=0.1)
    clipped.run(1.0, total)
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
        results.append([step.run(0.01, total), *step.parameters.vector, *step.parameters.gradient])
    assert_allclose(results[1], results[0], rtol=0, atol=1e-6)
    assert_allclose(results[2], results[0], rtol=0, atol=1e-6)


def test_rows_of_weight_zero_add_nothing():
    X, y = data()
    step = new_step(mlp(), batch=8)
    weights = np.array([1, 1, 1, 0, 1, 0, 1, 1.0])
    total = fill(step, X, y, weights)
    loss = step.gradients(total)
    gradient = step.parameters.gradient.copy()
    fill(step, np.where(weights[:, None] > 0, X, 1e3), np.where(weights > 0, y, -1e3), weights)
    assert_allclose(step.gradients(total), loss, rtol=1e-6)
    assert_allclose(step.parameters.gradient, gradient, rtol=0, atol=1e-6)


# Frozen parameters, updates in pieces


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
    for piece in (10**6, 16, 7):
        monkeypatch.setattr(_step, "PIECE", piece)
        step = new_step(mlp(), batch=8, optimizer=optimizer, max_grad_norm=clip)
        assert len(step.parameters.vector) == 37
        for seed in range(3):
            step.run(0.01, fill(step, *data(seed=seed)))
        vectors.append(step.parameters.vector.copy())
    assert_allclose(vectors[1], vectors[0], rtol=0, atol=1e-7)
    assert_allclose(vectors[2], vectors[0], rtol=0, atol=1e-7)


def test_forgotten_state_is_that_before_the_first_step():
    step = new_step(mlp(), batch=8, optimizer=AdamW())
    total, start = fill(step, *data()), step.parameters.vector.copy()
    step.run(0.01, total)
    first = step.parameters.vector.copy()
    step.run(0.01, total)
    step.forget_state()
    step.parameters.vector[...] = start
    step.run(0.01, total)
    assert_array_equal(step.parameters.vector, first)


# Sessions


@pytest.fixture
def created(monkeypatch):
    """The sessions that were created, as they are created."""
    created, create = [], sessions.create_session

    def counting(*args, **kwargs):
        created.append(create(*args, **kwargs))
        return created[-1]

    monkeypatch.setattr(sessions, "create_session", counting)
    return created


def test_a_step_creates_its_sessions_once(created):
    step = new_step(mlp(), batch=8, alpha=0.1, max_grad_norm=1.0)
    assert len(created) == 4
    for seed in range(3):
        step.run(0.01, fill(step, *data(seed=seed)))
    assert len(created) == 4


def test_epochs_and_minibatches_create_no_session(created):
    X, y = data(50)
    counts = []
    for epochs in (1, 5):
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


# Graphs of float64


def double(activation):
    """A graph of float64, with weights that float32 cannot hold."""
    proto = mlp(activation="tanh" if activation == "softmax" else activation)
    for node in proto.graph.node:
        node.op_type = "Softmax" if node.op_type == "Tanh" and activation == "softmax" else node.op_type
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for initializer in proto.graph.initializer:
        array = onnx.numpy_helper.to_array(initializer).astype(np.float64) * np.pi / 3
        initializer.CopyFrom(onnx.numpy_helper.from_array(array, initializer.name))
    return proto


REFERENCES = {"tanh": np.tanh, "logistic": lambda x: 1 / (1 + np.exp(-x)), "relu": lambda x: np.maximum(x, 0)}


def squared_error(arrays, X, y, activation):
    hidden = REFERENCES[activation](X @ arrays["layers.0.weight"] + arrays["layers.0.bias"])
    return np.mean((hidden @ arrays["layers.1.weight"] + arrays["layers.1.bias"] - y[:, None]) ** 2)


@pytest.mark.parametrize("activation", ["tanh", "logistic"])
def test_float64_gradients_have_float64_precision(activation):
    X, y = (array.astype(np.float64) * 1.1 for array in data())
    step = new_step(double(activation), batch=8)
    assert step.parameters.vector.dtype == np.float64
    arrays = step.parameters.weights()
    assert_allclose(step.gradients(fill(step, X, y)), squared_error(arrays, X, y, activation), rtol=1e-13)
    for name, array in arrays.items():
        slopes = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            changed = {sign: array.copy() for sign in (1, -1)}
            for sign, copy in changed.items():
                copy[index] += sign * 1e-5
            values = [squared_error(arrays | {name: changed[sign]}, X, y, activation) for sign in (1, -1)]
            slopes[index] = (values[0] - values[1]) / 2e-5
        assert_allclose(step.parameters.gradient_view(name), slopes, rtol=0, atol=1e-9, err_msg=name)


@each_engine
@pytest.mark.parametrize("activation", ["tanh", "relu", "softmax"])
def test_float64_graphs_give_float64_back(activation, engine):
    X, y = (array.astype(np.float64) for array in data(40))
    proto = double(activation)
    regressor = OrtGradientRegressor(proto, learning_rate_init=0.05, max_iter=3, random_state=0, engine=engine)
    quietly(regressor.fit, X, y)
    lacking = engine == "ort-training" and activation == "softmax"  # its gradient has no float64 kernel there
    trained = np.float32 if lacking else np.float64
    assert regressor._run.parameters.vector.dtype == trained
    assert {array.dtype for array in regressor.weights_.values()} == {np.dtype(np.float64)}
    exported = regressor.to_onnx()
    assert exported.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.DOUBLE
    session = sessions.create_session(exported.SerializeToString(), devices.resolve_device())
    assert_array_equal(regressor.predict(X), session.run(None, {"X": X})[0].ravel())
    assert regressor.predict(X).dtype == np.float64


@pytest.mark.parametrize("activation", ["tanh", "relu", "softmax"])
def test_float64_frozen_parameters_keep_every_bit(activation):
    X, y = (array.astype(np.float64) for array in data(40))
    proto = double(activation)
    regressor = OrtGradientRegressor(proto, trainable="layers.1.*", max_iter=2, random_state=0)
    quietly(regressor.fit, X, y)
    quietly(regressor.partial_fit, X, y)
    arrays = {i.name: onnx.numpy_helper.to_array(i) for i in proto.graph.initializer}
    for name in ("layers.0.weight", "layers.0.bias"):
        assert_array_equal(regressor.weights_[name], arrays[name])


# Outputs that do not fit


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

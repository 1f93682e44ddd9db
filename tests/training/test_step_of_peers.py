"""Training steps against those of PyTorch and of scikit-learn."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest
from numpy.testing import assert_allclose
from sklearn.neural_network import MLPClassifier, MLPRegressor

from onnxtrain_sklearn import SGD, Adam, AdamW, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.losses import LogLoss, SquaredError
from tests.helpers.data import DATA
from tests.helpers.environment import each_engine
from tests.helpers.steps import fill, mlp, new_step, one_step
from tests.helpers.training import quietly

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
    settings = {"loss": LogLoss(), "task": "multiclass", "link": "softmax", "n_scores": 3, "engine": engine}
    step = new_step((DATA / "mlp.onnx").read_bytes(), batch=16, optimizer=optimizer, **settings)
    losses = []
    for i in range(20):
        total = fill(step, torch_run["x0"][i], torch_run["y"][i], column="x0")
        losses.append(one_step(step, rate, total))
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

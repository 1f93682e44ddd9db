"""Networks of PyTorch take the steps that PyTorch takes: gradients, losses, weights and running statistics.

``data/NAME.npz`` holds 20 minibatches, the gradients of the first, and how PyTorch 2.13's SGD (rate 0.05, momentum 0.9)
and AdamW (rate 0.003, decay 0.01) went: the loss of each step before its update, and the weights at the end. Of
``f1.weight`` of ``lenet`` every eighth row is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose

from onnxtrain_sklearn import SGD, AdamW, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import UnsupportedOperatorError
from tests.helpers.data import DATA
from tests.helpers.environment import available_engines, each_engine
from tests.helpers.observed import wrap_passes

Arrays = dict[str, np.ndarray]

NETWORKS = ("mlp", "lenet", "residual_bn", "lstm", "attention", "two_tower")
REFUSED = {"residual_bn": "BatchNormalization", "lstm": "LSTM", "two_tower": "Elu"}
"""Operators of the networks that onnxruntime-training does not differentiate."""

OPTIMIZERS = {"sgd": (SGD(momentum=0.9), 0.05), "adamw": (AdamW(weight_decay=0.01), 0.003)}
WITHOUT_GRADIENT = {"attention": {"k.bias"}}
"""Parameters that the loss does not depend on: softmax subtracts what the bias of keys adds to a row of scores."""

each_network = pytest.mark.parametrize("network", NETWORKS)


@dataclass(frozen=True)
class Trained:
    """A run of 20 steps: the gradients of the first one, the losses before the updates, the weights at the end."""

    gradients: Arrays
    losses: list[float]
    weights: Arrays


def known_run(network: str) -> Arrays:
    with np.load(DATA / f"{network}.npz") as archive:
        return dict(archive)


def initial_weights(network: str) -> Arrays:
    graph = onnx.load(DATA / f"{network}.onnx").graph
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}


def estimator(network: str, known: Mapping[str, np.ndarray], optimizer: str, engine: str):
    kind = OrtGradientRegressor if known["y"].dtype.kind == "f" else OrtGradientClassifier
    rule, rate = OPTIMIZERS[optimizer]
    rows = known["y"].shape[1]
    return kind(
        str(DATA / f"{network}.onnx"), optimizer=rule, learning_rate_init=rate, batch_size=rows, shuffle=False,
        engine=engine,
    )  # fmt: skip


def train(network: str, optimizer: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> Trained:
    known, gradients, losses = known_run(network), [], []
    model = estimator(network, known, optimizer, engine)

    def recorded(own, step, *arguments):
        loss = own(step, *arguments)
        gradients.append({name: step.parameters.gradient_view(name).copy() for name in step.parameters.names})
        return loss

    wrap_passes(monkeypatch, recorded)
    names = sorted(name for name in known if name.startswith("x"))
    labels = {} if known["y"].dtype.kind == "f" else {"classes": np.unique(known["y"])}
    for i in range(len(known["y"])):
        X = {name: known[name][i] for name in names}
        model.partial_fit(X if len(X) > 1 else X["x0"], known["y"][i].ravel(), **labels)
        losses.append(model.loss_)
    assert model.engine_ == engine
    return Trained(gradients[0], losses, model.weights_)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(np.subtract(a, b, dtype=np.float64)))


@each_engine
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@each_network
def test_every_step_is_that_of_pytorch(network, optimizer, engine, monkeypatch):
    if engine == "ort-training" and network in REFUSED:
        with pytest.raises(UnsupportedOperatorError, match=rf"\({REFUSED[network]}\) cannot be differentiated"):
            train(network, optimizer, engine, monkeypatch)
        return
    known, start = known_run(network), initial_weights(network)
    run = train(network, optimizer, engine, monkeypatch)
    assert_allclose(run.losses, known[f"loss/{optimizer}"], rtol=0, atol=1e-5)
    names = {key.removeprefix("grad/") for key in known if key.startswith("grad/")}
    assert set(run.gradients) == names
    for name in names - WITHOUT_GRADIENT.get(network, set()):
        gradient, last = known[f"grad/{name}"], known[f"final/{optimizer}/{name}"]
        rows = slice(None, None, 8 if len(last) < len(start[name]) else 1)
        moved = distance(last, start[name][rows])
        assert moved > 0
        assert distance(run.gradients[name], gradient) <= 1e-5 * distance(gradient, 0), name
        assert distance(run.weights[name][rows], last) <= 5e-4 * moved, name


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_running_statistics_end_as_those_of_pytorch(optimizer, monkeypatch):
    run, start = train("residual_bn", optimizer, "portable", monkeypatch), initial_weights("residual_bn")
    with np.load(DATA / "residual_bn_statistics.npz") as archive:
        known = {key.split("/")[2]: array for key, array in archive.items() if key.startswith(f"final/{optimizer}/")}
    assert len(known) == 6
    for name, last in known.items():
        assert distance(run.weights[name], last) <= 1e-4 * distance(last, start[name]), name


@each_network
def test_parameter_without_effect_has_no_gradient(network, monkeypatch):
    """The proof of the exceptions: those, and no others, may be moved by half a unit without a trace in the loss."""
    known = known_run(network)
    model, moved = estimator(network, known, "sgd", available_engines()[-1]), {}

    def tried(own, step, *arguments):
        first = own(step, *arguments)
        for name in step.parameters.names:
            view = step.parameters.view(name)
            before, noise = view.copy(), np.random.RandomState(0).normal(scale=0.5, size=view.shape)
            view += noise
            moved[name] = abs(own(step, *arguments) - first)
            view[...] = before
        return own(step, *arguments)

    if network in REFUSED:
        model.set_params(engine="portable")
    wrap_passes(monkeypatch, tried)
    X = {name: known[name][0] for name in known if name.startswith("x")}
    labels = {} if known["y"].dtype.kind == "f" else {"classes": np.unique(known["y"])}
    model.partial_fit(X if len(X) > 1 else X["x0"], known["y"][0].ravel(), **labels)
    excepted = WITHOUT_GRADIENT.get(network, set())
    assert {name for name, change in moved.items() if change < 1e-6} == excepted, moved

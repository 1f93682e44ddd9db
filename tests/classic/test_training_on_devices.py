"""A device and an estimator train on the same batches: their weights are equal after 100 steps."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone

from onnxtrain_sklearn import SGD, AdamW, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.classic.artifacts import LossType, OptimType, generate_artifacts, read_checkpoint
from onnxtrain_sklearn.classic.onnxblock import optim
from onnxtrain_sklearn.classic.optimizers import OrtAdamW
from tests.classic.test_artifacts import LABELS, WEIGHTS, OnDevice, labeled_batches, net
from tests.helpers.environment import available_engines
from tests.helpers.official import needs_training

RATE, STEPS = 0.01, 100
PAIRS = {
    "SGD": (OptimType.SGD, SGD()),
    "AdamW": (OptimType.AdamW, OrtAdamW()),
    "AdamW with decay": (optim.AdamW(weight_decay=0.5), OrtAdamW(weight_decay=0.5)),
    "AdamW of PyTorch": (optim.AdamW(eps=1e-8, adam_mode=0), AdamW(weight_decay=0.0)),
    "AdamW of PyTorch with decay": (optim.AdamW(eps=1e-8, weight_decay=0.5, adam_mode=0), AdamW(weight_decay=0.5)),
}
"""Optimizers of devices, and those of the estimators that equal them."""
CASES = [
    (pair, loss) for pair in PAIRS for loss in LossType if "decay" not in pair or loss is LossType.CrossEntropyLoss
]
LOSSES = {LossType.MSELoss: "squared_error", LossType.L1Loss: "absolute_error"}


def estimator_of(loss, optimizer, engine):
    """Return the estimator that trains the network with this loss, and the arguments of its partial_fit."""
    kind, name = (OrtGradientRegressor, LOSSES[loss]) if loss in LOSSES else (OrtGradientClassifier, "log_loss")
    settings = {"loss": name, "optimizer": clone(optimizer), "learning_rate_init": RATE, "trainable": ["W", "b"]}
    classes = {"classes": [0, 1]} if loss is LossType.CrossEntropyLoss else {}
    return kind(net(), engine=engine, **settings), classes


@needs_training
@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize(("pair", "loss"), CASES)
def test_a_device_trains_as_our_estimator_does(tmp_path, loss, pair, engine):
    block, optimizer = PAIRS[pair]
    generate_artifacts(net(), ["W", "b"], ["V"], loss, block, tmp_path, engine=engine)
    device, (estimator, classes) = OnDevice(tmp_path, RATE), estimator_of(loss, optimizer, engine)
    for x, y in labeled_batches(LABELS[loss], STEPS):
        found = device.step(x, y)
        estimator.partial_fit(x, y, **classes)
        np.testing.assert_allclose(found if np.ndim(found) == 0 else found[0], estimator.loss_, rtol=1e-3, atol=1e-4)
    device.save(tmp_path / "trained")
    weights = read_checkpoint(tmp_path / "trained")
    assert np.abs(weights["W"] - WEIGHTS["W"]).max() > 0.01
    for name, array in estimator.weights_.items():
        np.testing.assert_allclose(weights[name], array, rtol=0, atol=1e-4)


def weights_by_formula(batches, optimizer):
    """Return the weights after minimizing the squared error, in float64: epsilon is added before the correction."""
    w = {name: array.astype(float) for name, array in WEIGHTS.items()}
    m, v = ({name: np.zeros_like(w[name]) for name in "Wb"} for _ in range(2))
    for t, (x, y) in enumerate(batches, 1):
        hidden = x @ w["W"] + w["b"]
        back = 2 * (np.maximum(hidden, 0) @ w["V"] - y) / y.size @ w["V"].T * (hidden > 0)
        for name, g in (("W", x.T @ back), ("b", back.sum(axis=0))):
            m[name] = optimizer.beta_1 * m[name] + (1 - optimizer.beta_1) * g
            v[name] = optimizer.beta_2 * v[name] + (1 - optimizer.beta_2) * g**2
            correction = np.sqrt(1 - optimizer.beta_2**t) / (1 - optimizer.beta_1**t)
            w[name] -= RATE * correction * m[name] / (np.sqrt(v[name]) + optimizer.epsilon)
            w[name] -= RATE * optimizer.weight_decay * w[name]
    return w


@pytest.mark.long
@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("optimizer", [OrtAdamW(), OrtAdamW(0.8, 0.99, 1e-3, 0.5)])
def test_the_form_of_onnxruntime_training(optimizer, engine):
    batches = list(labeled_batches(LABELS[LossType.MSELoss], STEPS))
    estimator, _ = estimator_of(LossType.MSELoss, optimizer, engine)
    for x, y in batches:
        estimator.partial_fit(x, y)
    for name, array in weights_by_formula(batches, optimizer).items():
        np.testing.assert_allclose(estimator.weights_[name], array, rtol=0, atol=1e-5)
    other, _ = estimator_of(LossType.MSELoss, AdamW(0.8, 0.99, 1e-3, 0.5), engine)
    for x, y in batches:
        other.partial_fit(x, y)
    assert np.abs(estimator.weights_["W"] - other.weights_["W"]).max() > 1e-3


def test_a_pickle_trains_on():
    x, y = next(labeled_batches(LABELS[LossType.MSELoss]))
    estimator, _ = estimator_of(LossType.MSELoss, OrtAdamW(weight_decay=0.1), "auto")
    copy = pickle.loads(pickle.dumps(estimator.partial_fit(x, y)))
    assert copy.optimizer.get_params() == estimator.optimizer.get_params()
    np.testing.assert_array_equal(copy.partial_fit(x, y).weights_["W"], estimator.partial_fit(x, y).weights_["W"])

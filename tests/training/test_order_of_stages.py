"""The order of penalty, clipping, update and average: one statement, which each executor of a step follows."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from numpy.testing import assert_allclose

from onnxtrain_sklearn import SGD, OrtGradientRegressor
from tests.helpers.environment import OWN_MEMORY
from tests.helpers.observed import trained_on_device
from tests.helpers.training import NEVER
from tests.helpers.training_graphs import Folder
from tests.helpers.tuning import order_stages

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

START = [0.5, -2.0, 1.0, 3.0]
GRAPH = onnx.parser.parse_model(
    """<ir_version: 8, opset_import: ["": 18]> g (float[N, 4] X) => (float[N, 1] Y)
    <float[4, 1] W = {0.5, -2.0, 1.0, 3.0}> { Y = MatMul(X, W) }"""
)
ROWS, ALPHA, LIMIT, RATE, DECAY, STEPS = 20, 30.0, 0.7, 0.1, 0.6, 3

rng = np.random.default_rng(0)
X = rng.normal(size=(ROWS, 4)).astype(np.float32)
y = (X @ [1.0, 2.0, 0.5, -1.0] + rng.normal(size=ROWS)).astype(np.float32)

DECLARED = ("penalty", "clipping", "update", "average")
ORDERS = {"declared": DECLARED, "clipping first": ("clipping", "penalty", "update", "average")}


def stepped(order, steps=STEPS):
    """Return the average of the weights after some steps in this order, in float64."""
    w, average = np.array(START), np.zeros(4)
    for t in range(1, steps + 1):
        gradient = 2 * X.T.astype(float) @ (X.astype(float) @ w - y) / ROWS
        for stage in order:
            if stage == "penalty":
                gradient = gradient + ALPHA * w / ROWS
            elif stage == "clipping":
                gradient = gradient * min(1.0, LIMIT / np.linalg.norm(gradient))
            elif stage == "update":
                w = w - RATE * gradient
            else:
                average = average + (w - average) * (1 - DECAY) / (1 - DECAY**t)
    return average


def estimator(max_iter):
    return OrtGradientRegressor(
        GRAPH, optimizer=SGD(max_grad_norm=LIMIT, ema_decay=DECAY), alpha=ALPHA, learning_rate_init=RATE, tol=NEVER,
        batch_size=ROWS, max_iter=max_iter, shuffle=False, target_scaling=None,
    )  # fmt: skip


def on_the_host(monkeypatch, path):
    fitted = estimator(STEPS).fit(X, y)
    assert not trained_on_device(fitted)
    return fitted.weights_["W"].ravel()


def on_a_device(monkeypatch, path):
    monkeypatch.setitem(OWN_MEMORY, "CPUExecutionProvider", "cpu")
    fitted = estimator(STEPS).fit(X, y)
    assert trained_on_device(fitted)
    return fitted.weights_["W"].ravel()


def in_an_exported_graph(monkeypatch, path):
    estimator(1).fit(X, y).export_training(path / "folder")
    folder = Folder(path / "folder")
    for _ in range(STEPS - 1):
        folder.steps({"X": X, folder.manifest["target"]["input"]: y[:, None]})
    return folder.state["averaged_parameters"]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.each(by=lambda order, executor: executor)
@pytest.mark.parametrize("executor", [on_the_host, on_a_device, in_an_exported_graph])
def test_executor_follows_the_declared_order(order, executor, monkeypatch, tmp_path):
    if order != "declared":
        order_stages(monkeypatch, ORDERS[order])
    found, right = executor(monkeypatch, tmp_path), stepped(ORDERS[order])
    assert_allclose(found, right, rtol=1e-5)
    others = [stepped(one) for one in ORDERS.values() if one != ORDERS[order]]
    assert all(np.abs(other - right).max() > 0.1 for other in others)

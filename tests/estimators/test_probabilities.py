"""Probabilities and decisions rank rows alike: both come from one number, the score."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import rankdata
from sklearn.metrics import log_loss
from sklearn.utils.estimator_checks import check_classifier_multioutput

from onnxtrain_sklearn import Linear, OrtGradientClassifier, OrtGradientMultiOutput

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X = np.random.default_rng(0).normal(size=(60, 5))
Y = (X[:, 0] > 0).astype(int)
TARGETS = {
    "one score": Y,
    "two scores": Y,
    "several labels": np.c_[Y, 1 - Y, X[:, 1] > 0].astype(int),
    "several labels of two classes": np.where(np.c_[Y, 1 - Y] > 0, "on", "off"),
}
LIMITS = {"log_loss": 25.0, "focal": 25.0, "modified_huber": 1.0}
CASES = [(task, "log_loss") for task in TARGETS]
CASES += [(task, loss) for task in ("one score", "several labels") for loss in ("focal", "modified_huber")]


@pytest.mark.parametrize(("task", "loss"), CASES)
def test_probabilities_rank_rows_as_decisions_do(task, loss):
    """Also near their bounds, where float32 has one probability for many scores."""
    model = Linear().build(5, 2, 0) if task == "two scores" else Linear()
    fitted = OrtGradientClassifier(model, loss=loss, learning_rate_init=0.1, max_iter=20, random_state=0)
    fitted.fit(X, TARGETS[task])
    rows = np.linspace(-1, 1, 400)[:, None] * X[:1]
    rows *= 0.9 * LIMITS[loss] / np.abs(fitted.decision_function(rows)).max()
    scores, p = fitted.decision_function(rows), fitted.predict_proba(rows)
    if isinstance(p, list):
        scores, p = np.stack(scores, axis=1), np.stack([own[:, 1] for own in p], axis=1)
    else:
        p = p[:, 1:] if scores.ndim == 1 else p
    assert p.dtype == np.float64
    assert all(len(np.unique(column)) == 400 for column in scores.reshape(400, -1).T)
    for column, own in zip(p.T, scores.reshape(400, -1).T, strict=True):
        assert_array_equal(rankdata(column), rankdata(own))


@pytest.mark.parametrize("task", TARGETS)
def test_float32_data_give_the_numbers_of_the_exported_graph(task):
    model = Linear().build(5, 2, 0) if task == "two scores" else Linear()
    fitted = OrtGradientClassifier(model, learning_rate_init=0.1, max_iter=2, random_state=0).fit(X, TARGETS[task])
    for exact, single in zip(fitted.predict_proba(X), fitted.predict_proba(X.astype(np.float32)), strict=True):
        assert single.dtype == np.float32
        assert_allclose(single, exact, rtol=0, atol=5e-7)


@pytest.mark.parametrize("task", ["one label", "several labels", "several outputs"])
def test_float32_probabilities_never_exceed_one(task):
    """For 20 scores between 17.4 and 18, onnxruntime's sigmoid gives 1.0000001, which scikit-learn's metrics refuse."""
    n_outputs = 2 if task == "several labels" else 1
    graph = Linear().build(1, n_outputs, 0)
    for weight in graph.graph.initializer:
        value = np.ones if len(weight.dims) == 2 else np.zeros
        weight.CopyFrom(onnx.numpy_helper.from_array(value(weight.dims, np.float32), weight.name))
    rows = np.arange(np.float32(17.4).view(np.int32), np.float32(18).view(np.int32), dtype=np.int32)
    rows = rows.view(np.float32)[:, None]
    x, y = X[:, :1].astype(np.float32), np.stack([Y] * n_outputs, axis=1).squeeze()
    settings = {"learning_rate_init": 1e-12, "max_iter": 1, "random_state": 0}
    if task == "several outputs":
        output = graph.graph.output[0].name
        fitted = OrtGradientMultiOutput(graph, loss={output: "log_loss"}, **settings).fit(x, {output: y})
        (p,) = fitted.predict_proba(rows).values()
    else:
        fitted = OrtGradientClassifier(graph, **settings).fit(x, y)
        p = fitted.predict_proba(rows)
        assert_array_equal(fitted.decision_function(rows).reshape(len(rows), -1)[:, 0], rows[:, 0])
    assert p.dtype == np.float32
    assert p.max() == 1
    assert p.min() >= 0
    assert log_loss(np.ones(len(rows)), p[:, -1], labels=[0, 1]) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("seed", [3, 5, 8, 13, 21])
def test_the_common_check_passes_with_any_seed(seed):
    check_classifier_multioutput("OrtGradientClassifier", OrtGradientClassifier(random_state=seed))

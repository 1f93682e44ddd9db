"""Soft labels: probabilities or counts of each class as ``y``; equal to rows that repeat each class by its share."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import scipy.optimize
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

from onnxtrain_sklearn import MLP, SGD, Linear, OrtGradientClassifier, OrtGradientMultiOutput
from onnxtrain_sklearn.losses import LogLoss, Loss
from tests.helpers.environment import each_engine

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3)).astype(np.float32)
W = RNG.uniform(0.5, 2, 60)


def shares(k, seed=1):
    logits = X @ np.random.default_rng(seed).normal(size=(3, k))
    p = np.exp(logits)
    return p / p.sum(axis=1, keepdims=True)


def soft(targets="probabilities", smoothing=0.0, **parameters):
    settings = {"batch_size": 16, "max_iter": 5, "learning_rate_init": 0.1, "optimizer": SGD(), "random_state": 0}
    settings |= {"model": Linear(), "loss": LogLoss(smoothing, targets), **parameters}
    return OrtGradientClassifier(**settings)


def minimum(y, weights, smoothing=0.0, alpha=0.0):
    """The weights and intercepts that minimize the mean cross-entropy, in float64 by SciPy."""
    rows, k = X.astype(np.float64), y.shape[1]
    y = (1 - smoothing) * y + smoothing / k

    def loss(flat):
        scores = rows @ flat[: 3 * k].reshape(3, k) + flat[3 * k :]
        log_p = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
        return -np.average((y * log_p).sum(axis=1), weights=weights)

    found = scipy.optimize.minimize(loss, np.zeros(4 * k), method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-9})
    scores = rows @ found.x[: 3 * k].reshape(3, k) + found.x[3 * k :]
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True), found.fun


@each_engine
@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_soft_labels_minimum_is_that_of_scipy(engine, k, smoothing):
    y = shares(k) ** 2
    y /= y.sum(axis=1, keepdims=True)
    settings = {"optimizer": "lbfgs", "max_iter": 200, "tol": 1e-9, "engine": engine, "alpha": 0.0}
    found = soft(smoothing=smoothing, **settings).fit(X, y, sample_weight=W)
    probabilities, least = minimum(y, W, smoothing)
    assert_allclose(found.predict_proba(X), probabilities, atol=2e-3)
    assert_allclose(found.loss_, least, rtol=1e-5)


@each_engine
@pytest.mark.parametrize("k", [2, 3])
def test_soft_labels_train_as_repeated_rows(engine, k):
    """A step on a row of shares is a step on a row of each class, weighted by its share."""
    y = shares(k)
    settings = {"batch_size": 60, "shuffle": False, "engine": engine, "alpha": 0.0}
    found = soft(**settings).fit(X, y, sample_weight=W, classes=range(k))
    rows, labels = np.repeat(np.arange(60), k), np.tile(np.arange(k), 60)
    hard = clone(found).set_params(loss="log_loss", batch_size=60 * k)
    hard.fit(X[rows], labels, sample_weight=(W[:, None] * y).ravel())
    assert_allclose(found.predict_proba(X), hard.predict_proba(X), atol=1e-5)
    assert_allclose(found.loss_curve_, hard.loss_curve_, rtol=1e-5)


@pytest.mark.parametrize("k", [2, 3])
def test_one_hot_probabilities_train_as_labels(k):
    labels = shares(k).argmax(axis=1)
    found, hard = soft().fit(X, np.eye(k)[labels]), soft(loss="log_loss").fit(X, labels)
    assert_allclose(found.decision_function(X), hard.decision_function(X), atol=1e-6)
    assert_array_equal(found.classes_, hard.classes_)


@pytest.mark.parametrize("class_weight", ["balanced", {0: 1.0, 1: 4.0, 2: 0.5}, {0: 1.0, 1: 0.0, 2: 2.0}])
def test_class_weight_weighs_the_shares(class_weight):
    y = shares(3)
    settings = {"batch_size": 60, "shuffle": False, "alpha": 0.0, "class_weight": class_weight}
    found = soft(**settings).fit(X, y, sample_weight=W)
    weights = (W[:, None] * y).ravel()
    rows, labels = np.repeat(np.arange(60), 3), np.tile(np.arange(3), 60)
    hard = clone(found).set_params(loss="log_loss", batch_size=180).fit(X[rows], labels, sample_weight=weights)
    assert_allclose(found.predict_proba(X), hard.predict_proba(X), atol=1e-5)


def test_counts_weigh_rows_by_their_sums():
    counts = RNG.poisson(5 * shares(3))
    counts[4] = 0  # a row that no one has labeled
    sums = counts.sum(axis=1)
    found = soft("counts").fit(X, counts)
    some = sums > 0
    p = np.where(some[:, None], counts, 1) / np.maximum(sums, 3 * ~some)[:, None]
    expected = soft().fit(X, p, sample_weight=sums)
    assert_allclose(found.predict_proba(X), expected.predict_proba(X), rtol=1e-6)


def test_label_smoothing_of_one_hot_rows_equals_soft_labels():
    labels = shares(3).argmax(axis=1)
    smoothed = soft(loss=LogLoss(0.3)).fit(X, labels)
    given = soft().fit(X, 0.7 * np.eye(3)[labels] + 0.1)
    assert_allclose(smoothed.predict_proba(X), given.predict_proba(X), atol=1e-6)


def test_classes_name_the_columns():
    found = soft().fit(X, shares(3), classes=["a", "b", "c"])
    assert found.classes_.tolist() == ["a", "b", "c"]
    assert set(found.predict(X)) <= {"a", "b", "c"}
    assert_array_equal(found.predict(X), found.classes_[found.predict_proba(X).argmax(axis=1)])
    with pytest.raises(ValueError, match="sorted"):
        soft().fit(X, shares(3), classes=["c", "b", "a"])
    with pytest.raises(ValueError, match="3 columns of probabilities, expected one for each of 2"):
        soft().fit(X, shares(3), classes=["a", "b"])


@pytest.mark.parametrize("k", [2, 3])
def test_score_is_the_mean_share_of_the_predicted_class(k):
    y = shares(k)
    found = soft().fit(X, y)
    expected = np.average([row[label] for row, label in zip(y, found.predict(X), strict=True)], weights=W)
    assert_allclose(found.score(X, y, W), expected)
    labels = y.argmax(axis=1)
    assert found.score(X, labels) == (found.predict(X) == labels).mean()


@pytest.mark.parametrize("k", [2, 3])
def test_early_stopping_scores_held_out_soft_labels(k):
    y = shares(k)
    found = soft(early_stopping=True, max_iter=20).fit(X[:40], y[:40], X_val=X[40:], y_val=y[40:])
    assert_allclose(found.best_validation_score_, found.score(X[40:], y[40:]))
    p = found.predict_proba(X[40:])  # by the weights of the least validation loss
    least = min(row["validation_loss"] for row in found.history_)
    assert_allclose(least, -(y[40:] * np.log(p)).sum(axis=1).mean(), rtol=1e-5)
    assert soft(early_stopping=True).fit(X, y).validation_scores_


def test_partial_fit_goes_on_with_soft_labels():
    y = shares(3)
    whole = soft(shuffle=False, max_iter=2).fit(X, y)
    parts = soft(shuffle=False).partial_fit(X, y).partial_fit(X, y)
    assert_allclose(parts.predict_proba(X), whole.predict_proba(X), atol=1e-6)
    with pytest.raises(ValueError, match="2 columns"):
        parts.partial_fit(X, shares(2))


@pytest.mark.parametrize("convert", [np.float32, sp.csr_array, pd.DataFrame, np.ndarray.tolist], ids=str)
def test_containers_of_soft_labels_train_alike(convert):
    y = shares(3).astype(np.float32)
    found = soft().fit(X, y if convert is np.float32 else convert(y))
    assert_allclose(found.predict_proba(X), soft().fit(X, y.astype(np.float64)).predict_proba(X), atol=1e-6)


def test_given_graph_and_members_train_on_soft_labels():
    y = shares(3)
    graph = Linear().build(n_features=3, n_outputs=3, random_state=0)
    assert soft(model=graph, max_iter=50).fit(X, y).score(X, y) > 0.45
    two = Linear().build(n_features=3, n_outputs=2, random_state=0)
    assert soft(model=two, max_iter=50).fit(X, shares(2)).score(X, shares(2)) > 0.6
    ensemble = MLP((8,), n_members=2) if "n_members" in MLP((8,)).get_params() else None
    if ensemble is not None:
        assert soft(model=ensemble, max_iter=50).fit(X, y).score(X, y) > 0.45


def test_fitted_model_is_tuned_with_soft_labels():
    y = shares(3)
    fitted = LogisticRegression().fit(X, y.argmax(axis=1))
    tuned = soft(model=fitted, max_iter=200, finetune=None).fit(X, y)
    before, after = (-(y * np.log(one.predict_proba(X))).sum(axis=1).mean() for one in (fitted, tuned))
    assert after < before - 0.02


def test_loss_of_a_user_takes_soft_labels():
    class Brier(Loss):
        tasks = frozenset({"multiclass"})
        targets = "probabilities"

        def link(self, task):
            return "softmax"

        def __call__(self, op, scores, y, link):
            residual = op.Sub(op.Softmax(scores, axis=-1), y)
            return op.Mul(residual, residual)

    y = shares(3)
    found = soft(loss=Brier(), max_iter=1000, learning_rate_init=2.0).fit(X, y)
    assert_allclose(found.predict_proba(X), y, atol=0.05)


def test_soft_estimator_is_exported_and_pickled():
    import onnxruntime

    y = shares(3)
    found = soft().fit(X, y)
    session = onnxruntime.InferenceSession(found.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    label, probabilities = session.run(None, {session.get_inputs()[0].name: X})
    assert_array_equal(label, found.predict(X))
    assert_allclose(probabilities, found.predict_proba(X), rtol=1e-6)
    again = pickle.loads(pickle.dumps(found)).partial_fit(X, y)
    assert_allclose(again.predict_proba(X), found.partial_fit(X, y).predict_proba(X))


BAD = {
    "sum": (shares(3) * 1.01, "must sum to one, but 60 of 60 rows do not; row 0 sums to 1.01"),
    "percent": (shares(3) * 100, "targets='counts'"),
    "negative": (np.tile([1.5, -0.5], (60, 1)), "must not be negative, got 60 below zero, the smallest -0.5"),
    "labels": (np.arange(60) % 2, "needs a column of y for each class"),
    "column": (np.ones((60, 1)), r"got shape \(60, 1\)"),
    "axes": (np.full((60, 2, 2), 0.5), "needs a column of y for each class"),
    "nan": (np.where(np.arange(60)[:, None] == 3, np.nan, shares(2)), "NaN"),
    "rows": (shares(3)[:59], "60, y has 59"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_soft_labels_leave_the_estimator_unchanged(name):
    y, message = BAD[name]
    estimator = soft()
    with pytest.raises(ValueError, match=message):
        estimator.fit(X, y)
    assert not hasattr(estimator, "classes_")


def test_probabilities_without_a_declaration_are_refused():
    with pytest.raises(ValueError, match=r"continuous-multioutput.*LogLoss\(targets='probabilities'\)"):
        soft(loss="log_loss").fit(X, shares(3))


def test_what_takes_labels_only_refuses_soft_labels(tmp_path):
    y = shares(3)
    with pytest.raises(ValueError, match="scorers take one label a row"):
        soft(early_stopping=True, scoring="neg_log_loss").fit(X, y)
    scored = soft(early_stopping=True, scoring="accuracy").fit(X, y)
    assert 0 < scored.best_validation_score_ < 1
    with pytest.raises(ValueError, match="not soft labels"):
        soft().fit(X, y).export_training(tmp_path)
    with pytest.raises(ValueError, match="takes soft labels"):
        OrtGradientMultiOutput(Linear().build(n_features=3, n_outputs=3), loss={"y": LogLoss(targets="counts")}).fit(
            X, {"y": y}
        )

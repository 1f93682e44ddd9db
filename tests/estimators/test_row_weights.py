"""Weights of rows and of classes."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.metrics import accuracy_score

from onnxtrain_sklearn import MLP, Linear, OrtGradientRegressor
from tests.helpers.data import blobs, line
from tests.helpers.training import NEVER, small, weights_equal

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.mark.parametrize("n", [60, 250])
def test_row_of_weight_zero_has_no_effect(n):
    X, y = blobs(n)
    weights = np.random.RandomState(1).randint(0, 3, n).astype(float)
    kept = weights > 0
    whole = small(early_stopping=True).fit(X, y, sample_weight=weights)
    part = small(early_stopping=True).fit(X[kept], y[kept], sample_weight=weights[kept])
    assert weights_equal(whole, part)
    assert whole.loss_curve_ == part.loss_curve_
    assert whole.t_ == part.t_


def test_integer_weights_equal_repeated_rows_in_a_full_batch():
    X, y = line(60)
    repeats = np.random.RandomState(0).randint(1, 4, 60)
    settings = {"optimizer": "sgd", "learning_rate_init": 0.1, "max_iter": 20, "tol": NEVER, "random_state": 0}
    settings |= {"batch_size": 1000, "alpha": 3.0}
    weighted = OrtGradientRegressor(MLP((3,)), **settings).fit(X, y, sample_weight=repeats)
    repeated = OrtGradientRegressor(MLP((3,)), **settings).fit(np.repeat(X, repeats, 0), np.repeat(y, repeats))
    for name, array in weighted.weights_.items():
        assert_allclose(array, repeated.weights_[name], rtol=1e-6, atol=1e-7)


def test_weights_pull_like_repeated_rows_in_minibatches():
    X, y = line(400, 3)
    y = np.where(np.arange(400) % 2, y + 2.0, y - 2.0)
    repeats = np.where(np.arange(400) % 2, 3, 1)
    settings = {"optimizer": "sgd", "learning_rate_init": 0.05, "max_iter": 60, "tol": NEVER, "batch_size": 20}
    plain, weighted, repeated = (OrtGradientRegressor(Linear(), random_state=0, **settings) for _ in range(3))
    plain.fit(X, y)
    weighted.fit(X, y, sample_weight=repeats)
    repeated.fit(np.repeat(X, repeats, axis=0), np.repeat(y, repeats))
    assert abs(repeated.intercept_ - 1.0) < 0.2
    assert abs(weighted.intercept_ - repeated.intercept_) < 0.2
    assert abs(plain.intercept_) < 0.2


def test_the_scale_of_the_weights_does_not_matter():
    X, y = blobs()
    weights = np.random.RandomState(0).uniform(0.5, 2, 120)
    plain = small().fit(X, y, sample_weight=weights)
    for factor in (1e-12, 1e12):
        scaled = small().fit(X, y, sample_weight=weights * factor)
        for name, array in plain.weights_.items():
            assert_allclose(scaled.weights_[name], array, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("class_weight", [{0: 3.0, 1: 0.5}, {1: 2.0, 0: 1}, "balanced"])
def test_class_weights_are_weights_of_rows(class_weight):
    X, y = blobs()
    y[:80] = 0
    sizes = np.bincount(y)
    factors = len(y) / 2 / sizes if class_weight == "balanced" else np.array([class_weight[0], class_weight[1]])
    weighted = small(class_weight=class_weight).fit(X, y)
    assert weights_equal(weighted, small().fit(X, y, sample_weight=factors[y]))
    own = np.random.RandomState(0).uniform(0.5, 2, 120)
    if class_weight == "balanced":
        sizes = np.bincount(y, own)
        factors = own.sum() / 2 / sizes
    both = small(class_weight=class_weight).fit(X, y, sample_weight=own)
    assert weights_equal(both, small().fit(X, y, sample_weight=own * factors[y]))


def test_class_weights_go_by_label():
    X, y = blobs()
    names = np.array(["yes", "no"])[y]  # sorted: no, yes
    named = small(class_weight={"yes": 5.0, "no": 1.0}).fit(X, names)
    assert weights_equal(named, small(class_weight={0: 1.0, 1: 5.0}).fit(X, 1 - y))


def test_balanced_counts_a_row_as_often_as_it_weighs():
    X, y = blobs(60)
    repeats = np.random.RandomState(0).randint(1, 4, 60)
    settings = {"class_weight": "balanced", "batch_size": 500, "optimizer": "sgd", "alpha": 3.0}
    weighted = small(**settings).fit(X, y, sample_weight=repeats)
    repeated = small(**settings).fit(np.repeat(X, repeats, 0), np.repeat(y, repeats))
    for name, array in weighted.weights_.items():
        assert_allclose(array, repeated.weights_[name], rtol=1e-5, atol=1e-6)


def test_a_class_without_entry_weighs_one():
    X, y = blobs(classes=3)
    assert weights_equal(small(class_weight={1: 4.0}).fit(X, y), small(class_weight={0: 1, 1: 4, 2: 1}).fit(X, y))


def test_class_weights_count_in_validation_scores():
    X, y = blobs(200)
    y[:150] = 0
    estimator = small(class_weight={0: 1, 1: 7}, max_iter=2).fit(X, y, X_val=X, y_val=y)
    expected = accuracy_score(y, estimator.predict(X), sample_weight=np.where(y, 7, 1))
    assert_allclose(estimator.validation_scores_[-1], expected)

"""Targets of the estimators: numbers, labels of any type, several labels a row."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import make_regression
from sklearn.exceptions import DataConversionWarning
from sklearn.preprocessing import scale

from onnxtrain_sklearn import Linear, OrtGradientRegressor
from tests.helpers.estimators import scaled_blobs, small_classifier, small_regressor

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.mark.parametrize("kind", [list, np.array, pd.Series, lambda y: y.astype(object), lambda y: y.astype(np.int64)])
def test_kinds_of_numbers_to_predict(kind):
    X, y = scaled_blobs()
    assert_allclose(small_regressor().fit(X, kind(y)).predict(X), small_regressor().fit(X, y).predict(X), rtol=1e-6)


def test_target_column_warns_and_trains():
    X, y = make_regression(100, 4, noise=1, random_state=0)
    X, y = scale(X), scale(y)
    flat = small_regressor().fit(X, y)
    for column in (y[:, None], pd.DataFrame({"y": y})):
        with pytest.warns(DataConversionWarning):
            fitted = small_regressor().fit(X, column)
        assert_array_equal(fitted.predict(X), flat.predict(X))
    assert flat.score(X, y) > 0.98


def test_several_outputs_are_several_regressions():
    X, Y = make_regression(200, 4, n_targets=3, random_state=0)
    X, Y = scale(X), scale(Y)
    together = small_regressor(optimizer="lbfgs", tol=1e-6, max_iter=100).fit(X, Y)
    assert together.predict(X).shape == (200, 3)
    assert together.score(X, Y) > 0.999
    for k in range(3):
        alone = small_regressor(optimizer="lbfgs", tol=1e-6, max_iter=100).fit(X, Y[:, k])
        assert_allclose(together.predict(X)[:, k], alone.predict(X), atol=2e-3)


def test_the_loss_of_several_outputs_is_their_mean():
    X, Y = make_regression(50, 4, n_targets=3, random_state=0)
    fitted = small_regressor(learning_rate_init=0, max_iter=1, batch_size=50, target_scaling=None).fit(X, Y)
    assert_allclose(fitted.loss_, np.mean((fitted.predict(X) - Y) ** 2), rtol=1e-5)


def test_predictions_follow_the_type_of_X():
    X, y = scaled_blobs()
    fitted = small_regressor().fit(X, y)
    assert fitted.predict(X).dtype == np.float64
    assert fitted.predict(X.astype(np.float32)).dtype == np.float32
    assert_array_equal(fitted.predict(X), fitted.predict(X.astype(np.float32)))


def test_a_constant_target_is_learnt():
    X = scaled_blobs()[0]
    fitted = OrtGradientRegressor(Linear(), optimizer="lbfgs", random_state=0).fit(X, np.full(90, 3.5))
    assert_allclose(fitted.predict(X), 3.5, atol=1e-3)


LABELS = {
    "strings": np.array(["no", "yes"]),
    "objects": np.array(["no", "a longer one"], dtype=object),
    "not ASCII": np.array(["ä", "漢字"]),
    "gaps": np.array([3, 10**12]),
    "negative": np.array([-1, 1]),
    "booleans": np.array([False, True]),
    "floats": np.array([-2.0, 7.0]),
    "small integers": np.array([1, 2], dtype=np.int8),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_any_type_come_back(kind):
    X, y = scaled_blobs()
    labels = LABELS[kind]
    fitted = small_classifier().fit(X, labels[y])
    assert fitted.classes_.tolist() == sorted(labels.tolist())
    assert fitted.classes_.dtype == fitted.predict(X).dtype == labels.dtype
    order = np.argsort(labels.tolist()) if labels.dtype == object else np.argsort(labels)
    assert np.mean(fitted.predict(X) == labels[y]) == fitted.score(X, labels[y]) > 0.9
    indices = small_classifier().fit(X, np.argsort(order)[y])
    assert_array_equal(indices.predict_proba(X), fitted.predict_proba(X))


@pytest.mark.parametrize(
    "make", [list, pd.Series, lambda y: pd.Series(y, dtype="category"), lambda y: y.astype(object)]
)
def test_containers_of_labels(make):
    X, y = scaled_blobs()
    names = np.array(["a", "b"])[y]
    assert_array_equal(small_classifier().fit(X, make(names)).predict(X), small_classifier().fit(X, names).predict(X))


def test_a_column_of_labels_is_taken_with_a_warning():
    X, y = scaled_blobs()
    with pytest.warns(DataConversionWarning):
        fitted = small_classifier().fit(X, y[:, None])
    assert_array_equal(fitted.predict(X), small_classifier().fit(X, y).predict(X))


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_probabilities_and_decisions_agree_with_labels(classes):
    X, y = scaled_blobs(classes=classes)
    fitted = small_classifier().fit(X, y)
    p, scores = fitted.predict_proba(X), fitted.decision_function(X)
    assert p.shape == (90, classes)
    assert p.dtype == np.float64
    assert fitted.predict_proba(X.astype(np.float32)).dtype == np.float32
    assert_allclose(p.sum(axis=1), 1, rtol=1e-12)
    assert_array_equal(fitted.predict(X), p.argmax(axis=1))
    assert fitted.score(X, y) > 0.9
    if classes == 2:
        assert scores.shape == (90,)
        assert_allclose(p[:, 1], 1 / (1 + np.exp(-scores.astype(np.float64))), atol=1e-12)
    else:
        expected = np.exp(scores - scores.max(axis=1, keepdims=True))
        assert_allclose(p, expected / expected.sum(axis=1, keepdims=True), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("make", [np.array, sp.csr_matrix, pd.DataFrame, lambda Y: Y.tolist(), lambda Y: Y == 1])
def test_several_labels_a_row(make):
    X, y = scaled_blobs(classes=3)
    Y = np.c_[y == 0, y == 1, y >= 1].astype(int)
    fitted = small_classifier().fit(X, make(Y))
    prediction = fitted.predict(X)
    assert_array_equal(fitted.classes_, [0, 1, 2])
    assert prediction.shape == (90, 3)
    assert set(np.unique(prediction)) == {0, 1}
    assert_array_equal(prediction, fitted.predict_proba(X) > 0.5)
    assert_array_equal(prediction, fitted.decision_function(X) > 0)
    assert fitted.score(X, Y) > 0.8
    assert_array_equal(fitted.partial_fit(X, Y).classes_, [0, 1, 2])


def test_two_labels_a_row_are_not_taken_for_two_classes():
    X, y = scaled_blobs()
    fitted = small_classifier().fit(X, np.c_[y, y])
    assert fitted.decision_function(X).shape == (90, 2)
    assert fitted.predict_proba(X)[:, 0].min() < 0.2
    assert_array_equal(fitted.predict(X)[:, 0], fitted.predict(X)[:, 1])


def test_early_stopping_scores_labels_by_exact_rows():
    X, y = scaled_blobs(classes=3)
    Y = np.c_[y == 0, y == 1, y >= 1].astype(int)
    fitted = small_classifier(max_iter=5).fit(X, Y, X_val=X, y_val=Y)
    assert_allclose(fitted.validation_scores_[-1], np.mean((fitted.predict(X) == Y).all(axis=1)))


def test_partial_fit_knows_labels_that_have_not_come_yet():
    X, y = scaled_blobs(classes=3)
    fitted = small_classifier().partial_fit(X[y < 2], y[y < 2], classes=[2, 0, 1])
    assert_array_equal(fitted.classes_, [0, 1, 2])
    for _ in range(20):
        fitted.partial_fit(X, y)
    assert fitted.score(X, y) > 0.9
    fitted.partial_fit(X[:5], np.full(5, 2), classes=[0, 1, 2])


def test_balanced_class_weights_of_several_labels():
    X, y = scaled_blobs()
    Y = np.c_[y, np.arange(90) % 3 == 0].astype(int)
    settings = {"learning_rate_init": 0, "max_iter": 1, "batch_size": 90, "alpha": 0}
    fitted = small_classifier(class_weight="balanced", **settings).fit(X, Y)
    weights = np.ones(90)
    for column in Y.T:
        weights *= (90 / 2 / np.bincount(column))[column]
    s = fitted.decision_function(X)
    rows = np.mean(np.logaddexp(0, s) - Y * s, axis=1)
    assert_allclose(fitted.loss_, np.average(rows, weights=weights), rtol=1e-5)

"""The best epoch on validation data: its weights are kept, with and without stopping early."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV

from onnxtrain_sklearn import MLP, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import InvalidParameterError
from onnxtrain_sklearn.schedules import Adaptive
from tests.helpers.environment import each_engine

rng = np.random.default_rng(0)
X = rng.normal(size=(120, 4)).astype(np.float32)
y = X[:, 0] + X[:, 1] * X[:, 2] + 0.5 * rng.normal(size=120)
X_val, y_val, X, y = X[:40], y[:40], X[40:], y[40:]
EPOCHS = 25


def regressor(**settings):
    defaults = {"learning_rate_init": 0.05, "max_iter": EPOCHS, "batch_size": 16, "random_state": 0}
    return OrtGradientRegressor(MLP((12,)), **(defaults | settings))


def fit(estimator, **scores):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return estimator.fit(X, y, X_val=X_val, y_val=y_val, **scores)


def weights_after(epochs, **settings):
    """The weights of a run that ends after so many epochs, without validation data."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return regressor(max_iter=epochs, tol=-np.inf, **settings).fit(X, y).weights_


@each_engine
@pytest.mark.parametrize(
    "stopping", [{"early_stopping": "best_epoch"}, {"early_stopping": True, "n_iter_no_change": np.inf}]
)
@pytest.mark.parametrize("tol", [1e-4, 1.0])
def test_the_weights_are_those_of_the_highest_score(stopping, tol, engine):
    fitted = fit(regressor(tol=tol, engine=engine, **stopping))
    scores = fitted.validation_scores_
    best = int(np.argmax(scores))
    assert len(scores) == fitted.n_iter_ == EPOCHS
    assert 0 < best < EPOCHS - 1
    assert 0 < scores[best] - sorted(scores)[-2] < tol or tol < 1  # the best is better by less than tol
    assert fitted.best_validation_score_ == max(scores) == pytest.approx(fitted.score(X_val, y_val), abs=1e-6)
    expected = weights_after(best + 1, engine=engine)
    for name, array in fitted.weights_.items():
        assert_array_equal(array, expected[name])


def test_stopping_early_ends_before():
    assert fit(regressor(tol=1.0, n_iter_no_change=2, early_stopping=True)).n_iter_ < EPOCHS
    assert fit(regressor(tol=1.0, n_iter_no_change=2, early_stopping="best_epoch")).n_iter_ == EPOCHS


@pytest.mark.parametrize(("stopping", "best"), [("best_epoch", 5), (True, 2)])
def test_of_equal_scores_the_latest_or_the_first(stopping, best):
    given = iter([0.1, 0.7, 0.3, 0.7, 0.7, 0.2, 0.6])
    fitted = regressor(
        early_stopping=stopping, scoring=lambda e, X, y: next(given), max_iter=7, n_iter_no_change=np.inf
    )
    fit(fitted)
    expected = weights_after(best)
    for name, array in fitted.weights_.items():
        assert_array_equal(array, expected[name])


def test_all_epochs_are_the_plan():
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        fitted = regressor(early_stopping="best_epoch").fit(X, y)
        assert fitted.n_iter_ == EPOCHS
        assert len(fitted.validation_scores_) == EPOCHS  # of the rows held out
        regressor(early_stopping="best_epoch", optimizer="lbfgs", max_iter=3).fit(X, y)
    with pytest.warns(ConvergenceWarning):
        regressor(early_stopping=True, max_iter=2).fit(X, y)


def test_plateaus_still_lower_the_rate():
    rates = []
    fitted = regressor(
        early_stopping="best_epoch",
        learning_rate=Adaptive(min_rate=0.04),
        n_iter_no_change=1,
        tol=1.0,
        callbacks=[lambda epoch: rates.append(epoch.learning_rate)],
    )
    fit(fitted)
    assert len(rates) == EPOCHS
    assert rates[-1] < 0.01


def test_a_callback_ends_training():
    fitted = fit(regressor(early_stopping="best_epoch", callbacks=[lambda epoch: epoch.number == 4]))
    assert fitted.n_iter_ == 4
    assert fitted.best_validation_score_ == max(fitted.validation_scores_)


def test_a_warm_start_goes_on_from_the_best():
    fitted = fit(regressor(early_stopping="best_epoch", warm_start=True))
    before, best = fitted.score(X_val, y_val), fitted.best_validation_score_
    fit(fitted.set_params(learning_rate_init=0.0, max_iter=2))
    assert fitted.score(X_val, y_val) == before
    assert fitted.best_validation_score_ == pytest.approx(best)


def test_a_pass_and_other_values_are_refused():
    with pytest.raises(ValueError, match="partial_fit does not support early_stopping='best_epoch'"):
        regressor(early_stopping="best_epoch").partial_fit(X, y)
    with pytest.raises(InvalidParameterError, match=r"'early_stopping' parameter .* must be a bool or 'best_epoch'"):
        regressor(early_stopping="best").fit(X, y)


def test_search_and_clone():
    classifier = OrtGradientClassifier(MLP((4,)), early_stopping="best_epoch", max_iter=3, random_state=0)
    assert clone(classifier).early_stopping == "best_epoch"
    search = GridSearchCV(classifier, {"early_stopping": ["best_epoch", True]}, cv=2, error_score="raise")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        assert search.fit(X, y > 0).best_score_ > 0

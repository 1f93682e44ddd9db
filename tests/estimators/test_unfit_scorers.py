"""Scorers of scikit-learn that do not take the targets: the message names the parameter, the targets and others."""

from __future__ import annotations

import numpy as np
import pytest

from onnxtrain_sklearn import MLP, OrtGradientClassifier, OrtGradientRegressor, RealMLPClassifier, TabMClassifier

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
ONE = (X[:, 0] > 0).astype(int)
SEVERAL = np.stack([ONE, 1 - ONE], axis=1)
THREE = np.arange(60) % 3
ESTIMATORS = [RealMLPClassifier(n_ensembles=1, max_iter=1), TabMClassifier(max_iter=1)]
ESTIMATORS += [OrtGradientClassifier(MLP((4,)), max_iter=1, early_stopping=True, validation_split=0.5)]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(
    ("scoring", "y", "match"),
    [
        ("balanced_accuracy", SEVERAL, "'balanced_accuracy' does not score several labels a row; take 'neg_log_loss'"),
        ("f1", SEVERAL, "'f1' does not score several labels a row; take .*'f1_macro'"),
        ("recall", THREE, "'recall' does not score labels of several classes; take 'accuracy'"),
        ("r2", np.array(["no", "yes"])[ONE], "'r2' does not score these labels of two classes; take 'accuracy'"),
    ],
)
def test_other_scorers_are_named(estimator, scoring, y, match):
    estimator = type(estimator)(**estimator.get_params(deep=False) | {"scoring": scoring})
    before = dict(vars(estimator))
    with pytest.raises(ValueError, match=match):
        estimator.fit(X, y)
    assert vars(estimator) == before


def test_errors_of_functions_are_their_own():
    def scoring(estimator, X, y):
        raise ValueError("mine")

    estimator = OrtGradientRegressor(MLP((4,)), max_iter=1, early_stopping=True, scoring=scoring)
    with pytest.raises(ValueError, match=r"^mine$"):
        estimator.fit(X, X[:, 0])

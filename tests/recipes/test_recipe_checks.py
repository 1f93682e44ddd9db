"""Estimators for raw tables pass scikit-learn's common checks, but for weights, as rows are held out at random."""

from __future__ import annotations

import re
from unittest import SkipTest

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from onnxtrain_sklearn import RealMLPClassifier, RealMLPRegressor, TabMClassifier, TabMRegressor
from tests.estimators.test_sklearn_checks import function_of_check

# TabM stops early in most checks; the others take all of their epochs, of which few are enough here.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

# As scikit-learn declares of its own estimators that hold out rows or draw them.
BY_CHANCE = {
    "check_sample_weight_equivalence_on_dense_data": "a row of weight two is held out as one row, and two rows are not"
}


MISSING = "check_classifiers_multilabel_output_format_decision_function"
"""What is skipped: recipes have no decision function, as scikit-learn's ``MLPClassifier``."""

WHOLE = [
    RealMLPClassifier(hidden_layer_sizes=32, max_iter=20),
    TabMRegressor(4, hidden_layer_sizes=32),
]
"""Both recipes and both tasks: these take all checks."""

OTHERS = [
    RealMLPRegressor("td-s", hidden_layer_sizes=32, max_iter=20),
    TabMClassifier(4, hidden_layer_sizes=32),
]
"""These share the rest of their code with the others, and take the checks of their task alone."""


def checks():
    """Return the decorator that makes the cases."""
    every = parametrize_with_checks(WHOLE + OTHERS, expected_failed_checks=lambda estimator: BY_CHANCE)
    names, cases = every.mark.args
    kept = [case for case in cases if is_wanted(*getattr(case, "values", case))]
    return pytest.mark.parametrize(names, kept, **every.mark.kwargs)


def is_wanted(estimator, check):
    name = function_of_check(estimator, check)
    whole = any(isinstance(estimator, type(one)) for one in WHOLE)
    return name != MISSING and (whole or re.search("classif|class_weight|regress|supervised|proba", name))


@pytest.mark.slow
@pytest.mark.thinned(by=function_of_check)
@checks()
def test_scikit_learn_check(estimator, check):
    try:
        check(estimator)
    except SkipTest as skipped:
        pytest.fail(f"skipped: {skipped}")

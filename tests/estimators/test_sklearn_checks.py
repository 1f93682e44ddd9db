"""Both estimators pass every check that scikit-learn has for third parties; none is skipped or expected to fail."""

from __future__ import annotations

import importlib.util
from unittest import SkipTest

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from onnxtrain_sklearn import Linear, OrtGradientClassifier, OrtGradientRegressor

# The checks set max_iter to a few epochs.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def function_of_check(estimator, check):
    """Return the name of the function of the check."""
    return getattr(check, "func", check).__name__


@pytest.mark.slow
@pytest.mark.thinned(by=function_of_check)
@parametrize_with_checks(
    [
        OrtGradientClassifier(),
        OrtGradientRegressor(),
        OrtGradientRegressor(Linear(), optimizer="lbfgs"),
        OrtGradientRegressor(loss="reconstruction"),
    ]
)
def test_scikit_learn_check(estimator, check):
    try:
        check(estimator)
    except SkipTest as skipped:
        pytest.fail(f"skipped: {skipped}")


def test_optional_dependencies_of_checks_are_present():
    assert importlib.util.find_spec("pandas")
    api = pytest.importorskip("scipy._lib._array_api", reason="SciPy before 1.12 has no array API")
    assert api.SCIPY_ARRAY_API

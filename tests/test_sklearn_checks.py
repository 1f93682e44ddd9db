"""Both estimators pass every check that scikit-learn has for third parties."""

from __future__ import annotations

from sklearn.utils.estimator_checks import parametrize_with_checks

from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientRegressor


@parametrize_with_checks([OrtGradientClassifier(), OrtGradientRegressor()])
def test_scikit_learn_check(estimator, check):
    check(estimator)

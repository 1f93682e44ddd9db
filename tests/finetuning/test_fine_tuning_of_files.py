"""Fine-tuning of ONNX files by skl2onnx: they learn what the fitted models learn that they were written from."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from skl2onnx import to_onnx
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientRegressor
from tests.helpers.fine_tuning import prepared_trainer, weights_of_output

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

OLD, NEW, TEST = slice(0, 250), slice(250, 320), slice(320, None)

REGRESSORS = [
    GradientBoostingRegressor(random_state=0, n_estimators=40),
    RandomForestRegressor(random_state=0, n_estimators=10),
    make_pipeline(StandardScaler(), Ridge()),
    make_pipeline(StandardScaler(), MLPRegressor(hidden_layer_sizes=(10,), random_state=0, max_iter=300)),
]
CLASSIFIERS = [
    GradientBoostingClassifier(random_state=0, n_estimators=20),
    make_pipeline(StandardScaler(), LogisticRegression()),
    make_pipeline(StandardScaler(), MLPClassifier((20,), max_iter=100, random_state=0)),
]


def name_of(model):
    return type(model[-1] if hasattr(model, "steps") else model).__name__


def drift_of(estimator):
    """Return the old rows, and new ones in other units."""
    if estimator is OrtGradientRegressor:
        X, y = load_diabetes(return_X_y=True)
        return X.astype(np.float32), y, X.astype(np.float32), 0.6 * y + 80
    X, y = load_breast_cancer(return_X_y=True)
    return X.astype(np.float32), y, X.astype(np.float32) * np.float32(1.3), y


@pytest.fixture(scope="module", params=[*REGRESSORS, *CLASSIFIERS], ids=name_of)
def pair(request):
    """A fitted model, the file that skl2onnx writes of it, the estimator that trains both, and the new rows."""
    estimator = OrtGradientRegressor if request.param in REGRESSORS else OrtGradientClassifier
    X_old, y_old, X, y = drift_of(estimator)
    model = request.param.fit(X_old[OLD], y_old[OLD])
    options = {"zipmap": False} if estimator is OrtGradientClassifier else None
    return model, to_onnx(model, X_old[:1], options=options), estimator, X, y


@pytest.mark.slow
def test_a_file_learns_as_much_as_the_model_that_it_was_written_from(pair):
    model, file, estimator, X, y = pair
    by_model, by_file = (
        estimator(given, random_state=0).fit(X[NEW], y[NEW]).score(X[TEST], y[TEST]) for given in (model, file)
    )
    assert by_file > model.score(X[TEST], y[TEST]) + 0.02
    assert_allclose(by_file, by_model, atol=0.015)


def test_same_weights_of_file_and_model_scale_the_output(pair):
    model, file, estimator, X, y = pair
    found = []
    for given in (model, file):
        trainer = prepared_trainer(estimator(given, random_state=0), X[NEW], y[NEW])
        found.append(weights_of_output(trainer))
    assert found[0].shifts.size == found[1].shifts.size > 0
    assert found[0].scaled.sum() == found[1].scaled.sum() > 0
    assert found[0].linear is found[1].linear


def test_the_constant_of_boosted_trees_in_a_file_is_a_weight():
    X, y = load_diabetes(return_X_y=True)
    file = to_onnx(GradientBoostingRegressor(n_estimators=3).fit(X[OLD], y[OLD]), X[:1].astype(np.float32))
    trained = OrtGradientRegressor(file, finetune=None, max_iter=3, random_state=0).fit(X[NEW], y[NEW])
    assert trained.weights_["trees.base_values"] != pytest.approx(y[OLD].mean(), rel=1e-6)

"""Pipelines with a KNeighborsTransformer, and ties of neighbors, which no graph can break as scikit-learn does."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor, KNeighborsTransformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError, OnnxTrainWarning
from tests.helpers.converted import NEW, OLD, TWO, X
from tests.helpers.environment import available_engines

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

STILL = {"learning_rate_init": 1e-12, "max_iter": 1}
RNG = np.random.default_rng(0)
COUNTS = RNG.integers(0, 3, size=(300, 3)).astype(np.float32)
LABELS = RNG.integers(0, 2, size=300)


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize(
    "settings", [{}, {"mode": "connectivity"}, {"p": 1}, {"metric": "manhattan", "n_neighbors": 1}]
)
def test_rows_that_are_training_points_have_a_finite_gradient(settings, engine):
    """The root of a distance of zero has none."""
    model = make_pipeline(StandardScaler(), KNeighborsTransformer(**settings), LogisticRegression())
    model.fit(X[OLD], TWO[OLD])
    start = OrtGradientClassifier(model, **STILL, engine=engine).fit(X[OLD], TWO[OLD])
    assert_allclose(start.predict_proba(X), model.predict_proba(X), atol=1e-5)
    tuned = OrtGradientClassifier(model, max_iter=3, learning_rate_init=1e-3, engine=engine).fit(X[OLD], TWO[OLD])
    assert np.isfinite(tuned.loss_curve_).all()
    assert_allclose(tuned.to_sklearn().predict_proba(X[NEW]), tuned.predict_proba(X[NEW]), atol=1e-4)


@pytest.mark.parametrize(
    "model",
    [
        KNeighborsRegressor(weights="distance"),
        make_pipeline(StandardScaler(), KNeighborsTransformer(), Ridge()),
    ],
)
def test_a_start_that_differs_by_ties_is_refused_with_that_reason(model):
    with pytest.raises(ModelError, match=r"differ: .*several training points .*give another model"):
        OrtGradientRegressor(model.fit(COUNTS, LABELS), **STILL).fit(COUNTS, LABELS)


def test_ties_that_do_not_show_in_the_rows_are_warned_of():
    """All targets are equal: whichever neighbors count, the predictions agree."""
    model = KNeighborsRegressor(weights="distance").fit(COUNTS, np.ones(300))
    with pytest.warns(OnnxTrainWarning, match=r"several training points .* n_neighbors of KNeighborsRegressor"):
        OrtGradientRegressor(model, **STILL, target_scaling=None).fit(COUNTS[:30], LABELS[:30])


def test_rows_without_ties_are_not_warned_of():
    model = make_pipeline(StandardScaler(), KNeighborsClassifier(weights="distance")).fit(X[OLD], TWO[OLD])
    with warnings.catch_warnings():
        warnings.simplefilter("error", OnnxTrainWarning)
        OrtGradientClassifier(model, **STILL).fit(X[NEW], TWO[NEW])

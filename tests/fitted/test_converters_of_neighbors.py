"""Converters of nearest neighbors: distances, ties, several outputs, beside scikit-learn's."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.ensemble import VotingClassifier
from sklearn.gaussian_process import GaussianProcessClassifier, kernels
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import (
    KNeighborsClassifier,
    KNeighborsRegressor,
    RadiusNeighborsClassifier,
    RadiusNeighborsRegressor,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.converted import NEW, NUMBER, OLD, THREE, TWO, X, changed, still
from tests.helpers.environment import available_engines

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore::FutureWarning")


class TestNeighbours:
    @pytest.mark.parametrize(
        "model",
        [
            KNeighborsRegressor(weights="distance"),
            KNeighborsRegressor(weights="distance", p=1.5),
            RadiusNeighborsRegressor(5.0, weights="distance"),
        ],
    )
    def test_regressors(self, model):
        model = model.fit(X[OLD], NUMBER[OLD])
        tuned = still(model, X[NEW], NUMBER[NEW])
        assert {name.partition(".")[2] for name in tuned.weights_} == {"fit_X", "y"}
        assert_allclose(tuned.predict(X), model.predict(X), rtol=1e-4, atol=1e-4)

    def test_rows_without_neighbors_get_outlier_label(self):
        model = RadiusNeighborsClassifier(0.7, weights="distance", outlier_label=2).fit(X[OLD], THREE[OLD])
        expected = model.predict_proba(X)
        assert (expected[:, 2] == 1).sum() > 20
        assert_allclose(still(model, X[NEW], THREE[NEW]).predict_proba(X), expected, atol=1e-4)

    @pytest.mark.parametrize("y", [TWO, np.stack([TWO, THREE], axis=1)], ids=["one output", "two outputs"])
    @pytest.mark.parametrize("label", [-1, 2])
    def test_a_label_for_rows_without_neighbors_that_is_no_class(self, y, label):
        model = RadiusNeighborsClassifier(0.7, weights="distance", outlier_label=label).fit(X[OLD], y[OLD])
        with pytest.raises(ModelError, match=rf"label {label}, which is not among its classes.*='most_frequent'"):
            still(model, X[NEW], y[NEW])

    @pytest.mark.parametrize("algorithm", ["brute", "kd_tree", "ball_tree"])
    def test_trees_are_built_of_the_trained_points(self, algorithm):
        model = KNeighborsClassifier(weights="distance", algorithm=algorithm).fit(X[OLD], THREE[OLD])
        tuned = OrtGradientClassifier(model, max_iter=5, learning_rate_init=0.05, random_state=0)
        tuned.fit(X[NEW], THREE[NEW])
        back = tuned.to_sklearn()
        assert np.abs(back._fit_X - model._fit_X).max() > 0.01
        assert_allclose(back.predict_proba(X), tuned.predict_proba(X), atol=1e-4)

    @pytest.mark.parametrize(
        "model",
        [
            KNeighborsClassifier(weights="distance"),
            KNeighborsClassifier(weights="distance", algorithm="brute"),
            RadiusNeighborsClassifier(4000.0, weights="distance"),
            GaussianProcessClassifier(kernels.RBF(2000.0), optimizer=None),
        ],
    )
    def test_points_of_integers(self, model):
        """Trained, they are integers no more."""
        rows = np.round(1000 * X).astype(np.int64)
        model = copy.deepcopy(model).fit(rows[OLD], TWO[OLD])
        tuned = OrtGradientClassifier(model, max_iter=5, learning_rate_init=0.05, random_state=0)
        tuned.fit(rows[NEW], TWO[NEW])
        back = tuned.to_sklearn()
        assert_allclose(back.predict_proba(rows[NEW]), tuned.predict_proba(rows[NEW]), atol=1e-4)
        assert np.abs(back.predict_proba(rows[NEW]) - model.predict_proba(rows[NEW])).max() > 1e-3

    def test_targets_of_integers(self):
        y = np.round(NUMBER).astype(int)
        model = KNeighborsRegressor(weights="distance").fit(X[OLD], y[OLD])
        tuned = OrtGradientRegressor(model, max_iter=5, learning_rate_init=0.05, random_state=0).fit(X[NEW], y[NEW])
        back = tuned.to_sklearn()
        assert 0.01 < np.abs(back._y - model._y).max() < 0.5
        assert_allclose(back.predict(X), tuned.predict(X), rtol=1e-4, atol=1e-4)

    @pytest.mark.filterwarnings("ignore:Mind that for 0 < p < 1")
    @pytest.mark.parametrize("engine", available_engines())
    @pytest.mark.parametrize("kind", [KNeighborsRegressor, RadiusNeighborsRegressor])
    def test_powers_below_one(self, kind, engine):
        """Rows that lie on a point, and those that share one number with it, where the slope is infinite."""
        settings = {"n_neighbors": 5} if kind is KNeighborsRegressor else {"radius": 1e3}
        model = kind(weights="distance", p=0.5, algorithm="brute", **settings)
        model.fit(X[OLD].astype(np.float64), NUMBER[OLD])
        rows = X[NEW].copy()
        rows[:3], rows[3:6, 0] = X[:3], X[3:6, 0]
        tuned = still(model, rows, NUMBER[NEW], engine=engine)
        assert_allclose(tuned.predict(rows), model.predict(rows), rtol=1e-4, atol=1e-4)
        run = tuned._state
        run.live.step.compute_gradients(float(len(rows)))
        name = f"{kind.__name__.lower()}.fit_X"
        origin = next(origin for origin in run.fitted.origins if origin.name == name)
        gradient = run.parameters.gradient[run.parameters.span(name)].reshape(-1, X.shape[1])
        assert np.isfinite(run.parameters.gradient).all()
        points, direction = model._fit_X, np.random.default_rng(0).normal(size=model._fit_X.shape)
        direction[:6] = 0  # a kink

        def loss(step):
            moved = changed(model, origin, points + step * direction)
            return ((moved.predict(rows.astype(np.float64)) - NUMBER[NEW]) ** 2).mean()

        expected = (loss(1e-6) - loss(-1e-6)) / 2e-6
        assert abs((gradient * direction).sum() - expected) < 1e-3 * np.abs(gradient * direction).sum()

    @pytest.mark.parametrize("settings", [{"metric": "cosine"}, {"metric": "chebyshev"}])
    def test_other_metrics(self, settings):
        model = KNeighborsClassifier(weights="distance", algorithm="brute", **settings).fit(X[OLD], TWO[OLD])
        with pytest.raises(ModelError, match=r"metric=.*euclidean, manhattan, minkowski"):
            still(model, X[NEW], TWO[NEW])


class TestVotes:
    """Uniform weights: each training point gives shares of its vote to the classes, which are trained."""

    @pytest.mark.parametrize("engine", available_engines())
    @pytest.mark.parametrize("y", [TWO, THREE], ids=["two classes", "three classes"])
    @pytest.mark.parametrize(
        "model", [KNeighborsClassifier(4), RadiusNeighborsClassifier(1.7, outlier_label="most_frequent")]
    )
    def test_probabilities_are_means_of_trained_votes(self, model, y, engine):
        model = make_pipeline(StandardScaler(), copy.deepcopy(model)).fit(X[OLD], y[OLD])
        start = still(model, X[NEW], y[NEW], engine=engine)
        assert_allclose(start.predict_proba(X), model.predict_proba(X), atol=1e-4)
        assert_array_equal(start.predict(X), model.predict(X))  # votes of four neighbors tie
        tuned = OrtGradientClassifier(model, max_iter=10, learning_rate_init=0.1, random_state=0, engine=engine)
        tuned.fit(X[NEW], y[NEW])
        assert tuned.loss_curve_[-1] < 0.9 * tuned.loss_curve_[0]
        last, ((name, votes),) = model[-1], tuned.weights_.items()
        assert name == f"{type(last).__name__.lower()}.y"
        shares = np.abs(votes, dtype=float) / np.abs(votes, dtype=float).sum(axis=1, keepdims=True)
        search = last.radius_neighbors if isinstance(last, RadiusNeighborsClassifier) else last.kneighbors
        most = np.eye(len(last.classes_))[np.bincount(y[OLD]).argmax()]
        near = search(model[:-1].transform(X.astype(float)), return_distance=False)
        expected = [shares[one].mean(axis=0) if len(one) else most for one in near]
        assert_allclose(tuned.predict_proba(X), expected, atol=1e-5)

    def test_votes_cannot_be_written_back(self):
        model = KNeighborsClassifier().fit(X[OLD], THREE[OLD])
        assert_array_equal(still(model, X[NEW], THREE[NEW]).to_sklearn().predict(X), model.predict(X))
        tuned = OrtGradientClassifier(model, max_iter=2, learning_rate_init=0.1).fit(X[NEW], THREE[NEW])
        with pytest.raises(ModelError, match=r"one class for each training point.*weights='distance'"):
            tuned.to_sklearn()

    def test_neighbor_votes_beside_parameters_are_not_trained(self):
        parts = [("line", LogisticRegression()), ("near", KNeighborsClassifier())]
        model = VotingClassifier(parts, voting="soft").fit(X[OLD], THREE[OLD])
        tuned = OrtGradientClassifier(model, max_iter=2, learning_rate_init=0.1).fit(X[NEW], THREE[NEW])
        assert list(tuned.weights_) == ["estimators.0.coef", "estimators.0.intercept"]
        assert_allclose(tuned.to_sklearn().predict_proba(X), tuned.predict_proba(X), atol=1e-5)

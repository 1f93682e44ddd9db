"""Converters of detectors of outliers: scores, labels and gradients beside scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.covariance import EllipticEnvelope
from sklearn.ensemble import IsolationForest
from sklearn.linear_model import SGDOneClassSVM
from sklearn.neighbors import LocalOutlierFactor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    StandardScaler,
)
from sklearn.svm import OneClassSVM

from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientRegressor, losses
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.environment import available_engines
from tests.helpers.transformed import GAPS, OUTLIERS, X, outputs, tuned

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

DETECTORS = [
    OneClassSVM(nu=0.2), OneClassSVM(kernel="linear", nu=0.2), SGDOneClassSVM(nu=0.2, random_state=0),
    IsolationForest(n_estimators=5, random_state=0),
    IsolationForest(n_estimators=5, max_features=2, contamination=0.1, random_state=0),
    LocalOutlierFactor(5, novelty=True), LocalOutlierFactor(metric="manhattan", contamination=0.1, novelty=True),
    LocalOutlierFactor(5, p=3, novelty=True),
    EllipticEnvelope(random_state=0), make_pipeline(StandardScaler(), OneClassSVM(nu=0.2)),
]  # fmt: skip


@pytest.mark.parametrize("model", DETECTORS, ids=str)
class TestDetectors:
    @pytest.mark.parametrize("engine", available_engines())
    def test_start_and_come_back(self, model, engine):
        model.fit(X[:60])
        start = tuned(OrtGradientClassifier, model, X, OUTLIERS, learning_rate_init=0.0, max_iter=1, engine=engine)
        assert type(start._state.live.step.settings.loss) is losses.Hinge
        assert_array_equal(start.classes_, [-1, 1])
        assert_allclose(start.decision_function(X), model.decision_function(X), rtol=1e-4, atol=1e-5)
        clear = np.abs(model.decision_function(X)) > 1e-6
        assert_array_equal(start.predict(X)[clear], model.predict(X)[clear])
        assert not hasattr(start, "predict_proba")
        after = tuned(OrtGradientClassifier, model, X, OUTLIERS, engine=engine)
        assert after.loss_ < start.loss_
        back = after.to_sklearn()
        assert type(back) is type(model)
        assert_allclose(back.decision_function(X), after.decision_function(X), rtol=1e-4, atol=1e-4)
        assert np.abs(back.decision_function(X) - model.decision_function(X)).max() > 1e-3
        assert_allclose(back.score_samples(X) - offset(back), back.decision_function(X), rtol=1e-6, atol=1e-6)

    def test_graph_gives_labels_and_scores(self, model):
        model.fit(X[:60])
        label, scores = outputs(model, X)
        assert_array_equal(label.ravel(), model.predict(X))
        assert_allclose(scores.ravel(), model.decision_function(X), rtol=1e-4, atol=1e-5)

    def test_other_labels(self, model):
        with pytest.raises(ValueError, match=r"\[0\].* are \[-1, 1\]"):
            tuned(OrtGradientClassifier, model.fit(X), X, (OUTLIERS > 0).astype(int))

    def test_detectors_are_no_regressors(self, model):
        with pytest.raises(ModelError, match="take OrtGradientClassifier to train it, with -1 and 1 in y"):
            tuned(OrtGradientRegressor, model.fit(X), X, OUTLIERS)


def offset(model):
    return (model[-1] if hasattr(model, "steps") else model).offset_


class TestSingleDetectors:
    def test_rows_of_one_kind(self):
        after = tuned(OrtGradientClassifier, OneClassSVM().fit(X), X, np.ones(80))
        assert_array_equal(after.classes_, [-1, 1])

    def test_offset_follows_intercept(self):
        back = tuned(OrtGradientClassifier, OneClassSVM().fit(X), X, OUTLIERS).to_sklearn()
        assert_array_equal(back.offset_, -back.intercept_)

    def test_forest_takes_gaps_and_numbers_on_a_threshold(self):
        rows = np.round(GAPS, 1)
        model = IsolationForest(n_estimators=20, random_state=0).fit(rows)
        thresholds = [np.float32(t) for tree in model.estimators_ for t in tree.tree_.threshold[:3]]
        rows = np.concatenate([rows, np.resize(thresholds, (20, 4)).astype(np.float32)])
        assert_allclose(outputs(model, rows)[1].ravel(), model.decision_function(rows), atol=1e-6)

    def test_lengths_of_paths_are_written_into_the_forest(self):
        model = IsolationForest(n_estimators=3, random_state=0).fit(X)
        after = tuned(OrtGradientClassifier, model, X, OUTLIERS, trainable="*.leaf_values")
        back = after.to_sklearn()
        assert back.offset_ == model.offset_
        changed = [a != b for a, b in zip(*(m._average_path_length_per_tree for m in (back, model)), strict=True)]
        for where, tree in zip(changed, model.estimators_, strict=True):
            assert where[tree.tree_.children_left < 0].any()
            assert not where[tree.tree_.children_left >= 0].any()

    def test_covariance_follows_precision(self):
        model = EllipticEnvelope(random_state=0).fit(X)
        back = tuned(OrtGradientClassifier, model, X, OUTLIERS).to_sklearn()
        assert_allclose(back.covariance_ @ back.precision_, np.eye(4), atol=1e-6)

    def test_precision_that_is_not_kept(self):
        model = EllipticEnvelope(random_state=0, store_precision=False).fit(X)
        after = tuned(OrtGradientClassifier, model, X, OUTLIERS)
        assert set(after.weights_) == {"ellipticenvelope.location", "ellipticenvelope.offset"}
        assert_allclose(after.to_sklearn().decision_function(X), after.decision_function(X), rtol=1e-4, atol=1e-4)

    def test_points_of_integers_are_trained_and_written_back(self):
        rows = np.round(1000 * X).astype(np.int64)
        model = LocalOutlierFactor(5, novelty=True).fit(rows)
        after = tuned(OrtGradientClassifier, model, rows, OUTLIERS, learning_rate_init=0.05)
        assert {name.partition(".")[2] for name in after.weights_} == {"fit_X", "lrd", "offset"}
        back = after.to_sklearn()
        assert model._fit_X.dtype.kind == "i"
        assert (back._fit_X % 1).any()
        assert_allclose(back.decision_function(rows), after.decision_function(rows), rtol=1e-4, atol=1e-4)

    def test_no_novelty(self):
        with pytest.raises(ModelError, match="novelty=True"):
            tuned(OrtGradientClassifier, LocalOutlierFactor().fit(X), X, OUTLIERS)

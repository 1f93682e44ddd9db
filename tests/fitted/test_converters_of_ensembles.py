"""Converters of ensembles and trees: votes, stacks, one versus rest, missing values."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, SGDClassifier
from sklearn.multiclass import OneVsRestClassifier, OutputCodeClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import (
    KNeighborsClassifier,
    RadiusNeighborsClassifier,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import SelfTrainingClassifier
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor, ExtraTreeClassifier

from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.converted import FOUR, GAPS, NEW, NUMBER, OLD, SVM, THREE, TREE, TWO, X, given, still
from tests.helpers.environment import available_engines

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore::FutureWarning")


class TestEnsembles:
    def test_weights_of_a_boost_that_stopped_early(self):
        y = (X[:, 0] > 0).astype(int)
        model = AdaBoostClassifier(SVC(kernel="linear"), n_estimators=6, random_state=0).fit(X[OLD], y[OLD])
        model.estimators_ = model.estimators_[:3]
        model.estimator_weights_[3:] = 0
        assert_allclose(still(model, X[NEW], y[NEW]).predict_proba(X), model.predict_proba(X), atol=1e-6)

    def test_a_boost_of_one_has_no_gradient(self):
        model = AdaBoostClassifier(n_estimators=1).fit(X[OLD], TWO[OLD])
        with pytest.raises(ModelError, match="has no parameter with a gradient"):
            still(model, X[NEW], TWO[NEW])

    def test_weights_of_regressors_may_be_a_list(self):
        parts = [("a", Ridge()), ("b", DecisionTreeRegressor(max_depth=3, random_state=0)), ("c", LinearRegression())]
        model = VotingRegressor(parts, weights=[1, 2, 0.5]).fit(X[OLD], NUMBER[OLD])
        assert_allclose(still(model, X[NEW], NUMBER[NEW]).predict(X), model.predict(X), rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize(
        ("model", "text"),
        [
            (KNeighborsClassifier(metric="cosine"), "count neighbors.*'euclidean', 'manhattan' or 'minkowski'"),
            (
                make_pipeline(StandardScaler(), RadiusNeighborsClassifier(5.0, metric="cosine", algorithm="brute")),
                "count neighbors",
            ),
            (BaggingClassifier(SVM, 2), "count the votes.*SVC.probability=True"),
            (VotingClassifier([("a", TREE), ("b", GaussianNB())]), "labels only.*voting='soft'"),
            (OneVsRestClassifier(Ridge()), "labels only"),
            (OneVsRestClassifier(SVC(probability=True)), "decision functions of its SVC.*only one of the two"),
            (GaussianProcessClassifier(multi_class="one_vs_one"), "multi_class='one_vs_rest'"),
        ],
    )
    def test_says_why_not(self, model, text):
        with pytest.raises(ModelError, match=text):
            still(given(model, THREE), X[NEW], THREE[NEW])


class TestOutputCodes:
    @pytest.mark.parametrize("engine", available_engines())
    @pytest.mark.parametrize("y", [TWO, FOUR], ids=["two classes", "four classes"])
    @pytest.mark.parametrize("inner", [LogisticRegression(), GaussianNB()], ids=lambda one: type(one).__name__)
    def test_scores_are_margins_between_codes(self, inner, y, engine):
        """Above zero where the code of the class is the nearest one, in float64."""
        model = OutputCodeClassifier(inner, code_size=3, random_state=0).fit(X[OLD], y[OLD])
        tuned = OrtGradientClassifier(model, max_iter=5, learning_rate_init=0.01, random_state=0, engine=engine)
        tuned.fit(X[NEW], y[NEW])
        assert tuned.loss_curve_[-1] < tuned.loss_curve_[0]
        for ours, theirs in ((still(model, X[NEW], y[NEW], engine=engine), model), (tuned, tuned.to_sklearn())):
            assert_array_equal(ours.predict(X), theirs.predict(X))
            if isinstance(inner, LogisticRegression):
                given = [one.decision_function(X) for one in theirs.estimators_]
            else:
                given = [one.predict_proba(X)[:, 1] for one in theirs.estimators_]
            away = [((np.transpose(given) - code) ** 2).sum(axis=1) for code in theirs.code_book_]
            others = [np.min(away[:i] + away[i + 1 :], axis=0) for i in range(len(away))]
            unit = np.ptp(theirs.code_book_) ** 2 * len(given) / 2
            expected = (np.transpose(others) - np.transpose(away)) / unit
            found = ours.decision_function(X)
            assert_allclose(found, expected if found.ndim > 1 else expected[:, 1], rtol=1e-4, atol=1e-4)

    def test_a_digit_that_is_the_same_for_all_classes(self):
        model = OutputCodeClassifier(LogisticRegression(), code_size=4, random_state=1).fit(X[OLD], TWO[OLD])
        assert (np.ptp(model.code_book_, axis=0) == 0).any()
        tuned = still(model, X[NEW], TWO[NEW])
        assert_array_equal(tuned.predict(X), model.predict(X))
        assert len(tuned.weights_) == 2 * np.count_nonzero(np.ptp(model.code_book_, axis=0))


class TestSelfTraining:
    def test_the_classifier_in_it_is_trained(self):
        y = np.where(np.arange(80) % 3, TWO[OLD], -1)
        model = SelfTrainingClassifier(LogisticRegression()).fit(X[OLD], y)
        tuned = OrtGradientClassifier(model, max_iter=3, random_state=0).fit(X[NEW], TWO[NEW])
        back = tuned.to_sklearn()
        assert type(back) is SelfTrainingClassifier
        assert np.abs(back.estimator_.coef_ - model.estimator_.coef_).max() > 1e-4
        assert_allclose(back.predict_proba(X), tuned.predict_proba(X), atol=1e-5)


class TestDescent:
    @pytest.mark.parametrize(("dtype", "end"), [(np.float32, -88), (np.float64, -709)])
    def test_scores_beyond_the_sigmoid(self, dtype, end):
        """Rows whose sigmoids are all zero are even for scikit-learn, and NaN where zero is divided by zero."""
        data = X.astype(dtype)
        model = SGDClassifier(loss="log_loss", random_state=0).fit(data[OLD], THREE[OLD])
        model.intercept_ += end - np.median(model.decision_function(data).max(axis=1))
        with np.errstate(all="ignore"):
            expected = model.predict_proba(data)
        even = np.isclose(expected, 1 / 3).all(axis=1).sum()
        if not even and np.isnan(expected).any():
            pytest.skip("earlier versions of scikit-learn give NaN for such rows")
        assert 50 < even < 190
        tuned = still(model, data[NEW], THREE[NEW])
        clear = np.abs(model.decision_function(data) - end).min(axis=1) > 2
        assert_allclose(tuned.predict_proba(data)[clear], expected[clear], atol=1e-4)
        assert np.isfinite(tuned._state.parameters.gradient).all()

    @pytest.mark.parametrize("engine", available_engines())
    def test_learns_from_scores_of_zero(self, engine):
        """As a model whose start is all zeros has them: there, too, the slope of the logarithm is a half."""
        model = SGDClassifier(loss="log_loss", random_state=0).fit(X[OLD], THREE[OLD])
        model.coef_[:], model.intercept_[:] = 0, 0
        tuned = still(model, X[NEW], THREE[NEW], engine=engine)
        run = tuned._state
        loss = run.live.step.compute_gradients(float(len(X[NEW])))
        assert_allclose(loss, np.log(3), rtol=1e-5)
        # Of equal probabilities, d loss / d score is (1/3 - [its class]) / 2.
        expected = (1 / 3 - np.eye(3)[THREE[NEW]]).mean(axis=0) / 2
        span = run.parameters.span("sgdclassifier.intercept")
        assert_allclose(run.parameters.gradient[span], expected, atol=1e-5)
        assert np.abs(expected).max() > 0.01


class TestTrees:
    @pytest.mark.parametrize(
        "model",
        [
            DecisionTreeClassifier(max_depth=4, random_state=0),
            ExtraTreeClassifier(max_depth=4, random_state=0),
            RandomForestClassifier(4, max_depth=4, random_state=0),
            ExtraTreesClassifier(4, max_depth=4, random_state=0),
            BaggingClassifier(TREE, 3, random_state=0),
        ],
    )
    @pytest.mark.parametrize("y", [TWO, THREE], ids=["two", "three"])
    def test_missing_values_go_where_the_tree_has_learned(self, model, y):
        model = copy.deepcopy(model).fit(GAPS[OLD], y[OLD])
        tuned = still(model, GAPS[NEW], y[NEW])
        assert_allclose(tuned.predict_proba(GAPS), model.predict_proba(GAPS), atol=1e-5)

    @pytest.mark.parametrize(
        "model", [DecisionTreeRegressor(max_depth=4, random_state=0), RandomForestRegressor(4, random_state=0)]
    )
    def test_missing_values_of_regressors(self, model):
        model = copy.deepcopy(model).fit(GAPS[OLD], NUMBER[OLD])
        assert_allclose(still(model, GAPS[NEW], NUMBER[NEW]).predict(GAPS), model.predict(GAPS), rtol=1e-5, atol=1e-5)

    def test_boosting_from_zero(self):
        model = GradientBoostingClassifier(n_estimators=3, init="zero", random_state=0).fit(X[OLD], THREE[OLD])
        assert_allclose(still(model, X[NEW], THREE[NEW]).predict_proba(X), model.predict_proba(X), atol=1e-5)

    def test_leaves_that_are_all_zero_are_written(self):
        model = HistGradientBoostingRegressor(max_iter=3).fit(X[:30], np.zeros(30))
        tuned = OrtGradientRegressor(model, max_iter=5, learning_rate_init=0.05, random_state=0).fit(X, NUMBER)
        assert np.abs(tuned.weights_["histgradientboostingregressor.leaf_values"]).max() > 0
        assert_allclose(tuned.to_sklearn().predict(X), tuned.predict(X), rtol=1e-5)

"""Fitted scikit-learn models as `model`: names, losses, labels, errors, and the way through scikit-learn's tools.

Which models are trained, and that gradients and predictions are right, is in contracts/test_fitted_models.py.
"""

from __future__ import annotations

import copy
import pickle

import numpy as np
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    HistGradientBoostingRegressor,
)
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    Perceptron,
    PoissonRegressor,
    Ridge,
)
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeRegressor

from onnxtrain_sklearn import losses
from tests.helpers.environment import available_engines
from tests.helpers.fitted_models import (
    BINARY,
    NEW,
    NUMBER,
    OLD,
    POSITIVE,
    THREE,
    X,
    classifier,
    logistic,
    regressor,
    ridge,
)

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


class TestNames:
    def test_class_and_attribute(self):
        tuned = classifier(logistic()).fit(X[NEW], BINARY[NEW])
        names = {"standardscaler": ("mean", "scale"), "logisticregression": ("coef", "intercept")}
        assert set(tuned.weights_) == {f"{step}.{name}" for step in names for name in names[step]}

    def test_steps(self):
        model = Pipeline([("first", StandardScaler()), ("last", Ridge())]).fit(X, NUMBER)
        names = {"first.mean", "first.scale", "last.coef", "last.intercept"}
        assert set(regressor(model).fit(X, NUMBER).weights_) == names

    def test_parameters_hold_numbers_of_the_model(self):
        model = ridge()
        weights = regressor(model, learning_rate_init=0.0, max_iter=1).fit(X, NUMBER).weights_
        assert_allclose(weights["ridge.coef"].ravel(), model[-1].coef_, rtol=1e-6)
        assert_allclose(weights["standardscaler.mean"], model[0].mean_, rtol=1e-6)
        assert_allclose(weights["standardscaler.scale"], model[0].scale_, rtol=1e-6)

    def test_equal_models_are_equal_files(self):
        files = [regressor(ridge(), max_iter=1).fit(X, NUMBER).to_onnx().SerializeToString() for _ in range(2)]
        assert files[0] == files[1]

    def test_matrices_stand_as_in_the_model(self):
        model = make_pipeline(PCA(2), Perceptron()).fit(X[OLD], THREE[OLD])
        weights = classifier(model, learning_rate_init=0.0, max_iter=1).fit(X, THREE).weights_
        assert_array_equal(weights["pca.components"], model[0].components_.astype(np.float32))
        assert_array_equal(weights["perceptron.coef"], model[1].coef_.astype(np.float32))

    def test_logarithms_are_named_so(self):
        model = GaussianNB().fit(X[OLD], THREE[OLD])
        weights = classifier(model, learning_rate_init=0.0, max_iter=1).fit(X, THREE).weights_
        assert_allclose(np.exp(weights["gaussiannb.log_class_prior"]).ravel(), model.class_prior_, rtol=1e-6)

    @pytest.mark.parametrize(
        ("pattern", "moves"), [("*.coef", {"coef"}), ("ridge.*", {"coef", "intercept"}), ("*.mean", {"mean"})]
    )
    def test_trainable_freezes_the_rest(self, pattern, moves):
        before = regressor(ridge(), learning_rate_init=0.0, max_iter=1).fit(X[NEW], NUMBER[NEW]).weights_
        tuned = regressor(ridge(), trainable=[pattern]).fit(X[NEW], NUMBER[NEW])
        changed = {name for name, array in tuned.weights_.items() if not np.array_equal(array, before[name])}
        assert {name.partition(".")[2] for name in changed} == moves
        given, back = ridge(), tuned.to_sklearn()
        assert ("coef" not in moves) == np.array_equal(back[-1].coef_, given[-1].coef_)
        assert ("mean" not in moves) == np.array_equal(back[0].mean_, given[0].mean_)
        assert_array_equal(back[0].scale_, given[0].scale_)

    def test_misspelt(self):
        with pytest.raises(ValueError, match="matches no parameter"):
            regressor(ridge(), trainable=["rigde.*"]).fit(X, NUMBER)

    def test_columns_of_two_classes_stay_tied(self):
        tuned = classifier(logistic()).fit(X[NEW], BINARY[NEW])
        assert tuned.weights_["logisticregression.coef"].size == 3
        assert_allclose(tuned.predict_proba(X).sum(axis=1), 1, rtol=1e-6)

    def test_no_intercept_stays_none(self):
        tuned = regressor(LinearRegression(fit_intercept=False).fit(X, NUMBER)).fit(X, NUMBER + 1)
        assert list(tuned.weights_) == ["linearregression.coef"]
        assert tuned.to_sklearn().intercept_ == 0

    def test_columns_that_a_scaler_drops_stay_dropped(self):
        model = make_pipeline(StandardScaler(with_mean=False), Ridge()).fit(X, NUMBER)
        tuned = regressor(model).fit(X, NUMBER + 1)
        assert set(tuned.weights_) == {"standardscaler.scale", "ridge.coef", "ridge.intercept"}
        assert_allclose(tuned.to_sklearn().predict(X), tuned.predict(X), rtol=1e-4, atol=1e-5)


class TestLabels:
    @pytest.mark.parametrize("names", [["no", "yes"], [3, 7], [False, True], ["b", "a"]])
    def test_labels_equal_those_of_the_model(self, names):
        y = np.array(names)[BINARY]
        model = logistic(y)
        tuned = classifier(model, max_iter=1, learning_rate_init=0.0).fit(X[NEW], y[NEW])
        assert_array_equal(tuned.classes_, model.classes_)
        assert tuned.classes_.dtype == model.classes_.dtype
        assert_array_equal(tuned.predict(X), model.predict(X))
        assert_allclose(tuned.predict_proba(X), model.predict_proba(X), atol=1e-6)

    def test_classes_missing_in_the_new_rows(self):
        model = logistic(THREE)
        few = THREE[NEW] != 2
        tuned = classifier(model).fit(X[NEW][few], THREE[NEW][few])
        assert_array_equal(tuned.classes_, [0, 1, 2])
        assert tuned.predict_proba(X).shape == (80, 3)

    def test_unknown_label(self):
        tuned = classifier(logistic())
        with pytest.raises(ValueError, match="5"):
            tuned.fit(X, np.where(BINARY, 5, 0))
        assert not hasattr(tuned, "classes_")

    def test_partial_fit_refuses_other_classes(self):
        tuned = classifier(logistic(THREE))
        with pytest.raises(ValueError, match=r"classes=\[0, 1\] are not those of the fitted model, \["):
            tuned.partial_fit(X[NEW], THREE[NEW], classes=[0, 1])
        assert not hasattr(tuned, "classes_")

    def test_partial_fit_needs_no_classes(self):
        tuned = classifier(logistic(THREE))
        tuned.partial_fit(X[NEW][:3], THREE[NEW][:3])
        assert_array_equal(tuned.classes_, [0, 1, 2])
        before = tuned.weights_
        tuned.partial_fit(X[NEW], THREE[NEW])
        assert not np.array_equal(before["logisticregression.coef"], tuned.weights_["logisticregression.coef"])


class TestLoss:
    def test_of_the_user_comes_first(self):
        tuned = regressor(PoissonRegressor().fit(X, POSITIVE), loss=losses.Gamma()).fit(X, POSITIVE)
        assert type(tuned._state.live.step.settings.loss) is losses.Gamma
        tuned = regressor(ridge(), loss="absolute_error").fit(X, NUMBER)
        assert type(tuned._state.live.step.settings.loss) is losses.AbsoluteError

    def test_is_that_of_the_fitted_probabilities(self):
        model = logistic(THREE)
        tuned = classifier(model, max_iter=1, learning_rate_init=0.0, batch_size=80).fit(X, THREE)
        p = model.predict_proba(X)[np.arange(80), THREE]
        assert tuned.loss_ == pytest.approx(-np.log(p).mean(), rel=1e-5)


class TestGoOn:
    @pytest.mark.long
    def test_warm_start(self):
        tuned = regressor(ridge(), warm_start=True).fit(X[NEW], NUMBER[NEW])
        tuned.fit(X[NEW], NUMBER[NEW])
        assert tuned.n_iter_ == 10
        again = regressor(ridge(), max_iter=10).fit(X[NEW], NUMBER[NEW])
        assert_array_equal(tuned.weights_["ridge.coef"], again.weights_["ridge.coef"])

    @pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
    def test_copies(self, copied):
        tuned = regressor(ridge(), warm_start=True).fit(X[NEW], NUMBER[NEW])
        twin = copied(tuned)
        assert_array_equal(twin.predict(X), tuned.predict(X))
        assert_array_equal(twin.to_sklearn(X).predict(X), tuned.to_sklearn().predict(X))
        tuned.fit(X[NEW], NUMBER[NEW])
        twin.fit(X[NEW], NUMBER[NEW])
        assert_array_equal(twin.predict(X), tuned.predict(X))

    @pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
    def test_pickles_hold_no_training_data(self, protocol):
        rows = X[NEW].astype(np.float64)
        data = pickle.dumps(regressor(ridge()).fit(rows, NUMBER[NEW]), protocol=protocol)
        assert not any(row.astype(kind).tobytes() in data for row in rows for kind in (np.float32, np.float64))

    def test_a_pickled_copy_asks_for_rows_to_compare_on(self):
        twin = pickle.loads(pickle.dumps(regressor(ridge()).fit(X[NEW], NUMBER[NEW])))
        with pytest.raises(ValueError, match=r"give some rows, to_sklearn\(X\)"):
            twin.to_sklearn()

    def test_clone_keeps_the_model_fitted(self):
        model = ridge()
        twin = clone(regressor(model, alpha=0.5, loss=losses.Huber()))
        assert twin.model is model
        assert twin.alpha == 0.5
        assert not hasattr(twin, "weights_")
        same = regressor(model, alpha=0.5, loss="huber").fit(X, NUMBER)
        assert_array_equal(twin.fit(X, NUMBER).predict(X), same.predict(X))

    def test_search(self):
        model = ridge()
        search = GridSearchCV(regressor(model), {"learning_rate_init": [0.0, 0.03]}, cv=2).fit(X[NEW], NUMBER[NEW] + 1)
        assert search.best_params_ == {"learning_rate_init": 0.03}
        assert search.best_estimator_.model is model

    def test_at_the_end_of_a_pipeline(self):
        scaled = StandardScaler().fit_transform(X)
        model = LogisticRegression().fit(scaled, BINARY)
        pipeline = make_pipeline(StandardScaler(), classifier(model)).fit(X, BINARY)
        assert pipeline.score(X, BINARY) > 0.9

    @pytest.mark.parametrize("scalers", [1, 2])
    def test_without_probabilities_at_the_end_of_pipelines(self, scalers):
        model = LinearSVC()
        for _ in range(scalers):
            model = make_pipeline(StandardScaler(), model)
        model.fit(X, BINARY)
        assert (classifier(model, learning_rate_init=1e-30).fit(X, BINARY).predict(X) == model.predict(X)).all()

    @pytest.mark.parametrize("wrap", [FrozenEstimator, lambda m: GridSearchCV(m, {"alpha": [1.0]}, cv=2)])
    def test_unwraps(self, wrap):
        model = wrap(Ridge().fit(X, NUMBER)).fit(X, NUMBER)
        tuned = regressor(model).fit(X, NUMBER + 1)
        assert set(tuned.weights_) == {"ridge.coef", "ridge.intercept"}
        back = tuned.to_sklearn()
        assert type(back) is type(model)
        assert_allclose(back.predict(X), tuned.predict(X), rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("engine", available_engines())
    def test_engines(self, engine):
        tuned = classifier(logistic(THREE), engine=engine).fit(X[NEW], THREE[NEW])
        auto = classifier(logistic(THREE)).fit(X[NEW], THREE[NEW])
        assert tuned.engine_ == engine
        assert_allclose(tuned.predict_proba(X), auto.predict_proba(X), atol=1e-5)

    def test_to_onnx(self):
        tuned = classifier(logistic(THREE)).fit(X[NEW], THREE[NEW])
        session = onnxruntime.InferenceSession(tuned.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
        label, probabilities = session.run(None, {session.get_inputs()[0].name: X})
        assert_array_equal(label, tuned.predict(X))
        assert_array_equal(probabilities, tuned.predict_proba(X))
        assert_allclose(tuned.to_sklearn().predict_proba(X), probabilities, atol=1e-5)


@pytest.mark.parametrize(
    "model", [Ridge(), DecisionTreeRegressor(max_depth=3), HistGradientBoostingRegressor(max_iter=2)], ids=repr
)
def test_given_model_is_never_changed(model):
    model = clone(model).fit(X[OLD], NUMBER[OLD])
    before, predicted = pickle.dumps(model), model.predict(X)
    tuned = regressor(model, learning_rate_init=0.1).fit(X[NEW], NUMBER[NEW] + 1)
    back = tuned.to_sklearn()
    assert pickle.dumps(model) == before
    assert_array_equal(model.predict(X), predicted)
    assert not np.allclose(back.predict(X), predicted, atol=1e-2)
    assert_allclose(back.predict(X), tuned.predict(X), rtol=1e-4, atol=1e-5)

"""Data that fitted models are trained on: columns, names of features, missing values."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.ensemble import (
    AdaBoostClassifier,
    HistGradientBoostingRegressor,
    StackingClassifier,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.linear_model import (
    LogisticRegression,
    Ridge,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OrdinalEncoder, PowerTransformer, RobustScaler, StandardScaler

from onnxtrain_sklearn import SGD
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.environment import available_engines
from tests.helpers.fitted_models import BINARY, NEW, NUMBER, OLD, THREE, X, classifier, regressor, ridge, rng

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


class TestFeatures:
    def test_count(self):
        with pytest.raises(ValueError, match="X has 2 features, but OrtGradientRegressor is expecting 3"):
            regressor(ridge()).fit(X[:, :2], NUMBER)

    def test_unknown_count(self):
        model = Ridge().fit(X, NUMBER)
        del model.n_features_in_
        with pytest.raises(ModelError, match="This Ridge has no n_features_in_"):
            regressor(model).fit(X, NUMBER)

    def test_names(self):
        frame = pd.DataFrame(X, columns=["a", "b", "c"])
        model = make_pipeline(StandardScaler(), Ridge()).fit(frame, NUMBER)
        tuned = regressor(model).fit(frame, NUMBER)
        assert_array_equal(tuned.feature_names_in_, ["a", "b", "c"])
        assert_allclose(tuned.to_sklearn().predict(frame), tuned.predict(frame), rtol=1e-4, atol=1e-5)
        with pytest.raises(ValueError, match="order"):
            regressor(model).fit(frame[["b", "a", "c"]], NUMBER)

    def test_columns_by_name(self):
        frame = pd.DataFrame(X, columns=["a", "b", "c"])
        columns = make_column_transformer((StandardScaler(), ["c", "a"]), (MinMaxScaler(), ["b"]))
        model = make_pipeline(columns, Ridge()).fit(frame, NUMBER)
        tuned = regressor(model, max_iter=1, learning_rate_init=0.0).fit(frame, NUMBER)
        assert_allclose(tuned.predict(frame), model.predict(frame), rtol=1e-4, atol=1e-5)
        assert set(tuned.weights_) >= {"columntransformer.standardscaler.mean", "ridge.coef"}

    @pytest.mark.slow
    @pytest.mark.thinned(by=lambda names: "names")
    @pytest.mark.parametrize("names", [["c", "a"], [False, True, True]], ids=str)
    def test_nested_columns_by_name(self, names):
        frame = pd.DataFrame(X, columns=["a", "b", "c"])
        steps = [make_pipeline(make_column_transformer((StandardScaler(), names), (MinMaxScaler(), ["a", "b"])), last)
                 for last in (LogisticRegression(), Ridge())]  # fmt: skip
        twice, pair = [[("p", step), ("q", clone(step))] for step in steps], np.c_[NUMBER, NUMBER**2]
        for model, y in (
            (CalibratedClassifierCV(steps[0], cv=2), BINARY),
            (StackingClassifier(twice[0], cv=2, passthrough=True), BINARY),
            (VotingClassifier(twice[0], voting="soft"), THREE),
        ):
            tuned = classifier(model.fit(frame, y), max_iter=1, learning_rate_init=0.0).fit(frame, y)
            assert_allclose(tuned.predict_proba(frame), model.predict_proba(frame), atol=1e-5)
            tuned = classifier(model).fit(frame, y)
            assert_allclose(tuned.to_sklearn().predict_proba(frame), tuned.predict_proba(frame), atol=1e-5)
            assert any(name.endswith("standardscaler.mean") for name in tuned.weights_)
        nested = make_column_transformer((steps[1][0], ["c", "a", "b"]), (StandardScaler(), ["b"]))
        for model, y in (
            (TransformedTargetRegressor(steps[1], transformer=StandardScaler()), NUMBER),
            (VotingRegressor(twice[1]), NUMBER),
            (make_pipeline(nested, Ridge()), pair),
        ):
            tuned = regressor(model.fit(frame, y), max_iter=1, learning_rate_init=0.0).fit(frame, y)
            assert_allclose(tuned.predict(frame), model.predict(frame), rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("ensemble", [
        VotingClassifier([("p", LogisticRegression()), ("q", LogisticRegression(C=0.1))], voting="soft"),
        CalibratedClassifierCV(LogisticRegression(), cv=2), AdaBoostClassifier(LogisticRegression(), n_estimators=3),
        StackingClassifier([("p", LogisticRegression()), ("q", LogisticRegression(C=0.1))], cv=2),
    ], ids=lambda ensemble: type(ensemble).__name__)  # fmt: skip
    def test_whole_numbers_before_ensembles(self, ensemble):
        rows = np.round(np.clip(X, -2, 2)).astype(int)
        model = make_pipeline(OrdinalEncoder(dtype=np.int64), clone(ensemble)).fit(rows, BINARY)
        tuned = classifier(model, max_iter=1, learning_rate_init=0.0).fit(rows, BINARY)
        assert_allclose(tuned.predict_proba(rows), model.predict_proba(rows), atol=1e-6)

    def test_missing_values(self):
        gaps = np.where(rng.random(X.shape) < 0.2, np.nan, X)
        model = HistGradientBoostingRegressor(max_iter=3).fit(gaps, NUMBER)
        tuned = regressor(model).fit(gaps, NUMBER + 1)
        assert tuned.loss_curve_[-1] < tuned.loss_curve_[0]
        assert_allclose(tuned.to_sklearn().predict(gaps), tuned.predict(gaps), rtol=1e-4, atol=1e-5)
        with pytest.raises(ValueError, match="NaN"):
            regressor(ridge()).fit(gaps, NUMBER)

    @pytest.mark.parametrize("engine", available_engines())
    @pytest.mark.parametrize("imputer", [SimpleImputer(), SimpleImputer(add_indicator=True), KNNImputer()], ids=repr)
    @pytest.mark.parametrize("scaler", [
        StandardScaler(), MinMaxScaler(), MinMaxScaler(clip=True), PowerTransformer(),
        PowerTransformer(method="box-cox"), make_pipeline(RobustScaler(), MinMaxScaler()),
    ], ids=lambda scaler: " ".join(repr(scaler).split()))  # fmt: skip
    def test_missing_values_are_scaled_before_they_are_imputed(self, scaler, imputer, engine):
        gaps = np.where(np.arange(X.size).reshape(X.shape) % 7 == 0, np.nan, np.abs(X) + 0.01)
        model = make_pipeline(clone(scaler), clone(imputer), Ridge()).fit(gaps, NUMBER)
        step = {"optimizer": SGD(momentum=0.0), "max_iter": 1, "batch_size": 80, "alpha": 0.0, "engine": engine}
        start = regressor(model, learning_rate_init=0.0, **step).fit(gaps, NUMBER)
        assert_allclose(start.predict(gaps), model.predict(gaps), rtol=1e-4, atol=1e-5)
        rate, target = 1e-5, NUMBER + 1
        moved = regressor(model, learning_rate_init=rate, **step).fit(gaps, target)
        moves = [(moved.weights_[name] - array).astype(float) for name, array in start.weights_.items()]
        assert all(move.any() for move in moves)
        before, after = (((tuned.predict(gaps) - target) ** 2).mean() for tuned in (start, moved))
        assert before - after == pytest.approx(sum((move**2).sum() for move in moves) / rate, rel=0.05)


GAPS = np.where(np.arange(3) == 1, np.float32(np.nan), X)


TAKE_NO_GAPS = {
    "behind a scaler": lambda: make_pipeline(StandardScaler(), LogisticRegression()),
    "passed through": lambda: make_pipeline(
        make_column_transformer((SimpleImputer(), [0]), remainder="passthrough"), LogisticRegression()
    ),
}


class TestMissingValues:
    @pytest.mark.parametrize("name", TAKE_NO_GAPS)
    def test_where_a_step_takes_none(self, name):
        model = TAKE_NO_GAPS[name]().fit(X[OLD], BINARY[OLD])
        tuned = classifier(model).fit(X[NEW], BINARY[NEW])
        for method in (tuned.predict, tuned.predict_proba, tuned.decision_function, model.predict):
            with pytest.raises(ValueError, match="contains NaN"):
                method(GAPS)
        before = tuned.weights_
        with pytest.raises(ValueError, match="contains NaN"):
            tuned.partial_fit(np.concatenate([X, GAPS]), np.concatenate([BINARY, BINARY]))
        assert all(np.array_equal(array, before[name]) for name, array in tuned.weights_.items())

    def test_imputed_columns_train_on_missing_values(self):
        columns = make_column_transformer((SimpleImputer(), [0, 1]), remainder="passthrough")
        model = make_pipeline(columns, LogisticRegression()).fit(X[OLD], BINARY[OLD])
        tuned = classifier(model).fit(GAPS[NEW], BINARY[NEW])
        assert np.isfinite(tuned.predict_proba(GAPS)).all()

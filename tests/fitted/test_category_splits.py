"""Histogram boosters that split by categories: predictions are those of scikit-learn, also of unknown categories."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.compose import make_column_transformer
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    VotingRegressor,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder

from onnxtrain_sklearn import OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.converted import still
from tests.helpers.environment import available_engines

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

N, OLD, NEW = 500, slice(0, 300), slice(300, None)
rng = np.random.default_rng(0)
KINDS = rng.choice(["red", "green", "blue", "grey", "pink"], N).astype(object)
SIZES = np.where(rng.random(N) < 0.2, None, rng.choice(["S", "M", "L", "XL"], N))
CODES = rng.choice([-3.0, 0.5, 1.0, 7.0, 9.0, 300.0], N)
CODES[rng.random(N) < 0.2] = np.nan
NUMBERS = rng.normal(size=(N, 2))
NUMBER = NUMBERS[:, 0] + 2.0 * np.isin(KINDS, ["red", "pink"]) + np.isin(SIZES, ["S", "L"]) - np.isin(CODES, [0.5, 9])
NUMBER -= 1.5 * np.isnan(CODES)
LABELS = np.array(["low", "middle", "top"])[np.digitize(NUMBER, [0.0, 1.5])]
FRAME = pd.DataFrame({"a": NUMBERS[:, 0], "kind": KINDS, "code": CODES, "b": NUMBERS[:, 1], "size": SIZES}).astype(
    {"kind": "category", "code": "category", "size": "category"}
)
MATRIX = np.column_stack([NUMBERS[:, 0], CODES, NUMBERS[:, 1], np.arange(N) % 7])
SMALL = {"max_iter": 8, "min_samples_leaf": 5}


def altered(frame):
    """Return the frame with unknown and missing categories, and missing numbers."""
    frame = frame.astype({"kind": object, "size": object, "code": float})
    frame.loc[frame.index[::3], "kind"] = "never seen"
    frame.loc[frame.index[1::3], "kind"] = np.nan
    frame.loc[frame.index[::4], "code"] = 12345.0
    frame.loc[frame.index[1::4], "code"] = np.nan
    frame.loc[frame.index[::5], "size"] = "XXL"
    frame.loc[frame.index[::6], ["a", "b"]] = np.nan
    return frame


def splits_by_category(model):
    return sum(int(tree.nodes["is_categorical"].sum()) for stage in model._predictors for tree in stage)


def regressor(X=FRAME, y=NUMBER, **parameters):
    return HistGradientBoostingRegressor(**{"categorical_features": "from_dtype"} | SMALL | parameters).fit(
        X[OLD], y[OLD]
    )


class TestTables:
    @pytest.mark.long
    def test_starts_trains_and_goes_back(self):
        model = regressor()
        assert splits_by_category(model) > 10
        tuned = still(model, FRAME[NEW], NUMBER[NEW])
        for X in (FRAME, altered(FRAME)):
            assert_allclose(tuned.predict(X), model.predict(X), rtol=1e-5, atol=1e-5)
        tuned = OrtGradientRegressor(model, learning_rate_init=0.01, max_iter=10, random_state=0)
        tuned.fit(FRAME[NEW], NUMBER[NEW] + 1)
        assert tuned.loss_ < np.mean((model.predict(FRAME[NEW]) - NUMBER[NEW] - 1) ** 2)
        assert_allclose(tuned.to_sklearn().predict(altered(FRAME)), tuned.predict(altered(FRAME)), rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("y", [LABELS, LABELS == "top"], ids=["three classes", "two classes"])
    def test_classes(self, y):
        model = HistGradientBoostingClassifier(**SMALL).fit(FRAME[OLD], y[OLD])
        assert splits_by_category(model) > 10
        tuned = still(model, FRAME[NEW], y[NEW])
        for X in (FRAME, altered(FRAME)):
            assert_allclose(tuned.predict_proba(X), model.predict_proba(X), atol=1e-5)
            assert_array_equal(tuned.predict(X), model.predict(X))

    @pytest.mark.parametrize("engine", available_engines())
    def test_engines(self, engine):
        model = regressor()
        tuned = OrtGradientRegressor(model, max_iter=2, engine=engine, learning_rate_init=0.0).fit(
            FRAME[NEW], NUMBER[NEW]
        )
        assert_allclose(tuned.predict(FRAME), model.predict(FRAME), rtol=1e-5, atol=1e-5)

    def test_text_alone(self):
        X = FRAME[["kind"]]
        model = regressor(X)
        tuned = still(model, X[NEW], NUMBER[NEW])
        assert_allclose(tuned.predict(altered(FRAME)[["kind"]]), model.predict(altered(FRAME)[["kind"]]), rtol=1e-5)

    def test_file(self):
        model = regressor()
        proto = still(model, FRAME[NEW], NUMBER[NEW]).to_onnx()
        session = onnxruntime.InferenceSession(proto.SerializeToString())
        X = altered(FRAME)
        feeds = {name: X[[name]].to_numpy().astype(np.float32) for name in ("a", "code", "b")}
        feeds |= {name: X[[name]].to_numpy().astype(str).astype(object) for name in ("kind", "size")}
        assert_allclose(session.run(None, feeds)[0].ravel(), model.predict(X), rtol=1e-5, atol=1e-5)

    def test_named_columns_of_text(self):
        X = FRAME.astype({"kind": object})[["a", "kind"]]
        model = regressor(X, categorical_features=["kind"])
        assert splits_by_category(model)
        assert_allclose(still(model, X[NEW], NUMBER[NEW]).predict(X), model.predict(X), rtol=1e-5, atol=1e-5)

    def test_text_nan_beside_missing_text(self):
        X = FRAME.astype({"size": object})[["a", "size"]]
        X.loc[X["size"] == "XL", "size"] = "nan"
        assert X["size"].isna().any()
        model = regressor(X, categorical_features=["size"])
        assert_allclose(still(model, X[NEW], NUMBER[NEW]).predict(X), model.predict(X), rtol=1e-5, atol=1e-5)

    def test_text_that_does_not_reach_it_first(self):
        every = make_column_transformer(("passthrough", ["a", "kind"]), verbose_feature_names_out=False)
        parts = {"max_iter": 2, "categorical_features": ["kind"]}
        boost = HistGradientBoostingRegressor(**parts)
        for model in (VotingRegressor([("a", boost)]), make_pipeline(every.set_output(transform="pandas"), boost)):
            X = FRAME[["a", "kind"]]
            with pytest.raises(ModelError, match="OrdinalEncoder encodes text, but is not the first"):
                still(model.fit(X[OLD], NUMBER[OLD]), X[NEW], NUMBER[NEW])


class TestMatrices:
    @pytest.mark.parametrize("chosen", [[1], [1, 3], [False, False, False, True]], ids=repr)
    def test_masks(self, chosen):
        """Scikit-learn puts the chosen columns before the others."""
        model = regressor(MATRIX, categorical_features=chosen)
        assert splits_by_category(model)
        X = MATRIX.copy()
        X[::3, 1], X[1::3, 3], X[::5, 3], X[::7, 0] = -77, 4000, np.nan, np.nan
        tuned = still(model, MATRIX[NEW], NUMBER[NEW])
        for rows in (MATRIX, X):
            assert_allclose(tuned.predict(rows), model.predict(rows), rtol=1e-5, atol=1e-5)

    def test_categories_that_are_never_split_by(self):
        X = np.column_stack([NUMBERS, np.arange(N) % 2])[:, [0, 2, 1]]
        model = regressor(X, NUMBERS[:, 0], categorical_features=[1], max_iter=1)
        assert not splits_by_category(model)
        assert_allclose(still(model, X[NEW], NUMBERS[NEW, 0]).predict(X), model.predict(X), rtol=1e-5, atol=1e-5)

    def test_many_categories(self):
        codes = np.arange(N * 8) % 250
        X, y = codes[:, None] / 3, np.sin(codes * 7.0)
        model = HistGradientBoostingRegressor(max_iter=20, categorical_features=[0], early_stopping=False).fit(X, y)
        assert_allclose(still(model, X[:250], y[:250]).predict(X), model.predict(X), rtol=1e-5, atol=1e-5)

    def test_missing_values_alone_on_one_side(self):
        """Neither was any value missing in the fit, nor is an unknown category like any other."""
        X = np.where(np.isnan(MATRIX), 5.0, MATRIX)
        model = regressor(X, categorical_features=[1, 3])
        rows = X.copy()
        rows[::2, 1], rows[1::2, 3] = np.nan, 99
        assert_allclose(still(model, X[NEW], NUMBER[NEW]).predict(rows), model.predict(rows), rtol=1e-5, atol=1e-5)

    def test_behind_an_encoder(self):
        encoder = make_column_transformer((OrdinalEncoder(), ["kind"]), ("passthrough", ["a", "b"]))
        X = FRAME[["a", "kind", "b"]]
        boost = HistGradientBoostingRegressor(**SMALL, categorical_features=[0])
        model = make_pipeline(encoder, boost).fit(X[OLD], NUMBER[OLD])
        assert splits_by_category(model[-1])
        assert_allclose(still(model, X[NEW], NUMBER[NEW]).predict(X), model.predict(X), rtol=1e-5, atol=1e-5)

    def test_categories_that_are_equal_as_float32(self):
        X = 2.0**25 + np.arange(N)[:, None] % 4
        model = HistGradientBoostingRegressor(max_iter=2, categorical_features=[0]).fit(X, X[:, 0] % 2)
        with pytest.raises(ModelError, match=r"column 0 of this HistGradientBoostingRegressor are equal as float32"):
            still(model, X, X[:, 0] % 2)


class TestThresholds:
    def test_numbers_of_the_data_stay_on_the_left(self):
        """More numbers than bins: some thresholds are numbers of the data."""
        X = np.random.default_rng(1).normal(size=(511, 3))
        model = HistGradientBoostingRegressor(max_iter=30, min_samples_leaf=5).fit(X, X[:, 0] + X[:, 1] * X[:, 2])
        thresholds = np.concatenate([tree.nodes["num_threshold"] for (tree,) in model._predictors])
        assert np.isin(thresholds, X).sum() > 10
        for rows in (X, np.random.default_rng(2).normal(size=X.shape)):
            assert_allclose(still(model, X, X[:, 0]).predict(rows), model.predict(rows), rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize(("left", "right"), [(6.42, 6.422), (0.7, 0.8), (1.0, 1 + 2.0**-23)])
    def test_halfway_between_two_numbers(self, left, right):
        """Decimals on the same grid and the neighbors themselves go where float64 sends them."""
        X = np.repeat([[left], [right]], 20, axis=0)
        model = HistGradientBoostingRegressor(max_iter=1, learning_rate=1.0).fit(X, np.repeat([0.0, 1.0], 20))
        numbers = np.array([[left], [round((left + right) / 2, 4)], [right]])
        expected = model.predict(numbers)
        assert_allclose(expected[[0, 2]], [0, 1], atol=1e-9)
        assert_allclose(still(model, X, X[:, 0]).predict(numbers), expected, atol=1e-6)

    def test_numbers_of_float32_are_exact(self):
        """Thresholds are halfway between neighbors, or numbers of the data."""
        numbers = np.unique(np.random.default_rng(0).normal(size=400).astype(np.float32))[:, None]
        numbers = np.concatenate([numbers, np.nextafter(numbers, np.float32(9))])
        y = np.random.default_rng(1).normal(size=len(numbers))
        settings = {"max_iter": 1, "learning_rate": 1.0, "min_samples_leaf": 1, "max_leaf_nodes": None}
        for rows in (numbers, numbers[::4]):
            model = HistGradientBoostingRegressor(**settings).fit(rows.astype(np.float64), y[: len(rows)])
            found = still(model, rows, y[: len(rows)]).predict(numbers)
            assert_allclose(found, model.predict(numbers), rtol=1e-5, atol=1e-6)

    def test_no_number_is_above_the_largest(self):
        X = np.where(np.arange(200) % 3 > 0, 1.0, np.nan)[:, None]
        y = np.isnan(X[:, 0]).astype(float)
        model = HistGradientBoostingRegressor(max_iter=3).fit(X, y)
        assert_allclose(still(model, X, y).predict(X), model.predict(X), rtol=1e-5)

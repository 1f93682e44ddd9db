"""Graphs with several inputs inside scikit-learn: rows of all inputs are split together, frames find their inputs."""

from __future__ import annotations

import functools
import pickle

import numpy as np
import onnx
import onnx.parser
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.ensemble import VotingRegressor
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    cross_val_predict,
    cross_val_score,
    cross_validate,
    learning_curve,
    train_test_split,
)
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import _safe_indexing

from onnxtrain_sklearn import Inputs, OrtGradientClassifier, OrtGradientRegressor

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

rng = np.random.default_rng(0)
LEFT, RIGHT, KIND = rng.normal(size=(60, 4)), rng.normal(size=(60, 2, 3)), rng.integers(0, 5, 60)
ARRAYS = {"left": LEFT, "right": RIGHT, "kind": KIND}
Y = LEFT[:, 0] - RIGHT[:, 1, 2] + KIND
SETTINGS = {"max_iter": 3, "learning_rate_init": 0.05, "random_state": 0}


def graph_of_three_inputs() -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> net (float[N,4] left, float[N,2,3] right, int64[N] kind) => '
        "(float[N,1] z) { a = MatMul(left, A) f = Flatten(right) b = MatMul(f, B) e = Gather(T, kind) "
        "s = Add(a, b) z = Add(s, e) }"
    )
    for name, shape in (("A", (4, 1)), ("B", (6, 1)), ("T", (5, 1))):
        array = np.linspace(-0.1, 0.1, shape[0], dtype=np.float32).reshape(shape)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def regressor_of_inputs(**parameters) -> OrtGradientRegressor:
    return OrtGradientRegressor(graph_of_three_inputs(), **SETTINGS | parameters)


def rows_of(arrays: dict[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    return {name: array[rows] for name, array in arrays.items()}


def frame() -> pd.DataFrame:
    columns = {f"left_{i}": LEFT[:, i] for i in range(4)}
    columns |= {f"right_{i}": RIGHT.reshape(60, 6)[:, i] for i in range(6)}
    return pd.DataFrame(columns | {"kind": KIND})


FORMS = {
    "inputs": lambda: Inputs(ARRAYS),
    "prefixes": frame,
    "prefixes out of order": lambda: frame()[sorted(frame().columns, reverse=True)],
    "points": lambda: frame().rename(columns=lambda c: c.replace("_", ".")),
    "two levels": lambda: frame().set_axis(
        pd.MultiIndex.from_tuples([(c.split("_")[0], c) for c in frame().columns]), axis=1
    ),
    "cells": lambda: pd.DataFrame({"left": list(LEFT), "right": list(RIGHT), "kind": KIND}),
    "lists": lambda: Inputs(
        frame().rename(columns={"left_0": "a", "left_1": "b", "kind": "k"}),
        {"left": ["a", "b", "left_2", "left_3"], "right": [f"right_{i}" for i in range(6)], "kind": "k"},
    ),
    "values of other kinds": lambda: Inputs(
        {"left": pd.DataFrame(LEFT), "right": RIGHT.tolist(), "kind": pd.Series(KIND)}
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_trains_and_predicts_as_the_dict(form):
    X, expected = FORMS[form](), regressor_of_inputs().fit(ARRAYS, Y)
    fitted = regressor_of_inputs().fit(X, Y)
    for name, array in expected.weights_.items():
        assert_array_equal(fitted.weights_[name], array)
    assert_array_equal(fitted.predict(X), expected.predict(ARRAYS))
    assert_array_equal(fitted.predict(_safe_indexing(X, [3, 1])), expected.predict(rows_of(ARRAYS, [3, 1])))
    assert_array_equal(fitted.predict(ARRAYS), expected.predict(ARRAYS))


@functools.cache
def scores_of_arrays() -> list[float]:
    splits = [(rows_of(ARRAYS, train), Y[train], rows_of(ARRAYS, test), Y[test]) for train, test in KFold(2).split(Y)]
    return [regressor_of_inputs().fit(X, y).score(X_test, y_test) for X, y, X_test, y_test in splits]


@pytest.mark.parametrize("form", FORMS)
def test_cross_validation_splits_the_rows_of_all_inputs(form):
    scores = cross_val_score(regressor_of_inputs(), FORMS[form](), Y, cv=KFold(2), error_score="raise")
    assert_allclose(scores, scores_of_arrays())


def test_searches_and_pipelines():
    pipeline = Pipeline([("keep", "passthrough"), ("same", FunctionTransformer()), ("net", regressor_of_inputs())])
    search = GridSearchCV(pipeline, {"net__alpha": [0.0, 1.0]}, cv=2, error_score="raise").fit(Inputs(ARRAYS), Y)
    expected = regressor_of_inputs(alpha=search.best_params_["net__alpha"]).fit(ARRAYS, Y)
    assert_array_equal(search.predict(Inputs(ARRAYS)), expected.predict(ARRAYS))
    assert pickle.loads(pickle.dumps(search)).predict(Inputs(ARRAYS)).shape == (60,)


@pytest.mark.exhaustive
def test_in_other_processes():
    alone = cross_val_predict(regressor_of_inputs(), Inputs(ARRAYS), Y, cv=2)
    assert_array_equal(cross_val_predict(regressor_of_inputs(), Inputs(ARRAYS), Y, cv=2, n_jobs=2), alone)


@pytest.mark.long
def test_the_rest_of_model_selection():
    X = Inputs(ARRAYS)
    assert (
        len(cross_validate(regressor_of_inputs(), X, Y, cv=2, params={"sample_weight": np.ones(60)})["test_score"]) == 2
    )
    sizes, _, _ = learning_curve(
        regressor_of_inputs(), X, Y, cv=2, train_sizes=[0.5, 1.0], shuffle=True, random_state=0
    )
    assert sizes.tolist() == [15, 30]
    vote = VotingRegressor([("a", regressor_of_inputs()), ("b", regressor_of_inputs(alpha=1.0))]).fit(X, Y)
    assert vote.predict(X).shape == (60,)
    split = train_test_split(X, Y, test_size=0.25, random_state=0)
    assert [len(part) for part in split] == [45, 15, 45, 15]
    fitted = regressor_of_inputs(early_stopping=True).fit(split[0], split[2], X_val=split[1], y_val=split[3])
    assert fitted.partial_fit is not None
    assert_allclose(fitted.validation_scores_[-1], fitted.best_validation_score_, atol=1)


def test_a_classifier():
    labels = np.array(["low", "high"])[(Y > 2).astype(int)]
    fitted = OrtGradientClassifier(graph_of_three_inputs(), **SETTINGS).fit(Inputs(ARRAYS), labels)
    assert fitted.predict_proba(frame()).dtype == np.float64
    single = Inputs(ARRAYS | {"left": LEFT.astype(np.float32)})
    assert fitted.predict_proba(single).dtype == np.float32
    assert fitted.partial_fit(frame(), labels).score(single, labels) >= 0


class TestInputs:
    def test_rows(self):
        X = Inputs(ARRAYS)
        assert (len(X), X.shape, X.ndim) == (60, (60, 3), 2)
        mask = KIND > 2
        for key in (slice(2, 9, 3), [4, 4, 1], np.array([1, 2]), mask, mask.tolist(), range(3), pd.Series(mask)):
            plain = list(key) if isinstance(key, range) else key
            for part in (X[key], X[key, ...]):
                assert_array_equal(part["left"], LEFT[plain])
                assert_array_equal(part["right"], RIGHT[plain])
        assert_array_equal(X[7]["right"], RIGHT[7])
        assert X[np.int64(-1)]["kind"] == KIND[-1]

    def test_sparse_matrices(self):
        X = Inputs({"a": sp.coo_matrix(LEFT), "b": KIND})
        assert sp.issparse(X[[1, 2]]["a"])
        assert_array_equal(X[[1, 2]]["a"].toarray(), LEFT[[1, 2]])

    def test_inputs_of_unequal_lengths_are_refused(self):
        with pytest.raises(ValueError, match=r"same number of rows, got .*'a': 60.*'b': 3"):
            Inputs({"a": LEFT, "b": [1, 2, 3]})
        with pytest.raises(ValueError, match="same number of rows"):
            Inputs({})
        with pytest.raises(TypeError, match=r"Inputs takes a mapping .*, got ndarray"):
            Inputs(LEFT)
        with pytest.raises(ValueError, match=r"no columns \['c'\]"):
            Inputs(frame(), {"left": ["left_0", "c"]})
        with pytest.raises(TypeError, match="columns= selects columns of a data frame"):
            Inputs(ARRAYS, {"left": "left"})
        with pytest.raises(ValueError, match="'a' must have a row for each sample"):
            Inputs({"a": 3})

    def test_inputs_refuse_use_as_one_array(self):
        with pytest.raises(TypeError, match="contains several arrays and cannot be converted to one"):
            np.asarray(Inputs(ARRAYS))
        with pytest.raises(TypeError, match="indexed by rows"):
            Inputs(ARRAYS)[:, 0]


AMBIGUOUS = {
    "a column of none": (frame().assign(weight=1.0), "column 'weight' belongs to none of them"),
    "no column": (frame().drop(columns="kind"), "for the input 'kind' there are no columns"),
    "both": (frame().assign(left=1.0), r"for the input 'left' there are both"),
}


@pytest.mark.parametrize("case", AMBIGUOUS)
def test_columns_that_do_not_tell_their_input(case):
    data, match = AMBIGUOUS[case]
    with pytest.raises(ValueError, match=f"{match}.*Inputs\\(frame"):
        regressor_of_inputs().fit(data, Y)


def test_a_column_of_two_inputs():
    model = graph_of_three_inputs()
    model.graph.input[1].name = model.graph.node[1].input[0] = "left_right"
    data = frame().rename(columns=lambda c: c.replace("right", "left_right"))
    with pytest.raises(ValueError, match="column 'left_right_0' belongs to 'left' and 'left_right'"):
        OrtGradientRegressor(model, **SETTINGS).fit(data, Y)
    left, right = ([c for c in data if c.startswith("left_right") == longer] for longer in (False, True))
    X = Inputs(data, {"left": [c for c in left if c != "kind"], "left_right": right, "kind": "kind"})
    expected = regressor_of_inputs().fit(ARRAYS, Y).predict(ARRAYS)
    assert_array_equal(OrtGradientRegressor(model, **SETTINGS).fit(X, Y).predict(X), expected)


def test_other_columns_than_at_fit_are_refused():
    fitted = regressor_of_inputs().fit(frame(), Y)
    assert fitted.n_features_in_ == 11
    assert fitted.feature_names_in_[0] == "left_0"
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(frame().rename(columns={"left_0": "left_9"}))


def test_single_array_for_several_inputs_is_refused_with_a_remedy():
    with pytest.raises(TypeError, match=r"3 inputs: 'left', 'right', 'kind'. .*Inputs\(dict\)"):
        regressor_of_inputs().fit(LEFT, Y)

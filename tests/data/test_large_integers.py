"""Integers that float32 cannot hold are told: identifiers would become equal without a word."""

from __future__ import annotations

import warnings

import numpy as np
import onnx.parser
import pandas as pd
import pytest
import scipy.sparse as sp

from onnxtrain_sklearn import Inputs, Linear, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import OnnxTrainWarning

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

LARGE = 2**24 + 1
X = np.arange(40).reshape(20, 2)
Y = np.arange(20) % 7


def with_large(value=LARGE, dtype=np.int64):
    data = X.astype(dtype)
    data[4, 1] = value
    return data


def fit_integers(data, y=Y, dtype=None):
    model = Linear() if dtype is None else double_graph()
    return OrtGradientRegressor(model, learning_rate_init=0.0, max_iter=1, random_state=0).fit(data, y)


def double_graph():

    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> net (double[N,2] X) => (double[N,1] z) { z = MatMul (X, W) }'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((2, 1)), "W"))
    return model


FORMS = {
    "array": (with_large, "X holds the integer 16777217 in column 1, which is rounded to 16777216 in float32"),
    "unsigned": (lambda: with_large(2**33 + 1, np.uint64), "X holds the integer 8589934593"),
    "negative": (lambda: with_large(-LARGE, np.int32), "X holds the integer -16777217 in column 1"),
    "list": (lambda: with_large().tolist(), "X holds the integer 16777217 in column 1"),
    "sparse": (lambda: sp.csr_matrix(with_large()), "X holds the integer 16777217"),
    "frame": (lambda: pd.DataFrame(with_large(), columns=["a", "id"]), "Column 'id' of X holds the integer 16777217"),
    "frame of several types": (
        lambda: pd.DataFrame({"a": X[:, 0] / 2, "id": with_large()[:, 1]}), "Column 'id' of X holds the integer",
    ),
    "nullable": (
        lambda: pd.DataFrame(with_large(), columns=["a", "id"]).astype("Int64"), "Column 'id' of X holds the integer",
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_integers_that_float32_rounds_warn(form):
    make, match = FORMS[form]
    with pytest.warns(OnnxTrainWarning, match=match):
        fit_integers(make())


def test_prediction_warns_of_rounded_integers():
    fitted = fit_integers(X)
    with pytest.warns(OnnxTrainWarning, match="16777217"):
        fitted.predict(with_large())


def test_dicts_and_inputs_by_name():
    for data in ({"X": with_large()}, Inputs({"X": with_large()})):
        with pytest.warns(OnnxTrainWarning, match=r"X\['X'\] holds the integer 16777217 in column 1"):
            OrtGradientRegressor(Linear().build(2, 1, 0), max_iter=1).fit(data, Y)


def test_targets():
    with pytest.warns(OnnxTrainWarning, match="y holds the integer 16777217, which is rounded to 16777216"):
        fit_integers(X, Y + LARGE)


@pytest.mark.parametrize("value", [2**24, -(2**24), 2**30])
def test_integers_that_float32_holds_do_not_warn(value):
    with warnings.catch_warnings():
        warnings.simplefilter("error", OnnxTrainWarning)
        fit_integers(with_large(value))
        fit_integers(with_large().astype(float))
        fit_integers(X, np.where(Y == 3, value, 0))


def test_a_float64_graph_holds_more():
    with warnings.catch_warnings():
        warnings.simplefilter("error", OnnxTrainWarning)
        fit_integers(with_large(2**53), Y + LARGE, dtype="double")
    with pytest.warns(OnnxTrainWarning, match="9007199254740993 in column 1, which .* in float64"):
        fit_integers(with_large(2**53 + 1), dtype="double")

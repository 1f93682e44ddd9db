"""Raw tables: which columns are numbers, which categories, what is missing, and what is refused."""

from __future__ import annotations

import datetime
from functools import partial

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import BaseEstimator

from onnxtrain_sklearn import RealMLPRegressor
from onnxtrain_sklearn._data.inputs import warn_of_texts
from onnxtrain_sklearn._recipes import raw_table
from onnxtrain_sklearn._recipes.raw_table import categorical_columns, read_table
from onnxtrain_sklearn.exceptions import OnnxTrainWarning


def read(X, estimator=None):
    return read_table(estimator or BaseEstimator(), X, reset=estimator is None)


FRAME = pd.DataFrame(
    {
        "float": [1.5, np.nan, 3.0],
        "int": [1, 2, 3],
        "nullable": pd.array([1, None, 3], dtype="Int64"),
        "object numbers": np.array([1, None, 2.5], dtype=object),
        "bool": [True, False, True],
        "nullable bool": pd.array([True, None, False], dtype="boolean"),
        "text": np.array(["a", None, "b"], dtype=object),
        "string": pd.array(["a", None, "b"], dtype="string"),
        "category": pd.Categorical(["a", None, "b"]),
        "category of numbers": pd.Categorical([30, None, 10]),
    }
)


@pytest.mark.parametrize(
    ("name", "categorical", "values"),
    [
        ("float", False, [1.5, None, 3.0]),
        ("int", False, [1.0, 2.0, 3.0]),
        ("nullable", False, [1.0, None, 3.0]),
        ("object numbers", False, [1.0, None, 2.5]),
        ("bool", True, [1.0, 0.0, 1.0]),
        ("nullable bool", True, [1.0, None, 0.0]),
        ("text", True, ["a", None, "b"]),
        ("string", True, ["a", None, "b"]),
        ("category", True, ["a", None, "b"]),
        ("category of numbers", True, [30.0, None, 10.0]),
    ],
)
def test_column_of_a_frame_is_read_by_its_type(name, categorical, values):
    table = read(FRAME[[name]])
    assert table.names == (name,)
    assert table.is_categorical == (categorical,)
    found = table.columns[0].tolist()
    assert [None if value != value else value for value in found] == values


def test_object_arrays_are_read_by_column():
    assert read(np.eye(3)).is_categorical == (False, False, False)
    table = read(np.array([[1, "a"], [None, "b"]], dtype=object))
    assert table.names == ("x0", "x1")
    assert table.is_categorical == (False, True)
    np.testing.assert_array_equal(table.columns[0], [1.0, np.nan])


@pytest.mark.parametrize("chosen", [["b"], [1], [-1], [False, True], np.array([False, True])])
def test_categorical_features_by_name_index_or_mask(chosen):
    table = read(pd.DataFrame({"a": [1, 2], "b": [3, 4]}))
    assert categorical_columns(table, chosen) == (False, True)


def test_categorical_features_none_means_numbers():
    table = read(pd.DataFrame({"a": [True, False], "b": pd.Categorical([3, 4])}))
    assert categorical_columns(table, None) == (False, False)
    assert categorical_columns(table, "from_dtype") == (True, True)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ("dtype", "must be 'from_dtype', a list or None"),
        (["c"], "names 'c', which is not a column"),
        ([2], "names column 2, but X has 2"),
        ([True], "mask of 1 columns, but X has 2"),
        ([0], "could not convert string to float: column 'b'"),
    ],
)
def test_categorical_features_that_do_not_fit(chosen, message):
    table = read(pd.DataFrame({"a": [1, 2], "b": ["u", "v"]}))
    with pytest.raises(ValueError, match=message):
        categorical_columns(table, chosen)


@pytest.mark.parametrize(
    ("X", "error", "message"),
    [
        (pd.DataFrame({"a": pd.to_timedelta([1])}), TypeError, "holds durations"),
        (pd.DataFrame({"a": [1j]}), TypeError, "complex"),
        (np.array([[1j]]), ValueError, "Complex data not supported"),
        (pd.DataFrame({"a": [{}]}), TypeError, "argument must be a string or a real number: column 'a' of X holds a d"),
        (pd.DataFrame({"a": [[1, 2], [3, 4]]}), TypeError, "holds a list"),
        (
            pd.DataFrame({"a": [datetime.date(2024, 1, 1), 1.0]}),
            TypeError,
            "holds a date. Give a column of dates alone",
        ),
        (
            pd.DataFrame({"a": pd.period_range("2024", periods=1)}),
            TypeError,
            "holds a Period. Give a column of dates alone",
        ),
        (
            pd.DataFrame({"a": pd.cut([1.0, 2.0], 2)}),
            TypeError,
            r"holds a Interval. Convert the column to text, by .astyp",
        ),
        (pd.DataFrame({"a": [1 + 2j, "b"]}), TypeError, "holds a complex. Convert the column to text"),
        (pd.DataFrame({"a": [np.inf]}), ValueError, "contains infinity .* 'a'"),
        (np.array([[1e39]]), ValueError, "contains infinity"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), ValueError, "several columns named 'a'"),
        (pd.DataFrame({"a": []}), ValueError, "0 sample"),
        (pd.DataFrame(index=[0]), ValueError, "0 feature"),
        (sp.eye(3), TypeError, "Sparse data was passed"),
    ],
)
def test_refused(X, error, message):
    with pytest.raises(error, match=message):
        read(X)


def test_integers_that_float32_rounds_give_a_warning():
    with pytest.warns(OnnxTrainWarning, match="Column 'id' of X holds the integer 16777217"):
        read(pd.DataFrame({"id": [2**24 + 1]}))
    with pytest.warns(OnnxTrainWarning, match="16777217"):
        read(np.array([[2**24 + 1]]))


def test_numbers_that_float32_does_not_tell_apart_give_a_warning():
    y = np.random.default_rng(0).normal(size=100)
    quick = RealMLPRegressor("td-s", hidden_layer_sizes=4, max_iter=1)
    for X, name in ((pd.DataFrame({"time": 1e9 + y}), "time"), (np.column_stack([y, 1e9 + y]), "x1")):
        with pytest.warns(OnnxTrainWarning, match=f"'{name}' of X holds numbers near 1e.09 that are about 0.96 apart"):
            quick.fit(X, y)
    quick.predict(np.full((2, 2), 1e9 + y[:2]))  # two rows tell nothing about the column
    far = {
        "mostly 0": np.where(y > 2, 1e9, 0.1),
        "constant": np.full(100, 1e9 + 0.1),
        "near": 1e5 + y,
        "int": 1e6 + y // 1,
        "float32": (1e6 + y).astype(np.float32),
        "rounded": np.where(y > 0, 0.1 + 0.2, 0.3),
    }
    quick.fit(pd.DataFrame(far), y)


@pytest.mark.parametrize("dtype", [str, "string", "category", object])
def test_texts_are_not_looked_at_one_by_one(dtype, monkeypatch):
    """Large tables of text would take most of their time in functions of Python."""
    looked = []
    monkeypatch.setattr(raw_table, "is_missing", lambda value: looked.append(value) or value != value or value is None)
    texts = ["a", "b", "c", "d"]
    assert read(pd.DataFrame({"text": pd.Series(texts, dtype=dtype)})).columns[0].tolist() == texts
    assert looked == []


def test_a_column_with_an_empty_name_gets_one_in_the_graph():
    frame = pd.DataFrame({"": np.arange(20.0), "text": ["a", "b"] * 10})
    regressor = RealMLPRegressor("td-s", hidden_layer_sizes=4, max_iter=1).fit(frame, frame[""])
    assert regressor.predict(frame).shape == (20,)
    assert [value.name for value in regressor.to_onnx().graph.input] == ["x0", "text"]


def test_columns_of_other_names_are_refused():
    estimator = BaseEstimator()
    read_table(estimator, FRAME[["int", "text"]], reset=True)
    with pytest.raises(ValueError, match="feature names"):
        read(FRAME[["text", "int"]], estimator)


DAYS = {
    "day": [f"2024-01-{i % 28 + 1:02d}" for i in range(100)],
    "time": [f"{i % 28 + 1}.3.2024 12:30" for i in range(100)],
    "American": [f"3/{i % 28 + 1}/24" for i in range(99)] + [None],
}
NO_DAYS = {
    "version": ["1.2.10", "1.2.11"] * 50,
    "city": ["Bonn", "2024-01-01"] * 50,
    "gone": np.array([None] * 100, object),
}


@pytest.mark.parametrize("convert", [str, "category", object])
@pytest.mark.parametrize("name", DAYS)
def test_columns_of_dates_give_a_warning(name, convert):
    frame = pd.DataFrame({name: pd.Series(DAYS[name], dtype=convert), "x": np.arange(100)})
    with pytest.warns(OnnxTrainWarning, match=f"Column '{name}' holds dates, which are trained on as texts: .* leave"):
        RealMLPRegressor("td-s", hidden_layer_sizes=4, max_iter=1).fit(frame, np.arange(100.0))


def test_columns_that_name_the_rows_give_a_warning(tmp_path):
    frame = pd.DataFrame({"user": [f"u{i // 2}" for i in range(100)], "ticket": [f"t{i}" for i in range(100)]})
    for use in (RealMLPRegressor.fit, partial(RealMLPRegressor.export_training, folder=tmp_path / "f")):
        with pytest.warns(OnnxTrainWarning) as told:
            use(RealMLPRegressor("td-s", hidden_layer_sizes=4, max_iter=1), X=frame, y=np.arange(100.0))
        (message,) = [str(one.message) for one in told]
        assert message.startswith("Column 'ticket' has 100 different texts in 100 rows; if they identify the rows,")


CENTS = [f"{i / 100:.2f}" for i in range(100)]
NUMBERS_AS_TEXTS = {
    "marked": ([*CENTS[1:], "?"], "'0.01' is a number, '[?]' is not"),
    "money": ([f"${1000 * i:,}" for i in range(100)], "such as '[$]0'"),
    "percent": ([f"{text}%" for text in CENTS], "such as '0.00%'"),
    "comma": ([text.replace(".", ",") for text in CENTS], "such as '0,00'"),
    "signed": ([f"-{text}e-3" for text in CENTS], "such as '-0.00e-3'"),
    "whole": ([*map(str, range(1, 50)), *["unknown", None] * 25, "7"], "'1' is a number, 'unknown' is not"),
}


@pytest.mark.parametrize("name", NUMBERS_AS_TEXTS)
def test_numbers_among_texts_give_a_warning(name):
    texts, examples = NUMBERS_AS_TEXTS[name]
    with pytest.warns(OnnxTrainWarning, match=f"^Column '{name}' holds numbers as texts, .* categories: {examples}[.]"):
        warn_of_texts(name, [text for text in texts if text is not None], 1000)


def test_numbers_in_a_column_of_categories_are_codes():
    codes = [*map(str, range(100, 195)), "V10", "V57", "V58", "E11", "E12"]
    frame = pd.DataFrame({"text": [*codes] * 3, "declared": pd.Categorical([*codes] * 3)})
    with pytest.warns(OnnxTrainWarning, match="'text' holds numbers as texts, .* unless they are codes") as told:
        RealMLPRegressor("td-s", hidden_layer_sizes=4, max_iter=1).fit(frame, np.arange(300.0))
    assert len(told) == 1


@pytest.mark.parametrize(
    "texts",
    [
        [f"{i:05d}" for i in range(100)],
        [*(f"0{i}" for i in range(50)), "unknown"],
        [str(i) for i in range(100)],
        [f"10.0.0.{i}" for i in range(100)],
        [f"A{i}" for i in range(50)],
        [f"{i}+" for i in range(50)],
        CENTS[:20],
    ],
)
def test_codes_and_few_numbers_give_none(texts):
    warn_of_texts("code", texts, 1000)


def test_other_texts_and_columns_that_are_named_give_none():
    regressor = RealMLPRegressor("td-s", hidden_layer_sizes=4, max_iter=1)
    regressor.fit(pd.DataFrame(NO_DAYS), np.arange(100.0))
    regressor.set_params(categorical_features=list(DAYS)).fit(pd.DataFrame(DAYS), np.arange(100.0))

"""Data that could be read as something else are refused: shapes, times, missing targets, labels that mean none."""

from __future__ import annotations

import datetime

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from onnxtrain_sklearn import Inputs, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn._data.columns import Column, shaped
from onnxtrain_sklearn._data.frames import require_no_times
from onnxtrain_sklearn._graph.trainable import TensorSpec

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 3)).astype(np.float32)
IMAGE = TensorSpec("image", np.dtype(np.float32), (None, 3, 4, 5))


@pytest.mark.parametrize(
    ("shape", "advice"),
    [
        ((4, 5, 3), r"Channels come first in it: give X.transpose\(0, 3, 1, 2\)"),
        ((5, 4, 3), r"Its axes have another order: give X.transpose\(0, 3, 2, 1\)"),
        ((12, 5), r"Only flat rows, \(n, 60\), .*give X.reshape\(len\(X\), 3, 4, 5\)"),
        ((1, 3, 4, 5), r"Only flat rows, \(n, 60\)"),
        ((3, 4, 6), r"takes rows of shape \(3, 4, 5\)\.$"),
    ],
)
def test_only_flat_rows_are_given_the_shape_of_the_input(shape, advice):
    images = RNG.normal(size=(2, *shape)).astype(np.float32)
    with pytest.raises(ValueError, match=advice):
        shaped(images, IMAGE)
    if "transpose" in advice:
        moved = images.transpose((0, 3, 1, 2) if shape == (4, 5, 3) else (0, 3, 2, 1))
        assert_array_equal(shaped(moved, IMAGE), moved)
    flat = RNG.normal(size=(2, 60)).astype(np.float32)
    assert Column(shaped(flat, IMAGE), IMAGE.dtype).shape == (2, 3, 4, 5)
    assert_array_equal(shaped(flat, IMAGE)[1].ravel(), flat[1])


def test_rows_of_several_axes_are_not_made_flat():
    with pytest.raises(ValueError, match=r"give X.reshape\(len\(X\), 6\)"):
        shaped(np.zeros((4, 2, 3), np.float32), TensorSpec("X", np.dtype(np.float32), (None, 6)))


class Temporal:
    """A type of polars, which is no type of NumPy."""

    def is_temporal(self):
        return True

    def __str__(self):
        return "Date"


class Series:
    dtype = Temporal()

    def __array__(self, dtype=None, copy=None):
        return np.arange(8)


class PolarsLike(dict):
    columns = property(list)


def times():
    pd = pytest.importorskip("pandas")
    day, moment = datetime.date(2020, 1, 1), np.datetime64("2020-01-01")
    columns = {
        "dates": [day] * 8,
        "times": [datetime.time(3)] * 8,
        "datetimes": pd.to_datetime([moment] * 8),
        "zones": pd.to_datetime([moment] * 8).tz_localize("UTC"),
        "durations": pd.to_timedelta(range(8), "s"),
        "periods": pd.period_range("2020", periods=8, freq="M"),
        "objects": np.array([np.timedelta64(3, "D"), *[1.0] * 7], object),
    }
    frames = {name: pd.DataFrame({"a": np.arange(8.0), "when": column}) for name, column in columns.items()}
    arrays = {"array": np.full((8, 3), moment), "cells": np.full((8, 3), np.timedelta64(1, "D"), object),
              "lists": [[np.timedelta64(1, "D")] * 3] * 8}  # fmt: skip
    return frames | arrays | {"polars": PolarsLike(a=X[:, 0], when=Series())}


def test_times_are_refused_in_every_frame():
    for name, data in times().items():
        with pytest.raises(TypeError, match=r"(Column 'when' of )?X holds times \(.+\); give numbers made of them"):
            require_no_times(data)
        if name != "polars":
            with pytest.raises(TypeError, match="holds times"):
                OrtGradientRegressor(max_iter=1).fit(data, np.arange(8.0))
    with pytest.raises(TypeError, match=r"The input 'when' holds times"):
        Inputs({"when": times()["array"], "x": X})


def test_times_of_tables_of_arrow_are_refused():
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("pandas")
    when = [datetime.date(2020, 1, 1)] * 8
    for kind in (pa.date32(), pa.timestamp("us")):
        table = pa.table({"a": X[:, 0], "when": pa.array(when, kind)})
        with pytest.raises(TypeError, match=r"Column 'when' of X holds times"):
            OrtGradientRegressor(max_iter=1).fit(table, np.arange(8.0))


MISSING = {
    "None": [*range(7), None],
    "NaN": np.array([*range(7), np.nan]),
    "texts": np.array([*map(str, range(7)), "nan"]),
    "objects": np.array([*range(7), np.nan], object),
    "several": [[1.0, 2.0]] * 7 + [[None, 2.0]],
}


@pytest.mark.parametrize("kind", MISSING)
def test_missing_targets_are_nan_as_scikit_learn_says(kind):
    net = OrtGradientRegressor(max_iter=1, random_state=0)
    with pytest.raises(ValueError, match="Input y contains NaN"):
        net.fit(X, MISSING[kind])
    assert not hasattr(net, "n_iter_")
    if kind == "texts":  # a label like others
        return
    with pytest.raises(ValueError, match="Input y contains NaN"):
        OrtGradientClassifier(max_iter=1).fit(X, MISSING[kind])


def test_missing_values_of_pandas_are_missing_targets():
    pd = pytest.importorskip("pandas")
    for y in (pd.Series([1, None] * 4, dtype="Int64"), pd.Series([1.5, pd.NA] * 4, dtype=object)):
        for estimator in (OrtGradientRegressor(), OrtGradientClassifier()):
            with pytest.raises(ValueError, match="Input y contains NaN"):
                estimator.fit(X, y)

"""Data that could be read as something else are refused: shapes, times, missing targets, labels that mean none."""

from __future__ import annotations

import datetime

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import LinearRegression

from onnxtrain_sklearn import Inputs, OrtGradientClassifier, OrtGradientRegressor
from tests.helpers.graphs import model
from tests.helpers.training import quietly

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 3)).astype(np.float32)
IMAGE = model(
    "F = Flatten(image) S = ReduceMean <axes = [1]> (F) Y = MatMul(S, W)",
    x="float[N, 3, 4, 5] image",
    weights="float[1, 1] W = {2}",
    opset=17,
)


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
    fitted = OrtGradientRegressor(IMAGE, learning_rate_init=0.0, max_iter=1)
    with pytest.raises(ValueError, match=advice):
        fitted.fit(images, np.zeros(2))
    flat = RNG.normal(size=(2, 60)).astype(np.float32)
    quietly(fitted.fit, flat, np.zeros(2))
    if images.size != flat.size:
        advice = "X has 72 features, but OrtGradientRegressor is expecting 60"
    with pytest.raises(ValueError, match=advice):
        fitted.predict(images)
    given = [flat, flat.reshape(2, 3, 4, 5)]
    if "transpose" in advice:
        given.append(images.transpose((0, 3, 1, 2) if shape == (4, 5, 3) else (0, 3, 2, 1)))
    for rows in given:
        assert_allclose(fitted.predict(rows), 2 * rows.reshape(2, 60).mean(axis=1), rtol=1e-5, atol=1e-6)


def test_rows_of_several_axes_are_not_made_flat():
    net = model(x="float[N, 6] X", weights="float[6, 1] W = {1, 2, 3, 4, 5, 6}")
    with pytest.raises(ValueError, match=r"give X.reshape\(len\(X\), 6\)"):
        OrtGradientRegressor(net).fit(Inputs({"X": np.zeros((4, 2, 3), np.float32)}), np.zeros(4))


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


class PolarsLike:
    """A frame that gives its columns by name, and an array of numbers."""

    columns, shape = ("a", "when"), (8, 2)

    def __len__(self):
        return 8

    def __getitem__(self, name):
        return {"a": X[:, 0], "when": Series()}[name]

    def __array__(self, dtype=None, copy=None):
        return np.zeros(self.shape, dtype)


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
    return frames | arrays | {"polars": PolarsLike()}


def test_times_are_refused_in_every_frame():
    for data in times().values():
        with pytest.raises(TypeError, match=r"(Column 'when' of )?X holds times \(.+\); give numbers made of them"):
            OrtGradientRegressor(max_iter=1).fit(data, np.arange(8.0))
    with pytest.raises(TypeError, match=r"The input 'when' holds times"):
        Inputs({"when": times()["array"], "x": X})


MOMENT = datetime.datetime(2020, 1, 1, 3)
TIMES = {
    "date": datetime.date(2020, 1, 1),
    "moment": MOMENT,
    "zone": MOMENT.replace(tzinfo=datetime.timezone.utc),
    "span": datetime.timedelta(hours=3),
    "time": datetime.time(3),
}


def frames_of(package, columns):
    pytest.importorskip("pandas", reason="a table of Arrow becomes one of pandas")
    module = pytest.importorskip(package, reason=f"the columns are those of {package} itself")
    return module.table(columns) if package == "pyarrow" else module.DataFrame(columns)


@pytest.mark.parametrize("package", ["pyarrow", "polars"])
@pytest.mark.parametrize("kind", TIMES)
def test_times_of_arrow_and_polars_are_refused(kind, package):
    for last in (TIMES[kind], None):
        frame = frames_of(package, {"a": X[:, 0], "when": [TIMES[kind]] * 7 + [last]})
        net = OrtGradientRegressor(max_iter=1)
        with pytest.raises(TypeError, match=r"Column 'when' of X holds times"):
            net.fit(frame, np.arange(8.0))
        assert not hasattr(net, "n_iter_")
        with pytest.raises(TypeError, match=r"Column 'when' of X_val holds times"):
            net.fit(X[:, :2], np.arange(8.0), X_val=frame, y_val=np.arange(8.0))
        with pytest.raises(ValueError, match=r"y holds times|y must hold numbers|Input y contains NaN"):
            net.fit(X, frame["when"])


@pytest.mark.parametrize("package", ["pyarrow", "polars"])
def test_numbers_of_arrow_and_polars_are_those_of_arrays(package):
    settings = {"max_iter": 2, "random_state": 0}
    frame = frames_of(package, {"a": X[:, 0], "b": X[:, 1]})
    ours = quietly(OrtGradientRegressor(**settings).fit, frame, frame["a"])
    theirs = quietly(OrtGradientRegressor(**settings).fit, X[:, :2], X[:, 0])
    assert_array_equal(ours.predict(frame), theirs.predict(X[:, :2]))


MISSING = {
    "None": [*range(7), None],
    "NaN": np.array([*range(7), np.nan]),
    "texts": np.array([*map(str, range(7)), "nan"]),
    "objects": np.array([*range(7), np.nan], object),
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


@pytest.mark.parametrize("kind", MISSING)
@pytest.mark.parametrize("part", ["val", "old"])
def test_missing_targets_of_later_rows_give_same_error(kind, part):
    net = OrtGradientRegressor(LinearRegression().fit(X, X[:, 0]))  # is fine-tuned, which takes old rows
    y = np.arange(8.0)
    with pytest.raises(ValueError, match=f"Input y_{part} contains NaN"):
        net.fit(X, y, **{f"X_{part}": X, f"y_{part}": MISSING[kind]})
    assert not hasattr(net, "n_iter_")


def test_missing_labels_of_validation_data():
    labels = np.array([0, 1] * 4)
    for missing in (None, np.nan):
        y = labels.astype(object)
        y[3] = missing
        with pytest.raises(ValueError, match=r"Input y_val contains NaN.*ignore_label=float\('nan'\)"):
            OrtGradientClassifier(max_iter=1).fit(X, labels, X_val=X, y_val=y)
        net = OrtGradientClassifier(max_iter=1, ignore_label=float("nan"))  # what is advised works
        quietly(net.fit, X, labels, X_val=X, y_val=y)
        kept = np.arange(8) != 3
        assert net.validation_scores_[-1] == (net.predict(X) == labels)[kept].mean()
    with pytest.raises(ValueError, match=r"y_val contains labels that are not among the classes: .*'nan'"):
        OrtGradientClassifier(max_iter=1).fit(X, labels.astype(str), X_val=X, y_val=["nan", *labels[1:].astype(str)])


def test_missing_values_of_pandas_are_missing_targets():
    pd = pytest.importorskip("pandas")
    for y in (pd.Series([1, None] * 4, dtype="Int64"), pd.Series([1.5, pd.NA] * 4, dtype=object)):
        for estimator in (OrtGradientRegressor(), OrtGradientClassifier()):
            with pytest.raises(ValueError, match="Input y contains NaN"):
                estimator.fit(X, y)

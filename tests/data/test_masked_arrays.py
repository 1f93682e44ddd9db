"""Masked arrays, whose masks NumPy and scikit-learn drop without a word, and times, which they count."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from onnxtrain_sklearn import (
    MLP,
    Inputs,
    OrtGradientClassifier,
    OrtGradientRegressor,
    RealMLPClassifier,
    RealMLPRegressor,
)

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X = np.random.default_rng(0).normal(size=(40, 2))
Y = np.arange(40) % 2
HIDDEN = np.ma.masked_array(X, mask=X > 1)
BOTH = [OrtGradientClassifier(MLP((4,)), max_iter=1), RealMLPClassifier(n_ensembles=1, max_iter=1)]


@pytest.mark.parametrize(
    "rows", [HIDDEN, HIDDEN.astype(np.float32), np.ma.masked_array((X * 9).astype(int), mask=X > 1)]
)
def test_hidden_numbers_are_missing(rows):
    filled = rows.astype(rows.dtype if rows.dtype.kind == "f" else float).filled(np.nan)
    settings = {"variant": "td", "max_iter": 1, "random_state": 0, "hidden_layer_sizes": 8, "n_ensembles": 1}
    expected = RealMLPRegressor(**settings).fit(filled, Y).predict(filled)
    trained = RealMLPRegressor(**settings).fit(rows, Y)
    assert_array_equal(trained.predict(rows), expected)
    assert not np.array_equal(trained.predict(rows.data), expected)


def test_hidden_text_is_missing():
    texts = np.ma.masked_array(np.array([["a", "b"], ["b", "a"]] * 20, object), mask=X > 1)
    trained = RealMLPClassifier(n_ensembles=1, max_iter=1, random_state=0).fit(texts, Y)
    assert_array_equal(trained.predict_proba(texts), trained.predict_proba(texts.filled(None)))


def test_masked_values_are_refused_and_estimator_unchanged():
    trained = OrtGradientClassifier(MLP((4,)), max_iter=1).fit(np.ma.masked_array(X, mask=False), Y)
    before = dict(vars(trained))
    for call in (trained.fit, trained.partial_fit):
        with pytest.raises(ValueError, match="contains NaN"):
            call(HIDDEN, Y)
    with pytest.raises(ValueError, match="contains NaN"):
        trained.predict(HIDDEN)
    assert vars(trained) == before


@pytest.mark.parametrize(
    "estimator", [*BOTH, OrtGradientRegressor(MLP((4,)), max_iter=1), RealMLPRegressor(n_ensembles=1, max_iter=1)]
)
def test_hidden_targets_and_weights_are_refused(estimator):
    mask = np.arange(40) < 3
    with pytest.raises(ValueError, match="y is a masked array that hides 3 of 40 values: leave out"):
        estimator.fit(X, np.ma.masked_array(Y, mask=mask))
    with pytest.raises(ValueError, match="sample_weight is a masked array that hides 3 of 40"):
        estimator.fit(X, Y, sample_weight=np.ma.masked_array(np.ones(40), mask=mask))
    assert not hasattr(estimator, "n_iter_")


@pytest.mark.parametrize("estimator", [OrtGradientRegressor(MLP((4,))), RealMLPRegressor()])
def test_times_are_no_numbers_to_regress_on(estimator):
    times = pd.date_range("2020-01-01", periods=40)
    for y in (times, pd.Series(times), times - times[0]):
        with pytest.raises(ValueError, match=r"y holds times \((datetime|timedelta)64.*days since a date"):
            estimator.fit(X, y)


def test_times_in_a_frame_are_no_numbers_of_a_graph():
    times = pd.DataFrame({"day": pd.date_range("2020-01-01", periods=40)})
    for rows in (times, times.assign(a=1.0), times.assign(zone=times["day"].dt.tz_localize("UTC"))):
        with pytest.raises(TypeError, match=r"Column 'day' of X holds times \(datetime64.*days since a date"):
            BOTH[0].fit(rows, Y)


@pytest.mark.parametrize("estimator", BOTH)
def test_arrays_of_times_are_no_numbers_to_learn_from(estimator):
    times = pd.DataFrame({"day": pd.date_range("2020-01-01", periods=40)})
    for rows in (times.to_numpy(), (times - times.iloc[0]).to_numpy()):
        with pytest.raises(TypeError, match=r"^X holds times \((datetime|timedelta)64.*days since a date"):
            estimator.fit(rows, Y)


@pytest.mark.parametrize("container", [dict, Inputs])
def test_hidden_numbers_of_one_of_several_inputs_are_missing(container):
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]> g (float[n, 2] a, float[n, 2] b) => (float[n, 2] y)
        <float[2, 2] w = {1, 2, 3, 4}> { s = Add(a, b) y = MatMul(s, w) }"""
    )
    trained = OrtGradientRegressor(model, max_iter=1).fit({"a": X, "b": X}, X)
    with pytest.raises(ValueError, match="contains NaN"):
        trained.predict(container({"a": X, "b": HIDDEN}))

"""Predictions for plain arrays skip scikit-learn's checks: what is refused, warned of and returned stays the same."""

from __future__ import annotations

import warnings
from functools import cache

import numpy as np
import onnx.parser
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_array_equal
from sklearn import config_context
from sklearn.linear_model import LogisticRegression

from onnxtrain_sklearn import MLP, Linear, OrtGradientClassifier, OrtGradientRegressor
from tests.helpers.observed import forbid_validation, predict_in_chunks, predict_with_all_checks, takes_plain_rows

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RNG = np.random.RandomState(0)
X = RNG.normal(size=(60, 6)).astype(np.float32)
Y = X @ np.arange(6) + 2
LABELS = np.array(["a", "b", "c"])[X[:, :3].argmax(axis=1)]
FRAME = pd.DataFrame(X, columns=list("abcdef"))
SETTINGS = {"max_iter": 2, "random_state": 0}

CUBES = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["": 18]> cubes (float[N, 2, 3] X) => (float[N, 1] y)
    <float[6, 1] w = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6}> { flat = Flatten(X) y = MatMul(flat, w) }""")
DOUBLE = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["": 18]> wide (double[N, 6] X) => (double[N, 1] y)
    <double[6, 1] w = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6}> { y = MatMul(X, w) }""")
PAIR = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["": 18]> pair (float[N, 6] A, float[N, 6] B) => (float[N, 1] y)
    <float[6, 1] w = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6}> { C = Add(A, B) y = MatMul(C, w) }""")


class OwnSign(OrtGradientRegressor):
    """Says by itself whether it is fitted."""

    def __sklearn_is_fitted__(self):
        return False


@cache
def estimators():
    """Return fitted estimators by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        missing = Linear().build(n_features=6, n_outputs=1, random_state=0)
        return {
            "classifier": OrtGradientClassifier(MLP((8,)), **SETTINGS).fit(X, LABELS),
            "two classes": OrtGradientClassifier(MLP((8,)), **SETTINGS).fit(X, Y > 2),
            "several labels": OrtGradientClassifier(MLP((8,)), **SETTINGS).fit(X, (X[:, :3] > 0).astype(int)),
            "regressor": OrtGradientRegressor(MLP((8,)), **SETTINGS).fit(X, Y),
            "two outputs": OrtGradientRegressor(MLP((8,)), **SETTINGS).fit(X, np.stack([Y, -Y], axis=1)),
            "data frame": OrtGradientRegressor(MLP((8,)), **SETTINGS).fit(FRAME, Y),
            "cubes": OrtGradientRegressor(CUBES, **SETTINGS).fit(X.reshape(60, 2, 3), Y),
            "double": OrtGradientRegressor(DOUBLE, **SETTINGS).fit(X, Y),
            "file": OrtGradientRegressor(missing, **SETTINGS).fit(X, Y),
            "fitted model": OrtGradientClassifier(LogisticRegression().fit(X, LABELS), **SETTINGS).fit(X, LABELS),
            "two inputs": OrtGradientRegressor(PAIR, **SETTINGS).fit({"A": X, "B": X}, Y),
            "not fitted": OrtGradientRegressor(MLP((8,)), **SETTINGS),
            "own sign": OwnSign(MLP((8,)), **SETTINGS).fit(X, Y),
        }


NAMES = ("classifier", "two classes", "several labels", "regressor", "two outputs", "data frame", "cubes", "double")
NAMES += ("file", "fitted model", "two inputs", "not fitted", "own sign")


@pytest.fixture(params=NAMES)
def name(request):
    """Name of an estimator."""
    return request.param


@pytest.fixture
def estimator(name):
    """The estimator of this name."""
    return estimators()[name]


def changed(value: float, dtype: type = np.float64) -> np.ndarray:
    """Return rows one number of which is another."""
    rows = X.astype(dtype)
    rows[3, 2] = value
    return rows


class Rows(np.ndarray):
    """A subclass of NumPy's."""


PLAIN = {
    "float32": X,
    "float64": X.astype(np.float64),
    "one row": X[:1].astype(np.float64),
    "by columns": np.asfortranarray(X),
    "every second row": np.repeat(X, 2, axis=0)[::2],
    "backwards": X[::-1, ::-1],
    "read-only": np.frombuffer(X.tobytes(), np.float32).reshape(X.shape),
    "tiny": changed(1e-300),
    "largest": changed(np.finfo(np.float32).max),
    "sum overflows": np.full_like(X, 3e38),
    "cubes": X.reshape(60, 2, 3),
}
OTHERS = {
    "list": X.tolist(),
    "nested tuple": tuple(map(tuple, X[:2].tolist())),
    "subclass": X.view(Rows),
    "matrix": np.asmatrix(X),
    "masked": np.ma.masked_array(X, X > 1),
    "data frame": FRAME,
    "frame of other names": FRAME.rename(columns={"a": "z"}),
    "frame in another order": FRAME[list("fedcba")],
    "series": FRAME["a"],
    "objects": X.astype(object),
    "texts": X.astype(str),
    "integers": (X * 10).astype(np.int64),
    "large integers": (X * 10).astype(np.int64) + 2**40 + 1,
    "booleans": X > 0,
    "float16": X.astype(np.float16),
    "long double": X.astype(np.longdouble),
    "complex": X.astype(np.complex64),
    "other byte order": X.astype(">f4"),
    "other byte order, double": X.astype(">f8"),
    "sparse rows": sp.csr_matrix(X),
    "sparse columns": sp.csc_array(X),
    "NaN": changed(np.nan),
    "infinite": changed(np.inf, np.float32),
    "infinite both ways": np.where(X > 1, np.inf, np.where(X < -1, -np.inf, X)),
    "too large": changed(1e39),
    "a dict": {"A": X, "B": X},
    "one number": np.float32(3.0),
    "None": None,
    "one axis": X[0],
    "scalar": np.array(3.0),
    "too narrow": X[:, :5],
    "too wide": np.hstack([X, X]),
    "no rows": X[:0],
    "no columns": X[:, :0],
    "three axes": X.reshape(60, 3, 2),
    "four axes": X.reshape(60, 1, 2, 3),
}


def outcome(estimator, method, rows):
    """Return what a call gives or raises, and what it warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = getattr(estimator, method)(rows)
            results = [(a.dtype.str, a.shape, a.tobytes()) for a in (result if isinstance(result, list) else [result])]
        except Exception as error:
            results = [(type(error), str(error))]
    return results, [(w.category, str(w.message)) for w in caught]


def methods(estimator):
    """Return the methods that an estimator has."""
    return [name for name in ("predict", "predict_proba", "decision_function") if hasattr(estimator, name)]


@pytest.mark.long
def test_calls_end_as_with_all_checks(name, estimator, monkeypatch):
    differ = []
    for kind, rows in (PLAIN | OTHERS).items():
        for assume_finite in (False, True):
            with config_context(assume_finite=assume_finite, skip_parameter_validation=assume_finite):
                short = [outcome(estimator, method, rows) for method in methods(estimator)]
                with monkeypatch.context() as patch:
                    predict_with_all_checks(patch)
                    whole = [outcome(estimator, method, rows) for method in methods(estimator)]
            differ += [] if short == whole else [(kind, assume_finite)]
    assert not differ


def is_taken(estimator, rows):
    return takes_plain_rows(estimator, rows)


def test_only_plain_rows_of_the_fitted_shape_are_taken(name, estimator):
    taken = {kind for kind, rows in (PLAIN | OTHERS).items() if is_taken(estimator, rows)}
    if name in ("data frame", "not fitted", "own sign", "two inputs"):
        assert not taken
    elif name == "cubes":
        assert taken == {"cubes"}
    else:
        assert taken == set(PLAIN) - {"cubes"} | ({"too large"} if name == "double" else set())


def test_plain_rows_are_not_checked_by_scikit_learn(monkeypatch):
    expected = [estimators()["classifier"].predict_proba(X), estimators()["regressor"].predict(X)]
    forbid_validation(monkeypatch)
    assert_array_equal(estimators()["classifier"].predict_proba(X), expected[0])
    assert_array_equal(estimators()["regressor"].predict(X), expected[1])


def test_rows_of_several_chunks_are_left_to_scikit_learn(monkeypatch):
    estimator = estimators()["regressor"]
    assert is_taken(estimator, X)
    predict_in_chunks(monkeypatch, rows=len(X) - 1)
    assert not is_taken(estimator, X)
    with pytest.raises(ValueError, match="Input X contains NaN"):
        estimator.predict(np.vstack([X, np.full_like(X[:1], np.nan)]))


def test_features_that_are_changed_after_fit_are_checked():
    estimator = OrtGradientRegressor(MLP((8,)), **SETTINGS).fit(X, Y)
    estimator.predict(X)
    estimator.n_features_in_ = 5
    with pytest.raises(ValueError, match="expecting 5 features"):
        estimator.predict(X)
    estimator.n_features_in_ = 6
    estimator.feature_names_in_ = np.array(list("abcdef"), dtype=object)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        estimator.predict(X)


def test_predictions_follow_later_training():
    estimator = OrtGradientRegressor(MLP((8,)), **SETTINGS).fit(X, Y)
    before = estimator.predict(X)
    estimator.partial_fit(X, Y)
    assert not np.array_equal(before, estimator.predict(X))


@pytest.mark.filterwarnings("error")
def test_floating_point_settings_of_the_user_do_not_matter():
    for kind in ("float64", "one row"):
        with np.errstate(all="raise", under="ignore"):
            assert np.isfinite(estimators()["regressor"].predict(PLAIN[kind])).all()

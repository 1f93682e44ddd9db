"""What is wrong with rows, targets and weights is said, and leaves the estimator as it was."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from onnxtrain_sklearn import LBFGS, Linear, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError
from onnxtrain_sklearn.losses import Huber, Quantile
from tests.helpers.refusals import X, assert_unchanged_by, fresh, parsed, y

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def bad(array: np.ndarray, value: float) -> np.ndarray:
    array = array.astype(np.float64)
    array[7, ...] = value
    return array


DATA: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "NaN in X": ({"X": bad(X, np.nan), "y": y}, ValueError, "Input X contains NaN"),
    "infinite X": ({"X": bad(X, np.inf), "y": y}, ValueError, "Input X contains infinity"),
    "X too large": ({"X": bad(X, 1e300), "y": y}, ValueError, "too large for float32"),
    "flat X": ({"X": X[:, 0], "y": y}, ValueError, "Expected 2D array, got 1D array"),
    "no rows": ({"X": X[:0], "y": y[:0]}, ValueError, r"0 sample\(s\)"),
    "no features": ({"X": X[:, :0], "y": y}, ValueError, r"0 feature\(s\)"),
    "words in X": ({"X": pd.DataFrame({"a": ["x", "y"] * 30}), "y": y}, ValueError, "could not convert string"),
    "complex X": ({"X": X + 1j, "y": y}, ValueError, "Complex data not supported"),
    "mixed names": ({"X": pd.DataFrame(X, columns=["a", "b", 0, 1]), "y": y}, TypeError, "Feature names"),
    "dict for a builder": ({"X": {"X": X}, "y": y}, TypeError, "A dict of inputs needs a graph that names them"),
    "no y": ({"X": X, "y": None}, ValueError, "requires y to be passed"),
    "short y": ({"X": X, "y": y[:-1]}, ValueError, "inconsistent numbers of samples: X has 60, y has 59"),
    "empty y": ({"X": X, "y": []}, ValueError, "at least 2 classes"),
    "NaN in y": ({"X": X, "y": bad(y, np.nan)}, ValueError, "Input y contains NaN"),
    "infinite y": ({"X": X, "y": bad(y, np.inf)}, ValueError, "Input y contains infinity"),
    "continuous y": ({"X": X, "y": X[:, 0]}, ValueError, "Unknown label type: continuous"),
    "one class": ({"X": X, "y": np.ones(60)}, ValueError, r"at least 2 classes in y, got 1 class: \[1.0\]"),
    "mixed y": ({"X": X, "y": np.array([1, "a"] * 30, dtype=object)}, ValueError, "not both; got int, str: make them"),
    "no text": ({"X": X, "y": np.array(["a", "b", None] * 20)}, ValueError, "contains NaN: it lacks 20 of 60 labels"),
    "NaN for a text": ({"X": X, "y": pd.Series(["a", None] * 30, dtype="category")}, ValueError, "y contains NaN"),
    "NA for a text": ({"X": X, "y": pd.Series(["a", "b", None] * 20, dtype="string")}, ValueError, "contains NaN"),
    "no number": ({"X": X, "y": [3, 5, None] * 20}, ValueError, "Input y contains NaN: it lacks 20 of 60 labels"),
    "a missing class": ({"X": X, "y": y, "classes": ["a", None]}, ValueError, "classes lacks 1 of 2 labels"),
    "dates": ({"X": X, "y": np.array([50, 51] * 30, "M8[Y]")}, ValueError, "no labels of type datetime64"),
    "tables a row": ({"X": X, "y": np.c_[y, y + 1][:, :, None]}, ValueError, "label at each of|Unknown label type"),
    "indicators": ({"X": X, "y": np.c_[y, y]}, ValueError, r"must be 0 or 1, got \[3, 5\] in y"),
    "short weights": ({"X": X, "y": y, "sample_weight": np.ones(59)}, ValueError, r"\(59,\), expected \(60,\)"),
    "negative weights": ({"X": X, "y": y, "sample_weight": -np.ones(60)}, ValueError, "Negative values"),
    "no weight": ({"X": X, "y": y, "sample_weight": np.zeros(60)}, ValueError, "non-zero|is zero"),
    "NaN weights": ({"X": X, "y": y, "sample_weight": np.full(60, np.nan)}, ValueError, "NaN"),
    "huge weights": ({"X": X, "y": y, "sample_weight": np.full(60, 1e200)}, ValueError, r"1e\+200\. Scale them"),
    "tiny weights": ({"X": X, "y": y, "sample_weight": np.full(60, 1e-200)}, ValueError, r"1e-200\. Scale them"),
    "X_val alone": ({"X": X, "y": y, "X_val": X}, ValueError, "X_val and y_val belong together"),
    "y_val alone": ({"X": X, "y": y, "y_val": y}, ValueError, "X_val and y_val belong together"),
    "weights alone": ({"X": X, "y": y, "sample_weight_val": np.ones(60)}, ValueError, "weights of X_val and y_val"),
    "no X_val": ({"X": X, "y": y, "X_val": X[:0], "y_val": y[:0]}, ValueError, r"X_val, y_val: .*0 sample\(s\)"),
    "labels of y_val": (
        {"X": X, "y": y, "X_val": X, "y_val": y + 1}, ValueError, r"not among the classes: \[4, 6\].*are \[3, 5\]",
    ),
    "features of X_val": ({"X": X, "y": y, "X_val": X[:, :3], "y_val": y}, ValueError, "X_val has 3 features"),
    "short y_val": ({"X": X, "y": y, "X_val": X, "y_val": y[:9]}, ValueError, "X_val has 60, y_val has 9"),
    "weights of X_val": (
        {"X": X, "y": y, "X_val": X, "y_val": y, "sample_weight_val": np.ones(3)}, ValueError, r"\(3,\), expected",
    ),
}  # fmt: skip


@functools.cache
def after_warm_start():
    return fresh(warm_start=True).fit(X, y).fit(X, y).predict_proba(X)


TOLD_OTHERWISE = {"no features", "words in X", "empty y", "one class", "dates", "dict for a builder"}
"""Where a fitted estimator has something else to say: it knows features, classes and inputs."""


@pytest.mark.parametrize("case", DATA)
def test_wrong_data(case):
    data, error, message = DATA[case]
    unfitted = fresh()
    assert_unchanged_by(unfitted, lambda: unfitted.fit(**data), error, message)
    estimator = fresh(warm_start=True).fit(X, y)
    estimator.set_params(warm_start=False)
    assert_unchanged_by(estimator, lambda: estimator.fit(**data), error, message)
    estimator.set_params(warm_start=True)
    if case not in TOLD_OTHERWISE:
        assert_unchanged_by(estimator, lambda: estimator.fit(**data), error, message)
    assert_array_equal(estimator.fit(X, y).predict_proba(X), after_warm_start())


@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function"])
def test_wrong_data_for_predictions(method):
    estimator = fresh().fit(X, y)
    call = getattr(estimator, method)
    for data, error, message in (
        (X[:, :3], ValueError, "X has 3 features, but OrtGradientClassifier is expecting 4"),
        (bad(X, np.nan), ValueError, "NaN"),
        (bad(X, 1e300), ValueError, "too large for float32"),
        (X[0], ValueError, "Expected 2D array, got 1D array"),
        (np.array([["a"] * 4]), ValueError, "could not convert string to float|dtype='numeric'"),
    ):
        assert_unchanged_by(estimator, lambda data=data: call(data), error, message)


def test_wrong_calls_of_partial_fit():
    first = fresh()
    assert_unchanged_by(first, lambda: first.partial_fit(X, y), ValueError, "classes must be passed on the first call")
    assert_unchanged_by(first, lambda: first.partial_fit(X, None, classes=[3, 5]), ValueError, "requires y")
    assert_unchanged_by(first, lambda: first.partial_fit(X, y, classes=[3, 4]), ValueError, r"not among .*: \[5\]")
    assert_unchanged_by(
        first, lambda: first.partial_fit(X, y, classes=["a", "b"]), ValueError, r"not among .*: \[3, 5\]"
    )
    assert_unchanged_by(first, lambda: first.partial_fit(X, y, classes=[3]), ValueError, "at least 2 classes")
    later, twin = fresh().partial_fit(X, y, classes=[3, 5]), fresh().partial_fit(X, y, classes=[3, 5])
    for call, message in (
        (lambda: later.partial_fit(X, y + 1), r"not among the classes: \[4, 6\].*are \[3, 5\]"),
        (lambda: later.partial_fit(X, y, classes=[3, 6]), r"classes=\[3, 6\] is not the same as on the last call"),
        (lambda: later.partial_fit(X[:, :2], y), "X has 2 features"),
        (lambda: later.partial_fit(X, np.c_[y == 3, y == 5]), "does not hold one label a row"),
    ):
        assert_unchanged_by(later, call, ValueError, message)
    assert_array_equal(later.partial_fit(X, y).predict_proba(X), twin.partial_fit(X, y).predict_proba(X))


def test_partial_fit_refuses_settings_that_need_all_data():
    estimator = fresh(class_weight="balanced").fit(X, y)
    assert_unchanged_by(
        estimator, lambda: estimator.partial_fit(X, y), ValueError, "class_weight='balanced' needs all data"
    )
    estimator = fresh(early_stopping=True).fit(X, y)
    assert_unchanged_by(estimator, lambda: estimator.partial_fit(X, y), ValueError, "does not support early_stopping")
    with pytest.raises(AttributeError, match="no attribute 'partial_fit'") as caught:
        _ = fresh(optimizer=LBFGS()).partial_fit
    assert "takes all data at once" in str(caught.value.__cause__)


def test_targets_out_of_the_range_of_a_loss():
    estimator = OrtGradientRegressor(loss="poisson")
    with pytest.raises(ValueError, match="Poisson needs targets that are not negative, got 1 of 60"):
        estimator.fit(X, np.r_[-1, np.ones(59)])
    with pytest.raises(ValueError, match="Gamma needs targets that are positive, got 1 of 60"):
        estimator.set_params(loss="gamma").fit(X, np.r_[0, np.ones(59)])
    assert not hasattr(estimator, "n_features_in_")


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("log_loss", "LogLoss is not for regression targets.*'squared_error'"),
        (Huber(0.0), r"'delta' parameter of Huber must be .* Got 0.0 "),
        (Quantile(1.0), r"'quantile' parameter of Quantile must be .* Got 1.0 "),
        (Quantile("half"), "Got 'half'"),
    ],
)
def test_losses_of_a_regressor(loss, message):
    with pytest.raises(ValueError, match=message):
        OrtGradientRegressor(loss=loss).fit(X, X[:, 0])


def test_targets_of_a_regressor():
    for target, message in (
        (["a"] * 60, "numbers for regression"),
        (bad(y, np.nan), "Input y contains NaN"),
        (bad(y, 1e300), "too large for float32"),
    ):
        with pytest.raises(ValueError, match=message):
            OrtGradientRegressor().fit(X, target)
    fitted = OrtGradientRegressor(max_iter=1).fit(X, X[:, :2])
    with pytest.raises(ValueError, match=r"y has 1 output\(s\), expected 2"):
        fitted.partial_fit(X, y)
    with pytest.raises(ValueError, match=r"y_val has 1 output\(s\), expected 2"):
        fitted.fit(X, X[:, :2], X_val=X, y_val=y)


def test_later_targets_are_of_the_kind_of_the_first():
    one = np.arange(60) % 3
    several = np.eye(3, dtype=int)[one]
    for first, other, message in ((one, several, "one label a row"), (several, one, "indicators of several labels")):
        estimator = fresh().fit(X, first)
        for call in (
            lambda e=estimator, later=other: e.partial_fit(X, later),
            lambda e=estimator, y=first, later=other: e.fit(X, y, X_val=X, y_val=later),
        ):
            assert_unchanged_by(estimator, call, ValueError, f"does not hold {message}")


INPUTS = parsed(
    "p = MatMul(X, W) e = Gather(b, kind) s = Add(p, e) z = Identity(s)", inputs="float[N,4] X, int64[N,1] kind"
)


KINDS = np.zeros((60, 1), int)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ({"X": X}, ValueError, r"has the inputs \['X', 'kind'\], X holds \['X'\]"),
        ({"X": X, "kind": KINDS, "more": X}, ValueError, "X holds .*'more'"),
        ({"X": X, "kind": KINDS[:5]}, ValueError, "same number of rows, got {'X': 60, 'kind': 5}"),
        ({"X": X[:, :2], "kind": KINDS}, ValueError, "X has 2 features, but the graph's input 'X' takes rows"),
        ({"X": X, "kind": KINDS + 0.5}, ValueError, "expects int64"),
        ({"X": bad(X, np.nan), "kind": KINDS}, ValueError, r"X\['X'\] contains NaN"),
        ({"X": X, "kind": KINDS + 9}, ModelError, "does not run on the data.*out of data bounds"),
    ],
)
def test_dicts_of_inputs(data, error, message):
    estimator = OrtGradientRegressor(INPUTS, max_iter=1)
    before = dict(vars(estimator))
    with pytest.raises(error, match=message):
        estimator.fit(data, y)
    assert vars(estimator) == before


def test_negative_targets_of_a_given_graph_are_refused_by_poisson():
    rows, targets = np.ones((4, 2)), np.array([1.0, 2.0, -2.0, 0.0])
    with pytest.raises(ValueError, match="Poisson needs targets that are not negative, got 1 of 4"):
        OrtGradientRegressor(Linear().build(2, 1, 0), loss="poisson").fit(rows, targets)

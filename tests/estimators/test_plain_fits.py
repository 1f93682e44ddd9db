"""What a fit, a score and a copy do without scikit-learn's checks comes out as with them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import BaseEstimator, clone
from sklearn.metrics import accuracy_score

from onnxtrain_sklearn import MLP, Adam, OrtGradientClassifier, losses
from tests.helpers.observed import forbid_validation, read_rows, record_validations, validate_all_rows

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RNG = np.random.RandomState(0)
X = RNG.normal(size=(40, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
HUGE = np.full((40, 4), 3e38, np.float32)


def fitted(rows):
    return OrtGradientClassifier(MLP((3,)), max_iter=1, random_state=0).fit(rows, Y)


def outcome(rows):
    """Return the error of a fit that began with named features, or what it left."""
    estimator = fitted(pd.DataFrame(X, columns=list("abcd")))
    try:
        estimator.fit(rows, Y)
    except Exception as error:
        return type(error), str(error)
    return estimator.n_features_in_, hasattr(estimator, "feature_names_in_"), estimator.weights_["layers.0.weight"]


ROWS = {
    "float32": X,
    "float64": X.astype(np.float64),
    "columns": np.asfortranarray(X),
    "strided": np.repeat(X, 2, axis=0)[::2],
    "big_endian": X.astype(">f4"),
    "integers": (10 * X).astype(int),
    "list": X.tolist(),
    "three_axes": X[:, :, None],
    "one_axis": X[:, 0],
    "no_columns": X[:, :0],
    "no_rows": X[:0],
    "missing": np.where(X > 2, np.nan, X),
    "infinite": np.where(X > 2, np.inf, X),
    "two_infinite": np.where(X > 1, np.inf, np.where(X < -1, -np.inf, X)),
    "matrix": np.matrix(X),
}


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
def test_fits_end_as_with_all_checks(rows, monkeypatch):
    without = outcome(rows)
    validate_all_rows(monkeypatch)
    assert len(without) == len(outcome(rows))
    for ours, theirs in zip(without, outcome(rows), strict=True):
        assert_array_equal(ours, theirs)


def test_a_plain_matrix_is_not_checked_by_scikit_learn(monkeypatch):
    forbid_validation(monkeypatch)
    assert fitted(X).n_features_in_ == 4


def test_a_sum_that_overflows_is_looked_at_by_scikit_learn(monkeypatch):
    calls = record_validations(monkeypatch)
    with np.errstate(all="raise"):
        read_rows(HUGE)
    assert len(calls) == 1


@pytest.mark.parametrize("y", [Y, Y.astype(np.int8), Y.astype(bool), Y.astype(float), Y.tolist(), 1 - Y])
@pytest.mark.parametrize("weights", [None, np.arange(40.0)])
def test_accuracy_is_that_of_scikit_learn(y, weights):
    estimator = fitted(X)
    assert estimator.score(X, y, weights) == accuracy_score(y, estimator.predict(X), sample_weight=weights)


def test_accuracy_of_texts_and_of_other_numbers_of_rows():
    names = np.array(["no", "longer"])[Y]
    estimator = OrtGradientClassifier(MLP((3,)), max_iter=1, random_state=0).fit(X, names)
    assert estimator.score(X, names) == accuracy_score(names, estimator.predict(X))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        estimator.score(X, names[:-1])


@pytest.mark.parametrize("thing", [OrtGradientClassifier(MLP((3,)), optimizer=Adam(0.8)), losses.LOSSES["huber"]()])
@pytest.mark.parametrize("deep", [True, False])
def test_parameters_are_those_that_scikit_learn_reads(thing, deep):
    expected = BaseEstimator.get_params(thing, deep=deep)
    assert list(thing.get_params(deep=deep).items()) == list(expected.items())


def test_parameters_of_a_subclass_are_its_own():
    class Named(MLP):
        def __init__(self, title="net", hidden_layer_sizes=(3,)):
            super().__init__(hidden_layer_sizes)
            self.title = title

    assert set(Named().get_params()) == {"title", "hidden_layer_sizes"} < {"title", *MLP().get_params()}
    assert clone(Named("other")).title == "other"

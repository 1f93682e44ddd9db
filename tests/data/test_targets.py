"""Labels, numbers and weights as losses take them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import DataConversionWarning
from sklearn.utils.class_weight import compute_sample_weight

from onnxtrain_sklearn._data.row_weights import row_weights
from onnxtrain_sklearn._data.targets import Targets, class_targets, labels_of, regression_targets

# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("y", [[1, 2, 3], np.array([1.0, 2, 3]), pd.Series([1, 2, 3]), ["1", "2", "3"]])
def test_numbers_become_one_column(y):
    targets = regression_targets(y)
    assert_array_equal(targets.values, [[1.0], [2.0], [3.0]])
    assert targets.values.dtype == np.float64
    assert (targets.task, targets.n_scores, targets.classes, targets.stratify) == ("regression", 1, None, None)


def test_several_outputs_stay_columns():
    targets = regression_targets(np.arange(6).reshape(3, 2))
    assert_array_equal(targets.values, [[0, 1], [2, 3], [4, 5]])
    assert targets.n_scores == 2


def test_a_single_column_is_taken_with_a_warning():
    with pytest.warns(DataConversionWarning):
        assert regression_targets([[1.0], [2.0]]).n_scores == 1


@pytest.mark.parametrize("y", [["a", "b"], [np.nan, 1], [np.inf, 1], np.zeros((2, 2, 2)), [1 + 1j, 2], []])
def test_targets_other_than_numbers_are_refused(y):
    with pytest.raises(ValueError, match=r"numbers|NaN|infinity|dim 3|Complex|0 sample"):
        regression_targets(y)


# -- labels -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        ([5, -3, 5], [-3, 5]),
        (["b", "a", "b"], ["a", "b"]),
        (np.array(["b", "aaa", "b"], dtype=object), ["aaa", "b"]),
        ([True, False, True], [False, True]),
        ([2.0, 1.0, 2.0], [1.0, 2.0]),
        (pd.Series(["y", "n", "y"], dtype="category"), ["n", "y"]),
        (np.array([2**63 - 1, 7, 2**63 - 1], dtype=np.uint64), [7, 2**63 - 1]),
    ],
)
def test_two_classes_become_indices_for_one_score(y, classes):
    targets = class_targets(y, None)
    assert targets.values.tolist() == [1, 0, 1]
    assert targets.values.dtype == np.int64
    assert targets.classes.tolist() == classes
    assert (targets.task, targets.n_scores) == ("binary", 1)
    assert_array_equal(targets.stratify, targets.values)


def test_several_classes_have_one_score_per_class():
    targets = class_targets(["c", "a", "b"], None)
    assert (targets.task, targets.n_scores, targets.values.tolist()) == ("multiclass", 3, [2, 0, 1])


def test_known_classes_decide_the_indices():
    targets = class_targets(["c", "c"], np.array(["a", "b", "c"]))
    assert (targets.task, targets.n_scores, targets.values.tolist()) == ("multiclass", 3, [2, 2])


@pytest.mark.parametrize(
    ("y", "known"),
    [([0, 4], [0, 1]), (["z", "a"], ["a", "b"]), ([0, 1], ["a", "b"]), (["a", "b"], [0, 1]), ([-1, 0], [0, 1])],
)
def test_unknown_labels_are_named(y, known):
    with pytest.raises(ValueError, match=r"not among the classes: \[.*are \[.*FineTuner\(new_head=True\)"):
        class_targets(y, np.array(known))


@pytest.mark.parametrize("make", [np.array, sp.csr_matrix, sp.csr_array, pd.DataFrame, list, lambda Y: Y == 1])
def test_indicators_have_a_score_a_label(make):
    Y = np.array([[1, 0, 1], [0, 1, 1]])
    targets = class_targets(make(Y.tolist()) if make is list else make(Y), None)
    assert_array_equal(targets.values, Y)
    assert (targets.task, targets.n_scores, targets.stratify) == ("multilabel", 3, None)
    assert_array_equal(targets.classes, [0, 1, 2])
    with pytest.raises(ValueError, match=r"y has 3 labels \(columns\), expected 2"):
        class_targets(make(Y.tolist()) if make is list else make(Y), np.arange(2))


# -- weights ----------------------------------------------------------------------------------------------------------

BINARY = Targets(np.array([0, 0, 0, 1]), "binary", 1, np.array(["a", "b"]))


def test_no_weights_are_none():
    assert row_weights(None, BINARY, None) is None


def test_weights_of_rows_are_kept():
    assert_array_equal(row_weights([1, 0, 3, 0.5], BINARY, None), [1, 0, 3, 0.5])
    assert_array_equal(row_weights(2.0, BINARY, None), [2, 2, 2, 2])


def test_weights_of_classes_go_by_label():
    assert_array_equal(row_weights(None, BINARY, {"a": 2, "b": 5}), [2, 2, 2, 5])
    assert_array_equal(row_weights([1, 2, 3, 4], BINARY, {"b": 10}), [1, 2, 3, 40])
    with pytest.raises(ValueError, match="not in class_weight"):
        row_weights(None, BINARY, {"a": 1, "c": 2})


def test_balanced_classes_weigh_the_same():
    weights = row_weights(None, BINARY, "balanced")
    assert_allclose(weights, compute_sample_weight("balanced", BINARY.values))
    weights = row_weights([1, 2, 0, 6], BINARY, "balanced")
    assert_allclose([weights[:3].sum(), weights[3:].sum(), weights.sum()], [4.5, 4.5, 9.0])


def test_a_class_without_rows_is_not_counted():
    three = Targets(np.array([0, 0, 2]), "multiclass", 3, np.arange(3))
    assert_allclose(row_weights(None, three, "balanced"), [0.75, 0.75, 1.5])
    assert_allclose(row_weights([1, 1, 0], three, "balanced"), [1, 1, 0])


def test_classes_of_several_labels_multiply():
    targets = Targets(np.array([[1.0, 0], [0, 0], [0, 1]]), "multilabel", 2, np.arange(2))
    weights = row_weights(None, targets, [{0: 1, 1: 2}, {0: 1, 1: 3}])
    assert_array_equal(weights, [2, 1, 3])
    assert_allclose(row_weights(None, targets, "balanced"), compute_sample_weight("balanced", targets.values))


def test_labels_of_several_classes_have_a_column_a_class():
    targets = class_targets([["a", "x"], ["b", "z"], ["a", "y"]], None)
    assert [known.tolist() for known in targets.classes] == [["a", "b"], ["x", "y", "z"]]
    assert targets.values.tolist() == [[1, 0, 1, 0, 0], [0, 1, 0, 0, 1], [1, 0, 0, 1, 0]]
    assert (targets.task, targets.n_scores, targets.stratify) == ("multioutput", 5, None)
    assert labels_of(targets.values, targets.classes).tolist() == [["a", "x"], ["b", "z"], ["a", "y"]]


def test_known_classes_of_several_labels_decide_the_columns():
    known = [np.array([0, 1]), np.array([1, 2, 3])]
    targets = class_targets([[1, 1], [0, 1]], known)  # indicators, if nothing were known
    assert targets.values.tolist() == [[0, 1, 1, 0, 0], [1, 0, 1, 0, 0]]
    for y, text in (
        ([[1, 4], [0, 1]], r"Column 1 of y contains labels that are not among the classes: \[4\]"),
        ([[1], [0]], r"y has shape \(2, 1\), expected 2 labels"),
        ([1, 0], r"y has shape \(2,\), expected 2 labels"),
    ):
        with pytest.raises(ValueError, match=text):
            class_targets(y, known)


@pytest.mark.parametrize("weight", ["balanced", [{0: 1, 1: 2}, {1: 3, 2: 0.5, 3: 1}]])
def test_class_weights_of_several_labels(weight):
    y = np.array([[0, 1], [1, 2], [1, 3], [0, 1]])
    targets = class_targets(y, None)
    assert targets.task == "multioutput"
    assert_allclose(row_weights(None, targets, weight), compute_sample_weight(weight, y))

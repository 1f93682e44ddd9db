"""Labels and numbers as the targets that losses take.

A task is decided here once: regression, binary (one score), multiclass (one score a class), multilabel (one score a
label). Classes are encoded as indices into ``classes``; whatever type the labels have stays outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils import assert_all_finite, check_array, column_or_1d
from sklearn.utils.class_weight import compute_class_weight, compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight

from .losses import Task

MIN_WEIGHT, MAX_WEIGHT = 1e-30, 1e30
"""Between them sums of weights are exact enough in float32."""


@dataclass(frozen=True, eq=False)
class Targets:
    """Encoded targets.

    Attributes
    ----------
    values : ndarray of shape (n_samples,) of int64, or (n_samples, n_outputs) of float
        Class indices, or numbers.
    task : {"regression", "binary", "multiclass", "multilabel"}
        "binary" stands for two classes, whatever the number of scores.
    n_outputs : int
        Columns that a graph built for these targets has.
    classes : ndarray or None
        Sorted labels.
    """

    values: np.ndarray
    task: Task
    n_outputs: int
    classes: np.ndarray | None = None

    @property
    def stratify(self) -> np.ndarray | None:
        """What a split keeps the proportions of."""
        return self.values if self.task in ("binary", "multiclass") else None


def regression_targets(y: Any) -> Targets:
    """Return numbers, a column per output."""
    array = np.asarray(check_array(y, ensure_2d=False, dtype=None, input_name="y"))
    if array.ndim == 2 and array.shape[1] == 1:
        array = column_or_1d(array, warn=True)
    if array.dtype.kind in "OSU":
        try:
            array = array.astype(np.float64)
        except ValueError:
            raise ValueError("Unknown label type: y must hold numbers for regression.") from None
    columns = array.reshape(len(array), -1)
    if array.ndim > 2:
        raise ValueError(f"y must have shape (n_samples,) or (n_samples, n_outputs), got {array.shape}.")
    return Targets(columns.astype(np.float64), "regression", columns.shape[1])


def class_targets(y: Any, classes: np.ndarray | None) -> Targets:
    """Return class indices or label indicators; labels that ``classes`` lacks are an error."""
    if getattr(getattr(y, "dtype", None), "kind", "") == "f":
        assert_all_finite(y, input_name="y")
    check_classification_targets(y)
    if type_of_target(y, input_name="y") == "multilabel-indicator":
        return _indicators(y, classes)
    labels = column_or_1d(y, warn=True)
    known = np.unique(labels) if classes is None else classes
    if len(known) < 2:
        raise ValueError(f"Classification needs at least 2 classes in y, got {len(known)} class: {known.tolist()}.")
    if known.dtype.kind not in "biufUO":
        raise ValueError(f"ONNX has no labels of type {known.dtype}: give strings, integers or floats.")
    values = np.searchsorted(known, labels).clip(max=len(known) - 1)
    unknown = known[values] != labels
    if np.any(unknown):
        raise ValueError(
            f"y contains labels that are not among the classes: {np.unique(labels[unknown]).tolist()}. "
            f"The classes, fixed by the fitted model or when training began, are {known.tolist()}."
        )
    many = len(known) > 2
    return Targets(values.astype(np.int64), "multiclass" if many else "binary", len(known) if many else 1, known)


def _indicators(y: Any, classes: np.ndarray | None) -> Targets:
    values = np.asarray(y.toarray() if hasattr(y, "toarray") else y)
    if not np.isin(values, (0, 1)).all():
        raise ValueError(f"Indicators of several labels a row must be 0 or 1, got {np.unique(values).tolist()} in y.")
    if classes is not None and len(classes) != values.shape[1]:
        raise ValueError(f"y has {values.shape[1]} labels (columns), expected {len(classes)}.")
    return Targets(values.astype(np.float64), "multilabel", values.shape[1], np.arange(values.shape[1]))


def row_weights(sample_weight: Any, targets: Targets, class_weight: Any) -> np.ndarray | None:
    """Return the weight of every row, None where all are one; class weights are multiplied in."""
    if sample_weight is None and class_weight is None:
        return None
    rows = np.empty((len(targets.values), 1))
    weights = np.asarray(_check_sample_weight(sample_weight, rows, dtype=np.float64, ensure_non_negative=True))
    if class_weight is not None:
        weights = weights * _class_weights(class_weight, targets, weights)
    if not weights.sum() > 0:
        raise ValueError("The sum of sample_weight is zero: at least one row must have a positive weight.")
    if not MIN_WEIGHT < weights.max() <= weights.sum() < MAX_WEIGHT:
        raise ValueError(f"The largest weight of a row is {weights.max():g}: scale them, only their ratios count.")
    return weights


def _class_weights(class_weight: Any, targets: Targets, weights: np.ndarray) -> np.ndarray:
    """Return the weight that its class gives to every row; "balanced" counts a row as often as it weighs."""
    if targets.task == "multilabel":
        rows = compute_sample_weight(class_weight, targets.values)
    elif isinstance(class_weight, str) and class_weight == "balanced":
        totals = np.bincount(targets.values, weights)
        rows = (float(weights.sum()) / np.count_nonzero(totals) / np.where(totals > 0, totals, 1.0))[targets.values]
    else:
        classes = targets.classes
        rows = compute_class_weight(class_weight, classes=classes, y=classes)[targets.values]
    if np.any(rows < 0):
        raise ValueError(f"class_weight must not hold negative weights, got {class_weight!r}.")
    return np.asarray(rows)

"""Labels that do not count: a row without one that counts adds nothing, one of several labels has no part in its row.

The mean over the labels that count is the mean over rows, each weighted by its share of such labels, of the mean over
those of the row.
"""

from __future__ import annotations

import math
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from sklearn.utils import assert_all_finite
from sklearn.utils.class_weight import compute_sample_weight

from .._support.typing import ClassWeight
from .frames import require_unmasked
from .labels import is_missing, require_present
from .targets import Classes, Targets, checked_weights, class_targets, labels_of, require_usable_weights, row_weights

IGNORED = -1
"""What stands for a label that does not count, in place of a class index or of an indicator."""


def counted_labels(labels: np.ndarray, ignore_label: object) -> np.ndarray:
    """Return where labels are not those to ignore."""
    if ignores_missing(ignore_label):
        return _numbers_and_texts(labels)
    if ignore_label is None or (labels.dtype != object and _is_text(labels) != isinstance(ignore_label, str)):
        return np.ones(labels.shape, bool)
    return np.asarray(labels != ignore_label, bool)


def ignores_missing(ignore_label: object) -> bool:
    """Whether labels that are missing are those to ignore."""
    return isinstance(ignore_label, Real) and math.isnan(ignore_label)


def _is_text(labels: np.ndarray) -> bool:
    return labels.dtype.kind in "US"


def _numbers_and_texts(labels: np.ndarray) -> np.ndarray:
    """Return where labels are neither NaN, which differs from itself, nor None."""
    if labels.dtype != object:
        return np.asarray(labels == labels, bool)
    given = [not is_missing(label) for label in labels.ravel()]
    return np.array(given, bool).reshape(labels.shape)


def plain_labels(labels: np.ndarray) -> np.ndarray:
    """Return labels; numbers among Python objects as an array of numbers, which graphs can give."""
    if labels.dtype != object:
        return labels
    numbers = {isinstance(label, Real) for label in labels.ravel()}
    if numbers == {False} and all(isinstance(label, str) for label in labels.ravel()):
        return labels
    if numbers != {True}:
        kinds = sorted({type(label).__name__ for label in labels.ravel()})
        raise TypeError(f"y must hold texts or numbers, and not both, where labels count; got {', '.join(kinds)}.")
    plain = np.array(labels.tolist())
    if plain.dtype.kind == "f":
        assert_all_finite(plain, input_name="y")
    return plain


def ignored_in(y: ArrayLike, ignore_label: object) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the labels of rows as an array, and where they count; None where all do."""
    if ignore_label is None:
        return None
    several: object = y
    if sp.issparse(several):
        if counted_labels(several.data, ignore_label).all():
            return None
        several = several.toarray()
    require_unmasked(several, "y")
    if not ignores_missing(ignore_label):
        require_present(several)
    try:
        labels = np.asarray(several)
    except ValueError:  # rows of different lengths, which are refused elsewhere
        return None
    counted = counted_labels(labels, ignore_label)
    return None if labels.ndim not in (1, 2) or counted.all() else (labels, counted)


def counted_targets(y: ArrayLike, classes: Classes, ignore_label: object) -> Targets:
    """Return class indices or label indicators, and which labels count, where some do not."""
    found = ignored_in(y, ignore_label)
    if found is None:
        return class_targets(y, classes)
    labels, counted = found
    require_counted_classes(classes, ignore_label)
    if not counted.any():
        raise ValueError(f"No label of y counts: all are ignore_label={ignore_label!r}.")
    if labels.ndim == 1 or labels.shape[1] == 1:
        rows = counted.reshape(-1)
        kept = class_targets(plain_labels(labels[rows]), classes)
        values = np.zeros(len(rows), kept.values.dtype)
        values[rows] = kept.values
        return replace(kept, values=values, counts=rows)
    targets = class_targets(filled_labels(labels, counted, classes), classes)
    sizes = [len(own) for own in targets.classes] if isinstance(targets.classes, list) else 1
    values = np.where(np.repeat(counted, sizes, axis=1), targets.values, IGNORED)
    return replace(targets, values=values, counts=counted)


def require_counted_classes(classes: Classes, ignore_label: object) -> None:
    """Raise where a class is the label to ignore."""
    for own in classes if isinstance(classes, list) else [classes]:
        if own is not None and not counted_labels(own, ignore_label).all():
            raise ValueError(
                f"classes holds ignore_label={ignore_label!r}, which is not counted: leave it out of one, or set "
                f"ignore_label=None where it is a class."
            )


def filled_labels(labels: np.ndarray, counted: np.ndarray, classes: Classes) -> np.ndarray:
    """Return several labels a row with labels of the same columns in the place of those that do not count."""
    filled = labels.copy()
    indicators = not isinstance(classes, list) and bool(np.isin(labels[counted], (0, 1)).all())
    for j, own in enumerate(counted.T):
        if own.all():
            continue
        if own.any():
            filled[~own, j] = labels[own, j][0]
        elif isinstance(classes, list) and j < len(classes):
            filled[:, j] = classes[j][0]
        elif indicators:
            filled[:, j] = 0
        else:
            raise ValueError(
                f"Column {j} of y has no label that counts, so that its classes are not known: leave the column out, "
                f"or name the classes of each: fit(X, y, classes=[...])."
            )
    return plain_labels(filled)


def share_of_labels(targets: Targets) -> np.ndarray:
    """Return by row the share of its labels that count."""
    assert targets.counts is not None
    return np.asarray(targets.counts.reshape(len(targets.counts), -1).mean(axis=1))


def rows_with_labels(targets: Targets) -> np.ndarray:
    """Return the rows that have a label that counts."""
    if targets.counts is None:
        return np.arange(len(targets.values))
    return np.flatnonzero(share_of_labels(targets))


def weights_without_shares(targets: Targets, weights: np.ndarray) -> np.ndarray | None:
    """Return the weights that rows were given, which the shares of labels multiplied; None where all are one."""
    shares = share_of_labels(targets)
    given = np.divide(weights, shares, out=np.ones_like(weights), where=shares > 0)
    return None if np.allclose(given, 1.0, rtol=1e-12) else given


def weights_of_counted(targets: Targets, sample_weight: ArrayLike | None, class_weight: ClassWeight) -> np.ndarray:
    """Return the weights of rows some labels of which do not count, each multiplied by the share of those that do."""
    assert targets.counts is not None
    weights, rows = checked_weights(sample_weight, len(targets.values)), targets.counts.reshape(len(targets.values), -1)
    some = np.asarray(rows.any(axis=1))
    if targets.counts.ndim == 1:
        kept = row_weights(weights[some], replace(targets.take(some), counts=None), class_weight)
        weights = np.zeros(len(weights))
        weights[some] = kept
        return weights
    if class_weight is not None:
        weights = weights * _class_weights(targets, targets.counts, class_weight)
    weights = np.asarray(weights * share_of_labels(targets))
    require_usable_weights(weights)
    return weights


def _class_weights(targets: Targets, counted: np.ndarray, class_weight: ClassWeight) -> np.ndarray:
    """Return by row the product of the weights of its labels that count."""
    several = isinstance(targets.classes, list)
    labels = labels_of(targets.values, targets.classes) if isinstance(targets.classes, list) else targets.values
    given: Any = class_weight
    if not isinstance(given, list) or len(given) != labels.shape[1]:
        compute_sample_weight(given, labels if several else np.abs(labels))  # which says what is wrong
    product = np.ones(len(labels))
    for j, own in enumerate(counted.T):
        if own.any():
            of_column = given[j] if isinstance(given, list) else given
            product[own] *= compute_sample_weight(of_column, labels[own, j])
    if np.any(product < 0):
        raise ValueError(f"class_weight must not contain negative weights, got {class_weight!r}.")
    return product


def rows_that_count(
    y: ArrayLike, predicted: np.ndarray, sample_weight: ArrayLike | None, ignore_label: object
) -> tuple[ArrayLike, np.ndarray, ArrayLike | None]:
    """Return labels, predictions and weights of the rows with a label that counts; others are as they are predicted."""
    found = ignored_in(y, ignore_label)
    if found is None:
        return y, predicted, sample_weight
    labels, counted = found
    some = np.asarray(counted.reshape(len(counted), -1).any(axis=1))
    if labels.shape[:1] != predicted.shape[:1] or labels.size != predicted.size:
        raise ValueError(f"y has shape {labels.shape}, but the predictions have {predicted.shape}.")
    if not some.any():
        raise ValueError(f"No label of y counts: all are ignore_label={ignore_label!r}.")
    labels, counted, predicted = labels[some], counted[some], predicted[some]
    filled = labels.astype(np.result_type(labels, predicted))
    filled[~counted] = predicted.reshape(labels.shape)[~counted]
    weights = None if sample_weight is None else checked_weights(sample_weight, len(some))[some]
    return plain_labels(filled), predicted, weights

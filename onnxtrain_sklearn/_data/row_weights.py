"""Weights of rows: ``sample_weight``, multiplied by ``class_weight``; the weights of ``class_weight="balanced"``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.class_weight import compute_class_weight, compute_sample_weight

from .._utils.typing import ClassWeight
from .statistics import LabelCounts
from .targets import IGNORED, Classes, Targets, checked_weights, labels_of, position_shares, share_of_labels

MIN_WEIGHT, MAX_WEIGHT = 1e-30, 1e30
"""Range of row weights, and of their sum, within which float32 is exact enough."""


def row_weights(sample_weight: ArrayLike | None, targets: Targets, class_weight: ClassWeight) -> np.ndarray | None:
    """Return the weight of every row, including class weights; None if all are one."""
    if sample_weight is None and class_weight is None:
        return None
    weights = checked_weights(sample_weight, len(targets.values))
    if class_weight is not None:
        if targets.task == "multilabel":
            factors = compute_sample_weight(class_weight, targets.values)
        elif isinstance(targets.classes, list):
            factors = compute_sample_weight(class_weight, labels_of(targets.values, targets.classes))
        else:  # for "balanced", the frequency of a class is the sum of the weights of its rows
            factors = weights_of_classes(class_weight, targets.classes, targets.values, weights)[targets.values]
        _require_no_negative(factors, class_weight)
        weights = weights * factors
    require_usable_weights(weights)
    return weights


def weighted_shares(
    targets: Targets, sums: np.ndarray | None, sample_weight: ArrayLike | None, class_weight: ClassWeight
) -> tuple[Targets, np.ndarray | None]:
    """Return soft targets and the weights of rows, or None if all weights are one; ``sums``, if given, multiply them.

    The result is the same as if each row were repeated for each class, with the share as weight. So class weights
    change both the shares and the weight of a row.
    """
    if sample_weight is None and class_weight is None and sums is None:
        return targets, None
    weights = checked_weights(sample_weight, len(targets.values)) * (1.0 if sums is None else sums)
    if class_weight is not None:
        if isinstance(class_weight, str) and class_weight == "balanced":
            own = balanced_weights(weights @ targets.values, float(weights.sum()))
        else:
            own = weights_of_classes(class_weight, targets.classes, np.zeros(0, np.int64), weights)
        shares = targets.values * own
        factors = shares.sum(axis=1)
        shares = np.where(factors[:, None] > 0, shares, targets.values)
        targets = replace(targets, values=shares / shares.sum(axis=1, keepdims=True))
        weights = weights * factors
    require_usable_weights(weights)
    return targets, weights


def weighted_positions(
    targets: Targets, sample_weight: ArrayLike | None, class_weight: ClassWeight
) -> tuple[Targets, np.ndarray | None]:
    """Return the targets with the weights of labels, and the weights of rows; None if all are one."""
    rows = checked_weights(sample_weight, len(targets.values))
    if class_weight is not None:
        counted = targets.values != IGNORED
        totals = np.broadcast_to(rows[:, None], counted.shape)[counted]
        own = weights_of_classes(class_weight, targets.classes, targets.values[counted], totals)
        targets = replace(targets, label_weights=own)
    shares = position_shares(targets).mean(axis=1)
    if sample_weight is None and (shares == 1).all():
        return targets, None
    weights = rows * shares
    require_usable_weights(weights)
    return targets, weights


def weights_of_masked(targets: Targets, sample_weight: ArrayLike | None, class_weight: ClassWeight) -> np.ndarray:
    """Return the weights of rows, each multiplied by the share of its labels that count."""
    assert targets.label_mask is not None
    weights = checked_weights(sample_weight, len(targets.values))
    some = np.asarray(targets.label_mask.reshape(len(weights), -1).any(axis=1))  # rows with a label that counts
    if targets.label_mask.ndim == 1:
        kept = row_weights(weights[some], replace(targets.take(some), label_mask=None), class_weight)
        weights = np.zeros(len(weights))
        weights[some] = kept
        return weights
    if class_weight is not None:
        # Multiply the weight of a row by the class weights of all its labels that are not ignored.
        several = isinstance(targets.classes, list)
        labels = labels_of(targets.values, targets.classes) if isinstance(targets.classes, list) else targets.values
        given: Any = class_weight
        if not isinstance(given, list) or len(given) != labels.shape[1]:
            # called because it refuses wrong weights; np.abs: the -1 of an ignored label would be a third label
            compute_sample_weight(given, labels if several else np.abs(labels))
        product = np.ones(len(labels))
        for j, own in enumerate(targets.label_mask.T):
            if own.any():
                of_column = given[j] if isinstance(given, list) else given
                product[own] *= compute_sample_weight(of_column, labels[own, j])
        _require_no_negative(product, class_weight)
        weights = weights * product
    weights = np.asarray(weights * share_of_labels(targets))
    require_usable_weights(weights)
    return weights


def given_weights(targets: Targets, weights: np.ndarray) -> np.ndarray | None:
    """Return the weights by which rows count in scores; None if all are one.

    They are the user's sample weights: the multiplication by the shares of labels is undone. A ``class_weight`` that
    ``weights`` were multiplied by stays in them, except at positions.
    """
    shares = position_shares(targets).mean(axis=1) if targets.has_positions else share_of_labels(targets)
    given = np.divide(weights, shares, out=np.ones_like(weights), where=shares > 0)
    return None if np.allclose(given, 1.0, rtol=1e-12) else given


def weights_of_labels(targets: Targets, weights: np.ndarray | None) -> np.ndarray | None:
    """Return the weights by which rows, or labels with shares, count in scores; None if all are one."""
    if weights is None or targets.label_shares is None:
        return None if weights is None else given_weights(targets, weights)
    return np.asarray(weights[:, np.newaxis] * targets.label_shares * targets.n_labels)


def require_usable_weights(weights: np.ndarray) -> None:
    """Raise if all weights are zero, or their sums are not exact enough in float32."""
    if not weights.sum() > 0:
        raise ValueError("The sum of sample_weight is zero: at least one row must have a positive weight.")
    if not MIN_WEIGHT < weights.max() <= weights.sum() < MAX_WEIGHT:
        raise ValueError(
            f"Weights and their sum must lie between {MIN_WEIGHT:g} and {MAX_WEIGHT:g}; the largest is "
            f"{weights.max():g}. Scale them: only their ratios count."
        )


def weights_of_classes(
    class_weight: ClassWeight, classes: Classes, values: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Return the weight of each class; for "balanced", the class indices ``values`` count by their ``weights``."""
    if isinstance(class_weight, str) and class_weight == "balanced":
        totals = np.bincount(values, weights, minlength=0 if classes is None else len(classes))
        return balanced_weights(totals, float(weights.sum()))
    found = np.asarray(compute_class_weight(class_weight, classes=classes, y=classes))
    _require_no_negative(found, class_weight)
    return found


def balanced_weights(totals: np.ndarray, weight: float) -> np.ndarray:
    """Return the weight of each class that makes all classes weigh the same.

    ``totals`` are the weights of the rows of each class; ``weight`` is their sum, which stays the same.
    """
    return np.asarray(weight / np.count_nonzero(totals) / np.where(totals > 0, totals, 1.0))


def balanced_labels(labels: Sequence[LabelCounts]) -> list[dict[Any, float]]:
    """Return the balanced weights by label, in one dict for each of several labels per row.

    They equal those of scikit-learn's ``compute_sample_weight``, which ignores sample weights, so the totals of
    ``labels`` must be numbers of rows.
    """
    found = []
    for counts in labels:
        n_rows = counts.totals.sum()
        n_classes = np.count_nonzero(counts.totals)
        weights = n_rows / (n_classes * np.where(counts.totals > 0, counts.totals, 1.0))
        found.append(dict(zip(counts.labels.tolist(), weights.tolist(), strict=True)))
    return found


def _require_no_negative(weights: np.ndarray, class_weight: ClassWeight) -> None:
    if np.any(weights < 0):
        raise ValueError(f"class_weight must not contain negative weights, got {class_weight!r}.")

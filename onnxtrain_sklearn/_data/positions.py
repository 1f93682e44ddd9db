"""Labels at each position of a row, such as the words of a text or the pixels of an image.

A row weighs as much as the labels of it that count: the mean over rows of the weighted mean over a row's positions is
then the weighted mean over all positions. A row whose labels are all ignored has weight zero.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import assert_all_finite

from .._support.typing import ClassWeight
from .ignored_labels import IGNORED, counted_labels, plain_labels, require_counted_classes
from .targets import Classes, Targets, checked_weights, encoded_labels, require_usable_weights, weights_of_classes


def label_array(y: ArrayLike) -> np.ndarray:
    """Return labels as an array; rows of different lengths are an error."""
    try:
        return np.asarray(y)
    except ValueError:
        raise ValueError(
            "The rows of y differ in length: fill them up with labels that are ignored (ignore_label)."
        ) from None


def position_targets(y: ArrayLike, classes: Classes, ignore_label: object) -> Targets:
    """Return class indices (n_samples, n_positions), -1 for labels to ignore."""
    labels = label_array(y)
    if labels.ndim < 2:
        raise ValueError(f"y must hold a label at each position, (n_samples, n_positions), got shape {labels.shape}.")
    if isinstance(classes, list):
        raise ValueError("classes must be one list of labels where y has a label at each position.")
    counted = counted_labels(labels, ignore_label)
    if labels.dtype.kind == "f":
        assert_all_finite(labels[counted], input_name="y")
    require_counted_classes(classes, ignore_label)
    if not counted.any():
        raise ValueError(f"No label of y counts: all are ignore_label={ignore_label!r}.")
    indices, known = encoded_labels(plain_labels(labels[counted]), classes)
    values = np.full(labels.shape, IGNORED, np.int64)
    values[counted] = indices
    many = len(known) > 2
    return Targets(
        values.reshape(len(values), -1),
        "multiclass" if many else "binary",
        len(known) if many else 1,
        known,
        row_shape=labels.shape[1:],
        label_weights=np.ones(len(known)),
    )


def position_shares(targets: Targets) -> np.ndarray:
    """Return the weight of each label, (n_samples, n_positions); 0 of those that are ignored."""
    assert targets.label_weights is not None
    return np.asarray(np.append(targets.label_weights, 0.0)[targets.values])


def weighted_positions(
    targets: Targets, sample_weight: ArrayLike | None, class_weight: ClassWeight
) -> tuple[Targets, np.ndarray | None]:
    """Return the targets with the weights of labels, and those of rows; None where all are one."""
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


def given_weights(targets: Targets, weights: np.ndarray) -> np.ndarray | None:
    """Return the weights that rows were given, which the labels multiplied; None where all are one."""
    shares = position_shares(targets).mean(axis=1)
    given = np.divide(weights, shares, out=np.ones_like(weights), where=shares > 0)
    return None if np.allclose(given, 1.0, rtol=1e-12) else given


def require_same_places(trained: Targets, held_out: Targets) -> None:
    """Raise if validation data have other positions than the training data, for which the graph is prepared."""
    if trained.has_positions and trained.row_shape != held_out.row_shape:
        raise ValueError(f"y has rows of shape {held_out.row_shape}, those to train on have {trained.row_shape}.")


def validation_accuracy(predicted: np.ndarray, targets: Targets, weights: np.ndarray | None) -> float:
    """Return the share of right labels, weighted as the loss is."""
    shares, classes = position_shares(targets), np.asarray(targets.classes)
    rows = np.ones(len(shares)) if weights is None else weights / np.maximum(shares.mean(axis=1), 1e-300)
    right = classes[targets.values] == predicted.reshape(targets.values.shape).astype(classes.dtype)
    return float(np.average(right, weights=rows[:, None] * shares))


def accuracy_at_positions(
    y: ArrayLike, predicted: np.ndarray, ignore_label: object, sample_weight: ArrayLike | None
) -> float:
    """Return the share of right labels among those that count, by the weights of their rows."""
    labels = label_array(y)
    if labels.shape != predicted.shape:
        raise ValueError(f"y has shape {labels.shape}, but the predictions have {predicted.shape}.")
    rows = checked_weights(sample_weight, len(labels)).reshape(-1, *[1] * (labels.ndim - 1))
    weights = rows * counted_labels(labels, ignore_label)
    if not weights.sum() > 0:
        raise ValueError(f"No label of y counts: all are ignore_label={ignore_label!r} or in rows of weight zero.")
    return float(np.average(labels == predicted, weights=weights))

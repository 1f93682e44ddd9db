"""Metrics of validation rows: accuracy, R² and errors of probabilities, as scikit-learn's metrics return them.

Training scores checked arrays after each epoch, and scikit-learn's checks of the input take longer than an epoch of a
small network.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def accuracy(truth: np.ndarray, predicted: np.ndarray, weights: np.ndarray | None) -> float:
    """Return the share of rows of which all labels are right."""
    right = truth == predicted
    right = right.all(axis=1) if right.ndim > 1 else right
    if weights is None:
        return float(np.count_nonzero(right) / len(right))  # in a fifth of the time of np.average
    return float(np.average(right, weights=weights))


def log_loss_of_labels(truth: np.ndarray, probabilities: np.ndarray, weights: np.ndarray | None) -> float:
    """Return the mean over the labels of a row, which are 0 or 1, of their log loss."""
    least = np.finfo(probabilities.dtype).eps
    p = probabilities.clip(least, 1 - least)
    return float(np.average(-np.where(truth == 1, np.log(p), np.log1p(-p)).mean(axis=1, dtype=float), weights=weights))


def squared_error_of_labels(truth: np.ndarray, probabilities: np.ndarray, weights: np.ndarray | None) -> float:
    """Return the mean over the labels of a row, which are 0 or 1, of their Brier score."""
    return float(np.average(((probabilities - truth) ** 2).mean(axis=1, dtype=float), weights=weights))


# R² of numeric targets, also of those whose rows have several axes, such as images and series.


def r2_of_maps(y: np.ndarray, predicted: np.ndarray, sample_weight: ArrayLike | None) -> float:
    """Return R² of all elements: one less the sum of their squared errors by that of the mean row."""
    if y.shape != predicted.shape:
        raise ValueError(f"y has shape {y.shape}, but the predictions have {predicted.shape}.")
    from sklearn.metrics import r2_score  # needs a fifth of scikit-learn

    true, found = (array.reshape(len(array), -1) for array in (y, predicted))
    return float(r2_score(true, found, sample_weight=sample_weight, multioutput="variance_weighted"))


def r2_of_rows(y: np.ndarray, predicted: np.ndarray, weights: np.ndarray | None, *, are_maps: bool) -> float:
    """Return R² on validation rows, for which the predictions take the shape of ``y``; of maps that of all elements."""
    prediction = predicted.reshape(y.shape).astype(np.float64)
    return r2_of_maps(y, prediction, weights) if are_maps else r_squared(y, prediction, weights)


def r_squared(truth: np.ndarray, predicted: np.ndarray, weights: np.ndarray | None) -> float:
    """Return the mean of R² over the columns, each 1 or 0 where its target is constant."""
    if len(truth) < 2:
        from sklearn.metrics import r2_score  # needs a fifth of scikit-learn

        return float(r2_score(truth, predicted, sample_weight=weights))
    true, found = (array.reshape(len(array), -1).astype(np.float64) for array in (truth, predicted))
    factors = 1.0 if weights is None else weights.astype(np.float64)[:, np.newaxis]
    squares = (factors * (true - found) ** 2).sum(axis=0)
    total = (factors * (true - np.average(true, axis=0, weights=weights)) ** 2).sum(axis=0)
    varies = total != 0
    return float(np.average(np.where(varies, 1 - squares / np.where(varies, total, 1), squares == 0)))

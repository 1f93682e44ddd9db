"""Validation data: the rows that are split off, their metrics, and errors that name X_val and y_val."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import ArrayLike

from ..exceptions import ModelError
from .targets import Targets

_NAMES = re.compile(r"(?<!['\"\w])(X|y|sample_weight)(?!['\"\w])")


@contextmanager
def faults_of_validation_data() -> Iterator[None]:
    """Rename X, y and sample_weight in errors to X_val, y_val and sample_weight_val."""
    with _faults_of("val"):
        yield


@contextmanager
def faults_of_old_data() -> Iterator[None]:
    """Rename X, y and sample_weight in errors to X_old, y_old and sample_weight_old."""
    with _faults_of("old"):
        yield


@contextmanager
def _faults_of(suffix: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError) as error:
        if type(error) not in (ValueError, TypeError, ModelError):
            raise
        text, named = _NAMES.subn(rf"\1_{suffix}", str(error))
        raise type(error)(text if named else f"X_{suffix}, y_{suffix}: {text}") from error


def split_rows(
    rows: np.ndarray, targets: Targets, fraction: float, rng: np.random.RandomState
) -> tuple[np.ndarray, np.ndarray]:
    """Split ``rows`` into rows to train on and rows held out for early stopping, stratified by class."""
    seed = rng.randint(2**31 - 1)
    stratify = None if targets.stratify is None else targets.stratify[rows]
    held_out = math.ceil(fraction * len(rows))
    if held_out < 2:
        raise ValueError(
            f"The validation set is too small: validation_fraction={fraction} of {len(rows)} rows is {held_out}, and a "
            f"score needs 2. Increase validation_fraction or the size of your dataset, or give X_val and y_val."
        )
    if stratify is not None:
        counts = np.bincount(stratify)
        if (counts == 1).any() and isinstance(targets.classes, np.ndarray):
            single = targets.classes[np.flatnonzero(counts == 1)].tolist()
            raise ValueError(
                f"early_stopping=True holds out rows of each class, but y has a single row of class "
                f"{', '.join(map(repr, single))}. Leave such rows out, or give X_val and y_val."
            )
        n_rows, classes = len(stratify), np.count_nonzero(counts)
        if min(held_out, n_rows - held_out) < classes:
            raise ValueError(
                f"early_stopping=True holds out rows of each class, but validation_fraction={fraction} of {n_rows} "
                f"rows splits them into {n_rows - held_out} and {held_out}, with {classes} classes in y. Choose "
                f"another validation_fraction, or give X_val and y_val."
            )
    from sklearn.model_selection import train_test_split  # imported here, as it loads a fifth of scikit-learn

    trained, held = train_test_split(rows, test_size=fraction, random_state=seed, stratify=stratify)
    return trained, held


def require_scorable(targets: Targets, weights: np.ndarray | None) -> None:
    """Raise if there are too few validation rows for R², which is undefined for a single row."""
    counted = len(targets.values) if weights is None else np.count_nonzero(weights)
    if targets.task == "regression" and counted < 2:
        raise ValueError(
            f"The validation set is too small: R² needs 2 rows of positive weight, X_val and y_val have {counted}."
        )


# Metrics of validation rows: accuracy, R² and errors of probabilities, as scikit-learn's metrics return them.
#
# They are computed here because training scores after each epoch, and scikit-learn's checks of the arrays take longer
# than an epoch of a small network.


def accuracy(truth: np.ndarray, predicted: np.ndarray, weights: np.ndarray | None) -> float:
    """Return the weighted share of rows in which all labels are right."""
    right = truth == predicted
    right = right.all(axis=1) if right.ndim > 1 else right
    if weights is None:
        return float(np.count_nonzero(right) / len(right))  # five times as fast as np.average
    return float(np.average(right, weights=weights))


def log_loss_of_labels(truth: np.ndarray, probabilities: np.ndarray, weights: np.ndarray | None) -> float:
    """Return the log loss of several labels per row, each 0 or 1: the mean over rows and labels."""
    least = np.finfo(probabilities.dtype).eps
    p = probabilities.clip(least, 1 - least)
    return float(np.average(-np.where(truth == 1, np.log(p), np.log1p(-p)).mean(axis=1, dtype=float), weights=weights))


def squared_error_of_labels(truth: np.ndarray, probabilities: np.ndarray, weights: np.ndarray | None) -> float:
    """Return the Brier score of several labels per row, each 0 or 1: the mean over rows and labels."""
    return float(np.average(((probabilities - truth) ** 2).mean(axis=1, dtype=float), weights=weights))


# R² of numeric targets, including targets whose rows have several axes, such as images and series (*maps*).


def r2_of_maps(y: np.ndarray, predicted: np.ndarray, sample_weight: ArrayLike | None) -> float:
    """Return R² over all elements: one minus the sum of squared errors divided by that of predicting the mean row."""
    if y.shape != predicted.shape:
        raise ValueError(f"y has shape {y.shape}, but the predictions have {predicted.shape}.")
    from sklearn.metrics import r2_score  # needs a fifth of scikit-learn

    true, found = (array.reshape(len(array), -1) for array in (y, predicted))
    return float(r2_score(true, found, sample_weight=sample_weight, multioutput="variance_weighted"))


def r2_of_rows(y: np.ndarray, predicted: np.ndarray, weights: np.ndarray | None, *, are_maps: bool) -> float:
    """Return R² on validation rows: over all elements if the targets ``are_maps``, else the mean over the columns."""
    prediction = predicted.reshape(y.shape).astype(np.float64)
    return r2_of_maps(y, prediction, weights) if are_maps else r_squared(y, prediction, weights)


def r_squared(truth: np.ndarray, predicted: np.ndarray, weights: np.ndarray | None) -> float:
    """Return the mean R² of the columns; for a constant target, R² is 1 if the predictions are exact, else 0."""
    if len(truth) < 2:
        from sklearn.metrics import r2_score  # needs a fifth of scikit-learn

        return float(r2_score(truth, predicted, sample_weight=weights))
    true, found = (array.reshape(len(array), -1).astype(np.float64) for array in (truth, predicted))
    factors = 1.0 if weights is None else weights.astype(np.float64)[:, np.newaxis]
    squares = (factors * (true - found) ** 2).sum(axis=0)
    total = (factors * (true - np.average(true, axis=0, weights=weights)) ** 2).sum(axis=0)
    varies = total != 0
    return float(np.average(np.where(varies, 1 - squares / np.where(varies, total, 1), squares == 0)))

"""Validation data: the rows that are split off, their metrics, and errors that name X_val and y_val."""

from __future__ import annotations

import copy
import math
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import ArrayLike

from .._utils.params import is_splitter
from ..exceptions import ModelError
from .targets import (
    SeveralTargets,
    Targets,
    checked_label_weights,
    checked_weights,
    numbers_in_part,
    weighs_labels,
)

ValidationSplit: TypeAlias = Any
"""A share of the rows, their indices, a mask of all rows, or a splitter of scikit-learn."""

_NAMES = re.compile(r"(?<!['\"\w])(X|y|sample_weight)(?!['\"\w])")


@contextmanager
def naming_validation_data() -> Iterator[None]:
    """Rename X, y and sample_weight in errors to X_val, y_val and sample_weight_val."""
    with _naming("val"):
        yield


@contextmanager
def naming_old_data() -> Iterator[None]:
    """Rename X, y and sample_weight in errors to X_old, y_old and sample_weight_old."""
    with _naming("old"):
        yield


@contextmanager
def _naming(suffix: str) -> Iterator[None]:
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
            f"The validation set is too small: validation_split={fraction} of {len(rows)} rows is {held_out}, and a "
            f"score needs 2. Increase validation_split or the size of your dataset, or give X_val and y_val."
        )
    if stratify is not None:
        counts = np.bincount(stratify)
        if (counts == 1).any() and isinstance(targets.classes, np.ndarray):
            single = targets.classes[np.flatnonzero(counts == 1)].tolist()
            raise ValueError(
                f"early_stopping=True holds out rows of each class, but y has a single row of class "
                f"{', '.join(map(repr, single))}. Leave such rows out, or give X_val and y_val."
            )
        n_rows = len(stratify)
        classes = np.count_nonzero(counts)
        if min(held_out, n_rows - held_out) < classes:
            raise ValueError(
                f"early_stopping=True holds out rows of each class, but validation_split={fraction} of {n_rows} "
                f"rows splits them into {n_rows - held_out} and {held_out}, with {classes} classes in y. Choose "
                f"another validation_split, or give X_val and y_val."
            )
    from sklearn.model_selection import train_test_split  # imported here, as it loads a fifth of scikit-learn

    trained, held = train_test_split(rows, test_size=fraction, random_state=seed, stratify=stratify)
    return trained, held


@dataclass(frozen=True, eq=False)
class RowsToSplit:
    """The data that a splitter reads: X and y as the user gives them, and the group of each row."""

    X: Any
    y: Any
    groups: ArrayLike | None = None


def is_share(choice: object) -> TypeGuard[float]:
    """Return True if a ``validation_split`` is the share of the rows to hold out."""
    return isinstance(choice, Real)


def require_group_reader(groups: object, choice: ValidationSplit | None) -> None:
    """Raise if ``groups`` are given to a call that holds out no rows (None), or not by a splitter."""
    if groups is not None and not is_splitter(choice):
        found = "no rows are held out" if choice is None else f"validation_split={_shown(choice)}"
        raise ValueError(
            f"groups are read by a splitter that holds out rows, and {found}. Set validation_split=GroupShuffleSplit() "
            f"and leave X_val out, or leave groups out; OrtGradient estimators also need early_stopping=True."
        )


def share_of_blocks(choice: ValidationSplit) -> float:
    """Return the share of the blocks of a table to hold out; raise if ``choice`` names rows."""
    if not is_share(choice):
        raise ValueError(
            f"Whole blocks are held out from a table of more than buffer_rows rows, because the rows of a block are "
            f"read together: validation_split must be a float, got {_shown(choice)}. Or give X_val and y_val."
        )
    return float(choice)


def named_splits(
    choice: ValidationSplit,
    rows: np.ndarray,
    targets: Targets,
    given: RowsToSplit,
    rng: np.random.RandomState,
    count: int = 1,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the rows to train on and those held out that indices, a mask or a splitter name, ``count`` times.

    Indices and masks name the same rows each time. A splitter gives its last splits, the last one first, and begins
    again after the first one; ``TimeSeriesSplit`` always gives the last one, because earlier ones lack recent rows.

    Parameters
    ----------
    rows : ndarray of int
        The rows that count. Others may be named, but are in neither part.
    """
    n_rows = len(targets.values)
    if is_splitter(choice):
        splits = _last_splits(choice, n_rows, given, rng, count)
    else:
        held = np.sort(_named_rows(np.asarray(choice), n_rows))
        splits = [(np.setdiff1d(np.arange(n_rows), held), held)]
    counted = np.zeros(n_rows, bool)
    counted[rows] = True
    found = [(trained[counted[trained]], held[counted[held]]) for trained, held in splits]
    for trained, held in found:
        _require_parts(trained, held, choice)
        _require_classes(rows, trained, targets)
        if targets.task == "regression" and len(held) < 2:
            raise ValueError(f"validation_split={_shown(choice)} holds out one row of positive weight, and R² needs 2.")
    return [found[i % len(found)] for i in range(count)]


def _shown(choice: ValidationSplit) -> str:
    """Return a short text of a ``validation_split`` for messages."""
    return repr(choice) if is_share(choice) or is_splitter(choice) else f"an array of {len(choice)}"


def _named_rows(named: np.ndarray, n_rows: int) -> np.ndarray:
    """Return the indices of the rows that a mask or indices name, each of them once."""
    rows = _rows_of(named, n_rows)
    found, counts = np.unique(rows, return_counts=True)
    if (counts > 1).any():
        raise ValueError(f"validation_split names row {found[counts > 1][0]} more than once.")
    return rows


def _rows_of(named: np.ndarray, n_rows: int) -> np.ndarray:
    """Return the indices of the rows of a mask or of indices, in their order."""
    if named.dtype.kind == "b":
        if len(named) != n_rows:
            raise ValueError(f"validation_split is a mask of {len(named)} rows, and X has {n_rows}.")
        return np.flatnonzero(named)
    outside = named[(named < 0) | (named >= n_rows)]
    if len(outside):
        raise ValueError(f"validation_split names row {outside[0]}, and the rows of X are 0 to {n_rows - 1}.")
    return named.astype(np.intp)


def _last_splits(
    splitter: Any, n_rows: int, given: RowsToSplit, rng: np.random.RandomState, count: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    from sklearn.model_selection import TimeSeriesSplit  # imported here, as it loads a fifth of scikit-learn

    if getattr(splitter, "random_state", 0) is None and getattr(splitter, "shuffle", True):
        splitter = copy.copy(splitter)
        splitter.random_state = rng.randint(2**31 - 1)
    # scikit-learn cannot tell the number of rows of a dict.
    X, y = (None if isinstance(one, Mapping) else one for one in (given.X, given.y))
    splits = splitter.split(np.zeros((n_rows, 1)) if X is None else X, y, given.groups)
    last = deque(splits, maxlen=1 if isinstance(splitter, TimeSeriesSplit) else count)
    found = []
    for parts in reversed(last):
        trained = _rows_of(np.asarray(parts[0]), n_rows)
        held = _named_rows(np.asarray(parts[1]), n_rows)
        if len(both := np.intersect1d(trained, held)):
            raise ValueError(
                f"validation_split={splitter!r} puts {len(both)} rows into both parts, row {both[0]} among them."
            )
        found.append((trained, held))
    if not found:
        raise ValueError(f"validation_split={splitter!r} gives no split.")
    return found


def _require_parts(trained: np.ndarray, held: np.ndarray, choice: object) -> None:
    """Raise if a part has no rows."""
    if not (len(trained) and len(held)):
        lacking = "hold out" if len(trained) else "train on"
        raise ValueError(f"validation_split={_shown(choice)} leaves no row of positive weight to {lacking}.")


def _require_classes(rows: np.ndarray, trained: np.ndarray, targets: Targets) -> None:
    """Raise if none of the rows to train on has a class that other rows have."""
    parts: list[tuple[Targets, np.ndarray | None]] = [(targets, None)]
    if isinstance(targets, SeveralTargets):
        parts = list(zip(targets.parts, targets.weights, strict=True))
    for part, weights in parts:
        if part.stratify is None or not isinstance(part.classes, np.ndarray):
            continue
        of_all, of_trained = (chosen if weights is None else chosen[weights[chosen] > 0] for chosen in (rows, trained))
        lacking = np.setdiff1d(part.stratify[of_all], part.stratify[of_trained])
        if len(lacking):
            raise ValueError(
                f"validation_split leaves no row of class {', '.join(map(repr, part.classes[lacking].tolist()))} to "
                f"train on: hold out fewer rows of it, or leave the class out."
            )


def require_scorable(targets: Targets, weights: np.ndarray | None) -> None:
    """Raise if there are too few validation rows for R², which is undefined for a single row."""
    counted = len(targets.values) if weights is None else np.count_nonzero(weights)
    if targets.task == "regression" and targets.label_mask is not None:
        mask = targets.label_mask if weights is None else targets.label_mask[weights > 0]
        counted = int(mask.sum(axis=0).max(initial=0))
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
    """Return the log loss of several labels per row, each 0 or 1: the mean over rows and labels.

    ``weights`` are those of rows, (n_samples,), or of single labels, (n_samples, n_labels).
    """
    least = np.finfo(probabilities.dtype).eps
    p = probabilities.clip(least, 1 - least)
    return _mean_of_labels(-np.where(truth == 1, np.log(p), np.log1p(-p)), weights)


def squared_error_of_labels(truth: np.ndarray, probabilities: np.ndarray, weights: np.ndarray | None) -> float:
    """Return the Brier score of several labels per row, weighted as in :func:`log_loss_of_labels`."""
    return _mean_of_labels((probabilities - truth) ** 2, weights)


def _mean_of_labels(errors: np.ndarray, weights: np.ndarray | None) -> float:
    if weights is not None and weights.ndim == 2:
        return float(np.average(errors.astype(float), weights=weights))
    return float(np.average(errors.mean(axis=1, dtype=float), weights=weights))


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


def r2_in_part(values: np.ndarray, counted: np.ndarray, predicted: np.ndarray, weights: np.ndarray | None) -> float:
    """Return the mean R² of the columns, each on the numbers of it that are ``counted``; one alone has no R².

    ``weights`` are those of rows, (n_samples,), or of single numbers, (n_samples, n_outputs).
    """
    if values.shape != predicted.shape:
        raise ValueError(f"y has shape {values.shape}, but the predictions have {predicted.shape}.")
    scores = []
    for j, own in enumerate(counted.T):
        given = weights[:, j] if weights is not None and weights.ndim == 2 else weights
        rows = np.flatnonzero(own if given is None else own & (given > 0))
        if len(rows) > 1:
            some = None if given is None else given[rows]
            scores.append(r_squared(values[rows, j], predicted[rows, j], some))
    if not scores:
        raise ValueError("R² needs 2 numbers of an output, and no column of y has them.")
    return float(np.mean(scores))


def r2_by_number(y: Any, sample_weight: Any, predict: Callable[[], np.ndarray]) -> float | None:
    """Return the mean R² of the columns of ``y`` where some numbers are missing, or have weights; else None."""
    found = numbers_in_part(y)
    weights: np.ndarray | None = None
    if weighs_labels(sample_weight):
        if found is None:
            values = np.asarray(y, np.float64)
            found = values, np.ones(values.shape, bool)
        weights = checked_label_weights(sample_weight, found[0].shape)
    elif found is None:
        return None
    elif sample_weight is not None:
        weights = checked_weights(sample_weight, len(found[0]))
    values, counted = found
    return r2_in_part(values, counted, predict(), weights)


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

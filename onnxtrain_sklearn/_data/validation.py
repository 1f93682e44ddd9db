"""Validation data: the rows that are split off, and errors that name X_val and y_val."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ..exceptions import ModelError
from .targets import Targets

_NAMES = re.compile(r"(?<!['\"\w])(X|y|sample_weight)(?!['\"\w])")


@contextmanager
def faults_of_validation_data() -> Iterator[None]:
    """Report what is wrong with X, y and sample_weight as faults of X_val, y_val and sample_weight_val."""
    with _faults_of("val"):
        yield


@contextmanager
def faults_of_old_data() -> Iterator[None]:
    """Report what is wrong with X, y and sample_weight as faults of X_old, y_old and sample_weight_old."""
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
    """Return ``rows`` to train on, and those held out for early stopping: of each class the same share."""
    seed = rng.randint(2**31 - 1)
    stratify = None if targets.stratify is None else targets.stratify[rows]
    held_out = math.ceil(fraction * len(rows))
    if held_out < 2:
        raise ValueError(
            f"The validation set is too small: validation_fraction={fraction} of {len(rows)} rows is {held_out}, and a "
            f"score needs 2. Increase validation_fraction or the size of your dataset, or give X_val and y_val."
        )
    if stratify is not None:
        _require_rows_of_each_class(stratify, targets, fraction, held_out)
    from sklearn.model_selection import train_test_split  # needs a fifth of scikit-learn

    trained, held = train_test_split(rows, test_size=fraction, random_state=seed, stratify=stratify)
    return trained, held


def _require_rows_of_each_class(stratify: np.ndarray, targets: Targets, fraction: float, held_out: int) -> None:
    counts = np.bincount(stratify)
    if (counts == 1).any() and isinstance(targets.classes, np.ndarray):
        raise ValueError(
            f"early_stopping=True holds out rows of each class, but y has a single row of class "
            f"{', '.join(map(repr, targets.classes[np.flatnonzero(counts == 1)].tolist()))}. Leave such rows out, or "
            f"give X_val and y_val."
        )
    classes = np.count_nonzero(counts)
    if min(held_out, len(stratify) - held_out) < classes:
        raise ValueError(
            f"early_stopping=True holds out rows of each class, but validation_fraction={fraction} of {len(stratify)} "
            f"rows splits them into {len(stratify) - held_out} and {held_out}, with {classes} classes in y. Choose "
            f"another validation_fraction, or give X_val and y_val."
        )


def require_scorable(targets: Targets, weights: np.ndarray | None) -> None:
    """Raise where validation data are too few for R², which a single row has none of."""
    counted = len(targets.values) if weights is None else np.count_nonzero(weights)
    if targets.task == "regression" and counted < 2:
        raise ValueError(
            f"The validation set is too small: R² needs 2 rows of positive weight, X_val and y_val have {counted}."
        )

"""Rows for training and for validation of each member of an ensemble."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

LEAST_HELD_OUT = 2
"""Fewer rows give no score."""


def validation_folds(
    rows: np.ndarray, labels: np.ndarray | None, count: int, fraction: float | None, rng: np.random.RandomState
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield rows to train on and rows to validate on, ``count`` times.

    The rows are split into folds of about ``fraction`` of them, and into ``count`` folds at least: each member holds
    out another fold. Each fold gets the same share of each class; a row alone in its class is in no fold. Nothing
    is held out for ``fraction`` None, or where there are too few rows.

    Parameters
    ----------
    rows : ndarray of int
    labels : ndarray of int or None
        The class of each of these rows.
    """
    n_folds = 0 if fraction is None else max(count, round(1 / fraction))
    fold = _fold_of_rows(len(rows), labels, n_folds, rng)
    for member in range(count):
        held = fold == member
        if np.count_nonzero(held) < LEAST_HELD_OUT:
            held = np.zeros(len(rows), bool)
        yield rows[~held], rows[held]


def _fold_of_rows(n_rows: int, labels: np.ndarray | None, n_folds: int, rng: np.random.RandomState) -> np.ndarray:
    """Return the fold of each row; -1 for none."""
    fold = np.full(n_rows, -1)
    if not n_folds:
        return fold
    order = rng.permutation(n_rows)
    if labels is not None:
        order = order[np.argsort(labels[order], kind="stable")]
        alone = np.bincount(labels)[labels] == 1
        order = order[~alone[order]]
    fold[order] = np.arange(len(order)) % n_folds
    return fold

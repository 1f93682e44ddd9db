"""The rows that fine-tuning chooses by: those of each fold, those that are only trained on, those that are not used."""

from __future__ import annotations

import numpy as np

TRAINED, UNUSED = -1, -2
"""In place of a fold: rows that all folds train on, and rows that have no part in the choice."""

CROSS_VALIDATED_ROWS, CROSS_VALIDATED_WORK = 1000, 20_000_000
"""Most rows that take part in the cross-validation, and most rows times parameters; others are trained on only."""

ENOUGH_FOR_ONE_SPLIT = 3
"""Number of all rows for each row of the cross-validation from which these are held out once, not fold by fold."""

ROWS_OF_CHOICE = 5
"""Number of rows of the choice, for each that is held out once; the candidates are trained on the others."""


def folds_of(targets: np.ndarray, n_weights: int, cv: int, rng: np.random.RandomState) -> np.ndarray:
    """Return the fold of each row; targets are spread evenly over folds. The rows come in random order."""
    n_rows = len(targets)
    most = int(np.clip(CROSS_VALIDATED_WORK / max(1, n_weights), 200, CROSS_VALIDATED_ROWS))
    if most * ENOUGH_FOR_ONE_SPLIT <= n_rows:  # the first ones are in few pieces of the data
        folds = np.full(n_rows, UNUSED)
        folds[: most * ROWS_OF_CHOICE], folds[:most] = TRAINED, 0
        return folds
    order = rng.permutation(n_rows)[:most]
    order = order[np.argsort(targets[order], kind="stable")]
    folds = np.full(n_rows, TRAINED)
    folds[order] = np.arange(len(order)) % min(cv, len(order))
    return folds


def fraction_used(folds: np.ndarray) -> float:
    """Return the part of all rows that the candidates of the choice are trained on, where one fold is held out."""
    return float(np.mean(folds == TRAINED))

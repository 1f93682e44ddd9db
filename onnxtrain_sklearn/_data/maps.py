"""Numeric targets whose rows have several axes, such as images and series."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from sklearn.metrics import r2_score


def r2_of_maps(y: np.ndarray, predicted: np.ndarray, sample_weight: ArrayLike | None) -> float:
    """Return R² of all elements: one less the sum of their squared errors by that of the mean row."""
    if y.shape != predicted.shape:
        raise ValueError(f"y has shape {y.shape}, but the predictions have {predicted.shape}.")
    true, found = (array.reshape(len(array), -1) for array in (y, predicted))
    return float(r2_score(true, found, sample_weight=sample_weight, multioutput="variance_weighted"))

"""R² of numeric targets, also of those whose rows have several axes, such as images and series."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .validation_scores import r_squared


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

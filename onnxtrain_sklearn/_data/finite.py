"""The check of plain arrays in place of scikit-learn's: all numbers are finite in the type of the graph."""

from __future__ import annotations

import numpy as np

from .._support.typing import DType


def finite_rows(rows: np.ndarray, dtype: DType) -> np.ndarray | None:
    """Return ``rows`` contiguous and in ``dtype``; None if one of the numbers is not finite, or too large for it."""
    if not np.isfinite(rows).all():
        return None
    if rows.dtype == dtype:
        return np.ascontiguousarray(rows)
    try:
        with np.errstate(over="raise"):
            return np.ascontiguousarray(rows, dtype)
    except FloatingPointError:
        return None

"""The check of plain arrays in place of scikit-learn's: all numbers are finite in the type of the graph."""

from __future__ import annotations

import numpy as np

from .._support.typing import DType


def finite_rows(rows: np.ndarray, dtype: DType) -> np.ndarray | None:
    """Return ``rows`` contiguous and in ``dtype``; None if one of the numbers is not finite, or too large for it."""
    if rows.dtype == dtype:
        found = np.ascontiguousarray(rows)
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            found = np.ascontiguousarray(rows, dtype)
    return found if np.isfinite(found).all() else None

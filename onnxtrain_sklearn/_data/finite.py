"""The check of plain arrays in place of scikit-learn's: all numbers are finite in the type of the graph."""

from __future__ import annotations

import math

import numpy as np

from .._support.float_errors import ignores_float_errors
from .._support.typing import DType


def finite_rows(rows: np.ndarray, dtype: DType) -> np.ndarray | None:
    """Return ``rows`` contiguous and in ``dtype``; None if one of the numbers is not finite, or too large for it."""
    found = np.ascontiguousarray(rows) if rows.dtype == dtype else _in_graph_type(rows, dtype)
    squares = np.vdot(found, found)  # is finite only if all are, and takes less time than to look at each
    return found if math.isfinite(squares) or np.isfinite(found).all() else None


@ignores_float_errors
def _in_graph_type(rows: np.ndarray, dtype: DType) -> np.ndarray:
    return np.ascontiguousarray(rows, dtype)

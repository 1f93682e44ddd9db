"""Checks for finite numbers: of plain arrays in place of scikit-learn's checks, and of the vectors of a training."""

from __future__ import annotations

import math

import numpy as np

from .._utils.errors import ignores_float_errors
from .._utils.typing import DType

SHORT = 10_000
"""Numbers up to which BLAS takes one thread for their squares."""

BLOCK_OF_ANSWERS = 2**20
"""Numbers that are looked at together: the answers for a whole large vector take memory."""


def is_finite(vector: np.ndarray) -> bool:
    """Return True if all numbers of a vector are finite."""
    if len(vector) <= SHORT and math.isfinite(np.vdot(vector, vector)):  # takes less time; dot would tell of overflow
        return True
    blocks = (vector[i : i + BLOCK_OF_ANSWERS] for i in range(0, len(vector), BLOCK_OF_ANSWERS))
    return all(bool(np.isfinite(block).all()) for block in blocks)


def finite_rows(rows: np.ndarray, dtype: DType) -> np.ndarray | None:
    """Return ``rows`` contiguous and in ``dtype``; None if one of the numbers is not finite, or too large for it."""
    found = np.ascontiguousarray(rows) if rows.dtype == dtype else _in_graph_type(rows, dtype)
    squares = np.vdot(found, found)  # is finite only if all are, and takes less time than to look at each
    return found if math.isfinite(squares) or np.isfinite(found).all() else None


@ignores_float_errors
def _in_graph_type(rows: np.ndarray, dtype: DType) -> np.ndarray:
    return np.ascontiguousarray(rows, dtype)

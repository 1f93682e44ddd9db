"""Rows of the data on which the predictions of two models are compared."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._support.typing import MatrixLike
from . import sklearn_private

CHECKED_ROWS = 256
"""Number of rows on which predictions are compared."""


def sample_rows(X: MatrixLike) -> Any:
    """Return rows spread over the data, indexed as scikit-learn does."""
    rows: Any = X
    n = rows.shape[0] if hasattr(rows, "shape") else len(rows)
    return sklearn_private._safe_indexing(X, np.unique(np.linspace(0, n - 1, min(n, CHECKED_ROWS)).astype(int)))

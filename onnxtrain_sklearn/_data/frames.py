"""Data of other kinds as those that are taken: tables of Arrow, masked arrays, frames that hold no rows yet.

NumPy's conversions and scikit-learn's checks drop a mask, and go on with the numbers that it hides.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_COMPUTE = ("collect", "compute", "toPandas")
"""Methods that compute the rows: of polars, of Dask, of Spark."""


def as_frame(X: object) -> Any:
    """Return a table of Arrow as a data frame of pandas, a masked array with NaN or None; all else as it is.

    Raises
    ------
    TypeError
        The rows are not computed yet.
    """
    if hasattr(X, "column_names") and hasattr(X, "to_pandas"):
        return X.to_pandas()
    if isinstance(X, np.ma.MaskedArray) and np.ma.is_masked(X):
        return _with_missing(X)
    if hasattr(X, "columns") and not hasattr(X, "iloc") and not hasattr(X, "__len__"):
        found = next((name for name in _COMPUTE[::-1] if hasattr(X, name)), None)
        raise TypeError(
            f"X is a {type(X).__name__}, which holds no rows yet. Give a data frame that does"
            f"{f': X.{found}()' if found else ''}."
        )
    return X


def _with_missing(X: np.ma.MaskedArray[Any, Any]) -> np.ndarray:
    """Return a masked array without its mask: numbers with NaN, others with None where they are hidden."""
    if X.dtype.kind not in "fiub":
        return np.asarray(np.ma.filled(X.astype(object), None))
    return np.asarray(np.ma.filled(X if X.dtype.kind == "f" else X.astype(np.float64), np.nan))


def require_no_times(X: object) -> None:
    """Raise for an array of times, or a column of a data frame that holds them: NumPy counts nanoseconds then."""
    is_frame = hasattr(X, "iloc") and hasattr(X, "columns") and hasattr(X, "dtypes")
    types = dict(zip(X.columns, X.dtypes, strict=True)) if is_frame else {None: getattr(X, "dtype", None)}  # type: ignore[attr-defined]
    for name, dtype in types.items():
        if getattr(dtype, "kind", "") in ("m", "M"):
            what = "X" if name is None else f"Column {name!r} of X"
            raise TypeError(f"{what} holds times ({dtype}); give numbers made of them, such as days since a date.")


def require_unmasked(values: object, name: str) -> None:
    """Raise for a masked array that hides values."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        hidden, count = int(np.ma.getmaskarray(values).sum()), values.size
        raise ValueError(f"{name} is a masked array that hides {hidden} of {count} values: leave out their rows.")

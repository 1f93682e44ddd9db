"""Data of other kinds as those that are taken: tables of Arrow, masked arrays, frames that hold no rows yet.

NumPy's conversions and scikit-learn's checks drop a mask, and go on with the numbers that it hides.
"""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np

_COMPUTE = ("collect", "compute", "toPandas")
"""Methods that compute the rows: of polars, of Dask, of Spark."""

_TIMES = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64)
"""Cells that are times; those of pandas derive from Python's, but for periods."""


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


def require_no_times(X: object, name: str = "X") -> None:
    """Raise for an array of times, or a column of a data frame that holds them: NumPy counts nanoseconds then.

    The rule is one for all frames: pandas, polars, tables of Arrow, and for dates and times among Python's objects.
    """
    columns = getattr(X, "columns", None)
    if columns is None or not hasattr(X, "__getitem__"):
        if kind := _kind_of_times(X):
            raise _times(name, kind)
        return
    for i, column in enumerate(columns):
        own = X.iloc[:, i] if hasattr(X, "iloc") else X[column]  # labels of pandas may occur twice
        if kind := _kind_of_times(own):
            raise _times(f"Column {column!r} of {name}", kind)


def _times(what: str, kind: str) -> TypeError:
    return TypeError(f"{what} holds times ({kind}); give numbers made of them, such as days since a date.")


def _kind_of_times(values: Any) -> str:
    """Return the type of the times that an array or a column holds, the first of several; empty: it holds none."""
    dtype = getattr(values, "dtype", None)
    temporal = getattr(dtype, "is_temporal", None)  # of polars
    if getattr(dtype, "kind", "") in ("m", "M") or (temporal is not None and temporal()):
        return str(dtype)
    if dtype is None and isinstance(values, list | tuple):
        try:
            return _kind_of_times(np.asarray(values))
        except ValueError:  # rows of different lengths
            return ""
    if not hasattr(values, "__array__") or (str(dtype) not in ("object", "Object") and not _is_of_objects(dtype)):
        return ""
    found = {type(cell) for cell in np.asarray(values, object).ravel()}
    times = [one.__name__ for one in found if issubclass(one, _TIMES) or one.__name__ == "Period"]
    return min(times, default="")


def _is_of_objects(dtype: object) -> bool:
    """Whether pandas makes Python's objects of an extension's cells, such as periods and the dates of Arrow."""
    return getattr(dtype, "kind", "") == "O" and str(dtype).startswith(("period", "date", "time", "duration"))


def require_unmasked(values: object, name: str) -> None:
    """Raise for a masked array that hides values."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        hidden, count = int(np.ma.getmaskarray(values).sum()), values.size
        raise ValueError(f"{name} is a masked array that hides {hidden} of {count} values: leave out their rows.")

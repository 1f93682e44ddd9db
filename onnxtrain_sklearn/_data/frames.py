"""Tables of other libraries as data frames: those of Arrow are converted, those that hold no rows yet are refused."""

from __future__ import annotations

from typing import Any

_COMPUTE = ("collect", "compute", "toPandas")
"""Methods that compute the rows: of polars, of Dask, of Spark."""


def as_frame(X: object) -> Any:
    """Return a table of Arrow as a data frame of pandas; all else is returned as it is.

    Raises
    ------
    TypeError
        The rows are not computed yet.
    """
    if hasattr(X, "column_names") and hasattr(X, "to_pandas"):
        return X.to_pandas()
    if hasattr(X, "columns") and not hasattr(X, "iloc") and not hasattr(X, "__len__"):
        found = next((name for name in _COMPUTE[::-1] if hasattr(X, name)), None)
        raise TypeError(
            f"X is a {type(X).__name__}, which holds no rows yet. Give a data frame that does"
            f"{f': X.{found}()' if found else ''}."
        )
    return X

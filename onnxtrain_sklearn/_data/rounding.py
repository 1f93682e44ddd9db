"""Warnings of numbers that the graph's type cannot tell apart: float32 has no odd integers above 2**24.

Identifiers, time stamps and prices in cents are such numbers, and so are numbers far from 0 that differ by little.
Rounding may make different rows equal.
"""

from __future__ import annotations

import warnings

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from .._support.typing import DType, MatrixLike, SparseLike
from ..exceptions import OnnxTrainWarning

COARSE = 8
"""Steps of the type in a standard deviation from which on the error of rounding does not matter: its variance is 1/768
of that of the numbers."""


def warn_of_steps(numbers: np.ndarray, dtype: DType, name: str) -> None:
    """Warn where ``dtype`` has fewer than eight numbers in a standard deviation of ``numbers``, which are float64.

    Numbers that ``dtype`` has, as they were float32 before, lose nothing, nor do those that differ by rounding alone.
    """
    there = numbers[~np.isnan(numbers)]
    if not there.size or np.abs(there).max() > np.finfo(str(dtype)).max:
        return
    largest, spread = np.abs(there).max(), float(there.std(dtype=np.float64))
    step, constant = float(np.spacing(largest.astype(dtype))), np.ptp(there) <= COARSE * np.spacing(largest)
    if constant or spread > COARSE * step or (there == np.rint(there)).all() or (there == there.astype(dtype)).all():
        return
    warnings.warn(
        f"{name} holds numbers near {largest:.6g} that are about {spread:.2g} apart, and {dtype}, the type of the "
        f"graph, has none between steps of {step:.2g} there. Subtract a number near them, such as their mean.",
        OnnxTrainWarning,
        stacklevel=2,
    )


def warn_of_rounding(data: ArrayLike | SparseLike, dtype: DType, name: str) -> None:
    """Warn where ``data`` are integers and one of them is another number in the float type ``dtype``."""
    values = data.data if sp.issparse(data) else np.asarray(data)
    if dtype.kind != "f" or values.dtype.kind not in "iu" or not values.size:
        return
    limit = 2 ** (int(np.finfo(str(dtype)).nmant) + 1)
    if -limit <= int(values.min()) and int(values.max()) <= limit:
        return
    with np.errstate(invalid="ignore"):
        changed = np.argwhere(values.astype(dtype).astype(values.dtype) != values)
    if len(changed):
        place = tuple(changed[0])
        column = f" in column {place[1]}" if len(place) == 2 else ""
        warnings.warn(
            f"{name} holds the integer {values[place]}{column}, which is rounded to "
            f"{float(values[place].astype(dtype)):.0f} in {dtype}, the type of the graph: integers are exact up to "
            f"{limit}. Encode identifiers as categories, and scale numbers before they are given.",
            OnnxTrainWarning,
            stacklevel=2,
        )


def warn_of_rounded_columns(X: MatrixLike, array: ArrayLike | SparseLike, dtype: DType) -> None:
    """Warn of the columns of a data frame by their names, in which integers may stand beside floats; else of arrays."""
    if not (hasattr(X, "columns") and hasattr(X, "dtypes") and hasattr(X, "iloc")):
        warn_of_rounding(array, dtype, "X")
        return
    for place, (name, kind) in enumerate(zip(X.columns, X.dtypes, strict=True)):
        if getattr(kind, "kind", "") in ("i", "u"):
            warn_of_rounding(X.iloc[:, place].to_numpy(), dtype, f"Column {name!r} of X")

"""Raw tables: decide whether each cell of a data frame or an array is a number, a category or a missing value.

``read_table`` is the only reader: ``fit`` and ``predict`` call it. Numbers become float64 with NaN for missing ones,
times int64 (``times``).
Text, truth values and categories of pandas that are not numbers stay objects, with None for missing ones.
``categorical_columns`` decides which columns are categories; ``preprocessing`` gives the categories their codes.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from .._data.columns import as_frame, require_no_times, warn_of_rounding, warn_of_steps
from .._data.inputs import is_frame, warn_of_texts
from .._data.targets import is_missing
from .._utils.typing import MatrixLike
from .times import holds_times, nanoseconds_of, nanoseconds_of_objects

CategoricalFeatures: TypeAlias = "str | Sequence[str] | Sequence[int] | Sequence[bool] | None"
"""Which columns are categorical: "from_dtype", names, indices, a mask, or None for no column."""


@dataclass(frozen=True)
class RawTable:
    """The columns of a table.

    Attributes
    ----------
    names : tuple of str
        The names of a data frame's columns, unless they are empty; else ``x0``, ``x1``, ...
    columns : tuple of ndarray
        A column is float64 with NaN for missing numbers, int64 for times (``times``), or of objects with None for
        missing values.
    declared : tuple of bool
        Whether the type of a column declares categories (pandas); they may be numbers, texts or booleans.
    """

    names: tuple[str, ...]
    columns: tuple[np.ndarray, ...]
    declared: tuple[bool, ...]

    @property
    def is_categorical(self) -> tuple[bool, ...]:
        """Flags of the columns, True for categories by type and for texts."""
        return tuple(own or column.dtype == object for own, column in zip(self.declared, self.columns, strict=True))

    def __len__(self) -> int:
        return len(self.columns[0])

    def rows(self, chosen: np.ndarray) -> RawTable:
        """Return some of the rows."""
        return RawTable(self.names, tuple(column[chosen] for column in self.columns), self.declared)


def read_table(estimator: BaseEstimator, X: MatrixLike, *, reset: bool, warned: set[str] | None = None) -> RawTable:
    """Return the columns of ``X``, validated as scikit-learn does; ``reset`` stores names and number of the columns.

    Of columns in ``warned`` no warning is issued; those of which one is are added.

    Raises
    ------
    ValueError, TypeError
        ``X`` is not a table, its columns are not those of ``fit``, or a cell is neither a number nor a category.
    """
    X = as_frame(X)
    warned = set() if warned is None else warned
    if is_frame(X):
        return _from_frame(estimator, X, reset=reset, warned=warned)
    if sp.issparse(X):
        raise TypeError(
            f"Sparse data was passed for X, but dense data is required: {type(estimator).__name__} takes a data frame "
            f"or an array. Use '.toarray()' to convert it."
        )
    require_no_times(X)
    array = validate_data(estimator, X, reset=reset, dtype=None, ensure_all_finite=False)
    if array.dtype.kind in "OUS":
        columns = [_numbers_or_objects(f"x{i}", array[:, i].astype(object)) for i in range(array.shape[1])]
    else:
        _warn_of_rounding(array, "X", warned)
        columns = [_finite(f"x{i}", array[:, i].astype(np.float64)) for i in range(array.shape[1])]
    names = tuple(f"x{i}" for i in range(array.shape[1]))
    return RawTable(names, tuple(columns), (False,) * len(names))


def _warn_of_rounding(values: np.ndarray, name: str, warned: set[str]) -> None:
    if name not in warned and warn_of_rounding(values, np.dtype(np.float32), name):
        warned.add(name)


def _from_frame(estimator: BaseEstimator, X: Any, *, reset: bool, warned: set[str]) -> RawTable:
    names = [str(name) or f"x{i}" for i, name in enumerate(X.columns)]  # an input of a graph cannot have an empty name
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"X has several columns named {min(twice)!r}; each column needs a name of its own.")
    rows, width = len(X), len(names)
    if not rows or not width:
        what = "sample" if width else "feature"
        raise ValueError(f"Found array with 0 {what}(s) (shape=({rows}, {width})) while a minimum of 1 is required.")
    validate_data(estimator, X, reset=reset, skip_check_array=True)
    series = [X.iloc[:, i] if hasattr(X, "iloc") else X[name] for i, name in enumerate(X.columns)]
    columns = [_from_series(name, one, warned) for name, one in zip(names, series, strict=True)]
    declared = tuple(str(one.dtype).lower().startswith(("categor", "enum", "bool")) for one in series)
    return RawTable(tuple(names), tuple(columns), declared)


def _from_series(name: str, series: Any, warned: set[str]) -> np.ndarray:
    kind = getattr(series.dtype, "kind", "O")
    if kind in "iu":
        _warn_of_rounding(series.dropna().to_numpy(), f"Column {name!r} of X", warned)
    if kind in "iufb":
        given = series.to_numpy(dtype=np.float64, na_value=np.nan) if hasattr(series, "iloc") else np.asarray(series)
        return _finite(name, np.asarray(given, np.float64))
    if holds_times(series):
        return nanoseconds_of(name, series)
    if kind in "mc":
        what, such = ("complex numbers", "their real parts") if kind == "c" else ("durations", "seconds")
        raise TypeError(
            f"Column {name!r} of X holds {what} ({series.dtype}); give numbers made of them, such as {such}."
        )
    if hasattr(series, "iloc"):  # pandas takes a tenth of the time of a loop over text
        return _numbers_or_objects(name, series.to_numpy(dtype=object))
    # The None at the end keeps NumPy from making a second axis of lists in cells.
    return _numbers_or_objects(name, np.array([*series, None], object)[:-1])


def _numbers_or_objects(name: str, values: np.ndarray) -> np.ndarray:
    """Return a column of objects as float64 where all are numbers, otherwise as objects with None for missing ones."""
    listed = values.tolist()
    if set(map(type, listed)) == {str}:  # in C: large tables of text would take most of their time in the loop below
        return values
    listed = [value if type(value) is str or not is_missing(value) else None for value in listed]
    kinds = set(map(type, listed)) - {type(None)}
    if kinds and all(issubclass(kind, datetime.date) for kind in kinds):
        return nanoseconds_of_objects(name, listed)
    if refused := next((kind for kind in kinds if not issubclass(kind, str | bytes | Real | decimal.Decimal)), None):
        raise TypeError(
            f"argument must be a string or a real number: column {name!r} of X holds a {refused.__name__}. "
            f"{_instead(refused)}"
        )
    if kinds and not any(issubclass(kind, str | bytes | bool) for kind in kinds):
        return _finite(name, np.array([np.nan if value is None else float(value) for value in listed]))
    return np.array([*listed, None], object)[:-1]


def _instead(kind: type) -> str:
    """Return the remedy for cells of a type that is neither text nor number."""
    if issubclass(kind, datetime.date | datetime.time) or kind.__name__ == "Period":
        return "Give a column of dates alone, or numbers made of them, such as hours."
    if issubclass(kind, datetime.timedelta):
        return "Convert the column to numbers."
    return "Convert the column to text, by .astype(str) for example, if its values are categories."


def _finite(name: str, numbers: np.ndarray) -> np.ndarray:
    """Return numbers, NaN among them; raise for infinite ones."""
    if np.abs(numbers[~np.isnan(numbers)]).max(initial=0.0) > np.finfo(np.float32).max:
        raise ValueError(f"Input X contains infinity or a value too large for dtype('float32') in column {name!r}.")
    return numbers


def categorical_columns(table: RawTable, chosen: CategoricalFeatures) -> tuple[bool, ...]:
    """Return a flag for each column, True if it is categorical by the parameter ``categorical_features``.

    Raises
    ------
    ValueError
        A name, an index or a mask does not fit the table, or a column of text is not named.
    """
    if isinstance(chosen, str):
        if chosen != "from_dtype":
            raise ValueError(f"categorical_features must be 'from_dtype', a list or None, got {chosen!r}.")
        return table.is_categorical
    places = _chosen_indices(table, [] if chosen is None else list(chosen))
    for i, (name, column) in enumerate(zip(table.names, table.columns, strict=True)):
        if column.dtype == np.int64 and i in places:
            raise ValueError(
                f"categorical_features names column {name!r} of X, which holds times: leave it out, or convert the "
                f"column to text."
            )
        if column.dtype == object and i not in places:
            raise ValueError(f"could not convert string to float: column {name!r} of X holds text and is not listed in "
                             f"categorical_features.")  # fmt: skip
    return tuple(i in places for i in range(len(table.names)))


def warn_of_columns(table: RawTable, chosen: CategoricalFeatures) -> None:
    """Warn of numbers that are equal in float32 and, unless the user named them, texts that are hardly categories."""
    for name, column, declared in zip(table.names, table.columns, table.declared, strict=True):
        if column.dtype == np.float64:
            warn_of_steps(column, np.dtype(np.float32), f"Column {name!r} of X")
        elif column.dtype == object and isinstance(chosen, str):
            texts = (value for value in column.tolist() if isinstance(value, str))
            warn_of_texts(name, texts, len(table), has_codes=declared)


def _chosen_indices(table: RawTable, chosen: Collection[Any]) -> set[int]:
    """Return the indices of the columns that names, indices or a mask stand for."""
    width = len(table.names)
    if chosen and all(isinstance(one, bool | np.bool_) for one in chosen):
        if len(chosen) != width:
            raise ValueError(f"categorical_features is a mask of {len(chosen)} columns, but X has {width}.")
        return {i for i, one in enumerate(chosen) if one}
    if unknown := [one for one in chosen if isinstance(one, str) and one not in table.names]:
        raise ValueError(f"categorical_features names {unknown[0]!r}, which is not a column of X: {list(table.names)}.")
    places = {table.names.index(one) if isinstance(one, str) else int(one) for one in chosen}
    if outside := [i for i in places if not -width <= i < width]:
        raise ValueError(f"categorical_features names column {outside[0]}, but X has {width} columns.")
    return {i % width for i in places}

"""Read CSV and Parquet tables: their columns as numbers and text, and the column of the target."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np

from .._data.columns import warn_of_rounding
from .._data.inputs import warn_of_texts
from ..exceptions import nearest, warn
from .console import UsageError

if TYPE_CHECKING:
    import pandas


TableTask: TypeAlias = Literal["classification", "regression"]

MOST_CLASSES = 20
"""Different whole numbers in the target up to which they are taken for classes."""

NESTED = (list, tuple, dict, np.ndarray, bytes)
"""What a cell may not hold: text would be made of it."""

MISSING_TEXT = ""
"""What stands for missing text, in training and in the files that are written."""


@dataclass(frozen=True)
class Target:
    """The column to predict: its values, whether they are classes, and why."""

    name: str
    values: np.ndarray
    task: TableTask
    reason: str


def table_arguments(parser: argparse.ArgumentParser, data: str) -> None:
    """Add the arguments that say which file is read, and how."""
    parser.add_argument("data", type=Path, metavar="DATA", help=data)
    parser.add_argument("--separator", metavar="CHAR", help="of a CSV file; default: a comma, of .tsv files a tab")
    parser.add_argument("--drop", nargs="+", default=[], metavar="COLUMN", help="columns to leave out")


def require_columns(frame: pandas.DataFrame, names: Sequence[str], what: str) -> None:
    """Raise UsageError if the table lacks one of the columns."""
    for name in names:
        if name not in frame.columns:
            raise UsageError(f"{what} {name!r} is no column of the table.{nearest(name, list(frame.columns))}")


def without_columns(frame: pandas.DataFrame, names: Sequence[str]) -> Any:
    """Return the table without some columns."""
    require_columns(frame, names, "--drop")
    return frame.drop(columns=list(names))


def target_of(frame: pandas.DataFrame, name: str, task: TableTask | None) -> Target:
    """Return the target column as classes or numbers; ``task`` None: as its values tell."""
    require_columns(frame, [name], "--target")
    series = frame[name]
    if missing := int(series.isna().sum()):
        raise ValueError(f"The target {name!r} is missing in {missing} of {len(series)} rows: remove these rows.")
    found, reason = _task_of(series) if task is None else (task, "--task or the model says")
    if found == "regression" and series.dtype.kind not in "iufb":
        raise UsageError(f"The target {name!r} holds text ({series.iloc[0]!r}), which is no number to regress on.")
    values = series.to_numpy(np.float64) if found == "regression" else _onnx_labels(series)
    return Target(name, values, found, reason)


def _task_of(series: pandas.Series) -> tuple[TableTask, str]:
    different = series.nunique()
    if series.dtype.kind not in "iuf":
        return "classification", "it holds text or truth values"
    if series.dtype.kind == "f" and not _are_whole(series):
        return "regression", "it holds fractions"
    what = f"it holds {different} different whole numbers"
    if different <= MOST_CLASSES:
        return "classification", f"{what}; --task regression predicts them as numbers"
    return "regression", f"{what}; --task classification predicts them as classes"


def _are_whole(series: pandas.Series) -> bool:
    numbers = series.to_numpy(np.float64)
    return bool((numbers == np.rint(numbers)).all())


def _onnx_labels(series: pandas.Series) -> np.ndarray:
    """Return labels that ONNX has: integers or strings."""
    values = series.to_numpy()
    if series.dtype.kind in "iuf" and _are_whole(series):
        return np.asarray(values, np.int64)
    return np.array([str(value) for value in values])


def is_number(series: pandas.Series) -> bool:
    """Return True if a column holds numbers or truth values, missing ones among them."""
    return getattr(series.dtype, "kind", "O") in "iufb"


def as_numbers_and_text(frame: pandas.DataFrame) -> Any:
    """Return the table with float32 columns and columns of strings, in which missing text is empty."""
    columns = {name: _as_number_or_text(name, frame[name]) for name in frame.columns}
    return pandas_module().DataFrame(columns, index=frame.index)


def _as_number_or_text(name: str, series: pandas.Series) -> np.ndarray:
    kind = getattr(series.dtype, "kind", "O")
    if kind in "mMc":
        raise ValueError(f"Column {name!r} holds times or complex numbers: make numbers of it, or --drop {name!r}.")
    if is_number(series):
        if kind in "iu":
            warn_of_rounding(series.dropna().to_numpy(), np.dtype(np.float32), f"Column {name!r}")
        return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan), np.float32)
    missing = series.isna().to_numpy()
    values = series.tolist()
    if kinds := {type(value) for value in values if isinstance(value, NESTED)}:
        what = next(iter(kinds)).__name__
        raise ValueError(f"Column {name!r} holds a {what} in a cell: make columns of it, or --drop {name!r}.")
    texts = [MISSING_TEXT if gone else str(value) for value, gone in zip(values, missing, strict=True)]
    return np.array([*texts, None], object)[:-1]


def text_columns(frame: pandas.DataFrame) -> list[str]:
    """Return the names of the columns that hold text."""
    return [name for name in frame.columns if not is_number(frame[name])]


def warn_of_row_numbers(frame: pandas.DataFrame) -> None:
    """Warn of columns that count the rows in the order of the file, which is often that of the target."""
    for name in frame.columns:
        if (
            len(frame) > 2
            and getattr(frame[name].dtype, "kind", "O") in "iu"
            and (frame[name].diff().iloc[1:] == 1).all()
        ):
            warn(f"Column {name!r} counts the rows; if it says nothing about them, leave it out by --drop {name!r}.")


def warn_of_row_names(frame: pandas.DataFrame) -> None:
    """Warn of columns of text that hold dates, or seem to name the rows."""
    for name in text_columns(frame):
        texts = (str(text) for text in frame[name].unique())
        known = [text for text in texts if text not in (MISSING_TEXT, "nan", "None")]
        warn_of_texts(name, known, len(frame), f"leave the column out by --drop {name!r}")


# Rows for a training, and its result: the fitted estimator with its way of reading a table.


@dataclass(frozen=True)
class Rows:
    """Rows of the table without the target, and their targets."""

    frame: pandas.DataFrame
    y: np.ndarray


@dataclass(frozen=True)
class Trained:
    """A fitted estimator.

    Attributes
    ----------
    predictor : estimator
        Predicts from what ``prepare`` returns.
    net : estimator
        The estimator of this package in it, with the losses of its epochs.
    prepare : callable
        Takes a data frame.
    columns : list of str
        The columns that it reads, in their order.
    missing_text : str
        What stands for missing text in the ONNX file.
    earlier : int
        Epochs of earlier fits that the training went on from.
    """

    predictor: Any
    net: Any
    prepare: Callable[[Any], Any]
    columns: list[str]
    missing_text: str = MISSING_TEXT
    earlier: int = 0


# Tables in files: CSV and Parquet. What would be read as another table than the user sees is refused or warned of.


PARQUET = (".parquet", ".pq")

OTHER_ENDINGS = (".xlsx", ".xls", ".xlsm", ".ods", ".json", ".jsonl", ".feather", ".arrow", ".h5", ".hdf5", ".dta")
"""Endings of tables that are not read: as CSV files they would fail with a misleading error."""


def pandas_module() -> ModuleType:
    """Return pandas, which the package does not require."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("Tables are read by pandas: pip install pandas.") from error
    return cast("ModuleType", pandas)


def read_table_file(path: Path, separator: str | None = None) -> Any:
    """Return a file as a data frame; the ending of its name says what it is."""
    pandas, ending = pandas_module(), path.suffix.lower()
    if not path.is_file():
        raise UsageError(f"There is no file {str(path)!r}.")
    if ending in OTHER_ENDINGS:
        raise UsageError(f"{str(path)!r} is no CSV or Parquet file: save the table as one of them.")
    if ending in PARQUET:
        frame = _read_parquet(pandas, path)
    else:
        default = "\t" if ".tsv" in (one.lower() for one in path.suffixes) else ","
        frame = _read_csv(pandas, path, separator or default)
    frame.columns = [str(name) for name in frame.columns]
    return _with_truth_values(_checked_table(frame, path))


def _with_truth_values(frame: pandas.DataFrame) -> Any:
    """Return the table with truth values also where some are missing: pandas reads a column of objects then."""
    objects = [name for name in frame.columns if frame[name].dtype == object]
    flags = [name for name in objects if set(map(type, frame[name].dropna())) == {bool}]
    return frame.astype(dict.fromkeys(flags, "boolean"))


def _read_csv(pandas: ModuleType, path: Path, separator: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)  # of fields without a name
            frame = pandas.read_csv(path, sep=separator, low_memory=False, index_col=False)
        header = pandas.read_csv(path, sep=separator, header=None, nrows=1, dtype=str, encoding="utf-8-sig")
    except pandas.errors.ParserWarning as error:
        raise ValueError(
            f"{str(path)!r} has more fields in a row than names in its header. Where another mark than {separator!r} "
            f"stands between its columns, name it, such as --separator ';'."
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{str(path)!r} cannot be read as a CSV file in UTF-8, save it so: {error}") from error
    except (ValueError, OSError) as error:  # what pandas raises for files that are none, empty or cut off
        raise ValueError(f"{str(path)!r} cannot be read as a CSV file: {error}") from error
    _require_names(header.iloc[0].dropna().tolist(), path)  # pandas gives a name that comes twice a number
    return frame


def _read_parquet(pandas: ModuleType, path: Path) -> Any:
    try:
        frame = pandas.read_parquet(path)
    except ImportError as error:
        raise ImportError("Parquet files are read by pyarrow: pip install pyarrow.") from error
    except Exception as error:  # pyarrow has a class of its own for each defect
        raise ValueError(f"{str(path)!r} cannot be read as a Parquet file: {error}") from error
    if named := [str(name) for name in frame.index.names if name is not None]:
        warn(f"{str(path)!r} has the index {named[0]!r}, which is left out: a column is made of it by reset_index().")
    return frame


def _require_names(names: list[str], path: Path) -> None:
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{str(path)!r} has several columns named {twice[0]!r}.")


def _checked_table(frame: pandas.DataFrame, path: Path) -> Any:
    if not len(frame):
        raise ValueError(f"{str(path)!r} has no rows below its header.")
    _require_names(list(frame.columns), path)
    if len(frame.columns) == 1 and any(mark in frame.columns[0] for mark in ";\t|"):
        raise UsageError(
            f"{str(path)!r} has one column, {frame.columns[0]!r}: name what stands between its columns, "
            f"such as --separator ';'."
        )
    return frame

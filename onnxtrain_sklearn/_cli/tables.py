"""Tables: read CSV and Parquet files by pandas, take out the target, and make numbers and text of the columns.

``read_table_file`` refuses a file that pandas would read as another table than the user sees, or warns of it.
``target_of`` decides between classes and numbers. ``as_numbers_and_text`` gives columns the two types that files have.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
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


PARQUET = (".parquet", ".pq")

OTHER_ENDINGS = (".xlsx", ".xls", ".xlsm", ".ods", ".json", ".jsonl", ".feather", ".arrow", ".h5", ".hdf5", ".dta")
"""Endings of tables that are not read: as CSV files they would fail with a misleading error."""


def table_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for the file to read, its separator, and the columns to leave out."""
    parser.add_argument("data", type=Path, metavar="DATA", help="CSV or Parquet file with a header")
    parser.add_argument("--separator", metavar="CHAR", help="of a CSV file; default: a comma, of .tsv files a tab")
    parser.add_argument("--drop", nargs="+", default=[], metavar="COLUMN", help="columns to leave out")


def read_table_file(path: Path, separator: str | None = None) -> Any:
    """Return a file as a data frame, in the format that the ending of its name tells."""
    pandas, ending = pandas_module(), path.suffix.lower()
    if not path.is_file():
        raise UsageError(f"There is no file {str(path)!r}.")
    if ending in OTHER_ENDINGS:
        raise UsageError(f"{str(path)!r} is no CSV or Parquet file: save the table as one of them.")
    if ending in PARQUET:
        try:
            frame = pandas.read_parquet(path)
        except ImportError as error:
            raise ImportError("Parquet files are read by pyarrow: pip install pyarrow.") from error
        except Exception as error:  # pyarrow has an error class of its own for each defect
            raise ValueError(f"{str(path)!r} cannot be read as a Parquet file: {error}") from error
        if named := [str(name) for name in frame.index.names if name is not None]:
            warn(f"{str(path)!r} has the index {named[0]!r}, which is left out: reset_index() makes a column of it.")
        names = list(frame.columns)
    else:
        default = "\t" if ".tsv" in (one.lower() for one in path.suffixes) else ","
        frame, names = _read_csv(pandas, path, separator or default)
    frame.columns = [str(name) for name in frame.columns]
    if not len(frame):
        raise ValueError(f"{str(path)!r} has no rows below its header.")
    if twice := [name for name in map(str, names) if list(map(str, names)).count(name) > 1]:
        raise ValueError(f"{str(path)!r} has several columns named {twice[0]!r}.")
    if len(frame.columns) == 1 and any(mark in frame.columns[0] for mark in ";\t|"):
        raise UsageError(
            f"{str(path)!r} has one column, {frame.columns[0]!r}: name what stands between its columns, "
            f"such as --separator ';'."
        )
    # pandas reads truth values as objects where some are missing
    objects = [name for name in frame.columns if frame[name].dtype == object]
    flags = [name for name in objects if set(map(type, frame[name].dropna())) == {bool}]
    return frame.astype(dict.fromkeys(flags, "boolean"))


def _read_csv(pandas: ModuleType, path: Path, separator: str) -> tuple[Any, list[str]]:
    """Return a CSV file as a data frame, and the names in its header: pandas numbers those that occur twice."""
    try:
        with warnings.catch_warnings():
            # pandas warns and drops fields of rows that are longer than the header: raise instead
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            frame = pandas.read_csv(path, sep=separator, low_memory=False, index_col=False)
        header = pandas.read_csv(path, sep=separator, header=None, nrows=1, dtype=str, encoding="utf-8-sig")
    except pandas.errors.ParserWarning as error:
        raise ValueError(
            f"{str(path)!r} has more fields in a row than names in its header. If another mark than {separator!r} "
            f"stands between its columns, name it, such as --separator ';'."
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{str(path)!r} cannot be read as a CSV file: save it in UTF-8. {error}") from error
    except (ValueError, OSError) as error:  # no table, an empty file, or one that is cut off
        raise ValueError(f"{str(path)!r} cannot be read as a CSV file: {error}") from error
    return frame, header.iloc[0].dropna().tolist()


def pandas_module() -> ModuleType:
    """Return pandas, which the package does not require."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("Tables are read by pandas: pip install pandas.") from error
    return cast("ModuleType", pandas)


def require_columns(frame: pandas.DataFrame, names: Sequence[str], what: str) -> None:
    """Raise UsageError if the table lacks one of the columns."""
    for name in names:
        if name not in frame.columns:
            raise UsageError(f"{what} {name!r} is no column of the table.{nearest(name, list(frame.columns))}")


def without_columns(frame: pandas.DataFrame, names: Sequence[str]) -> Any:
    """Return the table without some columns."""
    require_columns(frame, names, "--drop")
    return frame.drop(columns=list(names))


# The target.


TableTask: TypeAlias = Literal["classification", "regression"]

MOST_CLASSES = 20
"""Most different whole numbers in a target that is taken for classes."""


@dataclass(frozen=True)
class Target:
    """The column to predict: its values, whether they are classes, and why."""

    name: str
    values: np.ndarray
    task: TableTask
    reason: str


def target_of(frame: pandas.DataFrame, name: str, task: TableTask | None) -> Target:
    """Return the target column as classes or numbers; without a ``task``, its values decide."""
    require_columns(frame, [name], "--target")
    series = frame[name]
    if missing := int(series.isna().sum()):
        raise ValueError(f"The target {name!r} is missing in {missing} of {len(series)} rows: remove these rows.")
    # Whole numbers in floats are read like integers: pandas makes floats of a column with a missing value.
    kind, numbers = series.dtype.kind, series.to_numpy(np.float64) if series.dtype.kind in "iuf" else None
    is_whole = numbers is not None and bool((numbers == np.rint(numbers)).all())
    if task is not None:
        reason = "--task or the model says"
    elif numbers is None:
        task, reason = "classification", "it holds text or truth values"
    elif not is_whole:
        task, reason = "regression", "it holds fractions"
    else:
        task = "classification" if (different := series.nunique()) <= MOST_CLASSES else "regression"
        remedy = {
            "classification": "--task regression predicts them as numbers",
            "regression": "--task classification predicts them as classes",
        }
        reason = f"it holds {different} different whole numbers; {remedy[task]}"
    if task == "regression":
        if kind not in "iufb":
            raise UsageError(f"The target {name!r} holds text ({series.iloc[0]!r}), which is no number to regress on.")
        return Target(name, series.to_numpy(np.float64), task, reason)
    # labels become integers or strings, the types that ONNX has for them
    values = series.to_numpy()
    labels = np.asarray(values, np.int64) if is_whole else np.array([str(value) for value in values])
    return Target(name, labels, task, reason)


# The other columns.


NESTED = (list, tuple, dict, np.ndarray, bytes)
"""Types that a cell may not hold: they would be turned into text."""

MISSING_TEXT = ""
"""The text that stands for a missing one, in training and in the files that are written."""


def as_numbers_and_text(frame: pandas.DataFrame) -> Any:
    """Return the table with float32 columns and columns of strings, in which missing text is empty."""
    columns = {}
    for name in frame.columns:
        series = frame[name]
        kind = getattr(series.dtype, "kind", "O")
        if kind in "mMc":
            raise ValueError(f"Column {name!r} holds times or complex numbers: make numbers of it, or --drop {name!r}.")
        if is_number(series):
            if kind in "iu":
                warn_of_rounding(series.dropna().to_numpy(), np.dtype(np.float32), f"Column {name!r}")
            columns[name] = np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan), np.float32)
            continue
        if kinds := {type(value) for value in series.tolist() if isinstance(value, NESTED)}:
            what = next(iter(kinds)).__name__
            raise ValueError(f"Column {name!r} holds a {what} in a cell: make columns of it, or --drop {name!r}.")
        columns[name] = text_array(series, MISSING_TEXT)
    return pandas_module().DataFrame(columns, index=frame.index)


def text_array(series: pandas.Series, missing_text: str) -> np.ndarray:
    """Return the cells of a column as strings in an array of objects."""
    gone = series.isna().to_numpy()
    texts = [missing_text if none else str(value) for value, none in zip(series.tolist(), gone, strict=True)]
    return np.array([*texts, None], object)[:-1]


def is_number(series: pandas.Series) -> bool:
    """Return True if a column holds numbers or truth values, missing ones among them."""
    return getattr(series.dtype, "kind", "O") in "iufb"


def text_columns(frame: pandas.DataFrame) -> list[str]:
    """Return the names of the columns that hold text."""
    return [name for name in frame.columns if not is_number(frame[name])]


def warn_of_row_numbers(frame: pandas.DataFrame) -> None:
    """Warn of columns that number the rows: files are often sorted by the target, which such a column gives away."""
    for name in frame.columns:
        if (
            len(frame) > 2
            and getattr(frame[name].dtype, "kind", "O") in "iu"
            and (frame[name].diff().iloc[1:] == 1).all()
        ):
            warn(f"Column {name!r} counts the rows; if it says nothing about them, leave it out by --drop {name!r}.")


def warn_of_row_names(frame: pandas.DataFrame) -> None:
    """Warn of columns of text that hold dates, or seem to name the rows rather than to group them."""
    for name in text_columns(frame):
        texts = (str(text) for text in frame[name].unique())
        known = [text for text in texts if text not in (MISSING_TEXT, "nan", "None")]
        warn_of_texts(name, known, len(frame), f"leave the column out by --drop {name!r}")

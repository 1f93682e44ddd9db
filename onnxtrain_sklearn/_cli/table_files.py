"""Tables in CSV and Parquet files, read by pandas, and the arguments that say how.

``read_table_file`` refuses a file that pandas would read as another table than the user sees, or warns of it.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from ..exceptions import nearest, warn
from .console import UsageError

if TYPE_CHECKING:
    import pandas


PARQUET = (".parquet", ".pq")

OTHER_ENDINGS = (".xlsx", ".xls", ".xlsm", ".ods", ".json", ".jsonl", ".feather", ".arrow", ".h5", ".hdf5", ".dta")
"""Endings of tables that are not read: as CSV files they would fail with a misleading error."""


def table_arguments(parser: argparse.ArgumentParser, data: str) -> None:
    """Add the arguments for the file to read, its separator, and the columns to leave out."""
    parser.add_argument("data", type=Path, metavar="DATA", help=data)
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
        frame = _read_parquet(pandas, path)
    else:
        default = "\t" if ".tsv" in (one.lower() for one in path.suffixes) else ","
        frame = _read_csv(pandas, path, separator or default)
    frame.columns = [str(name) for name in frame.columns]
    if not len(frame):
        raise ValueError(f"{str(path)!r} has no rows below its header.")
    _require_names(list(frame.columns), path)
    if len(frame.columns) == 1 and any(mark in frame.columns[0] for mark in ";\t|"):
        raise UsageError(
            f"{str(path)!r} has one column, {frame.columns[0]!r}: name what stands between its columns, "
            f"such as --separator ';'."
        )
    # pandas reads truth values as objects where some are missing
    objects = [name for name in frame.columns if frame[name].dtype == object]
    flags = [name for name in objects if set(map(type, frame[name].dropna())) == {bool}]
    return frame.astype(dict.fromkeys(flags, "boolean"))


def pandas_module() -> ModuleType:
    """Return pandas, which the package does not require."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("Tables are read by pandas: pip install pandas.") from error
    return cast("ModuleType", pandas)


def _read_csv(pandas: ModuleType, path: Path, separator: str) -> Any:
    try:
        with warnings.catch_warnings():
            # pandas warns and drops fields of rows that are longer than the header: raise instead
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            frame = pandas.read_csv(path, sep=separator, low_memory=False, index_col=False)
        header = pandas.read_csv(path, sep=separator, header=None, nrows=1, dtype=str, encoding="utf-8-sig")
    except pandas.errors.ParserWarning as error:
        raise ValueError(
            f"{str(path)!r} has more fields in a row than names in its header. Where another mark than {separator!r} "
            f"stands between its columns, name it, such as --separator ';'."
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{str(path)!r} cannot be read as a CSV file in UTF-8, save it so: {error}") from error
    except (ValueError, OSError) as error:  # no table, an empty file, or one that is cut off
        raise ValueError(f"{str(path)!r} cannot be read as a CSV file: {error}") from error
    # the names as they stand in the file: pandas numbers those that occur twice
    _require_names(header.iloc[0].dropna().tolist(), path)
    return frame


def _read_parquet(pandas: ModuleType, path: Path) -> Any:
    try:
        frame = pandas.read_parquet(path)
    except ImportError as error:
        raise ImportError("Parquet files are read by pyarrow: pip install pyarrow.") from error
    except Exception as error:  # pyarrow has an error class of its own for each defect
        raise ValueError(f"{str(path)!r} cannot be read as a Parquet file: {error}") from error
    if named := [str(name) for name in frame.index.names if name is not None]:
        warn(f"{str(path)!r} has the index {named[0]!r}, which is left out: a column is made of it by reset_index().")
    return frame


def _require_names(names: list[str], path: Path) -> None:
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{str(path)!r} has several columns named {twice[0]!r}.")


def require_columns(frame: pandas.DataFrame, names: Sequence[str], what: str) -> None:
    """Raise UsageError if the table lacks one of the columns."""
    for name in names:
        if name not in frame.columns:
            raise UsageError(f"{what} {name!r} is no column of the table.{nearest(name, list(frame.columns))}")


def without_columns(frame: pandas.DataFrame, names: Sequence[str]) -> Any:
    """Return the table without some columns."""
    require_columns(frame, names, "--drop")
    return frame.drop(columns=list(names))

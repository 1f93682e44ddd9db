"""Tables: read CSV and Parquet files by pandas, take out the target, and make numbers and text of the columns.

``read_table_file`` refuses a file that pandas would read as another table than the user sees, or warns of it.
``target_of`` decides between classes and numbers. ``as_numbers_and_text`` gives columns the two types that files have.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np

from .._data.columns import warn_of_rounding
from .._data.inputs import warn_of_texts
from .._data.row_blocks import file_dataset, pieces
from ..exceptions import nearest, warn
from .console import UsageError

if TYPE_CHECKING:
    import pandas


PARQUET = (".parquet", ".pq")

ARCHIVES = {".zip", ".tar"}
"""Endings of CSV files that pandas writes as a whole, and whose rows are not counted before it reads them."""

NO_PYARROW = "Parquet files are read by pyarrow: pip install pyarrow."

OTHER_ENDINGS = (".xlsx", ".xls", ".xlsm", ".ods", ".json", ".jsonl", ".feather", ".arrow", ".h5", ".hdf5", ".dta")
"""Endings of tables that are not read: as CSV files they would fail with a misleading error."""


def table_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for the file to read, its separator, and the columns to leave out."""
    table = "CSV or Parquet files with a header, or folders or patterns of such files, that are one table"
    parser.add_argument("data", type=Path, nargs="+", metavar="DATA", help=table)
    parser.add_argument("--separator", metavar="CHAR", help="of a CSV file; default: a comma, of .tsv files a tab")
    parser.add_argument("--drop", nargs="+", default=[], metavar="COLUMN", help="columns to leave out")


def read_table_file(path: Path, separator: str | None = None) -> Any:
    """Return a file as a data frame, in the format that the ending of its name tells."""
    if path.suffix.lower() not in PARQUET:
        names = _csv_header(path, separator)
        with _faults_of_csv(path, separator), _csv_reader(path, separator) as reader:
            frame = reader.read()
        return _checked_csv(frame, path, names)
    try:
        frame = pandas_module().read_parquet(path)
    except ImportError as error:
        raise ImportError(NO_PYARROW) from error
    except Exception as error:  # pyarrow has an error class of its own for each defect
        raise ValueError(f"{str(path)!r} cannot be read as a Parquet file: {error}") from error
    _warn_of_index(path, [str(name) for name in frame.index.names if name is not None])
    names = list(map(str, frame.columns))  # a frame may be written with numbers as names
    _require_different(path, names)
    frame.columns = names
    _require_rows(len(frame), path)
    # pandas reads truth values as objects where some are missing
    flags = [name for name in names if frame[name].dtype == object and _is_flag(frame[name])]
    return frame.astype(dict.fromkeys(flags, "boolean"))


def table_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files of a table: those that are named, and in their place those of each folder and pattern, sorted.

    All are Parquet files, or none is.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            found = sorted(file for file in path.rglob("*") if file.is_file())
            # Spark and others put files such as _SUCCESS and .crc beside the data; pyarrow skips the same names.
            found = [file for file in found if not any(part[0] in "._" for part in file.relative_to(path).parts)]
            if not found:
                raise UsageError(f"{str(path)!r} holds no file.")
        elif path.is_file():
            found = [path]
        else:
            found = sorted(Path(name) for name in glob(str(path), recursive=True) if os.path.isfile(name))
            if not found:
                raise UsageError(f"There is no file {str(path)!r}.")
        files += found
    seen: set[Path] = set()
    for file in files:
        if file.suffix.lower() in OTHER_ENDINGS:
            raise UsageError(f"{str(file)!r} is no CSV or Parquet file: save the table as one of them.")
        if (resolved := file.resolve()) in seen:
            raise UsageError(f"{str(file)!r} is part of the table twice: name it, its folder or its pattern once.")
        seen.add(resolved)
    others = [file.name for file in files if file.suffix.lower() not in PARQUET]
    if 0 < len(others) < len(files):
        raise UsageError(f"{name_of(paths)!r} holds Parquet files and others, such as {others[0]!r}.")
    return files


def name_of(paths: Sequence[Path]) -> str:
    """Return the name of a table for messages."""
    return str(paths[0]) + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")


def _require_rows(n_rows: int, path: Path) -> None:
    if not n_rows:
        raise ValueError(f"{str(path)!r} has no rows below its header.")


def _require_different(path: Path, names: Sequence[str]) -> None:
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{str(path)!r} has several columns named {twice[0]!r}.")


def _warn_of_index(path: Path, names: Sequence[str]) -> None:
    if names:
        warn(f"{str(path)!r} has the index {names[0]!r}, which is left out: reset_index() makes a column of it.")


# Tables that need not fit into memory, in pieces.


@dataclass(frozen=True)
class TablePiece:
    """Rows of a table as a data frame and, of Parquet files, as they are there."""

    frame: pandas.DataFrame
    arrow: Any = None


def table_pieces(files: Sequence[Path], separator: str | None, size: int) -> Iterator[TablePiece]:
    """Yield the rows of a table in pieces of ``size`` rows, the last of which may be smaller.

    Values have the types that they have in the whole table.
    """
    if files[0].suffix.lower() in PARQUET:
        yield from _parquet_pieces(files, size)
    else:
        yield from _csv_pieces(files, separator, size)


def _parquet_pieces(files: Sequence[Path], size: int) -> Iterator[TablePiece]:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise ImportError(NO_PYARROW) from error
    dataset = file_dataset(files)
    index = index_columns(dataset)
    _warn_of_index(files[0], [name for name in index if not name.startswith("__index_level_")])
    _require_different(files[0], dataset.schema.names)
    names = [name for name in dataset.schema.names if name not in index]
    tables = (table for _, table in pieces(dataset, names, [], size))
    for table in _of_size(tables, size, pa.concat_tables):
        yield TablePiece(frame_of(table), table)


def index_columns(dataset: Any) -> list[str]:
    """Return the columns of Parquet files that are the index of the data frame that was written."""
    found = (dataset.schema.pandas_metadata or {}).get("index_columns", ())
    return [name for name in found if isinstance(name, str)]


def frame_of(table: Any) -> Any:
    """Return a table of Arrow as a data frame; whole numbers stay whole where some are missing."""
    import pyarrow as pa

    # elsewhere, pandas makes floats of whole numbers, and objects of truth values, if some are missing
    pandas = pandas_module()
    nullable = {pa.bool_(): pandas.BooleanDtype()}
    for name in ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64"):
        nullable[getattr(pa, name.lower())()] = getattr(pandas, f"{name}Dtype")()
    has_gaps = any(column.null_count and column.type in nullable for column in table.columns)
    return table.to_pandas(types_mapper=nullable.get if has_gaps else None)


def _csv_pieces(files: Sequence[Path], separator: str | None, size: int) -> Iterator[TablePiece]:
    chunks = _csv_chunks(files, separator, size)
    first = next(chunks, None)
    if first is None:
        raise ValueError(f"{str(files[0])!r} has no rows below its header.")
    if len(files) == 1 and len(first) < size:
        yield TablePiece(first)
        return
    # A column of numbers in one piece may hold text in another. A first pass finds the types of all rows.
    kinds: dict[str, set[str]] = {name: set() for name in first.columns}
    for chunk in chain([first], chunks):
        for name in chunk.columns:
            column = chunk[name]
            is_flag = column.dtype == object and _is_flag(column)
            kinds[name].add("missing" if column.isna().all() else "b" if is_flag else column.dtype.kind)
    types = {}
    for name, own in kinds.items():
        known = own - {"missing"}
        if known == {"b"}:
            types[name] = "boolean"
        elif known - {"i", "u", "f"}:
            types[name] = "str"
        elif own != {"i"}:  # integers with missing values, as pandas has them in a table that it reads at once
            types[name] = "float64"
    for frame in _of_size(_csv_chunks(files, separator, size, types), size, pandas_module().concat):
        yield TablePiece(frame)


def _of_size(parts: Iterator[Any], size: int, concatenate: Callable[[list[Any]], Any]) -> Iterator[Any]:
    """Yield the rows of tables in parts of ``size`` rows."""
    waiting: list[Any] = []
    for part in parts:
        waiting.append(part)
        while sum(map(len, waiting)) >= size:
            whole = concatenate(waiting)
            yield whole[:size]
            waiting = [whole[size:]]
    if sum(map(len, waiting)):
        yield concatenate(waiting)


def _csv_chunks(
    files: Sequence[Path], separator: str | None, size: int, types: Mapping[str, str] | None = None
) -> Iterator[Any]:
    """Yield the rows of CSV files in frames of up to ``size`` rows, with these types of columns or with their own."""
    expected: list[str] = []
    for file in files:
        names = _csv_header(file, separator)
        expected = expected or names
        if names != expected:
            raise ValueError(f"{str(file)!r} has the columns {names}, but {str(files[0])!r} has {expected}.")
        with _faults_of_csv(file, separator):
            reader = _csv_reader(file, separator, dtype=types, chunksize=size)
        with reader:
            while True:
                with _faults_of_csv(file, separator):
                    chunk = next(reader, None)
                if chunk is None:
                    break
                if len(chunk):
                    yield _checked_csv(chunk, file, names)


def _csv_reader(path: Path, separator: str | None, **options: Any) -> Any:
    """Open a CSV file, of which pandas then reads all rows or a chunk."""
    # low_memory=True would find the types of a column anew in each chunk, and mix them; without index_col=False, the
    # first column would become the index if rows have one field more than the header.
    options = {"iterator": True, "low_memory": False, "index_col": False} | options
    return pandas_module().read_csv(path, sep=_separator(path, separator), **options)


def _separator(path: Path, separator: str | None) -> str:
    return separator or ("\t" if ".tsv" in (one.lower() for one in path.suffixes) else ",")


def _csv_header(path: Path, separator: str | None) -> list[str]:
    """Return the names in the header of a CSV file: pandas numbers those that occur twice."""
    options = {"header": None, "nrows": 1, "dtype": str, "encoding": "utf-8-sig"}
    with _faults_of_csv(path, separator):
        header = pandas_module().read_csv(path, sep=_separator(path, separator), **options)
    names: list[str] = header.iloc[0].dropna().tolist()
    return names


@contextmanager
def _faults_of_csv(path: Path, separator: str | None) -> Iterator[None]:
    """Name a CSV file in errors; rows that are longer than the header are one of them."""
    pandas = pandas_module()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)  # pandas would drop the further fields
            yield
    except pandas.errors.ParserWarning as error:
        raise ValueError(
            f"{str(path)!r} has more fields in a row than names in its header. If another mark than "
            f"{_separator(path, separator)!r} stands between its columns, name it, such as --separator ';'."
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{str(path)!r} cannot be read as a CSV file: save it in UTF-8. {error}") from error
    except (ValueError, OSError) as error:  # no table, an empty file, or one that is cut off
        raise ValueError(f"{str(path)!r} cannot be read as a CSV file: {error}") from error


def _checked_csv(frame: Any, path: Path, names: Sequence[str]) -> Any:
    """Return rows of a CSV file whose header has these names."""
    frame.columns = [str(name) for name in frame.columns]
    _require_rows(len(frame), path)
    _require_different(path, names)
    if len(frame.columns) == 1 and any(mark in frame.columns[0] for mark in ";\t|"):
        raise UsageError(
            f"{str(path)!r} has one column, {frame.columns[0]!r}: name what stands between its columns, "
            f"such as --separator ';'."
        )
    flags = [name for name in frame.columns if frame[name].dtype == object and _is_flag(frame[name])]
    return frame.astype(dict.fromkeys(flags, "boolean"))


def _is_flag(column: Any) -> bool:
    """Return True if all values of a column that are not missing are truth values."""
    return set(map(type, column.dropna())) == {bool}


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
    """The column to predict, whether it holds classes, and why."""

    name: str
    task: TableTask
    reason: str
    is_whole: bool
    """Whether all values are whole numbers."""

    def values_of(self, column: pandas.Series) -> np.ndarray:
        """Return values of the column as numbers, or as labels: whole numbers or texts, the types of ONNX for them."""
        if self.task == "regression":
            return np.asarray(column.to_numpy(np.float64))
        values = column.to_numpy()
        return np.asarray(values, np.int64) if self.is_whole else np.array([str(value) for value in values])


def target_of(frame: pandas.DataFrame, name: str, task: TableTask | None) -> Target:
    """Return the target of a table; without a ``task``, its values decide between classes and numbers."""
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
    if task == "regression" and kind not in "iufb":
        raise UsageError(f"The target {name!r} holds text ({series.iloc[0]!r}), which is no number to regress on.")
    return Target(name, task, reason, is_whole)


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
    return np.array(texts, object)


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

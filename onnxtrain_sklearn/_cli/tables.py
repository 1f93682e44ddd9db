"""Tables: read files by pandas, take out the target, and make numbers and text of the columns.

``open_table`` finds the files of a table and how they are written; a ``Table`` reads them as a whole or in pieces, and
refuses a file that pandas would read as another table than the user sees, or warns of it.
``target_of`` decides between classes and numbers. ``as_numbers_and_text`` gives columns the two types that files have.
"""

from __future__ import annotations

import argparse
import codecs
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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
from .console import Console, UsageError
from .csv_format import NUMBERS, CsvFormat, CsvOptions, csv_formats

if TYPE_CHECKING:
    import pandas


PARQUET = (".parquet", ".pq")

ARCHIVES = {".zip", ".tar"}
"""Endings of CSV files that pandas writes as a whole, and whose rows are not counted before it reads them."""

PIECE_ROWS = 2**16
"""Rows of a table of several files that are read at a time."""

NO_PYARROW = "Parquet files are read by pyarrow: pip install pyarrow."

OTHER_ENDINGS = (".json", ".feather", ".arrow", ".h5", ".hdf5", ".dta")
"""Endings of tables that are not read: as CSV files they would fail with a misleading error."""

TableKind: TypeAlias = Literal["csv", "parquet", "excel", "jsonl"]

ENDINGS: dict[str, TableKind] = {
    **dict.fromkeys(PARQUET, "parquet"),
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".xlsb", ".ods"), "excel"),
    **dict.fromkeys((".jsonl", ".ndjson"), "jsonl"),
}
"""Kinds of tables by the endings of their files; all others are CSV."""

KIND_NAMES: dict[TableKind, str] = {"csv": "CSV", "parquet": "Parquet", "excel": "Excel", "jsonl": "JSON lines"}


def table_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for the files to read, how they are written, and the columns to leave out."""
    table = "CSV, Parquet, Excel or JSON lines files, or folders or patterns of such files, that are one table"
    parser.add_argument("data", type=Path, nargs="+", metavar="DATA", help=table)
    add = parser.add_argument
    add("--sep", type=_one_character, metavar="CHAR", help="between the columns of a CSV file; default: as found")
    add("--decimal", choices=[".", ","], help="decimal mark of a CSV file; default: as found")
    add("--encoding", metavar="NAME", help="of a CSV file, such as latin-1; default: as found")
    words = "further words for missing values; default: such as ? in columns of numbers of CSV files"
    add("--na", nargs="+", default=[], metavar="WORD", help=words)
    add("--drop", nargs="+", default=[], metavar="COLUMN", help="columns to leave out")


def _one_character(text: str) -> str:
    mark = "\t" if text in ("\\t", "tab") else text
    if len(mark) != 1:
        raise argparse.ArgumentTypeError(f"one character, or tab, got {text!r}")
    return mark


@dataclass(frozen=True)
class Table:
    """The files of a table, and how they are written.

    Attributes
    ----------
    files : list of Path
    name : str
        The table in messages.
    kind : {"csv", "parquet", "excel", "jsonl"}
    formats : mapping of Path to CsvFormat
        Of CSV files.
    words : sequence of str
        Words for missing values in all columns of other files.
    words_of_columns : mapping of str to sequence of str
        Words for missing values in single columns of other files.
    """

    files: Sequence[Path]
    name: str
    kind: TableKind
    formats: Mapping[Path, CsvFormat]
    words: Sequence[str] = ()
    words_of_columns: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def decimal(self) -> str | None:
        """The decimal mark of CSV files."""
        return next(iter(self.formats.values())).decimal if self.formats else None

    def missing_words(self, columns: Sequence[str]) -> dict[str, list[str]]:
        """Return the words for missing values of each of these columns that has some."""
        sources = [self.words_of_columns, *(one.missing for one in self.formats.values())]
        found = {name: {*self.words, *(word for one in sources for word in one.get(name, ()))} for name in columns}
        return {name: sorted(words) for name, words in found.items() if words}

    def read(self) -> Any:
        """Return all rows as a data frame."""
        if self.kind == "csv" and len(self.files) == 1:
            (file,) = self.files
            names = _csv_header(file, self.formats[file])
            with _faults_of_csv(file, self.formats[file]), _csv_reader(file, self.formats[file]) as reader:
                frame = reader.read()
            return _checked_csv(frame, file, names)
        if self.kind == "parquet" and len(self.files) == 1:
            return self._without_words(_parquet_file(self.files[0]))
        return pandas_module().concat([one.frame for one in self.pieces(PIECE_ROWS)], ignore_index=True)

    def pieces(self, size: int) -> Iterator[TablePiece]:
        """Yield the rows in pieces of ``size`` rows, the last of which may be smaller.

        Values have the types that they have in the whole table. Excel and JSON lines are read as a whole.
        """
        if self.kind == "csv":
            yield from _csv_pieces(self.formats, size)
        elif self.kind == "parquet":
            for piece in _parquet_pieces(self.files, size):
                yield TablePiece(self._without_words(piece.frame), piece.arrow)
        else:
            read = _excel_file if self.kind == "excel" else _json_lines_file
            frames = [read(file) for file in self.files]
            _require_same_columns([list(frame.columns) for frame in frames], self.files)
            whole = self._without_words(frames[0] if len(frames) == 1 else pandas_module().concat(frames))
            for begin in range(0, len(whole), size):
                yield TablePiece(whole.iloc[begin : begin + size].reset_index(drop=True))

    def _without_words(self, frame: Any) -> Any:
        """Return a table that is no CSV file without the words for missing values, and numbers that equal them."""
        changed = {}
        for name, words in self.missing_words(list(frame.columns)).items():
            numbers = [float(word) for word in words if NUMBERS["."].fullmatch(word)]
            hit = frame[name].isin(words) if not is_number(frame[name]) else frame[name].isin(numbers)
            if frame[name].dtype == object:
                hit |= frame[name].isin(numbers)
            if hit.any():
                masked = frame[name].mask(hit).infer_objects()
                changed[name] = masked.astype(np.float64) if masked.isna().all() else masked
        return frame.assign(**changed)


def open_table(
    paths: Sequence[Path],
    options: argparse.Namespace,
    console: Console | None = None,
    *,
    decimal: str | None = None,
    missing: Mapping[str, Sequence[str]] | None = None,
) -> Table:
    """Return the table of these files, folders and patterns, and print how they are written.

    ``decimal`` and ``missing`` are those of the table that a model was trained on.
    """
    pandas_module()
    files, name = table_files(paths), name_of(paths)
    kind = kind_of(files[0])
    if kind != "csv":
        for given in ("sep", "decimal", "encoding"):
            if getattr(options, given) is not None:
                raise UsageError(f"--{given} is for CSV files, and {name!r} is {KIND_NAMES[kind]}.")
        return Table(files, name, kind, {}, options.na, missing or {})
    if options.encoding is not None:
        try:
            codecs.lookup(options.encoding)
        except LookupError:
            raise UsageError(f"--encoding {options.encoding!r} is no encoding that Python knows.") from None
    given_format = CsvOptions(options.sep, options.decimal, options.encoding, options.na)
    formats = csv_formats(files, given_format, decimal, missing)
    if console is not None:
        for told in dict.fromkeys(map(str, formats.values())):
            console.progress(f"{name}: {told}")
    return Table(files, name, kind, formats)


def kind_of(file: Path) -> TableKind:
    """Return the kind of a table's file, by the ending of its name."""
    return ENDINGS.get(file.suffix.lower(), "csv")


def table_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files of a table: those that are named, and in their place those of each folder and pattern, sorted.

    All are of one kind.
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
            raise UsageError(f"{str(file)!r} is no table that is read: save it as CSV, Parquet or JSON lines (.jsonl).")
        if (resolved := file.resolve()) in seen:
            raise UsageError(f"{str(file)!r} is part of the table twice: name it, its folder or its pattern once.")
        seen.add(resolved)
    first = kind_of(files[0])
    if others := [file.name for file in files if kind_of(file) != first]:
        raise UsageError(f"{name_of(paths)!r} holds {KIND_NAMES[first]} files and others, such as {others[0]!r}.")
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


# Whole files.


def _parquet_file(path: Path) -> Any:
    try:
        frame = pandas_module().read_parquet(path)
    except ImportError as error:
        raise ImportError(NO_PYARROW) from error
    except Exception as error:  # pyarrow has an error class of its own for each defect
        raise ValueError(f"{str(path)!r} cannot be read as a Parquet file: {error}") from error
    _warn_of_index(path, [str(name) for name in frame.index.names if name is not None])
    return _with_flags(_named(frame, path))


def _excel_file(path: Path) -> Any:
    """Return the first sheet of an Excel file."""
    try:
        with pandas_module().ExcelFile(path) as book:
            if len(book.sheet_names) > 1:
                warn(f"{str(path)!r} has {len(book.sheet_names)} sheets: the first, {book.sheet_names[0]!r}, is read.")
            frame = book.parse(0)
    except ImportError as error:
        raise ImportError(f"{path.suffix} files are read by another package: {error}") from error
    except Exception as error:  # zipfile, XML and the package for the format have error classes of their own
        raise ValueError(f"{str(path)!r} cannot be read as an Excel file: {error}") from error
    # pandas numbers names that occur twice, and names columns without a header
    if nameless := [name for name in map(str, frame.columns) if name.startswith("Unnamed: ")]:
        warn(f"{str(path)!r} has a column without a name in the first row, which is called {nameless[0]!r}.")
    return _with_flags(_named(frame, path))


def _json_lines_file(path: Path) -> Any:
    """Return a file with a JSON object in each line, whose keys are the columns."""
    pandas = pandas_module()
    try:
        # By their types alone: pandas would make numbers of "007", and dates of numbers.
        frame = pandas.read_json(path, lines=True, dtype=False, precise_float=True)
    except (ValueError, OSError) as error:
        raise ValueError(f"{str(path)!r} cannot be read as JSON lines: {error}") from error
    return _with_flags(_named(frame, path))


def _named(frame: Any, path: Path) -> Any:
    """Return a table with strings as names, which must differ, and with rows."""
    names = list(map(str, frame.columns))  # a frame may be written with numbers as names
    _require_different(path, names)
    frame.columns = names
    _require_rows(len(frame), path)
    return frame


def _with_flags(frame: Any) -> Any:
    """Return a table with truth values where some are missing, of which pandas makes objects."""
    flags = [name for name in frame.columns if frame[name].dtype == object and _is_flag(frame[name])]
    return frame.astype(dict.fromkeys(flags, "boolean"))


# Tables that need not fit into memory, in pieces.


@dataclass(frozen=True)
class TablePiece:
    """Rows of a table as a data frame and, of Parquet files, as they are there."""

    frame: pandas.DataFrame
    arrow: Any = None


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


def _csv_pieces(formats: Mapping[Path, CsvFormat], size: int) -> Iterator[TablePiece]:
    files = list(formats)
    chunks = _csv_chunks(formats, size)
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
    for frame in _of_size(_csv_chunks(formats, size, types), size, pandas_module().concat):
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


def _require_same_columns(names: Sequence[Sequence[str]], files: Sequence[Path]) -> None:
    for own, file in zip(names, files, strict=True):
        if own != names[0]:
            raise ValueError(f"{str(file)!r} has the columns {own}, but {str(files[0])!r} has {names[0]}.")


def _csv_chunks(formats: Mapping[Path, CsvFormat], size: int, types: Mapping[str, str] | None = None) -> Iterator[Any]:
    """Yield the rows of CSV files in frames of up to ``size`` rows, with these types of columns or with their own."""
    headers: list[list[str]] = []
    for file, written in formats.items():
        headers.append(_csv_header(file, written))
        _require_same_columns(headers, list(formats)[: len(headers)])
        with _faults_of_csv(file, written):
            reader = _csv_reader(file, written, dtype=types, chunksize=size)
        with reader:
            while True:
                with _faults_of_csv(file, written):
                    chunk = next(reader, None)
                if chunk is None:
                    break
                if len(chunk):
                    yield _checked_csv(chunk, file, headers[-1])


def _csv_reader(path: Path, written: CsvFormat, **options: Any) -> Any:
    """Open a CSV file, of which pandas then reads all rows or a chunk."""
    # low_memory=True would find the types of a column anew in each chunk, and mix them; without index_col=False, the
    # first column would become the index if rows have one field more than the header.
    options = {"iterator": True, "low_memory": False, "index_col": False} | options
    options |= {"sep": written.separator, "decimal": written.decimal, "encoding": written.encoding}
    return pandas_module().read_csv(
        path, na_values={name: list(one) for name, one in written.missing.items()}, **options
    )


def _csv_header(path: Path, written: CsvFormat) -> list[str]:
    """Return the names in the header of a CSV file: pandas numbers those that occur twice."""
    options = {"header": None, "nrows": 1, "dtype": str, "encoding": written.encoding}
    with _faults_of_csv(path, written):
        header = pandas_module().read_csv(path, sep=written.separator, **options)
    names: list[str] = header.iloc[0].dropna().tolist()
    return names


@contextmanager
def _faults_of_csv(path: Path, written: CsvFormat) -> Iterator[None]:
    """Name a CSV file in errors; rows that are longer than the header are one of them."""
    pandas = pandas_module()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)  # pandas would drop the further fields
            yield
    except pandas.errors.ParserWarning as error:
        raise ValueError(
            f"{str(path)!r} has more fields in a row than names in its header. If another mark than "
            f"{written.separator!r} stands between its columns, name it, such as --sep ';'."
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{str(path)!r} is not written in {written.encoding}: name its --encoding, or save it in UTF-8. {error}"
        ) from error
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
            f"such as --sep ';'."
        )
    return _with_flags(frame)


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
    kind = series.dtype.kind
    numbers = series.to_numpy(np.float64) if series.dtype.kind in "iuf" else None
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

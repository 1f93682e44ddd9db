"""Tables that need not fit into memory, as blocks of rows: data sets of files, lazy frames, relations, readers.

A :class:`RowBlocks` reads row groups of Parquet files where they lie, unless they are too large for its buffer. All
other sources are read once, into a temporary file of blocks: a query would otherwise run in each epoch, perhaps with
another order of rows, and a CSV file cannot be read from its middle. Files stay closed between two blocks, so an error
leaves none open. :func:`pieces` reads any source once and in order, as predictions need it, without a copy.
"""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
import threading
import weakref
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from glob import glob, has_magic
from numbers import Integral
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

LEAST_BLOCKS = 8
"""A buffer holds at least so many blocks."""

COPIED_BLOCKS, FEWEST_COPIED_BLOCKS, LEAST_ROWS = 64, 16, 1024
"""The size of the blocks of a copied table: a buffer holds COPIED_BLOCKS of them. If they then had fewer than
LEAST_ROWS rows, it holds fewer, but at least FEWEST_COPIED_BLOCKS.

Rows of one block are neighbors, and often alike. On a table of three classes that is sorted by the class, the accuracy
after 10 epochs is .011, .003 and .000 below that on the shuffled table if the buffer holds 4, 16 and 64 blocks (means
of four seeds, at a learning rate of .01). But reading a block takes about 0.2 ms, however short it is: a core reads
1.2 million rows of 30 numbers a second in blocks of 250 rows, and 4.7 million in blocks of 1000.
"""

FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "ipc",
    ".feather": "ipc",
    ".ipc": "ipc",
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "json",
    ".ndjson": "json",
}

Target: TypeAlias = "str | Sequence[str] | Mapping[str, str | Sequence[str]]"
"""The column or columns of y; of several outputs, by output."""

WeightColumns: TypeAlias = "str | Mapping[str, str | None] | None"
"""The column of weights; of several outputs, for all of them or by output. None: all weights are one."""


class RowBlocks:
    """Rows of a table that need not fit into memory, in blocks.

    Parameters
    ----------
    source : str, path-like, list of them, pyarrow.dataset.Dataset, polars.LazyFrame, DuckDB relation, or callable
        The table. A string is a path, a pattern such as ``"data/*.parquet"``, a folder (with columns in the names of
        its folders, ``year=2024/``), or the address of a file system that pyarrow knows, such as ``"s3://..."``. A
        callable without parameters returns a ``pyarrow.RecordBatchReader``, or any object with
        ``__arrow_c_stream__``.
    target : str, list of str, or dict of these
        The column, or columns, of y. For :class:`OrtGradientMultiOutput`, a dict of them by output.
    sample_weight : str, default=None
        The column of weights; None: all rows weigh one. If ``target`` is a dict, it may be one too: the columns of
        weights by output. A target may then be missing in rows whose weight for its output is zero.
    columns : list of str, default=None
        The columns of X, in this order; None: all others, in the order of the source.
    buffer_rows : int, default=500_000
        Rows that are shuffled together in memory.
    prefetch : int, default=1
        Blocks that are read ahead, in a thread; 0: none. It changes no result.
    validation_split : float in (0, 1), default=None
        Share of the blocks to hold out for early stopping; None: the estimator's. Blocks are read as a whole, so that
        it cannot name rows.

    Attributes
    ----------
    n_rows : int
        Rows of the table. Reading it, or any block, opens the source.

    Raises
    ------
    ValueError
        If the source has no rows, lacks a column, or its files disagree about a type. The message names file and
        column.

    Notes
    -----
    Parquet files whose row groups have at most an eighth of ``buffer_rows`` rows are read where they lie, and only the
    columns that are needed. Every other source is copied into a temporary Arrow file when it is opened, of the size of
    the needed columns; ``close``, the end of a ``with`` block, or the deletion of the object removes it.

    Decimals are read as the nearest float64. Columns of times, structures and maps are refused when they are read.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from onnxtrain_sklearn import RowBlocks
    >>> table = pa.table({"x": range(6), "y": [0, 1] * 3})
    >>> blocks = RowBlocks(table.to_reader, target="y")
    >>> len(blocks), blocks.n_rows
    (1, 6)
    >>> X, y, sample_weight = blocks.block(0)
    >>> X.to_pydict(), y, sample_weight
    ({'x': [0, 1, 2, 3, 4, 5]}, array([0, 1, 0, 1, 0, 1]), None)
    """

    __module__ = "onnxtrain_sklearn"  # the path by which pickles name it

    def __init__(
        self,
        source: Any,
        target: Target,
        *,
        sample_weight: WeightColumns = None,
        columns: Sequence[str] | None = None,
        buffer_rows: int = 500_000,
        prefetch: int = 1,
        validation_split: float | None = None,
    ) -> None:
        self.source, self.target, self.sample_weight, self.columns = source, target, sample_weight, columns
        self.buffer_rows, self.prefetch, self.validation_split = buffer_rows, prefetch, validation_split
        self._opened: _Opened | None = None
        self._lock = threading.Lock()  # the thread that reads ahead may open the source
        _require_names(target, sample_weight, columns)
        numbers: dict[str, Any] = {"buffer_rows": buffer_rows, "prefetch": prefetch}
        for name, number in numbers.items():
            if not isinstance(number, Integral):
                raise TypeError(f"{name} must be a whole number, got {number!r}.")
        if buffer_rows < LEAST_BLOCKS:
            raise ValueError(f"buffer_rows must be at least {LEAST_BLOCKS}, got {buffer_rows}.")
        if prefetch < 0:
            raise ValueError(f"prefetch must be at least 0, got {prefetch}.")
        if validation_split is not None and not 0 < validation_split < 1:
            raise ValueError(f"validation_split must lie between 0 and 1, got {validation_split}.")

    def __repr__(self) -> str:
        return f"RowBlocks({_description(self.source)}, target={self.target!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Return the settings; a copy opens the source anew."""
        return {name: value for name, value in vars(self).items() if name not in ("_opened", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _opened=None, _lock=threading.Lock())

    def __enter__(self) -> RowBlocks:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __array__(self, *args: object, **kwargs: object) -> np.ndarray:
        raise TypeError(
            f"{self!r} is read in blocks and cannot be converted to an array: searches, cross-validation and the other "
            f"steps of a pipeline take rows in memory, such as pandas.read_parquet(...). Outside of them, the "
            f"OrtGradient, RealMLP and TabM estimators fit to it as it is."
        )

    def close(self) -> None:
        """Remove the temporary file, if there is one; the next use opens the source anew."""
        with self._lock:
            if self._opened is not None and self._opened.remove is not None:
                self._opened.remove()
            self._opened = None

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self._open().blocks)

    @property
    def n_rows(self) -> int:
        """Rows of the table."""
        return sum(block.n_rows for block in self._open().blocks)

    @property
    def feature_names(self) -> list[str]:
        """Names of the columns of X, in order."""
        return self._open().features

    @property
    def categorical_names(self) -> list[str]:
        """Names of the columns of X that the source declares as categorical, including columns of numbers."""
        opened = self._open()
        return [name for name in opened.features if name in opened.categorical]

    @property
    def sizes(self) -> list[int]:
        """Rows of each block."""
        return [block.n_rows for block in self._open().blocks]

    def block(self, i: int) -> tuple[Any, Any, Any]:
        """Return the features of a block as a table of Arrow, its targets, and its weights; None: all are one.

        Targets and weights are arrays, or dicts of them if ``target`` and ``sample_weight`` are dicts.
        """
        table = self._table(i, [*self.feature_names, *_target_columns(self)])
        return table.select(self.feature_names), *self._targets(table, i)

    def targets(self, i: int) -> tuple[Any, Any]:
        """Return the targets and the weights of a block, without its features."""
        return self._targets(self._table(i, _target_columns(self)), i)

    def reader(self, i: int) -> Callable[[], tuple[Any, Any, Any]]:
        """Return a function that reads a block like :meth:`block`, also in another process that can open the files."""
        opened = self._open()
        if opened.remove is not None:
            raise ValueError(
                f"{_description(self.source)} is no set of Parquet files of short row groups, and only these are read "
                f"in other processes. Read it with Dask, for example by dask.dataframe.read_csv."
            )
        return _BlockReader(self, opened.blocks[i], opened.features)

    def place(self, i: int) -> str:
        """Return the name of a block for messages: its row group and file."""
        return self._open().blocks[i].place

    def _table(self, i: int, names: list[str]) -> Any:
        import pyarrow as pa

        one = self._open().blocks[i]
        try:
            return readable(one.read(names), one.place)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{one.place} cannot be read: {error}") from error

    def _targets(self, table: Any, i: int) -> tuple[Any, Any]:
        return targets_in(table, self.target, self.sample_weight, self.place(i))

    def _open(self) -> _Opened:
        with self._lock:
            if self._opened is None:
                self._opened = _find_blocks(self)
            return self._opened


def is_source(X: Any, y: Any = None) -> bool:
    """Return True if a :class:`RowBlocks` can be made of X: it names a table, or holds one that is not read yet.

    ``y`` may name its target. Two other predicates differ: :func:`holds_blocks` is True for a RowBlocks itself, and
    ``reads_source`` of ``_estimators/streams_predictions.py`` for all that ``predict`` and ``score`` read in batches.
    """
    if isinstance(X, (str, os.PathLike)):
        return True
    named = isinstance(y, str) or (isinstance(y, Mapping) and all(isinstance(one, str) for one in y.values()))
    if isinstance(X, (list, tuple)):  # a list of strings may hold documents instead of paths
        return bool(X) and all(
            isinstance(one, os.PathLike) or (isinstance(one, str) and (named or Path(one).suffix.lower() in FORMATS))
            for one in X
        )
    kind = type(X)
    if hasattr(kind, "__dask_graph__"):  # a delayed object of Dask is callable, too
        return False
    package = kind.__module__.partition(".")[0]
    lazy = kind.__name__
    return (
        (package == "polars" and lazy == "LazyFrame")
        or (package in ("duckdb", "_duckdb") and lazy == "DuckDBPyRelation")
        or (package == "pyarrow" and lazy.endswith("Dataset"))
        or (callable(X) and (named or isinstance(X, (FunctionType, MethodType, BuiltinFunctionType, partial))))
    )


def holds_blocks(X: Any) -> bool:
    """Return True if X is a table in blocks: an object with ``block(i)``."""
    # A data frame may have a column ``block``, which is not callable. A delayed object of Dask has every attribute.
    return callable(getattr(X, "block", None)) and not hasattr(type(X), "__dask_graph__")


class _Block(NamedTuple):
    n_rows: int
    place: str
    read: Callable[[list[str]], Any]


@dataclass(frozen=True, eq=False)
class _BlockReader:
    """Reads one block without opening the other files of the source."""

    rows: RowBlocks
    block: _Block
    features: list[str]

    def __call__(self) -> tuple[Any, Any, Any]:
        """Return X, y and weights of the block."""
        twin = copy.copy(self.rows)
        twin._opened = _Opened([self.block], self.features, None)
        return twin.block(0)


class _Opened(NamedTuple):
    """The blocks of a source, the names of its features, and a function that removes its temporary copy, if any.

    ``categorical`` holds the names of the columns that are declared as categorical, of any type.
    """

    blocks: list[_Block]
    features: list[str]
    remove: Callable[[], object] | None
    categorical: frozenset[str] = frozenset()


def _find_blocks(rows: RowBlocks) -> _Opened:
    dataset, fragments = _dataset(rows.source)
    size = rows.buffer_rows // LEAST_BLOCKS
    target_columns = _target_columns(rows)
    if fragments and _is_parquet(dataset):
        stamps = _stamps(dataset, fragments)  # before the footers of the files are read
        schema, features = _schema(dataset, fragments, rows.columns, target_columns)
        groups = _row_groups(fragments)
        if groups and max(one.row_groups[0].num_rows for one in groups) <= size:
            blocks = []
            for one in groups:
                number, n_rows = one.row_groups[0].id, one.row_groups[0].num_rows
                read = _reader(one, schema, stamps.get(one.path))
                blocks.append(_Block(n_rows, f"Row group {number} of {one.path}", read))
            return _Opened(blocks, features, None, _declared(schema))
    return _copied(rows, pieces(dataset, rows.columns, target_columns, size))


def _dataset(source: Any) -> tuple[Any, list[Any]]:
    """Return a pyarrow data set for paths, or the source itself, and its files; [] if it is read as a whole."""
    try:
        import pyarrow.dataset as ds
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Tables in files are read with pyarrow, which is not installed. Install the extra "
            "onnxtrain-sklearn[stream]."
        ) from error

    dataset = file_dataset(source) if isinstance(source, (str, os.PathLike, list, tuple)) else source
    if not isinstance(dataset, ds.FileSystemDataset):
        return dataset, []
    try:
        return dataset, list(dataset.get_fragments())
    except ValueError:  # a data set with a filter, which applies only if the data set is scanned as a whole
        return dataset, []


def _is_parquet(dataset: Any) -> bool:
    import pyarrow.dataset as ds

    return isinstance(dataset.format, ds.ParquetFileFormat)


def pieces(
    source: Any, columns: Sequence[str] | None, target_columns: Sequence[str], size: int
) -> Generator[tuple[str, Any]]:
    """Yield the rows of a source once and in order, as tables, and their places.

    Tables have ``size`` rows at most, or a few more, where this function chooses. The blocks of a RowBlocks that is
    open, the batches of a reader or callable, and those of a relation come in their own size.

    Parameters
    ----------
    source : RowBlocks, or what it takes as its source, or pyarrow.RecordBatchReader
    columns : sequence of str or None
        The feature columns, which come first; None: all columns that are neither in ``target_columns`` nor targets or
        weights of a RowBlocks.
    target_columns : sequence of str
        The columns of targets and weights, which come after these.
    size : int
        Rows to read at a time, where the source leaves a choice.

    Yields
    ------
    place : str
        Where the rows lie, for messages.
    table : pyarrow.Table
    """
    import pyarrow as pa

    if isinstance(source, RowBlocks):
        if columns is None or source._opened is not None:  # the source may have been copied already: use the copy
            columns = source.feature_names if columns is None else columns
            known = [*source.feature_names, *_target_columns(source)]
            needed = [*_features(known, columns, target_columns), *target_columns]
            yield from ((source.place(i), source._table(i, needed)) for i in range(len(source)))
            return
        source = source.source
    dataset, fragments = _dataset(source)
    if not fragments:
        start, description = 0, _description(source)
        names: list[str] = []
        for batch in _named_batches(_batches(dataset, size, columns, target_columns), description):
            names = names or [*_features(batch.schema.names, columns, target_columns), *target_columns]
            end = start + batch.num_rows
            if end > start:
                table = pa.Table.from_batches([_without_dictionaries(batch.select(names))])
                yield f"Rows {start} to {end - 1} of {description}", table
            start = end
        return

    stamps = _stamps(dataset, fragments)
    schema, _ = _schema(dataset, fragments, columns, target_columns)
    for fragment in fragments:
        stamp = stamps.get(fragment.path)
        if _is_parquet(dataset):
            for group in _row_groups([fragment]):
                place = f"Row group {group.row_groups[0].id} of {group.path}"
                for batch in _read_batches(_row_group_batches(group, schema, size), place, group.path, stamp):
                    yield place, pa.Table.from_batches([batch])
            continue
        start = 0
        batches = iter(fragment.to_batches(schema=schema, columns=schema.names, batch_size=size, **READ_AHEAD))
        for batch in _read_batches(batches, fragment.path, fragment.path, stamp):
            if batch.num_rows:
                place = f"Rows {start} to {start + batch.num_rows - 1} of {fragment.path}"
                yield place, pa.Table.from_batches([_without_dictionaries(batch)])
                start += batch.num_rows


def _read_batches(batches: Iterator[Any], place: str, path: str, stamp: tuple[int, int] | None) -> Iterator[Any]:
    """Yield batches of a file; add ``place`` to an error of pyarrow."""
    import pyarrow as pa

    while True:
        try:
            with _unchanged(path, stamp):
                batch = next(batches, None)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{place} cannot be read: {error}") from error
        if batch is None:
            return
        yield batch


def _named_batches(batches: Iterator[Any], description: str) -> Iterator[Any]:
    """Yield batches of a source without files; an error of its reader names the source and the row."""
    import pyarrow as pa

    start = 0
    while True:
        try:
            batch = next(batches, None)
        except (pa.ArrowException, OSError) as error:
            if str(error).rstrip().endswith("KeyboardInterrupt"):  # Ctrl-C in a reader that is written in Python
                raise KeyboardInterrupt from error
            raise ValueError(f"Rows from {start} on of {description} cannot be read: {error}") from error
        if batch is None:
            return
        yield batch
        start += batch.num_rows


def _row_group_batches(group: Any, schema: Any, size: int) -> Iterator[Any]:
    """Yield the rows of a row group in batches, with categories as plain values.

    A scan of the data set would decode the whole group first: 1M rows of 30 columns would take 820 MB instead of 130.
    """
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    folders = ds.get_partition_keys(group.partition_expression)
    with (
        group.filesystem.open_input_file(group.path) as source,
        pq.ParquetFile(source, metadata=group.metadata, pre_buffer=False, buffer_size=2**20) as file,
    ):
        own = [name for name in schema.names if name in file.schema_arrow.names]
        number = group.row_groups[0].id
        for batch in file.iter_batches(size, row_groups=[number], columns=own, use_threads=False):
            columns = []
            for name, kind in zip(schema.names, schema.types, strict=True):
                column = batch.column(name) if name in own else pa.repeat(folders[name], batch.num_rows)
                column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
                kind = kind.value_type if pa.types.is_dictionary(kind) else kind
                columns.append(column if column.type == kind else column.cast(kind))
            yield pa.RecordBatch.from_arrays(columns, names=schema.names)


def file_dataset(source: Any) -> Any:
    """Return the data set of files: a path, a pattern, a folder, an address, or a list of paths."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    if isinstance(source, (list, tuple)):
        files: list[str] = [os.fspath(one) for one in source]
    else:
        text = os.fspath(source)
        if "://" in text:
            kind = Path(text).suffix.lower()
            return ds.dataset(text, format=_format([kind if kind in FORMATS else ".parquet"]), partitioning="hive")
        files = sorted(glob(text, recursive=True)) if has_magic(text) and not os.path.exists(text) else [text]
        if files == [text] and os.path.isdir(text):
            found = sorted(path for path in Path(text).rglob("*") if path.suffix.lower() in FORMATS)
            files = [
                str(p) for p in found if not any(part.startswith(("_", ".")) for part in p.relative_to(text).parts)
            ]
            if not files:
                raise ValueError(f"The folder {text!r} holds no file of a table: {', '.join(FORMATS)}.")
    missing = [file for file in files if not os.path.isfile(file)]
    if not files or missing:
        named = repr(missing[0]) if missing else repr(source)
        raise FileNotFoundError(f"No file {named}. A source is a path, a pattern, a folder, or a list of paths.")
    kinds = sorted({Path(file).suffix.lower() for file in files})
    formats = {FORMATS.get(kind) for kind in kinds}
    if len(formats) > 1 or None in formats or {".csv", ".tsv"} <= set(kinds):
        raise ValueError(f"All files of a table must have the same ending, one of {', '.join(FORMATS)}; got {kinds}.")
    try:
        return ds.dataset(files, format=_format(kinds), partitioning="hive")
    except (pa.ArrowException, OSError) as error:
        _require_different_names(files[0], kinds)
        raise ValueError(f"The table cannot be read: {error}") from error


def _require_different_names(file: str, kinds: Sequence[str]) -> None:
    """Raise if columns of a Parquet file have the same name, which pyarrow does not name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if FORMATS[kinds[0]] == "parquet":
        with suppress(pa.ArrowException, OSError):
            if repeated := _repeated(pq.read_schema(file).names):
                raise ValueError(f"{file} has several columns of the name {repeated[0]!r}. Give them different names.")


def _format(kinds: Sequence[str]) -> Any:
    """Return pyarrow's format for files with these endings, which all stand for the same format."""
    import pyarrow.csv as csv
    import pyarrow.dataset as ds

    if kinds == [".tsv"]:
        return ds.CsvFileFormat(csv.ParseOptions(delimiter="\t"))
    return FORMATS[kinds[0]]


def _row_groups(fragments: Iterable[Any]) -> list[Any]:
    """Return the nonempty row groups of Parquet files."""
    return [piece for one in fragments for piece in one.split_by_row_group() if piece.row_groups[0].num_rows]


def _stamps(dataset: Any, fragments: list[Any]) -> dict[str, tuple[int, int]]:
    """Return the stamp of each local file, its size and time of change; remote files would cost a request each."""
    import pyarrow.fs as fs

    if not isinstance(dataset.filesystem, fs.LocalFileSystem):
        return {}
    return {one.path: _stamp(one.path) for one in fragments if os.path.exists(one.path)}


def _stamp(path: str) -> tuple[int, int]:
    state = os.stat(path)
    return state.st_size, state.st_mtime_ns


def _reader(piece: Any, schema: Any, stamp: tuple[int, int] | None) -> Callable[[list[str]], Any]:
    """Return a function that reads a row group, and raises if its file no longer has this ``stamp``.

    The offsets of row groups come from the file's footer. If the file has changed, other bytes are at these offsets.
    Reading them usually fails, but sometimes it gives wrong rows.
    """

    def read(names: list[str]) -> Any:
        with _unchanged(piece.path, stamp):
            return piece.to_table(schema=schema, columns=names, use_threads=False)

    return read


@contextmanager
def _unchanged(path: str, stamp: tuple[int, int] | None) -> Iterator[None]:
    """Raise at the end of the ``with`` block, instead of any other error, if the file no longer has this ``stamp``."""
    import pyarrow as pa

    error: Exception | None = None
    try:
        yield
    except (pa.ArrowException, OSError) as raised:
        error = raised
    if stamp is not None and _stamp(path) != stamp:
        raise ValueError(
            f"{path} was changed after its row groups had been found. Files must stay as they are during a call; "
            f"RowBlocks.close() lets the next call find them anew."
        ) from error
    if error is not None:
        raise error


# Limit reading ahead: by default pyarrow reads 16 batches ahead, of up to 131,072 rows each, and 4 files.
READ_AHEAD: dict[str, Any] = {"batch_readahead": 1, "fragment_readahead": 1, "use_threads": False}


def _batches(source: Any, size: int, columns: Sequence[str] | None, target_columns: Sequence[str]) -> Iterator[Any]:
    """Yield the record batches of a source that is no data set of files; callers select columns by name.

    All batches have the schema of the first, with which the copy is written; missing values are nulls. ``size`` is the
    wanted number of rows: callers divide or join batches of another size. More columns than ``columns`` and
    ``target_columns`` may come; but a lazy source is asked for these alone, so that it computes no others.
    """
    import pyarrow as pa
    import pyarrow.dataset as ds

    if isinstance(source, ds.Dataset):
        names = [*_features(source.schema.names, columns, target_columns), *target_columns]
        yield from source.to_batches(columns=names, batch_size=size, **READ_AHEAD)
        return
    if type(source).__name__ == "LazyFrame" and not hasattr(source, "collect_batches"):
        raise TypeError("Lazy frames are read by polars 1.34 or newer: update polars, or give frame.collect().")
    if hasattr(source, "collect_batches"):  # a lazy frame of polars
        import polars as pl

        names = [*_features(source.collect_schema().names(), columns, target_columns), *target_columns]
        for frame in source.select(names).collect_batches(chunk_size=size, maintain_order=True):
            yield from frame.to_arrow(compat_level=pl.CompatLevel.oldest()).to_batches()
        return
    made = source() if callable(source) else source
    if hasattr(made, "__arrow_c_stream__"):
        yield from pa.RecordBatchReader.from_stream(made)
    else:
        raise TypeError(
            f"A source is a path, a list of paths, a data set of pyarrow, a lazy frame of polars, a relation of "
            f"DuckDB, or a function that returns a pyarrow.RecordBatchReader; got {type(made).__name__}."
        )


# The columns that are read, and their types.


def _schema(
    dataset: Any, fragments: list[Any], columns: Sequence[str] | None, target_columns: Sequence[str]
) -> tuple[Any, list[str]]:
    """Return the schema of the needed columns, and the names of the features."""
    import pyarrow as pa

    features = _features(dataset.schema.names, columns, target_columns)
    needed = [*features, *target_columns]
    folders = set(dataset.schema.names)  # including columns that come from the names of folders
    types: dict[str, Any] = {}
    for fragment in fragments:
        try:
            own = fragment.physical_schema
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{fragment.path} cannot be read: {error}") from error
        first = fragments[0].physical_schema.names
        if columns is None and (more := [name for name in own.names if name not in first and name not in folders]):
            less = [name for name in needed if name in first and name not in own.names]
            raise ValueError(
                f"{fragment.path} has columns that {fragments[0].path} lacks: {more}"
                f"{f', and lacks {less}' if less else ''}. Name the features: columns=[...]."
            )
        for name in needed:
            if name not in own.names:
                if name in first or name not in folders:
                    raise ValueError(f"{fragment.path} has no column {name!r}, got {own.names}.")
                types.setdefault(name, (dataset.schema.field(name).type, fragment.path))
                continue
            if len(own.get_all_field_indices(name)) > 1:
                raise ValueError(f"{fragment.path} has several columns of the name {name!r}.")
            found = own.field(name).type
            if name not in types:
                types[name] = found, fragment.path
            elif types[name][0] != found:
                types[name] = _common_type(name, types[name], (found, fragment.path)), fragment.path
    return pa.schema([(name, types[name][0]) for name in needed]), features


def _common_type(name: str, one: tuple[Any, str], other: tuple[Any, str]) -> Any:
    """Return a type for a column in both files; int64 and float64 give float64, and reading checks that it is exact."""
    import pyarrow as pa

    kinds = (one[0], other[0])
    texts = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in kinds]
    if all("string" in str(kind) for kind in texts):  # categories in some files, which are texts too
        kinds = (texts[0], texts[1])
    try:
        if any(map(pa.types.is_decimal, kinds)) and any(map(pa.types.is_floating, kinds)):
            raise pa.ArrowTypeError("Arrow does not round decimals to the nearest float64.")  # as `readable` does
        return (
            pa.unify_schemas([pa.schema([(name, kind)]) for kind in kinds], promote_options="permissive").field(0).type
        )
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        raise ValueError(
            f"Column {name!r} is {one[0]} in {one[1]}, but {other[0]} in {other[1]}. Write the files with one type."
        ) from None


def readable(table: Any, place: str) -> Any:
    """Return an Arrow table with decimals converted to the nearest float64; raise for columns of unsupported types.

    Numbers, Booleans, texts, categories of these, and lists (for an input of several numbers) stay unchanged.
    """
    import pyarrow as pa
    import pyarrow.types as types

    for i, field in enumerate(table.schema):
        kind = field.type.value_type if types.is_dictionary(field.type) else field.type
        if types.is_temporal(kind):  # NumPy would convert times to numbers of nanoseconds
            raise TypeError(
                f"{place}: column {field.name!r} holds times ({kind}); give numbers made of them, such as days since a "
                f"date, or leave it out."
            )
        if types.is_struct(kind) or types.is_map(kind) or types.is_union(kind):
            raise TypeError(
                f"{place}: column {field.name!r} holds {kind}; make columns of numbers or texts of it, or leave it out."
            )
        if types.is_decimal(kind):
            # Convert by way of text: Arrow's own conversion misses the nearest float64 for up to a quarter of numbers.
            numbers = table.column(i).cast(kind).cast(pa.string()).cast(pa.float64())
            table = table.set_column(i, field.with_type(pa.float64()), numbers)
    return table


def _require_names(target: Any, sample_weight: Any, columns: Any) -> None:
    """Raise unless each role names columns, and no column has two roles or places; outputs may share columns."""
    by_output = isinstance(target, Mapping)
    if isinstance(sample_weight, Mapping) and by_output:
        for output, name in sample_weight.items():
            if output not in target:
                raise ValueError(f"sample_weight names {output!r}, an output without a target: {list(target)}.")
            if name is not None and not isinstance(name, str):
                raise TypeError(f"sample_weight[{output!r}] must be the name of a column, got {name!r}.")
    elif sample_weight is not None and not isinstance(sample_weight, str):
        raise TypeError(f"sample_weight must be the name of a column, got {sample_weight!r}.")
    roles = {f"target[{output!r}]": names for output, names in target.items()} if by_output else {"target": target}
    if not roles:
        raise ValueError("target is empty: name at least one column.")
    roles = {role: [names] if isinstance(names, str) else names for role, names in roles.items()}
    for role, names in (*roles.items(), ("columns", columns)):
        if names is None and role == "columns":
            continue
        if isinstance(names, (str, Mapping)) or not isinstance(names, Iterable) or not _are_names(names):
            raise TypeError(f"{role} must be a list of names of columns, got {names!r}.")
        if not list(names):
            raise ValueError(f"{role} is empty: name at least one column.")
    within = {name for names in roles.values() for name in _repeated(names)}
    named = [*names_of(target), *names_of(sample_weight), *([] if columns is None else columns)]
    if repeated := sorted(within | set(_repeated(named))):
        raise ValueError(
            f"target, sample_weight and columns must name different columns, and name {repeated} more than once. "
            f"Leave out the repetitions."
        )


def _are_names(values: Iterable[object]) -> bool:
    return all(isinstance(one, str) for one in values)


def names_of(columns: Any) -> list[str]:
    """Return the names of the target or weight columns of all outputs, without repetitions."""
    if columns is None or isinstance(columns, str):
        return [] if columns is None else [columns]
    each = columns.values() if isinstance(columns, Mapping) else columns
    return list(dict.fromkeys(name for one in each for name in names_of(one)))


def _repeated(names: Sequence[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _target_columns(rows: RowBlocks) -> list[str]:
    return [*names_of(rows.target), *names_of(rows.sample_weight)]


def _features(known: Sequence[str], columns: Sequence[str] | None, target_columns: Sequence[str]) -> list[str]:
    """Check all names; return those of the features: without ``columns``, all but targets and indices."""
    for name in [*target_columns, *([] if columns is None else columns)]:
        if name not in known:
            raise ValueError(f"The source has no column {name!r}, got {list(known)}.")
    needed = known if columns is None else [name for name in known if name in {*target_columns, *columns}]
    if repeated := _repeated(needed):
        raise ValueError(f"The source has several columns of each of the names {repeated}. Give them different names.")
    if columns is not None:
        return list(columns)
    # An index without name, such as pandas writes for filtered rows, has this column name; it is no feature.
    features = [name for name in known if name not in target_columns and not name.startswith("__index_level_")]
    if not features:
        raise ValueError(f"The source has no column of features beside {target_columns}.")
    return features


# The copy of a source that cannot be read block by block.


def _copied(rows: RowBlocks, tables: Iterator[tuple[str, Any]]) -> _Opened:
    """Copy tables into a temporary file, in blocks so short that a buffer holds COPIED_BLOCKS of them, or longer.

    ``tables`` are those of :func:`pieces`, with their places, by which errors name the rows of a block.

    The file holds one message of Arrow's IPC format after another, without a footer: the reader of a file of 2,000
    blocks would take most of its time to parse the list of them again for each block.
    """
    import pyarrow as pa

    size = max(1, rows.buffer_rows // COPIED_BLOCKS, min(LEAST_ROWS, rows.buffer_rows // FEWEST_COPIED_BLOCKS))
    source = _description(rows.source)
    folder = tempfile.mkdtemp(prefix="onnxtrain_sklearn_rows_")
    # Unlike TemporaryDirectory, this does not warn if the object is dropped without being closed.
    remove = weakref.finalize(rows, shutil.rmtree, folder, ignore_errors=True)
    path = os.path.join(folder, "rows.arrow")
    counts, starts = list[int](), [0]
    features, declared = list[str](), frozenset[str]()
    schema, waiting, count = None, [], 0
    places, ends = list[str](), [0]  # of the rows that come, and the number of rows up to there

    def write(table: Any, file: Any) -> None:
        message = table.combine_chunks().to_batches()[0].serialize()
        with _writing(folder, source):
            file.write(message)
        counts.append(table.num_rows)
        starts.append(starts[-1] + message.size)

    try:
        with open(path, "wb") as file:
            for place, table in tables:
                if not table.num_rows:
                    continue
                if not places or places[-1] != place:
                    places.append(place)
                    ends.append(ends[-1])
                ends[-1] += table.num_rows
                declared |= _declared(table.schema)
                if schema is None:
                    schema = table.schema
                    features = table.column_names[: table.num_columns - len(_target_columns(rows))]
                waiting.append(table)
                count += table.num_rows
                if count >= size:
                    whole = pa.concat_tables(waiting).combine_chunks()
                    full = whole.num_rows // size * size
                    for start in range(0, full, size):
                        write(whole.slice(start, size), file)
                    waiting = [whole.slice(full)]
                    count = whole.num_rows - full
            if count:
                write(pa.concat_tables(waiting), file)
            with _writing(folder, source):
                file.flush()
    except BaseException:
        remove()
        raise
    if not counts:
        remove()
        raise ValueError(f"The source, {source}, has no rows.")

    def reader(i: int) -> Callable[[list[str]], Any]:
        def read(names: list[str]) -> Any:
            with pa.OSFile(path) as file:
                file.seek(starts[i])
                batch = pa.ipc.read_record_batch(file.read_buffer(starts[i + 1] - starts[i]), schema)
            return pa.Table.from_batches([batch]).select(names)

        return read

    blocks, end = [], 0
    for i, n in enumerate(counts):
        first, end = end, end + n
        origins = places[bisect_right(ends, first) - 1 : bisect_left(ends, end)]
        place = origins[0] if len(origins) == 1 else f"{origins[0]}, to {origins[-1][0].lower()}{origins[-1][1:]}"
        blocks.append(_Block(n, place, reader(i)))
    return _Opened(blocks, features, remove, declared)


MARK = {b"onnxtrain_sklearn": b"categories"}
"""Metadata that marks, in the copy, a column that was categorical in the source."""


def _declared(schema: Any) -> frozenset[str]:
    """Return the names of the columns that are categorical, or were so in the source."""
    import pyarrow as pa

    return frozenset(one.name for one in schema if pa.types.is_dictionary(one.type) or one.metadata == MARK)


def _without_dictionaries(batch: Any) -> Any:
    """Replace categories by their values, because each batch may have its own dictionary, and a file has only one."""
    import pyarrow as pa

    columns, fields = [], []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if pa.types.is_dictionary(field.type):
            column = column.dictionary_decode()
            field = pa.field(field.name, column.type, metadata=MARK)
        columns.append(column)
        fields.append(field)
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


@contextmanager
def _writing(folder: str, source: str) -> Iterator[None]:
    """Name the folder in errors of the file system."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"The copy of {source} in {folder} cannot be written: {error}. Set TMPDIR to a folder with more space, or "
            f"write Parquet files with row groups of at most an eighth of buffer_rows rows, which need no copy."
        ) from error


def targets_in(table: Any, target: Target, sample_weight: WeightColumns, place: str) -> tuple[Any, Any]:
    """Return the targets and the weights in an Arrow table; dicts by output if ``target`` and ``sample_weight`` are.

    The target of an output may be missing in rows whose weight for the output is zero.
    """
    weights: Any = None
    if isinstance(sample_weight, Mapping):
        weights = {
            output: None if name is None else _weights(table, name, place) for output, name in sample_weight.items()
        }
    elif sample_weight is not None:
        weights = _weights(table, sample_weight, place)
    if not isinstance(target, Mapping):
        return _target_values(table, target, place), weights
    found = {}
    for output, names in target.items():
        own = weights.get(output) if isinstance(weights, dict) else weights
        found[output] = _target_values(table, names, place, None if own is None else own != 0)
    return found, weights


def _target_values(table: Any, names: str | Sequence[str], place: str, read: np.ndarray | None = None) -> np.ndarray:
    if isinstance(names, str):
        return _values(table.column(names), names, place, read)
    return np.stack([_values(table.column(name), name, place, read) for name in names], axis=1)


def _weights(table: Any, name: str, place: str) -> np.ndarray:
    weights = _values(table.column(name), name, place)
    if weights.dtype.kind not in "fiub":
        raise TypeError(f"{place}: column {name!r} holds {table.column(name).type}, and weights are numbers.")
    return weights


def _values(column: Any, name: str, place: str, read: np.ndarray | None = None) -> np.ndarray:
    """Return a column of targets or weights as an array; texts and categories become Python objects.

    Raise for missing values in the rows to ``read`` (None: all rows). In other rows, missing values become zeros or
    empty texts, so that numbers keep their type.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_nested(column.type):
        raise TypeError(
            f"{place}: column {name!r} holds {column.type}, and a target or a weight is a number or a label: name a "
            f"column for each."
        )
    if column.null_count or (pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py()):
        missing = np.asarray(pc.is_null(column, nan_is_null=True))
        if read is None or missing[read].any():
            raise ValueError(f"{place}: column {name!r} has missing values. Leave such rows out.")
        if pa.types.is_null(column.type):  # the whole file has no value in this column
            column = column.cast(pa.float64())
        filler: Any = "" if "string" in str(column.type) else False if pa.types.is_boolean(column.type) else 0
        column = pc.if_else(pa.array(missing), pa.scalar(filler, column.type), column)
    return np.asarray(column.to_numpy())


def _description(source: Any) -> str:
    """Return a short description of a source for messages, because the repr of a relation or a table holds rows."""
    if isinstance(source, (str, os.PathLike)):
        return repr(os.fspath(source))
    if isinstance(source, (list, tuple)):
        return repr(list(map(str, source[:2])))[:-1] + (", ...]" if len(source) > 2 else "]")
    return f"a {type(source).__name__}"

"""The rows that ``train`` reads: in memory, or in blocks if the table does not fit.

``rows_to_train`` reads the table, decides about its target, and splits its rows. :class:`Rows` and :class:`BlockRows`
give the same things: all rows in parts, some rows as a sample, and the arguments for ``fit``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.model_selection import GroupShuffleSplit, train_test_split

from .._data.row_blocks import RowBlocks, file_dataset
from .console import Console, UsageError
from .csv_format import UNREADABLE, opened
from .tables import (
    ARCHIVES,
    PIECE_ROWS,
    Table,
    TableTask,
    Target,
    frame_of,
    index_columns,
    kind_of,
    open_table,
    pandas_module,
    require_columns,
    target_of,
    without_columns,
)

if TYPE_CHECKING:
    import argparse

    import pandas


MOST_ROWS = 500_000
"""Rows of a table that are read into memory; of larger tables, blocks are read, and so many rows are shuffled."""

SAMPLE_ROWS = 100_000
"""Rows of a table in blocks on which its columns are looked at, and preprocessing is fitted."""


@dataclass(frozen=True)
class Order:
    """The column that says which rows belong to one part, training or test.

    Attributes
    ----------
    option : {"--group", "--time"}
    values : ndarray
        The number of the group of each row, or a number that rises with its time.
    """

    option: str
    values: np.ndarray

    def at(self, places: np.ndarray) -> Order:
        """Return the order of the rows at these places."""
        return Order(self.option, self.values[places])

    def held_out(self, share: float, seed: int) -> np.ndarray:
        """Return the mask of about a share of the rows: of whole groups, or the last ones in time.

        Rows of one time are in one part.
        """
        if self.option == "--group":
            if len(np.unique(self.values)) < 2:
                raise ValueError("--group: there is one group in the rows to split; a split needs two.")
            splitter = GroupShuffleSplit(1, test_size=share, random_state=seed)
            _, held = next(splitter.split(self.values, groups=self.values))
            mask = np.zeros(len(self.values), bool)
            mask[held] = True
            return mask
        moments, counts = np.unique(self.values, return_counts=True)
        if len(moments) < 2:
            raise ValueError("--time: all rows to split have the same time; a split needs two.")
        after = np.cumsum(counts[::-1])[::-1]  # rows at each time or later
        first = max(1, int(np.argmin(np.abs(after - share * len(self.values)))))
        return np.asarray(self.values >= moments[first])


def order_of(frame: pandas.DataFrame, options: argparse.Namespace) -> Order | None:
    """Return the order that ``--group`` or ``--time`` names."""
    for option, name in (("--group", options.group), ("--time", options.time)):
        if name is None:
            continue
        require_columns(frame, [name], option)
        column = frame[name]
        if missing := int(column.isna().sum()):
            raise ValueError(f"{option} {name!r} is missing in {missing} of {len(column)} rows: remove these rows.")
        if option == "--group":
            return Order(option, np.unique(column.astype(str), return_inverse=True)[1])
        if getattr(column.dtype, "kind", "O") in "iuf":
            return Order(option, column.to_numpy())
        pandas = pandas_module()
        try:
            times = pandas.to_datetime(column, **({} if column.dtype.kind == "M" else {"format": "ISO8601"}), utc=True)
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"--time {name!r} holds {column.iloc[0]!r}: write numbers, or dates as in 2026-01-31 or "
                "2026-01-31T12:00, which have one meaning."
            ) from error
        return Order(option, times.astype("datetime64[ns, UTC]").astype(np.int64).to_numpy())
    return None


@dataclass(frozen=True)
class Rows:
    """Rows of a table in memory: the columns besides the target, and the targets."""

    frame: pandas.DataFrame
    y: np.ndarray
    order: Order | None = None
    """Groups or times of the rows, for --group and --time."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.y)

    def at(self, places: np.ndarray) -> Rows:
        """Return the rows at these places."""
        return Rows(self.frame.iloc[places], self.y[places], self.order and self.order.at(places))

    def parts(self) -> Iterator[Rows]:
        """Yield all rows, in parts that fit into memory."""
        yield self

    def targets(self) -> Iterator[np.ndarray]:
        """Yield the targets of all parts."""
        yield self.y

    def sample(self) -> Rows:
        """Return rows from all over the table, as many as are looked at."""
        return self

    def given(self, prepare: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Return X and y for ``fit``, with the columns as ``prepare`` makes them of a data frame."""
        return prepare(self.frame), self.y


class BlockRows:
    """Rows of a table in blocks: of each block those that are held out for a test, or the others.

    Parameters
    ----------
    table : RowBlocks
    target : Target
    share : float
        Share of the rows to hold out, drawn for each block.
    seed : int
    tests : bool
        Whether these are the rows that are held out.
    """

    def __init__(self, table: RowBlocks, target: Target, share: float, seed: int, *, tests: bool) -> None:
        self.table, self._target = table, target
        self._share, self._seed, self._tests = share, seed, tests
        self.sizes = [int(np.count_nonzero(self._chosen(i, size))) for i, size in enumerate(table.sizes)]

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return sum(self.sizes)

    def part(self, i: int) -> Rows:
        """Return the rows of a block."""
        table, y, _ = self.table.block(i)
        chosen = self._chosen(i, len(y))
        return Rows(frame_of(table.filter(chosen)), self._values(y[chosen]))

    def parts(self) -> Iterator[Rows]:
        """Yield all rows, in parts that fit into memory."""
        return (self.part(i) for i, size in enumerate(self.sizes) if size)

    def targets(self) -> Iterator[np.ndarray]:
        """Yield the targets of all parts."""
        return (self.targets_of(i) for i, size in enumerate(self.sizes) if size)

    def targets_of(self, i: int) -> np.ndarray:
        """Return the targets of a block."""
        y, _ = self.table.targets(i)
        return self._values(y[self._chosen(i, len(y))])

    def sample(self) -> Rows:
        """Return rows from all over the table, as many as are looked at."""
        filled = [i for i, size in enumerate(self.sizes) if size]
        # the largest number of evenly spaced blocks that have few enough rows
        count = max(1, min(len(filled), SAMPLE_ROWS * len(filled) // self.n_rows))
        places = np.unique(np.linspace(0, len(filled) - 1, count).round().astype(int))
        return _joined([self.part(filled[place]) for place in places])

    def evenly_spaced(self, most: int) -> Rows:
        """Return every k-th row, for the smallest k with at most ``most`` rows."""
        step = -(-self.n_rows // most)
        skip = 0
        parts = list[Rows]()
        for one in self.parts():
            parts.append(Rows(one.frame.iloc[skip::step].copy(), one.y[skip::step].copy()))  # views would hold all
            skip = (skip - one.n_rows) % step
        return _joined(parts)

    def given(self, prepare: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Return X and y for ``fit``, with the columns as ``prepare`` makes them of a data frame."""
        return _PreparedBlocks(self, prepare), None

    def _chosen(self, i: int, size: int) -> np.ndarray:
        """Return the mask of the rows of a block."""
        # Drawn anew from the number of the block: rows to train on and to test on agree in whatever order blocks are
        # read, and no mask of the whole table is kept.
        held_out = np.random.default_rng([self._seed, i]).random(size) < self._share
        return held_out if self._tests else ~held_out

    def _values(self, y: np.ndarray) -> np.ndarray:
        return self._target.values_of(pandas_module().Series(y))


def _joined(parts: Sequence[Rows]) -> Rows:
    frame = pandas_module().concat([one.frame for one in parts], ignore_index=True)
    return Rows(frame, np.concatenate([one.y for one in parts]))


class _PreparedBlocks:
    """Blocks of rows as estimators read them, with prepared columns."""

    prefetch = 1  # a thread prepares the next block while this one is trained on

    def __init__(self, rows: BlockRows, prepare: Callable[[Any], Any]) -> None:
        self._rows, self._prepare = rows, prepare
        self.sizes = rows.sizes
        self.buffer_rows = rows.table.buffer_rows

    def __len__(self) -> int:
        return len(self.sizes)

    def block(self, i: int) -> tuple[Any, np.ndarray]:
        rows = self._rows.part(i)
        return self._prepare(rows.frame), rows.y

    def targets(self, i: int) -> tuple[np.ndarray, None]:
        return self._rows.targets_of(i), None

    def place(self, i: int) -> str:
        return self._rows.table.place(i)


AnyRows = Rows | BlockRows


@dataclass(frozen=True)
class Splits:
    """The rows to train on, to test on and to stop on, the target, and the table that they are of."""

    train: AnyRows
    test: AnyRows | None
    validation: Rows | None
    target: Target
    source: Table


def is_large(files: Sequence[Path]) -> bool:
    """Return True if a table has too many rows for memory.

    Archives of CSV files, Excel and JSON lines are read as a whole.
    """
    if (kind := kind_of(files[0])) != "csv":
        return kind == "parquet" and bool(file_dataset(files).count_rows() > MOST_ROWS)
    lines = 0
    for file in files:
        if ARCHIVES & set(file.suffixes):
            return False
        # A file that cannot be decompressed is an error of the reader, which names it.
        with suppress(*UNREADABLE), opened(file) as content:
            while lines <= MOST_ROWS and (block := content.read(2**20)):
                lines += block.count(b"\n")
    return lines > MOST_ROWS


def rows_to_train(
    options: argparse.Namespace, task: TableTask | None, console: Console, look: Callable[[pandas.DataFrame], None]
) -> Splits:
    """Read the table and split its rows; ``look`` is called with the columns besides the target, of some rows."""
    train: AnyRows
    test: AnyRows | None
    source = open_table(options.data, options, console)
    name = source.name
    if is_large(source.files):
        if options.group is not None or options.time is not None:
            raise UsageError(
                f"{name!r} has more than {MOST_ROWS:,} rows, of which blocks are read: --group and --time are for "
                "smaller tables. Split the table yourself, and name the parts by --test and --validation."
            )
        table = _blocks(source, options.target, options.drop)
        target = _target_of_blocks(table, options.target, task)
        console.progress(f"{name}: {table.n_rows} rows in {len(table)} blocks")
        console.progress(f"target {target.name!r}: {target.task}, as {target.reason}")
        columns = table.feature_names
        share = 0.0 if options.test is not None else options.holdout
        train = BlockRows(table, target, share, options.seed, tests=False)
        test = BlockRows(table, target, share, options.seed, tests=True) if share else None
        look(frame_of(table.block(0)[0]))
    else:
        whole = without_columns(source.read(), options.drop)
        order = order_of(whole, options)
        if options.target in (options.group, options.time):
            raise UsageError(f"{options.target!r} is the --target, and cannot say which rows belong together.")
        whole = whole.drop(columns=[one for one in (options.group, options.time) if one is not None])
        target = target_of(whole, options.target, task)
        if len(whole.columns) == 1:
            raise ValueError(f"{name}: there is no column besides the target {target.name!r} to predict it from.")
        frame = whole.drop(columns=target.name)
        columns = list(frame.columns)
        console.progress(f"{name}: {len(frame)} rows, {len(columns)} columns besides the target")
        console.progress(f"target {target.name!r}: {target.task}, as {target.reason}")
        look(frame)
        train = Rows(frame, target.values_of(whole[target.name]), order)
        test = None
        if options.test is None and options.holdout:
            train, test = _split(train, target.task, options.holdout, options.seed)

    missing = source.missing_words([*columns, target.name])

    def rows_of(path: Path) -> AnyRows:
        # Words that are missing values in the table to train on are missing here too.
        own = open_table([path], options, console, decimal=source.decimal, missing=missing)
        if is_large(own.files):
            further = _blocks(own, target.name, (), columns)
            return BlockRows(further, target, 0.0, options.seed, tests=False)
        other = own.read()
        require_columns(other, [*columns, target.name], f"In {str(path)!r}, column")
        return Rows(other[columns], target_of(other, target.name, target.task).values_of(other[target.name]))

    if options.test is not None:
        test = rows_of(options.test)
    validation = None
    if options.validation is not None:
        found = rows_of(options.validation)
        if isinstance(found, BlockRows):
            n_rows = found.n_rows
            found = found.evenly_spaced(MOST_ROWS)
            console.progress(f"{options.validation}: {found.n_rows} of {n_rows} rows, evenly spaced, end the training")
        validation = found
    return Splits(train, test, validation, target, source)


def _split(rows: Rows, task: TableTask, share: float, seed: int) -> tuple[Rows, Rows]:
    """Return rows to train on and rows to test on, with the same shares of the classes if they have enough rows."""
    n_rows = len(rows.y)
    if n_rows < 2:
        raise ValueError("One row cannot be split: give --holdout 0.")
    if rows.order is not None:
        held = rows.order.held_out(share, seed)
        return rows.at(np.flatnonzero(~held)), rows.at(np.flatnonzero(held))
    strata = None
    if task == "classification":
        _, counts = np.unique(rows.y, return_counts=True)
        # scikit-learn refuses to stratify if a class has too few rows for both parts
        if np.min(counts) >= 2 and min(n_rows * share, n_rows * (1 - share)) >= len(counts):
            strata = rows.y
    train, test = train_test_split(np.arange(n_rows), stratify=strata, test_size=share, random_state=seed)
    train, test = np.sort(train), np.sort(test)
    return rows.at(train), rows.at(test)


def _blocks(source: Table, target: str, drop: Any, columns: Any = None) -> RowBlocks:
    """Return a table in blocks: row groups of Parquet files, or a copy of CSV files."""
    is_parquet = source.kind == "parquet"
    if is_parquet:
        dataset = file_dataset(source.files)
        names = [name for name in dataset.schema.names if name not in index_columns(dataset)]
        if source.missing_words(names):
            raise UsageError(
                f"{source.name!r} has more than {MOST_ROWS:,} rows, of which blocks are read as they are: --na is for "
                "smaller Parquet tables."
            )
    else:
        names = list(next(source.pieces(PIECE_ROWS)).frame.columns)
    known = pandas_module().DataFrame(columns=names)
    require_columns(known, [target], "--target")
    wanted = [name for name in without_columns(known, drop).columns if name != target] if columns is None else columns
    require_columns(known, wanted, f"In {str(source.files[0])!r}, column")
    if target in drop:
        raise UsageError(f"--drop {target!r}: this is the target.")
    if not wanted:
        raise ValueError(f"{source.files[0]}: there is no column besides the target {target!r} to predict it from.")
    content: Any = list(source.files) if is_parquet else lambda: _csv_reader(source)
    return RowBlocks(content, target, columns=wanted, buffer_rows=MOST_ROWS)


def _csv_reader(source: Table) -> Any:
    """Return the rows of CSV files as a reader of Arrow."""
    import pyarrow as pa

    tables = (pa.Table.from_pandas(one.frame, preserve_index=False) for one in source.pieces(PIECE_ROWS))
    first = next(tables)

    def batches() -> Iterator[Any]:
        yield from first.to_batches()
        for table in tables:
            yield from table.to_batches()

    return pa.RecordBatchReader.from_batches(first.schema, batches())


def _target_of_blocks(table: RowBlocks, name: str, task: TableTask | None) -> Target:
    """Return the target, with the different ones of its values."""
    pandas = pandas_module()
    found: list[Any] = []
    for i in range(len(table)):
        values = pandas.Series(table.targets(i)[0]).drop_duplicates()
        if values.dtype.kind == "f" and len(fractions := values[values != np.rint(values)]):
            found = [fractions[:1]]  # numbers to regress on, whatever the others are
            break
        found = [pandas.concat([*found, values]).drop_duplicates()]
    return target_of(pandas.DataFrame({name: found[0]}), name, task)

"""Minibatches: rows of the data gathered into fixed buffers, padded with rows of weight zero.

Training reads the protocol :class:`Batches` alone: an epoch is an iterator of minibatches, each of which writes its
rows into buffers of the step, so that the loop allocates nothing. :class:`ArrayBatches` draws them from arrays,
:class:`BlockBatches` from a stream of blocks of which a window is in memory at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import scipy.sparse as sp

from .columns import Column, SparseRows


@dataclass(eq=False)
class BatchBuffers:
    """Buffers for one minibatch: its columns by name, each with the rows on its first axis, and the rows' weights.

    Columns whose rows stay sparse have a place in ``sparse`` instead. ``has_ones``: all weights are known to be one.
    ``count``: the first ``count`` rows are data; those after them, if any, are padding of weight zero.
    """

    columns: Mapping[str, np.ndarray]
    sample_weight: np.ndarray
    sparse: Mapping[str, SparseRows] = field(default_factory=dict)
    has_ones: bool = False
    count: int = field(init=False)

    def __post_init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget what is known of the rows: the holder of the buffers may change them."""
        self.has_ones, self.count = False, len(self.sample_weight)


class Minibatch(NamedTuple):
    """Rows for one pass of the graph.

    Attributes
    ----------
    rows : ndarray of int
        Their numbers in the arrays of :meth:`Batches.resident`; of a stream, in the window that is in memory.
    weights : ndarray or None
        Their weights; None: one each.
    weight : float
        The sum of their weights.
    fill : callable
        Writes the rows into buffers. A minibatch shorter than the buffers is padded with copies of its first row at
        weight zero: they add nothing to a weighted mean, and are finite where the minibatch is.
    """

    rows: np.ndarray
    weights: np.ndarray | None
    weight: float
    fill: Callable[[BatchBuffers], None]


class Batches(Protocol):
    """The rows to train on, one epoch after the other.

    Attributes
    ----------
    size : int
        Rows of a full minibatch.
    """

    size: int

    @property
    def steps(self) -> int | None:
        """Minibatches of an epoch; None: not known before all rows have been read."""

    @property
    def n_rows(self) -> int:
        """Rows of the data that an epoch stands for; of a stream, those of the last epoch."""

    @property
    def weight(self) -> float | None:
        """Sum of the weights of an epoch; None: unknown, or different from epoch to epoch."""

    def epoch(self) -> Iterator[Minibatch]:
        """Yield the minibatches of the next epoch, to be used before the one after it begins."""

    def resident(self, limit: int) -> dict[str, np.ndarray] | None:
        """Return all rows in the graph's types, whose rows minibatches number; None: more than ``limit`` bytes."""

    def digest(self, update: Callable[[bytes], object], size: int) -> None:
        """Call ``update`` with everything that an epoch depends on, ``size`` rows at a time."""


def filled(minibatches: Iterable[Minibatch], buffers: Callable[[int], BatchBuffers]) -> Iterator[float]:
    """Gather one minibatch after the other; yield the sum of the weights of each.

    ``buffers`` returns the buffers for so many rows.
    """
    count, target = -1, None
    for one in minibatches:
        if target is None or len(one.rows) != count:
            count, target = len(one.rows), buffers(len(one.rows))
        one.fill(target)
        weight = one.weight
        del one  # it may hold the window of a stream, which goes before the next one is read
        yield weight


class ArrayBatches:
    """Minibatches of some rows of arrays.

    Parameters
    ----------
    columns : mapping of str to Column
        The graph's inputs, the target among them, by name.
    rows : ndarray of int
        The rows to go through.
    sample_weight : ndarray of shape (n_samples,) or None
        Weight of every row of the data; None: one.
    size : int
        Rows of a minibatch.
    rng : numpy.random.RandomState or None
        Draws the order of every epoch; None: the order stays as it is.
    n_rows : int, optional
        Rows of the data that one epoch stands for; by default ``len(rows)``.
    drop_last : bool, default=False
        Whether an epoch leaves out the last rows of its order that do not fill a minibatch.
    """

    def __init__(
        self,
        columns: Mapping[str, Column],
        rows: np.ndarray,
        sample_weight: np.ndarray | None,
        size: int,
        rng: np.random.RandomState | None,
        *,
        n_rows: int | None = None,
        drop_last: bool = False,
    ) -> None:
        self._columns, self._rows, self._weights = dict(columns), rows, sample_weight
        self._source = _Rows(self._columns, sample_weight)
        self.size, self._rng = min(size, len(rows)), rng
        self._loaded: BatchBuffers | None = None
        self._order = rows.copy()
        self._minibatches: list[Minibatch] = []
        self._n_rows, self.drop_last = len(rows) if n_rows is None else n_rows, drop_last
        total = float(len(rows) if sample_weight is None else sample_weight[rows].sum(dtype=np.float64))
        self.weight: float | None = None if drop_last else total

    def of(self, columns: Mapping[str, Column]) -> ArrayBatches:
        """Return the same minibatches of other columns."""
        rows, size, rng = self._rows, self.size, self._rng
        return ArrayBatches(columns, rows, self._weights, size, rng, n_rows=self._n_rows, drop_last=self.drop_last)

    def column(self, name: str) -> Column:
        """Return the data of one input, or the target."""
        return self._columns[name]

    @property
    def steps(self) -> int:
        """Minibatches of one epoch."""
        return len(self._rows) // self.size if self.drop_last else -(-len(self._rows) // self.size)

    @property
    def n_rows(self) -> int:
        """Rows of the data that one epoch stands for, without those that it leaves out."""
        return self._n_rows - (len(self._rows) % self.size if self.drop_last else 0)

    def epoch(self) -> Iterator[Minibatch]:
        """Return the minibatches of the next epoch, as views into one array that the epoch after it overwrites."""
        if self.size == len(self._rows):  # their order does not matter: nothing is drawn
            if not self._minibatches:
                self._minibatches = [self._source.minibatch(self._order)._replace(fill=self._fill_once)]
        else:
            if self._rng is not None:
                self._order[...] = self._rows
                self._rng.shuffle(self._order)
            # Rows are views into the order. Only what depends on their weights is new in each epoch.
            if not self._minibatches or (self._weights is not None and self._rng is not None):
                pieces = _minibatches_in(self._order, self.size, drop_last=self.drop_last)
                if self._weights is not None:
                    return map(self._source.minibatch, pieces)
                self._minibatches = list(map(self._source.minibatch, pieces))
        return iter(self._minibatches)

    def _fill_once(self, buffers: BatchBuffers) -> None:
        """Gather all rows, unless these buffers still hold them."""
        if self._loaded is not buffers:
            self.gather(self._order, buffers)
            self._loaded = buffers

    def gather(self, rows: np.ndarray, buffers: BatchBuffers) -> None:
        """Write these rows of the data into the buffers, padded."""
        self._source.minibatch(rows).fill(buffers)

    def resident(self, limit: int) -> dict[str, np.ndarray] | None:
        """Return all rows of the data, dense and in the graph's types; None: they take more bytes than ``limit``."""
        if sum(math.prod(column.shape) * column.dtype.itemsize for column in self._columns.values()) > limit:
            return None
        return {name: column.rows(np.arange(len(column))) for name, column in self._columns.items()}

    def digest(self, update: Callable[[bytes], object], size: int) -> None:
        """Call ``update`` with everything that an epoch depends on: rows and their weights, ``size`` rows at a time."""
        update(f"{self.size} {self.n_rows} {self._rng is None}".encode())
        for start in range(0, len(self._rows), size):
            self._source.digest(self._rows[start : start + size], update)


class _Rows:
    """Rows in memory from which minibatches are gathered, and their weights."""

    def __init__(self, columns: Mapping[str, Column], weights: np.ndarray | None) -> None:
        self.columns, self.weights = columns, weights
        self._writers: tuple[BatchBuffers, list[Callable[[np.ndarray], object]]] | None = None

    def minibatch(self, rows: np.ndarray) -> Minibatch:
        """Return the minibatch of these rows."""
        if self.weights is None:
            return Minibatch(rows, None, float(len(rows)), partial(self._gather, rows, None))
        weights = self.weights.take(rows)
        return Minibatch(rows, weights, float(weights.sum(dtype=np.float64)), partial(self._gather, rows, weights))

    def _gather(self, rows: np.ndarray, weights: np.ndarray | None, buffers: BatchBuffers) -> None:
        count, capacity = len(rows), len(buffers.sample_weight)
        padded = rows
        if count < capacity:
            padded = np.empty(capacity, rows.dtype)
            padded[:count], padded[count:] = rows, rows[0]
        if self._writers is None or self._writers[0] is not buffers:
            self._writers = buffers, [self._into(name, buffers) for name in self.columns]
        for write in self._writers[1]:
            write(padded)
        # Most minibatches have weights of one: they are written once, and only remembered from then on.
        are_ones = weights is None and count == capacity
        if not (are_ones and buffers.has_ones):
            buffers.sample_weight[:count] = 1.0 if weights is None else weights
            buffers.sample_weight[count:] = 0.0
            buffers.has_ones = are_ones
        buffers.count = count

    def _into(self, name: str, buffers: BatchBuffers) -> Callable[[np.ndarray], object]:
        """Return a function that writes rows of one column into its place in the buffers."""
        column = self.columns[name]
        if name not in buffers.sparse:
            return column.into(buffers.columns[name])
        place = buffers.sparse[name]
        return lambda rows: place.hold(column.compressed_rows(rows))

    def digest(self, rows: np.ndarray, update: Callable[[bytes], object]) -> None:
        """Call ``update`` with these rows and their weights."""
        update((np.ones(len(rows)) if self.weights is None else self.weights[rows]).tobytes())
        for name, column in self.columns.items():
            update(name.encode())
            update(column.rows(rows).tobytes())


def _minibatches_in(order: np.ndarray, size: int, *, drop_last: bool = False) -> list[np.ndarray]:
    """Return the rows of each minibatch as views into the order of an epoch."""
    whole = len(order) // size * size
    found = list(order[:whole].reshape(-1, size))  # takes less time than slices
    return found if whole == len(order) or drop_last else [*found, order[whole:]]


# A stream of blocks: files or row groups of a data set that does not fit in memory.


class Block(NamedTuple):
    """Some rows of a stream: the graph's inputs with the target, and the weights of the rows; None: one each."""

    columns: Mapping[str, Column]
    weights: np.ndarray | None = None


class Blocks(Protocol):
    """A source of blocks that are read again in each epoch."""

    @property
    def n_rows(self) -> int | None:
        """Rows of weight above zero in all blocks; None: unknown before they have been read."""

    def __len__(self) -> int:
        """Return the number of blocks."""

    def block(self, i: int) -> Block:
        """Read a block."""


class BlockBatches:
    """Minibatches of a stream: the blocks in random order, and the rows within a window of blocks.

    A window takes whole blocks up to ``buffer_rows`` rows, at least one block, and is shuffled as one. Rows that do not
    fill a minibatch at its end go into the first one of the next window. So each row comes once in an epoch, and memory
    holds a window and the block that is read. Where all rows are known to fit into one window, the order is drawn as
    :class:`ArrayBatches` draws it: both train to the same bits.

    Parameters
    ----------
    blocks : Blocks
    size : int
        Rows of a minibatch.
    rng : numpy.random.RandomState or None
        Draws the order of every epoch; None: the order of the blocks and their rows.
    buffer_rows : int, default=0
        Rows of a window; 0: each block is one.
    drop_last : bool, default=False
        Whether an epoch leaves out the last rows of its order that do not fill a minibatch.
    """

    weight: float | None = None

    def __init__(
        self,
        blocks: Blocks,
        size: int,
        rng: np.random.RandomState | None,
        *,
        buffer_rows: int = 0,
        drop_last: bool = False,
    ) -> None:
        known = blocks.n_rows
        self._blocks, self._rng, self._buffer_rows, self.drop_last = blocks, rng, buffer_rows, drop_last
        self.size = size if known is None else max(1, min(size, known))
        self.n_rows = 0

    @property
    def steps(self) -> int | None:
        """Minibatches of one epoch, where the source knows its rows."""
        known = self._blocks.n_rows
        if known is None:
            return None
        return known // self.size if self.drop_last else -(-known // self.size)

    def epoch(self) -> Iterator[Minibatch]:
        """Yield the minibatches of the next epoch; reading goes on as they are used."""
        known, order = self._blocks.n_rows, np.arange(len(self._blocks))
        rng = None if known == self.size else self._rng  # the order within a single minibatch does not matter
        if rng is not None and len(order) > 1 and (known is None or known > self._buffer_rows):
            rng.shuffle(order)
        self._read = self._weighted = yielded = 0
        rest: Block | None = None
        for window in self._windows(order):
            rows = np.arange(_length(window))
            if rng is not None:
                rng.shuffle(rows)
            if rest is not None:  # fill the minibatch that the last window began
                missing = self.size - _length(rest)
                first = _Window(rest, self.size)
                first.add(rest)
                first.add(_taken(window, rows[:missing]))
                rest, rows = first.rows(), rows[missing:]
                if _length(rest) < self.size:
                    continue
                yield _Rows(*rest).minibatch(np.arange(self.size))
                yielded, rest = yielded + self.size, None
            source, whole = _Rows(*window), len(rows) // self.size * self.size
            yield from map(source.minibatch, rows[:whole].reshape(-1, self.size))
            yielded += whole
            rest = _taken(window, rows[whole:]) if whole < len(rows) else None
            del source, window  # release this window before the next one is read
        if rest is not None and not (self.drop_last and yielded):
            yielded += _length(rest)
            yield _Rows(*rest).minibatch(np.arange(_length(rest)))
        if not yielded:
            raise ValueError(f"All {self._read} rows to train on have weight zero.")
        if known is not None and known != self._weighted:
            raise ValueError(
                f"The source has {self._weighted} rows of weight above zero, but n_rows says {known}: its blocks "
                f"changed since they were counted. Count them again."
            )
        self.n_rows = self._read - (self._weighted - yielded)

    def _windows(self, order: np.ndarray) -> Iterator[Block]:
        """Yield the rows of weight above zero of the blocks in this order, as many blocks together as fit."""
        known, window = self._blocks.n_rows, None
        capacity = self._buffer_rows if known is None else min(self._buffer_rows, known)
        for i in order.tolist():
            block = self._blocks.block(i)
            self._read += _length(block)
            if block.weights is not None and not (block.weights > 0).all():
                block = _taken(block, np.flatnonzero(block.weights > 0))
            count = _length(block)
            self._weighted += count
            if window is not None and window.count + count > capacity:
                yield window.rows()
                window = None
            if window is None and count >= capacity:  # needs no copy
                if count:
                    yield block
            elif count:
                window = window or _Window(block, capacity)
                window.add(block)
            del block  # before the next one is read
        if window is not None:
            yield window.rows()

    def resident(self, limit: int) -> None:
        """Return None: the rows are not in memory together."""

    def digest(self, update: Callable[[bytes], object], size: int) -> None:
        """Call ``update`` with everything that an epoch depends on; this reads all blocks."""
        update(f"{self.size} {self._buffer_rows} {self.drop_last} {self._rng is None} {len(self._blocks)}".encode())
        for i in range(len(self._blocks)):
            block = self._blocks.block(i)
            for start in range(0, _length(block), size):
                _Rows(*block).digest(np.arange(start, min(start + size, _length(block))), update)


def _length(block: Block) -> int:
    return len(next(iter(block.columns.values())))


def _taken(block: Block, rows: np.ndarray) -> Block:
    """Return a copy of some rows of a block."""
    columns = {
        name: Column(column.sparse_rows(rows) if column.is_sparse else column.rows(rows), column.dtype)
        for name, column in block.columns.items()
    }
    return Block(columns, None if block.weights is None else block.weights[rows])


class _Window:
    """Rows of several blocks, copied into arrays with room for ``capacity`` rows."""

    def __init__(self, like: Block, capacity: int) -> None:
        self.count = 0
        self._dtypes = {name: column.dtype for name, column in like.columns.items()}
        self._sparse: dict[str, list[object]] = {n: [] for n, column in like.columns.items() if column.is_sparse}
        self._dense = {
            name: np.empty((capacity, *column.shape[1:]), column.dtype)
            for name, column in like.columns.items()
            if name not in self._sparse
        }
        self._weights = np.ones(capacity)
        self._is_weighted = False

    def add(self, block: Block) -> None:
        """Copy the rows of a block behind those before."""
        place = slice(self.count, self.count + _length(block))
        for name, array in self._dense.items():
            array[place] = block.columns[name].rows(slice(None))
        for name, parts in self._sparse.items():
            parts.append(block.columns[name].sparse_rows(slice(None)))
        if block.weights is not None:
            self._weights[place], self._is_weighted = block.weights, True
        self.count = place.stop

    def rows(self) -> Block:
        """Return all rows."""
        data = {name: array[: self.count] for name, array in self._dense.items()}
        data |= {name: sp.vstack(parts, format="csr") for name, parts in self._sparse.items()}
        columns = {name: Column(data[name], dtype) for name, dtype in self._dtypes.items()}
        return Block(columns, self._weights[: self.count] if self._is_weighted else None)


# Rows that add nothing, or the same twice.


MERGE_LIMIT = 200
"""Rows up to which a single full batch is searched for equal rows."""


def weighted_rows(rows: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the rows without those of weight zero, which add nothing to any mean."""
    if weights is None:
        return rows, None
    weighted = rows[weights[rows] > 0]
    if not len(weighted):
        raise ValueError(f"All {len(rows)} rows to train on have weight zero.")
    return weighted, weights


def distinct_rows(
    columns: Mapping[str, Column], rows: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return one row for each group of equal ones, in an order of their content, and weights that hold their sums.

    For a single full batch this changes no mean, only the order in which it is summed: a row of weight two and the
    row given twice then lead to the same weights to the bit.
    """
    ones = np.ones(len(next(iter(columns.values())))) if weights is None else weights
    rows, _ = weighted_rows(rows, ones)
    parts = [column.content(rows) for column in columns.values()]
    content = np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in parts], axis=1)
    whole = content.view(np.dtype((np.void, content.shape[1]))).ravel()  # np.unique(axis=0) makes a field of each byte
    _, first, group = np.unique(whole, return_index=True, return_inverse=True)
    merged = np.zeros(len(ones))
    merged[rows[first]] = np.bincount(group.ravel(), weights=ones[rows], minlength=len(first))
    return rows[first], merged

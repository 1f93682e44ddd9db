"""Minibatches: rows of the data, gathered into fixed buffers and padded with rows of weight zero.

Training reads only the protocol :class:`Batches`: an epoch is an iterator of minibatches, and each of them writes its
rows into buffers that the training step reuses. :class:`ArrayBatches` draws minibatches from arrays,
:class:`BlockBatches` from a stream of blocks, of which a window is in memory at a time. Both gather rows by
:class:`_Gatherer`. :func:`weighted_rows` and :func:`distinct_rows` choose the rows before training begins.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import scipy.sparse as sp

from .columns import InputData, SparseRows


@dataclass(eq=False)
class BatchBuffers:
    """Buffers for one minibatch.

    Attributes
    ----------
    columns : mapping of str to ndarray
        The inputs by name, with the rows on the first axis.
    sample_weight : ndarray
        The weights of the rows.
    sparse : mapping of str to SparseRows
        The buffers of inputs whose rows stay sparse; these inputs are not in ``columns``.
    has_ones : bool
        True if all weights are known to be one.
    count : int
        The first ``count`` rows are data; any rows after them are padding of weight zero.
    holds : object or None
        The ArrayBatches whose only minibatch is in the buffers, so that it need not be written again; else None.
    """

    columns: Mapping[str, np.ndarray]
    sample_weight: np.ndarray
    sparse: Mapping[str, SparseRows] = field(default_factory=dict)
    has_ones: bool = False
    count: int = field(init=False)
    holds: object = field(init=False)

    def __post_init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Mark the contents of the buffers as unknown, because their owner may have changed them."""
        self.has_ones, self.count, self.holds = False, len(self.sample_weight), None


class Minibatch(NamedTuple):
    """Rows for one pass of the graph.

    Attributes
    ----------
    rows : ndarray of int
        Indices into all rows of the data (:meth:`Batches.resident`); for a stream, into the block or window that it was
        drawn from.
    weights : ndarray or None
        Weights of the rows; None if all are one.
    weight : float
        Sum of the weights.
    fill : callable
        Function that writes the rows into buffers. If the minibatch is shorter than the buffers, copies of its first
        row with weight zero pad it: they add nothing to a weighted mean. A copy is as finite as its row; zeros might
        give NaN, and zero times NaN is NaN.
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
    passes : int
        Passes of a full minibatch: more than one if the graph runs only on fewer rows. An epoch yields the rows of each
        pass as a minibatch of its own.
    """

    size: int
    passes: int

    @property
    def n_minibatches(self) -> int | None:
        """Minibatches of an epoch; None if that is unknown until all rows have been read."""

    @property
    def n_rows(self) -> int:
        """Rows of the data in an epoch; for a stream, in the latest epoch."""

    @property
    def weight(self) -> float | None:
        """Sum of the weights of an epoch; None if it is unknown, or differs between epochs."""

    def epoch(self, skip: int = 0) -> Iterator[Minibatch]:
        """Yield the minibatches of the next epoch, without the first ``skip``.

        Use all minibatches before the next epoch begins. A minibatch of a stream keeps the window that it is drawn from
        in memory: delete it before the next minibatch is read, which may need that memory.
        """

    def resident(self, limit: int) -> dict[str, np.ndarray] | None:
        """Return all rows, to which the indices of minibatches refer, in the graph's types.

        None if they take more than ``limit`` bytes, or are not in memory together.
        """

    def digest(self, update: Callable[[bytes], object], size: int) -> None:
        """Call ``update`` with all bytes that an epoch depends on, ``size`` rows at a time."""


class ArrayBatches:
    """Minibatches of rows of arrays.

    Parameters
    ----------
    columns : mapping of str to InputData
        The graph's inputs by name, including the target.
    rows : ndarray of int
        The rows to train on.
    sample_weight : ndarray of shape (n_samples,) or None
        Weight of every row of the data; None if all are one.
    size : int
        Rows of a minibatch.
    rng : numpy.random.RandomState or None
        Generator that shuffles every epoch of more than one minibatch; None keeps the order.
    n_rows : int, optional
        Rows of the data that ``rows`` represent, if equal rows were merged; by default ``len(rows)``.
    drop_last : bool, default=False
        If True, an epoch leaves out the last rows of its order if they do not fill a minibatch.
    batch : int, optional
        Rows of a pass, if the graph runs only on so many; by default ``size``. The last pass of a minibatch may have
        fewer.
    """

    def __init__(
        self,
        columns: Mapping[str, InputData],
        rows: np.ndarray,
        sample_weight: np.ndarray | None,
        size: int,
        rng: np.random.RandomState | None,
        *,
        n_rows: int | None = None,
        drop_last: bool = False,
        batch: int | None = None,
    ) -> None:
        self._columns = dict(columns)
        self._rows = rows
        self._weights = sample_weight
        self._gatherer = _Gatherer(self._columns, sample_weight)
        self.size, self._rng = min(size, len(rows)), rng
        self._batch = self.size if batch is None else batch
        self.passes = -(-self.size // self._batch)
        self._order = rows.copy()
        self._minibatches: list[Minibatch] = []
        self._n_rows = len(rows) if n_rows is None else n_rows
        self.drop_last = drop_last
        total = float(len(rows) if sample_weight is None else sample_weight[rows].sum(dtype=np.float64))
        self.weight: float | None = None if drop_last else total

    def of(self, columns: Mapping[str, InputData]) -> ArrayBatches:
        """Return minibatches of the same rows and weights, in the same order, of other ``columns``."""
        rows = self._rows
        size = self.size
        rng = self._rng
        more = {"n_rows": self._n_rows, "batch": self._batch}
        return ArrayBatches(columns, rows, self._weights, size, rng, drop_last=self.drop_last, **more)

    def column(self, name: str) -> InputData:
        """Return the data of one input."""
        return self._columns[name]

    @property
    def n_minibatches(self) -> int:
        """Passes of one epoch: its minibatches, or more if a minibatch takes several passes."""
        whole, rest = divmod(len(self._rows), self.size)
        return whole * self.passes + (0 if self.drop_last else -(-rest // self._batch))

    @property
    def n_rows(self) -> int:
        """Rows of the data that an epoch represents, without the rows that ``drop_last`` leaves out."""
        return self._n_rows - (len(self._rows) % self.size if self.drop_last else 0)

    def epoch(self, skip: int = 0) -> Iterator[Minibatch]:
        """Return the minibatches of the next epoch, as views into an array that the epoch after it overwrites."""
        if self.size == len(self._rows) and self.passes == 1:
            # Draw nothing, because the order within a single minibatch does not matter.
            if not self._minibatches:
                self._minibatches = [self._gatherer.minibatch(self._order)._replace(fill=self._fill_once)]
        else:
            if self._rng is not None:
                self._order[...] = self._rows
                self._rng.shuffle(self._order)
            # The rows of the minibatches are views into the order, so the same minibatches serve every epoch. But their
            # weights are copies, so new minibatches are needed if rows have weights and the order changes.
            if not self._minibatches or (self._weights is not None and self._rng is not None):
                whole = len(self._order) // self.size * self.size
                pieces = list(self._order[:whole].reshape(-1, self.size))  # faster than a slice for each minibatch
                if whole < len(self._order) and not self.drop_last:
                    pieces.append(self._order[whole:])
                if self.passes > 1:
                    step = self._batch
                    pieces = [piece[i : i + step] for piece in pieces for i in range(0, len(piece), step)]
                if self._weights is not None:
                    return map(self._gatherer.minibatch, pieces[skip:])
                self._minibatches = list(map(self._gatherer.minibatch, pieces))
        return iter(self._minibatches[skip:] if skip else self._minibatches)

    def _fill_once(self, buffers: BatchBuffers) -> None:
        """Write all rows into the buffers, unless these hold them already."""
        if buffers.holds is not self:
            self.gather(self._order, buffers)
            buffers.holds = self

    def gather(self, rows: np.ndarray, buffers: BatchBuffers) -> None:
        """Write ``rows`` of the data into the buffers, and fill the buffers up with padding rows."""
        self._gatherer.minibatch(rows).fill(buffers)

    def resident(self, limit: int) -> dict[str, np.ndarray] | None:
        """Return all rows of the data, dense and in the graph's types; None if they take more than ``limit`` bytes."""
        if sum(math.prod(column.shape) * column.dtype.itemsize for column in self._columns.values()) > limit:
            return None
        return {name: column.rows(np.arange(len(column))) for name, column in self._columns.items()}

    def digest(self, update: Callable[[bytes], object], size: int) -> None:
        """Call ``update`` with all bytes that an epoch depends on, rows and weights, ``size`` rows at a time."""
        update(f"{self.size} {self.n_rows} {self._rng is None}".encode())
        for start in range(0, len(self._rows), size):
            self._gatherer.digest(self._rows[start : start + size], update)


class _Gatherer:
    """Gathers minibatches from rows in memory and their weights."""

    def __init__(self, columns: Mapping[str, InputData], weights: np.ndarray | None) -> None:
        self.columns, self.weights = columns, weights
        self._writers: tuple[BatchBuffers, list[Callable[[np.ndarray], object]]] | None = None

    def minibatch(self, rows: np.ndarray) -> Minibatch:
        """Return the minibatch of these rows."""
        if self.weights is None:
            return Minibatch(rows, None, float(len(rows)), partial(self._gather, rows, None))
        weights = self.weights.take(rows)
        return Minibatch(rows, weights, float(weights.sum(dtype=np.float64)), partial(self._gather, rows, weights))

    def _gather(self, rows: np.ndarray, weights: np.ndarray | None, buffers: BatchBuffers) -> None:
        """Write the rows and their weights into the buffers, with padding."""
        count, capacity = len(rows), len(buffers.sample_weight)
        padded = rows
        if count < capacity:
            padded = np.empty(capacity, rows.dtype)
            padded[:count], padded[count:] = rows, rows[0]
        if self._writers is None or self._writers[0] is not buffers:
            self._writers = buffers, [self._into(name, buffers) for name in self.columns]
        for write in self._writers[1]:
            write(padded)
        # Most minibatches have weights of one, so write these only if the buffer does not already hold ones.
        are_ones = weights is None and count == capacity
        if not (are_ones and buffers.has_ones):
            buffers.sample_weight[:count] = 1.0 if weights is None else weights
            buffers.sample_weight[count:] = 0.0
            buffers.has_ones = are_ones
        buffers.count, buffers.holds = count, None

    def _into(self, name: str, buffers: BatchBuffers) -> Callable[[np.ndarray], object]:
        """Return a function that writes rows of the input ``name`` into its buffer, sparse or dense."""
        column = self.columns[name]
        if name not in buffers.sparse:
            return column.into(buffers.columns[name])
        place = buffers.sparse[name]
        return lambda rows: place.hold(column.rows_for_products(rows))

    def digest(self, rows: np.ndarray, update: Callable[[bytes], object]) -> None:
        """Call ``update`` with these rows and their weights."""
        update((np.ones(len(rows)) if self.weights is None else self.weights[rows]).tobytes())
        for name, column in self.columns.items():
            update(name.encode())
            update(column.rows(rows).tobytes())


# Streams of blocks, such as the files or row groups of a data set that does not fit into memory.


class Block(NamedTuple):
    """Some rows of a stream: the graph's inputs, including the target, and the weights; None if all are one."""

    columns: Mapping[str, InputData]
    weights: np.ndarray | None = None


class Blocks(Protocol):
    """A source of blocks that can be read again in each epoch."""

    @property
    def n_rows(self) -> int | None:
        """Rows of positive weight in all blocks; None if that is unknown before they have been read."""

    def __len__(self) -> int:
        """Return the number of blocks."""

    def block(self, i: int) -> Block:
        """Read a block."""


class BlockBatches:
    """Minibatches of a stream: blocks are read in random order, and rows are shuffled within a window of blocks.

    A window is as many whole blocks as fit into ``buffer_rows`` rows, or one larger block. Rows at its end that do not
    fill a minibatch begin the first minibatch of the next window. So each row occurs once in an epoch, and memory holds
    one window and the block that is being read, or with ``prefetch`` so many blocks more. If all rows are known to fit
    into one window, the order is drawn as :class:`ArrayBatches` draws it, so that both train to the same bits.

    Parameters
    ----------
    blocks : Blocks
    size : int
        Rows of a minibatch.
    rng : numpy.random.RandomState or None
        Generator that shuffles every epoch; None keeps the order of the blocks and their rows.
    buffer_rows : int, default=0
        Rows of a window; with 0, each block is a window.
    drop_last : bool, default=False
        If True, an epoch leaves out the last rows of its order if they do not fill a minibatch, unless there are
        no others.
    prefetch : int, default=0
        Blocks that a thread reads ahead; with 0, there is no thread. It changes no result.
    block_means : list of float, default=None
        The mean target of each block. Each window gets blocks from the whole range of these means, so that the rows of
        a table that is sorted by its target are mixed too. None: use the positions of the blocks instead.
    """

    weight: float | None = None
    passes = 1

    def __init__(
        self,
        blocks: Blocks,
        size: int,
        rng: np.random.RandomState | None,
        *,
        buffer_rows: int = 0,
        drop_last: bool = False,
        prefetch: int = 0,
        block_means: Sequence[float] | None = None,
    ) -> None:
        known = blocks.n_rows
        self._block_means = block_means
        self._prefetch = prefetch
        self._epoch: Generator[Minibatch, None, None] | None = None
        self._blocks, self._rng, self._buffer_rows, self.drop_last = blocks, rng, buffer_rows, drop_last
        self.size = size if known is None else max(1, min(size, known))
        self.n_rows = 0

    @property
    def n_minibatches(self) -> int | None:
        """Minibatches of an epoch; None if the source does not know its number of rows."""
        known = self._blocks.n_rows
        if known is None:
            return None
        return known // self.size if self.drop_last else -(-known // self.size)

    def epoch(self, skip: int = 0) -> Iterator[Minibatch]:
        """Return the minibatches of the next epoch.

        Blocks are read when they are needed; those of skipped minibatches are read too.
        """
        self.close()
        self._epoch = self._minibatches()
        return islice(self._epoch, skip, None) if skip else self._epoch

    def close(self) -> None:
        """End the last epoch, and the thread that reads for it."""
        if self._epoch is not None:
            self._epoch.close()

    def _minibatches(self) -> Generator[Minibatch, None, None]:
        known = self._blocks.n_rows
        order = np.arange(len(self._blocks))
        rng = None if known == self.size else self._rng  # the order within a single minibatch does not matter
        if rng is not None and len(order) > 1 and (known is None or known > self._buffer_rows):
            order = self._dealt(rng)
        self._read = self._weighted = yielded = 0
        rest: Block | None = None
        for window in self._windows(order):
            rows = np.arange(_length(window))
            if rng is not None:
                rng.shuffle(rows)
            if rest is not None:  # begin with the rows that the last window left over, and complete the minibatch
                missing = self.size - _length(rest)
                first = _Window(rest, self.size)
                first.add(rest)
                first.add(_taken(window, rows[:missing]))
                rest, rows = first.as_block(), rows[missing:]
                if _length(rest) < self.size:
                    continue
                yield _Gatherer(*rest).minibatch(np.arange(self.size))
                yielded, rest = yielded + self.size, None
            gatherer = _Gatherer(*window)
            whole = len(rows) // self.size * self.size
            yield from map(gatherer.minibatch, rows[:whole].reshape(-1, self.size))
            yielded += whole
            rest = _taken(window, rows[whole:]) if whole < len(rows) else None
            del gatherer, window  # release this window before the next one is read
        if rest is not None and not (self.drop_last and yielded):
            yielded += _length(rest)
            yield _Gatherer(*rest).minibatch(np.arange(_length(rest)))
        if not yielded:
            raise ValueError(f"All {self._read} rows to train on have weight zero.")
        if known is not None and known != self._weighted:
            raise ValueError(
                f"The source has {self._weighted} rows of weight above zero, but n_rows says {known}: its blocks "
                f"changed since they were counted. Count them again."
            )
        self.n_rows = self._read - (self._weighted - yielded)  # without the rows that drop_last left out

    def _dealt(self, rng: np.random.RandomState) -> np.ndarray:
        """Return a random order of the blocks in which each window has blocks from the whole range of the means.

        The blocks, sorted by their means, are divided into as many layers as a window has blocks. Each window gets a
        random block of each layer.
        """
        n, known = len(self._blocks), self._blocks.n_rows
        count = max(1, n if known is None else min(n, self._buffer_rows * n // known))
        layers = np.array_split(
            np.arange(n) if self._block_means is None else np.argsort(self._block_means, kind="stable"), count
        )
        for layer in layers:
            rng.shuffle(layer)
        windows = [[layer[i] for layer in layers if i < len(layer)] for i in range(len(layers[0]))]
        whole = len(windows[-1]) == count
        chosen = rng.permutation(len(windows) if whole else len(windows) - 1)
        # Windows are filled in this order, so an incomplete one comes last.
        return np.array([i for w in [*chosen, *([] if whole else [len(windows) - 1])] for i in windows[w]])

    def _windows(self, order: np.ndarray) -> Iterator[Block]:
        """Read the blocks in this order; yield windows of their rows of positive weight."""
        known, window = self._blocks.n_rows, None
        capacity = self._buffer_rows if known is None else min(self._buffer_rows, known)
        for block in read_ahead(self._blocks.block, order.tolist(), self._prefetch):
            self._read += _length(block)
            if block.weights is not None and not (block.weights > 0).all():
                block = _taken(block, np.flatnonzero(block.weights > 0))
            count = _length(block)
            self._weighted += count
            if window is not None and window.count + count > capacity:
                yield window.as_block()
                window = None
            if window is None and count >= capacity:  # as large as a window: yield it as it is, without a copy
                if count:  # with a capacity of 0, a block without rows comes here too
                    yield block
            elif count:
                window = window or _Window(block, capacity)
                window.add(block)
            del block  # release it before the next one is read
        if window is not None:
            yield window.as_block()

    def resident(self, limit: int) -> None:
        """Return None, as the rows are not in memory together."""

    def digest(self, update: Callable[[bytes], object], size: int) -> None:
        """Call ``update`` with all bytes that an epoch depends on; this reads all blocks."""
        update(f"{self.size} {self._buffer_rows} {self.drop_last} {self._rng is None} {len(self._blocks)}".encode())
        for i in range(len(self._blocks)):
            block = self._blocks.block(i)
            for start in range(0, _length(block), size):
                _Gatherer(*block).digest(np.arange(start, min(start + size, _length(block))), update)


T = TypeVar("T")


def read_ahead(read: Callable[[int], T], order: Iterable[int], prefetch: int) -> Generator[T]:
    """Yield ``read(i)`` for each i, in order; a thread reads up to ``prefetch`` results before they are asked for.

    Closing the iterator, or an error in ``read``, ends the thread.
    """
    if not prefetch:
        yield from map(read, order)
        return
    rest = iter(order)
    with ThreadPoolExecutor(1, thread_name_prefix="onnxtrain_sklearn-read") as reader:
        waiting = deque(reader.submit(read, i) for i in islice(rest, prefetch))
        try:
            while waiting:
                result = waiting.popleft().result()
                waiting.extend(reader.submit(read, i) for i in islice(rest, 1))
                yield result
                del result  # release it before the next one is waited for
        finally:
            for one in waiting:
                one.cancel()


def _length(block: Block) -> int:
    return len(next(iter(block.columns.values())))


def _taken(block: Block, rows: np.ndarray) -> Block:
    """Return a copy of some rows of a block."""
    columns = {
        name: InputData(column.sparse_rows(rows) if column.is_sparse else column.rows(rows), column.dtype)
        for name, column in block.columns.items()
    }
    return Block(columns, None if block.weights is None else block.weights[rows])


class _Window:
    """Rows of several blocks, copied into arrays with a capacity of ``capacity`` rows."""

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
        """Append a copy of the rows of a block."""
        place = slice(self.count, self.count + _length(block))
        for name, array in self._dense.items():
            array[place] = block.columns[name].rows(slice(None))
        for name, parts in self._sparse.items():
            parts.append(block.columns[name].sparse_rows(slice(None)))
        if block.weights is not None:
            self._weights[place], self._is_weighted = block.weights, True
        self.count = place.stop

    def as_block(self) -> Block:
        """Return all rows as one block, views where they are dense."""
        data = {name: array[: self.count] for name, array in self._dense.items()}
        data |= {name: sp.vstack(parts, format="csr") for name, parts in self._sparse.items()}
        columns = {name: InputData(data[name], dtype) for name, dtype in self._dtypes.items()}
        return Block(columns, self._weights[: self.count] if self._is_weighted else None)


# The choice of rows before training: without those that add nothing, and equal ones merged.


MERGE_LIMIT = 200
"""Largest number of rows of a single full batch for which equal rows are merged."""


def weighted_rows(rows: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the rows of positive weight, and the weights of all rows; those of weight zero do not affect any mean."""
    if weights is None:
        return rows, None
    weighted = rows[weights[rows] > 0]
    if not len(weighted):
        raise ValueError(f"All {len(rows)} rows to train on have weight zero.")
    return weighted, weights


def distinct_rows(
    columns: Mapping[str, InputData], rows: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return one row of each group of equal rows, ordered by content, and new weights of all rows.

    The weight of a returned row is the sum over its group; that of any other row is zero.

    For a single full batch, this changes no mean but only the order in which it is summed: a row of weight two and a
    row that is given twice then train to the same bits.
    """
    ones = np.ones(len(next(iter(columns.values())))) if weights is None else weights
    rows, _ = weighted_rows(rows, ones)
    parts = [column.content(rows) for column in columns.values()]
    content = np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in parts], axis=1)
    # View each row as one item: np.unique(axis=0) would make a field of each byte.
    whole = content.view(np.dtype((np.void, content.shape[1]))).ravel()
    _, first, group = np.unique(whole, return_index=True, return_inverse=True)
    merged = np.zeros(len(ones))
    merged[rows[first]] = np.bincount(group.ravel(), weights=ones[rows], minlength=len(first))
    return rows[first], merged

"""Minibatches: rows of the data gathered into fixed buffers, padded with rows of weight zero.

The training step owns one static buffer per input, so nothing is allocated in the loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from .columns import Column, SparseRows

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


@dataclass(eq=False)
class BatchBuffers:
    """Buffers for one minibatch: its columns by name, each with the rows on its first axis, and the rows' weights.

    Columns whose rows stay sparse have a place in ``sparse`` instead. ``has_ones``: all weights are known to be one.
    ``count``: the rows from there on are known to have the weight zero.
    """

    columns: Mapping[str, np.ndarray]
    sample_weight: np.ndarray
    sparse: Mapping[str, SparseRows] = field(default_factory=dict)
    has_ones: bool = False
    count: int = field(init=False)

    def __post_init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Let nothing be known of the rows: whoever holds the buffers may change them."""
        self.has_ones, self.count = False, len(self.sample_weight)


class Batches:
    """Minibatches of some rows of the data.

    Parameters
    ----------
    columns : mapping of str to Column
        The graph's inputs, the target among them, by name.
    rows : ndarray of int
        The rows to go through.
    sample_weight : ndarray of shape (n_samples,) or None
        Weight of every row of the data; None: one.
    size : int
        Rows of a batch.
    rng : numpy.random.RandomState or None
        Draws the order of every epoch; None: the order stays as it is.
    n_rows : int, optional
        Rows of the data that one pass stands for; by default ``len(rows)``.
    drop_last : bool, default=False
        Whether a pass leaves out the last rows of its order that do not fill a batch.

    Attributes
    ----------
    weight : float
        Sum of the weights of all rows.
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
        self.size, self._rng = min(size, len(rows)), rng
        self._loaded: object = None
        self._gathers: tuple[BatchBuffers, list[Callable[[np.ndarray], object]]] | None = None
        self._pass: tuple[np.ndarray, list[np.ndarray]] | None = None
        self._n_rows, self.drop_last = len(rows) if n_rows is None else n_rows, drop_last
        self.weight = float(len(rows) if sample_weight is None else sample_weight[rows].sum(dtype=np.float64))

    def of(self, columns: Mapping[str, Column]) -> Batches:
        """Return the same minibatches of other columns."""
        rows, size, rng = self._rows, self.size, self._rng
        return Batches(columns, rows, self._weights, size, rng, n_rows=self._n_rows, drop_last=self.drop_last)

    def column(self, name: str) -> Column:
        """Return the data of one input, or the target."""
        return self._columns[name]

    @property
    def steps(self) -> int:
        """Batches of one pass."""
        return len(self._rows) // self.size if self.drop_last else -(-len(self._rows) // self.size)

    @property
    def n_rows(self) -> int:
        """Rows of the data that one pass stands for, without those that it leaves out."""
        return self._n_rows - (len(self._rows) % self.size if self.drop_last else 0)

    @property
    def _is_whole(self) -> bool:
        """True if one batch holds all rows, so that their order does not matter."""
        return self.size == len(self._rows)

    @property
    def nbytes(self) -> int:
        """Bytes that all rows take in the graph's types."""
        return sum(math.prod(column.shape) * column.dtype.itemsize for column in self._columns.values())

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all rows of the data, dense and in the graph's types."""
        return {name: column.rows(np.arange(len(column))) for name, column in self._columns.items()}

    def digest(self, update: Callable[[bytes], object], size: int) -> None:
        """Call ``update`` with all that a pass depends on: rows and their weights, ``size`` rows at a time."""
        update(f"{self.size} {self.n_rows} {self._rng is None}".encode())
        for start in range(0, len(self._rows), size):
            rows = self._rows[start : start + size]
            update(self.weights_of(rows).tobytes())
            for name, column in self._columns.items():
                update(name.encode())
                update(column.rows(rows).tobytes())

    def minibatches(self) -> list[np.ndarray]:
        """Return the rows of each minibatch of the next pass; those of the pass after it are in the same memory."""
        if self._pass is None:
            order = self._rows.copy()
            self._pass = order, _minibatches_in(order, self.size, drop_last=self.drop_last)
        order, parts = self._pass
        if self._rng is not None and not self._is_whole:
            order[...] = self._rows
            self._rng.shuffle(order)
        return parts

    def weights_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the weights of these rows."""
        return np.ones(len(rows)) if self._weights is None else self._weights[rows]

    def fill(self, buffers: Callable[[int], BatchBuffers]) -> Iterator[float]:
        """Gather one batch after the other; yield the sum of the weights of each.

        ``buffers`` returns the buffers for so many rows. A batch shorter than its buffers is padded with copies of its
        first row at weight zero: they add nothing to a weighted mean, and are finite where the batch is.
        """
        changes, count, target = not self._is_whole, 0, None
        for rows in self.minibatches():
            if target is None or len(rows) != count:
                count, target = len(rows), buffers(len(rows))
            if changes or self._loaded is not target:
                self.gather(rows, target)
                self._loaded = target
            yield float(count) if self._weights is None else self.weight_of(rows)

    def weight_of(self, rows: np.ndarray) -> float:
        """Return the sum of the weights of these rows."""
        return float(len(rows)) if self._weights is None else float(self._weights[rows].sum(dtype=np.float64))

    def gather(self, rows: np.ndarray, buffers: BatchBuffers) -> None:
        """Write these rows into the buffers, filled up."""
        count, capacity = len(rows), len(buffers.sample_weight)
        padded = rows
        if count < capacity:
            padded = np.empty(capacity, rows.dtype)
            padded[:count], padded[count:] = rows, rows[0]
        if self._gathers is None or self._gathers[0] is not buffers:
            self._gathers = buffers, [self._into(name, buffers) for name in self._columns]
        for write in self._gathers[1]:
            write(padded)
        are_ones = self._weights is None and count == capacity
        if not (are_ones and buffers.has_ones):
            buffers.sample_weight[:count] = 1.0 if self._weights is None else self._weights[rows]
            buffers.sample_weight[count:] = 0.0
            buffers.has_ones = are_ones
        buffers.count = count

    def _into(self, name: str, buffers: BatchBuffers) -> Callable[[np.ndarray], object]:
        """Return a function that writes rows of one column into its place in the buffers."""
        column = self._columns[name]
        if name not in buffers.sparse:
            return column.into(buffers.columns[name])
        place = buffers.sparse[name]
        return lambda rows: place.hold(column.compressed_rows(rows))


def _minibatches_in(order: np.ndarray, size: int, *, drop_last: bool) -> list[np.ndarray]:
    """Return the rows of each minibatch as views into the order of a pass."""
    whole = len(order) // size * size
    found = list(order[:whole].reshape(-1, size))  # takes less time than slices
    return found if whole == len(order) or drop_last else [*found, order[whole:]]

"""Minibatches of a stream of blocks: each row once an epoch, the bits of the array, and memory of a window."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_array_equal

from onnxtrain_sklearn._data.batches import ArrayBatches, BatchBuffers, Block, BlockBatches
from onnxtrain_sklearn._data.columns import InputData, SparseRows
from tests.helpers.steps import filled

FLOAT = np.dtype(np.float32)


class ListedBlocks:
    """Blocks made of the rows of arrays, from one border to the next."""

    def __init__(self, X, weights=None, borders=(), *, counted=True):
        self._X, self._weights, ends = X, weights, [0, *borders, X.shape[0]]
        self._slices = [slice(*ends[i : i + 2]) for i in range(len(ends) - 1)]
        weighted = X.shape[0] if weights is None else int((weights > 0).sum())
        self.n_rows = weighted if counted else None
        self.read = []

    def __len__(self):
        return len(self._slices)

    def block(self, i):
        self.read.append(i)
        part = self._slices[i]
        weights = None if self._weights is None else self._weights[part].copy()
        return Block({"X": InputData(self._X[part].copy(), FLOAT)}, weights)


def numbered(n):
    return np.arange(n, dtype=np.float32)[:, None]


def epoch(source, capacity):
    """Content, weights and sum of weights of each minibatch of an epoch, from buffers that are written over."""
    buffers = BatchBuffers({"X": np.zeros((capacity, 1), np.float32)}, np.zeros(capacity, np.float32))
    return [
        (buffers.columns["X"].ravel().tolist(), buffers.sample_weight.tolist(), total, buffers.count)
        for total in filled(source.epoch(), buffers)
    ]


def trained_rows(source, capacity=4):
    return [int(x) for rows, _, _, count in epoch(source, capacity) for x in rows[:count]]


WEIGHTS = np.array([1, 0.5, 0, 2, 3, 0.25, 0, 1, 1, 4])


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["", "weighted"])
@pytest.mark.parametrize("seed", [None, 0], ids=["in order", "shuffled"])
@pytest.mark.parametrize("size", [1, 3, 4, 10, 99])
@pytest.mark.parametrize("borders", [(), (3,), (1, 1, 5, 8)], ids=["one block", "two", "some, one empty"])
@pytest.mark.parametrize("drop_last", [False, True], ids=["", "drop_last"])
def test_buffered_stream_has_minibatches_of_the_array(weights, seed, size, borders, drop_last):
    X = numbered(10)
    rows = np.arange(10) if weights is None else np.flatnonzero(weights > 0)

    def rng():
        return None if seed is None else np.random.RandomState(seed)

    stream = BlockBatches(ListedBlocks(X, weights, borders), size, rng(), buffer_rows=10, drop_last=drop_last)
    array = ArrayBatches({"X": InputData(X, FLOAT)}, rows, weights, size, rng(), n_rows=10, drop_last=drop_last)
    assert (stream.size, stream.n_minibatches) == (array.size, array.n_minibatches)
    for _ in range(3):
        assert epoch(stream, 99) == epoch(array, 99)
        assert stream.n_rows == array.n_rows


@pytest.mark.parametrize("counted", [True, False], ids=["counted", "not counted"])
@pytest.mark.parametrize("buffer_rows", [0, 5, 12, 40])
@pytest.mark.parametrize("size", [1, 4, 7, 23, 60])
def test_every_row_comes_once_an_epoch_across_blocks(size, buffer_rows, counted):
    blocks = ListedBlocks(numbered(50), borders=(2, 2, 11, 30, 31), counted=counted)
    stream = BlockBatches(blocks, size, np.random.RandomState(0), buffer_rows=buffer_rows)
    orders = [trained_rows(stream, 60) for _ in range(4)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len(set(map(tuple, orders))) == (1 if counted and size >= 50 else 4)  # one minibatch has no order
    assert stream.n_rows == 50
    assert stream.n_minibatches == (math.ceil(50 / min(size, 50)) if counted else None)


@pytest.mark.parametrize("size", [1, 4, 7, 23])
def test_minibatches_are_filled_across_blocks(size):
    stream = BlockBatches(ListedBlocks(numbered(50), borders=(2, 2, 11, 30, 31)), size, np.random.RandomState(0))
    counts = [count for *_, count in epoch(stream, size)]
    assert counts == [size] * (50 // size) + ([50 % size] if 50 % size else [])


def test_order_without_shuffling_is_that_of_the_blocks():
    stream = BlockBatches(ListedBlocks(numbered(50), borders=(2, 11, 30, 31)), 4, None, buffer_rows=12)
    assert trained_rows(stream) == list(range(50))


def test_blocks_are_read_in_an_order_that_changes():
    blocks = ListedBlocks(numbered(60), borders=range(10, 60, 10))
    stream = BlockBatches(blocks, 10, np.random.RandomState(0))
    orders = []
    for _ in range(3):
        blocks.read.clear()
        trained_rows(stream, 10)
        orders.append(tuple(blocks.read))
    assert len(set(orders)) == 3
    assert all(sorted(order) == list(range(6)) for order in orders)


def test_windows_mix_the_rows_of_several_blocks():
    stream = BlockBatches(
        ListedBlocks(numbered(60), borders=range(10, 60, 10)), 30, np.random.RandomState(0), buffer_rows=30
    )
    (first, *_), _ = epoch(stream, 30)
    assert len({int(row) // 10 for row in first[:10]}) == 3


def test_short_minibatch_is_padded_with_rows_of_weight_zero():
    rows, weight, total, count = epoch(BlockBatches(ListedBlocks(numbered(6), borders=(5,)), 4, None), 4)[-1]
    assert (rows, weight, total, count) == ([4, 5, 4, 4], [1, 1, 0, 0], 2, 2)


def test_weights_follow_their_rows_across_blocks():
    weights = np.random.RandomState(1).randint(0, 4, 50).astype(float)
    stream = BlockBatches(ListedBlocks(numbered(50), weights, (7, 20)), 6, np.random.RandomState(0), buffer_rows=20)
    found = [(int(x), w) for rows, ws, _, count in epoch(stream, 6) for x, w in zip(rows[:count], ws, strict=False)]
    assert sorted(found) == [(i, w) for i, w in enumerate(weights) if w]
    assert stream.n_rows == 50
    assert sum(total for _, _, total, _ in epoch(stream, 6)) == weights.sum()


def test_rows_that_fill_no_minibatch_are_left_out():
    stream = BlockBatches(ListedBlocks(numbered(50), borders=(7, 20)), 6, np.random.RandomState(0), drop_last=True)
    rows = trained_rows(stream, 6)
    assert len(set(rows)) == len(rows) == stream.n_rows == 48


def test_stream_shorter_than_a_minibatch_ignores_drop_last():
    """Where the rows are not counted before, the minibatch cannot shrink to them."""
    stream = BlockBatches(ListedBlocks(numbered(5), borders=(2,), counted=False), 6, None, drop_last=True)
    assert trained_rows(stream, 6) == [0, 1, 2, 3, 4]
    assert stream.n_rows == 5


def test_sparse_rows_are_gathered_across_blocks():
    X = sp.random(40, 300, density=0.02, format="csr", dtype=np.float32, random_state=0)
    stream = BlockBatches(ListedBlocks(X, borders=(7, 20)), 6, None, buffer_rows=15)
    buffers = BatchBuffers({}, np.zeros(6, np.float32), {"X": SparseRows()})
    found = []
    for _ in filled(stream.epoch(), buffers):
        held = buffers.sparse["X"].rows
        found.append(sp.csr_array((held.data, held.indices, held.indptr), held.shape).toarray()[: buffers.count])
    assert_array_equal(np.concatenate(found), X.toarray())


def test_minibatch_group_may_be_filled_after_stream_advances():
    stream = BlockBatches(ListedBlocks(numbered(50), borders=range(5, 50, 5)), 4, np.random.RandomState(0))
    minibatches = list(stream.epoch())
    rows = []
    for one in minibatches:
        buffers = BatchBuffers({"X": np.zeros((4, 1), np.float32)}, np.zeros(4, np.float32))
        one.fill(buffers)
        rows += buffers.columns["X"].ravel()[: buffers.count].astype(int).tolist()
    assert sorted(rows) == list(range(50))


def test_memory_is_that_of_a_window_and_a_block():
    width, rows, block, window = 50, 40_000, 1000, 4000

    class Made:
        n_rows = rows

        def __len__(self):
            return rows // block

        def block(self, i):
            return Block({"X": InputData(np.full((block, width), i, np.float32), FLOAT)})

    stream = BlockBatches(Made(), 64, np.random.RandomState(0), buffer_rows=window)
    buffers = BatchBuffers({"X": np.zeros((64, width), np.float32)}, np.zeros(64, np.float32))
    tracemalloc.start()
    total = sum(filled(stream.epoch(), buffers))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total == rows
    assert peak < 1.2 * 4 * width * (window + block)


def test_source_without_weighted_rows_is_an_error():
    with pytest.raises(ValueError, match="All 10 rows to train on have weight zero"):
        list(BlockBatches(ListedBlocks(numbered(10), np.zeros(10), (3,)), 4, None).epoch())


def test_source_that_counts_other_rows_is_an_error():
    blocks = ListedBlocks(numbered(10), borders=(3,))
    blocks.n_rows = 11
    with pytest.raises(ValueError, match="has 10 rows of weight above zero, but n_rows says 11"):
        list(BlockBatches(blocks, 4, None).epoch())


def test_digest_changes_with_rows_and_weights():
    def digest(X, weights=None, borders=(3,), size=4):
        found = []
        BlockBatches(ListedBlocks(X, weights, borders), size, None).digest(found.append, 2)
        return b"|".join(found)

    changed = numbered(10)
    changed[7] = 99
    every = [digest(numbered(10)), digest(changed), digest(numbered(10), WEIGHTS), digest(numbered(10), size=5)]
    assert len(set(every)) == 4
    assert digest(numbered(10)) == every[0]

"""Minibatches: each row once an epoch, padding, weights; and rows that are merged."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from onnxtrain_sklearn._data.batches import (
    ArrayBatches,
    BatchBuffers,
    distinct_rows,
    read_ahead,
    weighted_rows,
)
from onnxtrain_sklearn._data.columns import InputData
from tests.helpers.steps import filled

FLOAT = np.dtype(np.float32)


def batches(n=10, size=4, *, weights=None, seed=None, rows=None, drop_last=False):
    columns = {"X": InputData(np.arange(n, dtype=np.float32)[:, None], FLOAT)}
    rng = None if seed is None else np.random.RandomState(seed)
    return ArrayBatches(columns, np.arange(n) if rows is None else rows, weights, size, rng, drop_last=drop_last)


def epoch(source, capacity=4):
    """The rows and the weights of the batches of one epoch, and what it yields."""
    buffers = new_buffers(capacity)
    return [
        (buffers.columns["X"].ravel().astype(int), buffers.sample_weight.copy(), total)
        for total in filled(source.epoch(), buffers)
    ]


def new_buffers(capacity=4):
    return BatchBuffers({"X": np.zeros((capacity, 1), np.float32)}, np.zeros(capacity, np.float32))


def trained_rows(source, capacity=4):
    return [int(x) for rows, weight, _ in epoch(source, capacity) for x, w in zip(rows, weight, strict=True) if w]


@pytest.mark.parametrize("n", [1, 3, 4, 5, 8, 10])
@pytest.mark.parametrize("seed", [None, 0])
def test_every_row_comes_once_an_epoch(n, seed):
    source = batches(n, seed=seed)
    assert source.n_minibatches == -(-n // 4)
    for _ in range(3):
        assert sorted(trained_rows(source)) == list(range(n))
        assert len(epoch(source)) == source.n_minibatches


@pytest.mark.parametrize("n", [1, 3, 4, 5, 8, 10])
@pytest.mark.parametrize("seed", [None, 0])
def test_rows_that_do_not_fill_a_batch_are_left_out(n, seed):
    source = batches(n, seed=seed, drop_last=True)
    assert source.n_minibatches == max(1, n // 4)
    assert source.n_rows == sum(len(one.rows) for one in source.epoch()) == (n if n < 4 else 4 * (n // 4))
    seen = [trained_rows(source) for _ in range(9)]
    assert all(len(set(rows)) == len(rows) == source.n_rows for rows in seen)
    assert set().union(*seen) == set(range(n if seed == 0 else source.n_rows))


def test_order_without_shuffling_is_that_of_the_data():
    source = batches(rows=np.array([9, 2, 5, 0, 7]))
    assert trained_rows(source) == trained_rows(source) == [9, 2, 5, 0, 7]


def test_shuffling_draws_a_new_order_every_epoch_from_the_seed():
    source = batches(50, seed=3)
    orders = [trained_rows(source) for _ in range(4)]
    assert len({tuple(order) for order in orders}) == 4
    again = batches(50, seed=3)
    assert [trained_rows(again) for _ in range(4)] == orders


def test_a_pass_draws_the_order_that_the_generator_permutes():
    source, rng, rows = batches(7, seed=5), np.random.RandomState(5), np.arange(7)
    for _ in range(3):
        assert trained_rows(source) == rng.permutation(rows).tolist()


def test_rows_given_are_not_shuffled_themselves():
    rows = np.arange(10)
    trained_rows(batches(rows=rows, seed=0))
    assert rows.tolist() == list(range(10))


def test_short_batch_is_padded_with_rows_of_weight_zero():
    rows, weight, total = epoch(batches(6))[-1]
    assert rows.tolist() == [4, 5, 4, 4]
    assert weight.tolist() == [1, 1, 0, 0]
    assert total == 2


def test_buffers_may_be_larger_than_the_batches():
    wanted = [[0, 1, 0, 0], [2, 3, 2, 2], [4, 4, 4, 4]]
    for (rows, weight, _), expected in zip(epoch(batches(5, 2), capacity=4), wanted, strict=True):
        assert rows.tolist() == expected
        assert weight.sum() == len(set(expected))


def test_weights_and_their_sums():
    weights = np.array([1, 0.5, 0, 2, 3, 0.25])
    source = batches(6, weights=weights)
    (_, first, total), (_, second, rest) = epoch(source)
    assert (first.tolist(), total) == ([1, 0.5, 0, 2], 3.5)
    assert (second.tolist(), rest) == ([3, 0.25, 0, 0], 3.25)
    assert (source.weight, source.n_rows) == (6.75, 6)
    assert batches(6, weights=weights, rows=np.array([0, 3])).weight == 3
    assert (batches(6).weight, batches(6, rows=np.array([0, 3])).weight) == (6, 2)


def test_batches_are_no_larger_than_the_data():
    assert (batches(3, 100).size, batches(3, 100).n_minibatches) == (3, 1)


def test_a_single_batch_is_gathered_once_per_buffers(monkeypatch):
    source, calls = batches(4, seed=0), []
    into = InputData.into

    def counted(column, out):
        write = into(column, out)
        return lambda rows: (calls.append(len(rows)), write(rows))[1]

    monkeypatch.setattr(InputData, "into", counted)
    buffers = new_buffers()
    for _ in range(3):
        assert list(filled(source.epoch(), buffers)) == [4]
    assert calls == [4]
    list(filled(source.epoch(), new_buffers()))
    assert calls == [4, 4]
    list(filled(batches(4, rows=np.array([3, 2, 1, 0])).epoch(), buffers))
    list(filled(source.epoch(), buffers))  # others have written over its rows
    assert calls == [4, 4, 4, 4]
    assert sorted(buffers.columns["X"].ravel().tolist()) == [0, 1, 2, 3]


def test_several_columns_stay_aligned():
    X = np.random.default_rng(0).integers(-5, 6, size=(12, 6)).astype(np.float64)
    columns = {"X": InputData(X, FLOAT), "y": InputData(X[:, 0].astype(int), np.dtype(np.int64))}
    source = ArrayBatches(columns, np.arange(12), None, 5, np.random.RandomState(0))
    buffers = {"X": np.zeros((5, 6), np.float32), "y": np.zeros(5, np.int64)}
    for _ in filled(source.epoch(), BatchBuffers(buffers, np.zeros(5, np.float32))):
        np.testing.assert_array_equal(buffers["X"][:, 0], buffers["y"])


def test_rows_of_weight_zero_are_left_out():
    rows, weights = weighted_rows(np.arange(4), np.array([1.0, 0, 2, 0]))
    assert rows.tolist() == [0, 2]
    assert weights.tolist() == [1, 0, 2, 0]
    assert weighted_rows(np.arange(3), None)[1] is None
    with pytest.raises(ValueError, match="All 2 rows to train on have weight zero"):
        weighted_rows(np.array([1, 3]), np.array([1.0, 0, 2, 0]))


def merged(X, y, weights):
    """The distinct rows and their weights, in the order in which they are trained."""
    columns = {"X": InputData(X, FLOAT), "y": InputData(y, np.dtype(np.int64))}
    rows, sums = distinct_rows(columns, np.arange(len(y)), weights)
    return X[rows].tolist(), y[rows].tolist(), sums[rows].tolist()


def test_equal_rows_merge_in_any_order():
    X = np.array([[1, 2], [3, 4], [1, 2], [1, 2], [3, 4]], np.float32)
    y = np.array([0, 1, 0, 1, 1])
    weights = np.array([1.0, 2, 0.5, 4, 8])
    result = merged(X, y, weights)
    assert sorted(zip(*result, strict=True)) == [([1, 2], 0, 1.5), ([1, 2], 1, 4), ([3, 4], 1, 10)]
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(5)
        assert merged(X[order], y[order], weights[order]) == result


def test_integer_weights_equal_repeated_rows():
    rng = np.random.default_rng(0)
    X, y, repeats = rng.normal(size=(20, 2)).astype(np.float32), rng.integers(2, size=20), rng.integers(4, size=20)
    weighted = merged(X, y, repeats.astype(float))
    assert merged(np.repeat(X, repeats, axis=0), np.repeat(y, repeats), None) == weighted


def test_rows_outside_the_selection_do_not_count():
    columns = {"X": InputData(np.ones((4, 1), np.float32), FLOAT)}
    rows, weights = distinct_rows(columns, np.array([1, 3]), None)
    assert (rows.tolist(), weights.tolist()) == ([1], [0, 2, 0, 0])


@pytest.mark.parametrize("width", [1, 3, 40])
def test_distinct_rows_are_in_the_order_of_their_bytes(width):
    rng = np.random.default_rng(0)
    data = rng.integers(-2, 3, size=(60, width)).astype(np.float32)[rng.integers(0, 60, 60)]  # zeros among the bytes
    data[5] = -0.0
    rows, sums = distinct_rows({"X": InputData(data, np.dtype(np.float32))}, np.arange(60), None)
    content = data.view(np.uint8)
    _, first, group = np.unique(content, axis=0, return_index=True, return_inverse=True)
    np.testing.assert_array_equal(rows, first)
    np.testing.assert_array_equal(sums[rows], np.bincount(group.ravel()))


def test_buffers_know_if_all_weights_are_one():
    """Weights are written again where others were written before."""
    known, weights = new_buffers(4), np.array([1.0, 2, 0.5, 1])
    plain, weighted = batches(4, size=4), batches(4, weights=weights, size=4)
    for source, rows, wanted in (
        (plain, [0, 1, 2, 3], [1, 1, 1, 1]),
        (weighted, [0, 1, 2, 3], [1, 2, 0.5, 1]),
        (plain, [3, 2, 1, 0], [1, 1, 1, 1]),
        (plain, [3, 2], [1, 1, 0, 0]),
        (plain, [0, 1, 2, 3], [1, 1, 1, 1]),
        (weighted, [2], [0.5, 0, 0, 0]),
    ):
        source.gather(np.array(rows), known)
        assert known.sample_weight.tolist() == wanted
        assert known.has_ones == (wanted == [1, 1, 1, 1])


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_reading_ahead_keeps_the_order_and_ends_its_thread(prefetch):
    read = []
    before = threading.active_count()
    results = read_ahead(lambda i: read.append(i) or i * i, range(10), prefetch)
    assert [next(results) for _ in range(4)] == [0, 1, 4, 9]
    assert len(read) <= 5 + prefetch
    results.close()
    assert threading.active_count() == before
    assert list(read_ahead(lambda i: i * i, range(10), prefetch)) == [i * i for i in range(10)]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_error_of_a_block_ends_the_thread(prefetch):
    before, found = threading.active_count(), []
    with pytest.raises(ZeroDivisionError):
        found.extend(read_ahead(lambda i: 1 // (3 - i), range(10), prefetch))
    assert threading.active_count() == before

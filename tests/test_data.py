"""Minibatches: every kind of data gives the same rows, large data are never copied, every row comes once an epoch."""

from __future__ import annotations

import re
import tracemalloc
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from onnxtrain_sklearn import Linear, OrtGradientRegressor
from onnxtrain_sklearn._data import columns as _data
from onnxtrain_sklearn._data.batches import BatchBuffers, Batches, distinct_rows, weighted_rows
from onnxtrain_sklearn._data.columns import Column, dict_columns, shaped
from onnxtrain_sklearn._graph.trainable import TensorSpec

FLOAT = np.dtype(np.float32)


def numbers(n=12, k=6, seed=0):
    return np.random.default_rng(seed).integers(-5, 6, size=(n, k)).astype(np.float64)


def mapped(tmp_path, array):
    file = np.memmap(tmp_path / "data.bin", dtype=array.dtype, mode="w+", shape=array.shape)
    file[...] = array
    file.flush()
    return np.memmap(tmp_path / "data.bin", dtype=array.dtype, mode="r", shape=array.shape)


FORMS = {
    "float64": lambda x: x,
    "float32": lambda x: x.astype(np.float32),
    "int8": lambda x: x.astype(np.int8),
    "int64": lambda x: x.astype(np.int64),
    "big-endian": lambda x: x.astype(">f4"),
    "fortran": lambda x: np.asfortranarray(x, dtype=np.float32),
    "strided": lambda x: np.repeat(np.repeat(x.astype(np.float32), 2, axis=0), 3, axis=1)[::2, ::3],
    "reversed": lambda x: x.astype(np.float32)[::-1][::-1],
    "csr_matrix": sp.csr_matrix,
    "csr_array": sp.csr_array,
    "csc": sp.csc_matrix,
    "coo": sp.coo_array,
    "lil": sp.lil_matrix,
    "dok": sp.dok_matrix,
}


@pytest.fixture(params=[*FORMS, "memmap", "memmap of float32", "strided memmap"])
def column(request, tmp_path):
    """A column over numbers() in every form."""
    if request.param in FORMS:
        return Column(FORMS[request.param](numbers()), FLOAT)
    if request.param == "strided memmap":
        return Column(mapped(tmp_path, np.repeat(numbers(), 2, axis=1))[:, ::2], FLOAT)
    return Column(mapped(tmp_path, numbers().astype(np.float32 if "32" in request.param else np.float64)), FLOAT)


ROWS = np.array([3, 0, 11, 3, 5])


def test_every_form_gives_the_same_rows(column):
    buffer = np.full((5, 6), np.nan, np.float32)
    column.take(ROWS, buffer)
    np.testing.assert_array_equal(buffer, numbers()[ROWS])
    dense = column.rows(ROWS)
    np.testing.assert_array_equal(dense, numbers()[ROWS])
    assert dense.dtype == np.float32
    assert dense.flags.c_contiguous
    assert (len(column), column.shape) == (12, (12, 6))


def test_other_type(column):
    double = column.of_type(np.dtype(np.float64))
    assert double.rows(ROWS).dtype == np.float64
    np.testing.assert_array_equal(double.rows(ROWS), numbers()[ROWS])
    assert double.of_type(np.dtype(np.float64)) is double


@pytest.mark.parametrize("limit", [0, 2**28])
@pytest.mark.parametrize("form", FORMS)
def test_large_data_give_the_same_rows(form, limit, monkeypatch):
    monkeypatch.setattr(_data, "COPY_LIMIT", limit)
    column = Column(FORMS[form](numbers()), FLOAT)
    buffer = np.zeros((5, 6), np.float32)
    column.take(ROWS, buffer)
    np.testing.assert_array_equal(buffer, numbers()[ROWS])


def test_rows_of_any_shape():
    images = np.random.default_rng(0).normal(size=(5, 2, 3, 4)).astype(np.float32)
    buffer = np.zeros((2, 2, 3, 4), np.float32)
    for data in (images, np.asfortranarray(images), images.astype(np.float64)):
        Column(data, FLOAT).take(np.array([4, 1]), buffer)
        np.testing.assert_array_equal(buffer, images[[4, 1]])
    numbers_only = Column(np.arange(5.0), FLOAT)
    np.testing.assert_array_equal(numbers_only.rows(np.array([2, 0])), [2, 0])


def peak(function, *args):
    """The most memory that was allocated at one time, in bytes."""
    tracemalloc.start()
    try:
        function(*args)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def sweep(column, buffer):
    for start in range(0, len(column), len(buffer)):
        column.take(np.arange(start, min(start + len(buffer), len(column))), buffer)
    column.rows(np.arange(10))


LARGE = ["memmap", "memmap of float32", "strided memmap", "fortran", "fortran of float32", "float64"]


@pytest.mark.parametrize("kind", LARGE)
def test_large_data_are_never_copied(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(_data, "COPY_LIMIT", 2**20)
    dtype = np.float32 if "float32" in kind else np.float64
    data = np.zeros((20_000, 64), dtype, order="F" if "fortran" in kind else "C")
    if "memmap" in kind:
        data = mapped(tmp_path, data)[:: 2 if "strided" in kind else 1]
    buffer = np.zeros((500, 64), np.float32)
    assert peak(lambda: sweep(Column(data, FLOAT), buffer)) < data.nbytes / 10


def sparse(n, k):
    """Two numbers a row."""
    rng = np.random.default_rng(0)
    rows, columns = np.repeat(np.arange(n), 2), rng.integers(k, size=2 * n)
    return sp.csr_array((rng.normal(size=2 * n), (rows, columns)), shape=(n, k))


def test_sparse_data_are_never_densified():
    data = sparse(20_000, 2_000)
    buffer = np.zeros((20, 2_000), np.float32)
    assert peak(lambda: sweep(Column(data, FLOAT), buffer)) < 8 * buffer.nbytes + 2 * data.data.nbytes


@pytest.mark.parametrize("kind", ["memmap", "sparse"])
def test_fit_and_predict_go_by_the_batch(kind, tmp_path):
    if kind == "memmap":
        data = mapped(tmp_path, np.random.default_rng(0).normal(size=(40_000, 64)))
    else:
        data = sparse(20_000, 1_000)
    y = np.arange(data.shape[0]) % 7.0
    regressor = OrtGradientRegressor(Linear(), batch_size=1000, max_iter=1, random_state=0)

    def train():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            regressor.fit(data, y).predict(data)

    assert peak(train) < data.shape[0] * data.shape[1] * 8 / 2


@pytest.mark.parametrize("limit", [0, 2**28])
@pytest.mark.parametrize("form", ["float64", "fortran", "csr_array"])
def test_numbers_too_large_for_the_graph(form, limit, monkeypatch):
    monkeypatch.setattr(_data, "COPY_LIMIT", limit)
    data = numbers()
    data[3, 2] = 1e39
    make = {"fortran": np.asfortranarray}.get(form, FORMS[form])
    with pytest.raises(ValueError, match="a value too large for float32, the type of the graph's input"):
        Column(make(data), FLOAT).take(ROWS, np.zeros((5, 6), np.float32))


# Shapes and types of inputs


@pytest.mark.parametrize(
    ("shape", "wanted", "result"),
    [
        ((4, 6), (None, 6), (4, 6)),
        ((4, 6), (None, None), (4, 6)),
        ((4, 6), (None, 2, 3), (4, 2, 3)),
        ((4, 2, 3), (None, 6), (4, 6)),
        ((4, 2, 3), (None, None, 3), (4, 2, 3)),
        ((4, 1), (None,), (4,)),
        ((4,), (None, 1), (4, 1)),
    ],
)
def test_rows_take_the_shape_of_the_input(shape, wanted, result):
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    fitted = shaped(array, TensorSpec("X", FLOAT, wanted))
    assert fitted.shape == result
    np.testing.assert_array_equal(fitted.ravel(), array.ravel())


@pytest.mark.parametrize(
    ("array", "wanted", "message"),
    [
        (np.zeros((4, 5)), (None, 6), r"X has 5 features, but the graph's input 'X' takes rows of shape \(6,\)"),
        (np.zeros((4, 6)), (None, None, 3), r"X has 6 features, .* takes rows of shape \('\?', 3\)"),
        (np.zeros((4, 2, 4)), (None, 2, 3), r"X has rows of shape \(2, 4\), .* takes rows of shape \(2, 3\)"),
        (sp.csr_array(np.zeros((4, 6))), (None, 2, 3), r"X has 6 features, .* takes rows of shape \(2, 3\)"),
        (np.zeros((4, 0)), (None, 6), "X has 0 features"),
    ],
)
def test_wrong_shapes(array, wanted, message):
    with pytest.raises(ValueError, match=message):
        shaped(array, TensorSpec("X", FLOAT, wanted))


@pytest.mark.parametrize("piece", [1, 5, 2**20])
@pytest.mark.parametrize(
    ("dtype", "value"),
    [(np.int64, 0.5), (np.int64, 1e30), (np.int32, 2**40), (np.uint8, 256), (np.uint8, -1.0), (bool, 2), (bool, 0.5)],
)
@pytest.mark.parametrize("make", [np.asarray, sp.csr_array])
def test_numbers_that_an_integer_input_cannot_hold(make, dtype, value, piece, monkeypatch):
    monkeypatch.setattr(_data, "PIECE", piece)
    data = np.ones((4, 3), type(value))
    spec = TensorSpec("ids", np.dtype(dtype), (None, 3))
    np.testing.assert_array_equal(Column(shaped(make(data), spec), spec.dtype).rows(np.arange(4)), data)
    data[2, 1] = value
    message = re.escape(f"input 'ids' takes {np.dtype(dtype)}, but X holds {value}, which is none")
    with pytest.raises(ValueError, match=message):
        shaped(make(data), spec)


SPECS = (TensorSpec("X", FLOAT, (None, 2)), TensorSpec("ids", np.dtype(np.int64), (None,)))


@pytest.mark.parametrize("reverse", [False, True])
def test_dict_of_inputs(reverse):
    X = {"X": [[1, 2], [3, 4]], "ids": pd.Series([7, 8])}
    columns = dict_columns(dict(reversed(X.items())) if reverse else X, SPECS)
    assert list(columns) == ["X", "ids"]
    np.testing.assert_array_equal(columns["X"].rows(np.array([1])), [[3, 4]])
    assert columns["ids"].rows(np.array([0, 1])).tolist() == [7, 8]
    frames = dict_columns({"X": pd.DataFrame({"a": [1], "b": [2]}), "ids": np.array([1])}, SPECS)
    np.testing.assert_array_equal(frames["X"].rows(np.array([0])), [[1, 2]])
    assert dict_columns({"X": sp.csr_array(np.eye(2)), "ids": [0, 1]}, SPECS)["X"].shape == (2, 2)


@pytest.mark.parametrize(
    ("X", "specs", "error", "message"),
    [
        ({"X": [[1, 2]]}, SPECS, ValueError, r"The graph has the inputs \['X', 'ids'\], X holds \['X'\]"),
        ({"X": [[1, 2]], "ids": [1], "u": [1]}, SPECS, ValueError, r"X holds \['X', 'ids', 'u'\]"),
        ({"X": [[1, 2]], "ids": [1, 2]}, SPECS, ValueError, r"same number of rows, got \{'X': 1, 'ids': 2\}"),
        ({"X": [[1, 2, 3]], "ids": [1]}, SPECS, ValueError, r"X has 3 features, but the graph's input 'X'"),
        ({"X": [[1, np.nan]], "ids": [1]}, SPECS, ValueError, r"X\['X'\] contains NaN"),
        ({"X": [[1, 2]], "ids": [0.5]}, SPECS, ValueError, "input 'ids' takes int64, but X holds 0.5"),
        ({"X": [[1, 2]]}, None, TypeError, "A dict of inputs needs a graph that names them"),
    ],
)
def test_wrong_dicts(X, specs, error, message):
    with pytest.raises(error, match=message):
        dict_columns(X, specs)


# Batches


def batches(n=10, size=4, *, weights=None, seed=None, rows=None):
    columns = {"X": Column(np.arange(n, dtype=np.float32)[:, None], FLOAT)}
    rng = None if seed is None else np.random.RandomState(seed)
    return Batches(columns, np.arange(n) if rows is None else rows, weights, size, rng)


def epoch(source, capacity=4):
    """The rows and the weights of the batches of one epoch, and what it yields."""
    buffers = new_buffers(capacity)
    return [
        (buffers.columns["X"].ravel().astype(int), buffers.sample_weight.copy(), total)
        for total in source.fill(lambda rows: buffers)
    ]


def new_buffers(capacity=4):
    return BatchBuffers({"X": np.zeros((capacity, 1), np.float32)}, np.zeros(capacity, np.float32))


def trained_rows(source, capacity=4):
    return [int(x) for rows, weight, _ in epoch(source, capacity) for x, w in zip(rows, weight, strict=True) if w]


@pytest.mark.parametrize("n", [1, 3, 4, 5, 8, 10])
@pytest.mark.parametrize("seed", [None, 0])
def test_every_row_comes_once_an_epoch(n, seed):
    source = batches(n, seed=seed)
    assert source.steps == -(-n // 4)
    for _ in range(3):
        assert sorted(trained_rows(source)) == list(range(n))
        assert len(epoch(source)) == source.steps


def test_order_without_shuffling_is_that_of_the_data():
    source = batches(rows=np.array([9, 2, 5, 0, 7]))
    assert trained_rows(source) == trained_rows(source) == [9, 2, 5, 0, 7]


def test_shuffling_draws_a_new_order_every_epoch_from_the_seed():
    source = batches(50, seed=3)
    orders = [trained_rows(source) for _ in range(4)]
    assert len({tuple(order) for order in orders}) == 4
    again = batches(50, seed=3)
    assert [trained_rows(again) for _ in range(4)] == orders


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
    assert (batches(3, 100).size, batches(3, 100).steps) == (3, 1)


def test_a_single_batch_is_gathered_once_per_buffers(monkeypatch):
    source, calls = batches(4, seed=0), []
    take = Column.take
    monkeypatch.setattr(Column, "take", lambda self, rows, out: (calls.append(len(rows)), take(self, rows, out))[1])
    buffers = new_buffers()
    for _ in range(3):
        assert list(source.fill(lambda rows: buffers)) == [4]
    assert calls == [4]
    list(source.fill(lambda rows: new_buffers()))
    assert calls == [4, 4]


def test_buffers_are_asked_for_as_many_rows_as_a_batch_has():
    by_size = {rows: new_buffers(rows) for rows in (4, 2)}
    source, seen = batches(10), []
    for _ in source.fill(by_size.__getitem__):
        seen.append([buffers.columns["X"].ravel().tolist() for buffers in by_size.values()])
    assert seen == [[[0, 1, 2, 3], [0, 0]], [[4, 5, 6, 7], [0, 0]], [[4, 5, 6, 7], [8, 9]]]
    assert by_size[2].sample_weight.tolist() == [1, 1]


def test_several_columns_stay_aligned():
    columns = {"X": Column(numbers(), FLOAT), "y": Column(numbers()[:, 0].astype(int), np.dtype(np.int64))}
    source = Batches(columns, np.arange(12), None, 5, np.random.RandomState(0))
    buffers = {"X": np.zeros((5, 6), np.float32), "y": np.zeros(5, np.int64)}
    for _ in source.fill(lambda rows: BatchBuffers(buffers, np.zeros(5, np.float32))):
        np.testing.assert_array_equal(buffers["X"][:, 0], buffers["y"])


# Equal rows, rows of weight zero


def test_rows_of_weight_zero_are_left_out():
    rows, weights = weighted_rows(np.arange(4), np.array([1.0, 0, 2, 0]))
    assert rows.tolist() == [0, 2]
    assert weights.tolist() == [1, 0, 2, 0]
    assert weighted_rows(np.arange(3), None)[1] is None
    with pytest.raises(ValueError, match="All 2 rows to train on have weight zero"):
        weighted_rows(np.array([1, 3]), np.array([1.0, 0, 2, 0]))


def merged(X, y, weights):
    """The distinct rows and their weights, in the order in which they are trained."""
    columns = {"X": Column(X, FLOAT), "y": Column(y, np.dtype(np.int64))}
    rows, sums = distinct_rows(columns, np.arange(len(y)), weights)
    return X[rows].tolist(), y[rows].tolist(), sums[rows].tolist()


def test_equal_rows_are_merged_whatever_their_order():
    X = np.array([[1, 2], [3, 4], [1, 2], [1, 2], [3, 4]], np.float32)
    y = np.array([0, 1, 0, 1, 1])
    weights = np.array([1.0, 2, 0.5, 4, 8])
    result = merged(X, y, weights)
    assert sorted(zip(*result, strict=True)) == [([1, 2], 0, 1.5), ([1, 2], 1, 4), ([3, 4], 1, 10)]
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(5)
        assert merged(X[order], y[order], weights[order]) == result


def test_weights_stand_for_repeats():
    rng = np.random.default_rng(0)
    X, y, repeats = rng.normal(size=(20, 2)).astype(np.float32), rng.integers(2, size=20), rng.integers(4, size=20)
    weighted = merged(X, y, repeats.astype(float))
    assert merged(np.repeat(X, repeats, axis=0), np.repeat(y, repeats), None) == weighted


def test_rows_outside_the_selection_do_not_count():
    columns = {"X": Column(np.ones((4, 1), np.float32), FLOAT)}
    rows, weights = distinct_rows(columns, np.array([1, 3]), None)
    assert (rows.tolist(), weights.tolist()) == ([1], [0, 2, 0, 0])

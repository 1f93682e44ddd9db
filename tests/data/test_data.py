"""Columns: every kind of data gives the same rows, and large data are never copied."""

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
from onnxtrain_sklearn._data.columns import InputData, dict_columns, shaped
from onnxtrain_sklearn._model.trainable import TensorSpec

FLOAT = np.dtype(np.float32)


def whole_numbers(n=12, k=6, seed=0):
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
        return InputData(FORMS[request.param](whole_numbers()), FLOAT)
    if request.param == "strided memmap":
        return InputData(mapped(tmp_path, np.repeat(whole_numbers(), 2, axis=1))[:, ::2], FLOAT)
    return InputData(
        mapped(tmp_path, whole_numbers().astype(np.float32 if "32" in request.param else np.float64)), FLOAT
    )


ROWS = np.array([3, 0, 11, 3, 5])


def test_every_form_gives_the_same_rows(column):
    buffer = np.full((5, 6), np.nan, np.float32)
    column.into(buffer)(ROWS)
    np.testing.assert_array_equal(buffer, whole_numbers()[ROWS])
    dense = column.rows(ROWS)
    np.testing.assert_array_equal(dense, whole_numbers()[ROWS])
    assert dense.dtype == np.float32
    assert dense.flags.c_contiguous
    assert (len(column), column.shape) == (12, (12, 6))


def test_other_type(column):
    double = column.of_type(np.dtype(np.float64))
    assert double.rows(ROWS).dtype == np.float64
    np.testing.assert_array_equal(double.rows(ROWS), whole_numbers()[ROWS])
    assert double.of_type(np.dtype(np.float64)) is double


@pytest.mark.parametrize("limit", [0, 2**28])
@pytest.mark.parametrize("form", FORMS)
def test_large_data_give_the_same_rows(form, limit, monkeypatch):
    monkeypatch.setattr(_data, "COPY_LIMIT", limit)
    column = InputData(FORMS[form](whole_numbers()), FLOAT)
    buffer = np.zeros((5, 6), np.float32)
    column.into(buffer)(ROWS)
    np.testing.assert_array_equal(buffer, whole_numbers()[ROWS])


def test_rows_of_any_shape():
    images = np.random.default_rng(0).normal(size=(5, 2, 3, 4)).astype(np.float32)
    buffer = np.zeros((2, 2, 3, 4), np.float32)
    for data in (images, np.asfortranarray(images), images.astype(np.float64)):
        InputData(data, FLOAT).into(buffer)(np.array([4, 1]))
        np.testing.assert_array_equal(buffer, images[[4, 1]])
    numbers_only = InputData(np.arange(5.0), FLOAT)
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
        column.into(buffer)(np.arange(start, min(start + len(buffer), len(column))))
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
    assert peak(lambda: sweep(InputData(data, FLOAT), buffer)) < data.nbytes / 10


def sparse(n, k):
    """Two numbers a row."""
    rng = np.random.default_rng(0)
    rows, columns = np.repeat(np.arange(n), 2), rng.integers(k, size=2 * n)
    return sp.csr_array((rng.normal(size=2 * n), (rows, columns)), shape=(n, k))


@pytest.mark.long
def test_sparse_data_are_never_densified():
    data = sparse(20_000, 2_000)
    buffer = np.zeros((20, 2_000), np.float32)
    assert peak(lambda: sweep(InputData(data, FLOAT), buffer)) < 8 * buffer.nbytes + 2 * data.data.nbytes


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
    data = whole_numbers()
    data[3, 2] = 1e39
    make = {"fortran": np.asfortranarray}.get(form, FORMS[form])
    with pytest.raises(ValueError, match="a value too large for float32, the type of the graph's input"):
        InputData(make(data), FLOAT).into(np.zeros((5, 6), np.float32))(ROWS)


@pytest.mark.parametrize(
    ("shape", "wanted", "result"),
    [
        ((4, 6), (None, 6), (4, 6)),
        ((4, 6), (None, None), (4, 6)),
        ((4, 6), (None, 2, 3), (4, 2, 3)),
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
        (sp.csr_array(np.zeros((4, 6))), (None, 2, 3), r"takes rows of shape \(2, 3\)\. Sparse .*X\.toarray\(\)"),
        (sp.csr_array(np.zeros((4, 5))), (None, 6), r"X has 5 features, .* Give X 6 columns"),
        (sp.csr_array(np.zeros((6, 4))), (None, 6), r"on axis 1: give X\.T\.$"),
        (np.zeros((4, 0)), (None, 6), "X has 0 features.*Give X 6 columns"),
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
    monkeypatch.setattr(_data, "PIECE_ELEMENTS", piece)
    data = np.ones((4, 3), type(value))
    spec = TensorSpec("ids", np.dtype(dtype), (None, 3))
    np.testing.assert_array_equal(InputData(shaped(make(data), spec), spec.dtype).rows(np.arange(4)), data)
    data[2, 1] = value
    message = re.escape(f"input 'ids' expects {np.dtype(dtype)}, but X contains {value}.")
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
        ({"X": [[1, 2]], "ids": [0.5]}, SPECS, ValueError, "input 'ids' expects int64, but X contains 0.5"),
        ({"X": [[1, 2]]}, None, TypeError, "A dict of inputs needs a graph that names them"),
    ],
)
def test_wrong_dicts(X, specs, error, message):
    with pytest.raises(error, match=message):
        dict_columns(X, specs)


# Equal rows, rows of weight zero


def test_rows_of_a_slice_are_a_view():
    data = np.arange(12, dtype=np.float32).reshape(6, 2)
    data.flags.writeable = False
    float32, float64 = InputData(data, np.dtype(np.float32)), InputData(data, np.dtype(np.float64))
    assert np.shares_memory(float32.rows(slice(2, 5)), data)
    for column in (float32, float64):
        np.testing.assert_array_equal(column.rows(slice(2, 5)), data[2:5])


def test_read_only_rows_are_gathered_without_copy(monkeypatch, tmp_path):
    path = tmp_path / "X.npy"
    np.save(path, np.arange(12, dtype=np.float32).reshape(6, 2))
    mapped = np.load(path, mmap_mode="r")
    monkeypatch.setattr(InputData, "rows", lambda *args: pytest.fail("rows were copied"))
    out = np.zeros((2, 2), np.float32)
    InputData(mapped, np.dtype(np.float32)).into(out)(np.array([3, 1]))
    np.testing.assert_array_equal(out, [[6, 7], [2, 3]])

"""Minibatches of sparse rows, their products with dense matrices, and the gradients of the matrices.

SciPy's checks of its arguments take as long as a minibatch of two classes, and it returns products in new arrays, of
which the gradient of a wide matrix is large. So its kernels are called directly, where this release of SciPy has them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

try:
    from scipy.sparse._sparsetools import csc_matvec, csc_matvecs, csr_matvec, csr_matvecs, csr_row_index
except ImportError:
    csc_matvecs = None

LEAST_COLUMNS = 256
"""Columns from which on rows stay sparse."""

DENSE = 0.1
"""Share of stored numbers from which on dense rows are faster."""


def stays_sparse(data: Any) -> bool:
    """Whether products with ``data`` are faster if its rows are not made dense."""
    matrix: Any = data
    if not sp.issparse(data) or matrix.ndim != 2:
        return False
    n_rows, n_columns = matrix.shape
    return bool(n_columns >= LEAST_COLUMNS and matrix.nnz <= DENSE * n_rows * n_columns)


def in_type(data: Any, dtype: np.dtype[np.generic]) -> Any:
    """Return compressed rows with numbers of type ``dtype``; the indices are shared."""
    if data.dtype == dtype:
        return data
    return type(data)((data.data.astype(dtype), data.indices, data.indptr), shape=data.shape, copy=False)


class CompressedRows(NamedTuple):
    """Rows of the matrix ``source``, compressed by rows; the other names are SciPy's."""

    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray
    shape: tuple[int, int]
    source: Any


def gathered(matrix: Any, rows: np.ndarray) -> Any:
    """Return the given rows of a compressed matrix, for products."""
    starts, columns = matrix.indptr, matrix.indices
    if csc_matvecs is None or starts.dtype != columns.dtype:
        return matrix[rows]
    rows, ends = rows.astype(columns.dtype), np.zeros(len(rows) + 1, columns.dtype)
    lengths = starts[1:].take(rows)
    lengths -= starts.take(rows)
    lengths.cumsum(out=ends[1:])
    indices, data = np.empty(ends[-1], columns.dtype), np.empty(ends[-1], matrix.dtype)
    csr_row_index(len(rows), rows, starts, columns, matrix.data, indices, data)
    return CompressedRows(ends, indices, data, (len(rows), matrix.shape[1]), matrix)


def product(rows: Any, matrix: np.ndarray, *, transposed: bool) -> np.ndarray:
    """Return the product of sparse rows with ``matrix``, or with its transpose."""
    if not transposed:
        return _product(rows, matrix)
    result = np.empty((rows.shape[0], len(matrix)), matrix.dtype)
    for i, vector in enumerate(matrix):  # SciPy would copy the transpose
        result[:, i : i + 1] = _product(rows, vector[:, np.newaxis])
    return result


def _product(rows: Any, matrix: np.ndarray) -> np.ndarray:
    if csc_matvecs is None:
        return np.asarray(rows @ matrix)
    result = np.zeros((rows.shape[0], matrix.shape[1]), matrix.dtype)
    parts = (rows.indptr, rows.indices, rows.data, matrix.ravel(), result.ravel())
    if matrix.shape[1] == 1:
        csr_matvec(*rows.shape, *parts)
    else:
        csr_matvecs(*rows.shape, matrix.shape[1], *parts)
    return result


def add_gradient(rows: Any, slope: np.ndarray, out: np.ndarray, *, transposed: bool) -> None:
    """Add the gradient of a matrix to ``out``; ``slope`` is that of the product of ``rows`` with the matrix."""
    if transposed:
        for i in range(len(out)):
            _add_product_of_transpose(rows, np.ascontiguousarray(slope[:, i : i + 1]), out[i, :, np.newaxis])
    else:
        _add_product_of_transpose(rows, slope, out)


def _add_product_of_transpose(rows: Any, matrix: np.ndarray, out: np.ndarray) -> None:
    if csc_matvecs is None:
        out += rows.T @ matrix
        return
    n_rows, n_columns = rows.shape  # rows are the columns of the transpose
    parts = (rows.indptr, rows.indices, rows.data, matrix.ravel(), out.ravel())
    if matrix.shape[1] == 1:
        csc_matvec(n_columns, n_rows, *parts)
    else:
        csc_matvecs(n_columns, n_rows, matrix.shape[1], *parts)


def occurring_columns(rows: Any) -> np.ndarray:
    """Return the columns in which numbers are not zero, in the order of the rows; they may repeat."""
    source = rows.source if isinstance(rows, CompressedRows) else rows
    if not source.has_canonical_format:  # numbers of one place may add up to zero
        rows = sp.csr_array((rows.data, rows.indices, rows.indptr), rows.shape, copy=True)
        rows.sum_duplicates()
    stored: np.ndarray = rows.indices
    return stored if rows.data.all() else stored[rows.data != 0]


def add_rows(places: np.ndarray, shares: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """Add each of ``rows``, times its share, to the row of ``out`` at its place; places may repeat."""
    if csc_matvecs is None:
        np.add.at(out, places, rows * shares[:, np.newaxis])
        return
    ends = np.arange(len(places) + 1, dtype=places.dtype)  # each row is a column with one number
    csc_matvecs(len(out), len(places), out.shape[1], ends, places, shares, rows.ravel(), out.ravel())


class SparseRows:
    """Place for the rows of a minibatch of sparse data, whose columns are multiplied by ``factors``."""

    def __init__(self, factors: np.ndarray | None = None) -> None:
        self.rows: Any = None
        self._factors = factors

    def hold(self, rows: Any) -> None:
        """Hold these rows in place of those before."""
        self.rows = multiplied_columns(rows, self._factors)


def multiplied_columns(rows: Any, factors: np.ndarray | None) -> Any:
    """Return compressed rows with each column multiplied by its factor; None: the rows."""
    if factors is None:
        return rows
    numbers = rows.data * factors[rows.indices].astype(rows.data.dtype)
    if isinstance(rows, CompressedRows):
        return rows._replace(data=numbers)
    return type(rows)((numbers, rows.indices, rows.indptr), shape=rows.shape, copy=False)

"""The inputs of the graph as columns of data: arrays, data frames, sparse matrices, memory maps, dicts of inputs.

Rows of a column are gathered into a buffer and converted to the graph's type. Of a sparse matrix or a memory map only
these rows are densified or read. The data are converted as a whole only if the copy is small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import permutations
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils import check_array

from .._graph.trainable import TensorSpec
from .._support.typing import DType, MatrixLike, SparseLike
from .frames import as_frame, require_no_times
from .rounding import warn_of_rounding
from .sparse_rows import gathered, in_type, stays_sparse

COPY_LIMIT = 2**28
"""Bytes up to which data of another type is converted once, not batch by batch."""

MOST_AXES = 5
"""Axes of a row up to which an order of them is looked for."""

PIECE_ELEMENTS = 2**20
"""Elements of the pieces in which large data are checked."""


def dimensions(X: MatrixLike) -> int:
    """Return the number of axes of what may be a dense array; 0: it is none, as its rows differ in length."""
    data: Any = X
    try:
        return 0 if sp.issparse(X) else int(np.ndim(data))
    except ValueError:
        return 0


class Column:
    """One input of the graph: rows of it can be gathered into a buffer."""

    def __init__(self, data: np.ndarray | SparseLike, dtype: DType) -> None:
        self._sparse = sp.issparse(data)
        self._data: Any = _converted_rows(data.tocsr(), dtype) if sp.issparse(data) else _converted(data, dtype)
        self._dtype = dtype
        # ndarray.take copies all of an array that is not contiguous or not aligned
        self._direct = not self._sparse and self._data.dtype == dtype and _is_plain(self._data)

    def __len__(self) -> int:
        return int(self._data.shape[0])

    def of_type(self, dtype: DType) -> Column:
        """Return the same data for an input of another type."""
        return self if dtype == self._dtype else Column(self._data, dtype)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the graph's input."""
        return self._dtype

    @property
    def is_sparse(self) -> bool:
        """Whether the data are a sparse matrix."""
        return self._sparse and len(self.shape) == 2

    @property
    def stays_sparse(self) -> bool:
        """Whether rows are to be multiplied without making them dense."""
        return stays_sparse(self._data)

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows, then the shape of a row."""
        return tuple(int(n) for n in self._data.shape)

    def rows(self, rows: np.ndarray | slice) -> np.ndarray:
        """Return the given rows as a dense array of the graph's type; those of a slice are a view where they can be."""
        if self._sparse:
            return np.asarray(self.sparse_rows(rows).toarray("C"))
        with _no_overflow(self._dtype):
            return np.ascontiguousarray(self._data[rows], dtype=self._dtype)

    def read_only(self, rows: np.ndarray) -> np.ndarray | SparseLike:
        """Return the given rows, sorted, in the graph's type: an array that cannot be written to; sparse data sparse.

        All rows of an array of this type are a view.
        """
        if self._sparse:
            return self.sparse_rows(rows)  # type: ignore[no-any-return]
        whole = len(rows) == len(self) and self._data.dtype == self._dtype
        view: np.ndarray = (self._data if whole else self.rows(rows)).view()
        view.flags.writeable = False
        return view

    def matches(self, spec: TensorSpec) -> bool:
        """Whether the data are of the type and shape of a graph's input."""
        rows = zip(spec.shape[1:], self.shape[1:], strict=False)
        return spec.dtype == self._dtype and len(spec.shape) == len(self.shape) and all(w in (None, g) for w, g in rows)

    def sparse_rows(self, rows: np.ndarray | slice) -> Any:
        """Return the given rows of sparse data, compressed by rows and in the graph's type."""
        with _no_overflow(self._dtype):
            return in_type(self._data[rows], self._dtype)

    def compressed_rows(self, rows: np.ndarray) -> Any:
        """Return the given rows of sparse data in the graph's type, for products with matrices."""
        return gathered(self._data, rows) if self._data.dtype == self._dtype else self.sparse_rows(rows)

    def content(self, rows: np.ndarray) -> np.ndarray:
        """Return a matrix with a row for each of the given ones, equal and ordered as their content is."""
        return _ranks(self.sparse_rows(rows)) if self.stays_sparse else self.rows(rows).reshape(len(rows), -1)

    def rows_with_missing(self) -> np.ndarray:
        """Return the rows in which a number is missing, NaN standing for it."""
        data: Any = self._data
        if data.dtype.kind != "f":
            return np.empty(0, np.int64)
        if self._sparse:
            return np.unique(np.repeat(np.arange(len(self)), np.diff(data.indptr))[np.isnan(data.data)])
        return np.flatnonzero(np.isnan(data).reshape(len(self), -1).any(axis=1))

    def into(self, out: np.ndarray) -> Callable[[np.ndarray], object]:
        """Return a function that writes the given rows into ``out``."""
        if self._direct:
            take = self._data.take
            return lambda rows: take(rows, 0, out, "clip")
        if self._sparse:
            return lambda rows: self.sparse_rows(rows).toarray(out=out)
        return lambda rows: np.copyto(out, self.rows(rows).reshape(out.shape))


def _is_plain(data: np.ndarray) -> bool:
    """Whether memory holds the elements in order and aligned; it may be read-only."""
    return bool(data.flags.c_contiguous and data.flags.aligned)


def _converted(data: np.ndarray, dtype: DType) -> np.ndarray:
    """Return ``data`` contiguous and in ``dtype``, unless it is mapped from a file or the copy would be large."""
    if _is_mapped(data) or data.size * dtype.itemsize > COPY_LIMIT:
        return np.asarray(data)
    if data.dtype == dtype:
        return np.ascontiguousarray(data)
    with _no_overflow(dtype):
        return np.ascontiguousarray(data, dtype=dtype)


def _converted_rows(data: Any, dtype: DType) -> Any:
    """Return sparse rows in ``dtype``, unless the copy would be large."""
    if data.nnz * dtype.itemsize > COPY_LIMIT:
        return data
    with _no_overflow(dtype):
        return in_type(data, dtype)


def _ranks(part: Any) -> np.ndarray:
    """Return the rank of the content of each sparse row, as a column."""
    part.sum_duplicates()
    part.eliminate_zeros()
    ends = part.indptr[1:-1]
    pairs = zip(np.split(part.indices, ends), np.split(part.data, ends), strict=True)
    content = [indices.tobytes() + numbers.tobytes() for indices, numbers in pairs]
    ranks = {one: rank for rank, one in enumerate(sorted(set(content)))}
    return np.array([[ranks[one]] for one in content])


@contextmanager
def _no_overflow(dtype: DType) -> Iterator[None]:
    with np.errstate(over="raise"):
        try:
            yield
        except FloatingPointError:
            raise ValueError(f"Input contains a value too large for {dtype}, the type of the graph's input.") from None


def _is_mapped(data: object) -> bool:
    while data is not None and not isinstance(data, np.memmap):
        data = getattr(data, "base", None)
    return data is not None


def dict_columns(X: Mapping[str, object], specs: Sequence[TensorSpec] | None) -> dict[str, Column]:
    """Return a dict of arrays as the inputs of a graph, checked for names, lengths and shapes."""
    if specs is None:
        raise TypeError("A dict of inputs needs a graph that names them: give model=... an ONNX graph.")
    wanted, given = [spec.name for spec in specs], list(X)
    if set(wanted) != set(given):
        unknown, missing = [n for n in given if n not in wanted], [n for n in wanted if n not in given]
        leave = f" Leave out {unknown}: what is trained does not depend on inputs of these names." if unknown else ""
        raise ValueError(
            f"The graph has the inputs {wanted}, X holds {given}.{f' Add {missing}.' if missing else ''}{leave}"
        )
    columns = {}
    for spec in specs:
        name = f"X[{spec.name!r}]"
        given = as_frame(X[spec.name])
        require_no_times(given, name)
        with _faults_of_text(name):
            array = check_array(given, accept_sparse="csr", ensure_2d=False, allow_nd=True, input_name=name)
        warn_of_rounding(array, spec.dtype, name)
        columns[spec.name] = Column(shaped(array, spec), spec.dtype)
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"The inputs in X must have the same number of rows, got {lengths}: their first axis is that of the rows. "
            f"What is the same for all rows is no input: store it in the graph, as an initializer of that name."
        )
    return columns


@contextmanager
def _faults_of_text(name: str) -> Iterator[None]:
    """Say of which input text is, and what to do about it."""
    try:
        yield
    except ValueError as error:
        if not str(error).startswith("could not convert string to float") and "bytes/strings" not in str(error):
            raise
        raise ValueError(
            f"{name} holds text, and this input of the graph takes numbers. Encode its columns before, such as with "
            f"OneHotEncoder, or with OrdinalEncoder for an input whose codes the graph looks up."
        ) from error


def shaped(array: np.ndarray | SparseLike, spec: TensorSpec) -> np.ndarray | SparseLike:
    """Return ``array`` in the shape of a graph input; rows that were flattened are given their shape back."""
    wanted, got = spec.shape[1:], tuple(array.shape[1:])
    result: np.ndarray | SparseLike
    if len(wanted) == len(got) and all(w in (None, g) for w, g in zip(wanted, got, strict=True)):
        result = array
    elif None not in wanted and math.prod(w or 0 for w in wanted) == math.prod(got) and _is_flat(array):
        result = array.reshape(array.shape[0], *(w or 0 for w in wanted))
    else:
        features = f"{got[0]} features" if len(got) == 1 else f"rows of shape {got}"
        row = tuple("?" if w is None else w for w in wanted)
        raise ValueError(
            f"X has {features}, but the graph's input {spec.name!r} takes rows of shape {row}."
            f"{_advice(wanted, got) or _advice_of_rows(wanted, array.shape)}"
        )
    if spec.dtype.kind in "iub" and result.dtype != spec.dtype:
        _require_exact(result.data if sp.issparse(result) else result, spec)
    return result


def _is_flat(array: np.ndarray | SparseLike) -> bool:
    """Whether a row is one axis of numbers, or one number: those of an image are in no order that all agree on."""
    return not sp.issparse(array) and len(array.shape) <= 2


def _advice(wanted: tuple[int | None, ...], got: tuple[int, ...]) -> str:
    """Return what to do about rows of several axes that have another shape than those of the input."""
    if len(got) < 2:
        return ""
    axes = range(1, len(got) + 1)
    orders = [(len(got), *axes[:-1]), *permutations(axes)] if len(wanted) == len(got) <= MOST_AXES else []
    for order in orders:
        if all(w in (None, got[i - 1]) for w, i in zip(wanted, order, strict=True)):
            first = " Channels come first in it:" if order == orders[0] else " Its axes have another order:"
            return f"{first} give X.transpose(0, {', '.join(map(str, order))})."
    if None in wanted or math.prod(w or 0 for w in wanted) != math.prod(got):
        return ""
    row = ", ".join(map(str, wanted))
    return (
        f" Only flat rows, (n, {math.prod(got)}), are given the shape of the input, as channels-first (n, channels, "
        f"height, width) and channels-last rows hold as many numbers: if yours are in the order of the input, give "
        f"X.reshape(len(X), {row})."
    )


def _advice_of_rows(wanted: tuple[int | None, ...], got: tuple[int, ...]) -> str:
    """Return what to do where the rows are on another axis than the first, as those of the states of an LSTM."""
    if len(got) == len(wanted) + 1:
        for axis in range(1, len(got)):
            others = [size for i, size in enumerate(got) if i != axis]
            if all(w in (None, size) for w, size in zip(wanted, others, strict=True)):
                return f" Its rows seem to be on axis {axis}: give np.moveaxis(X, {axis}, 0)."
    return ""


def _require_exact(array: np.ndarray, spec: TensorSpec) -> None:
    """Raise where a value changes in an integer type; a piece at a time, as the array may be mapped from a file."""
    rows = max(1, PIECE_ELEMENTS // max(1, math.prod(array.shape[1:])))
    for piece in (array[i : i + rows] for i in range(0, len(array), rows)):
        with np.errstate(invalid="ignore"):
            exact = piece.astype(spec.dtype)
        if not np.array_equal(exact, piece):
            value = piece[exact != piece][0]
            raise ValueError(f"The graph's input {spec.name!r} expects {spec.dtype}, but X contains {value}.")

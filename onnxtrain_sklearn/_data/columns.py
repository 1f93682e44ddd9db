"""The data of the graph's inputs, by name: arrays, frames, sparse matrices, memory maps; rows of them for minibatches.

An :class:`InputData` is the data of one input. Its rows are gathered into a buffer in the graph's type; of a sparse
matrix or a memory map, only these rows are made dense or read. The data are converted as a whole only if the copy is
small. A variable ``columns`` holds one for each input of the graph.

The module :mod:`.inputs` checks ``X`` and makes columns of it; :func:`dict_columns` does so for a dict of arrays. The
sections below hold the parts that both need: the conversion of other kinds of data (:func:`as_frame`), sparse rows and
their products with matrices, and warnings where the graph's type cannot represent the numbers.
"""

from __future__ import annotations

import datetime
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from sklearn.utils import check_array

from .._model.trainable import TensorSpec
from .._utils.typing import DType, MatrixLike, SparseLike
from ..exceptions import OnnxTrainWarning
from .row_blocks import holds_blocks, is_source

COPY_LIMIT = 2**28
"""Largest size, in bytes, of a converted copy of the data; larger data are converted minibatch by minibatch."""

MOST_AXES = 5
"""Largest number of axes of a row for which an error message tries all permutations of the axes."""

PIECE_ELEMENTS = 2**20
"""Elements of a piece when large data are checked in pieces."""


class InputData:
    """The data of one input of the graph, with a row for each sample.

    Parameters
    ----------
    data : ndarray or sparse matrix
        With the rows on the first axis.
    dtype : numpy.dtype
        The type of the graph's input.
    """

    def __init__(self, data: np.ndarray | SparseLike, dtype: DType) -> None:
        self._sparse = sp.issparse(data)
        self._data: Any = _converted(data, dtype)
        self._dtype = dtype
        # ndarray.take can write rows directly into a buffer. It would first copy an array that is not contiguous or not
        # aligned as a whole.
        flags = None if self._sparse else self._data.flags
        self._direct = flags is not None and self._data.dtype == dtype and flags.c_contiguous and flags.aligned

    def __len__(self) -> int:
        return int(self._data.shape[0])

    def of_type(self, dtype: DType) -> InputData:
        """Return the same data for an input of another type."""
        return self if dtype == self._dtype else InputData(self._data, dtype)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the graph's input."""
        return self._dtype

    @property
    def is_sparse(self) -> bool:
        """True if the data are a sparse matrix."""
        return self._sparse and len(self.shape) == 2

    @property
    def stays_sparse(self) -> bool:
        """True if products with the data are faster when rows stay sparse."""
        return stays_sparse(self._data)

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of rows, then the shape of a row."""
        return tuple(int(n) for n in self._data.shape)

    def rows(self, rows: np.ndarray | slice) -> np.ndarray:
        """Return the given rows as a dense array in the graph's type; for a slice, a view where possible."""
        if self._sparse:
            return np.asarray(self.sparse_rows(rows).toarray("C"))
        with _no_overflow(self._dtype):
            return np.ascontiguousarray(self._data[rows], dtype=self._dtype)

    def read_only(self, rows: np.ndarray) -> np.ndarray | SparseLike:
        """Return sorted ``rows`` in the graph's type: a read-only array, or a sparse matrix.

        If these are all rows, and the data already have the type, the array is a view.
        """
        if self._sparse:
            return self.sparse_rows(rows)  # type: ignore[no-any-return]
        whole = len(rows) == len(self) and self._data.dtype == self._dtype
        view: np.ndarray = (self._data if whole else self.rows(rows)).view()
        view.flags.writeable = False
        return view

    def matches(self, spec: TensorSpec) -> bool:
        """Return True if the data have the type and shape of a graph's input."""
        rows = zip(spec.shape[1:], self.shape[1:], strict=False)
        return spec.dtype == self._dtype and len(spec.shape) == len(self.shape) and all(w in (None, g) for w, g in rows)

    def sparse_rows(self, rows: np.ndarray | slice) -> Any:
        """Return the given rows of sparse data as a compressed matrix in the graph's type."""
        with _no_overflow(self._dtype):
            return in_type(self._data[rows], self._dtype)

    def rows_for_products(self, rows: np.ndarray) -> Any:
        """Return the given rows of sparse data in the graph's type, only for :func:`product` and its gradient."""
        return gathered(self._data, rows) if self._data.dtype == self._dtype else self.sparse_rows(rows)

    def content(self, rows: np.ndarray) -> np.ndarray:
        """Return a key for each given row, as a row of a matrix: equal rows of data have equal keys."""
        return _ranks(self.sparse_rows(rows)) if self.stays_sparse else self.rows(rows).reshape(len(rows), -1)

    def rows_with_missing(self) -> np.ndarray:
        """Return the rows that hold NaN."""
        data: Any = self._data
        if data.dtype.kind != "f":
            return np.empty(0, np.int64)
        if self._sparse:
            return np.unique(np.repeat(np.arange(len(self)), np.diff(data.indptr))[np.isnan(data.data)])
        return np.flatnonzero(np.isnan(data).reshape(len(self), -1).any(axis=1))

    def into(self, out: np.ndarray) -> Callable[[np.ndarray], object]:
        """Return a function that writes the given rows into ``out``."""
        if self._direct:
            take = self._data.take  # in mode "clip", because the default mode would buffer the output
            return lambda rows: take(rows, 0, out, "clip")
        if self._sparse:
            return lambda rows: self.sparse_rows(rows).toarray(out=out)
        return lambda rows: np.copyto(out, self.rows(rows).reshape(out.shape))


def _converted(data: np.ndarray | SparseLike, dtype: DType) -> Any:
    """Return ``data`` contiguous and in ``dtype``, unless it is a memory map or the copy would be large."""
    if sp.issparse(data):
        rows: Any = data.tocsr()
        if rows.nnz * dtype.itemsize > COPY_LIMIT:
            return rows
        with _no_overflow(dtype):
            return in_type(rows, dtype)
    owner: object = data
    while owner is not None and not isinstance(owner, np.memmap):  # a view of a memory map is memory-mapped, too
        owner = getattr(owner, "base", None)
    if owner is not None or data.size * dtype.itemsize > COPY_LIMIT:
        return np.asarray(data)
    if data.dtype == dtype:
        return np.ascontiguousarray(data)
    with _no_overflow(dtype):
        return np.ascontiguousarray(data, dtype=dtype)


def _ranks(part: Any) -> np.ndarray:
    """Return a column with the rank of each sparse row among the distinct rows; equal rows have equal ranks."""
    part.sum_duplicates()
    part.eliminate_zeros()
    ends = part.indptr[1:-1]
    pairs = zip(np.split(part.indices, ends), np.split(part.data, ends), strict=True)
    content = [indices.tobytes() + numbers.tobytes() for indices, numbers in pairs]
    ranks = {one: rank for rank, one in enumerate(sorted(set(content)))}
    return np.array([[ranks[one]] for one in content])


@contextmanager
def _no_overflow(dtype: DType) -> Iterator[None]:
    """Refuse numbers that a conversion to ``dtype`` would make infinite."""
    with np.errstate(over="raise"):
        try:
            yield
        except FloatingPointError:
            raise ValueError(f"Input contains a value too large for {dtype}, the type of the graph's input.") from None


def dimensions(X: MatrixLike) -> int:
    """Return the number of axes of dense data; 0 for sparse data, and for rows that differ in length."""
    data: Any = X
    try:
        return 0 if sp.issparse(X) else int(np.ndim(data))
    except ValueError:
        return 0


def dict_columns(X: Mapping[str, object], specs: Sequence[TensorSpec] | None) -> dict[str, InputData]:
    """Return a dict of arrays as the inputs of a graph; names, lengths and shapes are checked."""
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
        columns[spec.name] = InputData(shaped(array, spec), spec.dtype)
    sizes = dict[str, tuple[int, str]]()
    for spec in specs:
        for axis, size in zip(spec.axes, columns[spec.name].shape, strict=False):
            if axis is not None and sizes.setdefault(axis, (size, spec.name))[0] != size:
                first, other = sizes[axis]
                raise ValueError(
                    f"X: the axis {axis!r} of the graph has {first} elements in X[{other!r}], but {size} in "
                    f"X[{spec.name!r}]."
                )
    lengths = {spec.name: len(columns[spec.name]) for spec in specs if spec.by_row}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"The inputs in X must have the same number of rows, got {lengths}: the first axis of each input is that "
            f"of the rows. An input that is the same for all rows belongs in the model, not in X: "
            f"model=GraphModel(..., constant_inputs={{...}}). If X is one thing, such as the nodes and edges of one "
            f"network, set batch_size=None."
        )
    return columns


@contextmanager
def _faults_of_text(name: str) -> Iterator[None]:
    """Name the input that holds text in the error that scikit-learn raises, and add a remedy."""
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
    """Return ``array`` in the shape of a graph's input; flattened rows get the shape of the input."""
    if not spec.by_row:
        array = array.toarray() if sp.issparse(array) else array  # a run computes with all of it
        if spec.shape[0] not in (None, array.shape[0]):
            raise ValueError(f"X[{spec.name!r}] has the shape {array.shape}, but the graph takes {_shown(spec.shape)}.")
    wanted, got = spec.shape[1:], tuple(array.shape[1:])
    result: np.ndarray | SparseLike
    if len(wanted) == len(got) and all(w in (None, g) for w, g in zip(wanted, got, strict=True)):
        result = array
    elif (
        None not in wanted
        and math.prod(w or 0 for w in wanted) == math.prod(got)
        # Do not reshape rows of several axes, such as images: their numbers may be in another order.
        and not sp.issparse(array)
        and len(array.shape) <= 2
    ):
        result = array.reshape(array.shape[0], *(w or 0 for w in wanted))
    else:
        features = f"{got[0]} features" if len(got) == 1 else f"rows of shape {got}"
        row = tuple("?" if w is None else w for w in wanted)
        raise ValueError(
            f"X has {features}, but the graph's input {spec.name!r} takes rows of shape {row}.{_advice(wanted, array)}"
        )
    if spec.dtype.kind in "iub" and result.dtype != spec.dtype:
        _require_exact(result.data if sp.issparse(result) else result, spec)
    return result


def _shown(shape: Sequence[int | None]) -> str:
    return f"({', '.join('?' if d is None else str(d) for d in shape)})"


def _advice(wanted: tuple[int | None, ...], array: np.ndarray | SparseLike) -> str:
    """Return a remedy for rows that lack the shape ``wanted``, which an input needs; empty if none is known."""
    shape = tuple(array.shape)
    got = shape[1:]
    row = ", ".join("?" if w is None else str(w) for w in wanted)
    same_size = None not in wanted and math.prod(w or 0 for w in wanted) == math.prod(got)

    def fits(sizes: Sequence[int]) -> bool:
        return len(sizes) == len(wanted) and all(w in (None, g) for w, g in zip(wanted, sizes, strict=True))

    if len(got) >= 2:
        # Are the axes in another order? Try channels last first, the most likely case of images.
        axes = range(1, len(got) + 1)
        orders = [(len(got), *axes[:-1]), *permutations(axes)] if len(wanted) == len(got) <= MOST_AXES else []
        for order in orders:
            if fits([got[i - 1] for i in order]):
                first = " Channels come first in it:" if order == orders[0] else " Its axes have another order:"
                return f"{first} give X.transpose(0, {', '.join(map(str, order))})."
        if same_size:
            return (
                f" Only flat rows, (n, {math.prod(got)}), are reshaped, because the axes of X may be in another order, "
                f"such as channels last. If its values are in the order of the input, give X.reshape(len(X), {row})."
            )
    # Are the rows on another axis, as in the states of an LSTM?
    for axis in range(1, len(shape)):
        if fits(shape[:axis] + shape[axis + 1 :]):
            moved = "X.T" if sp.issparse(array) else f"np.moveaxis(X, {axis}, 0)"
            return f" Its rows seem to be on axis {axis}: give {moved}."
    # Do flat rows have the wrong width, or would sparse rows fit if they were dense?
    if len(shape) != 2 or not wanted:
        return ""
    if same_size:
        return " Sparse rows are not reshaped: give X.toarray()."
    if len(wanted) == 1:
        return f" Give X {wanted[0] or 0} columns, the features of this input in its order."
    flat = "" if None in wanted else f", or flat rows, (n, {math.prod(w or 0 for w in wanted)}), in the same order"
    return f" Give X the shape (n, {row}){flat}."


def _require_exact(array: np.ndarray, spec: TensorSpec) -> None:
    """Raise if a conversion to an integer type changes a value; checked in pieces, as the array may be a memory map."""
    rows = max(1, PIECE_ELEMENTS // max(1, math.prod(array.shape[1:])))
    for piece in (array[i : i + rows] for i in range(0, len(array), rows)):
        with np.errstate(invalid="ignore"):
            exact = piece.astype(spec.dtype)
        if not np.array_equal(exact, piece):
            value = piece[exact != piece][0]
            raise ValueError(f"The graph's input {spec.name!r} expects {spec.dtype}, but X contains {value}.")


# Conversion of other kinds of data: tables of Arrow, masked arrays, lazy frames.
#
# NumPy's conversions and scikit-learn's checks drop the mask of a masked array, and use the values that it hides.


_ELSEWHERE = frozenset("bigframes cudf daft dask dask_cudf dask_expr ibis modin pyspark ray snowflake vaex".split())
"""Packages whose tables are in other processes, on a device, or the result of a query. NumPy's conversions would
silently fetch all rows, and lose the names of the columns."""

_FETCH = (
    "compute",
    "toPandas",
    "modin.to_pandas",
    "to_pandas",
    "to_pandas_df",
    "collect",
    "read_all",
    "df",
    "to_table",
)
"""Methods that return the rows in memory: those of Dask, Spark, Modin, Vaex, polars, Arrow's readers, DuckDB, ..."""

_TIMES = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64)
"""Types of cells that hold times. The types of pandas derive from Python's, except for periods."""


def require_in_memory(data: object, name: str = "X") -> None:
    """Raise TypeError for data whose rows are not in memory, or not in this process, and for names of tables.

    Every public function that takes rows calls it before it reads them. Of a dict, it checks all values. Packages are
    recognized by the names of modules, so that none is imported.
    """
    kind = type(data)
    if kind is np.ndarray or data is None:
        return
    if isinstance(data, Mapping):
        for one in data.values():
            require_in_memory(one, name)
        return
    packages = {one.__module__.partition(".")[0] for one in kind.__mro__}
    graph = getattr(kind, "__dask_graph__", None)  # of xarray too: None unless it holds arrays of Dask
    given = f"{name} is a {kind.__module__}.{kind.__qualname__}"
    found = next((one for one in _FETCH if hasattr(kind, one.partition(".")[0])), None)
    fetched = "an array or a data frame in memory" if found is None else f"{name}.{found}()"
    on_cluster = " DaskOrtGradientClassifier and DaskOrtGradientRegressor of onnxtrain_sklearn.dask train on a cluster."
    on_cluster = on_cluster if "dask" in packages else ""
    if packages & _ELSEWHERE or (graph is not None and graph(data) is not None):
        raise TypeError(
            f"{given}, whose rows are not in the memory of this process, where training and predictions run. "
            f"Give {fetched}; or, if they do not fit, write Parquet files, which {_READERS} read in blocks: "
            f"fit('folder/', y='column').{on_cluster}"
        )
    if name != "X" and isinstance(data, str):
        raise TypeError(
            f"{name} is the text {data!r}. A column is named if X is a table in files; of a table in memory, give the "
            f"column itself."
        )
    if is_source(data) or holds_blocks(data):
        takers = f", which only fit, predict and score of {_READERS} take"
        raise TypeError(
            f"{name} is a {kind.__name__}, a table to be read in blocks{takers if name == 'X' else ''}. Give its rows, "
            f"such as {'pandas.read_parquet(...)' if found is None else fetched}."
        )
    lazy = hasattr(data, "columns") and not hasattr(data, "iloc") and not hasattr(data, "__len__")
    if lazy or kind.__name__ == "RecordBatchReader":
        raise TypeError(f"{name} is a {kind.__name__}, which holds no rows yet. Give {fetched}.")


_READERS = "the OrtGradient, RealMLP and TabM estimators"


def as_frame(X: object) -> Any:
    """Return a table of Arrow as a pandas data frame, a masked array with NaN or None, and other data unchanged.

    Raises
    ------
    TypeError
        The rows are not in memory: see :func:`require_in_memory`.
    """
    require_in_memory(X)
    if hasattr(X, "column_names") and hasattr(X, "to_pandas"):
        return X.to_pandas()
    if isinstance(X, np.ma.MaskedArray) and np.ma.is_masked(X):
        if X.dtype.kind not in "fiub":
            return np.ma.filled(X.astype(object), None)
        return np.ma.filled(X if X.dtype.kind == "f" else X.astype(np.float64), np.nan)
    return X


def require_no_times(X: object, name: str = "X") -> None:
    """Raise for an array or a column of times, which NumPy would convert to a number of nanoseconds.

    The rule is the same for pandas, polars, tables of Arrow, and dates and times among Python objects.
    """
    columns = getattr(X, "columns", None)
    if columns is None or not hasattr(X, "__getitem__"):
        if kind := _kind_of_times(X):
            raise _times(name, kind)
        return
    for i, column in enumerate(columns):
        own = X.iloc[:, i] if hasattr(X, "iloc") else X[column]  # by position, as labels of pandas may repeat
        if kind := _kind_of_times(own):
            raise _times(f"Column {column!r} of {name}", kind)


def _times(what: str, kind: str) -> TypeError:
    return TypeError(f"{what} holds times ({kind}); give numbers made of them, such as days since a date.")


def _kind_of_times(values: Any) -> str:
    """Return the name of the type of times in an array or a column; empty if it holds none."""
    dtype = getattr(values, "dtype", None)
    temporal = getattr(dtype, "is_temporal", None)  # types of polars have this method
    if getattr(dtype, "kind", "") in ("m", "M") or (temporal is not None and temporal()):
        return str(dtype)
    if dtype is None and isinstance(values, list | tuple):
        try:
            return _kind_of_times(np.asarray(values))
        except ValueError:  # rows of different lengths
            return ""
    # Look at the cells of extension types of pandas that become Python objects: periods, and dates of Arrow.
    of_times = getattr(dtype, "kind", "") == "O" and str(dtype).startswith(("period", "date", "time", "duration"))
    if not hasattr(values, "__array__") or (str(dtype) not in ("object", "Object") and not of_times):
        return ""
    found = {type(cell) for cell in np.asarray(values, object).ravel()}
    times = [one.__name__ for one in found if issubclass(one, _TIMES) or one.__name__ == "Period"]
    return min(times, default="")


def require_unmasked(values: object, name: str) -> None:
    """Raise if a masked array hides values, or the values are not in memory."""
    require_in_memory(values, name)
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        hidden = int(np.ma.getmaskarray(values).sum())
        count = values.size
        raise ValueError(f"{name} is a masked array that hides {hidden} of {count} values: leave out their rows.")


# Minibatches of sparse rows, their products with dense matrices, and the gradients of these matrices.
#
# SciPy's argument checks take as long as a small minibatch, and it returns products as new arrays, which
# are large for the gradient of a wide matrix. Therefore its private kernels are called directly, if the installed
# release has them; csc_matvecs is None if not.


try:
    from scipy.sparse._sparsetools import csc_matvec, csc_matvecs, csr_matvec, csr_matvecs, csr_row_index
except ImportError:
    csc_matvecs = None

LEAST_COLUMNS = 256
"""Smallest number of columns for which sparse rows are not made dense."""

DENSE = 0.1
"""Fraction of stored (nonzero) numbers above which dense rows are faster."""


def stays_sparse(data: Any) -> bool:
    """Return True if products with ``data`` are faster when its rows stay sparse."""
    matrix: Any = data
    if not sp.issparse(data) or matrix.ndim != 2:
        return False
    n_rows, n_columns = matrix.shape
    return bool(n_columns >= LEAST_COLUMNS and matrix.nnz <= DENSE * n_rows * n_columns)


def in_type(data: Any, dtype: np.dtype[np.generic]) -> Any:
    """Return a compressed matrix with numbers of type ``dtype``, which shares the indices."""
    if data.dtype == dtype:
        return data
    return type(data)((data.data.astype(dtype), data.indices, data.indptr), shape=data.shape, copy=False)


class CompressedRows(NamedTuple):
    """Rows of the matrix ``source`` in SciPy's compressed format: the same attributes, without SciPy's checks."""

    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray
    shape: tuple[int, int]
    source: Any


def gathered(matrix: Any, rows: np.ndarray) -> Any:
    """Return the given rows of a compressed matrix, only for products."""
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
    for i, vector in enumerate(matrix):  # multiply row by row, because SciPy would copy the transposed matrix
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
    """Add the gradient of a matrix to ``out``; ``slope`` is the gradient of the product of ``rows`` with it."""
    if transposed:
        for i in range(len(out)):
            _add_product_of_transpose(rows, np.ascontiguousarray(slope[:, i : i + 1]), out[i, :, np.newaxis])
    else:
        _add_product_of_transpose(rows, slope, out)


def _add_product_of_transpose(rows: Any, matrix: np.ndarray, out: np.ndarray) -> None:
    if csc_matvecs is None:
        out += rows.T @ matrix
        return
    n_rows, n_columns = rows.shape  # the compressed rows are the compressed columns of the transposed matrix
    parts = (rows.indptr, rows.indices, rows.data, matrix.ravel(), out.ravel())
    if matrix.shape[1] == 1:
        csc_matvec(n_columns, n_rows, *parts)
    else:
        csc_matvecs(n_columns, n_rows, matrix.shape[1], *parts)


def occurring_columns(rows: Any) -> np.ndarray:
    """Return the columns that hold nonzero numbers, row after row; a column may repeat."""
    source = rows.source if isinstance(rows, CompressedRows) else rows
    if not source.has_canonical_format:  # several numbers stored for one element may add up to zero
        rows = sp.csr_array((rows.data, rows.indices, rows.indptr), rows.shape, copy=True)
        rows.sum_duplicates()
    stored: np.ndarray = rows.indices
    return stored if rows.data.all() else stored[rows.data != 0]


def add_rows(places: np.ndarray, factors: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """Add ``factors[i] * rows[i]`` to ``out[places[i]]`` for each i; places may repeat."""
    if csc_matvecs is None:
        np.add.at(out, places, rows * factors[:, np.newaxis])
        return
    # Multiply by a sparse matrix whose column i holds one number, the factor of row i, in the row of its place.
    ends = np.arange(len(places) + 1, dtype=places.dtype)
    csc_matvecs(len(out), len(places), out.shape[1], ends, places, factors, rows.ravel(), out.ravel())


class SparseRows:
    """A buffer for a minibatch of sparse rows, whose columns are multiplied by ``factors``."""

    def __init__(self, factors: np.ndarray | None = None) -> None:
        self.rows: Any = None
        self._factors = factors

    def hold(self, rows: Any) -> None:
        """Replace the rows in the buffer."""
        self.rows = multiplied_columns(rows, self._factors)


def multiplied_columns(rows: Any, factors: np.ndarray | None) -> Any:
    """Return compressed rows with each column multiplied by its factor; without factors, the rows themselves."""
    if factors is None:
        return rows
    numbers = rows.data * factors[rows.indices].astype(rows.data.dtype)
    if isinstance(rows, CompressedRows):
        return rows._replace(data=numbers)
    return type(rows)((numbers, rows.indices, rows.indptr), shape=rows.shape, copy=False)


# Warnings of numbers that the graph's type cannot tell apart, so that different rows become equal.
#
# float32 has no odd integers above 2**24: identifiers, time stamps and prices in cents are affected, and so are
# numbers far from 0 that differ by little.


COARSE = 8
"""Warn only if the standard deviation spans at most this many steps between neighboring floats.

With 8, the variance of the rounding error, a twelfth of a squared step, is 1/768 of the variance of the numbers.
"""


def warn_of_steps(numbers: np.ndarray, dtype: DType, name: str) -> None:
    """Warn if a standard deviation of ``numbers``, which are float64, spans at most ``COARSE`` steps of ``dtype``.

    Do not warn of whole numbers, which may be codes; of numbers that are exact in ``dtype``, for example because they
    were float32 before; or of numbers that differ only by rounding.
    """
    there = numbers[~np.isnan(numbers)]
    if not there.size or np.abs(there).max() > np.finfo(str(dtype)).max:
        return
    largest = np.abs(there).max()
    spread = float(there.std(dtype=np.float64))
    step = float(np.spacing(largest.astype(dtype)))
    constant = np.ptp(there) <= COARSE * np.spacing(largest)
    if constant or spread > COARSE * step or (there == np.rint(there)).all() or (there == there.astype(dtype)).all():
        return
    warnings.warn(
        f"{name} holds numbers near {largest:.6g} that are about {spread:.2g} apart, and {dtype}, the type of the "
        f"graph, has none between steps of {step:.2g} there. Subtract a number near them, such as their mean.",
        OnnxTrainWarning,
        stacklevel=2,
    )


def warn_of_rounding(data: ArrayLike | SparseLike, dtype: DType, name: str) -> bool:
    """Warn if ``data`` are integers and the float type ``dtype`` changes one of them; return True after a warning."""
    values = data.data if sp.issparse(data) else np.asarray(data)
    if dtype.kind != "f" or values.dtype.kind not in "iu" or not values.size:
        return False
    limit = 2 ** (int(np.finfo(str(dtype)).nmant) + 1)
    if -limit <= int(values.min()) and int(values.max()) <= limit:
        return False
    with np.errstate(invalid="ignore"):
        changed = np.argwhere(values.astype(dtype).astype(values.dtype) != values)
    if len(changed):
        place = tuple(changed[0])
        column = f" in column {place[1]}" if len(place) == 2 else ""
        warnings.warn(
            f"{name} holds the integer {values[place]}{column}, which is rounded to "
            f"{float(values[place].astype(dtype)):.0f} in {dtype}, the type of the graph: integers are exact up to "
            f"{limit}. Encode identifiers as categories, and scale numbers before they are given.",
            OnnxTrainWarning,
            stacklevel=2,
        )
    return bool(len(changed))


def warn_of_rounded_columns(X: MatrixLike, array: ArrayLike | SparseLike, dtype: DType) -> None:
    """Warn for each integer column of a data frame, by name; warn once for any other data."""
    if not (hasattr(X, "columns") and hasattr(X, "dtypes") and hasattr(X, "iloc")):
        warn_of_rounding(array, dtype, "X")
        return
    for place, (name, kind) in enumerate(zip(X.columns, X.dtypes, strict=True)):
        if getattr(kind, "kind", "") in ("i", "u"):
            warn_of_rounding(X.iloc[:, place].to_numpy(), dtype, f"Column {name!r} of X")

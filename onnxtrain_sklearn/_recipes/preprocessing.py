"""Preprocessing of raw tables: codes for categories, medians for missing numbers, and the scaling of numbers.

``fit_preprocessing`` learns it in NumPy. The ``Preprocessing`` that it returns applies it as one ONNX graph, to
training data and to data to predict, so they cannot be scaled differently; recipes put the same operators in the graph
that they export.

The graph makes a float32 matrix: the scaled numbers, then integer codes of the categories. Code 0 stands for a missing
or unseen category, the others for the sorted categories of the training data. A missing number becomes the median; a
column that had missing numbers in training gets a further column of codes: 1 for a number, 2 for a missing one. Of a
column of times, the graph makes several numbers first (``times``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
import onnx_ir as ir

from .._data.columns import InputData
from .._data.statistics import ColumnQuantiles, Extremes, LabelCounts, Moments, exact_quantiles
from .._inference.predictor import PredictionGraph, Predictor, prediction_graph
from .._ort import sessions
from .._ort.devices import Device
from .._utils.cache import Cache
from ..graph import GraphBuilder
from .raw_table import RawTable
from .times import MISSING, PARTS, Calendar


def fit_preprocessing(
    table: RawTable,
    categorical: tuple[bool, ...],
    scaling: type[Scaling],
    rng: np.random.RandomState,
    *,
    drops_constants: bool = False,
    whole: RawTable | None = None,
) -> Preprocessing:
    """Return the preprocessing, fitted to all rows of a table.

    Parameters
    ----------
    drops_constants : bool
        Whether to leave out numeric columns of a single number, as long as another column remains.
    whole : RawTable, optional
        The table whose rows ``table`` is a part of. It decides which columns are text, because the members of an
        ensemble, fitted to parts, read one input. Default: ``table``.
    """
    every = table if whole is None else whole
    times = [i for i, column in enumerate(every.columns) if column.dtype == np.int64]
    calendars = tuple(Calendar.fit(i, table.columns[i]) for i in times)
    arrays = {i: column for i, column in enumerate(table.columns) if not categorical[i] and i not in times}
    # fitted to the float32 numbers that the graph is given, in double precision
    numbers = {i: _in_float32(_as_numbers(table.names[i], a)) for i, a in arrays.items()}
    for own in calendars:
        for column in own.numbers(table.columns[own.place]).T:  # they follow the columns of the table
            numbers[len(table.names) + len(numbers) - len(arrays)] = _in_float32(column)
    medians = {i: _median(exact_quantiles(a[:, np.newaxis])) for i, a in numbers.items()}
    filled = {i: np.where(np.isnan(column), medians[i], column) for i, column in numbers.items()}
    varying = [i for i, column in filled.items() if column.min() < column.max()]
    categories = tuple(_categories(i, table, every) for i in range(len(table.names)) if categorical[i])
    kept = varying if drops_constants and (varying or categories) else list(filled)
    return Preprocessing(
        names=table.names,
        numbers=tuple(kept),
        fill=np.array([medians[i] for i in kept]),
        scaling=scaling.fit(ArrayNumbers(np.stack([filled[i] for i in kept], axis=1)), rng) if kept else None,
        gaps=tuple(j for j, i in enumerate(kept) if np.isnan(numbers[i]).any() and not _repeats_gaps(i, table)),
        categories=categories,
        calendars=calendars,
    )


def _repeats_gaps(place: int, table: RawTable) -> bool:
    """Return True for a number made of a time, but the first: all of them are missing in the same rows."""
    return place >= len(table.names) and (place - len(table.names)) % len(PARTS) != 0


def numbers_of(table: RawTable, places: Sequence[int]) -> np.ndarray:
    """Return some columns as a float64 matrix of the float32 numbers that the graph is given."""
    return np.stack([_in_float32(_as_numbers(table.names[i], table.columns[i])) for i in places], axis=1)


def _in_float32(numbers: np.ndarray) -> np.ndarray:
    """Return float64 numbers as the graph is given them."""
    return numbers.astype(np.float32).astype(np.float64)


def _median(quantiles: ColumnQuantiles) -> float:
    """Return the median of a column in float32; 0 for a column without a number."""
    median = float(quantiles.at(np.array([0.5])).astype(np.float32)[0, 0])
    return 0.0 if np.isnan(median) else median


ML_DOMAIN, ML_OPSET = "ai.onnx.ml", 3

MATRIX = "X"
"""The input of graphs for tables without text."""


@dataclass
class Preprocessing:
    """The fitted preprocessing of a table.

    Attributes
    ----------
    names : tuple of str
        The columns of the table.
    numbers : tuple of int
        Indices of the numeric columns that are used; those made of times follow the columns of the table.
    fill : ndarray
        The medians of these columns, which replace missing numbers.
    scaling : Scaling
    gaps : tuple of int
        Those of the numeric columns that had missing numbers, as indices into ``numbers``.
    categories : tuple of Categories
    calendars : tuple of Calendar
        Of the columns of times.
    """

    names: tuple[str, ...]
    numbers: tuple[int, ...]
    fill: np.ndarray
    scaling: Scaling | None
    gaps: tuple[int, ...]
    categories: tuple[Categories, ...]
    calendars: tuple[Calendar, ...] = ()
    _predictors: dict[int, Predictor] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_predictors": {}}

    @property
    def takes_columns(self) -> bool:
        """True if a column is text or times, so that each column is an input of its own."""
        return bool(self.calendars) or any(own.is_text for own in self.categories)

    @property
    def code_columns(self) -> dict[int, int]:
        """The columns of the matrix that hold codes, and the number of codes of each."""
        sizes = [own.size for own in self.categories] + [3] * len(self.gaps)
        return {len(self.numbers) + i: size for i, size in enumerate(sizes)}

    @property
    def owners(self) -> np.ndarray:
        """The column of the table of which each column of the matrix is made."""
        of_times = [own.place for own in self.calendars for _ in PARTS]
        numbers = [[*range(len(self.names)), *of_times][i] for i in self.numbers]
        return np.array([*numbers, *(own.place for own in self.categories), *(numbers[i] for i in self.gaps)], int)

    @property
    def width(self) -> int:
        """Columns of the matrix."""
        return len(self.numbers) + len(self.code_columns)

    def columns(self, table: RawTable) -> dict[str, InputData]:
        """Return a table as inputs of the graph."""
        text = {own.place: own for own in self.categories}
        times = {own.place for own in self.calendars}
        arrays = []
        for i, (name, column) in enumerate(zip(self.names, table.columns, strict=True)):
            own = text.get(i)
            if i in times:
                arrays.append(_as_times(name, column))
            else:
                arrays.append(_as_numbers(name, column) if own is None else own.values(name, column))
        if not self.takes_columns:
            return {MATRIX: InputData(np.stack(arrays, axis=1), np.dtype(np.float32))}
        kinds = [a.dtype if a.dtype in (object, np.int64) else np.dtype(np.float32) for a in arrays]
        return {
            name: InputData(array.reshape(-1, 1), kind)
            for name, array, kind in zip(self.names, arrays, kinds, strict=True)
        }

    def transform(
        self, table: RawTable, device: Device, session_options: Mapping[str, object] | None = None
    ) -> np.ndarray:
        """Return the float32 matrix of a table."""
        key = sessions.forks()  # a forked process cannot use the sessions of its parent
        if key not in self._predictors:
            graph = _open_graphs.get(self._form(), self._open_graph)
            self._predictors[key] = Predictor(graph, device, session_options, live=self, width=self.width)
        return self._predictors[key].run(self.columns(table))

    def prediction_views(self) -> dict[str, np.ndarray]:
        """Return the fitted numbers by the names of the inputs of a graph that takes them."""
        longer = "_" * max(map(len, self.names))  # with the dot, longer than any column name: they cannot be equal
        return {f"{longer}.{name}": array for name, array in self._fitted_numbers().items()}

    def _fitted_numbers(self) -> dict[str, np.ndarray]:
        return {} if self.scaling is None else {"fill": self.fill.astype(np.float32), **self.scaling.numbers()}

    def _form(self) -> Hashable:
        """Return the key of the shared graph: everything in it except the fitted numbers, which are inputs."""
        shapes = tuple(array.shape for array in self._fitted_numbers().values())
        return self.names, self.numbers, type(self.scaling), shapes, self.gaps, self.categories, self.calendars

    def _open_graph(self) -> PredictionGraph:
        """Return the graph that takes the fitted numbers as inputs, so that other fits can use its session too."""
        op = self.new_graph()
        kinds = {name: (ir.DataType.from_numpy(a.dtype), a.shape) for name, a in self.prediction_views().items()}
        held = [ir.val(name, *kind) for name, kind in kinds.items()]
        op.graph.inputs.extend(held)
        op.graph.outputs.append(self._emitted(op, dict(zip(self._fitted_numbers(), held, strict=True))))
        return replace(prediction_graph(ir.Model(op.graph, ir_version=8)), is_shared=True)

    def new_graph(self) -> GraphBuilder:
        """Return a graph with the inputs of the table."""
        if self.takes_columns:  # a tensor has one type, so text, times and numbers need inputs of their own
            types = {own.place: ir.DataType.STRING for own in self.categories if own.is_text}
            types |= {own.place: ir.DataType.INT64 for own in self.calendars}
            kinds = (types.get(i, ir.DataType.FLOAT) for i in range(len(self.names)))
            inputs = [ir.val(name, kind, ("N", 1)) for name, kind in zip(self.names, kinds, strict=True)]
        else:
            inputs = [ir.val(MATRIX, ir.DataType.FLOAT, ("N", len(self.names)))]
        opsets = {"": 18, ML_DOMAIN: ML_OPSET}
        graph = ir.Graph(inputs, [], nodes=[], opset_imports=opsets, name="model")
        return GraphBuilder(graph, prefix="prepare", constant_nodes=True)

    def emit(self, op: GraphBuilder) -> ir.Value:
        """Append the preprocessing to a graph of :meth:`new_graph`; return the float32 matrix."""
        return self._emitted(op, self._fitted_numbers())

    def _emitted(self, op: GraphBuilder, fitted: FittedNumbers) -> ir.Value:
        parts = []
        if self.scaling is not None:
            numbers = self._taken(op, self.numbers)
            missing = op.IsNaN(numbers)
            parts.append(self.scaling.emit(op, op.Where(missing, fitted["fill"], numbers), fitted))
        parts += [own.emit(op, self._taken(op, (own.place,))) for own in self.categories]
        if self.gaps:  # 1 for a number, 2 for a missing one: code 0 is that of unseen categories
            codes = op.Cast(op.Gather(missing, np.array(self.gaps), axis=1), to=ir.DataType.FLOAT)
            parts.append(op.Add(codes, 1.0))
        matrix = parts[0] if len(parts) == 1 else op.Concat(*parts, axis=1)
        matrix.type, matrix.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(["N", self.width])
        return matrix

    def _taken(self, op: GraphBuilder, places: tuple[int, ...]) -> ir.Value:
        """Return some columns of the inputs as one matrix."""
        inputs = op.graph.inputs
        if any(i >= len(self.names) for i in places):
            return self._taken_with_times(op, places)
        if not self.takes_columns:
            whole = places == tuple(range(len(self.names)))
            return inputs[0] if whole else op.Gather(inputs[0], np.array(places), axis=1)
        return inputs[places[0]] if len(places) == 1 else op.Concat(*(inputs[i] for i in places), axis=1)

    def _taken_with_times(self, op: GraphBuilder, places: tuple[int, ...]) -> ir.Value:
        inputs, width = op.graph.inputs, len(self.names)
        parts = [inputs[i] for i in places if i < width]
        for number, own in enumerate(self.calendars):
            first = width + number * len(PARTS)
            chosen = [i - first for i in places if first <= i < first + len(PARTS)]
            if chosen:
                made = own.emit(op, inputs[own.place])
                parts.append(made if len(chosen) == len(PARTS) else op.Gather(made, np.array(chosen), axis=1))
        return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=1)


_open_graphs: Cache[PredictionGraph] = Cache(64, 2**24, lambda graph: len(graph.content) + 2**10)


@dataclass(frozen=True)
class Categories:
    """The categories of a column: text, or numbers in float32.

    Attributes
    ----------
    place : int
        Index of the column in the table.
    known : tuple of str, or tuple of float
        In ascending order; the codes are 1, 2, ...
    is_text : bool
        Whether the column is text, else numbers. Missing text is the empty string, missing numbers are NaN.
    """

    place: int
    known: tuple[Any, ...]
    is_text: bool

    @property
    def size(self) -> int:
        """Number of codes, that of missing and unseen values included."""
        return len(self.known) + 1

    def values(self, name: str, column: np.ndarray) -> np.ndarray:
        """Return the column as the graph takes it: text, or float32."""
        if not self.is_text:
            return _as_numbers(name, column).astype(np.float32)
        texts = [value if type(value) is str else self._text(name, value) for value in column.tolist()]
        return np.array(texts, object)

    def _text(self, name: str, value: object) -> str:
        if value is None or value != value:  # NaN
            return ""
        if not isinstance(value, str):
            raise ValueError(f"Column {name!r} of X was text when the estimator was fitted, and holds {value!r} now.")
        return value

    def emit(self, op: GraphBuilder, x: ir.Value) -> ir.Value:
        """Append the codes of a column of shape (N, 1), as float32."""
        keys = self.known or ("" if self.is_text else 0.0,)  # operators take no empty table
        codes = [float(i + 1) for i in range(len(self.known))] or [0.0]
        table: dict[str, Any] = {f"keys_{'strings' if self.is_text else 'floats'}": list(keys)}
        return op.emit("LabelEncoder", x, domain=ML_DOMAIN, default_float=0.0, values_floats=codes, **table)[0]


def _categories(place: int, table: RawTable, whole: RawTable) -> Categories:
    name, column, every = table.names[place], table.columns[place], whole.columns[place]
    if column.dtype != object:
        return _numeric_categories(place, name, LabelCounts().update(column).labels)
    kinds = set(map(type, every.tolist())) - {type(None)}
    if all(issubclass(kind, str) for kind in kinds):
        return _text_categories(place, LabelCounts().update(column).labels.tolist())
    _require_text(name, kinds)
    return _numeric_categories(place, name, LabelCounts().update(_as_numbers(name, column)).labels)


def _require_text(name: str, kinds: Collection[type]) -> None:
    """Raise for a column of text and other values."""
    if any(issubclass(kind, str | bytes) for kind in kinds) and not all(issubclass(kind, str) for kind in kinds):
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ValueError(f"Column {name!r} of X mixes categories of type {names}; write all of them as text.")


def _text_categories(place: int, texts: Sequence[str]) -> Categories:
    # The empty string is no category: in files and in the graph it stands for missing text.
    return Categories(place, tuple(text for text in texts if text), is_text=True)


def _numeric_categories(place: int, name: str, exact: np.ndarray) -> Categories:
    known = np.unique(exact.astype(np.float32))
    if len(known) < len(exact):
        raise ValueError(
            f"Column {name!r} of X holds categories that are equal numbers in float32, the type of the graph's inputs. "
            f"Write them as text."
        )
    return Categories(place, tuple(map(float, known)), is_text=False)


def _as_numbers(name: str, column: np.ndarray) -> np.ndarray:
    """Return a column as float64, with NaN for missing values."""
    if column.dtype == np.int64:
        raise ValueError(f"Column {name!r} of X holds times, and it was numeric when the estimator was fitted.")
    if column.dtype != object:
        return column
    if text := [value for value in column.tolist() if isinstance(value, str | bytes)]:
        raise ValueError(f"could not convert string to float: {text[0]!r} in column {name!r} of X, which was numeric "
                         f"when the estimator was fitted.")  # fmt: skip
    return np.array([np.nan if value is None else float(value) for value in column.tolist()])


def _as_times(name: str, column: np.ndarray) -> np.ndarray:
    """Return a column as nanoseconds; one without a value is missing in all rows."""
    if column.dtype == np.int64:
        return column
    values = column[~np.isnan(column)] if column.dtype == np.float64 else [one for one in column if one is not None]
    if len(values):
        raise ValueError(
            f"Column {name!r} of X held times when the estimator was fitted, and holds "
            f"{np.array(values[:1]).tolist()[0]!r} now."
        )
    return np.full(len(column), MISSING)


# Statistics of a table that is read in blocks.


MOST_CATEGORIES = 100_000
"""Categories of a column of a table in blocks: all of them are in memory, and each gets a code of its own."""


class ColumnStatistics:
    """What a preprocessing learns of a column of a table that is read in blocks.

    A block in which all values are missing does not tell whether the column holds numbers or categories: the others do.

    Attributes
    ----------
    kind : {"number", "text", "coded", None}
        Numbers, categories that are text, categories that are numbers; None before the first value.
    n_missing : int
    quantiles, moments, extremes : accumulators
        Of numbers in float32.
    known : set of str, or of float
        Categories. A set, as merging LabelCounts would sort all of them again for each block.
    """

    def __init__(self) -> None:
        self.kind: str | None = None
        self.n_missing, self._takes_codes, self._takes_text = 0, False, False
        none = np.full((1, 1), np.nan)  # a column without a number
        self.quantiles = ColumnQuantiles().update(none)
        self.moments = Moments().update(none)
        self.extremes = Extremes().update(none)
        self.known = set[Any]()

    def update(self, name: str, column: np.ndarray, *, categorical: bool) -> None:
        """Add the values of a block; ``name`` is that of the column."""
        kind = "coded" if categorical else "number"
        if column.dtype == np.int64:
            raise TypeError(
                f"Column {name!r} of X holds times, which tables of more than buffer_rows rows do not take: give "
                f"numbers made of them, such as days since a date, or a larger RowBlocks(buffer_rows=...)."
            )
        if column.dtype == object:
            kinds = set(map(type, column.tolist())) - {type(None)}
            if any(issubclass(one, str | bytes) for one in kinds):
                kind = "text"
                _require_text(name, kinds)
            else:
                self._takes_text = self._takes_text or not kinds
                column = _as_numbers(name, column)
        if kind != "text":
            missing = np.isnan(column)
            self.n_missing += int(np.count_nonzero(missing))
            if missing.all():
                self._takes_codes = self._takes_codes or categorical
                return
        self._require_kind(name, kind)
        self.kind = kind
        if kind == "number":
            numbers = _in_float32(column)[:, np.newaxis]
            self.quantiles.update(numbers)
            self.moments.update(numbers)
            self.extremes.update(numbers)
            return
        self.known.update(column.tolist() if kind == "text" else np.unique(column[~missing]).tolist())
        self.known.discard(None)
        self._require_few(name)

    def _require_few(self, name: str) -> None:
        if len(self.known) > MOST_CATEGORIES:
            raise ValueError(
                f"Column {name!r} of X has more than {MOST_CATEGORIES:,} categories; if they identify the rows, leave "
                f"it out: RowBlocks(..., columns=[...])."
            )

    def _require_kind(self, name: str, kind: str) -> None:
        if self.kind not in (None, kind):
            kinds = {"text": "text", "coded": "categories that are numbers", "number": "numbers"}
            raise ValueError(
                f"Column {name!r} of X holds {kinds[kind]}, and {kinds[str(self.kind)]} in another block. Give all "
                f"blocks the same type."
            )

    def merge(self, name: str, other: ColumnStatistics) -> ColumnStatistics:
        """Add the rows that another accumulator has seen; return this one."""
        if other.kind is not None:
            self._require_kind(name, other.kind)
            self.kind = other.kind
        self.n_missing += other.n_missing
        self._takes_codes |= other._takes_codes
        self._takes_text |= other._takes_text
        self.quantiles.merge(other.quantiles)
        self.moments.merge(other.moments)
        self.extremes.merge(other.extremes)
        self.known |= other.known
        self._require_few(name)
        return self

    @property
    def is_categorical(self) -> bool:
        """True for categories; of a column without a value, True if its type, or the user, says so."""
        return self.kind in ("text", "coded") or (self.kind is None and self._takes_codes)

    def categories(self, place: int, name: str, whole: ColumnStatistics) -> Categories:
        """Return the categories; ``whole``, of all rows, decides whether they are text."""
        if whole.kind == "text" or (whole.kind is None and whole._takes_text):
            return _text_categories(place, sorted(self.known))
        return _numeric_categories(place, name, np.array(sorted(self.known)))


class BlockNumbers:
    """The numbers of columns of a table in blocks, with missing ones filled, as :class:`ArrayNumbers` is of an array.

    Parameters
    ----------
    columns : list of ColumnStatistics
    fill : ndarray
        The number of each column that replaces missing ones.
    read : callable
        Returns an iterator of the rows of all blocks in float32, as float64 matrices with NaN for missing ones.
    """

    def __init__(
        self, columns: Sequence[ColumnStatistics], fill: np.ndarray, read: Callable[[], Iterator[np.ndarray]]
    ) -> None:
        self._fill, self._read = fill, read
        rows = fill[:, np.newaxis]
        missing = np.array([one.n_missing for one in columns])
        counted = list(zip(columns, rows, missing[:, np.newaxis], strict=True))
        self._quantiles = [ColumnQuantiles().merge(one.quantiles).add_repeats(number, n) for one, number, n in counted]
        # The number that replaces missing ones is a row that weighs as many rows.
        moments = [
            Moments().merge(one.moments).update(number[np.newaxis], n.astype(float)) for one, number, n in counted
        ]
        self.deviation = np.concatenate([one.deviation for one in moments])
        self.spread = np.maximum(np.concatenate([one.extremes.spread for one in columns]), 0.0)  # -inf without a number
        self.count = int(self._quantiles[0].counts[0])

    def quantiles(self, shares: np.ndarray) -> np.ndarray:
        """Return the quantiles of these shares, of shape (n_shares, n_columns)."""
        return np.concatenate([one.at(shares) for one in self._quantiles], axis=1)

    def noisy_quantiles(self, scale: np.ndarray, rng: np.random.RandomState, shares: np.ndarray) -> np.ndarray:
        """Return the quantiles of the numbers with normal noise, which takes a pass over the blocks."""
        noisy = ColumnQuantiles()
        for rows in self._read():
            noisy.update(np.where(np.isnan(rows), self._fill, rows) + scale * rng.standard_normal(rows.shape))
        return noisy.at(shares)


def fit_to_statistics(
    names: tuple[str, ...],
    columns: Sequence[ColumnStatistics],
    whole: Sequence[ColumnStatistics],
    scaling: type[Scaling],
    rng: np.random.RandomState,
    read: Callable[[Sequence[int]], Iterator[np.ndarray]],
    *,
    drops_constants: bool,
) -> Preprocessing:
    """Return the preprocessing of a table in blocks; :func:`fit_preprocessing` is that of a table in memory.

    Parameters
    ----------
    columns, whole : sequence of ColumnStatistics
        Of the rows to fit to, and of all rows, which decide whether a column is text.
    read : callable
        Returns the rows to fit to of some columns, block by block.
    """
    categorical = [one.is_categorical for one in whole]
    places = [i for i in range(len(names)) if not categorical[i]]
    categories = tuple(columns[i].categories(i, names[i], whole[i]) for i in range(len(names)) if categorical[i])
    varying = [i for i in places if columns[i].extremes.spread[0] > 0]
    kept = varying if drops_constants and (varying or categories) else places
    own = [columns[i] for i in kept]
    fill = np.array([_median(one.quantiles) for one in own])
    numbers = BlockNumbers(own, fill, lambda: read(kept)) if kept else None
    return Preprocessing(
        names=names,
        numbers=tuple(kept),
        fill=fill,
        scaling=None if numbers is None else scaling.fit(numbers, rng),
        gaps=tuple(j for j, one in enumerate(own) if one.n_missing),
        categories=categories,
    )


FittedNumbers: TypeAlias = Mapping[str, "np.ndarray | ir.Value"]
"""The numbers of a fit by name, or values of a graph that hold them."""


class Numbers(Protocol):
    """Numbers to fit a scaling to, without missing ones.

    Attributes
    ----------
    count : int
        Rows.
    deviation, spread : ndarray
        Standard deviation and whole range of each column.
    """

    @property
    def count(self) -> int: ...

    @property
    def deviation(self) -> np.ndarray: ...

    @property
    def spread(self) -> np.ndarray: ...

    def quantiles(self, shares: np.ndarray) -> np.ndarray:
        """Return the quantiles of these shares, of shape (n_shares, n_columns)."""

    def noisy_quantiles(self, scale: np.ndarray, rng: np.random.RandomState, shares: np.ndarray) -> np.ndarray:
        """Return the quantiles of the numbers with normal noise, whose deviation in each column is ``scale``."""


class ArrayNumbers:
    """The numbers of a float64 matrix."""

    def __init__(self, numbers: np.ndarray) -> None:
        self._numbers, self.count = numbers, len(numbers)

    @property
    def deviation(self) -> np.ndarray:
        """The standard deviation of each column."""
        return Moments().update(self._numbers).deviation

    @property
    def spread(self) -> np.ndarray:
        """The whole range of each column."""
        return Extremes().update(self._numbers).spread

    def quantiles(self, shares: np.ndarray) -> np.ndarray:
        """Return the quantiles of these shares, of shape (n_shares, n_columns)."""
        return exact_quantiles(self._numbers).at(shares)

    def noisy_quantiles(self, scale: np.ndarray, rng: np.random.RandomState, shares: np.ndarray) -> np.ndarray:
        """Return the quantiles of the numbers with normal noise."""
        return exact_quantiles(self._numbers + scale * rng.standard_normal(self._numbers.shape)).at(shares)


class Scaling(ABC):
    """A fitted scaling of numeric columns."""

    @classmethod
    @abstractmethod
    def fit(cls, numbers: Numbers, rng: np.random.RandomState) -> Scaling:
        """Return the scaling for these numbers."""

    @abstractmethod
    def numbers(self) -> dict[str, np.ndarray]:
        """Return the fitted numbers, as the operators take them."""

    @abstractmethod
    def emit(self, op: GraphBuilder, x: ir.Value, numbers: FittedNumbers) -> ir.Value:
        """Append the scaling of a float32 matrix by the fitted numbers, or by values of the graph that hold them."""


CLIP = 3.0
"""Bound that smooth clipping tends to."""

_LARGEST_SCALED = 1e6


@dataclass(frozen=True, eq=False)
class RobustScaling(Scaling):
    """RealMLP's scaling: ``x = (x - median) / IQR``, then ``x / sqrt(1 + (x / 3)²)``.

    Where the interquartile range is 0, half of the whole range replaces it; columns that are constant become 0.

    References
    ----------
    Holzmüller, Grinsztajn, Steinwart, "Better by default: strong pre-tuned MLPs and boosted trees on tabular data",
    NeurIPS 2024.
    """

    center: np.ndarray
    factor: np.ndarray

    @classmethod
    def fit(cls, numbers: Numbers, rng: np.random.RandomState) -> RobustScaling:
        low, median, high = numbers.quantiles(np.array([0.25, 0.5, 0.75]))
        spread = np.where(high > low, high - low, 0.5 * numbers.spread)
        return cls(median, _reciprocal(spread))

    def numbers(self) -> dict[str, np.ndarray]:
        return {"center": self.center.astype(np.float32), "factor": self.factor.astype(np.float32)}

    def emit(self, op: GraphBuilder, x: ir.Value, numbers: FittedNumbers) -> ir.Value:
        far = np.float32(_LARGEST_SCALED)  # squares of larger numbers overflow
        x = op.Clip(op.Mul(op.Sub(x, numbers["center"]), numbers["factor"]), -far, far)
        return op.Div(x, op.Sqrt(op.Add(op.Mul(op.Mul(x, x), 1 / CLIP**2), 1.0)))


NOISE = 1e-3
"""Noise in the data that ``QuantileScaling`` is fitted to, in standard deviations of the column, as in TabM's code."""


@dataclass(frozen=True, eq=False)
class QuantileScaling(Scaling):
    """TabM's scaling: quantiles of the training data mapped to those of the normal distribution.

    The map of scikit-learn's ``QuantileTransformer(output_distribution="normal")`` with a quantile for 30 rows, 10 to
    1000 of them, fitted to data with a little noise, so that equal numbers are spread out. The noise is a thousandth of
    a column's standard deviation. (In TabM's own code it grows as the deviation shrinks, so that the unit of a column
    matters.) Computed in float64.

    Attributes
    ----------
    knots : ndarray of shape (n_knots, n_columns)
        Distinct quantiles of each column in ascending order, filled up with infinity.
    below, above : ndarray of the same shape
        The limits of the probability at each knot, from below and from above.
    """

    knots: np.ndarray
    below: np.ndarray
    above: np.ndarray

    @classmethod
    def fit(cls, numbers: Numbers, rng: np.random.RandomState) -> QuantileScaling:
        count = min(numbers.count, max(min(numbers.count // 30, 1000), 10))
        references = np.linspace(0, 1, count)
        # Product and quotient round as in scikit-learn, which computes percentiles from these probabilities.
        return cls.of(numbers.noisy_quantiles(NOISE * numbers.deviation, rng, references * 100 / 100), references)

    @classmethod
    def of(cls, quantiles: np.ndarray, references: np.ndarray) -> QuantileScaling:
        """Return the scaling for fitted quantiles of shape (n_quantiles, n_columns) and their probabilities."""
        table = np.full((3, *quantiles.shape), np.inf)
        table[1:] = 1.0
        for j, column in enumerate(quantiles.T):
            knots, first, counts = np.unique(column, return_index=True, return_counts=True)
            table[:, : len(knots), j] = knots, references[first], references[first + counts - 1]
        return cls(*table)

    def numbers(self) -> dict[str, np.ndarray]:
        tables = {"knots": self.knots, "below": self.below, "above": self.above}
        flat = {name: np.ascontiguousarray(table.T).ravel() for name, table in tables.items()}
        last = np.where(np.isfinite(self.knots), self.knots, -np.inf).max(axis=0)
        return {**flat, "least": self.knots[0], "last": last}

    def emit(self, op: GraphBuilder, x: ir.Value, numbers: FittedNumbers) -> ir.Value:
        x = op.Cast(x, to=ir.DataType.DOUBLE)
        place = self._place(op, x, numbers)
        knot, below, above = (self._at(op, numbers[name], place) for name in ("knots", "below", "above"))
        # Between two knots, interpolate from the probability above the left one to that below the right one.
        following = op.Min(op.Add(place, np.int64(1)), np.int64(len(self.knots) - 1))
        right, reached = self._at(op, numbers["knots"], following), self._at(op, numbers["below"], following)
        # The knot that follows the last one is infinite: the share is 0, and the probability stays at 1.
        share = op.Div(op.Sub(x, knot), op.Sub(right, knot))
        between = op.Add(above, op.Mul(share, op.Sub(reached, above)))
        on_knot = op.Mul(op.Add(below, above), np.float64(0.5))
        p = op.Where(op.Equal(x, knot), on_knot, between)
        p = op.Where(op.Less(x, numbers["last"]), p, np.float64(1.0))
        p = op.Where(op.Greater(x, numbers["least"]), p, np.float64(0.0))
        return op.Cast(normal_quantile(op, p), to=ir.DataType.FLOAT)

    def _place(self, op: GraphBuilder, x: ir.Value, numbers: FittedNumbers) -> ir.Value:
        """Return the index of the last knot that is not above each number, by binary search; 0 below the first."""
        # The loop unrolls here: the number of knots is known, so the graph has no Loop. Products by zero make zeros of
        # the right shape.
        place = op.Cast(op.Mul(x, np.float64(0.0)), to=ir.DataType.INT64)
        step = 1
        while step * 2 < len(self.knots):
            step *= 2
        while step:
            further = op.Add(place, np.int64(step))
            inside = op.Min(further, np.int64(len(self.knots) - 1))
            reached = op.And(op.GreaterOrEqual(x, self._at(op, numbers["knots"], inside)), op.Equal(inside, further))
            place = op.Where(reached, further, place)
            step //= 2
        return place

    def _at(self, op: GraphBuilder, table: np.ndarray | ir.Value, place: ir.Value) -> ir.Value:
        """Return the entry of a table, which holds one column after the other, at a place in each column."""
        count, columns = self.knots.shape
        return op.Gather(table, op.Add(place, count * np.arange(columns)))


_LARGEST_FACTOR = float(np.finfo(np.float32).max)


def _reciprocal(spread: np.ndarray) -> np.ndarray:
    """Return 1 / spread within the range of float32, or 0 where spread is 0."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(spread > 0, np.minimum(1 / spread, _LARGEST_FACTOR), 0.0)


def normal_quantile(op: GraphBuilder, p: ir.Value) -> ir.Value:
    """Append the quantile function of the normal distribution for float64 probabilities, within +-5.2."""
    p = op.Clip(p, np.float64(_LEAST), np.float64(1 - _LEAST))
    q = op.Sub(p, np.float64(0.5))
    square = op.Mul(q, q)
    center = op.Div(op.Mul(_polynomial(op, square, _CENTER[0]), q), _polynomial(op, square, _CENTER[1]))
    least = op.Min(p, op.Sub(np.float64(1.0), p))
    root = op.Sqrt(op.Mul(op.Log(least), np.float64(-2.0)))
    tail = op.Div(_polynomial(op, root, _TAIL[0]), _polynomial(op, root, _TAIL[1]))
    signed = op.Where(op.Less(q, np.float64(0.0)), tail, op.Neg(tail))
    return op.Where(op.Less(least, np.float64(_TAIL_BELOW)), signed, center)


def _polynomial(op: GraphBuilder, x: ir.Value, coefficients: tuple[float, ...]) -> ir.Value:
    """Append a polynomial by Horner's rule, the highest power first."""
    result: ir.Value | np.float64 = np.float64(coefficients[0])
    for coefficient in coefficients[1:]:
        result = op.Add(op.Mul(x, result), np.float64(coefficient))
    assert isinstance(result, ir.Value)
    return result


# Rational approximations of the quantile function of the normal distribution, relative error 1.15e-9 (Acklam).
_CENTER = (
    (-39.69683028665376, 220.9460984245205, -275.9285104469687, 138.3577518672690, -30.66479806614716,
     2.506628277459239),
    (-54.47609879822406, 161.5858368580409, -155.6989798598866, 66.80131188771972, -13.28068155288572, 1.0),
)  # fmt: skip

_TAIL = (
    (-0.007784894002430293, -0.3223964580411365, -2.400758277161838, -2.549732539343734, 4.374664141464968,
     2.938163982698783),
    (0.007784695709041462, 0.3224671290700398, 2.445134137142996, 3.754408661907416, 1.0),
)  # fmt: skip

_TAIL_BELOW = 0.02425

_LEAST = 1e-7
"""The least probability, and one minus the largest, that scikit-learn maps."""

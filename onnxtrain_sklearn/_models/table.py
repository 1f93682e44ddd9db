"""Tables of numbers and of categories as one matrix of floats: the inputs of the networks for tables.

Categories come as codes in columns of their own: 0 for a missing or unseen category, 1 and more for the others. Codes
beyond the number that is declared count as 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from .._graph.builder import GraphBuilder
from .._graph.edits import insert_behind
from .drawn_columns import DrawnColumns
from .embeddings import Embedding, drawn_embedding

BINARY = 3
"""Number of codes of a column with two categories."""

NONE = -1.0
"""A code that no row has."""


@dataclass(frozen=True)
class CodedTable:
    """The columns of a table: numbers, categories that become indicators, and categories that become vectors.

    Attributes
    ----------
    numbers : ndarray of int
        Indices of the numeric columns.
    indicators, vectors : tuple of (index, number of codes)
        The categorical columns.
    """

    numbers: np.ndarray
    indicators: tuple[tuple[int, int], ...]
    vectors: tuple[tuple[int, int], ...]


def coded_table(n_features: int, categories: Mapping[int, int] | None, max_one_hot: float = np.inf) -> CodedTable:
    """Return the columns; categorical ones of more than ``max_one_hot`` codes become vectors."""
    known = sorted((int(i), int(size)) for i, size in (categories or {}).items())
    if known and known[-1][0] >= n_features:
        raise ValueError(f"categories names column {known[-1][0]}, but X has {n_features} columns.")
    numbers = np.setdiff1d(np.arange(n_features), [i for i, _ in known])
    few = tuple((i, size) for i, size in known if size <= max_one_hot)
    return CodedTable(numbers, few, tuple((i, size) for i, size in known if size > max_one_hot))


def numeric_columns(
    table: CodedTable, embedding: Embedding | None, rng: np.random.RandomState, rows: np.ndarray | None
) -> list[DrawnColumns]:
    """Return the numeric columns, if there are any, behind an embedding; ``rows`` are those of the whole table."""
    numbers, is_whole = table.numbers, not table.indicators and not table.vectors
    if not len(numbers):
        return []
    if embedding is None:
        drawn = DrawnColumns(len(numbers), lambda op, x: x)
    else:
        drawn = drawn_embedding(embedding, len(numbers), rng, None if rows is None else rows[:, numbers])
    if is_whole:
        return [drawn]
    return [replace(drawn, emit=lambda op, x: drawn.emit(op, op.Gather(x, numbers, axis=1)))]


@dataclass(frozen=True)
class Indicators:
    """Columns that tell codes apart: 1 where a column has the code ``plus``, -1 where it has ``minus``, else 0."""

    source: np.ndarray
    plus: np.ndarray
    minus: np.ndarray

    def emit(self, op: GraphBuilder, x: ir.Value) -> ir.Value:
        """Append the columns for a table ``x``."""
        codes = op.Gather(x, self.source, axis=1)
        hot = _marked(op, codes, self.plus)
        return op.Sub(hot, _marked(op, codes, self.minus)) if (self.minus != NONE).any() else hot

    def values(self, X: np.ndarray) -> np.ndarray:
        """Return the columns for rows."""
        codes = X[:, self.source]
        return np.asarray((codes == self.plus).astype(np.float32) - (codes == self.minus))


def full_one_hot(columns: Sequence[tuple[int, int]]) -> Indicators:
    """Return one column for each code, that of missing categories included."""
    found = [(i, float(code), NONE) for i, size in columns for code in range(size)]
    return _from_entries(found)


def signed_one_hot(columns: Sequence[tuple[int, int]]) -> Indicators:
    """Return one column for each category, none for missing ones; a single one of 1 and -1 for two categories."""
    found = []
    for i, size in columns:
        found += [(i, 1.0, 2.0)] if size == BINARY else [(i, float(code), NONE) for code in range(1, size)]
    return _from_entries(found)


def _from_entries(found: Sequence[tuple[int, float, float]]) -> Indicators:
    source, plus, minus = zip(*found, strict=True) if found else ((), (), ())
    return Indicators(np.array(source, np.int64), np.array(plus, np.float32), np.array(minus, np.float32))


def _marked(op: GraphBuilder, codes: ir.Value, wanted: np.ndarray) -> ir.Value:
    return op.Cast(op.Equal(codes, wanted), to=int(ir.DataType.FLOAT))


def category_vectors(columns: Sequence[tuple[int, int]], size: int, rng: np.random.RandomState) -> DrawnColumns:
    """Return a trained vector of ``size`` numbers for each code, side by side."""
    places, counts = (np.array(part, np.int64) for part in zip(*columns, strict=True))
    vectors, width = rng.normal(size=(counts.sum(), size)).astype(np.float32), len(columns) * size

    def emit(op: GraphBuilder, x: ir.Value) -> ir.Value:
        codes = op.Gather(x, places, axis=1)
        known = op.And(op.GreaterOrEqual(codes, 0.0), op.Less(codes, counts.astype(np.float32)))
        codes = op.Cast(op.Where(known, codes, 0.0), to=int(ir.DataType.INT64))
        starts = np.cumsum(counts) - counts  # all vectors are rows of one matrix
        weight = op.parameter("categories.weight", vectors)
        return op.Reshape(op.Gather(weight, op.Add(codes, starts), axis=0), [-1, width])

    return DrawnColumns(width, emit, {"categories.weight": vectors})


def robust_scaling(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return medians, and factors to an interquartile range of 1; where that is 0, to a range of 2."""
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75], axis=0)
    spread = np.where(high > low, high - low, np.ptp(values, axis=0) / 2)
    return median, np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 0)


def task_of(y: np.ndarray | None) -> str:
    """Return what the targets are: "classes", "numbers" or "unknown"."""
    if y is None:
        return "unknown"
    return "classes" if np.asarray(y).dtype.kind in "iub" else "numbers"


def heads(n_outputs: int, task: str) -> int:
    """Return the number of outputs to build: two for two classes, which then train as several classes do."""
    return 2 if task == "classes" and n_outputs == 1 else n_outputs


def difference(op: GraphBuilder, outputs: ir.Value) -> ir.Value:
    """Return the score of the second of two classes: the sigmoid of it is the softmax of ``outputs``."""
    return op.MatMul(outputs, np.array([[-1], [1]], np.float32))


def insert_dropout(op: GraphBuilder, hidden: Sequence[ir.Value], ratio: float) -> None:
    """Put dropout behind values that nodes read."""
    if not ratio:
        return
    for value in hidden:
        insert_behind(op, value, lambda v: op.Dropout(v, np.float32(ratio), np.array(True)))
    op.graph.sort()

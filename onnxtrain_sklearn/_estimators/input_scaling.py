"""Large numbers in the rows of a regressor: its built network divides them all by one power of two.

A network of initial weights gives outputs as large as its inputs. Targets that are scaled are near one, so that columns
of thousands would begin with errors of thousands of standard deviations, and each step would move predictions as far.
The factor is the attribute ``alpha`` of the first Gemm: no node is added, sparse rows stay sparse, and powers of two do
not round.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from .._data.columns import Column
from .._graph.queries import attribute
from .._models.base import makes_drafts
from .._support.content import is_plain
from ..models import Builder, keywords_of
from .examples import Examples
from .parameters import Parameters
from .training_rows import TrainingRows

LEAST_SIZE = 2.0
"""Root mean square from which on rows are divided: standardized rows, of about one, stay as they are."""

LOOKED_AT_ROWS = 1_000
"""Rows that tell the size of the numbers, at most: data of any size are read a minibatch at a time."""

_NUMBERS_AT_ONCE = 2**17
"""Numbers that are looked at together: rows may be images, and mapped from a file."""

_LARGEST_EXPONENT = 120
"""The reciprocal of a greater power of two would not be a normal number of float32."""


def divisor_for(estimator: Parameters, builder: Builder, examples: Examples, rows: TrainingRows) -> float:
    """Return what the graph of a builder divides rows by; 1.0 where targets are not scaled.

    The weights of other builders may have been chosen for the rows as they are. A linear model with a penalty is left
    alone too: what the penalty means depends on the units of the columns.
    """
    if rows.scale is None or not is_free_of_data(builder):
        return 1.0
    if estimator.alpha and not _has_hidden_layers(builder):
        return 1.0
    (column,) = examples.columns.values()
    return _greatest_power_of_two(_size_of_numbers(column, rows.split(examples)[0], examples.weights))


def is_free_of_data(builder: Builder) -> bool:
    """Whether a builder is one of this package whose weights do not depend on data: ``MLP`` and ``Linear``."""
    return is_plain(builder) and makes_drafts(builder) and not keywords_of(builder)


def _has_hidden_layers(builder: Builder) -> bool:
    sizes = getattr(builder, "hidden_layer_sizes", ())
    return bool(np.size(sizes))


def _size_of_numbers(column: Column, rows: np.ndarray, weights: np.ndarray | None) -> float:
    """Return the root mean square of all numbers of some rows, those of a row weighted as the row is."""
    chosen = np.sort(rows)[:: -(-len(rows) // LOOKED_AT_ROWS)]
    n_pieces = min(len(chosen), -(-len(chosen) * math.prod(column.shape[1:]) // _NUMBERS_AT_ONCE))
    means = np.concatenate([_mean_squares(column, piece) for piece in np.array_split(chosen, max(1, n_pieces))])
    return math.sqrt(np.average(means, weights=None if weights is None else weights[chosen]))


def _mean_squares(column: Column, rows: np.ndarray) -> np.ndarray:
    """Return the mean of the squares of each row."""
    numbers: Any = column.read_only(rows)
    numbers = numbers.astype(np.float64)
    squares = numbers.multiply(numbers).sum(axis=1) if column.is_sparse else numbers**2
    sums: np.ndarray = np.asarray(squares).reshape(len(rows), -1).sum(axis=1)
    return sums / math.prod(column.shape[1:])


def _greatest_power_of_two(size: float) -> float:
    """Return the greatest power of two up to ``size``; 1.0 where that is below :data:`LEAST_SIZE`, or not a number."""
    if not LEAST_SIZE <= size < math.inf:
        return 1.0
    return math.ldexp(1.0, min(math.frexp(size)[1] - 1, _LARGEST_EXPONENT))


def with_divided_rows(model: ir.Model, divisor: float) -> ir.Model:
    """Return ``model``, changed in place, dividing the rows by ``divisor`` where it multiplies them by matrices.

    A graph that does anything else with them stays as it is.
    """
    (rows, *others) = model.graph.inputs
    uses = list(rows.uses())
    if divisor == 1.0 or others or any(use.node.op_type != "Gemm" or use.idx != 0 for use in uses):
        return model
    for use in uses:
        alpha = attribute(use.node, "alpha", 1.0) / divisor
        use.node.attributes["alpha"] = ir.AttrFloat32("alpha", alpha)
    return model

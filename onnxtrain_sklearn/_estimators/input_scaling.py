"""Large numbers in the rows: the networks that are built for them subtract a center and divide by a power of two.

A network of initial weights gives outputs as large as its inputs, and follows the largest column alone. Both numbers
are constants of the graph, not weights: the exported file takes the columns in their own units. A center is a whole
multiple of its divisor, so that neither depends on each row, and graphs of equal constants share what was compiled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import scipy.sparse as sp

from .._data.columns import Column
from .._graph.builder import GraphBuilder
from .._models.base import BY_CHANNEL, BY_COLUMN
from .._support.content import is_plain
from .._support.float_errors import ignores_float_errors
from ..models import Builder
from .examples import Examples
from .parameters import Parameters
from .training_rows import TrainingRows

LEAST_SIZE = 2.0
"""Root mean square from which on a column is scaled: standardized columns, of about one, stay as they are."""

CLEARLY_SMALL = 0.9 * LEAST_SIZE**2
"""Mean square below which rounding in float32 does not matter."""

LOOKED_AT_ROWS, LOOKED_AT_NUMBERS, LEAST_ROWS = 10_000, 2**23, 100
"""Rows that tell the size of the numbers, at most, and numbers of them, unless these are of fewer than 100 rows."""

_NUMBERS_AT_ONCE = 2**17
"""Numbers that are looked at together: rows may be images, and mapped from a file."""

_LARGEST_EXPONENT = 120
"""The reciprocal of a greater power of two would not be a normal number of float32."""


@dataclass(frozen=True, eq=False)
class InputScale:
    """What rows are scaled by: ``(row - center) / divisor``, both float32 and of the axes of a row."""

    center: np.ndarray
    divisor: np.ndarray

    @property
    def key(self) -> bytes:
        """The numbers as a comparable value."""
        return self.center.tobytes() + self.divisor.tobytes()


def scale_for(estimator: Parameters, builder: Builder, examples: Examples, rows: TrainingRows) -> InputScale | None:
    """Return what the graph of a builder scales its rows by; None: nothing.

    Without scaled targets a regressor is in the units of its data. The weights of other builders may have been chosen
    for the rows as they are. What a penalty on a linear model means depends on the units of the columns.
    """
    unscaled = examples.targets.task == "regression" and rows.scale is None
    kind = getattr(builder, "scales_rows", None)
    if kind is None or unscaled or not is_plain(builder):
        return None
    if estimator.alpha and not _has_hidden_layers(builder):
        return None
    (column,) = examples.columns.values()
    centered = bool(getattr(builder, "fit_intercept", True)) and not column.is_sparse
    chosen = _looked_at(column, rows.split(examples)[0])
    shares = np.ones(len(chosen)) if examples.weights is None else examples.weights[chosen].astype(np.float64)
    if _are_small(column, chosen, shares):
        return None
    return _scale_of(_spread(column, chosen, shares, kind), centered=centered)


def _has_hidden_layers(builder: Builder) -> bool:
    by_channel = getattr(builder, "scales_rows", None) == BY_CHANNEL
    return by_channel or bool(np.size(getattr(builder, "hidden_layer_sizes", ())))


@dataclass(frozen=True, eq=False)
class _Spread:
    """Mean, standard deviation and root mean square of the numbers of each column, or channel."""

    mean: np.ndarray
    deviation: np.ndarray
    size: np.ndarray


@ignores_float_errors
def _are_small(column: Column, chosen: np.ndarray, shares: np.ndarray) -> bool:
    """Whether a short look at few rows shows that no column is large: their mean squares are far enough below it."""
    numbers = math.prod(column.shape[1:])
    if column.is_sparse or len(chosen) * numbers > _NUMBERS_AT_ONCE:
        return False
    rows = np.asarray(column.read_only(chosen)).reshape(-1, numbers)
    mean_squares = shares.astype(rows.dtype) @ (rows * rows) / shares.sum()
    return bool((mean_squares < CLEARLY_SMALL).all())


def _spread(column: Column, chosen: np.ndarray, shares: np.ndarray, kind: str) -> _Spread:
    n_numbers = math.prod(column.shape[1:])
    origin, axes = _origin(column, chosen[:1], kind), _joined_axes(column, kind)
    sums = np.zeros((2, *column.shape[1:]))
    for piece in np.array_split(np.arange(len(chosen)), max(1, len(chosen) * n_numbers // _NUMBERS_AT_ONCE)):
        sums += _weighted_sums(column.read_only(chosen[piece]), shares[piece], origin)
    first, second = (sums / shares.sum()).mean(axis=tuple(axis + 1 for axis in axes), keepdims=True)
    variance, mean = np.maximum(second - first**2, 0.0), origin + first
    return _Spread(mean, np.sqrt(variance), np.sqrt(variance + mean**2))


def _looked_at(column: Column, rows: np.ndarray) -> np.ndarray:
    """Return rows, in order and evenly chosen, that tell the size of the numbers."""
    most = min(LOOKED_AT_ROWS, max(LEAST_ROWS, LOOKED_AT_NUMBERS // math.prod(column.shape[1:])))
    return np.sort(rows)[:: max(1, -(-len(rows) // most))]


def _joined_axes(column: Column, kind: str) -> tuple[int, ...]:
    """Return the axes of a row whose numbers are scaled alike: those of images, without the axis of channels."""
    axes = range(len(column.shape) - 1)
    return () if kind == BY_COLUMN else tuple(axes[1:] if len(axes) == 3 else axes)


def _origin(column: Column, row: np.ndarray, kind: str) -> Any:
    """Return numbers that squares are summed up around: far from 0 they would lose the spread."""
    if column.is_sparse or not len(row):
        return 0.0
    first = np.asarray(column.read_only(row), np.float64)[0]
    return first.mean(axis=_joined_axes(column, kind), keepdims=True)


def _weighted_sums(numbers: Any, shares: np.ndarray, origin: Any) -> np.ndarray:
    """Return the sums over rows of the numbers and of their squares."""
    if sp.issparse(numbers):
        matrix: Any = numbers
        matrix = matrix.astype(np.float64)
        return np.stack([np.ravel(shares @ matrix), np.ravel(shares @ matrix.multiply(matrix))])
    numbers = np.asarray(numbers, np.float64) - origin
    return np.stack([np.tensordot(shares, numbers, 1), np.tensordot(shares, numbers * numbers, 1)])


def _scale_of(spread: _Spread, *, centered: bool) -> InputScale | None:
    """Return the scale of large columns, by their deviation where they are centered; None: no column is large.

    Smaller deviations than 1 are not scaled up, unless all numbers of a column are equal: its deviation is not known.
    """
    around = np.where(spread.deviation > 0, np.maximum(spread.deviation, 1.0), spread.size)
    large = (spread.size >= LEAST_SIZE) & np.isfinite(spread.size)
    if not large.any():
        return None
    sizes = np.where(large, around if centered else spread.size, 1.0)
    divisor = np.ldexp(1.0, np.minimum(np.frexp(sizes)[1] - 1, _LARGEST_EXPONENT))
    center = np.where(large & centered, np.round(spread.mean / divisor) * divisor, 0.0)
    return InputScale(center.astype(np.float32), divisor.astype(np.float32))


def with_scaled_rows(model: ir.Model, scale: InputScale | None) -> ir.Model:
    """Return ``model``, changed in place, scaling its rows first."""
    if scale is None:
        return model
    (rows,) = model.graph.inputs
    uses, op = list(rows.uses()), GraphBuilder(model.graph, prefix="scaled", constant_nodes=True)
    scaled = op.Sub(rows, scale.center[np.newaxis]) if scale.center.any() else rows
    scaled = op.Mul(scaled, 1 / scale.divisor[np.newaxis]) if (scale.divisor != 1).any() else scaled
    for node, index in uses:
        node.replace_input_with(index, scaled)
    model.graph.sort()
    return model

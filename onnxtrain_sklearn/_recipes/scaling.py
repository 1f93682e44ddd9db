"""Scalings of numeric columns: ``Robust`` for RealMLP, ``Quantile`` for TabM, ``Affine`` to mean 0 and deviation 1.

A scaling is fitted in NumPy, to a float64 matrix without missing numbers, and applied by ONNX operators alone: training
data and data to predict go through the same operators, so they cannot be scaled differently.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from .._data.statistics import Extremes, Moments, exact_quantiles
from ..graph import GraphBuilder

FittedNumbers: TypeAlias = Mapping[str, "np.ndarray | ir.Value"]
"""The numbers of a fit by name, or values of a graph that hold them."""


class Scaling(ABC):
    """A fitted scaling of numeric columns."""

    @classmethod
    @abstractmethod
    def fit(cls, numbers: np.ndarray, rng: np.random.RandomState) -> Scaling:
        """Return the scaling for a float64 matrix without missing numbers."""

    @abstractmethod
    def numbers(self) -> dict[str, np.ndarray]:
        """Return the fitted numbers, as the operators take them."""

    @abstractmethod
    def emit(self, op: GraphBuilder, x: ir.Value, numbers: FittedNumbers) -> ir.Value:
        """Append the scaling of a float32 matrix by the fitted numbers, or by values of the graph that hold them."""


@dataclass(frozen=True, eq=False)
class Affine(Scaling):
    """``(x - center) * factor``, with mean and standard deviation; columns that are constant become 0."""

    center: np.ndarray
    factor: np.ndarray

    @classmethod
    def fit(cls, numbers: np.ndarray, rng: np.random.RandomState) -> Affine:
        moments = Moments().update(numbers)
        return cls(moments.mean, _reciprocal(moments.deviation))

    def numbers(self) -> dict[str, np.ndarray]:
        return {"center": self.center.astype(np.float32), "factor": self.factor.astype(np.float32)}

    def emit(self, op: GraphBuilder, x: ir.Value, numbers: FittedNumbers) -> ir.Value:
        return op.Mul(op.Sub(x, numbers["center"]), numbers["factor"])


CLIP = 3.0
"""Bound that smooth clipping tends to."""

_LARGEST_SCALED = 1e6


@dataclass(frozen=True, eq=False)
class Robust(Affine):
    """RealMLP's scaling: ``x = (x - median) / IQR``, then ``x / sqrt(1 + (x / 3)²)``.

    Where the interquartile range is 0, half of the whole range replaces it; columns that are constant become 0.

    References
    ----------
    Holzmüller, Grinsztajn, Steinwart, "Better by default: strong pre-tuned MLPs and boosted trees on tabular data",
    NeurIPS 2024.
    """

    @classmethod
    def fit(cls, numbers: np.ndarray, rng: np.random.RandomState) -> Robust:
        low, median, high = exact_quantiles(numbers).at(np.array([0.25, 0.5, 0.75]))
        spread = np.where(high > low, high - low, 0.5 * Extremes().update(numbers).spread)
        return cls(median, _reciprocal(spread))

    def emit(self, op: GraphBuilder, x: ir.Value, numbers: FittedNumbers) -> ir.Value:
        far = np.float32(_LARGEST_SCALED)  # squares of larger numbers overflow
        x = op.Clip(super().emit(op, x, numbers), -far, far)
        return op.Div(x, op.Sqrt(op.Add(op.Mul(op.Mul(x, x), 1 / CLIP**2), 1.0)))


NOISE = 1e-3
"""Noise in the data that ``Quantile`` is fitted to, in standard deviations of the column; TabM's authors add it."""


@dataclass(frozen=True, eq=False)
class Quantile(Scaling):
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
    def fit(cls, numbers: np.ndarray, rng: np.random.RandomState) -> Quantile:
        noise = NOISE * Moments().update(numbers).deviation * rng.standard_normal(numbers.shape)
        count = min(len(numbers), max(min(len(numbers) // 30, 1000), 10))
        references = np.linspace(0, 1, count)
        # scikit-learn takes percentiles: the product and the quotient round.
        return cls.of(exact_quantiles(numbers + noise).at(references * 100 / 100), references)

    @classmethod
    def of(cls, quantiles: np.ndarray, references: np.ndarray) -> Quantile:
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
        place, step = op.Cast(op.Mul(x, np.float64(0.0)), to=ir.DataType.INT64), 1
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


SCALINGS: dict[str, type[Scaling]] = {"robust": Robust, "quantile": Quantile, "standard": Affine}
"""The scalings by name."""

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

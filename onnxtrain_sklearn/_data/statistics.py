"""Statistics of the data that are computed before the first step, for one array or for a stream of blocks.

Every class here is an accumulator. ``update`` adds a block of rows, of any size, and ``merge`` adds the rows of another
accumulator of the same class, so that a stream needs one pass and several processes can divide the work. Missing
numbers (NaN) and rows of weight zero are ignored. For a single block the results equal those of NumPy's functions to
the bit, except for ``Moments(scaled=True)``, which rounds otherwise. For several blocks their accuracy is:

================================================  ================================  ====================================
statistic                                         accumulator                       of a stream
================================================  ================================  ====================================
scale of targets, scaling "standard"              `Moments`                         exact but for rounding
range of targets, whole range of a column         `Extremes`                        exact
classes, categories of numbers and of text        `LabelCounts`                     exact
weights of ``class_weight="balanced"``            `LabelCounts`                     exact but for rounding
medians, scaling "robust" (RealMLP)               `ColumnQuantiles`                 ranks within its `rank_error`
scaling "quantile" (TabM)                         `Moments`, then `ColumnQuantiles` ranks within its `rank_error`; two
                                                                                    passes: the noise of the second is
                                                                                    scaled by deviations of the first
bins of `PiecewiseLinearEmbedding`                `ColumnQuantiles`                 ranks within its `rank_error`,
                                                                                    counts of a value within twice that
================================================  ================================  ====================================

Up to :data:`KEPT_VALUES` numbers of a column, quantiles are exact in a stream too. Estimators that hold all rows keep
all of them, by :func:`exact_quantiles`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

KEPT_VALUES = 2**14
"""Numbers that each level of a quantile sketch holds (128 KiB); with at most so many in a column, it is exact."""


class Moments:
    """Mean and standard deviation of each column.

    Parameters
    ----------
    centered : bool, default=True
        If False, take the mean as zero, so that the deviation is the root mean square.
    scaled : bool, default=False
        Compute in units of the largest magnitude of each column, as squares of numbers beyond 1e154 overflow.

    Attributes
    ----------
    weight : ndarray of shape (n_columns,)
        Sum of the weights of the numbers that are not missing.
    """

    def __init__(self, *, centered: bool = True, scaled: bool = False) -> None:
        self._centered, self._scaled = centered, scaled
        self.weight = self._unit = self._mean = self._variance = np.empty(0)

    def update(self, values: np.ndarray, weights: np.ndarray | None = None) -> Moments:
        """Add rows of shape (n_rows, n_columns); return the accumulator."""
        if weights is not None and len(weights) and not weights.any():
            return self
        if not len(values):
            return self
        block = Moments(centered=self._centered, scaled=self._scaled)
        missing = np.isnan(values)
        block._unit = np.ones(values.shape[1])
        if self._scaled:
            largest = np.abs(values).max(axis=0, initial=0.0, where=~missing)
            block._unit = np.where(largest > 0, largest, 1.0)
        values = values / block._unit
        if missing.any():
            own = np.where(missing, 0.0, 1.0 if weights is None else weights[:, np.newaxis])
            values = np.where(missing, 0.0, values)
            block.weight = own.sum(axis=0)
            known = np.where(block.weight > 0, block.weight, 1.0)
            block._mean = (own * values).sum(axis=0) / known * self._centered
            block._variance = (own * (values - block._mean) ** 2).sum(axis=0) / known
        else:
            total = float(len(values)) if weights is None else float(weights.sum())
            block.weight = np.full(values.shape[1], total)
            mean = np.average(values, axis=0, weights=weights) if self._centered else np.zeros(values.shape[1])
            # Squares of unscaled numbers may overflow, which does not matter to a caller that reads only the mean.
            with np.errstate(over="ignore"):
                block._mean, block._variance = mean, np.average((values - mean) ** 2, axis=0, weights=weights)
        return self.merge(block)

    def merge(self, other: Moments) -> Moments:
        """Add the rows of another accumulator; return this one.

        The variances are combined by the update of Chan, Golub and LeVeque ("Updating formulae and a pairwise
        algorithm for computing sample variances", 1979), which does not cancel where means are far from zero.
        """
        if not len(other.weight):
            return self
        if not len(self.weight):
            self.weight, self._unit = other.weight, other._unit
            self._mean, self._variance = other._mean, other._variance
            return self
        # Use the larger unit. But if one accumulator has no numbers in a column yet, use the unit of the other one.
        unit = np.maximum(self._unit, other._unit)
        unit = np.where(self.weight == 0, other._unit, np.where(other.weight == 0, self._unit, unit))
        ours, theirs = self._unit / unit, other._unit / unit
        weight = self.weight + other.weight
        share = np.divide(other.weight, weight, out=np.zeros_like(weight), where=weight > 0)
        mean, further = self._mean * ours, other._mean * theirs
        apart = np.where(share > 0, further - mean, 0.0)
        spread = (1 - share) * (self._variance * ours**2) + share * (other._variance * theirs**2)
        self._mean = np.where(share == 1, further, mean + apart * share)
        self._variance = spread + apart**2 * share * (1 - share)
        self.weight, self._unit = weight, unit
        return self

    @property
    def mean(self) -> np.ndarray:
        """The mean of each column."""
        return self._mean * self._unit

    @property
    def deviation(self) -> np.ndarray:
        """The standard deviation of each column; the divisor is the number of rows, as in `numpy.std`."""
        return np.sqrt(self._variance) * self._unit

    @property
    def constant(self) -> np.ndarray:
        """Mask of the columns whose numbers differ only by rounding; meaningful for scaled moments only."""
        return np.asarray(np.sqrt(self._variance) <= 10 * np.finfo(np.float64).eps)


class Extremes:
    """Smallest and largest number of each column.

    Attributes
    ----------
    low, high : ndarray of shape (n_columns,), or None before the first row
        For a column without numbers, low is infinity and high is minus infinity.
    """

    def __init__(self, low: np.ndarray | None = None, high: np.ndarray | None = None) -> None:
        self.low, self.high = low, high

    def update(self, values: np.ndarray) -> Extremes:
        """Add rows of shape (n_rows, n_columns); return the accumulator."""
        if not len(values):
            return self
        if (missing := np.isnan(values)).any():
            low, high = np.where(missing, np.inf, values), np.where(missing, -np.inf, values)
            return self.merge(Extremes(low.min(axis=0), high.max(axis=0)))
        return self.merge(Extremes(values.min(axis=0), values.max(axis=0)))

    def merge(self, other: Extremes) -> Extremes:
        """Add the rows of another accumulator; return this one."""
        if other.low is None or other.high is None:
            return self
        if self.low is None or self.high is None:
            self.low, self.high = other.low, other.high
        else:
            self.low, self.high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return self

    @property
    def spread(self) -> np.ndarray:
        """The difference of the largest and the smallest number of each column."""
        assert self.low is not None
        assert self.high is not None
        return np.asarray(self.high - self.low)


class LabelCounts:
    """The distinct labels or categories of a column, and the total weight of the rows of each.

    Attributes
    ----------
    labels : ndarray
        The labels in ascending order, including labels that occur only in rows of weight zero.
    totals : ndarray
        The weight of each label.
    """

    def __init__(self) -> None:
        self.labels: np.ndarray = np.empty(0)
        self.totals: np.ndarray = np.empty(0)

    def update(self, labels: np.ndarray, weights: np.ndarray | None = None) -> LabelCounts:
        """Add a vector of labels, except NaN and None; return the accumulator."""
        block = LabelCounts()
        if labels.dtype == object:
            # Count with a dict, then sort the distinct labels: np.unique would sort all rows by comparisons in Python.
            totals: dict[Any, float] = {}
            if weights is None:
                totals.update(Counter(labels.tolist()))
            else:
                for label, weight in zip(labels.tolist(), weights.tolist(), strict=True):
                    totals[label] = totals.get(label, 0.0) + weight
            known = sorted(label for label in totals if label is not None and label == label)  # NaN differs from itself
            block.labels, block.totals = np.array(known, object), np.array([totals[label] for label in known], float)
        else:
            if labels.dtype.kind == "f":
                there = ~np.isnan(labels)
                labels = labels[there]
                weights = None if weights is None else weights[there]
            block.labels, places = np.unique(labels, return_inverse=True)
            block.totals = np.bincount(places, weights, minlength=len(block.labels)).astype(np.float64)
        return self.merge(block)

    def merge(self, other: LabelCounts) -> LabelCounts:
        """Add the rows of another accumulator; return this one."""
        if not len(self.labels):
            self.labels, self.totals = other.labels, other.totals
        elif len(other.labels):
            labels, places = np.unique(np.concatenate([self.labels, other.labels]), return_inverse=True)
            both = np.concatenate([self.totals, other.totals])
            self.labels, self.totals = labels, np.bincount(places.ravel(), both, minlength=len(labels))
        return self


class ColumnQuantiles:
    """Quantiles of each column: exact up to ``kept`` numbers, then those of a sketch whose error is bounded.

    The sketch has levels of at most ``kept`` numbers; a number on level i stands for 2**i numbers of the data. A full
    level is sorted, and every second number moves up a level: alternately the numbers at odd and at even positions.
    This changes the rank of any number by at most the weight of one number of the level, and :attr:`rank_error` adds
    up these changes. Nothing is random, so the same blocks give the same bits.

    For 1e8 numbers in blocks of 10,000, :attr:`rank_error` is 0.07 %, and the largest error that
    ``benchmarks/quantile_sketch.py`` finds is 0.01 %.

    References
    ----------
    Manku, Rajagopalan and Lindsay, "Approximate medians and other quantiles in one pass and with limited memory",
    SIGMOD 1998; Karnin, Lang and Liberty, "Optimal quantile approximation in streams", FOCS 2016.
    """

    def __init__(self, kept: int = KEPT_VALUES) -> None:
        if kept < 2:
            raise ValueError(f"A level keeps at least two numbers, got kept={kept}.")
        self._kept = kept
        self._columns: list[_Sketch] = []

    def update(self, values: np.ndarray) -> ColumnQuantiles:
        """Add rows of shape (n_rows, n_columns); return the accumulator."""
        block = ColumnQuantiles(self._kept)
        block._columns = [_Sketch(self._kept) for _ in range(values.shape[1])]
        for sketch, column in zip(block._columns, values.T, strict=True):
            missing = np.isnan(column)
            sketch.add(0, column[~missing] if missing.any() else column)
        return self.merge(block)

    def merge(self, other: ColumnQuantiles) -> ColumnQuantiles:
        """Add the rows of another accumulator; return this one."""
        if not other._columns:
            return self
        if not self._columns:
            self._columns = [_Sketch(self._kept) for _ in other._columns]
        for ours, theirs in zip(self._columns, other._columns, strict=True):
            for level, values in enumerate(theirs.levels):
                ours.add(level, values)
            ours.moved += theirs.moved
        return self

    def add_repeats(self, values: np.ndarray, counts: np.ndarray) -> ColumnQuantiles:
        """Add one number for each column, ``counts`` times, for example in place of missing numbers."""
        for sketch, value, count in zip(self._columns, values.tolist(), counts.tolist(), strict=True):
            if sketch.is_exact and sketch.count + count <= self._kept:
                sketch.add(0, np.full(count, value))
            else:  # add the number once to each level whose binary digit in the count is 1
                for level in range(int(count).bit_length()):
                    sketch.add(level, np.full(count >> level & 1, value))
        return self

    @property
    def counts(self) -> np.ndarray:
        """Numbers in each column."""
        return np.array([sketch.count for sketch in self._columns])

    @property
    def rank_error(self) -> np.ndarray:
        """The largest error of the rank of a quantile, as a share of the numbers of the column; 0 if it is exact."""
        steps = [0 if one.is_exact else one.moved + (1 << len(one.levels) - 1) for one in self._columns]
        return np.asarray(np.array(steps) / np.maximum(self.counts, 1))

    def at(self, shares: np.ndarray) -> np.ndarray:
        """Return the quantiles at ``shares`` in [0, 1], of shape (n_shares, n_columns); NaN for an empty column."""
        return np.stack([sketch.at(np.asarray(shares, np.float64)) for sketch in self._columns], axis=1)

    def distinct(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the distinct numbers of each column in ascending order, and how often each occurs.

        For a sketch, these are the numbers that it holds, and the error of a count is up to twice :attr:`rank_error`.
        """
        return [sketch.distinct() for sketch in self._columns]


def exact_quantiles(values: np.ndarray) -> ColumnQuantiles:
    """Return the quantiles of an array of shape (n_rows, n_columns), all of whose numbers are kept."""
    return ColumnQuantiles(max(len(values), KEPT_VALUES)).update(values)


class _Sketch:
    """The quantile sketch of one column: a number in ``levels[i]`` stands for 2**i numbers of the data."""

    def __init__(self, kept: int) -> None:
        self._kept, self.moved = kept, 0
        self.levels: list[np.ndarray] = [np.empty(0)]
        self._takes_odd: list[bool] = [False]

    @property
    def is_exact(self) -> bool:
        return len(self.levels) == 1

    @property
    def count(self) -> int:
        return sum(len(values) << level for level, values in enumerate(self.levels))

    def add(self, level: int, values: np.ndarray) -> None:
        """Add numbers to a level, and halve it if it is full."""
        if not len(values):
            return
        while len(self.levels) <= level:
            self.levels.append(np.empty(0))
            self._takes_odd.append(False)
        held = self.levels[level]
        self.levels[level] = values.astype(np.float64) if not len(held) else np.concatenate([held, values])
        while len(self.levels[level]) > self._kept:
            # Halve the whole level at once, however long it is, to sort once and to add the rounding of ranks once.
            full = np.sort(self.levels[level])
            odd = len(full) % 2  # if the number of values is odd, the largest value stays
            self.levels[level], full = full[len(full) - odd :], full[: len(full) - odd]
            self.moved += 1 << level
            half = full[int(self._takes_odd[level]) :: 2]
            self._takes_odd[level] = not self._takes_odd[level]
            self.add(level + 1, half)

    def at(self, shares: np.ndarray) -> np.ndarray:
        if not self.count:
            return np.full(len(shares), np.nan)
        if self.is_exact:
            return np.asarray(np.quantile(self.levels[0], shares))
        values, weights = self._weighted()
        order = np.argsort(values, kind="stable")
        # A number that stands for several gets the middle of their ranks. Ranks go from 0 to count - 1.
        ranks = np.cumsum(weights[order]) - (weights[order] + 1) / 2
        return np.asarray(np.interp(shares * (self.count - 1), ranks, values[order]))

    def distinct(self) -> tuple[np.ndarray, np.ndarray]:
        if self.is_exact:
            return np.unique(self.levels[0], return_counts=True)
        values, weights = self._weighted()
        found, places = np.unique(values, return_inverse=True)
        return found, np.bincount(places, weights).astype(np.int64)

    def _weighted(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the kept numbers of all levels, and how many numbers each stands for."""
        weights = [np.full(len(held), 1 << level) for level, held in enumerate(self.levels)]
        return np.concatenate(self.levels), np.concatenate(weights)

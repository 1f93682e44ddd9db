"""Statistics that merge: the results of NumPy for one array, and those of all rows for blocks in any number."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.utils.class_weight import compute_class_weight

from onnxtrain_sklearn._data.row_weights import balanced_weights
from onnxtrain_sklearn._data.statistics import ColumnQuantiles, Extremes, LabelCounts, Moments, exact_quantiles

RNG = np.random.default_rng(0)
BORDERS = (0, 1, 1, 40, 700, 999)
"""Blocks of one row, of none, and of many."""


def blocks(*arrays):
    ends = [*BORDERS, len(arrays[0])]
    for start, stop in itertools.pairwise(ends):
        yield tuple(None if array is None else array[start:stop] for array in arrays)


def updated(made, *arrays):
    """The statistics of all blocks, one after the other."""
    statistics = made()
    for block in blocks(*arrays):
        statistics.update(*block)
    return statistics


def merged(made, *arrays):
    """The statistics of all blocks, each by itself, merged in pairs."""
    parts = [made().update(*block) for block in blocks(*arrays)]
    while len(parts) > 1:
        parts = [parts[i].merge(parts[i + 1]) if i + 1 < len(parts) else parts[i] for i in range(0, len(parts), 2)]
    return parts[0]


each_way = pytest.mark.parametrize("join", [updated, merged])


def exact_moments(values, weights=None):
    """Mean and standard deviation of each column in fractions, which round nothing."""
    found = []
    for column in values.T:
        own = np.ones(len(column)) if weights is None else weights
        pairs = zip(column.tolist(), own.tolist(), strict=True)
        rows = [(Fraction(v), Fraction(w)) for v, w in pairs if not math.isnan(v)]
        total = sum(w for _, w in rows)
        mean = sum(v * w for v, w in rows) / total
        variance = sum(w * (v - mean) ** 2 for v, w in rows) / total
        found.append((float(mean), math.sqrt(variance)))
    return np.array(found).T


NORMAL = RNG.normal(size=(1000, 3))
MISSING = np.where(RNG.uniform(size=(1000, 3)) < 0.3, np.nan, NORMAL)
MISSING[:700, 1] = np.nan  # whole blocks without a number
WEIGHTS = RNG.integers(0, 4, 1000).astype(float)
WEIGHTS[40:700] = 0.0  # a whole block of weight zero
COLUMNS = {
    "normal": NORMAL,
    "far from zero": NORMAL + np.array([1e9, -1e7, 1e6]),
    "large": NORMAL * np.array([1e100, 1e150, 1e-150]),
    "small": NORMAL * 1e-8,
    "sorted": np.sort(NORMAL, axis=0) * 1e3,
    "missing": MISSING,
    "missing, far from zero": MISSING + 1e6,
    "zeros": np.zeros((1000, 3)),
}


@each_way
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["", "weighted"])
@pytest.mark.parametrize("name", COLUMNS)
def test_merged_moments_are_those_of_all_rows(name, weights, join):
    values = COLUMNS[name]
    found = join(lambda: Moments(scaled=True), values, weights)
    mean, deviation = exact_moments(values, weights)
    assert_allclose(found.mean, mean, rtol=1e-9, atol=1e-9 * np.abs(deviation).max())
    assert_allclose(found.deviation, deviation, rtol=1e-6)
    if name != "large":
        plain = join(Moments, values, weights)
        assert_allclose(plain.deviation, deviation, rtol=1e-6)


@each_way
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["", "weighted"])
def test_merged_mean_squares_are_those_of_all_rows(weights, join):
    found = join(lambda: Moments(centered=False, scaled=True), NORMAL * 1e200 + 1e200, weights)
    expected = np.sqrt(np.average((NORMAL + 1) ** 2, axis=0, weights=weights)) * 1e200
    assert_allclose(found.deviation, expected, rtol=1e-9)
    assert_array_equal(found.mean, 0.0)


def test_moments_of_one_array_are_those_of_numpy_to_the_bit():
    found = Moments().update(NORMAL)
    assert_array_equal(found.mean, NORMAL.mean(axis=0))
    assert_array_equal(found.deviation, NORMAL.std(axis=0))
    weighted = Moments().update(NORMAL, WEIGHTS)
    assert_array_equal(weighted.mean, np.average(NORMAL, axis=0, weights=WEIGHTS))


@each_way
def test_constant_columns_are_detected(join):
    values = np.c_[np.full(1000, 0.1), np.full(1000, 1e9 + 0.1), 1e9 + 1e-3 * NORMAL[:, 0]]
    assert join(lambda: Moments(scaled=True), values).constant.tolist() == [True, True, False]


def test_moments_without_rows_have_no_weight():
    assert not Moments().update(np.empty((0, 3))).weight.any()
    assert not Moments().update(NORMAL, np.zeros(1000)).weight.any()


@each_way
@pytest.mark.parametrize("name", ["normal", "missing", "large"])
def test_merged_extremes_are_those_of_all_rows(name, join):
    found = join(Extremes, COLUMNS[name])
    assert_array_equal(found.low, np.nanmin(COLUMNS[name], axis=0))
    assert_array_equal(found.high, np.nanmax(COLUMNS[name], axis=0))


def test_extremes_of_a_column_without_numbers_are_empty():
    found = Extremes().update(np.full((3, 1), np.nan))
    assert found.low > found.high


LABELS = {
    "integers": RNG.integers(-3, 4, 1000),
    "text": np.array(["b", "a", "long", "ü"])[RNG.integers(0, 4, 1000)],
    "objects": np.array(["b", None, "a"], object)[RNG.integers(0, 3, 1000)],
    "numbers": np.array([0.5, np.nan, 7.0])[RNG.integers(0, 3, 1000)],
    "in one block": np.where(np.arange(1000) == 999, 8, RNG.integers(0, 2, 1000)),
    "truth": RNG.integers(0, 2, 1000).astype(bool),
}


@each_way
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["", "weighted"])
@pytest.mark.parametrize("name", LABELS)
def test_merged_labels_are_those_of_all_rows(name, weights, join):
    labels = LABELS[name]
    expected = {}
    for label, weight in zip(labels.tolist(), np.ones(1000) if weights is None else weights, strict=True):
        if label is not None and label == label:
            expected[label] = expected.get(label, 0.0) + weight
    found = join(LabelCounts, labels, weights)
    assert found.labels.tolist() == sorted(expected)
    assert found.totals.tolist() == [expected[label] for label in sorted(expected)]


@each_way
def test_merged_class_weights_are_those_of_sklearn(join):
    labels = LABELS["in one block"]
    found = join(LabelCounts, labels)
    expected = compute_class_weight("balanced", classes=found.labels, y=labels)
    assert_allclose(balanced_weights(found.totals, 1000.0), expected, rtol=1e-12)


SHARES = np.array([0, 0.01, 0.25, 0.5, 0.75, 0.999, 1])


@each_way
@pytest.mark.parametrize("name", ["normal", "missing", "sorted"])
def test_quantiles_are_exact_where_all_numbers_are_kept(name, join):
    found = join(ColumnQuantiles, COLUMNS[name])
    assert_array_equal(found.at(SHARES), np.nanquantile(COLUMNS[name], SHARES, axis=0))
    assert not found.rank_error.any()
    assert_array_equal(found.counts, (~np.isnan(COLUMNS[name])).sum(axis=0))


def test_quantiles_of_one_array_are_those_of_numpy_to_the_bit():
    assert_array_equal(ColumnQuantiles().update(NORMAL).at(SHARES), np.quantile(NORMAL, SHARES, axis=0))


STREAMS = {
    "random": RNG.permutation(200_000).astype(float),
    "ascending": np.arange(200_000.0),
    "descending": np.arange(200_000.0)[::-1],
    "from both ends": np.stack([np.arange(100_000.0), 199_999.0 - np.arange(100_000.0)], axis=1).ravel(),
}


@pytest.mark.parametrize("size", [37, 1000, 200_000])
@pytest.mark.parametrize("pairs", [False, True], ids=["updated", "merged"])
@pytest.mark.parametrize("name", STREAMS)
def test_ranks_of_sketched_quantiles_are_within_the_stated_error(name, pairs, size):
    """The numbers are their own ranks. The bound holds for any order, and is small."""
    values, shares = STREAMS[name][:, None], np.linspace(0, 1, 201)
    parts = [values[i : i + size] for i in range(0, len(values), size)]
    if pairs:
        halves = [ColumnQuantiles(512), ColumnQuantiles(512)]
        for i, part in enumerate(parts):
            halves[i % 2].update(part)
        found = halves[0].merge(halves[1])
    else:
        found = ColumnQuantiles(512)
        for part in parts:
            found.update(part)
    error = np.abs(found.at(shares)[:, 0] / 199_999 - shares).max()
    assert error <= found.rank_error[0] < 12 / 512
    assert found.counts == [200_000]


def test_sketch_keeps_a_few_numbers_of_many():
    found = ColumnQuantiles(512)
    for _ in range(100):
        found.update(RNG.normal(size=(5000, 1)))
    assert sum(map(len, found._columns[0].levels)) < 512 * 12
    assert_allclose(found.at(np.array([0.5])), 0.0, atol=0.02)


@pytest.mark.parametrize("count", [3, 5000])
def test_add_repeats_equals_filled_values(count):
    found = ColumnQuantiles(1024).update(NORMAL).add_repeats(np.full(3, 0.25), np.full(3, count))
    filled = np.concatenate([NORMAL, np.full((count, 3), 0.25)])
    assert_allclose(found.at(np.array([0.25, 0.5, 0.75])), np.quantile(filled, [0.25, 0.5, 0.75], axis=0), atol=0.02)
    assert_array_equal(found.counts, 1000 + count)


def test_quantiles_of_no_numbers_are_missing():
    assert np.isnan(ColumnQuantiles().update(np.full((3, 1), np.nan)).at(SHARES)).all()
    with pytest.raises(ValueError, match="at least two numbers"):
        ColumnQuantiles(1)


def test_same_blocks_give_the_same_sketch():
    one, other = (ColumnQuantiles(64).update(NORMAL).update(NORMAL[::-1]).at(SHARES) for _ in range(2))
    assert_array_equal(one, other)


@each_way
def test_distinct_numbers_are_counted_exactly_where_all_are_kept(join):
    values = np.where(RNG.uniform(size=(1000, 2)) < 0.2, np.nan, RNG.integers(0, 9, (1000, 2)))
    for (found, counts), column in zip(join(ColumnQuantiles, values).distinct(), values.T, strict=True):
        assert dict(zip(found.tolist(), counts.tolist(), strict=True)) == {
            value: int((column == value).sum()) for value in range(9)
        }


def test_counts_of_sketched_numbers_are_within_twice_the_rank_error():
    column = np.where(RNG.uniform(size=100_000) < 0.3, 0.5, RNG.normal(size=100_000))
    sketch = ColumnQuantiles(512)
    for part in np.split(column, 100):
        sketch.update(part[:, np.newaxis])
    ((found, counts),) = sketch.distinct()
    assert counts.sum() == 100_000
    error = abs(int(counts[found == 0.5][0]) - int((column == 0.5).sum())) / 100_000
    assert error <= 2 * sketch.rank_error[0] < 0.05


def test_exact_quantiles_keep_more_numbers_than_a_level_of_a_sketch():
    values = RNG.normal(size=(40_000, 1))
    found = exact_quantiles(values)
    assert_array_equal(found.at(SHARES), np.quantile(values, SHARES, axis=0))
    assert not found.rank_error.any()

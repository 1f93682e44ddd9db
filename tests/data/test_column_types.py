"""Types of columns in tables that are read in blocks: trained as arrays of the same numbers, or refused by name."""

from __future__ import annotations

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone

from onnxtrain_sklearn import Linear, OrtGradientClassifier, OrtGradientRegressor, RealMLPRegressor, RowBlocks

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

N = 64
rng = np.random.default_rng(0)
CENTS = rng.integers(1, 10_000, N)
PRICES = [Decimal(int(n)).scaleb(-2) for n in CENTS]
FLOATS = np.array([float(price) for price in PRICES])
X1, Y, W = rng.normal(size=N), rng.normal(size=N), rng.uniform(0.5, 2.0, N)

DECIMALS = {"decimal128": pa.decimal128(9, 2), "wide scale": pa.decimal128(38, 20), "decimal256": pa.decimal256(50, 3)}
SOURCES = {"in the buffer": 1000, "in blocks": N - 1}


def columns(**changed):
    """Return the columns x1, x2, y and w, of which some are changed."""
    return {"x1": X1, "x2": FLOATS / 100, "y": Y, "w": W} | changed


def written(path, **changed):
    pq.write_table(pa.table(columns(**changed)), path / "table.parquet", row_group_size=7)
    return path / "table.parquet"


def rows_of(path, buffer_rows=1000):
    return RowBlocks(path, "y", sample_weight="w", buffer_rows=buffer_rows)


def regressor(**settings):
    settings |= {"max_iter": 3, "batch_size": 16, "shuffle": False, "target_scaling": None, "random_state": 0}
    return OrtGradientRegressor(Linear(), **settings)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("kind", DECIMALS)
@pytest.mark.parametrize("name", ["x2", "y", "w"])
@pytest.mark.each(by=lambda name, kind, source: (name, source))
def test_decimals_train_to_the_bits_of_their_floats(name, kind, source, tmp_path):
    decimals = pa.array(PRICES, DECIMALS[kind])
    found = regressor().fit(rows_of(written(tmp_path, **{name: decimals}), SOURCES[source]))
    same = columns(**{name: FLOATS})
    expected = regressor().fit(pd.DataFrame({n: same[n] for n in ("x1", "x2")}), same["y"], same["w"])
    for key, weights in expected.weights_.items():
        assert_array_equal(found.weights_[key], weights)
    in_blocks = found.predict(written(tmp_path, **{name: decimals})).read_all()["prediction"].to_numpy()
    assert_array_equal(in_blocks, found.predict(pd.DataFrame({n: same[n] for n in ("x1", "x2")})))


@pytest.mark.parametrize("precision", [18, 38])
def test_decimals_are_the_nearest_float64(precision, tmp_path):
    numbers = [
        Decimal(int.from_bytes(rng.bytes(15), "little") % 10 ** int(rng.integers(1, precision + 1))).scaleb(-4)
        for _ in range(5000)
    ]
    array = pa.array(numbers, pa.decimal128(precision, 4))
    right = np.array([float(number) for number in numbers])
    assert (array.cast(pa.float64()).to_numpy() != right).any()  # Arrow's own conversion
    pq.write_table(pa.table({"x": array, "y": array}), tmp_path / "table.parquet")
    X, y, _ = RowBlocks(tmp_path / "table.parquet", "y").block(0)
    assert_array_equal(X["x"].to_numpy(), right)
    assert_array_equal(y, right)


def test_missing_decimals_are_missing_numbers(tmp_path):
    gaps = pa.array([None if i % 5 == 0 else price for i, price in enumerate(PRICES)], pa.decimal128(9, 2))
    with pytest.raises(ValueError, match="Input X contains NaN"):
        regressor().fit(rows_of(written(tmp_path, x2=gaps)))
    with pytest.raises(ValueError, match=r"Row group 0 of .*column 'y' has missing values"):
        regressor().fit(rows_of(written(tmp_path, y=gaps)))
    settings = {"n_ensembles": 1, "max_iter": 2, "hidden_layer_sizes": (4,), "random_state": 0}
    frame = pd.DataFrame({"x1": X1, "x2": [np.nan if i % 5 == 0 else x for i, x in enumerate(FLOATS)]})
    expected = RealMLPRegressor(**settings).fit(frame, Y)
    found = RealMLPRegressor(**settings).fit(RowBlocks(written(tmp_path, x2=gaps), "y", columns=["x1", "x2"]))
    assert_array_equal(found.predict(frame), expected.predict(frame))
    objects = frame.assign(x2=[None if i % 5 == 0 else price for i, price in enumerate(PRICES)])
    assert_array_equal(RealMLPRegressor(**settings).fit(objects, Y).predict(objects), expected.predict(frame))


def test_files_of_decimals_and_of_floats_are_refused(tmp_path):
    for name, column in (("0", pa.array(PRICES, pa.decimal128(9, 2))), ("1", FLOATS)):
        pq.write_table(pa.table(columns(x2=column)), tmp_path / f"{name}.parquet", row_group_size=7)
    with pytest.raises(ValueError, match=r"Column 'x2' is decimal128\(9, 2\) in .*, but double in .*1.parquet"):
        regressor().fit(rows_of(tmp_path))


NUMBERS = {
    "truth values": (CENTS % 2 == 1, CENTS % 2),
    "half-floats": ((CENTS % 50).astype(np.float16), CENTS % 50),
    "categories of numbers": (pa.array(CENTS % 3).dictionary_encode(), CENTS % 3),
    "unsigned integers": (np.uint64(2**53 + 1) + 2 * CENTS.astype(np.uint64), (2**53 + 1 + 2 * CENTS).astype(float)),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.filterwarnings("ignore:Column 'x2' of X holds")
def test_column_of_other_numbers_trains_as_floats(kind, source, tmp_path):
    column, numbers = NUMBERS[kind]
    # Lion takes steps of one length, whatever the gradients of large numbers.
    net = regressor(optimizer="lion" if kind == "unsigned integers" else "adamw")
    found = clone(net).fit(rows_of(written(tmp_path, x2=column), SOURCES[source]))
    expected = clone(net).fit(pd.DataFrame({"x1": X1, "x2": numbers.astype(np.float64)}), Y, W)
    for key, weights in expected.weights_.items():
        assert_array_equal(found.weights_[key], weights)


DAYS = [datetime.date(2020, 1, 1) + datetime.timedelta(int(n) % 400) for n in CENTS]
TIMES = {
    "dates": pa.array(DAYS),
    "timestamps": pa.array(pd.to_datetime(DAYS)),
    "timestamps of a zone": pa.array(pd.to_datetime(DAYS).tz_localize("UTC")),
    "durations": pa.array([datetime.timedelta(int(n)) for n in CENTS]),
    "times of a day": pa.array([datetime.time(int(n) % 24) for n in CENTS]),
}
OTHERS = {
    "structures": pa.array([{"a": float(x)} for x in X1]),
    "maps": pa.array([[("a", float(x))] for x in X1], pa.map_(pa.string(), pa.float64())),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", ["x2", "y", "w"])
@pytest.mark.parametrize("kind", [*TIMES, *OTHERS])
@pytest.mark.each(by=lambda kind, name, source: kind)
def test_times_and_structures_are_refused_by_name(kind, name, source, tmp_path):
    """A weight in nanoseconds would train without a word."""
    path = written(tmp_path, **{name: (TIMES | OTHERS)[kind]})
    holds = "times" if kind in TIMES else "(struct|map)"
    with pytest.raises(TypeError, match=rf"(Row group|Block) 0 of .*: column '{name}' holds {holds}"):
        regressor().fit(rows_of(path, SOURCES[source]))


LISTS = {
    "lists": pa.array([[float(x), 1.0] for x in X1]),
    "lists of one length": pa.array([[float(x), 1.0] for x in X1], pa.list_(pa.float64(), 2)),
}


@pytest.mark.parametrize("kind", LISTS)
def test_lists_are_refused_where_a_number_is_needed(kind, tmp_path):
    with pytest.raises(ValueError, match=r"Cells of X hold lists.*Make a column of each number"):
        regressor().fit(rows_of(written(tmp_path, x2=LISTS[kind])))
    with pytest.raises(ValueError, match=r"Cells of X hold lists.*Make a column of each number"):
        regressor().fit(pd.DataFrame({"x1": X1, "x2": LISTS[kind].to_pylist()}), Y)
    for name in ("y", "w"):
        with pytest.raises(TypeError, match=f"column '{name}' holds .*list.* name a column for each"):
            regressor().fit(rows_of(written(tmp_path, **{name: LISTS[kind]})))


def test_texts_are_no_weights_and_no_numbers(tmp_path):
    texts = pa.array([f"c{n % 3}" for n in CENTS])
    with pytest.raises(TypeError, match="column 'w' holds string, and weights are numbers"):
        regressor().fit(rows_of(written(tmp_path, w=texts)))
    for column in (texts, texts.dictionary_encode()):
        with pytest.raises(ValueError, match=r"could not convert string to float.* X holds text"):
            regressor().fit(rows_of(written(tmp_path, x2=column)))


@pytest.mark.parametrize(
    "weights",
    [pd.to_datetime(DAYS).to_numpy(), pd.Series(pd.to_datetime(DAYS)), DAYS],
    ids=["an array", "a series", "a list"],
)
def test_times_are_no_weights_in_memory(weights):
    with pytest.raises(TypeError, match="sample_weight holds times"):
        regressor().fit(X1[:, None], Y, weights)


def test_labels_that_the_file_cannot_hold_are_refused():
    """As int64, the type of labels in ONNX, they would be negative."""
    labels = (np.arange(N) % 2).astype(np.uint64)
    assert OrtGradientClassifier(Linear(), max_iter=1).fit(X1[:, None], labels).classes_.tolist() == [0, 1]
    with pytest.raises(ValueError, match="no labels above 9223372036854775807, and y holds 9223372036854775809"):
        OrtGradientClassifier(Linear(), max_iter=1).fit(X1[:, None], labels + np.uint64(2**63))

"""Columns of times: the numbers that the graph makes of them, against pandas, and recipes that learn them."""

from __future__ import annotations

import datetime
import pickle

import numpy as np
import onnx_ir as ir
import onnxruntime
import pandas as pd
import pytest
from sklearn.metrics import r2_score

from onnxtrain_sklearn import RealMLPClassifier, RealMLPRegressor, RowBlocks, TabMRegressor, load_training
from onnxtrain_sklearn._ir.protobuf import to_proto
from onnxtrain_sklearn._recipes.raw_table import read_table
from onnxtrain_sklearn._recipes.times import MISSING, PARTS, Calendar
from onnxtrain_sklearn.graph import GraphBuilder
from tests.helpers.environment import each_engine

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def instants(n=100_000):
    """Instants from 1700 to 2200, the ends of days, months, leap years and centuries among them."""
    bounds = pd.to_datetime(["1700-01-01", "2200-12-31"]).as_unit("ns").asi8
    drawn = np.random.RandomState(0).randint(*bounds, size=n, dtype=np.int64)
    days = [f"{year}-{day}" for year in (1700, 1800, 1900, 1904, 1969, 1970, 2000, 2023, 2024, 2100, 2200)
            for day in ("01-01", "02-28", "03-01", "12-31")] + ["1904-02-29", "2000-02-29", "2024-02-29"]  # fmt: skip
    edges = pd.to_datetime(days).as_unit("ns").asi8
    return np.concatenate([drawn, *(edges + shift for shift in (-1, 0, 1, 86_399_999_999_999))])


def graph_numbers(calendar, values):
    given = ir.val("at", ir.DataType.INT64, ("N", 1))
    op = GraphBuilder(ir.Graph([given], [], nodes=[], opset_imports={"": 18}, name="times"), constant_nodes=True)
    op.graph.outputs.append(calendar.emit(op, given))
    session = onnxruntime.InferenceSession(to_proto(ir.Model(op.graph, ir_version=8)).SerializeToString())
    return session.run(None, {"at": values.reshape(-1, 1)})[0]


def pandas_numbers(values, first):
    at = pd.Series(pd.to_datetime(values)).dt
    cycles = [(2 * np.pi * part / n) for part, n in ((at.month - 1, 12), (at.day_of_week, 7), (at.hour, 24))]
    elapsed = np.array([(int(one) - first) / (24 * 3600 * 10**9) for one in values])
    waves = [wave(angle) for angle in cycles for wave in (np.sin, np.cos)]
    return np.column_stack([elapsed, at.year, at.month, at.day_of_week, at.hour, *waves])


def test_numbers_are_those_of_pandas():
    values = instants()
    calendar = Calendar.fit(0, values)
    expected = pandas_numbers(values, int(values.min()))
    for found in (calendar.numbers(values), graph_numbers(calendar, values)):
        assert (found[:, 1:5] == expected[:, 1:5]).all()
        np.testing.assert_allclose(found[:, 0], expected[:, 0], rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(found[:, 5:], expected[:, 5:], rtol=0, atol=1e-7)


def test_seconds_count_in_the_time_since_the_first():
    start = pd.Timestamp("2024-02-28 23:59:58").value
    values = start + np.arange(5) * 10**9
    found = graph_numbers(Calendar.fit(0, values), values)[:, 0]
    np.testing.assert_allclose(found, np.arange(5) / 86400, rtol=1e-6)


def test_missing_instants_give_missing_numbers():
    values = np.array([MISSING, 0, MISSING])
    for calendar in (Calendar.fit(0, values), Calendar.fit(0, values[:1])):
        for found in (graph_numbers(calendar, values), calendar.numbers(values)):
            assert np.isnan(found[[0, 2]]).all()
            assert not np.isnan(found[1]).any()


def columns():
    """The same times, a missing one among them, in columns of all types, by name."""
    times = pd.Series(pd.to_datetime(["2024-02-29 23:30:00", None, "1999-12-31 00:00:01"]))
    found = {unit: times.astype(f"datetime64[{unit}]") for unit in ("s", "ms", "us", "ns")}
    found["zone"] = times.dt.tz_localize("UTC").dt.tz_convert("America/New_York")
    found["objects"] = pd.Series([None if one is pd.NaT else one.to_pydatetime() for one in times], dtype=object)
    aware = [None if one is None else one.replace(tzinfo=datetime.timezone.utc) for one in found["objects"]]
    found["aware objects"] = pd.Series(aware, dtype=object)
    return found


@pytest.mark.parametrize("kind", [*columns()])
def test_columns_of_pandas(kind):
    table = read_table(RealMLPRegressor(), pd.DataFrame({"at": columns()[kind]}), reset=True)
    assert table.columns[0].tolist() == columns()["ns"].astype("int64").tolist()


def test_columns_of_arrow_and_polars():
    pa, pl = pytest.importorskip("pyarrow"), pytest.importorskip("polars")
    expected = columns()["ns"].astype("int64").tolist()
    frame = pd.DataFrame({"at": columns()["us"], "zone": columns()["zone"]})
    tables = [pa.Table.from_pandas(frame), pl.from_pandas(frame), frame.convert_dtypes(dtype_backend="pyarrow")]
    for table in tables:
        found = read_table(RealMLPRegressor(), table, reset=True).columns
        assert [column.tolist() for column in found] == [expected, expected]
    dates = pl.DataFrame({"at": [datetime.date(2024, 2, 29), None]})
    for table in (dates, dates.to_arrow()):
        assert read_table(RealMLPRegressor(), table, reset=True).columns[0].tolist() == [1709164800 * 10**9, MISSING]


def sales(n=600):
    """A table whose target depends on the month and the hour, and on another column."""
    rng = np.random.RandomState(0)
    at = pd.to_datetime(rng.randint(1_500_000_000, 1_700_000_000, n), unit="s").as_unit("ns")
    frame = pd.DataFrame({"size": rng.randn(n).astype(np.float32), "at": at, "shop": rng.choice(["a", "b"], n)})
    return frame, 3.0 * np.cos(2 * np.pi * at.month / 12) + (at.hour > 12) + 0.3 * frame["size"].to_numpy()


def feeds(frame):
    arrays = {name: frame[[name]].to_numpy() for name in frame.columns}
    return arrays | {"at": frame["at"].to_numpy().astype("datetime64[ns]").astype(np.int64).reshape(-1, 1)}


@each_engine
@pytest.mark.parametrize("gaps", [False, True])
def test_recipe_learns_times_and_its_file_takes_nanoseconds(engine, gaps):
    frame, y = sales()
    if gaps:
        frame.loc[::7, "at"] = pd.NaT
    settings = {"engine": engine, "random_state": 0, "max_iter": 15}
    net = RealMLPRegressor("td-s", **settings).fit(frame, y)
    assert net.score(frame, y) > RealMLPRegressor("td-s", **settings).fit(frame.drop(columns="at"), y).score(
        frame.drop(columns="at"), y
    ) + (0.3 if gaps else 0.5)
    session = onnxruntime.InferenceSession(net.to_onnx().SerializeToString())
    assert {one.name: one.type for one in session.get_inputs()}["at"] == "tensor(int64)"
    (found,) = session.run(None, feeds(frame))
    np.testing.assert_array_equal(found.ravel(), net.predict(frame).astype(np.float32))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(net)).predict(frame), net.predict(frame))
    unseen = frame.assign(at=pd.NaT)
    assert np.isfinite(net.predict(unseen)).all()


@pytest.mark.long
def test_other_recipes_and_ensembles_take_times():
    frame, y = sales(200)
    labels = np.where(y > 0, "much", "little")
    net = RealMLPClassifier("td-s", n_ensembles=2, max_iter=10, random_state=0).fit(frame[["at"]], labels)
    assert net.predict_proba(frame[["at"]]).shape == (200, 2)
    tabm = TabMRegressor(n_members=2, hidden_layer_sizes=8, max_iter=5, random_state=0)
    tabm.fit(frame, y)
    assert np.isfinite(tabm.predict(frame)).all()


def test_gaps_of_times_have_one_column_of_codes():
    frame, y = sales(60)
    frame.loc[::7, "at"] = pd.NaT
    net = RealMLPRegressor("td-s", max_iter=1, random_state=0).fit(frame[["at"]], y)
    assert len(net._inputs.gaps) == 1
    assert len(net._inputs.numbers) == len(PARTS)


@pytest.mark.long
def test_exported_training_learns_times(tmp_path):
    frame, y = sales()
    RealMLPRegressor("td-s", max_iter=30, random_state=0).export_training(tmp_path / "sales", frame, y)
    training = load_training(tmp_path / "sales", random_state=0)
    for _ in range(30):
        training.partial_fit(frame, y)
    assert r2_score(y, training.predict(frame)) > 0.7  # without the times: 0.02


def test_skl2onnx_takes_times_as_int64():
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType

    frame, y = sales(100)
    net = RealMLPRegressor("td-s", max_iter=2, random_state=0).fit(frame, y)
    kinds = {"size": FloatTensorType, "at": Int64TensorType, "shop": StringTensorType}
    proto = to_onnx(net, initial_types=[(name, kind([None, 1])) for name, kind in kinds.items()], target_opset=18)
    found = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds(frame))[0]
    np.testing.assert_array_equal(found.ravel(), net.predict(frame).astype(np.float32))
    kinds["at"] = FloatTensorType
    with pytest.raises(Exception, match="'at' times in int64"):
        to_onnx(net, initial_types=[(name, kind([None, 1])) for name, kind in kinds.items()], target_opset=18)


FRAME, Y = sales(40)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda f: RealMLPRegressor().fit(FRAME.assign(at=FRAME["at"] - FRAME["at"].min()), Y), TypeError, "durations"),
        (
            lambda f: RealMLPRegressor().fit(FRAME.assign(at=np.array(["1500-01-01"] * 40, "M8[s]")), Y),
            ValueError,
            "'at' of X holds 1500-01-01.*reach from 1677",
        ),
        (
            lambda f: RealMLPRegressor(categorical_features=["at", "shop"]).fit(FRAME, Y),
            ValueError,
            "'at' of X, which holds times",
        ),
        (lambda f: f.predict(FRAME.assign(at=1.5)), ValueError, "'at' of X held times .* holds 1.5 now"),
        (lambda f: f.predict(FRAME.assign(at="2020")), ValueError, "'at' of X held times .* holds '2020' now"),
        (lambda f: f.predict(FRAME.assign(size=FRAME["at"])), ValueError, "'size' of X holds times"),
        (lambda f: f.predict(FRAME.assign(shop=FRAME["at"])), ValueError, "'shop' of X"),
        (
            lambda f: RealMLPRegressor().fit(FRAME.assign(at=pd.Series([datetime.time(1)] * 40)), Y),
            TypeError,
            "holds a time",
        ),
    ],
)
def test_unsuitable_times_are_refused(call, error, message):
    fitted = RealMLPRegressor("td-s", max_iter=1, random_state=0).fit(FRAME, Y)
    with pytest.raises(error, match=message):
        call(fitted)


def test_blocks_of_tables_refuse_times(tmp_path):
    FRAME.assign(y=Y).to_parquet(tmp_path / "sales.parquet", row_group_size=10)
    blocks = RowBlocks(str(tmp_path / "sales.parquet"), target="y", buffer_rows=20)
    with pytest.raises(TypeError, match="column 'at' holds times"):
        RealMLPRegressor("td-s", max_iter=1).fit(blocks)

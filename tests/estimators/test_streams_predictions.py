"""Predictions and scores of tables in blocks: those of arrays, in the order of the rows; errors that name the place."""

from __future__ import annotations

import gc

import numpy as np
import onnx.parser
import pytest
from scipy import sparse
from sklearn.datasets import make_classification, make_multilabel_classification, make_regression
from sklearn.exceptions import NotFittedError

from onnxtrain_sklearn import MLP, Inputs, Linear, OrtGradientClassifier, OrtGradientRegressor, RowBlocks
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.observed import nothing_left_open, predict_in_batches, predict_in_chunks

pa = pytest.importorskip("pyarrow")
ds = pytest.importorskip("pyarrow.dataset")
pq = pytest.importorskip("pyarrow.parquet")
pd = pytest.importorskip("pandas")

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
NAMES = [f"x{i}" for i in range(6)]
CHUNK = 512
ROWS = 2 * CHUNK + 277
"""Rows of three chunks, the last of which is small."""


def table(n=ROWS, labels=("a", "b", "c")):
    X, y = make_classification(n, 6, n_informative=4, n_classes=3, n_clusters_per_class=1, random_state=0)
    X = X.astype(np.float32)
    frame = pd.DataFrame(X, columns=NAMES).assign(x5=(10 * X[:, 5]).astype(np.int64))
    return frame, np.array(labels)[y], np.random.default_rng(0).uniform(0.5, 2, n)


def write(path, frame, rows=50):
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), path, row_group_size=rows)
    return path


@pytest.fixture(scope="module")
def classified(tmp_path_factory):
    """A file, its features, labels and weights, and a classifier."""
    frame, y, w = table()
    path = write(tmp_path_factory.mktemp("table") / "table.parquet", frame.assign(y=y, w=w)[["y", "w", *NAMES[::-1]]])
    return path, frame, y, w, OrtGradientClassifier(MLP((16,)), max_iter=2, tol=0, random_state=0).fit(frame, y)


@pytest.fixture
def small_batches(monkeypatch):
    """Make batches of a chunk of few rows, of which a table has several."""
    predict_in_chunks(monkeypatch, rows=CHUNK)
    predict_in_batches(monkeypatch, rows=CHUNK)


class Arrays:
    """A source of a user's own."""

    def __init__(self, *arrays, count=7, form=lambda X: X):
        self.parts = list(zip(*(np.array_split(array, count) for array in arrays), strict=True))
        self.form = form

    def __len__(self):
        return len(self.parts)

    def block(self, i):
        X, *others = self.parts[i]
        return (self.form(X), *others) if others else self.form(X)


def numbers_of(reader):
    """Return what a reader yields as an array of one row a row."""
    return np.stack([one.to_numpy() for one in reader.read_all().columns], axis=1).squeeze()


def query(path):
    return pytest.importorskip("duckdb").sql(f"select * from '{path}'")


SOURCES = {
    "path": lambda path: path,
    "text": str,
    "pattern": lambda path: str(path.parent / "*.parquet"),
    "folder": lambda path: path.parent,
    "list": lambda path: [str(path)],
    "data set": lambda path: ds.dataset(str(path)),
    "filtered data set": lambda path: ds.dataset(str(path)).filter(ds.field("w") > 0),
    "data set in memory": lambda path: ds.dataset(pq.read_table(path)),
    "lazy frame": lambda path: pytest.importorskip("polars", "1.34").scan_parquet(path),
    "relation": query,
    "function": lambda path: pq.read_table(path).to_reader,
    "reader": lambda path: pq.read_table(path).to_reader(),
    "blocks": lambda path: RowBlocks(path, "y", sample_weight="w"),
    "blocks without the target": lambda path: RowBlocks(path, "not there"),
    "copied blocks": lambda path: RowBlocks(query(path), "y", sample_weight="w", columns=NAMES),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function"])
def test_predictions_of_a_source_are_those_of_arrays(source, method, classified, small_batches):
    path, frame, _, _, estimator = classified
    reader = getattr(estimator, method)(source(path))
    assert isinstance(reader, pa.RecordBatchReader)
    assert reader.schema.names == (["prediction"] if method == "predict" else ["a", "b", "c"])
    expected = getattr(estimator, method)(frame)
    found = numbers_of(reader)
    assert found.dtype == expected.dtype or method == "predict"
    assert np.array_equal(found, expected)


def test_batches_have_the_bits_of_one_array_for_each_size(classified, small_batches, monkeypatch):
    path, frame, _, _, estimator = classified
    expected = estimator.predict_proba(frame)
    for size, n_batches in ((CHUNK // 8, 3), (2 * CHUNK, 2), (8 * CHUNK, 1)):
        predict_in_batches(monkeypatch, rows=size)
        batches = list(estimator.predict_proba(path))
        assert len(batches) == n_batches
        assert np.array_equal(np.concatenate([b.to_pandas().to_numpy() for b in batches]), expected)


def test_opened_blocks_predict_from_their_copy(classified):
    path, frame, _, _, estimator = classified
    runs = []
    rows = RowBlocks(lambda: runs.append(0) or pq.read_table(path).to_reader(), "y", sample_weight="w")
    with rows:
        assert rows.n_rows == ROWS
        assert np.array_equal(numbers_of(estimator.predict(rows)), estimator.predict(frame))
    assert len(runs) == 1


def test_files_of_other_columns_and_types_are_predicted_like_the_whole(classified, tmp_path):
    _, frame, y, _, estimator = classified
    write(tmp_path / "0.parquet", frame[:550])
    write(tmp_path / "1.parquet", frame[550:].assign(y=y[550:], x5=frame["x5"][550:].astype(float))[["y", *NAMES]])
    assert np.array_equal(numbers_of(estimator.predict_proba(tmp_path)), estimator.predict_proba(frame))
    frame.to_csv(tmp_path / "table.csv", index=False)
    found = numbers_of(estimator.predict(tmp_path / "table.csv"))
    assert np.array_equal(found, estimator.predict(pd.read_csv(tmp_path / "table.csv")))


def test_columns_in_the_names_of_folders_are_features(tmp_path):
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(900, 3)), columns=["a", "a.b", "c"])
    for year in (2023, 2024):
        (tmp_path / f"year={year}").mkdir()
        write(tmp_path / f"year={year}" / "table.parquet", frame.assign(y=year + frame["a"]), rows=200)
    names = ["a", "year", "a.b", "c"]
    estimator = OrtGradientRegressor(MLP((8,)), max_iter=2, tol=0, random_state=0)
    estimator.fit(RowBlocks(tmp_path, "y", columns=names))
    whole = pd.concat([frame.assign(year=year) for year in (2023, 2024)])[names]
    assert np.array_equal(numbers_of(estimator.predict(tmp_path)), estimator.predict(whole))
    expected = estimator.score(whole, whole["year"] + whole["a"])
    assert estimator.score(tmp_path, "y") == pytest.approx(expected, rel=1e-12)


def test_estimator_without_names_takes_all_columns(classified, tmp_path):
    _, frame, y, _, _ = classified
    estimator = OrtGradientClassifier(MLP((4,)), max_iter=1, tol=0).fit(frame.to_numpy(), y)
    path = write(tmp_path / "table.parquet", frame)
    with pytest.warns(UserWarning, match="X has feature names"):
        assert np.array_equal(numbers_of(estimator.predict(path)), estimator.predict(frame))
    path = write(tmp_path / "table.parquet", frame.assign(y=y))
    with pytest.warns(UserWarning, match="X has feature names"):
        assert np.array_equal(numbers_of(estimator.predict(RowBlocks(path, "y"))), estimator.predict(frame))


def columns_of(estimator, X, *targets):
    """Return by method the names of the columns, after a comparison with the arrays."""
    found = {}
    for method in ("predict", "predict_proba", "decision_function"):
        if hasattr(estimator, method):
            expected = getattr(estimator, method)(X)
            parts = expected if isinstance(expected, list) else [expected]
            flat = np.concatenate([one.reshape(len(X), -1) for one in parts], axis=1)
            read = getattr(estimator, method)(Arrays(X, *targets)).read_all()
            for column, one in zip(read.columns, flat.T, strict=True):
                assert np.array_equal(column.to_numpy(), one)
            found[method] = read.column_names
    return found


def test_columns_are_named_by_labels():
    X, y = make_classification(300, 6, random_state=0)
    X = X.astype(np.float32)
    short = {"max_iter": 1, "tol": 0, "random_state": 0}
    flags = OrtGradientClassifier(MLP((4,)), **short).fit(X, y == 1)
    assert columns_of(flags, X) == {
        "predict": ["prediction"],
        "predict_proba": ["False", "True"],
        "decision_function": ["True"],
    }
    margins = OrtGradientClassifier(MLP((4,)), loss="hinge", **short).fit(X, np.array(["no", "yes"])[y])
    assert columns_of(margins, X, y) == {"predict": ["prediction"], "decision_function": ["yes"]}
    several = OrtGradientClassifier(MLP((4,)), **short).fit(X, np.stack([y, 1 - y], axis=1))
    assert columns_of(several, X) == {
        "predict": ["prediction_0", "prediction_1"],
        "predict_proba": ["0", "1"],
        "decision_function": ["0", "1"],
    }
    colors = np.stack([np.array(["red", "blue"])[y], np.array(["p", "q", "r"])[np.arange(300) % 3]], axis=1)
    mixed = OrtGradientClassifier(MLP((4,)), **short).fit(X, colors)
    assert columns_of(mixed, X, colors) == {
        "predict": ["prediction_0", "prediction_1"],
        "predict_proba": ["0_blue", "0_red", "1_p", "1_q", "1_r"],
        "decision_function": ["0_red", "1_p", "1_q", "1_r"],
    }
    numbers = OrtGradientRegressor(MLP((4,)), **short).fit(X, X[:, :2])
    assert columns_of(numbers, X, X[:, :2]) == {"predict": ["prediction_0", "prediction_1"]}
    one = OrtGradientRegressor(MLP((4,)), **short).fit(X, X[:, 0])
    assert columns_of(one, X, X[:, 0]) == {"predict": ["prediction"]}


def test_labels_at_positions_are_numbered():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> net (float[N,4,3] X) => (float[N,4,2] scores) '
        "{ scores = MatMul(X, A) }"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((3, 2), np.float32), "A"))
    X = np.random.default_rng(0).normal(size=(60, 4, 3)).astype(np.float32)
    y = np.array(["n", "y"])[(X[:, :, 0] > 0).astype(int)]
    estimator = OrtGradientClassifier(model, max_iter=2, tol=0).fit(X, y)
    names = columns_of(estimator, X, y)
    assert names["predict"] == [f"prediction_{i}" for i in range(4)]
    assert names["predict_proba"] == [f"{i}_{label}" for i in range(4) for label in "ny"]
    assert names["decision_function"] == [f"{i}_y" for i in range(4)]
    y[:30, 1] = "?"
    estimator.set_params(ignore_label="?")
    assert estimator.score(Arrays(X, y)) == pytest.approx(estimator.score(X, y), rel=1e-15)


@pytest.mark.parametrize("form", [sparse.csr_matrix, np.ndarray.tolist, pd.DataFrame])
def test_own_source_of_other_features_is_predicted(form, small_batches):
    X, y = make_regression(ROWS, 6, random_state=0)
    estimator = OrtGradientRegressor(Linear(), max_iter=1, tol=0).fit(form(X), y)
    expected = estimator.predict(form(X))
    for source in (Arrays(X, form=form), Arrays(X, y, form=form)):
        assert np.array_equal(numbers_of(estimator.predict(source)), expected)
    assert estimator.score(Arrays(X, y, form=form)) == pytest.approx(estimator.score(form(X), y), rel=1e-12)


@pytest.mark.parametrize("form", [dict, Inputs])
def test_own_source_of_several_inputs_is_predicted(form):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> net (float[N,4] left, float[N,2] right) => (float[N,1] z) '
        "{ a = MatMul(left, A) b = MatMul(right, B) z = Add(a, b) }"
    )
    for name, rows in (("A", 4), ("B", 2)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((rows, 1), np.float32), name))
    X, y = make_regression(500, 6, random_state=0)

    def inputs(X):
        return form({"left": X[:, :4], "right": X[:, 4:]})

    estimator = OrtGradientRegressor(model, max_iter=1, tol=0).fit(inputs(X), y)
    expected = estimator.predict(inputs(X))
    assert np.array_equal(numbers_of(estimator.predict(Arrays(X, y, form=inputs))), expected)
    assert estimator.score(Arrays(X, y, form=inputs)) == pytest.approx(estimator.score(inputs(X), y), rel=1e-12)


# Scores.


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_accuracy_of_a_source_is_that_of_arrays(source, classified, small_batches):
    path, frame, y, w, estimator = classified
    given = source(path)
    if isinstance(given, RowBlocks):
        if given.target == "y":
            assert estimator.score(given) == pytest.approx(estimator.score(frame, y, w), rel=1e-12)
        return
    assert estimator.score(given, y="y") == estimator.score(frame, y)
    assert estimator.score(source(path), "y", "w") == pytest.approx(estimator.score(frame, y, w), rel=1e-12)


def test_accuracy_leaves_out_ignored_labels(classified, small_batches, tmp_path):
    _, frame, y, w, estimator = classified
    y = np.where((np.arange(ROWS) < 550) | (np.arange(ROWS) % 5 == 0), "?", y)  # all of the first batch
    path = write(tmp_path / "table.parquet", frame.assign(y=y, w=w))
    estimator.set_params(ignore_label="?")
    assert estimator.score(path, "y") == estimator.score(frame, y)
    assert estimator.score(path, "y", "w") == pytest.approx(estimator.score(frame, y, w), rel=1e-12)
    estimator.set_params(ignore_label=-100)


def test_accuracy_of_several_labels_counts_rows_that_are_all_right(small_batches, tmp_path):
    X, y = make_multilabel_classification(ROWS, 6, n_classes=2, random_state=0)
    frame = pd.DataFrame(X, columns=NAMES)
    estimator = OrtGradientClassifier(MLP((8,)), max_iter=2, tol=0, random_state=0).fit(frame, y)
    path = write(tmp_path / "table.parquet", frame.assign(s=y[:, 0], t=y[:, 1]))
    assert 0 < estimator.score(path, ["s", "t"]) == estimator.score(frame, y) < 1


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_r2_of_a_source_is_that_of_arrays(offset, small_batches, tmp_path):
    X, y = make_regression(ROWS, 6, n_targets=2, noise=30, random_state=0)
    frame, w, y = pd.DataFrame(X, columns=NAMES), np.arange(ROWS) % 3 / 2, y + offset
    path = write(tmp_path / "table.parquet", frame.assign(s=y[:, 0], t=y[:, 1], w=w, one=3.0))
    for names, targets in (("s", y[:, 0]), (["s", "t"], y), ("one", np.full(ROWS, 3.0))):
        estimator = OrtGradientRegressor(Linear(), max_iter=2, tol=0, random_state=0).fit(frame, targets)
        for weights, column in ((None, None), (w, "w")):
            expected = estimator.score(frame, targets, weights)
            assert estimator.score(path, names, column) == pytest.approx(expected, rel=1e-10, abs=1e-10)
    fitted = OrtGradientRegressor(Linear(), max_iter=4, learning_rate_init=0.1, tol=0, random_state=0).fit(path, "t")
    assert 0.3 < fitted.score(path, "t") < 1


def test_r2_of_maps_is_that_of_arrays():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> net (float[N,2,3] X) => (float[N,2,3] z) { z = Mul(X, A) }'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.full((2, 3), 0.8, np.float32), "A"))
    X = np.random.default_rng(0).normal(size=(600, 2, 3)).astype(np.float32) * [1, 2, 30]
    estimator = OrtGradientRegressor(model, max_iter=1, tol=0).fit(X, X + 1)
    assert estimator.score(Arrays(X, X + 1)) == pytest.approx(estimator.score(X, X + 1), rel=1e-6)


# Memory, files and threads.


@pytest.mark.slow
def test_predictions_of_a_large_table_need_few_blocks_of_memory(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(1_500_000, 6)), columns=NAMES)
    estimator = OrtGradientRegressor(Linear(), max_iter=1, tol=0).fit(frame[:1000], frame["x0"][:1000])
    path, whole = write(tmp_path / "table.parquet", frame, rows=1_500_000), frame.size * 8
    del frame
    before = pa.total_allocated_bytes()
    allocated = [pa.total_allocated_bytes() - before for _ in estimator.predict(path)]
    assert len(allocated) == 23
    assert max(allocated) < whole / 2


@pytest.mark.long
def test_abandoned_predictions_leave_no_file_open(classified, small_batches):
    path, _, _, _, estimator = classified
    list(estimator.predict(path))
    for read in (0, 1):
        with nothing_left_open():
            reader = estimator.predict(path)
            for _ in range(read):
                reader.read_next_batch()
            del reader
            gc.collect()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_bad_number_in_a_late_row_group_names_it(value, classified, small_batches, tmp_path):
    _, frame, y, _, estimator = classified
    frame = frame.copy()
    frame.loc[50 * 17 + 3, "x2"] = value
    path = write(tmp_path / "bad.parquet", frame.assign(y=y))
    with nothing_left_open():
        reader = estimator.predict(path)
        assert reader.read_next_batch().num_rows
        with pytest.raises(ValueError, match=r"^Row group 17 of .*bad\.parquet: .*Input X contains"):
            reader.read_all()
        with pytest.raises(ValueError, match=r"^Row group 17 of .*bad\.parquet: .*Input X contains"):
            estimator.score(path, "y")
        with pytest.raises(ValueError, match=r"^Block 4: .*Input X contains"):
            estimator.predict(Arrays(frame.to_numpy(), form=lambda X: pd.DataFrame(X, columns=NAMES))).read_all()
        with pytest.raises(ValueError, match=r"^Rows 0 to \d+ of a \w+: .*Input X contains"):
            estimator.predict(pa.Table.from_pandas(frame[50 * 17 :]).to_reader)
        del reader


def test_missing_targets_of_a_score_name_their_row_group(classified, tmp_path):
    _, frame, y, _, estimator = classified
    path = write(tmp_path / "table.parquet", frame.assign(y=np.where(np.arange(ROWS) == 575, None, y)))
    with pytest.raises(ValueError, match=r"^Row group 11 of .*table\.parquet: column 'y' has missing values"):
        estimator.score(path, "y")


def test_file_that_changes_between_batches_is_an_error(classified, small_batches, tmp_path):
    _, frame, _, _, estimator = classified
    path = write(tmp_path / "table.parquet", frame)
    reader = estimator.predict(path)
    write(path, frame[::-1])
    with pytest.raises(ValueError, match=r"table\.parquet was changed"):
        reader.read_all()


def test_training_between_batches_is_an_error(classified, small_batches):
    path, frame, y, _, _ = classified
    estimator = OrtGradientClassifier(MLP((4,)), max_iter=1, tol=0).fit(frame, y)
    reader = estimator.predict(path)
    reader.read_next_batch()
    estimator.partial_fit(frame, y)
    with pytest.raises(RuntimeError, match="was trained while its predictions were read"):
        reader.read_all()


@pytest.mark.filterwarnings("ignore:Output 'z' of the graph for a row of X depends on the other rows")
def test_rows_that_meet_are_predicted_in_memory(tmp_path):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> net (float[N,6] X) => (float[N,1] z) '
        "{ m = ReduceMean <keepdims = 1> (X, axes) c = Sub(X, m) z = MatMul(c, A) }"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((6, 1), np.float32), "A"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), "axes"))
    X, y = make_regression(9000, 6, random_state=0)
    frame = pd.DataFrame(X, columns=NAMES)
    estimator = OrtGradientRegressor(model, max_iter=1, tol=0).fit(frame[:200], y[:200])
    small, large = write(tmp_path / "small.parquet", frame[:500]), write(tmp_path / "large.parquet", frame)
    assert np.array_equal(numbers_of(estimator.predict(small)), estimator.predict(frame[:500]))
    with pytest.raises(ModelError, match=r"depends on the rows that are predicted with it \(at .*ReduceMean"):
        estimator.predict(large)


REFUSED = {
    "missing file": (lambda path: (f"{path}x",), FileNotFoundError, "No file"),
    "missing column": (
        lambda path: (write(path, pd.DataFrame({"x0": [1.0], "y": ["a"]})),),
        ValueError,
        "no column 'x1'",
    ),
    "no rows": (lambda path: (write(path, table(9)[0][:0]),), ValueError, "no rows"),
    "no table": (lambda path: (lambda: [1, 2],), TypeError, "A source is a path"),
}


@pytest.mark.parametrize(("source", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_unusable_sources_are_errors_of_the_call(source, error, message, classified, tmp_path):
    with pytest.raises(error, match=message):
        classified[-1].predict(*source(tmp_path / "table.parquet"))


def test_unusable_calls_of_score_are_refused(classified):
    path, frame, y, _, estimator = classified
    for arguments, error, message in (
        ((path,), TypeError, "y must name the target column"),
        ((path, y), TypeError, "y must name the target column"),
        ((path, "x0"), ValueError, "'x0' is a feature"),
        ((path, "z"), ValueError, "no column 'z'"),
        ((RowBlocks(path, "y"), "y"), ValueError, "give it alone"),
        ((frame,), ValueError, "requires y"),
    ):
        with pytest.raises(error, match=message):
            estimator.score(*arguments)
    for call in (OrtGradientClassifier().predict, OrtGradientClassifier().predict_proba, OrtGradientClassifier().score):
        with pytest.raises(NotFittedError):
            call(path)
    # Text that is no name of a table stays data.
    estimator = OrtGradientClassifier(Linear(), max_iter=1, tol=0).fit(frame.to_numpy(), y)
    with pytest.raises(ValueError, match="Expected 2D array"):
        estimator.predict(["a", "b"])


# Other libraries read the batches.


def test_predictions_are_written_in_order(classified, small_batches, tmp_path):
    path, frame, _, _, estimator = classified
    predictions = estimator.predict_proba(path)
    with pq.ParquetWriter(tmp_path / "predicted.parquet", predictions.schema) as writer:
        for batch in predictions:
            writer.write_batch(batch)
    assert np.array_equal(pd.read_parquet(tmp_path / "predicted.parquet").to_numpy(), estimator.predict_proba(frame))
    ds.write_dataset(estimator.predict_proba(path), tmp_path / "folder", format="parquet")
    found = pd.read_parquet(tmp_path / "folder").sort_values(["a", "b"]).to_numpy()  # in any order
    expected = pd.DataFrame(estimator.predict_proba(frame), columns=[*"abc"]).sort_values(["a", "b"]).to_numpy()
    assert np.array_equal(found, expected)


@pytest.mark.long
def test_duckdb_and_polars_read_predictions(classified, small_batches):
    duckdb, pl = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    path, frame, _, _, estimator = classified
    predicted = estimator.predict(path)  # noqa: F841  # the query names it
    counts = dict(duckdb.sql("select prediction, count(*) from predicted group by 1").fetchall())
    labels, expected = np.unique(estimator.predict(frame), return_counts=True)
    assert counts == dict(zip(labels.tolist(), expected.tolist(), strict=True))
    found = pl.from_arrow(estimator.predict_proba(path)).to_numpy()
    assert np.array_equal(found, estimator.predict_proba(frame))

"""Fits to tables in blocks: the numbers of arrays where both see the same rows, and errors that name the block."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import onnx
import onnx.parser
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import make_classification, make_regression
from sklearn.metrics import mean_pinball_loss
from sklearn.utils.class_weight import compute_class_weight

from onnxtrain_sklearn import (
    MLP,
    FineTuner,
    Inputs,
    OrtGradientClassifier,
    OrtGradientRegressor,
    RealMLPClassifier,
    RowBlocks,
    callbacks,
)
from onnxtrain_sklearn.losses import Quantile
from tests.helpers.environment import OWN_MEMORY, available_engines, each_engine
from tests.helpers.graphs import model
from tests.helpers.observed import nothing_left_open, prepare_on_sample, trained_on_device
from tests.helpers.selection import one_case
from tests.helpers.training import quietly

pa = pytest.importorskip("pyarrow")
ds = pytest.importorskip("pyarrow.dataset")
pq = pytest.importorskip("pyarrow.parquet")
pd = pytest.importorskip("pandas")

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
NAMES = [f"x{i}" for i in range(6)]


def labels(n=600, **options):
    X, y = make_classification(n, 6, n_informative=4, n_classes=3, n_clusters_per_class=1, random_state=0, **options)
    return X.astype(np.float32), y


def numbers(n=600):
    X, y = make_regression(n, 6, noise=1.0, random_state=0)
    return X.astype(np.float32), 100 + 10 * y


def write(path, X, y, rows=25, **columns):
    frame = pd.DataFrame(X, columns=NAMES).assign(y=y, **columns)
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), path, row_group_size=rows)
    return path


def classifier(**options):
    return OrtGradientClassifier(MLP((8,)), **{"max_iter": 3, "random_state": 0, "tol": 0} | options)


def regressor(**options):
    return OrtGradientRegressor(MLP((8,)), **{"max_iter": 3, "random_state": 0, "tol": 0} | options)


def same_bits(one, other):
    assert one.weights_.keys() == other.weights_.keys()
    return all(np.array_equal(one.weights_[name], other.weights_[name]) for name in one.weights_)


class Arrays:
    """A source of a user's own: parts of arrays."""

    def __init__(self, *arrays, count, buffer_rows):
        self.parts = list(zip(*(np.array_split(array, count) for array in arrays), strict=True))
        self.buffer_rows = buffer_rows

    def __len__(self):
        return len(self.parts)

    def block(self, i):
        return self.parts[i]


SOURCES = {
    "path": lambda path: path,
    "pattern": lambda path: str(path.parent / "*.parquet"),
    "folder": lambda path: path.parent,
    "list": lambda path: [path],
    "data set": lambda path: ds.dataset(str(path)),
    "lazy frame": lambda path: pytest.importorskip("polars", "1.34").scan_parquet(path),
    "relation": lambda path: pytest.importorskip("duckdb").sql(f"select * from '{path}'"),
    "reader": lambda path: pq.read_table(path).to_reader,
}


@each_engine
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_rows_that_fit_into_the_buffer_train_to_the_bits_of_arrays(source, engine, tmp_path):
    X, y = labels()
    path = write(tmp_path / "table.parquet", X, y)
    expected = classifier(engine=engine).fit(pd.DataFrame(X, columns=NAMES), y)
    found = classifier(engine=engine).fit(source(path), y="y")
    assert same_bits(found, expected)
    assert list(found.feature_names_in_) == NAMES


@each_engine
def test_streamed_rows_train_to_the_bits_of_arrays_if_the_order_is_kept(engine, tmp_path):
    # Without shuffling, the minibatches of blocks are those of the whole table.
    X, y = labels()
    path, weights = tmp_path / "table.parquet", np.linspace(0.5, 2.0, len(X))
    write(path, X, y, w=weights)
    expected = classifier(engine=engine, shuffle=False).fit(pd.DataFrame(X, columns=NAMES), y, weights)
    rows = RowBlocks(path, "y", sample_weight="w", buffer_rows=200)
    assert same_bits(classifier(engine=engine, shuffle=False).fit(rows), expected)


def test_seed_determines_the_bits_of_a_stream_and_prefetch_does_not(tmp_path):
    X, y = labels()
    path = write(tmp_path / "table.parquet", X, y)
    fits = [classifier().fit(RowBlocks(path, "y", buffer_rows=200, prefetch=n)) for n in (0, 3)]
    assert same_bits(*fits)
    other = classifier(random_state=1).fit(RowBlocks(path, "y", buffer_rows=200))
    assert not same_bits(fits[0], other)


def test_targets_of_a_stream_are_scaled_by_the_statistics_of_all_rows(tmp_path):
    # No sample of sorted targets has exactly their mean. Before the first step, a network predicts about the mean.
    X, y = numbers()
    order = np.argsort(y)
    X, y = X[order], y[order]
    path = write(tmp_path / "table.parquet", X, y)
    expected = regressor().initialize(pd.DataFrame(X, columns=NAMES), y)
    found = regressor().initialize(RowBlocks(path, "y", buffer_rows=200))
    frame = pd.DataFrame(X, columns=NAMES)
    np.testing.assert_allclose(found.predict(frame), expected.predict(frame), rtol=1e-5)
    clipped = regressor(clip_predictions=True, max_iter=1).fit(RowBlocks(path, "y", buffer_rows=200))
    assert clipped.predict(1e4 * frame).max() == np.float32(y.max())


@pytest.mark.long
def test_balanced_weights_of_a_stream_are_those_of_all_rows(tmp_path):
    X, y = labels(weights=[0.7, 0.2, 0.1])
    order = np.argsort(y, kind="stable")
    path = write(tmp_path / "table.parquet", X[order], y[order])
    weights = dict(zip(range(3), compute_class_weight("balanced", classes=np.arange(3), y=y), strict=True))
    expected = classifier(class_weight=weights).fit(RowBlocks(path, "y", buffer_rows=200))
    assert same_bits(classifier(class_weight="balanced").fit(RowBlocks(path, "y", buffer_rows=200)), expected)


@one_case
@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("kind", ["indicators", "texts"])
@pytest.mark.long
def test_balanced_weights_of_several_labels_are_those_of_all_rows(kind, engine, tmp_path):
    X, y = labels(weights=[0.7, 0.2, 0.1])
    order = np.argsort(y, kind="stable")
    columns = {"first": (y == 1).astype(int), "second": (y == 2).astype(int)}
    if kind == "texts":
        columns = {"first": np.array(["no", "yes"])[columns["first"]], "second": np.array(["a", "b", "c"])[y]}
    others = {name: column[order] for name, column in columns.items()}
    path = write(tmp_path / "table.parquet", X[order], 1.0 + y[order], **others)
    rows = RowBlocks(path, list(columns), sample_weight="y", columns=NAMES, buffer_rows=200)
    # scikit-learn counts rows alike here, whatever their weights
    weights = []
    for column in columns.values():
        classes = np.unique(column)
        own = compute_class_weight("balanced", classes=classes, y=column)
        weights.append(dict(zip(classes.tolist(), own.tolist(), strict=True)))
    expected = classifier(class_weight=weights, engine=engine).fit(rows)
    assert same_bits(classifier(class_weight="balanced", engine=engine).fit(rows), expected)
    assert not same_bits(classifier(engine=engine).fit(rows), expected)


def test_classes_of_the_last_block_alone_are_learned(tmp_path):
    X, y = labels(1200)
    names = np.array(["a", "b", "c"], object)[y]
    order = np.argsort(y, kind="stable")
    path = write(tmp_path / "table.parquet", X[order], names[order], rows=50)
    fitted = classifier(max_iter=6, learning_rate_init=0.02, batch_size=50).fit(RowBlocks(path, "y", buffer_rows=400))
    assert fitted.classes_.tolist() == ["a", "b", "c"]
    assert fitted.score(pd.DataFrame(X, columns=NAMES), names) > 0.7
    # Labels that are given need not occur, and others are refused.
    wider = classifier(max_iter=1).fit(RowBlocks(path, "y", buffer_rows=400), classes=["a", "b", "c", "d"])
    assert wider.classes_.tolist() == ["a", "b", "c", "d"]
    with pytest.raises(
        ValueError, match=r"Row group \d+ of .*: y contains labels that are not among the classes: \['c'\]"
    ):
        classifier().fit(RowBlocks(path, "y", buffer_rows=400), classes=["a", "b"])


@pytest.mark.long
def test_table_sorted_by_target_trains_like_a_shuffled_one(tmp_path):
    X, y = labels(2000)
    frame, order = pd.DataFrame(X, columns=NAMES), np.argsort(y, kind="stable")
    scores = []
    for name, rows in (("shuffled", np.random.default_rng(0).permutation(len(y))), ("sorted", order)):
        path = write(tmp_path / f"{name}.parquet", X[rows], y[rows], rows=100)
        fitted = classifier(max_iter=8, learning_rate_init=0.01, batch_size=50).fit(
            RowBlocks(path, "y", buffer_rows=1000)
        )
        scores.append(fitted.score(frame, y))
    assert scores[0] > 0.85
    assert abs(scores[1] - scores[0]) < 0.01


def test_early_stopping_holds_out_whole_blocks(tmp_path):
    X, y = labels()
    path = write(tmp_path / "table.parquet", X, y)
    rows = RowBlocks(path, "y", buffer_rows=200, validation_split=0.25)
    read = []
    block = rows.block
    rows.block = lambda i: read.append(i) or block(i)
    fitted = classifier(early_stopping=True, max_iter=5, n_iter_no_change=10).fit(rows)
    assert len(fitted.history_) == 5
    assert all("validation_score" in epoch for epoch in fitted.history_)
    assert sorted(set(read)) == list(range(24))
    epochs = [i for i in set(read) if read.count(i) > 4]  # blocks that are trained on
    assert len(epochs) == 18
    again = classifier(early_stopping=True, max_iter=5, n_iter_no_change=10).fit(
        RowBlocks(path, "y", buffer_rows=200, validation_split=0.25)
    )
    assert same_bits(fitted, again)


def test_partial_fit_makes_one_pass_over_a_stream(tmp_path):
    X, y = labels()
    path = write(tmp_path / "table.parquet", X, y)
    rows = RowBlocks(path, "y", buffer_rows=200)
    expected = classifier(max_iter=1, alpha=0).fit(rows)
    found = classifier().partial_fit(rows, classes=range(3))
    assert same_bits(found, expected)
    assert found.t_ == expected.t_ == len(X)
    found.partial_fit(rows)
    assert found.t_ == 2 * expected.t_
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        classifier().partial_fit(rows)


@pytest.fixture
def small_sample(monkeypatch):
    """Prepare training on about 40 rows of few blocks, as it is on 32,768 of a large table."""
    prepare_on_sample(monkeypatch, rows=40, blocks=4)


ROWS_WITHOUT_WEIGHT = {
    "whole blocks": (lambda place, y: place >= 60, {}),
    "all rows at even places": (lambda place, y: place % 2 == 1, {}),
    "all rows but one block": (lambda place, y: place // 25 == 7, {}),
    "a class": (lambda place, y: place >= 0, {"class_weight": {0: 0, 1: 1, 2: 3}}),
    "balanced": (lambda place, y: place % 3 * (place >= 60), {"class_weight": "balanced"}),
    "ignored labels": (lambda place, y: place >= 0, {"ignore_label": 0}),
}


@pytest.mark.parametrize(("weigh", "options"), ROWS_WITHOUT_WEIGHT.values(), ids=ROWS_WITHOUT_WEIGHT)
def test_rows_without_weight_are_left_out_as_those_of_arrays(weigh, options, small_sample, tmp_path):
    X, y = labels(1200)
    order = np.argsort(y, kind="stable")  # whole blocks of a class
    X, y = X[order], y[order]
    weights = np.asarray(weigh(np.arange(len(y)), y), float)
    path = write(tmp_path / "table.parquet", X, y, w=weights)
    expected = classifier(shuffle=False, **options).fit(pd.DataFrame(X, columns=NAMES), y, weights)
    found = classifier(shuffle=False, **options).fit(RowBlocks(path, "y", sample_weight="w", buffer_rows=200))
    for name in expected.weights_:  # equal but for rounding: a single minibatch of arrays is sorted
        np.testing.assert_allclose(found.weights_[name], expected.weights_[name], rtol=1e-5, atol=1e-6)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.DataConversionWarning")
def test_ignored_labels_of_a_target_in_a_list_train_as_those_of_one_name(tmp_path):
    X, y = labels()
    path = write(tmp_path / "table.parquet", X, np.where(np.arange(len(y)) % 3 == 0, -1, y))
    fits = [classifier(ignore_label=-1).fit(RowBlocks(path, target, buffer_rows=200)) for target in ("y", ["y"])]
    assert same_bits(*fits)


def test_labels_of_held_out_blocks_have_no_part_in_balanced_weights(tmp_path):
    # Other labels in a block that is held out change neither the minibatches nor the weights of classes.
    X, y = labels(120)
    y[::4] = 2
    settings = {"class_weight": "balanced", "early_stopping": True, "max_iter": 1}

    def fit(labels_of_rows, name):
        path = write(tmp_path / name, X, labels_of_rows, rows=10)
        rows = RowBlocks(path, "y", buffer_rows=80, validation_split=0.25)
        return classifier(**settings).fit(rows)

    expected = fit(y, "given.parquet")
    unchanged = 0
    for i in range(12):
        other = y.copy()
        other[10 * i : 10 * (i + 1)] = 2
        unchanged += same_bits(fit(other, f"{i}.parquet"), expected)
    assert unchanged == 3


def test_early_stopping_holds_out_no_block_without_weight(tmp_path):
    X, y = numbers()
    weights = np.where(np.arange(len(y)) < 150, 1.0, 0.0)  # six of 24 blocks
    path = write(tmp_path / "table.parquet", X, y, w=weights)
    for seed in range(3):
        estimator = regressor(early_stopping=True, validation_split=0.05, random_state=seed, max_iter=1)
        estimator.fit(RowBlocks(path, "y", sample_weight="w", buffer_rows=200))
        assert np.isfinite(estimator.validation_scores_).all()
    write(path, X, y, w=np.zeros(len(y)))
    with pytest.raises(ValueError, match="All rows to train on have weight zero"):
        estimator.fit(RowBlocks(path, "y", sample_weight="w", buffer_rows=200))


def test_target_out_of_range_in_a_late_block_is_refused(small_sample, tmp_path):
    X, y = numbers()
    y[501] = 1e39
    with pytest.raises(ValueError, match="y contains a value too large for float32"):
        regressor().fit(RowBlocks(write(tmp_path / "table.parquet", X, y), "y", buffer_rows=200))


@pytest.mark.parametrize("buffer_rows", [300, 5000])
@pytest.mark.parametrize("form", [sparse.csr_matrix, sparse.csr_array, np.ndarray.tolist])
def test_own_source_of_other_features_trains_like_arrays(form, buffer_rows, small_sample):
    class Formed(Arrays):
        def block(self, i):
            X, y = self.parts[i]
            return (form(X), y, np.full(len(y), 2.0)) if i % 2 else (form(X), y)  # without weights, all are one

    X, y = numbers()
    weights = np.concatenate([np.full(50, 1.0 + i % 2) for i in range(12)])
    expected = regressor(shuffle=False).fit(form(X), y, weights)
    source = Formed(X, y, count=12, buffer_rows=buffer_rows)
    assert same_bits(regressor(shuffle=False).fit(source), expected)


def graph_of_two_inputs():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> net (float[N,4] left, float[N,2] right) => (float[N,1] z) '
        "{ a = MatMul(left, A) b = MatMul(right, B) z = Add(a, b) }"
    )
    for name, rows in (("A", 4), ("B", 2)):
        array = np.linspace(-0.1, 0.1, rows, dtype=np.float32)[:, np.newaxis]
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


@pytest.mark.parametrize("buffer_rows", [300, 5000])
@pytest.mark.parametrize("form", ["mapping", "inputs", "columns"])
def test_graph_of_several_inputs_trains_on_blocks(form, buffer_rows, small_sample, tmp_path):
    class Formed(Arrays):
        def block(self, i):
            left, right, y = self.parts[i]
            data = {"left": left, "right": right}
            return data if form == "mapping" else Inputs(data), y

    X, y = numbers()
    left, right, y = X[:, :4], X[:, 4:], y / 1000
    options = {"max_iter": 2, "random_state": 0, "shuffle": False, "tol": 0}
    expected = OrtGradientRegressor(graph_of_two_inputs(), **options).fit({"left": left, "right": right}, y)
    source = Formed(left, right, y, count=12, buffer_rows=buffer_rows)
    if form == "columns":
        names = [*(f"left_{i}" for i in range(4)), *(f"right_{i}" for i in range(2))]
        table = pa.Table.from_pandas(pd.DataFrame(X, columns=names).assign(y=y))
        pq.write_table(table, tmp_path / "table.parquet", row_group_size=30)
        source = RowBlocks(tmp_path / "table.parquet", "y", columns=names, buffer_rows=buffer_rows)
    assert same_bits(OrtGradientRegressor(graph_of_two_inputs(), **options).fit(source), expected)


def test_own_source_of_arrays_trains_like_a_table(tmp_path):
    X, y = labels()
    path = write(tmp_path / "table.parquet", X, y)
    expected = classifier().fit(RowBlocks(path, "y", buffer_rows=200))
    assert same_bits(classifier().fit(Arrays(X, y, count=24, buffer_rows=200)), expected)
    assert same_bits(classifier().fit(Arrays(X, y, count=24, buffer_rows=2000)), classifier().fit(X, y))
    with pytest.raises(TypeError, match=r"block\(0\) must return \(X, y\)"):
        classifier().fit(Arrays(X, count=24, buffer_rows=200))


def test_checkpoint_of_a_stream_goes_on_to_the_same_bits(tmp_path):
    X, y = labels()
    path = write(tmp_path / "table.parquet", X, y)

    class Failure(callbacks.Callback):
        steers = False

        def after_epoch(self, training):
            if training.epochs_done == 3:
                raise RuntimeError("power cut")

    rows = RowBlocks(path, "y", buffer_rows=200)
    expected = classifier(max_iter=5).fit(rows)
    saved = callbacks.Checkpoint(tmp_path / "saved")
    with pytest.raises(RuntimeError, match="power cut"):
        classifier(max_iter=5, callbacks=[saved, Failure()]).fit(rows)
    found = classifier(max_iter=5, callbacks=[callbacks.Checkpoint(tmp_path / "saved")]).fit(rows)
    assert same_bits(found, expected)


@pytest.mark.long
@pytest.mark.parametrize("change", ["number", "gap", "text", "none"])
def test_checkpoint_keeps_a_seed_for_each_of_tables_that_look_alike(change, tmp_path):
    """The seed belongs to all values of a table, where its printed form shows a few."""
    X, y = labels()
    columns = {"x": X[:, 0], "gap": np.where(np.arange(len(X)) % 7, X[:, 1], None), "text": y.astype(str)}
    other = {name: column.copy() for name, column in columns.items()}
    if change == "number":
        other["x"][417] += 1e-3
    elif change == "gap":  # a gap and the value beside it change places
        other["gap"][419:421] = other["gap"][419:421][::-1].copy()
    elif change == "text":
        other["text"][417] = "7"
    tables = [pa.table({name: pa.array(column) for name, column in one.items()}) for one in (columns, other)]
    assert repr(tables[0]) == repr(tables[1])
    assert (tables[0] == tables[1]) == (change == "none")

    class Blocks:
        buffer_rows = 200

        def __init__(self, table):
            self.table = table

        def __len__(self):
            return 12

        def block(self, i):
            return self.table.slice(50 * i, 50), y[50 * i : 50 * i + 50]

    for table in tables:
        net = RealMLPClassifier("td-s", max_iter=1, random_state=None, callbacks=[callbacks.Checkpoint(tmp_path)])
        net.fit(Blocks(table))
    assert len(list(tmp_path.glob("seed-*"))) == (1 if change == "none" else 2)


@pytest.mark.long
def test_device_with_memory_of_its_own_trains_on_a_stream(monkeypatch, tmp_path):
    path = write(tmp_path / "table.parquet", *labels())
    rows = RowBlocks(path, "y", buffer_rows=200, prefetch=1)
    expected = classifier(batch_size=32).fit(rows)
    monkeypatch.setitem(OWN_MEMORY, "CPUExecutionProvider", "cpu")
    found = classifier(batch_size=32).fit(rows)
    assert trained_on_device(found)
    for name, array in expected.weights_.items():
        np.testing.assert_allclose(found.weights_[name], array, rtol=1e-4, atol=1e-6)
    assert found.t_ == expected.t_


@pytest.mark.long
@one_case
@pytest.mark.parametrize("weighted", [False, True])
def test_checkpoint_within_an_epoch_of_a_stream_goes_on_to_the_same_bits(weighted, tmp_path):
    X, y = labels()
    weights = np.arange(len(y)) % 3
    path = write(tmp_path / "table.parquet", X, y, w=weights.astype(float))

    class Failure(callbacks.Callback):
        steers = False

        def __init__(self, step):
            self.step = step

        def after_step(self, training, loss):
            if training.step == self.step:
                raise RuntimeError("power cut")

    def fit(*others):
        rows = RowBlocks(path, "y", sample_weight="w" if weighted else None, columns=NAMES, buffer_rows=200, prefetch=1)
        return classifier(batch_size=32, callbacks=[*others]).fit(rows)

    saved = callbacks.Checkpoint(tmp_path / "saved", every_steps=5)
    for step in (9, 21, 37):
        with pytest.raises(RuntimeError, match="power cut"):
            fit(saved, Failure(step))
        assert not [one for one in threading.enumerate() if one.name.startswith("onnxtrain_sklearn")]
    found, expected = fit(saved), fit()
    assert same_bits(found, expected)
    assert found.loss_curve_ == expected.loss_curve_
    assert found.t_ == expected.t_


KILLED = """
import os, signal, sys
from onnxtrain_sklearn import MLP, OrtGradientClassifier, RowBlocks
from onnxtrain_sklearn.callbacks import Callback, Checkpoint

class Killer(Callback):
    steers = False

    def after_step(self, training, loss):
        if training.step == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)

net = OrtGradientClassifier(MLP((8,)), max_iter=3, random_state=0, tol=0, batch_size=32)
net.callbacks = [Checkpoint(sys.argv[2], every_steps=4), Killer()]
net.fit(RowBlocks(sys.argv[1], "y", buffer_rows=200, prefetch=1))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
@pytest.mark.slow
def test_fit_to_a_stream_that_is_killed_goes_on_to_the_same_bits(tmp_path):
    path = write(tmp_path / "table.parquet", *labels())
    for step in (7, 26):
        arguments = [sys.executable, "-c", KILLED, str(path), str(tmp_path / "saved"), str(step)]
        assert subprocess.run(arguments, check=False).returncode == -signal.SIGKILL
    rows = RowBlocks(path, "y", buffer_rows=200, prefetch=1)
    steps = []

    class Steps(callbacks.Callback):
        steers = False

        def after_step(self, training, loss):
            steps.append(training.step)

    resumed = [callbacks.Checkpoint(tmp_path / "saved", every_steps=4), Steps()]
    found = classifier(batch_size=32, callbacks=resumed).fit(rows)
    assert steps[0] == 25
    assert same_bits(found, classifier(batch_size=32).fit(rows))


REFUSED = {
    "target that is no name": (lambda path: (path, [0, 1]), {}, TypeError, "y must name the target column"),
    "unknown target": (lambda path: (path, "z"), {}, ValueError, "no column 'z'"),
    "target beside blocks": (lambda path: (RowBlocks(path, "y"), "y"), {}, ValueError, "give it alone"),
    "missing file": (lambda path: (f"{path}x", "y"), {}, FileNotFoundError, "No file"),
    "L-BFGS": (
        lambda path: (RowBlocks(path, "y", buffer_rows=200), None),
        {"optimizer": "lbfgs"},
        ValueError,
        "LBFGS takes all rows at once",
    ),
    "one block to hold out": (
        lambda path: (Arrays(*labels(), count=1, buffer_rows=200), None),
        {"early_stopping": True},
        ValueError,
        "holds out blocks, and the source has 1",
    ),
}


@pytest.mark.parametrize(("arguments", "options", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_unusable_sources_are_refused(arguments, options, error, message, tmp_path):
    path = write(tmp_path / "table.parquet", *labels())
    X, y = arguments(path)
    estimator = classifier(**options)
    with pytest.raises(error, match=message):
        estimator.fit(X, y)
    assert not hasattr(estimator, "n_iter_")


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e39])
def test_bad_number_in_a_late_block_names_its_row_group(value, tmp_path):
    X, y = numbers()
    X = X.astype(np.float64)
    X[501, 2] = value
    path = write(tmp_path / "table.parquet", X, y)
    estimator = regressor().fit(np.ones((300, 6), np.float32), np.arange(300.0))
    before = clone(estimator)
    weights = {name: array.copy() for name, array in estimator.weights_.items()}
    named = pytest.raises(ValueError, match=r"Row group 20 of .*table\.parquet: Column 'x2': Input ")
    with nothing_left_open(), named:
        estimator.fit(RowBlocks(path, "y", buffer_rows=200))
    assert all(np.array_equal(weights[name], estimator.weights_[name]) for name in weights)
    assert not hasattr(before, "weights_")


@pytest.mark.parametrize("small", [True, False])
def test_infinite_label_in_a_late_block_names_its_row_group(small, tmp_path):
    X, y = labels()
    y = y.astype(float)
    y[501] = np.inf
    path = write(tmp_path / "table.parquet", X, y)
    if small:
        named = r"Row group 20 of .*table\.parquet: Column 'y': Input y contains infinity"
        with pytest.raises(ValueError, match=named):
            classifier().fit(RowBlocks(path, "y", buffer_rows=200))
    else:  # all rows are in memory, and checked together
        with pytest.raises(ValueError, match="Input y contains infinity"):
            classifier().fit(path, "y")


def damage_by_truncation(path):
    os.truncate(path, path.stat().st_size // 2)


def damage_in_place(path):
    times = path.stat()
    content = bytearray(path.read_bytes())
    content[200:2000] = bytes(1800)
    with open(path, "r+b") as file:
        file.write(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


DAMAGES = {
    "truncated": (damage_by_truncation, "was changed after its row groups"),
    "overwritten at the same time": (damage_in_place, "cannot be read"),
    "removed": (os.remove, "No such file"),
}


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_file_damaged_between_two_epochs_is_named_and_nothing_is_left_open(damage, message, prefetch, tmp_path):
    X, y = labels()
    for i in range(3):
        write(tmp_path / f"{i}.parquet", X[200 * i : 200 * i + 200], y[200 * i : 200 * i + 200])

    class Damage(callbacks.Callback):
        steers = False

        def after_epoch(self, training):
            if training.epochs_done == 1:
                damage(tmp_path / "1.parquet")

    estimator = classifier(callbacks=[Damage()])
    with nothing_left_open(), pytest.raises(ValueError, match=rf"Row group \d+ of .*1\.parquet.*{message}"):
        estimator.fit(RowBlocks(tmp_path, "y", buffer_rows=200, prefetch=prefetch))
    assert not hasattr(estimator, "weights_")


@pytest.mark.parametrize("prefetch", [0, 3])
def test_interrupt_of_a_stream_keeps_the_weights_and_leaves_nothing_open(prefetch, tmp_path):
    path = write(tmp_path / "table.parquet", *labels())

    class Interrupt(callbacks.Callback):
        steers = False

        def after_epoch(self, training):
            if training.epochs_done == 2:
                raise KeyboardInterrupt

    estimator = classifier(max_iter=50, callbacks=[Interrupt()])
    with nothing_left_open(), pytest.warns(UserWarning, match="interrupted"):
        estimator.fit(RowBlocks(path, "y", buffer_rows=200, prefetch=prefetch))
    assert estimator.n_iter_ == 2


FAULTS = {
    "infinite target": (regressor, {}, "y", np.inf, "Input y contains infinity"),
    "target that the loss refuses": (regressor, {"loss": "poisson"}, "y", -1.0, "Poisson needs targets"),
    "label that was not named": (classifier, {}, "y", 7.0, "y contains labels that are not among"),
    "negative weight": (classifier, {}, "w", -1.0, "Negative values in data passed to `sample_weight`"),
    "infinite weight": (regressor, {}, "w", np.inf, "Input sample_weight contains infinity"),
    "missing number": (regressor, {}, "x2", np.nan, "Input X contains NaN"),
}


@pytest.mark.parametrize("buffer_rows", [200, 5000])
@pytest.mark.parametrize(("make", "options", "column", "value", "message"), FAULTS.values(), ids=FAULTS)
def test_fault_names_file_row_group_and_column(make, options, column, value, message, buffer_rows, tmp_path):
    X, y = labels()
    columns = {"y": y.astype(float), "w": np.ones(len(y)), "x2": X[:, 2].copy()}
    columns[column][430] = value  # in the 18th row group
    path = write(tmp_path / "table.parquet", X, columns.pop("y"), **columns)
    known = {"classes": [0.0, 1.0, 2.0]} if make is classifier else {}
    estimator, source = make(**options), RowBlocks(path, "y", sample_weight="w", buffer_rows=buffer_rows)
    named = rf"Row group 17 of .*table\.parquet: Column '{column}': {message}"
    with nothing_left_open(), pytest.raises(ValueError, match=named):
        estimator.fit(source, **known)
    assert not hasattr(estimator, "t_")


def test_error_of_all_rows_together_names_no_block(tmp_path):
    X, _ = labels()
    with pytest.raises(ValueError, match=r"^Classification needs at least 2 classes"):
        classifier().fit(write(tmp_path / "table.parquet", X, np.zeros(len(X), int)), y="y")


def test_labels_at_positions_are_refused_on_a_stream():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 5, 4)).astype(np.float32)
    y = X[..., :3].argmax(2)
    words = model(
        x="float[N, 5, 4] X", y="float[N, 5, 3] Y", weights=f"float[4, 3] W = {{{', '.join(['0.1', '0'] * 6)}}}"
    )
    estimator = OrtGradientClassifier(words, max_iter=1, random_state=0)
    with pytest.raises(ValueError, match=r"at positions take all rows at once.*Give arrays"):
        estimator.fit(Arrays(X, y, count=20, buffer_rows=200))
    with pytest.raises(ValueError, match=r"at positions take all rows at once.*Give arrays"):
        estimator.partial_fit(Arrays(X, y, count=20, buffer_rows=200), classes=[0, 1, 2])
    assert not hasattr(estimator, "classes_")
    estimator.fit(Arrays(X, y, count=20, buffer_rows=400))
    with pytest.raises(ValueError, match=r"at positions take all rows at once.*Give arrays"):
        estimator.partial_fit(Arrays(X, y, count=20, buffer_rows=200))
    assert estimator.t_ == 400


def test_fine_tuning_with_old_rows_refuses_a_stream(tmp_path):
    from sklearn.linear_model import LogisticRegression

    X, y = labels()
    path, fitted = write(tmp_path / "table.parquet", X, y), LogisticRegression().fit(pd.DataFrame(X, columns=NAMES), y)
    rows = RowBlocks(path, "y", buffer_rows=200)
    with pytest.raises(ValueError, match="X_old takes all rows at once"):
        OrtGradientClassifier(fitted).fit(rows, X_old=X, y_old=y)
    with pytest.raises(ValueError, match="takes all rows at once"):
        OrtGradientClassifier(fitted, finetune=FineTuner()).fit(rows)
    trained = OrtGradientClassifier(fitted, max_iter=1, random_state=0).fit(rows)
    assert trained.score(pd.DataFrame(X, columns=NAMES), y) > 0.5


@pytest.mark.long
def test_fitted_model_trains_on_a_table_that_lacks_a_class(tmp_path):
    from sklearn.linear_model import LogisticRegression

    X, y = labels()
    frame = pd.DataFrame(X, columns=NAMES)
    fitted = LogisticRegression().fit(frame, y)
    path = write(tmp_path / "table.parquet", X[y < 2], y[y < 2], rows=24)
    options = {"max_iter": 2, "random_state": 0, "shuffle": False, "tol": 0}
    for weights in (None, "balanced"):
        expected = OrtGradientClassifier(fitted, finetune=None, class_weight=weights, **options)
        expected.fit(frame[y < 2], y[y < 2])
        found = OrtGradientClassifier(fitted, class_weight=weights, **options).fit(
            RowBlocks(path, "y", buffer_rows=200)
        )
        assert same_bits(found, expected)
        assert found.classes_.tolist() == [0, 1, 2]
    write(path, X, np.where(np.arange(len(y)) == 501, 7, y))
    with pytest.raises(ValueError, match=r"labels that are not among the classes: \[7\]"):
        OrtGradientClassifier(fitted, **options).fit(RowBlocks(path, "y", buffer_rows=200))


def test_frame_with_a_column_named_block_is_no_source():
    frame = pd.DataFrame(labels()[0], columns=["block", *NAMES[1:]])
    assert len(classifier().fit(frame, labels()[1]).predict(frame)) == len(frame)


@pytest.mark.long
def test_early_stopping_keeps_the_least_loss_of_a_quantile(tmp_path):
    X, y = numbers()
    path = write(tmp_path / "table.parquet", X[:450], y[:450])
    settings = {"loss": Quantile(0.1), "early_stopping": "best_epoch", "learning_rate_init": 0.1, "max_iter": 12}
    held_out = pd.DataFrame(X[450:], columns=NAMES)
    fitted = regressor(**settings).fit(RowBlocks(path, "y", buffer_rows=200), X_val=held_out, y_val=y[450:])
    losses = np.array([row["validation_loss"] for row in fitted.history_])
    found = mean_pinball_loss(y[450:], fitted.predict(held_out), alpha=0.1)
    scale = found / losses.min()  # the loss is in the unit of the targets as they are trained, of deviation one
    np.testing.assert_allclose(scale, y[:450].std(), rtol=1e-4)


class UserBlocks:
    """A source of a user: three blocks, the second of which is changed; ``buffer_rows`` holds all rows, or not."""

    def __init__(self, change, buffer_rows):
        self.buffer_rows = buffer_rows
        rng, self.blocks = np.random.default_rng(0), []
        for _ in range(3):
            rows = pd.DataFrame(rng.normal(size=(60, 2)), columns=["a", "b"])
            self.blocks.append((rows, (rows["a"] > 0).to_numpy().astype(int)))
        self.blocks[1] = change(*self.blocks[1])

    def __len__(self):
        return len(self.blocks)

    def block(self, i):
        return self.blocks[i]


UNLIKE = {
    "text in a column": (lambda X, y: (X.assign(b="u"), y), "Column 'b' of X holds text, and numbers in Block 0"),
    "text as labels": (lambda X, y: (X, y.astype(str)), "y holds text, and numbers in Block 0"),
    "objects as labels": (lambda X, y: (X, y.astype(str).astype(object)), "y holds text, and numbers in Block 0"),
    "a missing column": (lambda X, y: (X[["a"]], y), r"the columns of X are \['a'\], and \['a', 'b'\] in Block 0"),
    "a row too few": (lambda X, y: (X, y[1:]), "X has 60 rows, and y has 59"),
}


@pytest.mark.parametrize("kind", [OrtGradientClassifier, RealMLPClassifier])
@pytest.mark.parametrize("buffer_rows", [1000, 50])
@pytest.mark.parametrize(("change", "message"), UNLIKE.values(), ids=UNLIKE)
def test_blocks_of_a_user_that_are_not_alike_are_named(change, message, buffer_rows, kind):
    estimator = kind(max_iter=1)
    before = dict(vars(estimator))
    with pytest.raises(ValueError, match=f"Block 1: {message}"):
        estimator.fit(UserBlocks(change, buffer_rows))
    assert vars(estimator) == before


def test_blocks_of_a_user_without_values_in_a_column_are_alike():
    def emptied(X, y):
        return X.assign(b=pd.array([pd.NA] * len(X), dtype="string")), y

    source = UserBlocks(emptied, 1000)
    source.blocks = [(X.assign(b=X["b"] if i == 1 else np.where(X["b"] > 0, "u", None)), y)
                     for i, (X, y) in enumerate(source.blocks)]  # fmt: skip
    assert quietly(RealMLPClassifier(max_iter=1).fit, source).n_features_in_ == 2

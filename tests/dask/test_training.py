"""Fits on a cluster of processes: the bits of one machine with one shard, and right results for any partitions."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
import threading
import warnings
from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.utils.class_weight import compute_class_weight

from onnxtrain_sklearn import (
    MLP,
    SGD,
    AdamW,
    Linear,
    OrtGradientClassifier,
    OrtGradientRegressor,
    RowBlocks,
    callbacks,
    losses,
    schedules,
)
from onnxtrain_sklearn.dask import DaskOrtGradientClassifier, DaskOrtGradientRegressor, LocalSGD
from tests.dask.helpers import (
    NAMES,
    ONE_SHARD,
    arrays,
    classifier,
    cluster_of,
    frame,
    labels,
    local,
    numbers,
    partitions,
    regressor,
    same_bits,
)
from tests.helpers.environment import each_engine

dask, dd = pytest.importorskip("dask"), pytest.importorskip("dask.dataframe")
da = pytest.importorskip("dask.array")
distributed, pd = pytest.importorskip("distributed"), pytest.importorskip("pandas")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")]


# One shard, outer rate 1, no momentum: the local estimator.


OPTIONS = {
    "adamw": {},
    "momentum": {"optimizer": SGD(momentum=0.9), "learning_rate_init": 0.01},
    "options of a step": {"optimizer": AdamW(max_grad_norm=0.5, accumulate=3, ema_decay=0.9)},
    "cosine": {"learning_rate": schedules.Cosine()},
    "penalty": {"alpha": 0.1, "l1_ratio": 0.5},
    "dropout": {"model": MLP((8,), dropout=0.3)},
    "order kept": {"shuffle": False},
    "last rows left out": {"drop_last": True, "batch_size": 70},
    "one minibatch": {"batch_size": 2000},
    "ends early": {"max_iter": 60, "tol": 1e-2, "n_iter_no_change": 1},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_one_shard_trains_to_the_bits_of_the_local_classifier(client, options):
    X, y = labels()
    found = classifier(averaging=ONE_SHARD, **options).fit(*arrays(X, y))
    expected = local(found).fit(X, y)
    assert same_bits(found, expected)
    assert found.loss_curve_ == expected.loss_curve_
    assert (found.n_iter_, found.t_, found.n_shards_) == (expected.n_iter_, expected.t_, 1)


@each_engine
def test_one_shard_trains_to_the_bits_of_the_local_regressor(client, engine):
    X, y = numbers()
    found = regressor(averaging=ONE_SHARD, engine=engine, clip_predictions=True).fit(*arrays(X, y))
    expected = local(found).fit(X, y)
    assert same_bits(found, expected)
    assert np.array_equal(found.predict(X), expected.predict(X))


@pytest.mark.parametrize("loss", ["gaussian_nll", "laplace_nll", "quantiles"])
def test_one_shard_trains_losses_of_several_scores_to_the_local_bits(client, loss):
    X, y = numbers()
    found = regressor(averaging=ONE_SHARD, loss=loss).fit(*arrays(X, y))
    expected = local(found).fit(X, y)
    assert same_bits(found, expected)
    assert np.array_equal(found.predict(X), expected.predict(X))


def test_one_shard_with_weights_and_validation_rows_trains_to_the_local_bits(client):
    X, y = labels()
    weights, names = np.linspace(0, 2, len(X)), np.array(["no", "yes", "perhaps"], object)[y]
    weights[::7] = 0
    validation = {"X_val": X[:200], "y_val": names[:200]}
    found = classifier(averaging=ONE_SHARD, early_stopping=True, class_weight="balanced", max_iter=8)
    found.fit(*arrays(X, names, weights), **validation)
    expected = local(found).fit(X, names, weights, **validation)
    assert same_bits(found, expected)
    assert found.validation_scores_ == expected.validation_scores_
    assert found.loss_curve_ == expected.loss_curve_
    assert found.classes_.tolist() == ["no", "perhaps", "yes"]


def test_few_equal_rows_of_one_shard_are_merged_as_in_a_local_fit(client):
    X, y = labels(40)
    X, y = np.tile(X[:20], (2, 1)), np.tile(y[:20], 2)
    found = classifier(averaging=ONE_SHARD).fit(*arrays(X, y, rows=10))
    assert same_bits(found, local(found).fit(X, y))


def test_compiled_steps_of_one_shard_train_to_the_local_bits(client):
    pytest.importorskip("llvmlite")
    X, y = labels()
    found = classifier(averaging=ONE_SHARD, engine="compiled").fit(*arrays(X, y))
    assert found.engine_ == "compiled"
    assert same_bits(found, local(found).fit(X, y))


def test_warm_start_of_one_shard_goes_on_to_the_local_bits(client):
    X, y = labels()
    found = classifier(averaging=ONE_SHARD, warm_start=True)
    expected = local(found)
    for _ in range(2):
        found, expected = found.fit(*arrays(X, y)), expected.fit(X, y)
    assert same_bits(found, expected)
    assert found.n_iter_ == 6


def test_error_of_warm_start_leaves_estimator_unchanged(client):
    X, y = labels()
    found = classifier(averaging=LocalSGD(7, n_shards=2), warm_start=True).fit(*arrays(X, y))
    found.set_params(averaging=ONE_SHARD, callbacks=[lambda epoch: 1 / 0])
    before = dict(vars(found))
    with pytest.raises(ZeroDivisionError):
        found.fit(*arrays(X, y))
    assert vars(found) == before


# Kinds of tables.


def test_frames_arrays_and_files_of_equal_rows_train_to_the_same_bits(client, tmp_path):
    X, y = labels()
    weights = np.linspace(0.5, 2, len(X))
    table = frame(X, y=y, w=weights)
    table.to_parquet(tmp_path / "table.parquet", row_group_size=100)
    split = dd.from_pandas(table, npartitions=4)
    made = {
        "series": lambda e: e.fit(split[NAMES], split["y"], split["w"]),
        "names": lambda e: e.fit(split, "y", "w"),
        "frame and array": lambda e: e.fit(split[NAMES], split["y"].to_dask_array(), split["w"].to_dask_array()),
        "path": lambda e: e.fit(str(tmp_path / "*.parquet"), y="y", sample_weight="w"),
        "blocks": lambda e: e.fit(RowBlocks(tmp_path / "table.parquet", "y", sample_weight="w", columns=NAMES)),
    }
    expected = local(classifier()).fit(table[NAMES], y, weights)
    for name, fit in made.items():
        found = fit(classifier(averaging=ONE_SHARD))
        assert same_bits(found, expected), name
        assert found.feature_names_in_.tolist() == NAMES
    found = classifier(averaging=ONE_SHARD).fit(*arrays(X, y, weights))
    assert same_bits(found, expected)


def test_several_targets_are_learned(client):
    X, y = numbers()
    Y = np.stack([y, -3 * y], axis=1)
    found = regressor(averaging=ONE_SHARD).fit(*arrays(X, Y))
    expected = local(found).fit(X, Y)
    assert same_bits(found, expected)
    assert found.predict(*arrays(X)).compute() == pytest.approx(expected.predict(X))
    assert found.score(*arrays(X, Y)) == pytest.approx(expected.score(X, Y))


SEVERAL = {
    "indicators": lambda y: np.stack([y == 0, y == 1, y > 0], axis=1).astype(int),
    "names": lambda y: np.stack([np.array(["a", "b", "c"])[y], np.where(y == 1, "u", "v")], axis=1),
}


@pytest.mark.parametrize("class_weight", [None, "balanced"])
@pytest.mark.parametrize("kind", SEVERAL)
def test_several_labels_of_one_shard_train_to_the_local_bits(client, kind, class_weight):
    X, y = labels()
    Y = SEVERAL[kind](y)
    found = classifier(averaging=ONE_SHARD, class_weight=class_weight).fit(*arrays(X, Y))
    expected = local(found).fit(X, Y)
    assert same_bits(found, expected)
    assert found.score(*arrays(X, Y)) == pytest.approx(expected.score(X, Y))
    assert np.array_equal(found.predict(*arrays(X)).compute(), expected.predict(X))
    if kind == "indicators":
        assert np.array_equal(found.predict_proba(*arrays(X)).compute(), expected.predict_proba(X))
    else:
        with pytest.raises(ValueError, match="predict_proba gives a list of arrays for several labels"):
            found.predict_proba(*arrays(X))


@pytest.mark.parametrize("n_shards", [1, 3])
def test_sparse_rows_are_trained_as_dense_ones(client, n_shards):
    X, y = labels()
    X[np.abs(X) < 0.5] = 0
    averaging = ONE_SHARD if n_shards == 1 else LocalSGD(5, n_shards=n_shards)
    dense, targets = arrays(X, y)
    rows = dense.map_blocks(sparse.csr_matrix)
    found = classifier(averaging=averaging).fit(rows, targets)
    expected = local(found).fit(sparse.csr_matrix(X), y) if n_shards == 1 else found
    assert same_bits(found, expected)
    other = classifier(averaging=averaging).fit(dense, targets)
    for name, weight in other.weights_.items():
        assert found.weights_[name] == pytest.approx(weight, rel=1e-3, abs=1e-5), name
    assert found.score(rows, targets) == pytest.approx(found.to_local().score(sparse.csr_matrix(X), y))


def test_large_table_is_prepared_by_the_statistics_of_all_rows(client):
    # More rows than the sample, in partitions that are sorted by the target.
    X, y = numbers(40_000)
    order = np.argsort(y)
    found = regressor(averaging=ONE_SHARD, max_iter=1, shuffle=False, model=Linear())
    found.fit(*arrays(X[order], y[order], rows=5000))
    scale = found._state.decoding.target_scale
    assert scale.center == pytest.approx(y.mean())
    assert scale.scale == pytest.approx(y.std())
    assert found.t_ == 40_000
    expected = local(found).fit(X[order], y[order])
    for name, weight in expected.weights_.items():
        assert found.weights_[name] == pytest.approx(weight, rel=1e-4, abs=1e-5), name


def test_balanced_weights_are_those_of_all_rows(client):
    X, y = labels(40_000)
    y[y == 2] = np.where(np.arange((y == 2).sum()) % 50, 1, 2)  # 2 is rare
    order = np.argsort(y, kind="stable")
    found = classifier(class_weight="balanced", max_iter=1).fit(*arrays(X[order], y[order], rows=5000))
    expected = compute_class_weight("balanced", classes=np.arange(3), y=y)
    assert found._state.balanced == pytest.approx(tuple(expected))


def test_balanced_weights_of_several_labels_are_those_of_all_rows(client):
    X, y = labels()
    order = np.argsort(y, kind="stable")
    X, y = X[order], np.stack([y == 1, y == 2], axis=1)[order].astype(int)
    weights = [dict(enumerate(compute_class_weight("balanced", classes=np.arange(2), y=own))) for own in y.T]
    data = arrays(X, y, rows=200)
    found = classifier(class_weight="balanced").fit(*data)
    assert same_bits(found, classifier(class_weight=weights).fit(*data))
    assert not same_bits(found, classifier().fit(*data))


# Any partitions.


def test_number_of_workers_does_not_change_the_bits():
    X, y = labels()
    with cluster_of(1) as client:
        fits = []
        for n in (1, 2, 3):
            client.cluster.scale(n)
            client.wait_for_workers(n)
            fits.append(classifier(averaging=LocalSGD(5, n_shards=4)).fit(*arrays(X, y, rows=100)))
    assert fits[0].n_shards_ == 4
    assert all(same_bits(fits[0], one) for one in fits[1:])


def test_auto_takes_a_shard_for_each_worker_that_has_a_minibatch(client):
    X, y = labels(4000)
    assert classifier().fit(*arrays(X, y, rows=1000)).n_shards_ == 2
    assert classifier(batch_size=3000).fit(*arrays(X, y, rows=1000)).n_shards_ == 1


SIZES = {
    "one partition": [1200],
    "empty ones": [0, 400, 0, 0, 800, 0],
    "skew": [1, 1150, 3, 46],
    "many": [10] * 120,
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_partitions_of_any_size_train_each_row_once_an_epoch(client, sizes):
    X, y = labels()
    ends = np.cumsum([0, *sizes])
    frames = [frame(X[a:b], y=y[a:b]) for a, b in pairwise(ends)]
    found = classifier(averaging=LocalSGD(5, n_shards=3), max_iter=30, learning_rate_init=0.01)
    found.fit(partitions(*frames), "y")
    assert found.t_ == 30 * 1200
    assert found.score(frame(X), y) > 0.8


def test_a_class_in_one_partition_is_learned(client):
    X, y = labels()
    order = np.argsort(y, kind="stable")
    found, mixed = (
        classifier(averaging=LocalSGD(5, n_shards=3), max_iter=80, learning_rate_init=0.01).fit(*arrays(*data))
        for data in ((X[order], y[order]), (X, y))
    )
    assert found.classes_.tolist() == [0, 1, 2]
    assert found.score(X, y) > max(0.9, mixed.score(X, y) - 0.01)


def test_few_rounds_and_short_ones_are_warned_of(client):
    X, y = arrays(*labels(1200))

    def warnings_of(averaging, **options):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            classifier(client=client, averaging=averaging, **options).fit(X, y)
        return [str(one.message) for one in found if "outer" in str(one.message)]

    (few,) = warnings_of(LocalSGD(n_shards=2), batch_size=20)
    assert few.startswith("The 2 shards took 3 rounds of 30 steps.")
    assert "LocalSGD(outer_learning_rate=1, outer_momentum=0)" in few
    (short,) = warnings_of(LocalSGD(n_shards=2), max_iter=20, batch_size=300)
    assert short.startswith("The 2 shards took 20 rounds of 2 steps.")
    assert not warnings_of(LocalSGD(15, n_shards=2), max_iter=10, batch_size=20)
    assert not warnings_of(LocalSGD(n_shards=2, outer_learning_rate=1.0, outer_momentum=0.0))
    assert not warnings_of(LocalSGD(n_shards=1))


def test_shards_with_fewer_rows_than_asked_for_are_fewer(client):
    X, _ = labels(3)
    assert classifier(averaging=LocalSGD(n_shards=8), max_iter=2).fit(*arrays(X, np.arange(3), rows=2)).n_shards_ == 3


def test_unknown_chunks_and_divisions_are_taken(client):
    X, y = labels()
    table = partitions(*(frame(X[i : i + 400], y=y[i : i + 400]) for i in range(0, 1200, 400)))
    assert not table.known_divisions
    expected = classifier(averaging=LocalSGD(5, n_shards=2)).fit(table, "y")
    unknown = classifier(averaging=LocalSGD(5, n_shards=2)).fit(table[NAMES].values, table["y"].values)
    assert same_bits(expected, unknown)


# Several fits at once.


def test_repeated_index_belongs_to_the_rows_of_its_place(client):
    X, y = labels()
    table = pd.DataFrame(X, columns=NAMES).assign(y=y)
    parts = [
        dd.from_pandas(table.iloc[i : i + 300].reset_index(drop=True), npartitions=1) for i in range(0, len(y), 300)
    ]
    found = classifier(averaging=ONE_SHARD).fit(dd.concat(parts)[NAMES], dd.concat(parts)["y"])
    assert same_bits(found, local(found).fit(table[NAMES], y))


def test_fits_at_once_on_one_client_do_not_see_each_other(client):
    X, y = labels()
    Xr, yr = numbers()
    makers = [
        lambda: classifier(averaging=LocalSGD(3, n_shards=3), max_iter=6).fit(*arrays(X, y)),
        lambda: classifier(averaging=LocalSGD(3, n_shards=3), max_iter=6).fit(*arrays(X[::-1].copy(), y[::-1].copy())),
        lambda: regressor(averaging=LocalSGD(3, n_shards=2), max_iter=6).fit(*arrays(Xr, yr)),
    ]
    expected, found = [make() for make in makers], [None] * 3
    threads = [threading.Thread(target=lambda i=i: found.__setitem__(i, makers[i]())) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(same_bits(one, other) for one, other in zip(expected, found, strict=True))


def test_nothing_is_left_on_the_cluster(client):
    X, y = labels()
    found = classifier(averaging=LocalSGD(3, n_shards=3)).fit(*arrays(X, y))
    assert found.n_iter_ == 3
    bad = X.copy()
    bad[700] = np.nan
    with pytest.raises(ValueError, match="Partition 2"):
        classifier().fit(*arrays(bad, y))
    for _ in range(50):
        held = [keys for keys in client.has_what().values() if keys]
        if not held:
            break
        threading.Event().wait(0.1)
    assert not held


# Parameters.


@pytest.mark.parametrize("kind", [DaskOrtGradientClassifier, DaskOrtGradientRegressor])
def test_parameters_are_those_of_the_local_class_and_four_more(kind):
    own, theirs = (inspect.signature(one).parameters for one in (kind, kind._local))
    more = ["client", "averaging", "checkpoint", "timeout"]
    assert [name for name in own if name not in theirs] == more
    assert {n: p for n, p in own.items() if n not in more} == dict(theirs)
    assert set(kind().get_params(deep=False)) == set(own)


def test_clones_share_the_client_and_pickles_leave_it_out(client):
    X, y = labels()
    found = classifier(client=client, averaging=LocalSGD(5, n_shards=2)).fit(*arrays(X, y))
    twin = clone(found)
    assert twin.client is client
    assert not hasattr(twin, "classes_")
    assert same_bits(twin.fit(*arrays(X, y)), found)
    for one in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
        assert one.client is None
        assert same_bits(one, found)
        assert one.averaging.n_shards == 2
    assert found.client is client


def test_local_copy_is_independent_and_goes_on_training(client):
    X, y = labels()
    found = classifier().fit(*arrays(X, y))
    one = found.to_local()
    assert type(one) is OrtGradientClassifier
    assert same_bits(one, found)
    before = {name: weight.copy() for name, weight in found.weights_.items()}
    one.partial_fit(X, y)
    assert not same_bits(one, found)
    assert all(np.array_equal(before[name], found.weights_[name]) for name in before)
    assert type(pickle.loads(pickle.dumps(one))) is OrtGradientClassifier
    assert not hasattr(found, "partial_fit")


def test_callbacks_see_the_epochs(client):
    X, y = labels()
    seen, stopping = [], callbacks.EarlyStopping(monitor="loss", patience=1, min_delta=10.0)
    found = classifier(callbacks=[lambda epoch: seen.append(epoch.loss), stopping], max_iter=9).fit(*arrays(X, y))
    assert seen == found.loss_curve_
    assert found.n_iter_ < 9


@pytest.mark.parametrize("n_shards", [1, 3])
def test_learning_rate_finder_undoes_its_steps(client, n_shards):
    X, y = labels()
    averaging = ONE_SHARD if n_shards == 1 else LocalSGD(5, n_shards=n_shards)
    found = classifier(averaging=averaging, callbacks=[callbacks.LearningRateFinder()]).fit(*arrays(X, y))
    suggestion = found.callbacks_["LearningRateFinder"]["suggestion"]
    assert 1e-4 < suggestion < 0.5
    assert same_bits(found, classifier(averaging=averaging, learning_rate_init=suggestion).fit(*arrays(X, y)))
    if n_shards == 1:
        assert same_bits(found, local(found).fit(X, y))


@pytest.mark.parametrize("n_shards", [1, 3])
def test_weight_averaging_is_the_mean_after_epochs(client, n_shards):
    X, y = labels()
    seen = []

    class Watch(callbacks.Callback):
        def after_epoch(self, training):
            seen.append(training.parameters.vector.copy())

    averaging = ONE_SHARD if n_shards == 1 else LocalSGD(5, n_shards=n_shards)
    options = {"averaging": averaging, "max_iter": 6, "n_iter_no_change": 99}
    averages = [Watch(), callbacks.WeightAveraging(start=0.5)]
    found = classifier(**options, callbacks=averages).fit(*arrays(X, y))
    mean = np.mean(seen[3:], axis=0)
    assert np.sort(np.concatenate([w.ravel() for w in found.weights_.values()])) == pytest.approx(
        np.sort(mean), abs=1e-6
    )
    assert not np.allclose(mean, seen[-1])
    if n_shards == 1:
        assert same_bits(found, local(found).fit(X, y))


REFUSED = {
    "arrays": (lambda X, y: (X, y), {}, TypeError, "X must be a Dask data frame"),
    "array of targets": (lambda X, y: (*arrays(X), y), {}, TypeError, "y must be a Dask"),
    "missing y": (lambda X, y: (*arrays(X), None), {}, ValueError, "y is missing"),
    "other partitions": (lambda X, y: (*arrays(X), *arrays(y, rows=400)), {}, ValueError, "the same partitions"),
    "other rows": (lambda X, y: (*arrays(X), *arrays(y[:-1])), {}, ValueError, "Partition 3: .*numbers of rows"),
    "unknown column": (lambda X, y: (dd.from_pandas(frame(X), 2), "z"), {}, ValueError, "no column 'z'"),
    "repeated names": (
        lambda X, y: (dd.from_pandas(pd.concat([frame(X, y=y), frame(X)[["x1"]]], axis=1), 2), "y"),
        {},
        ValueError,
        r"several columns of each of the names \['x1'\]",
    ),
    "columns of a partition": (
        lambda X, y: (partitions(frame(X, y=y), frame(X, y=y).rename(columns={"x2": "z"})), "y"),
        {},
        ValueError,
        "Partition 1: X has the columns .*'z'",
    ),
    "missing label": (
        lambda X, y: (partitions(frame(X, y=y), frame(X, y=np.where(y == 1, np.nan, y))), "y"),
        {},
        ValueError,
        "Partition 1: Input y contains NaN",
    ),
    "missing number": (
        lambda X, y: (partitions(frame(X, y=y), frame(X, y=y).assign(x3=np.nan)), "y"),
        {},
        ValueError,
        "Partition 1: Column 'x3': Input X contains NaN",
    ),
    "labels of two types": (
        lambda X, y: (partitions(frame(X, y=y), frame(X, y=y.astype(str))), "y"),
        {},
        TypeError,
        "Partition 1: y holds texts, and Partition 0 holds numbers",
    ),
    "no rows": (lambda X, y: arrays(X[:0], y[:0]), {}, ValueError, "no rows"),
    "weights of zero": (lambda X, y: arrays(X, y, 0.0 * y), {}, ValueError, "weight zero"),
    "L-BFGS": (arrays, {"optimizer": "lbfgs"}, ValueError, "LBFGS takes all rows at once"),
    "early stopping": (arrays, {"early_stopping": True}, ValueError, "give X_val and y_val"),
    "soft labels": (
        arrays,
        {"loss": losses.LogLoss(targets="probabilities")},
        ValueError,
        r"one label a row, not on soft labels \(targets='probabilities'\): give arrays that fit into memory",
    ),
    "sync_every": (arrays, {"averaging": LocalSGD(0)}, ValueError, "sync_every"),
    "timeout": (arrays, {"timeout": -1}, ValueError, "timeout"),
    "client": (arrays, {"client": 3}, TypeError, "client must be"),
    "step hook": (arrays, {"callbacks": [callbacks.GradientStatistics()]}, ValueError, "gradient|single steps"),
}


@pytest.mark.parametrize(("data", "options", "kind", "message"), REFUSED.values(), ids=REFUSED)
def test_wrong_calls_are_refused_and_change_nothing(client, data, options, kind, message):
    X, y = labels()
    estimator = classifier(**options)
    before = dict(vars(estimator))
    with pytest.raises(kind, match=message):
        estimator.fit(*data(X, y))
    assert vars(estimator) == before


@pytest.mark.parametrize(
    ("loss", "message"),
    [("cox", "loss='cox' takes targets by name. Write the rows to Parquet files, and fit OrtGradientRegressor to them"),
     ("info_nce", "not on a loss without y in the table: give arrays that fit into memory to OrtGradientRegressor")],
)  # fmt: skip
def test_losses_with_targets_of_their_own_are_refused(client, loss, message):
    X, y = numbers()
    estimator = regressor(loss=loss)
    before = dict(vars(estimator))
    with pytest.raises(ValueError, match=message):
        estimator.fit(dd.from_pandas(frame(X, time=y, event=y > 100), 2), {"time": "time", "event": "event"})
    assert vars(estimator) == before


@pytest.mark.parametrize("y", [None, "target"])
def test_reconstruction_is_refused_before_a_task_runs(client, y):
    X, numbers_ = numbers()
    estimator = regressor(loss="reconstruction")
    before = dict(vars(estimator))
    with pytest.raises(ValueError, match=r"learns the rows of X in memory: fit OrtGradientRegressor to a sample"):
        estimator.fit(dd.from_pandas(frame(X, target=numbers_), 2), y)
    assert vars(estimator) == before


def test_dask_collection_given_to_a_local_estimator_names_the_class():
    X, y = labels()
    with pytest.raises(TypeError, match=r"onnxtrain_sklearn\.dask"):
        OrtGradientClassifier().fit(*arrays(X, y))
    with pytest.raises(TypeError, match=r"onnxtrain_sklearn\.dask"):
        OrtGradientRegressor().fit(dd.from_pandas(frame(X, y=y), npartitions=2), "y")


def test_import_of_the_package_loads_neither_dask_nor_pyarrow():
    # scikit-learn imports pandas where it is installed, and pandas imports pyarrow.
    program = """
import sys
sys.modules["pandas"] = None
import onnxtrain_sklearn
print([name for name in ("dask", "distributed", "pyarrow") if name in sys.modules])"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


# Predictions.


@pytest.fixture(scope="module")
def fitted(client):
    X, y = labels()
    return classifier(averaging=ONE_SHARD).fit(dd.from_pandas(frame(X), npartitions=3), *arrays(y, rows=400))


def test_predictions_of_frames_are_lazy_and_keep_index_and_divisions(client, fitted):
    X, _ = labels()
    table = frame(X).set_index(pd.Index(np.arange(1200) * 2, name="row"))
    split = dd.from_pandas(table, npartitions=5)
    one = fitted.to_local()
    for method in ("predict", "predict_proba", "decision_function"):
        found, expected = getattr(fitted, method)(split), getattr(one, method)(table)
        assert isinstance(found, dd.Series if expected.ndim == 1 else dd.DataFrame)
        assert found.divisions == split.divisions
        computed = found.compute()
        assert computed.index.equals(table.index)
        assert np.array_equal(computed.to_numpy(), expected)
        assert set(np.ravel(found.dtypes)) == {expected.dtype}


def test_predictions_of_arrays_are_lazy_and_keep_chunks_and_dtype(client):
    X, y = labels()
    names = np.array(["a", "b", "c"], object)[y]
    found = classifier(averaging=ONE_SHARD).fit(*arrays(X, names))
    (rows,) = arrays(X.astype(np.float64), rows=500)
    for method in ("predict", "predict_proba", "decision_function"):
        lazy, expected = getattr(found, method)(rows), getattr(found.to_local(), method)(X.astype(np.float64))
        assert isinstance(lazy, da.Array)
        assert (lazy.chunks[0], lazy.dtype, lazy.shape) == (rows.chunks[0], expected.dtype, expected.shape)
        computed = lazy.compute()
        assert computed.dtype == expected.dtype
        assert np.array_equal(computed, expected)


def test_predictions_of_empty_partitions_have_the_type_of_others(client, fitted):
    X, _ = labels()
    table = partitions(frame(X[:0]), frame(X[:10]), frame(X[:0]))
    assert np.array_equal(fitted.predict(table).compute(), fitted.predict(frame(X[:10])))
    assert fitted.predict_proba(table).compute().shape == (10, 3)


def test_scores_are_those_of_all_rows(client, fitted):
    X, y = labels()
    weights = np.linspace(0, 1, len(y))
    split = dd.from_pandas(frame(X, y=y, w=weights), npartitions=5)
    assert fitted.score(split, "y", "w") == pytest.approx(fitted.to_local().score(frame(X), y, weights))


def test_workers_keep_one_session_for_all_partitions(client, fitted):
    X, _ = labels()
    fitted.predict(dd.from_pandas(frame(X), npartitions=12)).compute()
    counts = client.run(_count_models)
    assert all(count <= 4 for count in counts.values())
    assert sum(counts.values()) >= 1


def _count_models():
    from onnxtrain_sklearn.dask import predictions

    return len(predictions._models)

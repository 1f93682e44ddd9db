"""Checkpoints: a killed fit goes on to the same bits, wherever it was killed, and no other fit takes its files."""

from __future__ import annotations

import os
import pickle
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onnxtrain_sklearn import MLP, SGD, AdamW, OrtGradientClassifier, RMSprop, schedules
from onnxtrain_sklearn.callbacks import (
    CALLBACKS,
    Callback,
    Checkpoint,
    EarlyStopping,
    EpochScoring,
    LearningRateFinder,
    WeightAveraging,
)
from onnxtrain_sklearn.optimizers import Muon
from tests.helpers.callbacks import net, single_callback
from tests.helpers.checkpoints import drawn_seed, same
from tests.helpers.data import blobs
from tests.helpers.environment import OWN_MEMORY, each_engine
from tests.helpers.training import NEVER

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, Y = blobs()


class Crash(Exception):
    pass


def crash_at(epoch: int) -> Any:
    def crash(seen):
        if seen.number == epoch:
            raise Crash

    return crash


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def resumed(make: Any, folder: Path, crashes: tuple[int, ...], data: tuple[Any, ...] = (X, Y), **options: Any) -> Any:
    """Return a fit that crashed after some epochs, each time in an estimator of its own."""
    for epoch in crashes:
        estimator = make(Checkpoint(folder, **options))
        estimator.callbacks.append(crash_at(epoch))
        with pytest.raises(Crash):
            estimator.fit(*data)
        assert not hasattr(estimator, "n_iter_")
    steps: list[int] = []
    estimator = make(Checkpoint(folder, **options))
    estimator.callbacks.append(lambda seen: steps.append(seen.number))
    estimator.fit(*data)
    assert len(steps) < estimator.n_iter_  # it went on
    return estimator


CASES = {
    "dropout, cosine": {"model": MLP((6,), dropout=0.3), "learning_rate": "cosine"},
    "validation": {"early_stopping": True, "n_iter_no_change": 2, "tol": 1e-2, "scoring": "neg_log_loss"},
    "plateaus": {"learning_rate": schedules.Adaptive(), "n_iter_no_change": 1, "tol": 0.05},
    "best epoch, batch statistics": {
        "early_stopping": "best_epoch",
        "model": MLP((6,), normalization="batch"),
        "engine": "portable",
    },
    "average": {"optimizer": SGD(ema_decay=0.9)},
    "one batch": {"batch_size": 500, "optimizer": RMSprop()},
    "arrays of each parameter": {"optimizer": Muon(weight_decay_schedule="cosine")},
    "arrays of other shapes": {"optimizer": "adafactor"},
    "groups": {"optimizer": AdamW(accumulate=3, max_grad_norm=0.5), "alpha": 0.1},
}


@each_engine
@pytest.mark.parametrize("case", CASES)
def test_a_fit_goes_on_to_the_same_bits(case, engine, tmp_path):
    def make(*callbacks):
        return net(*callbacks, **{"max_iter": 12, "engine": engine} | CASES[case])

    whole = make().fit(X, Y)
    assert same(resumed(make, tmp_path, (1, 3, 4)), whole)
    assert len(files(tmp_path)) == 1


@pytest.mark.long
def test_state_of_other_callbacks_is_resumed(tmp_path):
    def make(*callbacks):
        others = [EarlyStopping("loss", 50), WeightAveraging(0.2), EpochScoring("roc_auc"), LearningRateFinder()]
        return net(*others[:2], *callbacks, *others[2:], max_iter=12, early_stopping=True, n_iter_no_change=np.inf)

    found, whole = resumed(make, tmp_path, (2, 6)), make().fit(X, Y)
    assert same(found, whole)
    assert found.callbacks_["WeightAveraging"]["count"] == 10


@pytest.mark.parametrize("name", [name for name in CALLBACKS if name != "checkpoint"])
def test_a_fit_with_each_callback_is_resumed(name, tmp_path):
    def make(*callbacks):
        return net(single_callback(CALLBACKS[name], tmp_path), *callbacks, n_iter_no_change=np.inf)

    found, whole = resumed(make, tmp_path, (2, 4)), make().fit(X, Y)
    assert same(found, whole)
    assert np.array_equal(found.predict_proba(X), whole.predict_proba(X))  # of averages and snapshots too


def test_a_fit_that_was_ended_is_not_trained_again(tmp_path):
    def stopped(*callbacks):
        return net(EarlyStopping("loss", 2, min_delta=10.0), *callbacks, max_iter=12)

    assert same(resumed(stopped, tmp_path, (2,)), stopped().fit(X, Y))
    steps = []
    again = stopped(Checkpoint(tmp_path), steps.append).fit(X, Y)
    assert again.n_iter_ == 3
    assert steps == []


class CrashAtStep(Callback):
    """Raises after a step; records the steps before it."""

    steers = False

    def __init__(self, last=None):
        self.last = last
        self.steps = []

    def after_step(self, training, loss):
        if training.step == self.last:
            raise Crash
        self.steps.append(training.step)


@each_engine
@pytest.mark.parametrize("case", CASES)
def test_a_fit_goes_on_within_an_epoch_to_the_same_bits(case, engine, tmp_path):
    def make(*callbacks):
        return net(*callbacks, **{"max_iter": 8, "engine": engine, "batch_size": 8} | CASES[case])

    whole, every = make().fit(X, Y), 2
    crashes = (4, 5, 14) if case == "groups" else (2, 3, 6) if case == "one batch" else (5, 20, 41)
    begins = []
    for last in (*crashes, None):
        crash = CrashAtStep(last)
        estimator = make(crash, Checkpoint(tmp_path, every_steps=every))
        if last is None:
            estimator.fit(X, Y)
        else:
            with pytest.raises(Crash):
                estimator.fit(X, Y)
        begins.append((crash.steps or [last])[0])
    assert same(estimator, whole)
    if case != "one batch":  # whose epochs are steps
        assert begins == [1, *((last - 1) // every * every + 1 for last in crashes)]


@pytest.mark.long
def test_state_of_a_device_is_resumed_within_an_epoch(monkeypatch, tmp_path):
    monkeypatch.setitem(OWN_MEMORY, "CPUExecutionProvider", "cpu")

    def make(*callbacks):
        return net(*callbacks, max_iter=4, batch_size=8, optimizer=AdamW(ema_decay=0.9))

    with pytest.raises(Crash):
        make(Checkpoint(tmp_path, every_steps=3), CrashAtStep(8)).fit(X, Y)
    after = CrashAtStep()
    assert same(make(Checkpoint(tmp_path, every_steps=3), after).fit(X, Y), make(CrashAtStep()).fit(X, Y))
    assert after.steps[0] == 7


def test_memory_of_callbacks_is_resumed_within_an_epoch(tmp_path):
    class Losses(Callback):
        def after_step(self, training, loss):
            memory = training.memory(self)
            memory["losses"] = [*memory.get("losses", []), loss]
            return len(memory["losses"]) == 20

    def make(*callbacks):
        return net(*callbacks, Losses(), max_iter=8, batch_size=8)

    with pytest.raises(Crash):
        make(Checkpoint(tmp_path, every_steps=4), CrashAtStep(19)).fit(X, Y)
    whole = make().fit(X, Y)
    found = make(Checkpoint(tmp_path, every_steps=4)).fit(X, Y)
    assert same(found, whole)
    assert found.callbacks_["Losses"] == whole.callbacks_["Losses"]
    # The step that ended training is no state to resume from: the file is that of its epoch.
    assert same(make(Checkpoint(tmp_path, every_steps=4)).fit(X, Y), whole)


def test_files_come_every_so_many_epochs_and_the_latest_stay(tmp_path):
    net(Checkpoint(tmp_path, every=4, keep=2), max_iter=10).fit(X, Y)
    assert [name.split("-")[1] for name in files(tmp_path)] == ["00000008", "00000010"]
    before = files(tmp_path)
    net(Checkpoint(tmp_path, every=4, keep=2, resume=False), max_iter=10).fit(X, Y)
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    "other",
    [
        {"alpha": 0.1}, {"random_state": 1}, {"max_iter": 7}, {"optimizer": "sgd"}, {"model": MLP((7,))},
        {"loss": "focal"}, {"learning_rate": schedules.Cosine(100)}, {"trainable": lambda name, array: array.ndim > 1},
    ],
    ids=lambda other: next(iter(other)),
)  # fmt: skip
def test_a_fit_with_other_settings_does_not_take_the_files(other, tmp_path):
    net(Checkpoint(tmp_path)).fit(X, Y)
    assert same(net(Checkpoint(tmp_path), **other).fit(X, Y), net(**other).fit(X, Y))
    assert len(files(tmp_path)) == 2


STEERING = {
    "patience": [EarlyStopping("loss", patience, min_delta=10.0) for patience in (1, 3)],
    "start": [WeightAveraging(start) for start in (0.2, 0.6)],
    "steps": [LearningRateFinder(steps=steps) for steps in (10, 20)],
}


@pytest.mark.parametrize("case", STEERING)
def test_checkpoints_of_other_steering_callbacks_are_ignored(case, tmp_path):
    for one in STEERING[case]:
        assert same(net(one, Checkpoint(tmp_path)).fit(X, Y), net(one).fit(X, Y))
    assert len(files(tmp_path)) == 2


def test_callbacks_that_only_watch_may_change(tmp_path):
    first = net(EpochScoring("loss", on="train"), Checkpoint(tmp_path)).fit(X, Y)
    steps = []
    assert same(net(Checkpoint(tmp_path, keep=3), steps.append).fit(X, Y), first)
    assert steps == []


@pytest.mark.long
def test_a_fit_with_other_data_does_not_take_the_files(tmp_path):
    heavy, changed = np.ones(len(X)), X.copy()
    heavy[3], changed[5, 2] = 2.0, 9.0
    calls = [
        ((X, Y), {}), ((changed, Y), {}), ((X, 1 - Y), {}), ((X, Y), {"sample_weight": heavy}),
        ((X, Y), {"X_val": X, "y_val": Y}), ((X, Y), {"X_val": X, "y_val": 1 - Y}),
    ]  # fmt: skip
    for data, more in calls:
        assert same(net(Checkpoint(tmp_path)).fit(*data, **more), net().fit(*data, **more))
    assert len(files(tmp_path)) == len(calls)


def test_warm_start_and_partial_fit_resume(tmp_path):
    def trained(*callbacks):
        estimator = net(*callbacks, max_iter=3, warm_start=True).fit(X, Y).fit(X, Y)
        return estimator.partial_fit(X, Y).partial_fit(X, Y)

    whole = trained()
    assert same(trained(Checkpoint(tmp_path)), whole)
    assert len(files(tmp_path)) == 1
    assert same(trained(Checkpoint(tmp_path)), whole)
    assert len(files(tmp_path)) == 1


def test_checkpoints_of_other_padding_are_ignored(tmp_path):
    """The masks of dropout have the shape of the padded minibatch."""
    data = pickle.dumps(net(model=MLP((6, 5), dropout=0.4)).partial_fit(X[:12], Y[:12], classes=[0, 1]))

    def passed(rows, *callbacks):
        estimator = pickle.loads(data).set_params(callbacks=callbacks)
        estimator._state.minibatch_rows = rows
        return estimator.partial_fit(X[:7], Y[:7])

    whole, checkpoint = passed(12), Checkpoint(tmp_path)
    assert not same(passed(None), whole)
    for _ in range(2):
        assert same(passed(12, checkpoint), whole)
    assert same(passed(None, checkpoint), passed(None))


@pytest.mark.slow
def test_a_search_that_is_begun_again_trains_nothing_twice(tmp_path):
    pipeline = make_pipeline(StandardScaler(), net(Checkpoint(tmp_path), max_iter=3))
    search = GridSearchCV(pipeline, {"ortgradientclassifier__alpha": [0.0, 0.1]}, cv=2, n_jobs=2, error_score="raise")
    first = clone(search).fit(X, Y)
    assert len(files(tmp_path)) == 2 * 2 + 1
    times = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    second = clone(search).fit(X, Y)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == times
    assert same(first.best_estimator_[-1], second.best_estimator_[-1])


def test_a_pickled_estimator_goes_on(tmp_path):
    estimator = pickle.loads(pickle.dumps(net(Checkpoint(str(tmp_path)), max_iter=3, warm_start=True).fit(X, Y)))
    plain = net(max_iter=3, warm_start=True).fit(X, Y)
    assert same(estimator.fit(X, Y), plain.fit(X, Y))


def test_parameters_of_checkpoints_are_checked():
    for state in (0, None):
        with pytest.raises(ValueError, match="'every' parameter of Checkpoint must be an int"):
            net(Checkpoint(".", every=0), random_state=state).fit(X, Y)


def slow_net(folder: Path | None, random_state: int | None = 0) -> OrtGradientClassifier:
    callbacks = [] if folder is None else [Checkpoint(folder, keep=2, every_steps=7)]
    return OrtGradientClassifier(
        MLP((8,), dropout=0.2), callbacks=callbacks, batch_size=4, max_iter=40, tol=NEVER, early_stopping=True,
        n_iter_no_change=np.inf, learning_rate="cosine", random_state=random_state,
    )  # fmt: skip


def killed(folder: Path, seconds: float, random_state: int | None = 0) -> bool:
    """Fit in a child process that is killed after some seconds from its first file on; return whether it was alive."""
    child = os.fork()
    if child == 0:
        try:
            slow_net(folder, random_state).fit(X, Y)
        finally:
            os._exit(0)
    began = time.monotonic()
    while not any(folder.glob("*.npz")) and time.monotonic() < began + 60:
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.exhaustive)])
@pytest.mark.long
def test_a_fit_that_is_killed_goes_on_to_the_same_bits(kills, tmp_path):
    whole, rng, count = slow_net(None).fit(X, Y), np.random.default_rng(kills), 0
    for run in range(10 * kills):
        folder = tmp_path / str(run)
        folder.mkdir()
        for _ in range(3):
            count += killed(folder, rng.uniform(0, 0.1))
        found = slow_net(folder).fit(X, Y)
        assert same(found, whole)
        if count >= kills:
            return
    raise AssertionError(f"only {count} processes were alive when they were to be killed")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.exhaustive)])
@pytest.mark.slow
def test_killed_fit_without_random_state_resumes_its_seed(kills, tmp_path):
    moments, count = np.random.default_rng(kills), 0
    for run in range(10 * kills):
        folder = tmp_path / str(run)
        folder.mkdir()
        for _ in range(3):
            count += killed(folder, moments.uniform(0, 0.1), None)
        found = slow_net(folder, None).fit(X, Y)
        assert same(found, slow_net(None, drawn_seed(folder)).fit(X, Y))
        if count >= kills:
            return
    raise AssertionError(f"only {count} processes were alive when they were to be killed")

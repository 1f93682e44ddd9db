"""An error in a call that goes on leaves the estimator as it was: a second call comes to the bits of one alone."""

from __future__ import annotations

import copy
import pickle
import threading
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from onnxtrain_sklearn import MLP, SGD, Linear, OrtGradientClassifier, OrtGradientMultiOutput, OrtGradientRegressor
from onnxtrain_sklearn._estimators import fit
from onnxtrain_sklearn._training.device_step import DeviceStep
from onnxtrain_sklearn._training.passes import HostPass
from onnxtrain_sklearn._training.step import HostStep
from onnxtrain_sklearn.callbacks import Callback
from onnxtrain_sklearn.schedules import Cosine
from tests.combinations.several_draws import split
from tests.helpers.data import blobs
from tests.helpers.environment import OWN_MEMORY
from tests.helpers.step_options import configured

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, Y = blobs()
SETTINGS = {"batch_size": 16, "max_iter": 3, "tol": -np.inf, "random_state": 0, "warm_start": True}
CASES = {
    "adamw": {},
    "momentum": {"optimizer": SGD(0.9, ema_decay=0.9)},
    "schedule": {"learning_rate": Cosine(total_steps=60), "optimizer__accumulate": 2},
    "early stopping": {"early_stopping": True, "validation_split": 0.3},
    "dropout": {"model": MLP((8,), dropout=0.3), "dropout_schedule": "linear"},
    "statistics": {"model": MLP((8,), normalization="batch")},
    "lbfgs": {"optimizer": "lbfgs", "batch_size": "auto"},
}


class Failing(Callback):
    """Raises in a hook of one of the calls, after ``epochs`` tasks of it."""

    def __init__(self, hook="on_fit_task_end", epochs=2):
        self.hook, self.epochs, self.armed = hook, epochs, False

    def count(self, hook, estimator):
        if self.armed and hook == self.hook:
            self.epochs -= 1
            if self.epochs <= 0:
                self.armed = False
                raise RuntimeError("no disk")

    def setup(self, estimator, context):
        self.count("setup", estimator)

    def on_fit_task_begin(self, estimator, context):
        self.count("on_fit_task_begin", estimator)

    def on_fit_task_end(self, estimator, context):
        self.count("on_fit_task_end", estimator)

    def teardown(self, estimator, context):
        self.count("teardown", estimator)


class Counting(Callback):
    def after_epoch(self, training):
        memory = training.memory(self)
        memory["epochs"] = [*memory.get("epochs", []), len(training.row)]


def fails_once(hook="on_fit_task_end", epochs=2, **settings):
    """Return an estimator after a call, and its callback, which fails in the next one."""
    failing = Failing(hook, epochs)
    given = {"model": MLP((8,)), **SETTINGS, **settings}
    estimator = configured(OrtGradientClassifier(callbacks=[failing, Counting()]), **given).fit(X, Y)
    failing.armed = True
    return estimator, failing


def seen(estimator):
    """Return all that the estimator goes on from, and shows."""
    run, rows = estimator._state, [{k: v for k, v in row.items() if k != "seconds"} for row in estimator.history_]
    state = {"buffer": run.parameters.buffer, **run.optimizer_state.slots}
    arrays = {name: array.tobytes() for name, array in {**state, **estimator.weights_}.items()}
    counts = {name: value for name, value in vars(run.optimizer_state).items() if name != "slots"}
    return arrays, counts, dict(vars(run.history.progress)), rows, estimator.loss_curve_, repr(estimator.callbacks_)


def attempted(estimator, call="fit", error=RuntimeError):
    with pytest.raises(error):
        getattr(estimator, call)(X[::-1], Y[::-1])


@pytest.mark.parametrize("name", CASES)
def test_a_call_that_failed_has_changed_nothing(name):
    estimator, _ = fails_once(**CASES[name])
    before, twin = seen(estimator), pickle.loads(pickle.dumps(estimator))
    attempted(estimator)
    assert seen(estimator) == before
    twin.callbacks[0].armed = False
    for one in (estimator, twin):
        one.fit(X, Y)
    assert seen(estimator) == seen(twin) != before


class Asking(Failing):
    """Asks for predictions in the course of the call."""

    def on_fit_task_end(self, estimator, context):
        if self.armed:
            estimator.predict_proba(X)
        super().on_fit_task_end(estimator, context)


@pytest.mark.parametrize("call", ["fit", "partial_fit"])
def test_predictions_in_a_call_that_failed_are_not_kept(call):
    asking = Asking(epochs=1)
    estimator = OrtGradientClassifier(MLP((8,)), callbacks=[asking], **SETTINGS).fit(X, Y)
    expected = pickle.loads(pickle.dumps(estimator)).predict_proba(X)
    asking.armed = True
    attempted(estimator, call)
    np.testing.assert_array_equal(estimator.predict_proba(X), expected)


@pytest.mark.parametrize("hook", ["setup", "on_fit_task_begin", "on_fit_task_end", "teardown"])
def test_a_pass_that_failed_has_changed_nothing(hook):
    estimator, failing = fails_once(hook, 1)
    before = seen(estimator)
    attempted(estimator, "partial_fit")
    assert seen(estimator) == before
    assert not failing.armed
    assert estimator.partial_fit(X, Y).n_iter_ == 4


def test_random_state_of_the_user_is_restored_after_a_failed_fit():
    rng, failing = np.random.RandomState(0), Failing(epochs=2)
    failing.armed = True
    estimator = OrtGradientClassifier(MLP((8,)), callbacks=[failing], **SETTINGS | {"random_state": rng})
    attempted(estimator)
    assert not hasattr(estimator, "n_iter_")
    np.testing.assert_array_equal(rng.randint(1000, size=9), np.random.RandomState(0).randint(1000, size=9))


def test_settings_of_a_call_that_failed_do_not_count():
    """Another optimizer has other state, other parameters are another vector."""
    for changes in ({"optimizer": "rmsprop"}, {"optimizer__ema_decay": 0.5}, {"trainable": "*bias"}):
        estimator, _ = fails_once()
        names = {name.partition("__")[0] for name in changes}
        before, given = seen(estimator), {name: copy.deepcopy(getattr(estimator, name)) for name in names}
        attempted(estimator.set_params(**changes))
        assert seen(estimator) == before
        twin = pickle.loads(pickle.dumps(estimator.set_params(**given)))
        for one in (estimator, twin):
            one.partial_fit(X, Y)
        assert seen(estimator) == seen(twin)


def test_any_error_rolls_back_the_call():
    def fails(*arguments):
        raise RuntimeError("no disk")

    estimator = OrtGradientClassifier(MLP((8,)), **SETTINGS).fit(X, Y)
    before = seen(estimator)
    attempted(estimator.set_params(callbacks=[fails]))
    attempted(estimator.set_params(callbacks=None, scoring=fails, early_stopping=True))
    estimator.set_params(scoring=None, early_stopping=False)
    steps, plain = [], HostStep.compute_gradients

    def fails_later(step, *arguments):
        steps.append(1)
        return fails() if len(steps) == 9 else plain(step, *arguments)

    with mock.patch.object(HostStep, "compute_gradients", fails_later):
        attempted(estimator)
    assert len(steps) == 9
    assert seen(estimator) == before


def test_large_state_is_copied_for_user_code_and_many_steps():
    estimator, copies = OrtGradientRegressor(Linear(), **SETTINGS).fit(X, Y), []
    plain = fit.ResumedState.copy_arrays

    def counted(state):
        copies.append(1)
        plain(state)

    with (
        mock.patch.object(fit, "ALWAYS_COPIED", 1),
        mock.patch.object(fit.ResumedState, "copy_arrays", counted),
    ):
        steps = 3 * -(-len(X) // 16)
        with mock.patch.object(fit, "MANY_STEPS", steps + 1):
            estimator.fit(X, Y)
            assert not copies
            estimator.set_params(callbacks=[lambda epoch: None]).fit(X, Y)
            assert len(copies) == 1
        with mock.patch.object(fit, "MANY_STEPS", steps):
            estimator.set_params(callbacks=None).fit(X, Y)
            assert len(copies) == 2
            with mock.patch.object(fit, "COPIED_FOR_STEPS", 1):
                estimator.fit(X, Y)
        assert len(copies) == 2


@pytest.mark.parametrize("name", ["adamw", "schedule", "dropout", "statistics", "lbfgs"])
def test_a_large_state_goes_back_from_an_error_before_its_first_step(name, where):
    """Nothing is copied: no array has changed, but for the running statistics. Later the weights alone go back."""
    estimator = configured(OrtGradientClassifier(), **{"model": MLP((8,)), **SETTINGS, **CASES[name]}).fit(X, Y)
    before = seen(estimator)
    with mock.patch.object(fit, "ALWAYS_COPIED", 1), mock.patch.object(fit, "COPIED_FOR_STEPS", 1):
        with failing_passes(after=1):
            attempted(estimator)
        assert seen(estimator) == before
        with failing_passes(after=3 if name == "lbfgs" else 5):
            attempted(estimator)
    arrays, counts, *_ = seen(estimator)
    if name != "lbfgs":
        assert arrays["buffer"] == before[0]["buffer"]
        assert counts["t"] > before[1]["t"]
    assert estimator.fit(X, Y).n_iter_ > 3


@contextmanager
def failing_passes(after):
    """Let the forward and backward pass of that number fail."""
    passes = []

    def counted():
        passes.append(1)
        if len(passes) == after:
            raise RuntimeError("no memory")

    def run(host_pass, *arguments, plain=HostPass.run):
        result = plain(host_pass, *arguments)  # which changes the running statistics
        counted()
        return result

    def device_pass(step, *arguments, plain=DeviceStep._pass, **named):
        one = plain(step, *arguments, **named)
        gradient = mock.Mock(wraps=one.gradient_graph)
        gradient.run.side_effect = lambda **feeds: one.gradient_graph.run(**feeds) or counted()
        return replace(one, gradient_graph=gradient)

    with mock.patch.object(HostPass, "run", run), mock.patch.object(DeviceStep, "_pass", device_pass):
        yield


def test_attributes_that_cannot_be_copied_are_kept():
    class Logging(Callback):
        def after_epoch(self, training):
            memory = training.memory(self)
            memory.setdefault("lock", threading.Lock())
            memory["epochs"] = memory.get("epochs", 0) + 1

    logging = Logging()
    estimator = OrtGradientClassifier(MLP((8,)), callbacks=[logging], **SETTINGS)
    estimator.fit(X, Y).fit(X, Y)
    estimator.set_params(callbacks=[logging, Failing()]).callbacks[1].armed = True
    attempted(estimator)
    (memory,) = (one for one in estimator._state.history.memories.values() if one)
    assert memory["epochs"] == 6


def test_on_a_device():
    with mock.patch.dict(OWN_MEMORY, {"CPUExecutionProvider": "cpu"}):
        estimator, _ = fails_once()
        before, twin = seen(estimator), pickle.loads(pickle.dumps(estimator))
        attempted(estimator)
        assert seen(estimator) == before
        twin.callbacks[0].armed = False
        for one in (estimator, twin):
            one.fit(X, Y)
        assert seen(estimator) == seen(twin)


def test_several_outputs():
    graph = split(MLP((8,)).build(X.shape[1], 2, 0), {"first": 1, "second": 1})
    failing = Failing()
    estimator = OrtGradientMultiOutput(graph, loss={"first": "log_loss", "second": "huber"}, callbacks=[failing])
    y = {"first": Y, "second": X[:, 0]}
    estimator.set_params(**SETTINGS).fit(X, y)
    failing.armed, before = True, seen(estimator)
    with pytest.raises(RuntimeError, match="no disk"):
        estimator.fit(X, y)
    assert seen(estimator) == before

"""What is kept of training: constant time and bounded space per epoch, and nothing by halves."""

from __future__ import annotations

import copy
import linecache
import math
import pickle
import sys
import warnings
from types import FrameType
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from onnxtrain_sklearn import MLP, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn._training import history as _history
from onnxtrain_sklearn._training.history import Curve, History

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

rng = np.random.RandomState(0)
X = rng.normal(size=(40, 3)).astype(np.float32)
y = (X.sum(axis=1) > 0).astype(int)


def longer(curve: Curve, numbers: range) -> Curve:
    for number in numbers:
        curve = curve.plus(number)
    return curve


def test_a_curve_holds_the_latest_numbers(monkeypatch):
    monkeypatch.setattr(_history, "KEPT", 50)
    curve = Curve()
    assert (curve.values(), math.isnan(curve.last())) == ([], True)
    for i in range(500):
        curve = curve.plus(i)
        assert curve.values() == [float(n) for n in range(max(0, i - 49), i + 1)]
        assert curve.last() == i
        assert len(curve.buffer) <= 100


def test_curves_are_values():
    first = longer(Curve(), range(20))
    second = first.plus(7.0)
    assert first.values() == [float(n) for n in range(20)]
    for how in (copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))):
        twin = how(first)
        assert twin.plus(1.0).values() == [*map(float, range(20)), 1.0]
        assert second.values()[-1] == 7.0
    assert first.plus(5.0).last() == 5.0
    assert second.last() == 7.0
    read_only = Curve(first.buffer[:20], 20)
    read_only.buffer.flags.writeable = False
    assert read_only.plus(3.0).last() == 3.0


def test_pickled_curve_is_bounded(monkeypatch):
    monkeypatch.setattr(_history, "KEPT", 1000)
    curve = longer(Curve(), range(5000))
    assert len(pickle.dumps(curve)) < 8 * 1000 + 500


def partly_trained(calls: int) -> OrtGradientClassifier:
    estimator = OrtGradientClassifier(MLP((3,)), random_state=0).partial_fit(X, y, classes=[0, 1])
    history = estimator._state.history
    for loss in np.linspace(2, 1, calls - 1):
        history.add_epoch(float(loss), None, rows=len(X), tol=0.0, parameters=np.zeros(0))
    return estimator


def count_of_lines(call: Any) -> int:
    """Return how many lines of the package ``call`` runs."""
    lines = 0

    def tracer(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        lines += event == "line" and str(frame.f_globals.get("__name__")).startswith("onnxtrain_sklearn.")
        return tracer

    sys.settrace(tracer)
    try:
        call()
    finally:
        sys.settrace(None)
    return lines


def test_cost_of_a_call_does_not_grow_with_history(monkeypatch):
    monkeypatch.setattr(_history, "KEPT", 1000)
    monkeypatch.setattr(_history, "KEPT_ROWS", 100)
    short, long = partly_trained(5), partly_trained(20_005)
    for estimator in (short, long):  # what is done once is done
        estimator.partial_fit(X, y)
    lines = [count_of_lines(lambda e=e: e.partial_fit(X, y)) for e in (short, long)]
    assert lines[0] == lines[1]
    assert len(pickle.dumps(long)) < len(pickle.dumps(short)) + 8 * 1000 + 60 * 100
    assert (long.n_iter_, long.t_, len(long.loss_curve_)) == (20_007, 20_007 * len(X), 1000)
    assert not any(isinstance(value, list) for value in vars(long).values())
    assert long.best_loss_ <= min(long.loss_curve_)
    assert long.loss_ == long.loss_curve_[-1]


def test_the_least_loss_is_remembered_when_it_is_no_longer_kept(monkeypatch):
    monkeypatch.setattr(_history, "KEPT", 3)
    history = History()
    for loss in (5.0, 1.0, 4.0, 3.0, 3.0, 3.0):
        history.add_epoch(loss, 0.5, rows=2, tol=0.0, parameters=np.zeros(1))
    assert (history.least_loss, history.loss_curve) == (1.0, [3.0, 3.0, 3.0])


def test_attributes_of_training_are_there_from_the_first_fit_on():
    names = ["n_iter_", "t_", "loss_", "loss_curve_", "best_loss_", "validation_scores_", "best_validation_score_"]
    estimator = OrtGradientClassifier(MLP((3,)), max_iter=2, random_state=0)
    for name in names:
        assert not hasattr(estimator, name)
        with pytest.raises(AttributeError, match=f"OrtGradientClassifier.*{name}.*not fitted"):
            getattr(estimator, name)
    estimator.fit(X, y)
    assert all(hasattr(estimator, name) for name in names)
    assert isinstance(estimator.loss_curve_, list)
    assert (estimator.n_iter_, estimator.t_, estimator.validation_scores_) == (2, 80, None)


# -- interrupts between any two lines ---------------------------------------------------------------------------------


def holds_lock(frame: FrameType) -> bool:
    """Return True if the line enters or leaves ``with lock``.

    A function of tracing may raise between the end of the body and the release of the lock, which then stays locked.
    CPython handles signals at calls, when the lock is released already.
    """
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip().lower()
    return line.startswith("with ") and "lock" in line


class Interrupted:
    """Raise KeyboardInterrupt at line number ``at`` of those of the package that run."""

    def __init__(self, at: int) -> None:
        self.at, self.seen = at, 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if not str(frame.f_globals.get("__name__")).startswith("onnxtrain_sklearn."):
            return None
        if event == "line":
            self.seen += 1
            if self.seen >= self.at and not holds_lock(frame):
                sys.settrace(None)
                raise KeyboardInterrupt
        return self

    def during(self, call: Any) -> bool:
        """Run ``call``; return whether it was interrupted."""
        sys.settrace(self)
        try:
            call()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        return self.seen >= self.at


def assert_consistent(estimator: OrtGradientRegressor, call: int) -> None:
    assert estimator.n_iter_ == len(estimator.loss_curve_), call
    assert estimator.t_ == estimator.n_iter_ * len(X), call
    if estimator.validation_scores_ is not None:
        assert len(estimator.validation_scores_) == estimator.n_iter_, call
    twin = pickle.loads(pickle.dumps(estimator))
    assert_array_equal(estimator.predict(X), twin.predict(X))  # no stale session
    assert np.isfinite(estimator.predict(X)).all(), call


@pytest.mark.slow
@pytest.mark.thinned(by=lambda method: {"interrupt"})
@pytest.mark.parametrize("method", ["fit", "partial_fit", "early stopping"])
def test_an_interrupt_at_any_line_leaves_a_whole_epoch_or_none(method):
    settings = {"warm_start": True, "max_iter": 2, "early_stopping": method == "early stopping", "batch_size": 20}
    base = OrtGradientRegressor(MLP((3,)), random_state=0, learning_rate_init=0.1, **settings)
    validation = {"X_val": X, "y_val": y} if method == "early stopping" else {}
    base.fit(X, y, **validation)

    def call(estimator: OrtGradientRegressor) -> None:
        if method == "partial_fit":
            estimator.partial_fit(X, y)
        else:
            estimator.fit(X, y, **validation)

    at, estimator = 1, copy.deepcopy(base)
    call(estimator)  # sessions are there now
    while True:
        before = estimator.n_iter_
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            struck = Interrupted(at).during(lambda e=estimator: call(e))
        assert_consistent(estimator, at)
        assert estimator.n_iter_ >= before
        if not struck:
            break
        at += 17 if at % 2 else 12  # a part of the lines, of every kind
    assert at > 300


@pytest.mark.slow
def test_an_interrupt_of_the_first_fit_leaves_it_fitted_or_not():
    at, ends = 1, set()
    while True:
        estimator = OrtGradientRegressor(MLP((3,)), random_state=0, max_iter=2)
        interrupted = Interrupted(at)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            struck = interrupted.during(lambda e=estimator: e.fit(X, y))
        fitted = hasattr(estimator, "n_outputs_")
        ends.add(fitted)
        assert hasattr(estimator, "loss_curve_") == hasattr(estimator, "n_iter_") == fitted
        if fitted:
            assert_consistent(estimator, at)
        else:
            assert vars(estimator) == vars(OrtGradientRegressor(estimator.model, random_state=0, max_iter=2))
        if not struck:
            break
        at = round(at * 1.2) + 1
    assert ends == {True, False}

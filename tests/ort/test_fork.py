"""Forked children of a process that has trained: they make sessions of their own, as threads do not come along."""

from __future__ import annotations

import os

import pytest

from tests.helpers.environment import available_engines
from tests.helpers.processes import run_in_new_process

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

PROGRAM = """
import gc, os, signal, sys, warnings
warnings.simplefilter("ignore")
import numpy as np
from onnxtrain_sklearn import MLP, OrtGradientRegressor, Runtime
from onnxtrain_sklearn._inference.predictor import Predictor

rows = 400
X = np.random.RandomState(0).normal(size=(rows, 600)).astype(np.float32)
y = X[:, :9].sum(axis=1)
estimator = OrtGradientRegressor(
    MLP((1200,)), engine=sys.argv[1], batch_size=rows, random_state=0,
    runtime=Runtime(session_options={"intra_op_num_threads": 4}),
)
estimator.partial_fit(X, y)
before, session = estimator.predict(X), next(iter(estimator._state.live.predictors.values()))._session

def in_a_child(work):
    pid = os.fork()
    if not pid:
        signal.alarm(100)  # ends a child that hangs
        try:
            work()
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1]

def predict():
    assert np.allclose(estimator.predict(X), before, atol=1e-5)
    assert next(iter(reversed(estimator._state.live.predictors.values())))._session is not session

def go_on():
    step = estimator._state.live.step
    estimator.partial_fit(X, y)
    assert estimator._state.live.step is not step
    after = estimator.predict(X)
    assert not np.allclose(after, before, atol=1e-5)
    assert in_a_child(lambda: np.testing.assert_allclose(estimator.predict(X), after, atol=1e-5)) == 0  # once more

def let_go():
    global session
    del session
    estimator.__dict__.clear()
    gc.collect()

for work in (predict, go_on, let_go):
    ended = in_a_child(work)
    assert ended == 0, (work.__name__, ended)
assert (estimator.predict(X) == before).all()  # the parent goes on with its own
assert next(iter(estimator._state.live.predictors.values()))._session is session
"""


@pytest.mark.slow
@pytest.mark.thinned(by=lambda engine: {"sessions"})
@pytest.mark.parametrize("engine", available_engines())
def test_forked_child_uses_own_sessions(engine):
    run_in_new_process(PROGRAM, engine, seconds=400)

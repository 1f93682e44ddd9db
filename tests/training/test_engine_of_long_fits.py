"""``engine="auto"`` compiles the graph of a fit that plans enough steps, once and for all calls that go on from it."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone

from onnxtrain_sklearn import (
    MLP,
    ConvNet,
    OrtGradientClassifier,
    OrtGradientRegressor,
    RealMLPRegressor,
    Runtime,
    clear_cache,
)
from onnxtrain_sklearn._compiler import code
from onnxtrain_sklearn._training import step_choice
from onnxtrain_sklearn._training.programs import COMPILED, PassSize
from onnxtrain_sklearn._training.step_choice import is_measured, pays
from onnxtrain_sklearn.callbacks import Checkpoint
from tests.helpers.data import line
from tests.helpers.step_options import configured
from tests.helpers.tuning import compile_any_fit

pytest.importorskip("llvmlite", reason="graphs are compiled by llvmlite")
pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.skipif(not is_measured(), reason="the processor is none of those that 'auto' compiles for"),
]

ROWS = 43
X, Y = line(ROWS)
SMALL = PassSize(work=1e5, nodes=20, elements=2e4)


def estimator_of(kind=OrtGradientRegressor, **settings):
    given = {"model": MLP((8, 6)), "batch_size": 10, "max_iter": 4, "random_state": 0}
    return configured(kind(), **{**given, **settings})


def bits(estimator):
    return {name: array.tobytes() for name, array in estimator.weights_.items()}


@pytest.fixture
def any_fit_is_long(monkeypatch):
    """Let a graph be compiled for the steps of any fit."""
    compile_any_fit(monkeypatch)


def test_steps_pay_from_a_number_on():
    cost = 0.1 + 0.05 + 20 * 7e-4
    saved = 20 * 5e-7 + 2e4 * 1.2e-10
    enough = int(3 * cost / saved) + 1
    assert pays(SMALL, enough)
    assert not pays(SMALL, enough - 2)
    assert not pays(SMALL._replace(work=4e6), 100 * enough)  # a session runs it on all cores
    assert pays(SMALL._replace(elements=4e4), enough - 2)


@pytest.mark.long
def test_a_fit_is_long_by_its_passes_not_by_its_steps(monkeypatch):
    asked = []
    monkeypatch.setattr(step_choice, "pays", lambda size, passes: asked.append(passes) or False)
    estimator_of(max_iter=4).fit(X, Y)
    estimator_of(max_iter=3000, n_iter_no_change=1, tol=1e9).fit(X, Y)
    estimator_of(max_iter=2, optimizer__accumulate=2).fit(X, Y)
    RealMLPRegressor(max_iter=250, n_ensembles=1, random_state=0).fit(X, Y)  # trains in all epochs
    assert asked == [4 * 5, 200 * 5, 2 * 5, 250]


def test_short_fits_load_no_compiler(monkeypatch):
    monkeypatch.setattr(step_choice, "auto_compiles", lambda: pytest.fail("loads llvmlite"))
    assert estimator_of().fit(X, Y).engine_ != COMPILED
    assert estimator_of().partial_fit(X, Y).engine_ != COMPILED


def test_long_fits_are_those_of_compiled_code(any_fit_is_long):
    ours, named = estimator_of().fit(X, Y), estimator_of(engine=COMPILED).fit(X, Y)
    assert ours.engine_ == COMPILED
    assert bits(ours) == bits(named)
    assert bits(clone(ours).fit(X, Y)) == bits(ours)


def test_code_compiled_earlier_does_not_change_the_choice():
    before = estimator_of().fit(X, Y)
    estimator_of(engine=COMPILED).fit(X, Y)
    after = estimator_of().fit(X, Y)
    assert after.engine_ == before.engine_ != COMPILED
    assert bits(after) == bits(before)


def test_a_run_goes_on_with_the_engine_that_it_began_with(monkeypatch):
    portable = estimator_of(warm_start=True).partial_fit(X, Y)
    began = portable.engine_
    compile_any_fit(monkeypatch)
    compiled = estimator_of(warm_start=True).fit(X, Y)
    for estimator in (portable, compiled):
        estimator.fit(X, Y).partial_fit(X, Y)
    monkeypatch.undo()
    for estimator, engine in ((portable, began), (compiled, COMPILED)):
        estimator.fit(X, Y).partial_fit(X[:17], Y[:17])
        assert estimator.engine_ == engine
    assert compiled.set_params(engine="portable").partial_fit(X, Y).engine_ == "portable"
    assert compiled.set_params(engine="auto", warm_start=False).fit(X, Y).engine_ == began


def test_an_unpickled_estimator_goes_on_with_its_engine(any_fit_is_long):
    original = estimator_of().fit(X, Y)
    copy = pickle.loads(pickle.dumps(original))
    assert bits(copy.partial_fit(X, Y)) == bits(original.partial_fit(X, Y))
    assert copy.engine_ == COMPILED


def test_an_unpickled_estimator_goes_on_without_the_compiler(any_fit_is_long, monkeypatch):
    original = estimator_of(alpha=0).fit(X, Y)
    stored, expected = pickle.dumps(original), bits(original.partial_fit(X, Y))
    monkeypatch.setattr(step_choice, "is_installed", lambda: False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy = pickle.loads(stored)
        copy.predict(X)
        copy.partial_fit(X, Y)
    assert copy.engine_ != COMPILED
    assert bits(copy) != expected
    for name, array in original.weights_.items():
        np.testing.assert_allclose(copy.weights_[name], array, atol=1e-5)


def test_a_checkpoint_goes_on_to_the_same_bits(any_fit_is_long, tmp_path):
    def stop(epoch):
        if epoch.number == 2:
            raise RuntimeError("stopped")

    whole = estimator_of().fit(X, Y)
    with pytest.raises(RuntimeError, match="stopped"):
        estimator_of(callbacks=[Checkpoint(tmp_path / "state"), stop]).fit(X, Y)
    resumed = estimator_of(callbacks=[Checkpoint(tmp_path / "state")]).fit(X, Y)
    assert resumed.engine_ == COMPILED
    assert bits(resumed) == bits(whole)


IMAGES = np.random.default_rng(0).normal(size=(20, 1, 8, 8)).astype(np.float32), np.arange(20) % 2
SESSIONS = {
    "an operator that is not compiled": (IMAGES, {"kind": OrtGradientClassifier, "model": ConvNet()}),
    "session options": ((X, Y), {"runtime": Runtime(session_options={"intra_op_num_threads": 1})}),
    "activations that are computed again": (
        (X, Y),
        {"runtime": Runtime(checkpoint_activations=True), "model": MLP((8,) * 8)},
    ),
    "statistics of minibatches": ((X, Y), {"model": MLP((8,), normalization="batch")}),
    "a large network": ((X, Y), {"model": MLP((700, 700))}),
    "L-BFGS": ((X, Y), {"optimizer": "lbfgs"}),
    "another engine": ((X, Y), {"engine": "portable"}),
}


@pytest.mark.parametrize("name", SESSIONS)
def test_uncompiled_graph_runs_in_a_session_without_a_warning(name, any_fit_is_long):
    data, settings = SESSIONS[name]
    estimator = estimator_of(**settings).fit(*data)
    assert estimator.engine_ != COMPILED


def broken(*_):
    raise OSError("no rights")


WITHOUT = [(step_choice, "is_installed"), (step_choice, "is_measured"), (code, "MachineCode")]


@pytest.mark.parametrize("where", WITHOUT)
def test_a_session_runs_where_the_compiler_does_not(where, any_fit_is_long, monkeypatch):
    expected = bits(estimator_of(engine=estimator_of().partial_fit(X, Y).engine_).fit(X, Y))
    clear_cache()
    module, name = where
    monkeypatch.setattr(module, name, broken if name == "MachineCode" else lambda: False)
    estimator = estimator_of().fit(X, Y)
    assert estimator.engine_ != COMPILED
    assert bits(estimator) == expected


@pytest.mark.parametrize("machine", ["aarch64", "arm64"])
def test_other_processors_compile_by_name_alone(machine, monkeypatch):
    monkeypatch.setattr(step_choice.platform, "machine", lambda: machine)
    assert not is_measured.__wrapped__()

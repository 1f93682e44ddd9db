"""The kind of a step and the reason, as describe() shows them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse as sp

from onnxtrain_sklearn import MLP, ConvNet, Linear, OrtGradientClassifier, OrtGradientRegressor, Runtime
from tests.helpers.data import line
from tests.helpers.environment import OWN_MEMORY, auto_compiles, available_engines
from tests.helpers.tuning import compile_any_fit, hide_compiler

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, Y = line(43)
SHORT = "passes by a session, updates on the host: compiling would take longer than it saves"
GIVEN = "passes by a session, updates on the host: the engine is given"

needs_compiler = pytest.mark.skipif(not auto_compiles(), reason="'auto' compiles nothing in this environment")


def fitted(model=None, data=(X, Y), kind=OrtGradientRegressor, **settings):
    given = {"batch_size": 10, "max_iter": 3, "random_state": 0, **settings}
    return kind(model or MLP((6,)), **given).fit(*data)


def test_short_fit_is_run_by_a_session():
    assert fitted().describe().step == SHORT
    assert f"\nstep: {SHORT}\n" in str(fitted().describe())


def test_estimator_before_training_has_no_step():
    assert OrtGradientRegressor(MLP((6,))).describe().step == ""


def test_step_is_described_after_unpickling():
    assert pickle.loads(pickle.dumps(fitted())).describe().step == SHORT


def test_named_engine_is_a_session():
    assert fitted(engine=available_engines()[0]).describe().step == GIVEN


def test_lbfgs_is_updated_by_scipy():
    reason = "passes by a session, updates by SciPy: L-BFGS keeps its vectors on the host"
    assert fitted(optimizer="lbfgs", batch_size="auto").describe().step == reason


def test_device_with_own_memory_keeps_its_step(monkeypatch):
    monkeypatch.setitem(OWN_MEMORY, "CPUExecutionProvider", "cpu")
    expected = "passes by a session on the device, updates on the device: the device has memory of its own"
    assert fitted().describe().step == expected


@needs_compiler
def test_named_compiler_is_machine_code():
    assert fitted(engine="compiled").describe().step == "passes by machine code, updates on the host: engine='compiled'"


@needs_compiler
class TestLongFits:
    @pytest.fixture(autouse=True)
    def _any_fit_is_long(self, monkeypatch):
        compile_any_fit(monkeypatch)

    def test_long_fit_is_machine_code(self):
        first = fitted()
        assert first.describe().step.endswith("the planned passes save more time than compiling takes")
        resumed = pickle.loads(pickle.dumps(first)).partial_fit(X, Y)
        assert resumed.describe().step == "passes by machine code, updates on the host: the training began with it"

    @pytest.mark.parametrize(
        ("settings", "reason"),
        [
            ({"runtime": Runtime(session_options={"enable_mem_pattern": False})}, "session_options are given"),
            (
                {"runtime": Runtime(checkpoint_activations=True), "model": MLP((6, 6, 6))},
                "checkpoint_activations is set",
            ),
            ({"model": MLP((6,), normalization="batch")}, "rows of a minibatch meet"),
        ],
        ids=lambda case: case if isinstance(case, str) else "",
    )
    def test_setting_that_needs_a_session_is_the_reason(self, settings, reason):
        found = fitted(**settings).describe()
        assert found.step == f"passes by a session, updates on the host: {reason}"
        assert found.engine != "compiled"

    def test_sparse_rows_are_the_reason(self):
        rows = sp.random(40, 3000, 0.002, "csr", np.float32, 0)
        found = fitted(Linear(), (rows, np.arange(40) % 2), OrtGradientClassifier).describe()
        assert found.step == "passes by a session, updates on the host: the rows are sparse"

    def test_graph_that_cannot_be_compiled_is_the_reason(self):
        images = np.random.default_rng(0).normal(size=(20, 1, 8, 8)).astype(np.float32)
        found = fitted(ConvNet(), (images, np.arange(20) % 2), OrtGradientClassifier).describe()
        assert found.step == "passes by a session, updates on the host: the graph cannot be compiled"

    def test_missing_compiler_is_the_reason(self, monkeypatch):
        hide_compiler(monkeypatch)
        assert "llvmlite is not installed" in fitted().describe().step

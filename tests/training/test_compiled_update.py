"""Compiled updates are those of NumPy to the bit, and training goes over to them in between."""

from __future__ import annotations

import gc
import os
import signal
import sys
import weakref
from threading import Event, Thread

import numpy as np
import onnx_ir as ir
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

from onnxtrain_sklearn import MLP, SGD, AdamW, Linear, OrtGradientClassifier, OrtGradientRegressor, clear_cache
from onnxtrain_sklearn._ort import llvm
from onnxtrain_sklearn._ort.llvm import MachineCode
from onnxtrain_sklearn._training import update_executors
from onnxtrain_sklearn._training.update_executors import (
    INSTRUCTIONS,
    INTRINSICS,
    LANES,
    UFUNCS,
    NumpyUpdate,
    formula_of,
)
from onnxtrain_sklearn.exceptions import ModelError
from onnxtrain_sklearn.optimizers import Optimizer, update_graph
from tests.helpers.step_options import configured
from tests.helpers.tuning import tune

pytest.importorskip("llvmlite", reason="compiled updates need llvmlite")

SIZES = (1, LANES - 1, LANES, 2 * LANES + 3, 1000)


class Other(Optimizer):
    """All operators that formulas have, with a constant, and scalars that are computed."""

    def update(self, op, p, g, state, k):
        rate = op.Neg(op.Sqrt(op.Abs(k["learning_rate"])))
        step = op.Div(op.Mul(op.Identity(g), rate), op.Add(op.Sqrt(op.Abs(g)), 0.25))
        return op.Sub(p, op.Neg(step)), {}


def let_compiling_take(seconds, monkeypatch):
    """Begin to count what compiled updates would save, with this cost."""
    tune(monkeypatch, compiling=seconds, loading=seconds)
    monkeypatch.setattr(update_executors.SAVINGS, "_seconds", 0.0)
    monkeypatch.setattr(update_executors.SAVINGS, "suffice", False)


@pytest.fixture
def compiled(monkeypatch):
    """Return a list that gets an entry for each update that is compiled; the session updates no vector."""
    path, make, made = "onnxtrain_sklearn._training", update_executors.CompiledUpdate, []
    monkeypatch.setattr(f"{path}.updates.gradient_builder.has_gradient_builder", lambda: False)
    tune(monkeypatch, least_elements=0)
    monkeypatch.setattr(update_executors, "CompiledUpdate", lambda *given: (made.append(0), make(*given))[1])
    return made


def arrays(graph, size, dtype):
    rng = np.random.default_rng(0)
    found = {"parameters": rng.normal(size=size).astype(dtype)}
    return found | {name: np.abs(rng.normal(size=size)).astype(dtype) for name in graph.slots}


def test_all_operators_of_formulas_can_be_compiled():
    assert UFUNCS.keys() == {*INSTRUCTIONS, *INTRINSICS, "Identity"}


@pytest.mark.parametrize("kind", [ir.DataType.FLOAT, ir.DataType.DOUBLE])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("optimizer", [AdamW(), Other()], ids=repr)
def test_results_are_those_of_numpy_to_the_bit(optimizer, size, kind):
    graph, dtype = update_graph(optimizer, kind), kind.numpy()
    formula = formula_of(graph)
    ours, theirs, before = (arrays(graph, size, dtype) for _ in range(3))
    gradients = np.random.default_rng(1).normal(size=size).astype(dtype)
    gradients[1:2] = 1e-30  # whose square is no normal number, or zero
    scalars = {name: np.zeros((), dtype) for name in graph.scalars(0.1, 1)}
    runs = [
        make(formula, v, gradients, scalars)
        for make, v in ((update_executors.CompiledUpdate, ours), (NumpyUpdate, theirs))
    ]
    for t in range(1, 4):
        for name, value in graph.scalars(0.1, t).items():
            scalars[name][()] = value
        for one in runs:
            one.run()
    assert not np.array_equal(theirs["parameters"], before["parameters"])
    for name, vector in theirs.items():
        assert ours[name].tobytes() == vector.tobytes(), name


def test_array_constants_in_elementwise_update_are_refused():
    class Masked(Optimizer):
        def update(self, op, p, g, state, k):
            mask = op.constant(np.float32([1, 0, 1, 0]))
            return op.Sub(p, op.Mul(op.Mul(g, mask), k["learning_rate"])), {}

    with pytest.raises(ModelError, match=r"Masked.update has constants of several elements, .* elementwise = False"):
        update_graph(Masked(), ir.DataType.FLOAT)


def test_a_loop_keeps_its_arrays():
    graph = update_graph(AdamW(), ir.DataType.FLOAT)
    formula, vectors = formula_of(graph), arrays(graph, 100, np.float32)
    scalars = {name: np.array(value, np.float32) for name, value in graph.scalars(0.1, 1).items()}
    given = [*vectors.values(), np.ones(100, np.float32), *scalars.values()]
    known = [weakref.ref(array) for array in given]
    run = update_executors.CompiledUpdate(formula, vectors, given[-1 - len(scalars)], scalars).run
    del vectors, scalars, given
    gc.collect(1)  # what is young
    run()
    assert all(one() is not None for one in known)
    del run
    assert all(one() is None for one in known)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"optimizer__learning_rate_factors": {"layers.0.weight": 0.5}},
        {"optimizer__accumulate": 2},
        {"optimizer": SGD()},
    ],
    ids=str,
)
def test_training_goes_over_to_compiled_updates_with_the_same_weights(settings, compiled, monkeypatch):
    X, found = np.random.default_rng(0).normal(size=(90, 8)).astype(np.float32), []
    for seconds in (np.inf, 5e-5, 0.0):
        let_compiling_take(seconds, monkeypatch)
        kept = {"batch_size": 10, "max_iter": 9, "random_state": 0, "optimizer": AdamW(), **settings}
        with pytest.warns(ConvergenceWarning):
            found.append((configured(OrtGradientRegressor(MLP((20,))), **kept).fit(X, X[:, 0]).weights_, len(compiled)))
    assert found[0][1] == 0 < found[1][1] < found[2][1]
    for name, array in found[0][0].items():
        assert all(weights[name].tobytes() == array.tobytes() for weights, _ in found[1:]), name


@pytest.mark.long
def test_a_process_compiles_once_that_pays(compiled, monkeypatch):
    let_compiling_take(1e-2, monkeypatch)
    X, y = np.random.default_rng(0).normal(size=(90, 8)).astype(np.float32), np.arange(90) % 2
    estimator = OrtGradientClassifier(MLP((20,)), batch_size=10, optimizer=AdamW(), random_state=0)
    calls = 0
    while not compiled:
        estimator.partial_fit(X, y, [0, 1])
        calls += 1
    assert 3 < calls < 300
    OrtGradientClassifier(MLP((20,)), batch_size=10, optimizer=AdamW(), random_state=0).partial_fit(X, y, [0, 1])
    assert len(compiled) == 2


def test_rows_that_occur_are_updated_by_compiled_loops(compiled, monkeypatch):
    X, found = sp.random(60, 300, 0.02, "csr", np.float32, 0), []
    for seconds in (np.inf, 0.0):
        let_compiling_take(seconds, monkeypatch)
        estimator = OrtGradientClassifier(Linear(), batch_size=10, optimizer=AdamW(lazy_rows=True), random_state=0)
        found.append(estimator.partial_fit(X, np.arange(60) % 3, [0, 1, 2]).partial_fit(X, np.arange(60) % 3).weights_)
    assert compiled
    for name, array in found[0].items():
        assert found[1][name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("reason", ["not installed", "refused", "broken"])
def test_numpy_goes_on_where_nothing_can_be_compiled(reason, compiled, monkeypatch):
    let_compiling_take(0.0, monkeypatch)
    clear_cache()
    if reason == "refused":
        monkeypatch.setattr(update_executors, "loop_code", lambda *_: "no code")
    elif reason == "broken":
        llvm._llvm.cache_clear()
        monkeypatch.setitem(sys.modules, "llvmlite", None)
    else:
        monkeypatch.setattr(update_executors, "is_installed", lambda: False)
    X, optimizer = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32), SGD(momentum=0.125)
    estimator = OrtGradientRegressor(MLP((4,)), optimizer=optimizer, random_state=0).partial_fit(X, X[:, 0])
    before = estimator.weights_["layers.0.weight"]
    assert not np.array_equal(estimator.partial_fit(X, X[:, 0]).weights_["layers.0.weight"], before)
    assert len(compiled) == (reason != "not installed")  # not tried again


def test_code_that_llvm_does_not_accept_is_an_error():
    with pytest.raises(RuntimeError, match="expected"):
        MachineCode("no code")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.slow
def test_forked_child_compiles_during_parent_compilation():
    text, stop, results = "define void @run(ptr %argument) {\n  ret void\n}", Event(), []

    def compile_on():
        while not stop.is_set():
            MachineCode(text)

    MachineCode(text)
    thread = Thread(target=compile_on)
    thread.start()
    for _ in range(8):
        child = os.fork()
        if not child:
            signal.alarm(10)  # ends a child that waits
            MachineCode(text)
            os._exit(0)
        results.append(os.waitpid(child, 0)[1])
        if results[-1]:
            break
    stop.set()
    thread.join()
    assert not any(results)

"""Updates by NumPy are those of the session that runs the same graph; older releases round square roots otherwise."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from numpy.testing import assert_allclose

from onnxtrain_sklearn import MLP, SGD, Adam, AdamW, OrtGradientRegressor, RMSprop
from onnxtrain_sklearn._ir.protobuf import to_proto
from onnxtrain_sklearn._ort.binding import Binding
from onnxtrain_sklearn._training import formula_updates, host_updates
from onnxtrain_sklearn._training.formula_updates import NumpyUpdate, formula_of
from onnxtrain_sklearn.optimizers import OPTIMIZERS, Optimizer, Parameter, update_graph
from tests.helpers.sessions import session as session_of

RULES = [rule for rule in OPTIMIZERS.values() if issubclass(rule, Optimizer) and rule.elementwise]
CASES = [*(rule() for rule in RULES), SGD(momentum=0.9, nesterov=True), SGD(momentum=0.9), AdamW(weight_decay=0.1)]
SIZE = 1000


def vectors(graph, dtype):
    rng = np.random.default_rng(0)
    found = {"parameters": rng.normal(size=SIZE).astype(dtype)}
    return found | {name: np.abs(rng.normal(size=SIZE)).astype(dtype) for name in graph.slots}


@pytest.mark.parametrize("kind", [ir.DataType.FLOAT, ir.DataType.DOUBLE])
@pytest.mark.parametrize("optimizer", CASES, ids=repr)
@pytest.mark.parametrize("block", [300, SIZE, 10**6])
def test_numbers_are_those_of_the_session(optimizer, kind, block, monkeypatch):
    monkeypatch.setattr(formula_updates, "BLOCK", block)
    graph, dtype = update_graph(optimizer, kind), kind.numpy()
    formula = formula_of(graph)
    if formula is None:
        pytest.skip("an operator that only the session runs")
    ours, theirs = vectors(graph, dtype), vectors(graph, dtype)
    gradients = np.random.default_rng(1).normal(size=SIZE).astype(dtype)
    scalars = {name: np.zeros((), dtype) for name in graph.scalars(0.1, 1)}
    session = session_of(to_proto(graph.model))
    inputs, outputs = {**theirs, "gradients": gradients, **scalars}, {f"new_{n}": v for n, v in theirs.items()}
    runs = (formula_updates.numpy_update(formula, ours, gradients, scalars), Binding(session, inputs, outputs))
    for t in range(1, 4):
        for name, value in graph.scalars(0.1, t).items():
            scalars[name][()] = value
        for run in runs:
            run.run()
    tolerance = 2e-6 if dtype == np.float32 else 1e-14
    for name, vector in theirs.items():
        assert_allclose(ours[name], vector, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("optimizer", [SGD(), SGD(momentum=0.9), Adam(), AdamW(), RMSprop()], ids=repr)
def test_common_optimizers_have_a_formula(optimizer):
    assert formula_of(update_graph(optimizer, ir.DataType.FLOAT)) is not None


def test_other_updates_have_none():
    class Rounded(Optimizer):
        def update(self, op, p, g, state, k):
            return op.Sub(p, op.Floor(g)), {}

    class Normalized(Optimizer):
        elementwise = False

        def update(self, op, p, g, state, k):
            return op.Sub(p, op.Div(g, op.ReduceL2(g))), {}

    for rule in (Rounded(), Normalized()):
        graph = update_graph(rule, ir.DataType.FLOAT, parameter=Parameter("w", (2, 3)))
        assert formula_of(graph) is None


@pytest.mark.parametrize("factors", [None, {"layers.0.weight": 0.5}], ids=["equal", "factors"])
def test_long_vectors_are_updated_by_numpy_to_the_same_weights(factors, monkeypatch):
    monkeypatch.setattr("onnxtrain_sklearn._ort.gradient_builder.has_gradient_builder", lambda: False)
    rng, found, runs = np.random.default_rng(0), [], []
    X, run = rng.normal(size=(60, 8)).astype(np.float32), NumpyUpdate.run
    monkeypatch.setattr(NumpyUpdate, "run", lambda self: (runs.append(self), run(self))[1])
    for least in (10**6, 40):
        monkeypatch.setattr(host_updates, "LEAST_ELEMENTS", least)
        estimator = OrtGradientRegressor(MLP((20,)), optimizer=AdamW(), learning_rate_factors=factors, random_state=0)
        found.append(estimator.partial_fit(X, X[:, 0]).partial_fit(X, X[:, 0]))
        assert bool(runs) == (least == 40)
    for name, array in found[0].weights_.items():
        assert_allclose(found[1].weights_[name], array, rtol=0, atol=2e-6)

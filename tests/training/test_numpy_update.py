"""Which updates NumPy runs, and that training by them gives the weights of the session."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from numpy.testing import assert_allclose

from onnxtrain_sklearn import MLP, SGD, Adam, AdamW, OrtGradientRegressor, RMSprop
from onnxtrain_sklearn._training.update_executors import NumpyUpdate, formula_of
from onnxtrain_sklearn.optimizers import Optimizer, Parameter, update_graph
from tests.helpers.tuning import tune


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
        tune(monkeypatch, least_elements=least)
        estimator = OrtGradientRegressor(MLP((20,)), optimizer=AdamW(learning_rate_factors=factors), random_state=0)
        found.append(estimator.partial_fit(X, X[:, 0]).partial_fit(X, X[:, 0]))
        assert bool(runs) == (least == 40)
    for name, array in found[0].weights_.items():
        assert_allclose(found[1].weights_[name], array, rtol=0, atol=2e-6)

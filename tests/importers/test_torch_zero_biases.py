"""Convolutions without a bias, as PyTorch's newer exporter writes them with ``optimize=False``."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose
from onnx import TensorProto, helper, numpy_helper

from onnxtrain_sklearn import SGD, OrtGradientRegressor
from tests.helpers.environment import available_engines

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def zeros_of_bias(axes, zero):
    """Return the nodes that expand ``zero``, of the type of x, to the shape of a bias; PyTorch adds an axis of 2."""
    sizes = [helper.make_node("Constant", [], ["two"], value_ints=[2])] if axes == 2 else []
    joined = ["filters", "two"] if axes == 2 else ["filters"]
    return [
        helper.make_node("Shape", ["weight"], ["filters"], start=0, end=1),
        *sizes,
        helper.make_node("Concat", joined, ["sizes"], axis=0),
        helper.make_node("Constant", [], ["number"], value=numpy_helper.from_array(np.float32(zero))),
        helper.make_node("CastLike", ["number", "x"], ["typed"]),
        helper.make_node("Expand", ["typed", "sizes"], ["bias"]),
    ]


def network(rank, before=(), bias=""):
    """Return a convolution of images of ``rank`` axes, the mean of its maps, and a linear layer."""
    rng = np.random.default_rng(0)
    arrays = {"weight": rng.normal(size=(3, 2, *[3] * rank)), "matrix": rng.normal(size=(3, 1))}
    nodes = [
        *before,
        helper.make_node("Conv", ["x", "weight", bias], ["maps"]),
        helper.make_node("Tanh", ["maps"], ["bounded"]),
        helper.make_node("GlobalAveragePool", ["bounded"], ["means"]),
        helper.make_node("Flatten", ["means"], ["rows"]),
        helper.make_node("MatMul", ["rows", "matrix"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2, *[4] * rank])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])
    stored = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "network", [x], [y], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def fitted(model, rank, engine):
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(12, 2, *[4] * rank)).astype(np.float32), rng.normal(size=12).astype(np.float32)
    trained = OrtGradientRegressor(
        model, optimizer=SGD(), learning_rate_init=0.05, batch_size=6, max_iter=3, tol=0, shuffle=False, engine=engine
    ).fit(X, y)
    return trained, trained.predict(X)


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize(("rank", "axes"), [(2, 1), (2, 2), (3, 2)])
def test_expanded_zeros_are_no_bias(rank, axes, engine):
    trained, found = fitted(network(rank, zeros_of_bias(axes, 0.0), "bias"), rank, engine)
    plain, expected = fitted(network(rank), rank, engine)
    assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert set(trained.weights_) == set(plain.weights_) == {"weight", "matrix"}
    assert not any(node.op_type == "Expand" for node in trained.to_onnx().graph.node)


@pytest.mark.parametrize("engine", available_engines())
def test_another_number_stays_a_bias(engine):
    trained, found = fitted(network(2, zeros_of_bias(1, 0.5), "bias"), 2, engine)
    plain, without = fitted(network(2), 2, engine)
    assert np.abs(found - without).max() > 0.01
    onnx.checker.check_model(trained.to_onnx())
    assert set(trained.weights_) >= set(plain.weights_)

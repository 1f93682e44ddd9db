"""Values that are constants to the gradient, in losses of a user and in graphs."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.testing import assert_allclose
from onnx import parser

from onnxtrain_sklearn import SGD, OrtGradientRegressor, gradient_graph
from onnxtrain_sklearn.exceptions import UnsupportedOperatorError
from onnxtrain_sklearn.graph import GraphBuilder, stop_gradient
from onnxtrain_sklearn.losses import Loss
from tests.helpers.environment import available_engines


def product_with_stopped():
    """Return the graph of the sum of ``x * stop(x * x)``."""
    x = ir.val("x", ir.DataType.FLOAT, (3,))
    op = GraphBuilder(ir.Graph([x], [], nodes=[], opset_imports={"": 18}, name="g"))
    loss = op.ReduceSum(op.Mul(x, stop_gradient(op, op.Mul(x, x))), keepdims=False)
    loss.name, loss.dtype, loss.shape = "loss", ir.DataType.FLOAT, ir.Shape([])
    op.graph.outputs.append(loss)
    return ir.to_proto(ir.Model(op.graph, ir_version=8))


def test_the_gradient_takes_the_value_as_a_constant():
    graph = gradient_graph(product_with_stopped(), wrt=["x"], engine="portable").SerializeToString()
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    x = np.array([1.0, -2.0, 3.0], np.float32)
    loss, slope = session.run(["loss", "x_grad"], {"x": x})
    assert_allclose(loss, (x**3).sum())
    assert_allclose(slope, x**2)  # and not 3 x ** 2


@pytest.mark.skipif("ort-training" not in available_engines(), reason="needs onnxruntime-training")
def test_training_runtime_refuses_stop_gradient():
    with pytest.raises(UnsupportedOperatorError, match="stops the gradient, which ort-training does not support"):
        gradient_graph(product_with_stopped(), wrt=["x"], engine="ort-training")


class SelfWeighted(Loss):
    """The squared error, in which a row weighs as its error does, as a constant."""

    tasks = frozenset({"regression"})

    def __call__(self, op, scores, y, link):
        error = op.Sub(scores, y)
        return op.Mul(stop_gradient(op, op.Abs(error)), op.Mul(error, error))


def test_a_loss_of_a_user_weighs_by_its_own_error():
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 18]> g (float[N, 2] X) => (float[N, 1] Y)
        <float[2, 1] W = {1, -1}> { Y = MatMul(X, W) }""")
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 2)).astype(np.float32), rng.normal(size=20)
    W = np.array([1.0, -1.0])
    error = X @ W - y
    settings = {"optimizer": SGD(), "learning_rate_init": 0.1, "batch_size": 20, "random_state": 0}
    net = OrtGradientRegressor(model, loss=SelfWeighted(), **settings).partial_fit(X, y)
    assert net.loss_ == pytest.approx((np.abs(error) * error**2).mean(), rel=1e-5)
    assert_allclose(net.weights_["W"].ravel(), W - 0.1 * X.T @ (2 * np.abs(error) * error) / 20, rtol=1e-5)

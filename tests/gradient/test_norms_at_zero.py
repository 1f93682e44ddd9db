"""Gradients of norms where they are zero: the subgradient zero, on each engine."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning

from onnxtrain_sklearn import OrtGradientRegressor, gradient_graph
from tests.helpers.environment import available_engines

POINTS = np.array([[1, 2], [3, 4], [-1, 0.5]], np.float32)
CENTERS = np.array([[1, 2], [0, 4], [-1, 0.5]], np.float32)  # the first and the last point lie on theirs
DISTANCES = {
    "Sqrt(ReduceSum(Mul))": "M = Mul(D, D) S = ReduceSum<keepdims=0>(M, axes) R = Sqrt(S)",
    "Sqrt(ReduceSum(Pow))": "M = Pow(D, two) S = ReduceSum<keepdims=1>(M, axes) R = Sqrt(S)",
    "Sqrt(ReduceSumSquare)": "S = ReduceSumSquare<axes=[1], keepdims=0>(D) R = Sqrt(S)",
    "Pow(ReduceSum, 0.5)": "M = Mul(D, D) S = ReduceSum<keepdims=0>(M, axes) R = Pow(S, half)",
    "Sqrt(Relu(Mul))": "M = Mul(D, D) S = ReduceMean<axes=[1], keepdims=0>(M) B = Relu(S) T = Mul(B, two) R = Sqrt(T)",
    "ReduceL2": "R = ReduceL2<axes=[1], keepdims=0>(D)",
}


def graph_of(distance: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]> g (float[3, 2] X) => (float L)
        <float[3, 2] W = {{1, 2, 0, 4, -1, 0.5}}, float two = {{2}}, float half = {{0.5}}, int64[1] axes = {{1}}>
        {{ D = Sub(X, W) {distance} L = ReduceSum<keepdims=0>(R) }}"""
    )


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("distance", DISTANCES.values(), ids=list(DISTANCES))
def test_gradient_of_distance_zero_is_zero(distance, engine):
    if engine == "ort-training" and "ReduceSumSquare" in distance:
        pytest.skip("this engine has no gradient of ReduceSumSquare")
    graph = gradient_graph(graph_of(distance), wrt=["W"], engine=engine)
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    loss, gradient = session.run(["L", "W_grad"], {"X": POINTS})
    assert_allclose(loss, 3.0)
    assert_allclose(gradient, [[0, 0], [-1, 0], [0, 0]], atol=1e-7)


@pytest.mark.parametrize("engine", available_engines())
def test_power_above_one_half_of_squares_is_flat_at_zero(engine):
    """The norm to the power of 1.5."""
    text = "M = Mul(D, D) S = ReduceSum<keepdims=0>(M, axes) R = Pow(S, half)"
    model = graph_of(text)
    next(x for x in model.graph.initializer if x.name == "half").CopyFrom(
        onnx.numpy_helper.from_array(np.array(0.75, np.float32), "half")
    )
    graph = gradient_graph(model, wrt=["W"], engine=engine)
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    (gradient,) = session.run(["W_grad"], {"X": POINTS})
    assert_allclose(gradient, [[0, 0], [-1.5 * 3**0.5, 0], [0, 0]], rtol=1e-6)


def test_root_of_parameter_keeps_infinite_slope():
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[2] X) => (float L)
        <float[2] W = {0, 4}> { R = Sqrt(W) P = Mul(R, X) L = ReduceSum<keepdims=0>(P) }"""
    )
    graph = gradient_graph(model, wrt=["W"], engine="portable")
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    assert_allclose(session.run(["W_grad"], {"X": np.ones(2, np.float32)})[0], [np.inf, 0.25])


@pytest.mark.parametrize("engine", [*available_engines(), "compiled"])
def test_training_moves_a_point_off_its_center(engine):
    """A row on its center has no slope; the other rows alone move the weights."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[N, 2] X) => (float[N, 1] R)
        <float[2] W = {-1, -2}, int64[1] axes = {1}>
        { D = Add(X, W) M = Mul(D, D) S = ReduceSum<keepdims=1>(M, axes) R = Sqrt(S) }"""
    )
    X, y = np.array([[1, 2], [4, 6]], np.float32), np.array([1.0, 4.0])
    settings = {"optimizer": "sgd", "learning_rate_init": 0.1, "max_iter": 1, "target_scaling": None, "shuffle": False}
    estimator = OrtGradientRegressor(model, engine=engine, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator.fit(X, y)
    # the slope of the second row: 2 (5 - 4) / 2 rows, times (3, 4) / 5
    assert_allclose(estimator.weights_["W"], [-1 - 0.1 * 0.6, -2 - 0.1 * 0.8], rtol=1e-6)

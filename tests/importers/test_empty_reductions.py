"""Reductions over no axes, which releases of onnxruntime compute differently, are what the standard says everywhere."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest
from numpy.testing import assert_allclose
from onnx.reference import ReferenceEvaluator

from onnxtrain_sklearn import OrtGradientRegressor, gradient_graph
from tests.helpers.environment import each_engine
from tests.helpers.sessions import session

SLOPES = {"ReduceL1": np.sign, "ReduceL2": np.sign, "ReduceLogSum": np.reciprocal, "ReduceSumSquare": lambda x: 2 * x}
OPERATORS = [
    f"Reduce{kind}" for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
]
AXES = {"none": "(x)", "an initializer": "(x, a)", "a constant": "(x, c)", "left out": '(x, "")'}
X = np.array([[0.5, 1.5, -2.0], [3.0, -0.3, 0.7]], np.float32)


def reducing_graph(node, result="float loss", end="loss = ReduceSum <keepdims = 0> (w)"):
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> net (float[2,3] x, float[2,3] v) => ({result}) '
        f"{{ c = Constant <value_ints: ints = []> () {node} w = Mul(y, v) {end} }}"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(0, np.int64), "a"))
    return model


@each_engine
@pytest.mark.parametrize("axes", AXES.values(), ids=AXES)
@pytest.mark.parametrize("operator", OPERATORS)
def test_value_and_gradient_are_those_of_single_elements(operator, axes, engine):
    x, v = np.abs(X) if operator == "ReduceLogSum" else X, np.arange(6, dtype=np.float32).reshape(2, 3)
    model = reducing_graph(f"y = {operator} <keepdims = 0, noop_with_empty_axes = 1> {axes}")
    loss, slope = session(gradient_graph(model, wrt="x", engine=engine)).run(["loss", "x_grad"], {"x": x, "v": v})
    assert_allclose(loss, ReferenceEvaluator(model).run(["loss"], {"x": x, "v": v})[0], rtol=1e-5)
    assert_allclose(slope, v * SLOPES.get(operator, np.ones_like)(x), rtol=1e-5)


@pytest.mark.parametrize(
    ("node", "axis", "slope"),
    [("ReduceL1 <noop_with_empty_axes = 0> (x)", None, np.sign),
     ("ReduceL1 <noop_with_empty_axes = 1> (x, b)", 1, np.sign),
     ("ReduceSum (x, a)", None, np.ones_like)],
)  # fmt: skip
def test_reductions_over_axes_stay(node, axis, slope):
    model, v = reducing_graph(f"y = {node}"), np.arange(6, dtype=np.float32).reshape(2, 3)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1]), "b"))
    graph = gradient_graph(model, wrt="x", engine="portable")
    loss, found = session(graph).run(["loss", "x_grad"], {"x": X, "v": v})
    sums = v.sum(axis=axis, keepdims=True)
    assert_allclose(loss, (X * slope(X) * sums).sum(), rtol=1e-5)
    assert_allclose(found, slope(X) * sums, rtol=1e-5)


def test_empty_reductions_in_branches_follow_the_standard():
    branches = "<then_branch = t () => (float[2,3] p) { p = ReduceSumSquare <noop_with_empty_axes = 1> (x, c) }, "
    branches += "else_branch = e () => (float[2,3] q) { q = Neg(x) }>"
    model = reducing_graph(f"b = Constant <value = bool {{1}}> () y = If (b) {branches}")
    feeds = {"x": X, "v": np.ones_like(X)}
    slope = session(gradient_graph(model, wrt="x", engine="portable")).run(["x_grad"], feeds)[0]
    assert_allclose(slope, 2 * X, rtol=1e-6)


def test_an_estimator_predicts_by_the_standard():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> net (float[N,3] X) => (float[N,1] Y) '
        "{ S = ReduceSumSquare <noop_with_empty_axes = 1> (X, a) Y = MatMul(S, W) }"
    )
    arrays = {"a": np.zeros(0, np.int64), "W": np.ones((3, 1), np.float32)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    y = (X**2).sum(axis=1)
    regressor = OrtGradientRegressor(model, optimizer="sgd", learning_rate_init=1e-30).partial_fit(X, y)
    assert_allclose(regressor.predict(X), y, rtol=1e-5)
    assert regressor.loss_ < 1e-9

"""Sigmoids and softplus written by exponentials: right values and gradients where the exponential overflows."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from numpy.testing import assert_allclose

from onnxtrain_sklearn import OrtGradientRegressor, gradient_graph
from tests.helpers.environment import available_engines

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

Z = np.array([[-200.0], [-90.0], [-20.0], [-1.0], [0.0], [2.0], [20.0], [88.5], [90.0], [500.0]], np.float32)


def sigmoid(z):
    z = z.astype(np.float64)
    return np.exp(-np.logaddexp(0, -z))


SIGMOID = sigmoid(Z), sigmoid(Z) * sigmoid(-Z)
FALLING = sigmoid(-Z), -sigmoid(Z) * sigmoid(-Z)
SOFTPLUS = np.logaddexp(0, Z.astype(np.float64)), sigmoid(Z)

FORMS = {
    "reciprocal": ("e = Exp(z) d = Add(e, one) Y = Reciprocal(d)", FALLING),
    "of minus": ("n = Neg(z) e = Exp(n) d = Add(one, e) Y = Div(one, d)", SIGMOID),
    "of product": ("n = Mul(z, minus) e = Exp(n) d = Add(one, e) Y = Reciprocal(d)", SIGMOID),
    "power": ("e = Exp(z) d = Add(e, one) Y = Pow(d, minus)", FALLING),
    "quotient": ("e = Exp(z) d = Add(e, one) Y = Div(e, d)", SIGMOID),
    "product": ("e = Exp(z) d = Add(e, one) r = Reciprocal(d) Y = Mul(e, r)", SIGMOID),
    "logarithm": ("e = Exp(z) d = Add(e, one) Y = Log(d)", SOFTPLUS),
}


def model_of(body):
    return onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (float[N,1] X) => (float[N,1] Y) '
        f"<float[1,1] w = {{1.0}}, float one = {{1.0}}, float minus = {{-1.0}}> {{z = MatMul(X, w) {body}}}"
    )


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("form", FORMS)
def test_gradient_of_exponentials_is_finite_and_right(form, engine):
    body, (values, slopes) = FORMS[form]
    model = model_of(f"{body} s = ReduceSum<keepdims = 0>(Y)")
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("s", onnx.TensorProto.FLOAT, []))
    made = gradient_graph(model, wrt=["X"], of="s", engine=engine)
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    total, gradient = session.run(["s", "X_grad"], {"X": Z})
    assert_allclose(total, values.sum(), rtol=1e-6)
    # onnxruntime's Sigmoid, the slope of Softplus, is 0 below -18
    assert_allclose(gradient, slopes, rtol=1e-5, atol=1e-8 if form == "logarithm" else 1e-37)


@pytest.mark.parametrize("form", ["reciprocal", "logarithm"])
def test_untrained_predictions_are_those_of_the_file(form):
    model = model_of(f"{FORMS[form][0]}")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rows = Z[:8]
    net = OrtGradientRegressor(model, max_iter=1, optimizer="sgd", learning_rate_init=1e-30, target_scaling=None)
    net.fit(rows, rows.ravel())
    assert_allclose(net.predict(rows), session.run(None, {"X": rows})[0].ravel(), rtol=1e-6, atol=3e-9)

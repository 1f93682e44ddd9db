"""Gradients are finite where a condition leaves out results that are infinite or NaN, and NaN shows where it counts."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.testing import assert_allclose

from onnxtrain_sklearn import SGD, OrtGradientRegressor, gradient_graph
from tests.helpers.environment import available_engines

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

HEAD = """<ir_version: 8, opset_import: ["": 18]> g ({kind}[2, 4] w) => ({kind} loss)
    <{kind} zero = {{0}}, {kind} one = {{1}}>"""

# The function on the selected numbers, and the operators that compute it from w into f.
FUNCTIONS = {
    "Acos": (np.arccos, "f = Acos(w)"),
    "Asin": (np.arcsin, "f = Asin(w)"),
    "Atanh": (np.arctanh, "f = Atanh(w)"),
    "Div": (lambda w: 1 / w + w, "q = Div(one, w) f = Add(q, w)"),
    "Div by itself": (lambda w: np.ones_like(w) * 3 * w, "s = Mul(w, w) d = Div(s, w) t = Add(d, d) f = Add(t, w)"),
    "Exp of Log": (lambda w: np.exp(2 * np.log(w)), "l = Log(w) d = Add(l, l) f = Exp(d)"),
    "Log": (np.log, "f = Log(w)"),
    "Pow": (lambda w: w**0.3, "p = Constant<value_float = 0.3>() c = CastLike(p, w) f = Pow(w, c)"),
    "Reciprocal": (lambda w: 1 / w, "f = Reciprocal(w)"),
    "Sqrt": (np.sqrt, "f = Sqrt(w)"),
    "Sqrt, reshaped": (np.sqrt, "r = Sqrt(w) t = Transpose<perm = [1, 0]>(r) f = Transpose<perm = [1, 0]>(t)"),
    "missing": (lambda w: np.tanh(w * w), "s = Mul(w, w) f = Tanh(s)"),
}
WITHOUT_KERNEL = ("Acos", "Asin", "Atanh")
W = np.array([[0.3, 0.0, 0.8, -0.4], [0.0, 0.6, -0.9, 0.1]])


def gradient_of(text, w, dtype, engine="portable"):
    head = HEAD.format(kind="float" if dtype == np.float32 else "double")
    model = onnx.parser.parse_model(f"{head} {{ {text} }}")
    graph = gradient_graph(model, wrt="w", engine=engine)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(["w_grad"], {"w": w.astype(dtype)})[0]


def differences(loss, w, h=1e-6):
    steps = [h * e.reshape(w.shape) for e in np.eye(w.size)]
    return np.array([(loss(w + e) - loss(w - e)) / (2 * h) for e in steps]).reshape(w.shape)


def selected(name, text):
    condition = "b = IsNaN(w) k = Not(b)" if name == "missing" else "k = Greater(w, zero)"
    return f"{condition} {text} o = Where(k, f, zero) s2 = Mul(o, o) loss = ReduceSum<keepdims = 0>(s2)"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_left_out_results_have_no_gradient(name, dtype):
    function, text = FUNCTIONS[name]
    if dtype == np.float64 and name in WITHOUT_KERNEL:
        pytest.skip("onnxruntime has no kernel in float64")
    w = np.where(W > 0, W, np.nan) if name == "missing" else W

    def loss(w):
        kept = w > 0
        return (function(w[kept]) ** 2).sum()

    found = gradient_of(selected(name, text), w, dtype)
    expected = differences(loss, np.where(W > 0, W, -1.0))
    assert_allclose(found, expected, rtol=1e-4 if dtype == np.float32 else 1e-6, atol=1e-6)


def test_nan_of_a_selected_root_shows():
    found = gradient_of(
        "k = Greater(one, zero) f = Sqrt(w) o = Where(k, f, zero) loss = ReduceSum<keepdims = 0>(o)", W, np.float64
    )
    assert np.isfinite(found[W > 0]).all()
    assert not np.isfinite(found[W <= 0]).any()


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


MASK = np.array([[0.0, -np.inf, 0.0, 0.0], [-np.inf] * 4])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax", "ReduceLogSumExp"])
def test_rows_that_are_masked_in_full(operator, dtype):
    """A row without any score is NaN; scaled_dot_product_attention of PyTorch is exported with this condition."""
    further = "axes = Constant<value_ints = [1]>()" if operator.startswith("Reduce") else ""
    call = f"{operator}(m, axes)" if further else f"{operator}<axis = -1>(m)"
    text = (
        "x0 = Constant<value_ints = [1, 0, 1, 1, 0, 0, 0, 0]>() x1 = Constant<value_ints = [2, 4]>() "
        f"x2 = Reshape(x0, x1) k = Cast<to = 9>(x2) ninf = Log(zero) "
        f"m = Where(k, w, ninf) {further} p = {call} b = IsNaN(p) b2 = IsInf(p) bb = Or(b, b2) o = Where(bb, zero, p) "
        "c = Sin(o) loss = ReduceSum<keepdims = 0>(c)"
    )

    def loss(w):
        p = softmax(w[0] + MASK[0])
        kept = p[np.isfinite(MASK[0])]
        if operator == "ReduceLogSumExp":
            return np.sin(np.log(np.exp(w[0][np.isfinite(MASK[0])]).sum()))
        return np.sin(kept if operator == "Softmax" else np.log(kept)).sum()

    found = gradient_of(text, W, dtype)
    assert_allclose(found, differences(loss, W), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("engine", ["auto", "portable"])
def test_masked_rows_train(engine):
    """Of two tokens none may be read in some rows: the engine is one whose gradient stays finite there."""
    text = """<ir_version: 8, opset_import: ["": 18]> g (float[N, 4] x) => (float[N, 1] y)
        <float[4, 4] q = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}, float[4, 1] w = {1, 2, 3, 4},
         float zero = {0}>
        { s = MatMul(x, q) k = Greater(x, zero) n = Log(zero) m = Where(k, s, n)
          p = Softmax<axis = -1>(m) b = IsNaN(p) o = Where(b, zero, p) y = MatMul(o, w) }"""
    X = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    X[:5] = -np.abs(X[:5])
    settings = {"optimizer": SGD(), "max_iter": 3, "batch_size": 10, "engine": engine}
    fitted = OrtGradientRegressor(onnx.parser.parse_model(text), **settings).fit(X, X.sum(axis=1))
    assert np.isfinite(fitted.loss_curve_).all()
    assert fitted.engine_ == "portable"
    assert engine in ("auto", *available_engines())

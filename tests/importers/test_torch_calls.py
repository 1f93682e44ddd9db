"""What the calls tell that PyTorch's exporter records: detached values, parameters that it made one, what it left out.

The graphs are written here as the exporter of PyTorch 2.14 writes them, each node with its call.
"""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from onnx import numpy_helper

from onnxtrain_sklearn import SGD, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import OnnxTrainWarning
from tests.helpers.data import rows

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
RNG = np.random.default_rng(0)
W, V = (RNG.normal(size=(3, 3)).astype(np.float32) for _ in range(2))
U = RNG.normal(size=(3, 1)).astype(np.float32)
ONE, ZERO = np.ones(1, np.float32), np.zeros(1, np.float32)
SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
RATE = 0.1


def exported(body, arrays, calls=None, parameters=()):
    """Return a graph; ``calls``: by the name of a result, the function and the names that its call reads."""
    proto = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 20]> net (float[N, 3] X) => (float[N, 1] y) {{ {body} }}'
    )
    proto.producer_name = "pytorch"
    proto.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())
    for node in proto.graph.node:
        name, function, read = (calls or {}).get(node.output[0], (node.output[0], None, ""))
        if function is not None:
            said = f"%{name} : [num_users=1] = call_function[target=torch.ops.aten.{function}.default]"
            node.metadata_props.add(key="pkg.torch.onnx.fx_node", value=f"{said}(args = ({read}), kwargs = {{}})")
    if calls:
        lines = [f"p_{name}: PARAMETER target='{name}'" for name in (*arrays, *parameters)]
        text = "\n".join(["", "# inputs", *lines, "X: USER_INPUT", "", "# outputs", "y: USER_OUTPUT", ""])
        proto.graph.metadata_props.add(key=SIGNATURE, value=text)
    return proto


def fitted(proto, steps=3):
    plain = {"optimizer": SGD(), "learning_rate_init": RATE, "batch_size": 12, "max_iter": steps, "shuffle": False}
    return OrtGradientRegressor(proto, **plain).fit(rows(12), rows(12, 1, seed=1).ravel())


WEIGHTS = {"w": W, "v": V, "u": U}
GATED = "a = MatMul(X, w) b = MatMul(X, v) g = Sigmoid(b) {} m = Mul(a, {}) y = MatMul(m, u)"
CALLS = {
    "a": ("a", "matmul", "%X, %p_w"), "b": ("b", "matmul", "%X, %p_v"), "g": ("g", "sigmoid", "%b"),
    "detach": ("detach", "detach", "%g"), "m": ("m", "mul", "%a, %detach"), "y": ("y", "matmul", "%m, %p_u"),
}  # fmt: skip


@pytest.mark.parametrize("body", [GATED.format("", "g"), GATED.format("detach = Identity(g)", "detach")])
def test_detached_values_are_constants_to_the_gradient(body):
    found = fitted(exported(body, WEIGHTS, CALLS)).weights_
    assert_array_equal(found["v"], V)
    frozen = exported(GATED.format("", "g"), WEIGHTS, CALLS | {"m": ("m", "mul", "%a, %g")})
    expected = OrtGradientRegressor(frozen).set_params(trainable=["w", "u"])
    expected.set_params(optimizer=SGD(), learning_rate_init=RATE, batch_size=12, max_iter=3, shuffle=False)
    expected.fit(rows(12), rows(12, 1, seed=1).ravel())
    for name in ("w", "u"):
        assert_allclose(found[name], expected.weights_[name], rtol=0, atol=1e-6)
    attached = fitted(frozen).weights_
    assert np.abs(attached["v"] - V).max() > 1e-3


def test_a_value_beside_its_detached_copy_keeps_its_own_gradient():
    """d(a * a.detach()) is half of d(a * a)."""
    body = "a = MatMul(X, w) m = Mul(a, a) y = MatMul(m, u)"
    calls = {"a": CALLS["a"], "m": ("m", "mul", "%a, %detach"), "y": CALLS["y"]}
    arrays = {"w": W, "u": U}
    half, whole = (
        fitted(exported(body, arrays, calls | {"m": ("m", "mul", read)}), steps=1).weights_["w"]
        for read in ("%a, %detach", "%a, %a")
    )
    assert_allclose(2 * (half - W), whole - W, rtol=1e-4, atol=1e-6)
    assert np.abs(whole - W).max() > 1e-3


SCALED = "a = MatMul(X, w) d = Div(a, {}) s = Tanh(d) m = Mul(s, {}) y = MatMul(m, u)"
OF_SCALED = {
    "a": CALLS["a"], "d": ("d", "div", "%a, %p_t"), "s": ("s", "tanh", "%d"), "m": ("m", "mul", "%s, %p_c"),
    "y": CALLS["y"],
}  # fmt: skip


def test_equal_parameters_are_distinguished_by_call_names():
    merged = fitted(exported(SCALED.format("t", "t"), {"w": W, "t": ONE, "u": U}, OF_SCALED, ["c"]))
    apart = fitted(exported(SCALED.format("t", "c"), {"w": W, "t": ONE, "c": ONE, "u": U}, OF_SCALED))
    assert merged.weights_.keys() == apart.weights_.keys() == {"w", "t", "c", "u"}
    assert abs(float(apart.weights_["t"][0] - apart.weights_["c"][0])) > 1e-3
    for name, array in apart.weights_.items():
        assert_allclose(merged.weights_[name], array, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("body", "calls", "missing"),
    [
        ("a = MatMul(X, w) s = Tanh(a) y = MatMul(s, u)", {"y": ("y", "matmul", "%mul_1, %p_u")}, "'c'"),
        (SCALED.format("t", "t"), OF_SCALED | {"m": ("m", "mul", "%s, %mul_9")}, "'c', 't'"),
    ],
    ids=["left out", "stands for another result"],
)
def test_parameters_of_calls_that_were_left_out_are_warned_of(body, calls, missing):
    arrays = {"w": W, "u": U} | ({"t": ONE} if "t)" in body else {})
    with pytest.warns(OnnxTrainWarning, match=f"trained, or otherwise than here: {missing}"):
        fitted(exported(body, arrays, {"a": CALLS["a"], "s": ("s", "tanh", "%a"), "y": CALLS["y"]} | calls, ["c"]))


def test_zero_bias_behind_recomputed_matrix_is_restored():
    body = "a = MatMul(X, w) b = Gemm(a, t) y = MatMul(b, u)"
    calls = CALLS | {"b": ("b", "linear", "%a, %t, %p_bias")}
    proto = exported(body, {"w": W, "u": U}, calls, ["bias"])
    proto.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(W.T), "t"))
    found = fitted(proto).weights_
    assert found.keys() == {"w", "u", "bias"}
    assert np.abs(found["bias"]).max() > 1e-3


def test_scales_and_shifts_behind_a_softmax_are_trained():
    """They begin as one and zero, so that the output begins as probabilities."""
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 20]> net (float[N, 3] X) => (float[N, 3] y) {
        a = MatMul(X, w) s = Softmax(a) m = Mul(s, scale) y = Add(m, shift) }"""
    )
    arrays = {"w": W, "scale": ONE, "shift": ZERO}
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    X, y = rows(12), rows(12, 3, seed=1)
    plain = {"optimizer": SGD(), "learning_rate_init": RATE, "batch_size": 12, "max_iter": 1, "shuffle": False}
    found = OrtGradientRegressor(proto, trainable="*", **plain).fit(X, y).weights_
    exponents = np.exp(X.astype(float) @ W)
    shares = exponents / exponents.sum(1, keepdims=True)
    slope = 2 * (shares - y) / y.size
    assert_allclose(found["scale"], 1 - RATE * (slope * shares).sum(), rtol=1e-5)
    assert_allclose(found["shift"], -RATE * slope.sum(), rtol=1e-4)


def test_older_exporter_stores_exponents_as_parameters():
    """A name such as ``t`` is that of a node in files of the newer exporter, but of a parameter in these."""
    proto = exported("a = MatMul(X, w) d = Div(a, t) e = Exp(d) m = Pow(e, p) y = MatMul(m, u)", {"w": W, "u": U})
    proto.graph.initializer.extend(numpy_helper.from_array(np.array(n, np.float32), k) for k, n in [("t", 2), ("p", 3)])
    for node in proto.graph.node:
        node.name = f"/{node.op_type}"
    found = OrtGradientRegressor(proto, max_iter=1).describe()
    assert {entry.name for entry in found.of("trained")} == {"w", "u", "t", "p"}

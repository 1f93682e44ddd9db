"""Low-rank factors beside matrices of few bits, against the same training beside the dequantized floats."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import GraphModel, LoRA, OrtGradientRegressor, gradient_graph
from onnxtrain_sklearn.exceptions import ModelError, UnsupportedOperatorError
from tests.helpers.environment import RUNTIME_VERSION, each_engine
from tests.helpers.sessions import session
from tests.helpers.training import NEVER

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

ONLY_FOUR = tuple(map(int, RUNTIME_VERSION.split(".")[:2])) < (1, 22)
"""Whether the kernel of the installed onnxruntime takes matrices of 4 bits alone."""


def quantized(n, k, *, bits=4, block=16, zeros="packed", seed=0):
    """Return the arrays of a MatMulNBits, and its matrix (n, k) in float64 by the formula of the format."""
    rng = np.random.default_rng(seed)
    blocks = -(-k // block)
    integers = rng.integers(0, 2**bits, (n, blocks, block))
    scales = rng.uniform(0.01, 0.1, (n, blocks)).astype(np.float32)
    shift = np.full((n, blocks), 2.0 ** (bits - 1))
    arrays = {"W": packed(integers, bits), "s": scales.ravel()}
    if zeros == "packed":
        shift = rng.integers(0, 2**bits, (n, blocks))
        arrays["z"] = packed(np.pad(shift, [(0, 0), (0, blocks % 2 if bits == 4 else 0)]), bits).ravel()
    elif zeros == "floats":
        shift = rng.uniform(0, 2**bits, (n, blocks)).astype(np.float32)
        arrays["z"] = shift.ravel()
    floats = (integers - shift[..., None]) * scales.astype(np.float64)[..., None]
    return arrays, floats.reshape(n, -1)[:, :k]


def packed(integers, bits):
    """Return the integers as bytes along the last axis; the lower half comes first."""
    pairs = integers.reshape(*integers.shape[:-1], -1, 8 // bits)
    return sum(pairs[..., i] << (bits * i) for i in range(8 // bits)).astype(np.uint8)


def product(x, y, n, k, bits, block, arrays, more=""):
    inputs = ", ".join([x, *arrays])
    return f"{y} = com.microsoft.MatMulNBits <K = {k}, N = {n}, bits = {bits}, block_size = {block}{more}> ({inputs})"


def parsed(body, arrays, x="float[N, 6] X", y="float[N, M] Y"):
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]> net ({x}) => ({y}) {{ {body} }}"""
    )
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model


@each_engine
@pytest.mark.parametrize("zeros", ["packed", "absent", "floats"])
@pytest.mark.parametrize(("n", "k", "block"), [(4, 32, 16), (5, 21, 16), (3, 70, 32), (7, 130, 64), (2, 300, 128)])
@pytest.mark.parametrize("bits", [4, 8])
def test_gradients_are_those_of_the_dequantized_matrix(engine, bits, n, k, block, zeros):
    arrays, matrix = quantized(n, k, bits=bits, block=block, zeros=zeros)
    rng = np.random.default_rng(1)
    weights = {"V": rng.normal(size=(6, k)).astype(np.float32), "b": rng.normal(size=n).astype(np.float32)}
    body = f"H = MatMul(X, V) T = Tanh(H) {product('T', 'P', n, k, bits, block, arrays)} Q = Add(P, b) S = Mul(Q, Q)"
    model = parsed(f"{body} Y = ReduceSum <keepdims = 0> (S)", {**arrays, **weights}, y="float Y")
    x = rng.normal(size=(9, 6)).astype(np.float32)
    made = gradient_graph(model, wrt=["V", "b"], of="Y", engine=engine)
    names = [output.name for output in made.graph.output]
    found = dict(zip(names, session(made).run(None, {"X": x}), strict=True))
    hidden = np.tanh(x.astype(np.float64) @ weights["V"])
    scores = hidden @ matrix.T + weights["b"]
    assert_allclose(found["Y"], (scores**2).sum(), rtol=1e-4)
    expected = x.T.astype(np.float64) @ ((2 * scores @ matrix) * (1 - hidden**2))
    assert_allclose(found["V_grad"], expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
    assert_allclose(found["b_grad"], 2 * scores.sum(0), rtol=1e-4, atol=1e-4)
    if bits == 4 or (zeros != "floats" and not ONLY_FOUR):  # the kernel reads the format as this test does
        assert_allclose(session(model).run(None, {"X": x})[0], (scores**2).sum(), rtol=1e-4)


def network(few_bits, *, width=21, block=16, zeros="packed"):
    """Return two layers, the first of few bits or of the same numbers as floats."""
    arrays, matrix = quantized(5, width, block=block, zeros=zeros)
    rest = {"b": np.linspace(-1, 1, 5, dtype=np.float32), "V": np.ones((5, 1), np.float32)}
    if few_bits:
        body = product("X", "P", 5, width, 4, block, arrays) + " H = Add(P, b)"
    else:
        body, arrays = "H = Gemm <transB = 1> (X, W, b)", {"W": matrix.astype(np.float32)}
    return parsed(f"{body} T = Tanh(H) Y = MatMul(T, V)", {**arrays, **rest}, f"float[N, {width}] X", "float[N, 1] Y")


rng = np.random.default_rng(2)
X = rng.normal(size=(40, 21)).astype(np.float32)
y = np.tanh(X[:, :5]).sum(1)


def trained(model, **settings):
    common = {"learning_rate_init": 0.01, "batch_size": 8, "max_iter": 4, "tol": NEVER, "random_state": 0}
    adapters = settings.pop("adapters", LoRA(2, alpha=4.0))
    return OrtGradientRegressor(model, adapters=adapters, target_scaling=None, finetune=None, **common | settings).fit(
        X, y
    )


@each_engine
@pytest.mark.parametrize("zeros", ["packed", "absent"])
def test_twenty_steps_end_as_beside_the_dequantized_matrix(engine, zeros):
    found, expected = (trained(network(few, zeros=zeros), engine=engine) for few in (True, False))
    assert found.adapters_.keys() == {"W.lora_A", "W.lora_B", "V.lora_A", "V.lora_B"}
    assert np.abs(found.adapters_["W.lora_B"]).max() > 0.01
    for name, array in expected.adapters_.items():
        assert_allclose(found.adapters_[name], array, rtol=0, atol=1e-5)
    assert_allclose(found.predict(X), expected.predict(X), rtol=1e-4, atol=1e-5)
    assert_allclose(found.loss_curve_, expected.loss_curve_, rtol=1e-4)


@pytest.mark.parametrize("adapter", [False, True])
def test_files_keep_the_matrix_of_few_bits(adapter, tmp_path):
    given = network(few_bits=True)
    fitted = trained(given)
    exported = fitted.to_onnx(adapter=adapter)
    held = {tensor.name: tensor for tensor in exported.graph.initializer}
    assert [node.op_type for node in exported.graph.node].count("MatMulNBits") == 1
    for tensor in given.graph.initializer[:3]:
        assert_array_equal(onnx.numpy_helper.to_array(held[tensor.name]), onnx.numpy_helper.to_array(tensor))
    feeds = {exported.graph.input[0].name: X}
    if adapter:  # the file itself is the given model; the factors are inputs with defaults
        assert_allclose(session(exported).run(None, feeds)[0].ravel(), session(given).run(None, feeds)[0].ravel(), 1e-5)
        arrays = fitted.adapters_
        feeds |= {name: 2 * array if name.endswith("lora_B") else array for name, array in arrays.items()}
    assert_allclose(session(exported).run(None, feeds)[0].ravel(), fitted.predict(X), rtol=1e-5, atol=1e-6)


def test_states_and_pickles_continue():
    fitted = trained(network(few_bits=True))
    again = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(again.predict(X), fitted.predict(X))
    fresh = trained(network(few_bits=True), learning_rate_init=0.0).load_state(fitted.weights_)
    assert_allclose(fresh.predict(X), fitted.predict(X), rtol=1e-5, atol=1e-6)
    assert_array_equal(fresh.adapters_["W.lora_A"], fitted.adapters_["W.lora_A"])
    assert np.abs(again.partial_fit(X, y).adapters_["W.lora_B"] - fitted.adapters_["W.lora_B"]).max() > 1e-4


def test_one_matrix_of_few_bits_is_adapted_by_name():
    fitted = trained(network(few_bits=True), adapters=LoRA(2, targets="W"))
    assert [entry.name for entry in fitted.describe().of("trained")] == ["W.lora_A", "W.lora_B"]
    with pytest.raises(ValueError, match=r"targets: 'Z' matches no parameter"):
        trained(network(few_bits=True), adapters=LoRA(2, targets="Z"))


def test_weights_before_a_matrix_of_few_bits_are_trained():
    arrays, matrix = quantized(1, 16)
    body = f"H = MatMul(X, V) T = Tanh(H) {product('T', 'Y', 1, 16, 4, 16, arrays)}"
    start = np.random.default_rng(3).normal(size=(21, 16)).astype(np.float32) / 5
    model = parsed(body, {**arrays, "V": start}, "float[N, 21] X", "float[N, 1] Y")
    found = trained(
        GraphModel(model), adapters=None, trainable="V", optimizer="sgd", batch_size=40, max_iter=1, shuffle=False
    )
    hidden = np.tanh(X.astype(np.float64) @ start)
    error = hidden @ matrix.T - y[:, None]
    gradient = 2 / 40 * X.T @ ((error @ matrix) * (1 - hidden**2))
    assert_allclose(found.weights_["V"], start - 0.01 * gradient, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"adapters": None},
            r"quantized: MatMulNBits .* Set adapters=LoRA\(\), .*, or name floats in trainable: 'b', 'V'",
        ),
        ({"trainable": ["W"]}, "W"),
    ],
)
def test_the_matrix_itself_is_not_trained(change, message):
    with pytest.raises((ModelError, ValueError), match=message):
        trained(network(few_bits=True), **change)


def test_other_forms_are_refused():
    arrays, _ = quantized(4, 32)
    arrays["g"] = np.zeros(32, np.int32)
    body = f"H = MatMul(X, V) {product('H', 'P', 4, 32, 4, 16, arrays)} Y = ReduceSum <keepdims = 0> (P)"
    model = parsed(body, {**arrays, "V": np.ones((6, 32), np.float32)}, y="float Y")
    with pytest.raises(UnsupportedOperatorError, match="columns have another order"):
        gradient_graph(model, wrt=["V"], of="Y")

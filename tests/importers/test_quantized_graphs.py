"""Quantized graphs are trained by the straight-through estimate, beside PyTorch, and are exported quantized again."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from onnx import numpy_helper, parser
from sklearn.datasets import load_digits

from onnxtrain_sklearn import SGD, GraphModel, OrtGradientClassifier, OrtGradientMultiOutput, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError, UnsupportedOperatorError
from tests.helpers.data import DATA
from tests.helpers.quantized import run_by_default, run_exactly, stored_integers
from tests.helpers.training import NEVER

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
DIGITS, LABELS = load_digits(return_X_y=True)
DIGITS = (DIGITS / 16).astype(np.float32)
FILES = {"quantized_mlp": (64,), "quantized_cnn": (1, 8, 8)}
RATE, BATCH, STEPS = 0.05, 32, 20
files = pytest.mark.parametrize("name", FILES)


def read(name):
    return onnx.load(DATA / f"{name}.onnx"), DIGITS.reshape(-1, *FILES[name])


def new(model, **settings):
    common = {"optimizer": SGD(), "learning_rate_init": RATE, "batch_size": BATCH, "max_iter": 1, "shuffle": False}
    common |= {"tol": NEVER, "random_state": 0}
    given = model if isinstance(model, GraphModel) else GraphModel(model, output_kind="scores")
    return OrtGradientClassifier(given, **common | settings)


def run(model, X):
    return run_by_default(model, {model.graph.input[0].name: X})


def run_given(model, X):
    return run_exactly(model, {model.graph.input[0].name: X})


@files
def test_the_first_gradient_is_that_of_pytorch(name):
    model, X = read(name)
    known = np.load(DATA / f"{name}.npz")
    fitted = new(model, learning_rate_init=1.0).fit(X[:BATCH], LABELS[:BATCH])
    start = new(model, learning_rate_init=0.0).fit(X[:BATCH], LABELS[:BATCH])
    assert_allclose(fitted.loss_, known["losses"][0], rtol=1e-5)
    for weight, array in start.weights_.items():
        gradient = known[f"gradient/{weight}"]
        assert_allclose(array - fitted.weights_[weight], gradient, rtol=0, atol=1e-4 * np.abs(gradient).max())
    assert set(start.weights_) == {key.partition("/")[2] for key in known if key.startswith("final/")}


@files
def test_twenty_steps_end_where_those_of_pytorch_do(name):
    model, X = read(name)
    known, rows = np.load(DATA / f"{name}.npz"), slice(0, BATCH * STEPS)
    fitted = new(model).fit(X[rows], LABELS[rows])
    start = new(model, learning_rate_init=0.0).fit(X[rows], LABELS[rows]).weights_
    assert_allclose(fitted.loss_, known["losses"].mean(), rtol=1e-3)
    for weight, array in fitted.weights_.items():  # a number may be rounded the other way, and so a step of all
        moved = np.abs(known[f"final/{weight}"] - start[weight]).max()
        assert_allclose(array, known[f"final/{weight}"], rtol=0, atol=0.01 * moved, err_msg=weight)


@files
@pytest.mark.parametrize("early_stopping", [False, True])
def test_fine_tuning_raises_accuracy_of_requantized_file(name, early_stopping):
    model, X = read(name)
    before = (run_given(model, X[1200:])[0].argmax(axis=1) == LABELS[1200:]).mean()
    settings = {"optimizer": "adamw", "learning_rate_init": 0.003, "max_iter": 15, "shuffle": True}
    fitted = new(model, early_stopping=early_stopping, **settings).fit(X[:1200], LABELS[:1200])
    exported = fitted.to_onnx()
    onnx.checker.check_model(exported, full_check=True)
    label, probabilities = run(exported, X)
    assert (label[1200:] == LABELS[1200:]).mean() > before + 0.03
    assert_array_equal(label, fitted.predict(X))
    assert_allclose(probabilities, fitted.predict_proba(X), rtol=0, atol=1e-6)
    given, written = stored_integers(model), stored_integers(exported, model)
    weights = {key for key in given if key.endswith("_quantized")}
    assert {key for key in written if key.endswith("_quantized")} == weights
    for key in weights:
        assert written[key].dtype == given[key].dtype
        assert (written[key] != given[key]).any()
    kinds = [node.op_type for node in exported.graph.node]
    for kind in ("QuantizeLinear", "DequantizeLinear"):
        assert kinds.count(kind) == [node.op_type for node in model.graph.node].count(kind)
    assert "Round" not in kinds


@files
def test_an_untrained_file_is_the_given_one(name):
    model, X = read(name)
    fitted = new(model, learning_rate_init=0.0).fit(X, LABELS)
    exported = fitted.to_onnx()
    written = stored_integers(exported, model)
    for key, array in stored_integers(model).items():
        if key.endswith("_quantized"):
            assert_array_equal(written[key], array)
    assert_allclose(fitted.decision_function(X), run_given(model, X)[0], rtol=0, atol=1e-5)
    again = new(GraphModel(exported, output="probabilities")).fit(X[:200], LABELS[:200])
    assert set(again.weights_) == set(fitted.weights_)


@pytest.mark.long
def test_copies_and_passes():
    model, X = read("quantized_mlp")
    fitted = new(model).fit(X[:320], LABELS[:320])
    twin = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(twin.predict_proba(X), fitted.predict_proba(X))
    for one in (fitted, twin):
        one.partial_fit(X[:320], LABELS[:320])
    for weight, array in fitted.weights_.items():
        assert_array_equal(twin.weights_[weight], array)
    assert stored_integers(twin.to_onnx()).keys() == stored_integers(fitted.to_onnx()).keys()
    frozen = new(model, trainable=["*2.*"]).fit(X[:320], LABELS[:320])
    given, written = stored_integers(model), stored_integers(frozen.to_onnx(), model)
    same = {key: np.array_equal(given[key], written[key]) for key in written if key.endswith("weight_quantized")}
    assert sorted(same.values()) == [False, True]
    assert "held as integers" in str(fitted.describe())
    several = OrtGradientMultiOutput(GraphModel(model, output_kind="scores"), loss={"scores": "log_loss"}, max_iter=2)
    several.fit(X[:320], {"scores": LABELS[:320]})
    assert_array_equal(run(several.to_onnx(), X)[0], several.predict(X)["scores"])


def test_the_training_engine_is_not_asked():
    model, X = read("quantized_mlp")
    assert new(model).fit(X[:64], LABELS[:64]).engine_ == "portable"
    from tests.helpers.environment import available_engines

    if "ort-training" in available_engines():
        with pytest.raises(UnsupportedOperatorError, match=r"Round.*straight through"):
            new(model, engine="ort-training").fit(X[:64], LABELS[:64])


PAIR = """Q = QuantizeLinear {axis} (H, s, z) D = DequantizeLinear {axis} (Q, s, z)"""


def small(body, *constants):
    arrays = ", ".join(("float[3, 3] W = {0.5, -1, 0.25, 2, 0.7, -0.1, -1.3, 0.4, 0.9}", *constants))
    head = '<ir_version: 10, opset_import: ["": 21]> net (float[N, 3] X) => (float[N, 3] Y)'
    return parser.parse_model(f"{head} <{arrays}> {{ {body} }}")


def straight_through(H, scale, zero, low, high):
    """Return the numbers after rounding, and the slope that is taken for it."""
    raw = np.rint(H / scale) + zero
    return (raw.clip(low, high) - zero) * scale, (raw >= low) & (raw <= high)


KINDS = {
    "uint8": ("uint8", 0, 255, 128, 0.02),
    "int8": ("int8", -128, 127, 3, 0.02),
    "int16": ("int16", -32768, 32767, 0, 1e-4),
    "uint16": ("uint16", 0, 65535, 30000, 1e-4),
    "int4": ("int4", -8, 7, 0, 0.3),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("per_column", [False, True])
def test_gradients_of_types_and_axes(kind, per_column):
    name, low, high, zero, step = KINDS[kind]
    if kind == "int4" and onnxruntime.__version__ < "1.20":
        pytest.skip("onnxruntime has no kernels for 4 bits")
    scales = np.float32(step) * (np.array([1, 2, 0.5], np.float32) if per_column else np.ones(1, np.float32))
    shape, zeros = ("[3]", [zero] * 3) if per_column else ("", [zero])
    numbers = ", ".join(map(repr, map(float, scales)))
    constants = (f"float{shape} s = {{{numbers}}}", f"{name}{shape} z = {{{', '.join(map(str, zeros))}}}")
    axis = "<axis = -1>" if per_column else ""
    body = f"H = MatMul(X, W) {PAIR.format(axis=axis)} Y = Identity(D)"
    model = small(body, *constants)
    X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    y = np.random.default_rng(1).normal(size=(40, 3))
    fitted = OrtGradientRegressor(
        GraphModel(model, output_kind="scores"), optimizer=SGD(), learning_rate_init=0.1, batch_size=40, max_iter=1
    ).fit(X, y)
    W = numpy_helper.to_array(model.graph.initializer[0])
    out, slope = straight_through((X @ W).astype(np.float32), scales, zero, low, high)
    gradient = X.T @ (2 * (out - y) / y.size * slope)
    assert 0 < slope.mean() < 1 or "16" in kind
    assert_allclose(fitted.loss_, ((out - y) ** 2).mean(), rtol=1e-5)
    assert_allclose((W - fitted.weights_["W"]) / 0.1, gradient, rtol=0, atol=1e-5)
    assert_allclose(run(fitted.to_onnx(), X)[0], fitted.predict(X), rtol=0, atol=1e-6)
    assert "QuantizeLinear" in [node.op_type for node in fitted.to_onnx().graph.node]


def test_other_forms_are_refused():
    X = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    kinds = "float s = {0.1}", "uint8 z = {128}"
    moved = small("H = MatMul(X, W) Q = QuantizeLinear(H, s, z) T = Identity(Q) D = DequantizeLinear(T, s, z) "
                  "Y = MatMul(D, W)", *kinds)  # fmt: skip
    with pytest.raises(ModelError, match=r"quantized: .* pairs of QuantizeLinear and DequantizeLinear"):
        OrtGradientRegressor(moved).fit(X, X)
    computed = small("H = MatMul(X, W) s = ReduceMax <keepdims = 0> (X) t = Abs(s) Q = QuantizeLinear(H, t, z) "
                     "D = DequantizeLinear(Q, t, z) Y = MatMul(D, W)", kinds[1])  # fmt: skip
    with pytest.raises(ModelError, match="quantized"):
        OrtGradientRegressor(computed).fit(X, X)

"""Dynamically quantized graphs are trained by the straight-through estimate, as NumPy has it, and exported again."""

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from onnxtrain_sklearn import SGD, LoRA, OrtGradientRegressor, load_training
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.quantized import run_by_default, run_exactly, stored_integers
from tests.helpers.training import quietly

RNG = np.random.default_rng(0)
X = RNG.normal(size=(32, 4)).astype(np.float32)
Y = RNG.normal(size=(32, 3)).astype(np.float32)
ARRAYS = {"W": (4, 8), "b": (8,), "V": (8, 3), "c": (3,)}
SETTINGS = {"optimizer": SGD(), "batch_size": 32, "shuffle": False, "random_state": 0}


@pytest.fixture(
    scope="module", params=[{}, {"per_channel": True, "weight_type": QuantType.QInt8}], ids=["", "channels"]
)
def quantized(request, tmp_path_factory) -> onnx.ModelProto:
    """Return a perceptron that onnxruntime quantized."""
    arrays = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in ARRAYS.items()}
    nodes = [
        ("MatMul", "X W", "H"),
        ("Add", "H b", "A"),
        ("Relu", "A", "R"),
        ("MatMul", "R V", "Z"),
        ("Add", "Z c", "Y"),
    ]
    made = [helper.make_node(kind, reads.split(), [to], name=to) for kind, reads, to in nodes]
    return as_quantized(made, arrays, ("N", 4), ("N", 3), tmp_path_factory.mktemp("files"), **request.param)


def as_quantized(nodes, arrays, rows, results, folder, **settings) -> onnx.ModelProto:
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("X", rows), ("Y", results))]
    held = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], held)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), folder / "floats.onnx"
    )
    quantize_dynamic(folder / "floats.onnx", folder / "integers.onnx", **settings)
    return onnx.load(folder / "integers.onnx")


def run(model, rows):
    return run_by_default(model, {"X": rows})[0]


def run_given(model, rows):
    return run_exactly(model, {"X": rows})[0]


def by_range(x):
    """Round to the 256 numbers of the range, which DynamicQuantizeLinear computes in float32."""
    low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    scale = np.float32((high - low) / np.float32(255))
    zero = np.clip(np.rint(-low / scale), 0, 255)
    return (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale.astype(np.float64)


def reference(model, rows, y):
    """Return predictions and the gradients of the squared error in float64, straight through every rounding."""
    held = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    w, v = (
        (held[f"{k}_quantized"].astype(float) - held[f"{k}_zero_point"]) * held[f"{k}_scale"].astype(float)
        for k in "WV"
    )
    inner = by_range(rows)
    hidden = inner @ w + held["b"]
    outer = by_range(np.maximum(hidden, 0).astype(np.float32))
    found = outer @ v + held["c"]
    slope = 2 * (found - y) / y.size
    before = (slope @ v.T) * (hidden > 0)
    return found, {"W": inner.T @ before, "b": before.sum(axis=0), "V": outer.T @ slope, "c": slope.sum(axis=0)}


def integers_of(model, given=None):
    return {name: array for name, array in stored_integers(model, given).items() if name.endswith("_quantized")}


def kinds(model):
    return Counter(node.op_type for node in model.graph.node if node.op_type not in ("Constant", "Identity"))


def test_the_gradient_is_straight_through(quantized):
    found, gradients = reference(quantized, X, Y)
    assert_allclose(run_given(quantized, X), found, rtol=0, atol=1e-5)
    start = OrtGradientRegressor(quantized, learning_rate_init=0.0, **SETTINGS).partial_fit(X, Y).weights_
    net = OrtGradientRegressor(quantized, learning_rate_init=1.0, **SETTINGS).partial_fit(X, Y)
    assert_allclose(net.loss_, ((found - Y) ** 2).mean(), rtol=1e-5)
    assert start.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert_allclose(start[name] - net.weights_[name], gradient, rtol=0, atol=1e-5 * np.abs(gradient).max() + 1e-6)


def test_the_untrained_file_is_the_given_one(quantized):
    net = OrtGradientRegressor(quantized, learning_rate_init=0.0, **SETTINGS).partial_fit(X, Y)
    exported = net.to_onnx()
    onnx.checker.check_model(exported, full_check=True)
    assert_allclose(net.predict(X), run_given(quantized, X), rtol=0, atol=1e-6)
    assert_array_equal(run(exported, X), net.predict(X))
    for name, array in integers_of(quantized).items():
        assert_array_equal(integers_of(exported, quantized)[name], array)
    assert kinds(exported) == kinds(quantized)


def test_training_lowers_the_loss_of_the_file_that_is_given_back(quantized):
    target = run_given(quantized, X) + np.sin(3 * X[:, :3])
    net = OrtGradientRegressor(quantized, learning_rate_init=0.05, **SETTINGS)
    for _ in range(50):
        net.partial_fit(X, target)
    exported = net.to_onnx()
    assert_array_equal(run(exported, X), net.predict(X))
    assert ((net.predict(X) - target) ** 2).mean() < 0.7 * ((run_given(quantized, X) - target) ** 2).mean()
    found = integers_of(exported, quantized)
    assert all((found[name] != array).any() for name, array in integers_of(quantized).items())
    assert kinds(exported) == kinds(quantized)
    twin = pickle.loads(pickle.dumps(net))
    assert_array_equal(twin.partial_fit(X, target).predict(X), net.partial_fit(X, target).predict(X))


def test_convolutions_of_integers(tmp_path):
    """Their weights are per tensor; the bias is an Add behind them."""
    arrays = {"K": RNG.normal(size=(2, 1, 3, 3)).astype(np.float32), "d": RNG.normal(size=2).astype(np.float32)}
    node = helper.make_node("Conv", ["X", "K", "d"], ["Y"], name="conv", pads=[1, 1, 1, 1])
    kind = {"weight_type": QuantType.QUInt8}  # the older runtime has no kernel for signed ones
    model = as_quantized([node], arrays, ("N", 1, 4, 4), ("N", 2, 4, 4), tmp_path, **kind)
    assert "ConvInteger" in kinds(model)
    images, target = RNG.normal(size=(8, 1, 4, 4)).astype(np.float32), np.zeros((8, 2, 4, 4), np.float32)
    net = OrtGradientRegressor(model, learning_rate_init=0.1, **SETTINGS | {"batch_size": 8}).partial_fit(
        images, target
    )
    assert net.loss_ == pytest.approx((run_given(model, images) ** 2).mean(), rel=1e-5)
    assert_array_equal(run(net.to_onnx(), images), net.predict(images))
    assert kinds(net.to_onnx()) == kinds(model)
    kernel = net.weights_["K"]
    assert (np.abs(kernel - arrays["K"]) > 1e-3).any()


def test_embeddings_are_looked_up_in_rounded_floats(tmp_path):
    table = RNG.normal(size=(6, 4)).astype(np.float32)
    index = np.array([5, 0, 3])
    nodes = [helper.make_node("Gather", ["table", "index"], ["rows"], name="gather"),
             helper.make_node("MatMul", ["X", "W"], ["H"], name="product"),
             helper.make_node("Add", ["H", "rows"], ["Z"], name="sum"),
             helper.make_node("ReduceSum", ["Z", "axes"], ["Y"], name="total", keepdims=0)]  # fmt: skip
    arrays = {"table": table, "W": RNG.normal(size=(4, 4)).astype(np.float32)}
    arrays |= {"index": index, "axes": np.array([1])}
    model = as_quantized(nodes, arrays, ("N", 3, 4), ("N", 4), tmp_path)
    assert kinds(model)["DequantizeLinear"] == 1
    rows, target = RNG.normal(size=(8, 3, 4)).astype(np.float32), np.zeros((8, 4), np.float32)
    net = OrtGradientRegressor(model, learning_rate_init=0.1, **SETTINGS | {"batch_size": 8}).partial_fit(rows, target)
    start = OrtGradientRegressor(model, learning_rate_init=0.0, **SETTINGS | {"batch_size": 8}).partial_fit(
        rows, target
    )
    moved = np.abs(net.weights_["table"] - start.weights_["table"]).max(axis=1) > 0
    assert_array_equal(moved, [True, False, False, True, False, True])
    assert set(net.weights_) == {"table", "W"}
    assert_allclose(run(net.to_onnx(), rows), net.predict(rows), rtol=1e-6)


def test_training_graphs_hold_the_rounding(quantized, tmp_path):
    net = OrtGradientRegressor(quantized, learning_rate_init=0.01, **SETTINGS).partial_fit(X, Y)
    net.export_training(tmp_path / "folder")
    training = load_training(tmp_path / "folder", shuffle=False).partial_fit(X, Y)
    net.partial_fit(X, Y)
    assert_allclose(training.state["parameters"], net._state.parameters.vector, rtol=0, atol=1e-6)


def test_other_integer_products_are_refused(quantized):
    """A product of integers that something else reads too."""
    changed = onnx.ModelProto()
    changed.CopyFrom(quantized)
    product = next(node for node in changed.graph.node if node.op_type == "MatMulInteger")
    changed.graph.output.append(helper.make_tensor_value_info(product.output[0], TensorProto.INT32, ["N", 8]))
    with pytest.raises(ModelError, match="The graph is quantized: MatMulInteger"):
        OrtGradientRegressor(changed, **SETTINGS).partial_fit(X, Y)


def test_adapters_say_that_the_matrices_are_integers(quantized):
    for targets in ("all", "W", "W_quantized"):
        with pytest.raises(ValueError, match=r"the file holds 'W' as integers: .* Leave adapters=None, .* float"):
            OrtGradientRegressor(quantized, adapters=LoRA(2, targets), **SETTINGS).fit(X, Y)


class Rows(CalibrationDataReader):
    def __init__(self):
        self.rows = iter([{"X": X}])

    def get_next(self):
        return next(self.rows, None)


def test_other_quantization_is_refused_with_a_remedy_that_trains(tmp_path):
    arrays = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in ARRAYS.items()}
    nodes = [("MatMul", "X W", "H"), ("Relu", "H", "R"), ("MatMul", "R V", "Z"), ("Add", "Z c", "Y")]
    made = [helper.make_node(kind, reads.split(), [to], name=to) for kind, reads, to in nodes]
    as_quantized(made, {name: arrays[name] for name in "WVc"}, ("N", 4), ("N", 3), tmp_path)
    quantize_static(tmp_path / "floats.onnx", tmp_path / "one.onnx", Rows(), quant_format=QuantFormat.QOperator)
    with pytest.raises(ModelError, match=r"QLinearMatMul .*or quantize it in pairs: .*quant_format=QuantFormat.QDQ"):
        OrtGradientRegressor(tmp_path / "one.onnx", **SETTINGS).fit(X, Y)
    quantize_static(tmp_path / "floats.onnx", tmp_path / "two.onnx", Rows(), quant_format=QuantFormat.QDQ)
    assert np.isfinite(quietly(OrtGradientRegressor(tmp_path / "two.onnx", **SETTINGS).fit, X, Y).loss_)


def test_quantized_lstm_is_refused_with_a_remedy_that_trains(tmp_path):
    arrays = {"W": (1, 16, 4), "R": (1, 16, 4), "V": (4, 3)}
    held = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in arrays.items()}
    made = [
        helper.make_node("Transpose", ["X"], ["T"], name="T", perm=[1, 0, 2]),
        helper.make_node("LSTM", ["T", "W", "R"], ["", "L"], name="L", hidden_size=4),
        helper.make_node("Squeeze", ["L", "axis"], ["S"], name="S"),
        helper.make_node("MatMul", ["S", "V"], ["Y"], name="Y"),
    ]
    held["axis"] = np.array([0])
    rows = np.random.default_rng(1).normal(size=(32, 5, 4)).astype(np.float32)
    model = as_quantized(made, held, ("N", 5, 4), ("N", 3), tmp_path)
    with pytest.raises(
        ModelError, match=r"DynamicQuantizeLSTM .* without its LSTMs: .*_types_to_quantize=\['MatMul'\]"
    ):
        OrtGradientRegressor(model, **SETTINGS).fit(rows, Y)
    model = as_quantized(made, held, ("N", 5, 4), ("N", 3), tmp_path, op_types_to_quantize=["MatMul"])
    trained = quietly(OrtGradientRegressor(model, engine="portable", **SETTINGS).fit, rows, Y)
    assert not np.array_equal(trained.weights_["W"], held["W"])

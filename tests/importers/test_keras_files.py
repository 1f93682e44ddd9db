"""Files of Keras, by tf2onnx from TensorFlow and by PyTorch's exporter: trained as Keras trains the network.

``data/make_keras_exports.py`` wrote the files, and what Keras computes in float64.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import SGD, OrtGradientClassifier, OrtGradientRegressor
from tests.helpers.data import DATA
from tests.helpers.graphs import from_file

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def archive_of(name):
    with np.load(DATA / f"keras_{name}.npz") as archive:
        return dict(archive)


def trained_on(name, momentum, rate, steps):
    known = archive_of(name)
    trained = OrtGradientClassifier(
        DATA / f"keras_{name}.onnx", optimizer=SGD(momentum=momentum), learning_rate_init=rate, batch_size=16,
        max_iter=steps, tol=0, shuffle=False,
    )  # fmt: skip
    return trained.fit(known["X"], known["y"]), known


def numbers_of(known):
    return sum(array.size for name, array in known.items() if name.startswith("gradient/"))


@pytest.mark.parametrize("name", ["mlp", "lstm", "gelu", "recurrent", "separable"])
def test_ten_steps_are_those_of_keras(name):
    """An LSTM of Keras has one bias for each gate or none, where ONNX's has two: tf2onnx fills in zeros."""
    trained, known = trained_on(name, 0.9, 0.05, 10)
    assert sum(array.size for array in trained.weights_.values()) == numbers_of(known)
    assert_allclose(trained.loss_curve_, known["losses"], rtol=2e-6)
    assert_allclose(trained.decision_function(known["X"]), known["scores"], rtol=0, atol=1e-5)


def test_batch_normalization_gradients_equal_keras():
    """It is a factor and a summand; the second has a name that the exporter made up for what it computed."""
    rate = 0.1
    trained, known = trained_on("cnn", 0.0, rate, 1)
    given = {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load(DATA / "keras_cnn.onnx").graph.initializer}
    moved = {name: (given[name] - array).ravel() / rate for name, array in trained.weights_.items()}
    assert sum(array.size for array in trained.weights_.values()) == numbers_of(known)
    scale, bias = (next(k for k in moved if part in k) for part in ("batchnorm/mul", "const_fold_opt"))
    assert_allclose(moved[bias], known["gradient/batch_normalization/beta"], rtol=0, atol=2e-6)
    mean, variance = (known[f"batch_normalization/moving_{kind}"] for kind in ("mean", "variance"))
    by_factor = (moved[scale] - mean * moved[bias]) / np.sqrt(variance + 1e-3)  # factor and summand both hold gamma
    assert_allclose(by_factor, known["gradient/batch_normalization/gamma"], rtol=0, atol=1e-5)


EQUAL = """<ir_version: 8, opset_import: ["": 18], producer_name: "tf2onnx"> g (float[N, 2] x) => (float[N, 1] y)
    <float[2, 2] k = {1, 2, 3, 4}, float[2, 2] other = {5, 6, 7, 8}, float[2] b = {0.5, 0.5}, float[2, 1] w = {1, -1}>
    { p = MatMul(x, k) q = Add(p, b) r = Tanh(q) s = MatMul(r, second) t = Add(s, b) y = MatMul(t, w) }"""


def two_layers(second, kernel):
    """Return a network of two layers of nodes with names as Keras gives them, with one constant for both biases."""
    model = onnx.parser.parse_model(EQUAL.replace("second", kernel))
    operators = ("a/MatMul", "a/BiasAdd", "a/Tanh", f"{second}/MatMul", f"{second}/BiasAdd", "out/MatMul")
    for node, name in zip(model.graph.node, operators, strict=True):
        node.name = f"m/{name}"
    return from_file(model)


@pytest.mark.parametrize(("kernel", "count"), [("k", 1), ("other", 2)])
def test_equal_biases_are_separate_unless_layer_is_shared(kernel, count):
    names = two_layers("b", kernel).parameters
    assert len([name for name in names if name == "b" or name.endswith("/b")]) == count


def test_calls_of_one_path_read_one_bias():
    assert set(two_layers("a", "k").parameters) == {"k", "b", "w"}


NORMALIZED = """<ir_version: 8, opset_import: ["": 18], producer_name: "pytorch"> g (float[N, 2] x) => (float[N, 1] y)
    <float[2, 2] MatMul_1 = {1, 2, 3, 4}, float[1, 2] zeros = {0, 0}, float[1, 2] ones = {1, 1},
     float[2, 1] MatMul_2 = {1, -1}>
    { Sub_3 = Identity(zeros) Add_4 = Identity(zeros) Mul_5 = Identity(ones) p = MatMul(x, MatMul_1)
      q = Sub(p, Sub_3) r = Mul(q, Mul_5) s = Add(r, Add_4) y = MatMul(s, MatMul_2) }"""


def made_up(model):
    """Give constants the names that PyTorch's older exporter makes up."""
    for names in (*(n.input for n in model.graph.node), *(n.output for n in model.graph.node)):
        names[:] = [f"onnx::{name}" if "_" in name else name for name in names]
    for initializer in model.graph.initializer:
        initializer.name = f"onnx::{initializer.name}" if "_" in initializer.name else initializer.name
    return model


def test_normalization_trains_scale_and_bias_not_mean():
    """As Keras exports it with PyTorch, fresh: the mean and the bias begin as the same zeros."""
    X, y = np.float32([[1, 0], [0, 1], [1, 1]]), np.array([1.0, 0.0, 2.0])
    model = made_up(onnx.parser.parse_model(NORMALIZED))
    trained = OrtGradientRegressor(model, optimizer="sgd", max_iter=3, batch_size=3).fit(X, y)
    assert set(trained.weights_) == {"onnx::MatMul_1", "onnx::MatMul_2", "onnx::Mul_5", "onnx::Add_4"}
    mean = next(i for i in trained.to_onnx().graph.initializer if i.name in ("onnx::Sub_3", "zeros"))
    assert_array_equal(onnx.numpy_helper.to_array(mean), [[0, 0]])

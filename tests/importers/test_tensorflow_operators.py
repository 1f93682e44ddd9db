"""Files of tf2onnx: operators of TensorFlow that it left, constants of the code, biases that it left out."""

from __future__ import annotations

import math
import warnings

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.testing import assert_allclose

from onnxtrain_sklearn import SGD, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError, OnnxTrainWarning
from tests.helpers.environment import available_engines
from tests.helpers.graphs import from_file

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

HEAD = '<ir_version: 8, opset_import: ["": 15], producer_name: "tf2onnx">'
NET = (
    HEAD
    + """ g (float[N, 2] x) => (float[N, 1] y)
    <float[2, 3] k = {0.3, -0.2, 0.5, 0.4, 0.1, -0.6}, float[3] b = {0.1, -0.1, 0.2}, float[3, 1] w = {0.7, -0.4, 0.5}>
    { p = MatMul(x, k) q = Add(p, b) s = Mul(q, q) h = OPERATOR y = MatMul(h, w) }"""
)


def erfc(a):
    return np.vectorize(math.erfc)(a)


OPERATORS = {
    "Erfc(q)": lambda q, s: erfc(q),
    "Expm1(q)": lambda q, s: np.expm1(q),
    "Log1p(s)": lambda q, s: np.log1p(s),
    "Xdivy(q, s)": lambda q, s: q / s,
    "Xlog1py(q, s)": lambda q, s: q * np.log1p(s),
    "Xlogy(q, s)": lambda q, s: q * np.log(s),
}
X = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
Y = np.linspace(-1, 1, 8).astype(np.float32)
START = {"k": [[0.3, -0.2, 0.5], [0.4, 0.1, -0.6]], "b": [0.1, -0.1, 0.2], "w": [[0.7], [-0.4], [0.5]]}


def model(operator):
    return onnx.parser.parse_model(NET.replace("OPERATOR", operator))


def predicted(function, weights):
    q = X.astype(np.float64) @ weights["k"] + weights["b"]
    return (function(q, q * q) @ weights["w"]).ravel()


def gradients(function):
    """Central differences of the mean squared error in float64."""
    start = {name: np.array(array) for name, array in START.items()}
    found = {name: np.zeros_like(array) for name, array in start.items()}
    for name, array in found.items():
        for place in np.ndindex(array.shape):
            sides = []
            for step in (1e-6, -1e-6):
                moved = {other: a.copy() for other, a in start.items()}
                moved[name][place] += step
                sides.append(((predicted(function, moved) - Y) ** 2).mean())
            array[place] = (sides[0] - sides[1]) / 2e-6
    return found


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_with_an_exact_form_are_trained(operator, engine):
    function = OPERATORS[operator]
    trained = OrtGradientRegressor(
        model(operator), optimizer=SGD(), learning_rate_init=0.01, batch_size=8, max_iter=1, engine=engine
    )
    trained.fit(X, Y)
    assert set(trained.weights_) == set(START)
    for name, gradient in gradients(function).items():
        scale = max(1.0, np.abs(gradient).max())
        moved = (np.float32(START[name]) - trained.weights_[name]) / 0.01
        assert_allclose(moved, gradient, rtol=0, atol=3e-5 * scale, err_msg=name)
    weights = {name: array.astype(np.float64) for name, array in trained.weights_.items()}
    expected = predicted(function, weights)
    assert_allclose(trained.predict(X), expected, rtol=0, atol=2e-6 * max(1.0, np.abs(expected).max()))


@pytest.mark.parametrize("operator", ["Xdivy(z, s)", "Xlog1py(z, m)", "Xlogy(z, s)"])
def test_products_with_zero_are_zero_where_the_other_is_not_finite(operator):
    text = NET.replace("s = Mul(q, q)", "z = Sub(q, q) s = Sub(z, z) one = Exp(z) m = Neg(one)")
    trained = OrtGradientRegressor(onnx.parser.parse_model(text.replace("OPERATOR", operator)), max_iter=1)
    assert_allclose(trained.fit(X, Y).predict(X), np.zeros(8))


@pytest.mark.parametrize(("limit", "operator"), [("0.0", "Expm1(q)"), ("1e9", "Erfc(q)")])
def test_operators_in_condition_bodies_are_replaced(limit, operator):
    body = """c = Greater(n, limit) h = If (c) <then_branch = t () => (float[M, 3] a) { a = Expm1(q) },
        else_branch = e () => (float[M, 3] a) { a = Erfc(q) }>"""
    sums = f"kk = Mul(k, k) n = ReduceSum<keepdims = 0>(kk) limit = Constant<value_float = {limit}>()"
    proto = onnx.parser.parse_model(NET.replace("h = OPERATOR", f"{sums} {body}"))
    trained = OrtGradientRegressor(proto, optimizer=SGD(), learning_rate_init=1e-9, max_iter=1)
    exact = predicted(OPERATORS[operator], START)
    assert_allclose(trained.fit(X, Y).predict(X), exact, rtol=0, atol=2e-6)


def test_floats_are_of_the_type_of_the_file():
    text = NET.replace("float[", "double[").replace("OPERATOR", "Expm1(q)")
    trained = OrtGradientRegressor(onnx.parser.parse_model(text), optimizer=SGD(), learning_rate_init=1e-9, max_iter=1)
    exact = predicted(OPERATORS["Expm1(q)"], START)
    assert_allclose(trained.fit(X, Y).predict(X), exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize("operator", ["Lgamma(q)", "Xlogy(q)", "StatefulPartitionedCall(q, s)"])
def test_other_operators_are_refused_by_name(operator):
    with pytest.raises(ModelError, match=rf"{operator.partition('(')[0]}.*export it again"):
        OrtGradientRegressor(model(operator)).fit(X, Y)


def test_files_of_other_programs_are_not_rewritten():
    proto = model("Erfc(q)")
    proto.producer_name = "someone"
    with pytest.raises(ModelError, match="Erfc"):
        OrtGradientRegressor(proto).fit(X, Y)


def renamed(text, **names):
    """Return the model of a text, with names that the parser of texts cannot read."""
    proto = onnx.parser.parse_model(text)
    for node in proto.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for tensor in proto.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    return proto


VARIABLE = "m/dense/Cast/ReadVariableOp:0"
CODE = (
    HEAD
    + """ g (float[N, 2] x) => (float[N, 1] y)
    <float[2, 3] k = {0.3, -0.2, 0.5, 0.4, 0.1, -0.6}, float[3] b = {0.1, -0.1, 0.2}, float[3, 1] w = {0.7, -0.4, 0.5}>
    { p = MatMul(x, k) h = Add(p, b) y = MatMul(h, w) }"""
)


def test_constants_of_the_code_are_not_trained():
    named = {"k": VARIABLE, "b": "m/lambda/Const_1:0", "w": "m/lambda/Const:0"}
    assert from_file(renamed(CODE, **named)).parameters == (VARIABLE,)


def test_constants_are_trained_where_the_file_names_no_variable():
    """As in frozen graphs whose weights are constants."""
    named = {"k": "Const:0", "b": "Const_1:0", "w": "Const_2:0"}
    assert set(from_file(renamed(CODE, **named)).parameters) == set(named.values())


@pytest.mark.parametrize("name", ["m/lambda/SelectV2/e:0", "m/lambda/SelectV2_1/t:0", "m/lambda/Atan2_pi__13816"])
def test_numbers_of_choices_and_angles_are_not_trained(name):
    text = CODE.replace("<float[2, 3]", "<float c = {0.37}, float[2, 3]").replace("MatMul(h,", "MatMul(r,")
    proto = renamed(text.replace("y = ", "g = Sigmoid(h) r = Mul(c, g) y = "), c=name)
    assert set(from_file(proto).parameters) == {"k", "b", "w"}


LAYERS = (
    HEAD
    + """ g (float[N, 30] x) => (float[N, 1] y)
    { p = MatMul(x, k) q = ADD r = Relu(q) y = MatMul(r, w) }"""
)


def layers(bound, first="Add(p, b)"):
    """Two layers; the kernel of the second, which has no bias, is uniform within a bound."""
    proto, rng = onnx.parser.parse_model(LAYERS.replace("ADD", first)), np.random.default_rng(0)
    arrays = {"k": rng.normal(size=(30, 300)), "b": rng.normal(size=300), "w": rng.uniform(-bound, bound, (300, 1))}
    for name, array in arrays.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    for node, name in zip(proto.graph.node, ("m/a/MatMul", "m/a/BiasAdd", "m/a/Relu", "m/b/MatMul"), strict=True):
        node.name = name
    return proto


DEFAULT = math.sqrt(6 / 301)


@pytest.mark.parametrize(
    ("bound", "first", "named"), [(DEFAULT, "Add(p, b)", "of 'm/b'"), (0.3, "Abs(p)", "of 'm/a', 'm/b'")]
)
def test_layers_that_seem_fresh_and_have_no_bias_are_named(bound, first, named):
    with pytest.warns(OnnxTrainWarning, match=named):
        from_file(layers(bound, first))


def test_layers_without_bias_give_no_warning():
    fresh = layers(DEFAULT)
    fresh.producer_name = "pytorch"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_file(fresh)
        for bound in (0.9 * DEFAULT, 1.1 * DEFAULT):
            from_file(layers(bound))


def test_a_bias_of_zeros_of_an_lstm_is_one_that_was_filled_in():
    text = (
        HEAD
        + """ g (float[T, N, 2] x) => (float[N, 1] y) <float[1, 4, 2] W, float[1, 4, 1] R, float[1, 8] B>
        { s, h = LSTM<hidden_size = 1>(x, W, R, B) z = Constant<value_ints = [0]>()
          y = Squeeze(h, z) }"""
    )
    for bias, names in ((0.0, {"W", "R"}), (1.0, {"W", "R", "B"})):
        proto, rng = onnx.parser.parse_model(text), np.random.default_rng(0)
        second = np.zeros((1, 4))
        arrays = {"W": rng.normal(size=(1, 4, 2)), "R": rng.normal(size=(1, 4, 1))}
        arrays["B"] = np.concatenate([np.full((1, 4), bias), second], axis=1)
        del proto.graph.initializer[:]
        for name, array in arrays.items():
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
        assert set(from_file(proto).parameters) == names


@pytest.mark.parametrize(
    ("name", "is_trained"),
    [("m/a/range/delta:0", False), ("m/a/mul/ReadVariableOp:0", True), ("ReadVariableOp:0", True)],
)
def test_numbers_are_trained_where_the_file_names_them_as_variables(name, is_trained):
    """Equal numbers of the code are one constant, under the name that one of them has."""
    text = CODE.replace("<float[2, 3]", "<float c = {0.37}, float[2, 3]").replace("MatMul(h,", "MatMul(r,")
    proto = renamed(text.replace("y = ", "g = Sigmoid(h) r = Mul(c, g) y = "), c=name, k=VARIABLE)
    assert (name in from_file(proto).parameters) is is_trained

"""Operators keep the meaning that they have in the file as given: other opsets, and functions in place of calls."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import pytest

from onnxtrain_sklearn import OrtGradientRegressor, gradient_graph
from onnxtrain_sklearn._ir.opsets import converted
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.environment import available_engines
from tests.helpers.graphs import model
from tests.helpers.sessions import evaluate

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

draw = np.random.RandomState(0)
IMAGES = draw.normal(size=(9, 1, 4, 6)).astype(np.float32)


def resizing(operator, opset, mode, scales, *, computed=False):
    """Return a graph that resizes images, weighs their pixels and adds them up."""
    given = onnx.numpy_helper.from_array(np.array(scales, np.float32), "scales")
    make, nodes, initializers = onnx.helper.make_node, [], []
    if operator == "Upsample" and opset < 9:
        nodes.append(make(operator, ["X"], ["Z"], mode=mode, scales=[float(s) for s in scales]))
    else:
        nodes.append(make(operator, ["X", "given" if computed else "scales"], ["Z"], mode=mode))
        initializers.append(given)
    if computed:
        nodes.insert(0, make("Mul", ["scales", "one"], ["given"]))
        initializers.append(onnx.numpy_helper.from_array(np.ones(1, np.float32), "one"))
    height, width = int(4 * scales[2]), int(6 * scales[3])
    W = np.random.RandomState(1).normal(size=(height * width, 1)).astype(np.float32)
    initializers.append(onnx.numpy_helper.from_array(W, "W"))
    nodes += [make("Flatten", ["Z"], ["F"]), make("MatMul", ["F", "W"], ["Y"])]
    info = onnx.helper.make_tensor_value_info
    inputs = [info("X", onnx.TensorProto.FLOAT, ["N", 1, 4, 6])]
    graph = onnx.helper.make_graph(nodes, "g", inputs, [info("Y", onnx.TensorProto.FLOAT, ["N", 1])], initializers)
    return onnx.helper.make_model(graph, ir_version=4, opset_imports=[onnx.helper.make_opsetid("", opset)])


RESIZED = [
    ("Upsample", 7, [1, 1, 2, 1.5]),
    ("Upsample", 9, [1, 1, 1.3, 2]),
    ("Resize", 10, [1, 1, 1.5, 2]),
    ("Resize", 10, [1, 1, 0.6, 0.5]),
    ("Resize", 10, [1, 1, 0.6, 1.7]),
]


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize(("operator", "opset", "scales"), RESIZED)
def test_old_resize_keeps_pixel_positions(operator, opset, scales, mode):
    proto = resizing(operator, opset, mode, scales)
    (expected,) = evaluate(proto, X=IMAGES)
    y = expected.ravel() + 1
    trained = OrtGradientRegressor(proto, learning_rate_init=0.0, max_iter=1).fit(IMAGES, y)
    np.testing.assert_allclose(trained.predict(IMAGES), expected.ravel(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scales", [scales for operator, _, scales in RESIZED if operator == "Resize"])
def test_scales_that_are_computed_resize_as_before(scales):
    proto = resizing("Resize", 10, "nearest", scales, computed=True)
    np.testing.assert_array_equal(evaluate(converted(proto, 11), X=IMAGES)[0], evaluate(proto, X=IMAGES)[0])


@pytest.mark.parametrize("operator", ["Hardmax", "LogSoftmax", "Softmax"])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1])
@pytest.mark.parametrize("opset", [8, 11, 12])
def test_axes_that_are_flattened_before_opset_13_still_are(operator, axis, opset):
    given = "" if axis is None or (axis < 0 and opset < 11) else f"<axis = {axis}>"
    proto = model(f"Y = {operator} {given} (X)", x="float[N, 3, 2] X", y="float[N, 3, 2] Y", weights="", opset=opset)
    X = draw.normal(size=(4, 3, 2)).astype(np.float32)
    np.testing.assert_allclose(evaluate(converted(proto, 18), X=X)[0], evaluate(proto, X=X)[0], rtol=1e-6, atol=1e-6)


def test_hardmax_of_opset_12_beside_an_embedding():
    body = """E = Gather (T, I) H = Hardmax (X) P = MatMul (H, W) M = ReduceSum <axes = [1], keepdims = 0> (P)
        Y = Add (M, E)"""
    weights = "float[5, 1] T = {0.1, 0.2, 0.3, 0.4, 0.5}, float[2, 1] W = {1, 2}"
    proto = model(body, x="float[N, 3, 2] X, int64[N] I", weights=weights, opset=12)
    X = {"X": draw.normal(size=(8, 3, 2)).astype(np.float32), "I": np.arange(8) % 5}
    (expected,) = evaluate(proto, **X)
    trained = OrtGradientRegressor(proto, learning_rate_init=0.5, max_iter=1, batch_size=8, optimizer="sgd")
    trained.fit(X, expected.ravel() + 1)
    flat = np.zeros((8, 6))
    flat[np.arange(8), X["X"].reshape(8, 6).argmax(axis=1)] = 1  # one of all six numbers of a row
    slope = -2 * flat.reshape(8, 3, 2).sum(axis=(0, 1))[:, None] / 8
    np.testing.assert_allclose(trained.weights_["W"], np.array([[1.0], [2.0]]) - 0.5 * slope, rtol=1e-5)


FUNCTIONS = """
    <domain: "own", opset_import: ["": 18, "own": 1]> outer <slope: float = 3.0> (x) => (y) {
        z = own.act (x) w = own.act <slope: float = @slope> (x) y = Add (z, w) }
    <domain: "own", opset_import: ["": 18]> act <slope: float = 0.5> (x) => (y) {
        c = Constant <value_float: float = @slope> () y = Mul (x, c) }"""


@pytest.mark.parametrize(
    ("call", "factor"), [("act", 0.5), ("act <slope = 0.25>", 0.25), ("outer", 3.5), ("outer <slope = 2.0>", 2.5)]
)
def test_defaults_of_attributes_of_functions(call, factor):
    proto = model(f"H = own.{call} (X) Y = MatMul (H, W)", more=(', "own": 1', FUNCTIONS))
    X = draw.normal(size=(9, 3)).astype(np.float32)
    expected = factor * X @ [1, -2, 3]
    np.testing.assert_allclose(evaluate(proto, X=X)[0].ravel(), expected, rtol=1e-5, atol=1e-5)
    trained = OrtGradientRegressor(proto, learning_rate_init=0.0, max_iter=1).fit(X, expected + 1)
    np.testing.assert_allclose(trained.predict(X), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("engine", available_engines())
def test_defaults_of_functions_in_gradient_graphs(engine):
    body = "H = own.outer (X) P = MatMul (H, W) Y = ReduceSum <keepdims = 0> (P)"
    proto = model(body, y="float Y", more=(', "own": 1', FUNCTIONS))
    X = draw.normal(size=(4, 3)).astype(np.float32)
    _, gradient = evaluate(gradient_graph(proto, wrt="W", engine=engine), X=X)
    np.testing.assert_allclose(gradient.ravel(), 3.5 * X.sum(axis=0), rtol=1e-5, atol=1e-5)


def test_default_behind_a_missing_attribute_is_refused():
    passing = FUNCTIONS.replace("slope: float = 3.0", "slope")
    proto = model("H = own.outer (X) Y = MatMul (H, W)", more=(', "own": 1', passing))
    with pytest.raises(ModelError, match=r"outer node 'H' calls a function without its attribute 'slope', .* act node"):
        OrtGradientRegressor(proto).fit(np.ones((9, 3), np.float32), np.ones(9))


def test_function_of_an_opset_with_another_meaning_is_refused():
    function = '<domain: "own", opset_import: ["": 11]> act (x) => (y) { y = Softmax (x) }'
    proto = model("H = own.act (X) Y = MatMul (H, W)", more=(', "own": 1', function))
    with pytest.raises(ModelError, match=r"Softmax node 'y' in the function 'act' of opset 11 .* in opset 18"):
        OrtGradientRegressor(proto).fit(np.ones((9, 3), np.float32), np.ones(9))


@pytest.mark.parametrize(
    ("body", "opset", "to", "reason"),
    [
        ("Y = Softmax <axis = 1> (X)", 13, 12, "Softmax node 'Y' .* works along an axis"),
        ("Y = GroupNormalization <num_groups = 1> (X, s, s)", 18, 21, "GroupNormalization node 'Y' .* groups"),
        ("Y, m, v = BatchNormalization (X, s, s, s, s)", 9, 18, "BatchNormalization node 'Y' .* statistics"),
    ],
)
def test_node_without_an_exact_conversion_is_refused(body, opset, to, reason):
    weights = "float[3] s = {1, 1, 1}"
    proto = model(body, x="float[N, 3, 2] X", y="float[N, 3, 2] Y", weights=weights, opset=opset)
    with pytest.raises(ModelError, match=reason):
        converted(proto, to)


@pytest.mark.parametrize("body", ["Y = Clip <min = -0.5, max = 0.5> (X)", "Y = Pad <pads = [0, 1, 0, 1]> (X)"])
def test_attributes_of_float64_nodes_become_float64_operands(body):
    proto = model(body, x="double[N, 3] X", y="double[N, K] Y", weights="", opset=9)
    X = draw.normal(size=(5, 3))
    expected = np.clip(X, -0.5, 0.5) if "Clip" in body else np.pad(X, ((0, 0), (1, 1)))
    np.testing.assert_array_equal(evaluate(converted(proto, 13), X=X)[0], expected)


TWICE = """<ir_version: 10, opset_import: ["" : 18, "own" : 1]> g (float[N, 2] X, bool c) => (float[N, 1] Y)
<float[2, 1] V = {1, -2}> {
    A = own.layer(X)
    B = own.layer(A)
    Y = MatMul(B, V)
}
<opset_import: ["" : 18], domain: "own">
layer (x) => (y) { W = Constant <value = float[2, 2] {0.5, -1, 1.5, 2}> () p = MatMul(x, W) y = Tanh(p) }"""


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("opset", [18, 17])
def test_weight_of_function_called_twice_is_one_parameter(opset, engine):
    graph = onnx.parser.parse_model(TWICE.replace(", bool c", ""))
    graph.functions[0].opset_import[0].version = opset
    X, y = draw.normal(size=(6, 2)).astype(np.float32), draw.normal(size=6)
    settings = {"optimizer": "sgd", "learning_rate_init": 0.1, "max_iter": 1, "target_scaling": None, "shuffle": False}
    found = OrtGradientRegressor(graph, engine=engine, **settings).fit(X, y).weights_

    def loss(W):
        return np.mean((np.tanh(np.tanh(X.astype(float) @ W) @ W) @ [1.0, -2.0] - y) ** 2)

    W = np.array([[0.5, -1], [1.5, 2]])
    slope = [[(loss(W + 1e-6 * d) - loss(W - 1e-6 * d)) / 2e-6 for d in row] for row in np.eye(4).reshape(2, 2, 2, 2)]
    (trained,) = [array for name, array in found.items() if name != "V"]
    np.testing.assert_allclose(trained, W - 0.1 * np.array(slope), rtol=1e-5)


def test_constant_of_function_in_a_branch_is_the_one_outside():
    text = TWICE.replace(
        "B = own.layer(A)",
        "B = If (c) <then_branch = t () => (float[N, 2] P) { P = own.layer(A) }, "
        "else_branch = e () => (float[N, 2] Q) { Q = Identity(A) }>",
    )
    text = text.replace("(float[N, 1] Y)", "(float L)").replace("V)\n", "V)\n    L = ReduceSum<keepdims=0>(Y)\n")
    X, W = draw.normal(size=(6, 2)).astype(np.float32), np.array([[0.5, -1], [1.5, 2]])
    graph = gradient_graph(onnx.parser.parse_model(text), wrt=["V"])
    for c, hidden in ((True, np.tanh(np.tanh(X @ W) @ W)), (False, np.tanh(X @ W))):
        loss, slope = evaluate(graph, X=X, c=np.array(c))
        np.testing.assert_allclose(loss, (hidden @ [1.0, -2.0]).sum(), rtol=1e-5)
        np.testing.assert_allclose(slope.ravel(), hidden.sum(axis=0), rtol=1e-5)
    constants = [node.output[0] for node in graph.graph.node if node.op_type == "Constant"]
    assert sum("W" in name for name in [*constants, *(x.name for x in graph.graph.initializer)]) == 1

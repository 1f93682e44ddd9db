"""Files that hold what this package notes in memory, and integers that inference would take all memory for."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.testing import assert_allclose

from onnxtrain_sklearn import OrtGradientRegressor, gradient_graph
from onnxtrain_sklearn._importers.load import load
from onnxtrain_sklearn._ir.shapes import infer_types, knows_few_integers
from tests.helpers.environment import available_engines

X = np.array([[1.0, 2.0], [-0.5, 0.3], [0.2, -1.0]], np.float32)
W = np.array([[0.5], [-1.5]])
MARKS = ["kept_type", "stop_gradient", "fake_quantization", "dynamic_quantization", "one_hot", "row_losses"]


def marked(end: str = "", output: str = "float[N,1] Y", kind: str = "float") -> onnx.ModelProto:
    net = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]> net ({kind}[N,2] X) => ({output})
        <{kind}[2,1] W = {{0.5, -1.5}}> {{ H = MatMul(X, W) Y = Tanh(H) {end} }}""")
    graph = net.graph
    for one in (graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        for mark in MARKS:
            one.metadata_props.add(key=f"onnxtrain/{mark}", value="NOTHING")
    return net


@pytest.mark.parametrize("engine", available_engines())
def test_marks_in_a_file_stop_no_gradient(engine):
    net = marked("y = ReduceSum<keepdims = 0>(Y)", "float y")
    graph = gradient_graph(net, wrt="W", engine=engine)
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    value, gradient = session.run(["y", "W_grad"], {"X": X})
    hidden = np.tanh(X @ W)
    assert_allclose(value, hidden.sum(), rtol=1e-5)
    assert_allclose(gradient, X.T @ (1 - hidden**2), rtol=1e-5)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("kind", ["float", "double"])
def test_marks_in_a_file_train_and_export_as_nothing(kind):
    rate, y = 0.125, np.array([1.0, 0.0, -1.0])
    net = marked(output=f"{kind}[N,1] Y", kind=kind)
    settings = {"optimizer": "sgd", "learning_rate_init": rate, "max_iter": 1, "batch_size": 3, "alpha": 0.0}
    estimator = OrtGradientRegressor(net, loss="squared_error", **settings).fit(X, y)
    hidden = np.tanh(X @ W)
    moved = W - rate * X.T @ (2 / 3 * (hidden - y[:, None]) * (1 - hidden**2))
    assert_allclose(estimator.weights_["W"], moved, rtol=1e-5)
    content = estimator.to_onnx().SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0]
    found = session.run(None, {name.name: X.astype(np.float64 if "double" in name.type else np.float32)})[0]
    assert_allclose(found, np.tanh(X @ moved), rtol=1e-5)


def many_integers(nodes: str, last: str, function: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18, "own": 1]>
        net (float[N,2] X) => (float[N,1] Y)
        <float[2,1] W = {{1, 2}}, int64 z = {{0}}, int64 one = {{1}}, int64 large = {{{last}}}, int64[1] c0 = {{1}}>
        {{ H = MatMul(X, W) {nodes} q = Cast<to = 1>(r) s = ReduceMean<keepdims = 0>(q) Y = Add(H, s) }} {function}""")


def repeated(count: int) -> str:
    return " ".join(f"c{i + 1} = Concat<axis = 0>(c{i}, c{i})" for i in range(count)) + f" r = Identity(c{count})"


@pytest.mark.parametrize(
    ("nodes", "last", "few"),
    [
        ("r = Range(z, large, one)", 1000, True),
        ("r = Range(z, large, one)", 2**31, False),
        ("k = Constant<value_int = 2147483648>() r = Range(z, k, one)", 1, False),
        ("k = Constant<value = int64 {2147483648}>() r = Range(z, k, one)", 1, False),
        (repeated(10), 1, True),
        (repeated(40), 1, False),
    ],
)
def test_inference_holds_few_integers(nodes, last, few):
    """A Range of two numbers and a chain of Concat took 200 bytes for each of their integers."""
    assert knows_few_integers(many_integers(nodes, last)) is few


BODIES = {
    "If": """t = Constant<value = bool {1}>() r = If (t) <then_branch = b () => (x) { INSIDE x = Identity(r) },
        else_branch = e () => (y) { y = Identity(c0) }>""",
    "Loop": """t = Constant<value = bool {1}>() r = Loop (one, t, c0) <body = b (int64 i, bool c, int64[k] s)
        => (bool d, int64[m] x) { INSIDE x = Identity(r) d = Identity(c) }>""",
    "If in a Loop": """t = Constant<value = bool {1}>() r = Loop (one, t, c0) <body = b (int64 i, bool c, int64[k] s)
        => (bool d, int64[m] z) { z = If (c) <then_branch = b () => (x) { INSIDE x = Identity(r) },
        else_branch = e () => (y) { y = Identity(c0) }> d = Identity(c) }>""",
    "function": "r = own.f (c0, z, large, one)",
}
FUNCTION = '<domain: "own", opset_import: ["": 18]> f (c0, z, large, one) => (r) { INSIDE }'


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("inside", ["Range", "Concat"])
@pytest.mark.parametrize("where", BODIES)
def test_inference_counts_integers_in_bodies_and_functions(where, inside, few):
    nodes = "r = Range(z, large, one)" if inside == "Range" else repeated(10 if few else 40)
    function = FUNCTION.replace("INSIDE", nodes) if where == "function" else ""
    net = many_integers(BODIES[where].replace("INSIDE", nodes), str(1000 if few else 2**31), function)
    assert knows_few_integers(net) is few


def test_inference_counts_integers_that_attributes_of_a_call_give():
    function = """<domain: "own", opset_import: ["": 18]> f <n> (c0) => (r) { z = Constant<value_int = 0>()
        one = Constant<value_int = 1>() k = Constant<value_int: int = @n>() r = Range(z, k, one) }"""
    for number, few in [(1000, True), (2**31, False)]:
        assert knows_few_integers(many_integers(f"r = own.f <n = {number}> (c0)", "1", function)) is few


@pytest.mark.long
def test_nested_function_calls_are_counted_at_once():
    calls = [
        f'<domain: "own", opset_import: ["": 18, "own": 1]> f{i} (a) => (b) {{ c = own.f{n}(a) b = own.f{n}(c) }}'
        for i, n in enumerate(range(1, 41))
    ]
    last = '<domain: "own", opset_import: ["": 18]> f40 (a) => (b) { b = Identity(a) }'
    assert not knows_few_integers(many_integers("r = own.f0(c0)", "1", " ".join([*calls, last])))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_shapes_of_many_integers_are_inferred():
    net = many_integers("r = Range(z, large, one)", str(2**18))
    value = next(v for node in load(net).graph for v in node.outputs if v.name == "r")
    assert list(value.shape) == [2**18]
    predicted = OrtGradientRegressor(net, learning_rate_init=0.0, max_iter=1).fit(X, np.zeros(3)).predict(X)
    assert_allclose(predicted, X @ [1, 2] + (2**18 - 1) / 2, rtol=1e-4)


def test_names_in_inference_messages_are_escaped(caplog):
    net = marked()
    net.graph.node[0].name = "W\x1b[2J\x85"
    infer_types(ir.from_proto(_with_weight_of_other_type(net)))
    assert "W\\x1b[2J\\x85" in caplog.text
    assert not {"\x1b", "\x85"} & set(caplog.text)


def _with_weight_of_other_type(net: onnx.ModelProto) -> onnx.ModelProto:
    net.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones((2, 1), np.float64), "W"))
    return net

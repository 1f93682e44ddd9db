"""Types and shapes that inference fills in, and graphs whose many integers it must not hold."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnx_ir as ir
import pytest

from onnxtrain_sklearn._ir import shapes
from onnxtrain_sklearn._ir.shapes import infer_types, knows_few_integers

BRANCHES = """
    g (float[N, 2, 3] X, bool more) => (Z) {
        flat = Flatten(X)
        Z = If(more) <then_branch = yes () => (a) { a = Relu(flat) }, else_branch = no () => (b) { b = Neg(flat) }> }"""
SEQUENCE = """
    g (float[N, 3] X) => (Y) {
        pair = SequenceConstruct(X, X)  place = Constant <value_int = 1> ()
        item = SequenceAt(pair, place)  Y = Shape(item) }"""


def inferred(text):
    model = ir.from_proto(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}'))
    infer_types(model)
    return model


def told(graph):
    return {v.name: f"{v.dtype} {v.shape}" for node in graph for v in node.outputs}


def test_values_of_subgraphs():
    model = inferred(BRANCHES)
    assert told(model.graph) == {"flat": "FLOAT [N,6]", "Z": "FLOAT [N,6]"}
    assert [told(graph) for graph in model.graph.subgraphs()] == [{"a": "FLOAT [N,6]"}, {"b": "FLOAT [N,6]"}]


def test_tensors_of_sequences():
    assert told(inferred(SEQUENCE).graph)["item"] == "FLOAT [N,3]"


@pytest.mark.parametrize("size", [2, 400])  # inference gets the numbers of the small one alone
def test_initializers_are_unchanged(size):
    weights = np.ones((3, size), np.float32)
    model = inferred(f"g (float[N, 3] X, float[3, {size}] W) => (Y) {{ Y = MatMul(X, W) }}")
    given = model.graph.inputs.pop()
    given.const_value = ir.tensor(weights, name="W")
    model.graph.initializers.add(given)
    infer_types(model)
    assert told(model.graph)["Y"] == f"FLOAT [N,{size}]"
    assert [v.name for v in model.graph.inputs] == ["X"]
    np.testing.assert_array_equal(model.graph.initializers["W"].const_value.numpy(), weights)


def test_failed_inference_leaves_the_model_unchanged(caplog):
    model = inferred("g (float[N, 3] X, int64[2] i) => (Y) { Y = Cast <to = 1> (X, i) }")
    assert "Shape inference failed" in caplog.text
    assert model.graph.outputs[0].shape is None


def test_sizes_that_are_declared_as_unknown_are_inferred():
    model = ir.from_proto(
        onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 18]> g (float[N, 3] X) => (Y) { Y = Relu(X) }')
    )
    (node,) = model.graph
    node.outputs[0].type, node.outputs[0].shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([None, 3])
    infer_types(model)
    assert told(model.graph)["Y"] == "FLOAT [N,3]"


SIZES = """
    g (float[2, 3] X) => (Z) {
        all = Shape(X)  first = Constant <value = int64[1] {0}> ()
        rows = Gather(all, first)  flat = Constant <value = int64[1] {-1}> ()
        wanted = Concat <axis = 0> (rows, flat)  Y = Relu(X)  Z = Reshape(Y, wanted) }"""


def test_only_unknown_values_are_inferred(monkeypatch):
    model, sent = inferred(SIZES), []
    infer = onnx.shape_inference.infer_shapes
    monkeypatch.setattr(
        onnx.shape_inference, "infer_shapes", lambda proto, **k: sent.append(proto) or infer(proto, **k)
    )
    infer_types(model)
    assert not sent  # nothing is left to infer
    model.graph.outputs[0].shape = None
    infer_types(model)
    assert told(model.graph)["Z"] == "FLOAT [2,3]"
    assert [node.op_type for node in sent[0].graph.node] == [
        "Shape",
        "Constant",
        "Gather",
        "Constant",
        "Concat",
        "Reshape",
    ]


def test_large_initializers_come_last():
    model = inferred("g (float[N, 2] X, float[2, 400] W, float[400] b) => (Z) { Y = MatMul(X, W)  Z = Add(Y, b) }")
    for name, shape in {"W": (2, 400), "c": (1,), "b": (400,), "d": (2,)}.items():
        value = next((v for v in model.graph.inputs if v.name == name), ir.Value(name=name))
        if value in model.graph.inputs:
            model.graph.inputs.remove(value)
        value.const_value = ir.tensor(np.ones(shape, np.float32), name=name)
        model.graph.initializers.add(value)
    infer_types(model)
    assert list(model.graph.initializers) == ["c", "d", "W", "b"]
    assert f"{model.graph.initializers['c'].dtype} {model.graph.initializers['c'].shape}" == "FLOAT [1]"


def many_integers(nodes: str, last: str, function: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18, "own": 1]>
        net (float[N,2] X) => (float[N,1] Y)
        <float[2,1] W = {{1, 2}}, int64 z = {{0}}, int64 one = {{1}}, int64 large = {{{last}}}, int64[1] c0 = {{1}}>
        {{ H = MatMul(X, W) {nodes} q = Cast<to = 1>(r) s = ReduceMean<keepdims = 0>(q) Y = Add(H, s) }} {function}""")


def repeated(count: int) -> str:
    return " ".join(f"c{i + 1} = Concat<axis = 0>(c{i}, c{i})" for i in range(count)) + f" r = Identity(c{count})"


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


@pytest.mark.parametrize(
    ("nodes", "last", "few"),
    [
        ("r = Range(z, large, one)", 1000, True),
        ("r = Range(z, large, one)", 2**31, False),
        ("k = Constant<value_int = 2147483648>() r = Range(z, k, one)", 1, False),
        ("k = Constant<value = int64 {2147483648}>() r = Range(z, k, one)", 1, False),
        (repeated(10), 1, True),
        (repeated(40), 1, False),
        (f"r = Constant<value_ints = {[0] * (2**17 + 1)}>()", 1, False),
        ("r = Identity(c0)", 1, True),
        (BODIES["If"].replace("INSIDE", repeated(40)), 1, False),
    ],
)
def test_inference_holds_few_integers(nodes, last, few, monkeypatch):
    """A Range of two numbers and a chain of Concat took 200 bytes for each of their integers."""
    proto, infer, told = many_integers(nodes, last), onnx.shape_inference.infer_shapes, []

    def recording(part: onnx.ModelProto, *, data_prop: bool, **options: bool) -> onnx.ModelProto:
        told.append(data_prop)
        return infer(part, data_prop=data_prop, **options)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", recording)
    infer_types(ir.from_proto(proto))
    assert told == [few]
    assert knows_few_integers(proto) is few


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


def test_nested_function_calls_are_counted_at_once(monkeypatch):
    monkeypatch.setattr(shapes, "_MOST_NODES", 2000)
    calls = [
        f'<domain: "own", opset_import: ["": 18, "own": 1]> f{i} (a) => (b) {{ c = own.f{n}(a) b = own.f{n}(c) }}'
        for i, n in enumerate(range(1, 41))
    ]
    last = '<domain: "own", opset_import: ["": 18]> f40 (a) => (b) { b = Identity(a) }'
    assert not knows_few_integers(many_integers("r = own.f0(c0)", "1", " ".join([*calls, last])))


def test_shape_of_many_integers_is_inferred():
    model = ir.from_proto(many_integers("r = Range(z, large, one)", str(2**18)))
    infer_types(model)
    assert told(model.graph)["r"] == f"INT64 [{2**18}]"


def test_names_in_inference_messages_are_escaped(caplog):
    net = many_integers("r = Range(z, large, one)", "9")
    net.graph.node[0].name = "W\x1b[2J\x85"
    net.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones((2, 1), np.float64), "W"))
    infer_types(ir.from_proto(net))
    assert "W\\x1b[2J\\x85" in caplog.text
    assert not {"\x1b", "\x85"} & set(caplog.text)

"""How large a model may be: work is bounded before it is done, and the bounds can be raised."""

from __future__ import annotations

import threading

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import pytest

from onnxtrain_sklearn import ModelLimits, gradient_graph, model_limits
from onnxtrain_sklearn._importers.load import load
from onnxtrain_sklearn._ir.limits import current_limits
from onnxtrain_sklearn.exceptions import ModelError


def limited_net(body="Y = MatMul(X, W)", more="", functions="", domains=""):
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18{domains}]>
        net (float[N, 3] X) => (float[N, 1] Y) <float[3, 1] W = {{1, -2, 3}}{more}> {{ {body} }} {functions}""")


def laughing(depth, calls=2):
    """Return a model whose functions each call the next one twice."""
    texts = []
    for level in range(depth):
        inner = "Neg" if level + 1 == depth else f"laugh.f{level + 1}"
        steps = " ".join(f"v{i + 1} = {inner}(v{i})" for i in range(calls))
        texts.append(f'<domain: "laugh", opset_import: ["": 18, "laugh": 1]> f{level} (v0) => (v{calls}) {{ {steps} }}')
    return limited_net("H = laugh.f0(X) Y = MatMul(H, W)", functions=" ".join(texts), domains=', "laugh": 1')


def nested(depth):
    """Return a model of so many Ifs, one within the other."""
    model = limited_net("H = MatMul(X, W)", ", bool yes = {1}")
    model.graph.output[0].name = "out0"
    graph = model.graph
    for level in range(depth):
        node = graph.node.add(op_type="If", input=["yes"], output=[f"out{level}"])
        for branch in ("then_branch", "else_branch"):
            attribute = node.attribute.add(name=branch, type=onnx.AttributeProto.GRAPH)
            attribute.g.name = f"{branch}{level}"
            name = f"out{level + 1}" if branch == "then_branch" else f"else{level}"
            attribute.g.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", 1]))
        attribute.g.node.add(op_type="Neg", input=["H"], output=[f"else{level}"])
        graph = node.attribute[0].g
    graph.node.add(op_type="Identity", input=["H"], output=[f"out{depth}"])
    return model


def test_functions_that_double_when_they_are_inlined():
    assert sum(node.op_type == "Neg" for node in load(laughing(3)).graph) == 8
    for depth in (20, 40, 400):
        with pytest.raises(ModelError, match=r"more than the limit (nodes=200,000|nesting=16)"):
            load(laughing(depth))
    with pytest.raises(ModelError, match=r"those of functions at each call.*model_limits\(nodes=\.\.\.\)"):
        load(laughing(15, calls=3))
    with pytest.raises(ModelError, match="limit nodes"):
        gradient_graph(laughing(15, calls=3), wrt="W", of="Y")


def test_functions_that_call_each_other():
    functions = """<domain: "own", opset_import: ["": 18, "own": 1]> f (c) => (r) { r = own.g(c) }
        <domain: "own", opset_import: ["": 18, "own": 1]> g (c) => (r) { r = own.f(c) }"""
    with pytest.raises(ModelError, match=r"functions cannot be inlined: own::[fg] calls itself"):
        load(limited_net("H = own.f(X) Y = MatMul(H, W)", functions=functions, domains=', "own": 1'))


def test_nesting():
    assert load(nested(3))
    for depth in (17, 40, 3000):
        with pytest.raises(ModelError, match=r"nested 17 deep, more than the limit nesting=16"):
            load(nested(depth))
        with pytest.raises(ModelError, match="limit nesting"):
            gradient_graph(nested(depth), wrt="W", of="out0")


def test_nodes():
    chain = limited_net(" ".join(f"a{i + 1} = Neg(a{i})" for i in range(30)) + " Y = MatMul(a30, W)")
    chain.graph.node[0].input[0] = "X"
    assert load(chain)
    with model_limits(nodes=30), pytest.raises(ModelError, match=r"has 31 nodes or more.*limit nodes=30"):
        load(chain)


@pytest.mark.parametrize(
    ("body", "more", "match"),
    [
        ("s = Shape(X) H = Expand(X, big) Y = MatMul(H, W)", ", int64[3] big = {1099511627776, 1, 3}", "tensor_bytes"),
        ("H = ConstantOfShape(big) S = ReduceSum(H) T = Add(X, S) Y = MatMul(T, W)", ", int64[1] big = {1099511627776}",
         r"'ConstantOfShape_0' \(ConstantOfShape\) computes a tensor of the shape \[1099511627776\].*tensor_bytes"),
        ("H = Reshape(W, far) S = ReduceSum(H) T = Add(X, S) Y = MatMul(T, W)",
         f", int64[40] far = {{3{', 1' * 39}}}", "limit axes=32"),
    ],
)  # fmt: skip
def test_values_that_the_graph_computes(body, more, match):
    with pytest.raises(ModelError, match=match):
        load(limited_net(body, more))


def test_rounds_of_a_loop():
    loop = """H = Loop (trips, yes, X) <body = g (int64 i, bool go, float[N, 3] a) => (bool more, float[N, 3] t)
        { t = Neg(a) more = Identity(go) }> Y = MatMul(H, W)"""
    assert load(limited_net(loop, ", int64 trips = {3}, bool yes = {1}"))
    with pytest.raises(ModelError, match=r"'Loop_0' \(Loop\) has 1,000,000,000,000 iterations.*limit iterations"):
        load(limited_net(loop, ", int64 trips = {1000000000000}, bool yes = {1}"))


@pytest.mark.parametrize(
    ("head", "more", "ends"),
    [
        ("", "more = Identity(go)", False),
        ("", "kept = Identity(go) more = Identity(kept)", False),
        ("", "more = Identity(yes)", False),
        (", yes", "more = Identity(go)", False),
        (", no", "more = Identity(go)", True),
        (", flag", "more = Identity(go)", True),  # which may be false
        ("", "more = Less(i, trips)", True),
    ],
)
def test_loops_that_never_end(head, more, ends):
    loop = f"""f = ReduceMax <keepdims = 0> (X) flag = Cast <to = 9> (f)
        H = Loop ("" {head or ', ""'}, X) <body = g (int64 i, bool go, float[N, 3] a) => (bool more, float[N, 3] t)
        {{ t = Neg(a) {more} }}> Y = MatMul(H, W)"""
    net = limited_net(loop, ", int64 trips = {3}, bool yes = {1}, bool no = {0}")
    if ends:
        assert load(net)
    else:
        with pytest.raises(ModelError, match=r"'Loop_0' \(Loop\) never ends: .* Give it a number"):
            load(net)


def test_weights_and_files(tmp_path):
    onnx.save(limited_net(), tmp_path / "net.onnx")
    with model_limits(tensor_bytes=11), pytest.raises(ModelError, match=r"12 bytes up to 'W'.*limit tensor_bytes=11"):
        load(limited_net())
    size = (tmp_path / "net.onnx").stat().st_size
    with model_limits(file_bytes=size):
        assert load(tmp_path / "net.onnx")
    with model_limits(file_bytes=size - 1):
        for model in (tmp_path / "net.onnx", (tmp_path / "net.onnx").read_bytes()):
            with pytest.raises(ModelError, match=rf"There are {size} bytes in the .*limit file_bytes={size - 1}"):
                load(model)


def test_limits_can_be_raised_within_a_block():
    before = current_limits()
    with model_limits(nesting=40, nodes=10) as limits:
        assert limits == current_limits() == ModelLimits(nesting=40, nodes=10)
        with model_limits(nodes=500_000):
            assert current_limits() == ModelLimits(nesting=40, nodes=500_000)
            assert load(nested(17))
        seen = []
        thread = threading.Thread(target=lambda: seen.append(current_limits()))
        thread.start()
        thread.join()
        assert seen == [before]
    assert current_limits() == before


@pytest.mark.parametrize(
    ("limits", "match"),
    [({"nodes": 0}, "nodes of ModelLimits must be .* >= 1, got 0"), ({"axes": 2.5}, "axes"), ({"node": 3}, "'nodes'")],
)
def test_wrong_limits(limits, match):
    with pytest.raises(ValueError, match=match), model_limits(**limits):
        pass


def test_large_weights_are_within_the_limits():
    model = limited_net()
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((1000, 1000), np.float32), "unused"))
    assert load(model)

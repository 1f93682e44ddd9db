"""Types and shapes that inference fills in: those of subgraphs too, and of nothing else."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from onnxtrain_sklearn._ir.shapes import infer_types

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

"""Edits of graphs: what stands for what afterwards, and under which names."""

from __future__ import annotations

import ast

import numpy as np
import onnx
import onnx.parser
import onnx.reference
import onnx_ir as ir
import pytest

from onnxtrain_sklearn._ir import edits
from onnxtrain_sklearn._ir.protobuf import to_proto
from onnxtrain_sklearn._ir.queries import every_node, graphs_in, reads
from onnxtrain_sklearn.graph import GraphBuilder, Names, names_of
from tests.helpers.source_code import FOLDER, nodes_of_file

GRAPH = """<ir_version: 8, opset_import: ["" : 18]> g (float[N, 2] X, float[N, 2] Z) => (float[N, 2] Y, float[N, 2] H)
<float[2] W = {1, 2}> { H = Mul(X, W) A = Neg(H) Y = Exp(A) D = Add(X, Z) }"""


@pytest.fixture
def model():
    return ir.from_proto(onnx.parser.parse_model(GRAPH))


@pytest.fixture
def op(model):
    return GraphBuilder(model.graph, prefix="new", constant_nodes=True)


def edited_value(model, name):
    return next(v for node in model.graph for v in node.outputs if v.name == name)


def run_edited(model):
    model.graph.sort()
    proto = to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    feeds = {"X": np.array([[1, 2]], np.float32), "Z": np.zeros((1, 2), np.float32)}
    names = [v.name for v in proto.graph.output]
    inputs = {v.name for v in proto.graph.input}
    found = onnx.reference.ReferenceEvaluator(proto).run(None, {n: a for n, a in feeds.items() if n in inputs})
    return dict(zip(names, found, strict=True))


class TestReplaceValue:
    def test_takes_the_place_and_the_name(self, model, op):
        old = edited_value(model, "A")
        new = edits.replace_value(op, old, op.Add(edited_value(model, "H"), 1.0))
        assert new.name == "A"
        assert old.name != "A"
        np.testing.assert_allclose(run_edited(model)["Y"], np.exp([[2.0, 5.0]]), rtol=1e-6)

    def test_output_that_is_emitted_needs_no_identity(self, model, op):
        edits.replace_value(op, edited_value(model, "Y"), op.Abs(edited_value(model, "A")))
        assert list(run_edited(model)) == ["Y", "H"]
        assert "Identity" not in {node.op_type for node in model.graph}

    def test_output_that_others_know_keeps_both_names(self, model, op):
        edits.replace_value(op, edited_value(model, "Y"), edited_value(model, "H"))
        found = run_edited(model)
        np.testing.assert_array_equal(found["Y"], [[1, 4]])
        np.testing.assert_array_equal(found["H"], [[1, 4]])

    def test_one_value_for_two_outputs(self, model, op):
        new = op.Sqrt(model.graph.inputs[0])
        edits.replace_value(op, edited_value(model, "Y"), new)
        edits.replace_value(op, edited_value(model, "H"), new)
        found = run_edited(model)
        np.testing.assert_array_equal(found["Y"], found["H"])

    def test_one_value_that_others_know_for_two_outputs(self, model):
        op = GraphBuilder(model.graph, prefix="new", constant_nodes=True, shared=True)
        for name in ("Y", "H"):
            edits.replace_value(op, edited_value(model, name), model.graph.inputs[0])
        found = run_edited(model)
        np.testing.assert_array_equal(found["Y"], [[1, 2]])
        np.testing.assert_array_equal(found["H"], [[1, 2]])

    def test_an_output_keeps_its_name_where_it_replaces_another_value(self, model, op):
        new = op.Sqrt(model.graph.inputs[0])
        edits.replace_value(op, edited_value(model, "Y"), new)
        edits.replace_value(op, edited_value(model, "D"), new)
        assert list(run_edited(model)) == ["Y", "H"]

    @pytest.mark.parametrize("typed", [True, False])
    def test_missing_shape_is_that_of_the_old_value(self, model, op, typed):
        old = edited_value(model, "H")
        new = edits.replace_value(op, old, op.Neg(model.graph.inputs[0]), typed=typed)
        assert (new.shape is None) == (not typed)


def test_replace_node_skips_omitted_outputs(model, op):
    node = ir.node("Dropout", [edited_value(model, "A")], name="drop", num_outputs=2)
    node.outputs[0].name, node.outputs[1].name = "kept", ""
    model.graph.append(node)
    edits.replace_node(op, node, [op.Neg(edited_value(model, "A")), op.Not(op.IsNaN(edited_value(model, "A")))])
    assert node not in model.graph
    assert all(v.name for n in model.graph for v in n.outputs)


def test_bypass(model):
    node = edited_value(model, "A").producer()
    edits.bypass(node, edited_value(model, "H"))
    np.testing.assert_allclose(run_edited(model)["Y"], np.exp([[1.0, 4.0]]), rtol=1e-6)


def test_insert_behind_an_output_that_others_read(model, op):
    edits.insert_after(op, edited_value(model, "H"), lambda v: op.Mul(v, 2.0))
    found = run_edited(model)
    np.testing.assert_array_equal(found["H"], [[2, 8]])
    np.testing.assert_allclose(found["Y"], np.exp([[-2.0, -8.0]]), rtol=1e-6)


def test_hold_as_constant(model, op):
    before = run_edited(model)["Y"]
    edits.hold_as_constant(op, model.graph.initializers["W"])
    assert not model.graph.initializers
    np.testing.assert_array_equal(run_edited(model)["Y"], before)


@pytest.mark.parametrize(("inputs", "left"), [(False, ["X", "Z"]), (True, ["X"])])
def test_keep_outputs(model, inputs, left):
    edits.keep_outputs(model, [edited_value(model, "H")], inputs=inputs)
    assert [node.op_type for node in model.graph] == ["Mul"]
    assert [v.name for v in model.graph.inputs] == left
    assert list(run_edited(model)) == ["H"]


def test_append_output(model, op):
    edits.append_output(model.graph, op.Neg(edited_value(model, "H")), "minus", edited_value(model, "H"))
    np.testing.assert_array_equal(run_edited(model)["minus"], [[-1, -4]])


def test_remove_unread(model):
    last, first = edited_value(model, "D").producer(), edited_value(model, "A").producer()
    edits.remove_unread(model.graph, [first, last])
    assert last not in model.graph
    assert first in model.graph


def test_append_copy_of_a_body_that_returns_an_input(model, op):
    p, q = (ir.val(name, ir.DataType.FLOAT, ("N", 2)) for name in "pq")
    body = ir.Graph([p, q], [], nodes=[ir.node("Sub", [q, p], name="A")], name="body")
    body.outputs.extend([body[0].outputs[0], p])
    x, h = model.graph.inputs[0], edited_value(model, "H")
    difference, same = edits.append_copy(op, body, [x, h])
    assert same is x
    edits.replace_value(op, edited_value(model, "Y"), difference)
    np.testing.assert_array_equal(run_edited(model)["Y"], [[0, 2]])


def test_replace_input_that_is_also_an_output(model, op):
    x = model.graph.inputs[0]
    model.graph.outputs[1] = x
    given = ir.val("given", ir.DataType.FLOAT, ("N", 2))
    edits.replace_input(model.graph, x, given, op.Mul(given, 2.0))
    assert [v.name for v in model.graph.inputs] == ["given", "Z"]
    assert not x.uses()
    assert model.graph.outputs[1].producer().op_type == "Mul"


def test_read_as_input(model):
    edits.copy_type(edited_value(model, "A"), edited_value(model, "H"))
    edits.read_as_input(model.graph, edited_value(model, "A"), ir.Shape([None, 2]))
    edits.keep_outputs(model, model.graph.outputs[:1], inputs=True)
    assert [v.name for v in model.graph.inputs] == ["A"]
    assert model.graph.inputs[0].dtype is ir.DataType.FLOAT
    assert [node.op_type for node in model.graph] == ["Exp"]


def test_read_from_outside_of_a_body(model, op):
    held = ir.node("Constant", [], {"value": ir.tensor(np.ones(2, np.float32))}, name="held")
    body = ir.Graph([], held.outputs, nodes=[held, ir.node("Neg", held.outputs)], name="body")
    edits.read_from_outside(body, held.outputs[0], model.graph.initializers["W"])
    assert [node.op_type for node in body] == ["Neg", "Identity"]
    assert {node.inputs[0] for node in body} == {model.graph.initializers["W"]}
    assert body.outputs[0] is body[1].outputs[0]


def test_replace_by_initializer(model):
    edits.replace_by_initializer(model.graph, edited_value(model, "A"), np.float32([[3, 5]]), "held")
    np.testing.assert_allclose(run_edited(model)["Y"], np.exp([[3.0, 5.0]]), rtol=1e-6)


def test_read_through_identity(model, op):
    node = edited_value(model, "A").producer()
    edits.read_through_identity(op, node, 0)
    assert node.inputs[0].producer().op_type == "Identity"
    assert node.inputs[0].shape == edited_value(model, "H").shape
    np.testing.assert_allclose(run_edited(model)["Y"], np.exp([[-1.0, -4.0]]), rtol=1e-6)


@pytest.mark.parametrize("kept", [(), ("spare",)])
def test_remove_unread_initializers(model, kept):
    model.graph.register_initializer(ir.Value(name="spare", const_value=ir.tensor(np.ones(1, np.float32))))
    edits.remove_unread_initializers(model.graph, kept)
    assert list(model.graph.initializers) == ["W", *kept]


class TestNamesOfValues:
    def test_free_name_numbers_taken_names(self):
        names = Names(["a", "a_2"])
        assert [names.free("a") for _ in range(3)] == ["a_1", "a_3", "a_4"]
        assert names.free("b") == "b"
        assert names.free("b", 2) == "b_2"

    def test_numbered_never_returns_the_stem(self):
        names = Names(["Relu_1"])
        assert [names.numbered("Relu", 0) for _ in range(2)] == ["Relu_0", "Relu_2"]

    def test_names_of_a_graph(self, model):
        assert names_of(model.graph) >= {"X", "Z", "W", "H", "A", "Y", "D"}


def test_both_kinds_of_attributes_hold_subgraphs():
    """ONNX has no operator with a list of graphs, but a node of another domain may."""
    outer, lone = ir.val("outer", ir.DataType.FLOAT, ()), ir.val("lone", ir.DataType.FLOAT, ())
    bodies = []
    for name in ("one", "first", "second"):
        inner = ir.node("Neg", [outer if name == "second" else lone], name=name)
        bodies.append(ir.Graph([], inner.outputs, nodes=[inner], name=name))
    attributes = [ir.AttrGraph("one", bodies[0]), ir.AttrGraphs("several", bodies[1:])]
    node = ir.Node("own.domain", "Choose", [None, lone], attributes)
    graph = ir.Graph([outer, lone], node.outputs, nodes=[node], opset_imports={"": 18, "own.domain": 1})
    assert [body.name for body in graphs_in(node)] == ["one", "first", "second"]
    assert [one.name for one in every_node(graph)[1:]] == ["one", "first", "second"]
    assert {lone, outer} <= set(reads(node))


def test_attribute_kinds_of_subgraphs_are_named_in_queries_alone():
    kinds = ("GRAPH", "GRAPHS")
    found = {
        file.relative_to(FOLDER).as_posix()
        for file in FOLDER.rglob("*.py")
        if "GRAPH" in file.read_text(encoding="utf-8")  # parsing all takes three seconds
        for node in nodes_of_file(file)
        if isinstance(node, ast.Attribute) and node.attr in kinds
    }
    assert found == {"_ir/queries.py"}

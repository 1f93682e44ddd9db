"""A node that has more set than its rule knows is refused, at every opset and by both engines."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from onnxtrain_sklearn import gradient_graph
from onnxtrain_sklearn._gradient import lowering, portable
from onnxtrain_sklearn._gradient import lowering as expand
from onnxtrain_sklearn._gradient import ort_training as ort
from onnxtrain_sklearn._gradient import subgraph_rules as control
from onnxtrain_sklearn._ir.supported import ANY, Supported
from onnxtrain_sklearn.exceptions import ModelError, UnsupportedOperatorError
from tests.helpers.environment import available_engines

TABLES = {
    "control": control.RULES,
    "lowerings": expand.LOWERINGS,
    "ort-training": ort.PROVEN,
    "rules": portable.RULES,
    "sequences": lowering.MAKERS,
}
KNOWN = [
    pytest.param(name, known, id=f"{table}-{name}") for table, rules in TABLES.items() for name, known in rules.items()
]
SCHEMAS = [s for s in onnx.defs.get_all_schemas_with_history() if not s.domain]


def model_of_node(operator, inputs, *, opset, outputs=("y",), **attributes):
    """Return the model of one node, and of the sum of the squares of its first output."""
    names = [name if array is not None else "" for name, array in inputs.items()]
    node = helper.make_node(operator, names, list(outputs), **attributes)
    rest = [
        helper.make_node("Mul", ["y", "y"], ["squares"]),
        helper.make_node("ReduceSum", ["squares"], ["loss"], keepdims=0),
    ]
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
        if array is not None
    ]
    loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
    graph = helper.make_graph([node, *rest], "known", values, [loss])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def floats(*shape):
    return np.ones(shape, np.float32)


QKV = {"x": floats(2, 2, 3, 4), "k": floats(2, 2, 5, 4), "v": floats(2, 2, 5, 6)}
IMAGE = {"x": floats(1, 2, 4, 4)}
LATER = [
    ("Attention", QKV, {"left_window_size": 1}, 25, "left_window_size = 1"),
    ("Attention", QKV, {"right_window_size": 0}, 26, "right_window_size = 0"),
    ("Attention", QKV, {"qk_matmul_output_mode": 1}, 24, "qk_matmul_output_mode = 1"),
    ("SpaceToDepth", IMAGE, {"blocksize": 2, "mode": "CRD"}, 26, "mode = 'CRD'"),
    ("DepthToSpace", {"x": floats(1, 4, 2, 2)}, {"blocksize": 2, "mode": "NEW"}, 18, "only with CRD or DCR"),
    ("ScatterND", {"x": floats(3), "i": np.array([[0]]), "u": floats(1)}, {"reduction": "mean"}, 18, "reduction"),
    ("Pad", {"x": floats(3), "p": np.array([1, 1])}, {"mode": "constant", "value": 2.0}, 18, "value = 2.0"),
    ("Relu", {"x": floats(3)}, {"slope": 0.1}, 18, "slope"),
    ("Relu", {"x": floats(3), "z": floats(3)}, {}, 18, "its input 1"),
    ("Gemm", {"x": floats(2, 2), "w": floats(2, 2), "b": None, "z": floats(2)}, {}, 18, "its input 3"),
    ("LayerNormalization", {"x": floats(2, 2), "s": floats(2)}, {"stash_type": 10}, 18, "stash_type = 10"),
    ("Split", {"x": floats(2, 2)}, {"axis": 1, "by": 2}, 11, "by = 2"),
    ("Dropout", {"x": floats(2)}, {"noise": 1}, 18, "noise = 1"),
    ("LSTM", {"x": floats(2, 1, 2), "w": floats(1, 8, 2), "r": floats(1, 8, 2)}, {"layers": 2}, 18, "layers = 2"),
]  # fmt: skip


# What the opset of the graph does not have is told by the standard's own check, if it comes first.
@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize(("operator", "inputs", "attributes", "opset", "message"), LATER)
def test_unknown_settings_are_refused(engine, operator, inputs, attributes, opset, message):
    model = model_of_node(operator, inputs, opset=opset, **attributes)
    if engine == "ort-training" and (opset not in ort.OPSETS or operator not in ort.PROVEN):
        message = "proven right|opset 11 to 21"
    with pytest.raises((UnsupportedOperatorError, ModelError), match=f"{message}|graph is not valid"):
        gradient_graph(model, wrt="x", engine=engine)


def test_a_used_output_beyond_the_known_is_refused():
    model = model_of_node("Relu", {"x": floats(3)}, opset=18, outputs=("y", "z"))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [3]))
    with pytest.raises((UnsupportedOperatorError, ModelError), match=r"with its output 1|graph is not valid"):
        gradient_graph(model, wrt="x", engine="portable")


def test_another_domain_has_other_operators():
    model = model_of_node("Relu", {"x": floats(3)}, opset=18)
    model.graph.node[0].domain = "acme"
    model.opset_import.add(domain="acme", version=1)
    with pytest.raises(UnsupportedOperatorError, match=r"acme\.Relu"):
        gradient_graph(model, wrt="x", engine="portable")


@pytest.mark.parametrize("engine", available_engines())
def test_a_default_that_is_written_down_is_no_setting(engine):
    layer = {"x": floats(2, 2), "s": floats(2), "b": floats(2)}
    gradient_graph(model_of_node("LayerNormalization", layer, opset=18, stash_type=1), wrt="x", engine=engine)
    if "left_window_size" in onnx.defs.get_schema("Attention", 25, "").attributes:  # since onnx 1.23
        gradient_graph(model_of_node("Attention", QKV, opset=25, left_window_size=-1), wrt="x", engine="portable")


# every operator, of every opset, by its schemas.


@pytest.mark.parametrize(("name", "known"), KNOWN)
def test_declared_attributes_exist_in_the_standard(name, known):
    """A name that no version of the operator has would be a slip of the pen."""
    if "." in name:
        pytest.skip("the standard has no operators of other domains")
    own = [s for s in SCHEMAS if s.name == name]
    assert known.values.keys() <= {a for s in own for a in s.attributes}
    assert known.inputs <= max(s.max_input for s in own) or known.inputs == ANY
    assert known.outputs <= max(s.max_output for s in own) or known.outputs == ANY
    assert known.cotangents <= known.outputs


@pytest.mark.parametrize(("name", "known"), KNOWN)
def test_every_attribute_of_the_schemas_is_declared_or_refused(name, known):
    for schema in [s for s in SCHEMAS if s.name == name]:
        for attribute in schema.attributes.values():
            node = ir.Node("", name, [], [another_value(attribute)], version=schema.since_version)
            graph = ir.Graph([], [], nodes=[node], opset_imports={"": schema.since_version})
            assert node.graph is graph
            values = known.values.get(attribute.name)
            assert bool(known.unknown(node)) == (values is None or bool(values)), attribute.name


KINDS = onnx.defs.OpSchema.AttrType
OTHER = {
    KINDS.FLOAT: 0.123,
    KINDS.INT: 3,
    KINDS.STRING: "other",
    KINDS.FLOATS: [0.123],
    KINDS.INTS: [3],
    KINDS.STRINGS: ["other"],
}


def another_value(attribute):
    """Return the attribute with a value that is not its default."""
    if attribute.type in OTHER:
        return ir.convenience.convert_attribute(attribute.name, OTHER[attribute.type])
    return ir.Attr(attribute.name, ir.AttributeType(attribute.type.value), None)


def test_known_is_read_from_its_declaration():
    known = Supported(None, "axis mode=a|b")
    assert known.values == {"axis": frozenset(), "mode": frozenset("ab")}

"""Every rewriting rule gives what onnxruntime gives, and a gradient for every parameter that it makes.

Each case is one node with one setting of its attributes. Its graph is run as it is and rewritten, and the gradients of
the rewritten scores, summed under fixed random weights, are compared with central differences in float64.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxtrain_sklearn._importers.load import load
from onnxtrain_sklearn._ir.protobuf import to_proto
from onnxtrain_sklearn._ir.queries import is_float
from onnxtrain_sklearn._ml_operators.rewrite import RULES, hold_formulas, rewrite
from onnxtrain_sklearn._model.precision import in_dtype
from onnxtrain_sklearn.exceptions import ModelError, UnsupportedOperatorError
from tests.contracts.rewrite_cases import (
    CASES,
    GRID,
    ML,
    X,
    lacks_kernel,
    tree_attributes,
)
from tests.helpers.differences import assert_gradients, assert_same, run, run_proto
from tests.helpers.environment import RUNTIME_VERSION, available_engines


def test_every_rule_has_a_case():
    tested = {(c.domain, c.operator) for c in CASES if not c.refused}
    assert set(RULES) <= tested


def as_number(c):
    return f"{CASES.index(c)}-{c.operator}"


def covered_by_tree(c, engine=None):
    """Return the operator with its attributes, the words among their values, the type of x, and the engine.

    Of a tree also the classes of its leaves, beside base values or alone.
    """
    kind = c.feeds["x"].dtype if "x" in c.feeds else None
    words = {(name, value) for name, value in c.attributes.items() if isinstance(value, str)}
    leaves = "base_values" in c.attributes, frozenset(c.attributes.get("class_ids", ()))
    return {(c.operator, subject) for subject in (*c.attributes, *words, leaves, kind, engine)}


def right(test):
    cases = pytest.mark.parametrize("c", [c for c in CASES if not c.refused], ids=as_number)
    return pytest.mark.thinned(by=covered_by_tree)(cases(test))


def original(c):
    """Run the node as it is; TreeEnsemble is newer than some builds of onnxruntime."""
    try:
        return run_proto(c.proto, c.fed)
    except Exception as error:
        if not lacks_kernel(c, error):
            raise
        pytest.skip("this onnxruntime is too old for TreeEnsemble")


def forgets_logistic(c):
    """Whether the installed onnxruntime leaves out the transformation of a single score, as versions before 1.31 do."""
    if c.attributes.get("post_transform") != "LOGISTIC" or RUNTIME_VERSION >= "1.31":
        return False
    attributes, weights = c.attributes, c.attributes.get("class_weights", [])
    if c.operator == "TreeEnsembleClassifier":
        return set(attributes["class_ids"]) == {0} and min(weights) >= 0
    single = len(attributes.get("intercepts", [])) == 1 or len(attributes.get("vectors_per_class", [])) == 2
    return c.operator in ("LinearClassifier", "SVMClassifier") and single


@pytest.mark.each(by=lambda c: (c.operator, *c.attributes, frozenset(c.attributes.get("class_ids", ()))))
@right
def test_values_are_those_of_onnxruntime(c):
    if forgets_logistic(c):
        pytest.skip("this onnxruntime leaves out LOGISTIC")
    wanted = original(c)
    found = run(rewrite(load(c.proto)).model, c.fed)
    for expected, value in zip(wanted, found, strict=True):
        assert_same(expected, value)


@right
def test_only_leaf_search_and_string_operators_remain(c):
    model = rewrite(load(c.proto)).model
    left = {node.op_type for node in model.graph if (node.domain, node.op_type) in RULES}
    strings = any(value.dtype is ir.DataType.STRING for value in model.graph.inputs)
    trees = c.operator.replace("Classifier", "Regressor") if "Tree" in c.operator else ""
    assert left == ({c.operator} if c.stays else {trees} if trees else {"LabelEncoder"} if strings else set())


@pytest.mark.parametrize("c", [c for c in CASES if "Tree" in c.operator and not c.refused], ids=as_number)
def test_places_of_leaf_values_tell_tree_node_and_target(c):
    rewritten = rewrite(load(c.proto))
    role = next(role for role in rewritten.roles if role.role == "leaf_values")
    array = rewritten.model.graph.initializers[role.name].const_value.numpy()
    assert role.places.shape == (*role.shape, 3)
    found = {tuple(place): value for place, value in zip(role.places.reshape(-1, 3).tolist(), array.flat, strict=True)}
    if c.operator == "TreeEnsemble":
        assert sorted(found) == [(0, 0, 0), (0, 1, 0), (0, 2, 0), (1, 3, 1), (1, 4, 1)]
        return
    kind = "class" if "Classifier" in c.operator else "target"
    lists = [c.attributes[f"{kind}_{name}"] for name in ("treeids", "nodeids", "ids", "weights")]
    assert found == {(t, n, i): np.float32(w) for t, n, i, w in zip(*lists, strict=True)}


@right
def test_parameters_hold_the_numbers_of_the_attributes(c):
    rewritten = rewrite(load(c.proto))
    shapes = {role.role: role.shape for role in rewritten.roles}
    assert c.parameters.items() <= shapes.items()
    initializers = rewritten.model.graph.initializers
    assert {role.name for role in rewritten.roles} == set(initializers) - set(c.initializers)
    for role in rewritten.roles:
        assert role.node == c.operator.lower()
        assert initializers[role.name].const_value.numpy().shape == role.shape
        assert role.name.endswith(f".{role.role}")


@pytest.mark.proof(operators=lambda c, engine: c.operator)
@pytest.mark.parametrize("engine", available_engines())
@right
def test_gradients_are_those_of_central_differences(c, engine):
    if c.stays:
        pytest.skip("nothing was rewritten")
    original(c)
    rewritten = rewrite(load(c.proto))
    floats = [v.name for v in rewritten.model.graph.outputs if is_float(v)]
    output = floats[-1]
    try:
        names = assert_gradients(rewritten.model, output, c.fed, engine)
    except UnsupportedOperatorError:
        assert engine == "ort-training"
        assert c.portable_only
        return
    assert not (engine == "ort-training" and c.portable_only)
    assert set(names) >= {role.name for role in rewritten.roles} or c.attributes.get("one_class")


@pytest.mark.parametrize("c", [c for c in CASES if c.refused], ids=as_number)
def test_operators_without_a_rewrite_are_refused(c):
    """Lists that onnxruntime would read behind are refused when the file is read."""
    with pytest.raises(ModelError, match=rf"{c.refused}|is not valid: .* does not fit") as error:
        rewrite(load(c.proto))
    assert f"Node '{c.operator.lower()}' (" in str(error.value)


LINE = {"coefficients": [0.1, -0.2, 0.3], "intercepts": [0.5]}


def several_nodes(*nodes, outputs=(("y", 1, ["N", 1]),), held=(), producer="test"):
    declare = onnx.helper.make_tensor_value_info
    inputs = [declare("x", 1, ["N", 3])]
    graph = onnx.helper.make_graph(list(nodes), "several", inputs, [declare(*o) for o in outputs], list(held))
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid(ML, 3)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9, producer_name=producer)


def test_given_model_is_unchanged():
    source = load(CASES[0].proto)
    before = to_proto(source).SerializeToString()
    rewrite(source)
    assert to_proto(source).SerializeToString() == before


def test_nodes_of_one_kind_have_own_parameters():
    first = onnx.helper.make_node("LinearRegressor", ["x"], ["a"], "one", domain=ML, **LINE)
    second = onnx.helper.make_node("LinearRegressor", ["x"], ["b"], "two", domain=ML, **LINE)
    rewritten = rewrite(load(several_nodes(first, second, onnx.helper.make_node("Mul", ["a", "b"], ["y"], "m"))))
    names = [(role.node, role.name) for role in rewritten.roles]
    assert names == [
        ("one", "linear_regressor.coef"),
        ("one", "linear_regressor.intercept"),
        ("two", "linear_regressor_1.coef"),
        ("two", "linear_regressor_1.intercept"),
    ]


def test_unread_nodes_are_not_rewritten():
    faulty = onnx.helper.make_node("LinearRegressor", ["x"], ["z"], "unread", domain=ML, coefficients=[1.0] * 5)
    right = onnx.helper.make_node("LinearRegressor", ["x"], ["y"], "read", domain=ML, **LINE)
    assert {role.node for role in rewrite(load(several_nodes(faulty, right))).roles} == {"read"}


def test_declared_shapes_that_are_wrong_are_not_believed():
    node = onnx.helper.make_node("LinearRegressor", ["x"], ["y"], "line", domain=ML, **LINE)
    model = rewrite(load(several_nodes(node, outputs=[("y", 1, ["N", 2])]))).model
    assert model.graph.outputs[0].shape[1] == 1


def test_dictionaries_of_scores_are_read_as_tensors():
    node = onnx.helper.make_node("LinearClassifier", ["x"], ["l", "s"], "c", domain=ML, classlabels_ints=[0, 1],
                                 coefficients=[0.1, -0.2, 0.3, -0.1, 0.2, -0.3], intercepts=[0.5, -0.5])  # fmt: skip
    zipped = onnx.helper.make_node("ZipMap", ["s"], ["y"], "z", domain=ML, classlabels_int64s=[0, 1])
    proto = several_nodes(node, zipped)
    mapped = onnx.helper.make_map_type_proto(7, onnx.helper.make_tensor_type_proto(1, []))
    proto.graph.output[0].type.CopyFrom(onnx.helper.make_sequence_type_proto(mapped))
    expected = np.array([[row[0], row[1]] for row in run_proto(proto, {"x": X})[0]], np.float32)
    model = rewrite(load(proto)).model
    assert [v.name for v in model.graph.outputs] == ["y"]
    assert_same(expected, run(model, {"x": X})[0])


@pytest.mark.parametrize("producer", ["skl2onnx", "pytorch"])
def test_numbers_of_formulas_are_no_weights(producer):
    held = [onnx.numpy_helper.from_array(np.array(a, np.float32), name) for name, a in
            {"unity1": 1, "Mu_Mulcst": [0.5], "Ad_Addcst1": [0.3], "coef": [1, 2, 3]}.items()]  # fmt: skip
    body = onnx.parser.parse_graph(
        "g (float[N, 3] x) => (float[N, 3] y) { a = Mul(x, coef) b = Mul(a, Mu_Mulcst) c = Add(b, Ad_Addcst1) "
        "y = Sub(unity1, c) }"
    )
    proto = several_nodes(*body.node, outputs=[("y", 1, ["N", 3])], held=held, producer=producer)
    given = load(proto)
    hold_formulas(given)
    model = rewrite(given).model
    weights = {"coef", "Ad_Addcst1"} if producer == "skl2onnx" else {"coef", "Ad_Addcst1", "unity1", "Mu_Mulcst"}
    assert set(model.graph.initializers) == weights
    assert_same(run_proto(proto, {"x": X})[0], run(model, {"x": X})[0])


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("marks", [False, True])
def test_numbers_that_are_imputed_later_have_no_part_in_gradients(marks, engine):
    scaler = {"offset": [0.5, -1.0, 0.2], "scale": [2.0, 0.5, -1.5]}
    nodes = [onnx.helper.make_node("Scaler", ["x"], ["scaled"], "s", domain=ML, **scaler)]
    if marks:
        nodes.append(onnx.helper.make_node("IsNaN", ["scaled"], ["gap"], "g"))
        nodes.append(onnx.helper.make_node("Where", ["gap", "means", "scaled"], ["y"], "w"))
    else:
        means = {"imputed_value_floats": [0.1, 0.2, 0.3], "replaced_value_float": float("nan")}
        nodes.append(onnx.helper.make_node("Imputer", ["scaled"], ["y"], "i", domain=ML, **means))
    held = [onnx.numpy_helper.from_array(np.array([0.1, 0.2, 0.3], np.float32), "means")] if marks else []
    proto = several_nodes(*nodes, outputs=[("y", 1, ["N", 3])], held=held)
    feeds = {"x": np.where(np.arange(X.size).reshape(X.shape) % 4 == 0, np.float32("nan"), X)}
    model = rewrite(load(proto)).model
    assert_same(run_proto(proto, feeds)[0], run(model, feeds)[0])
    names = assert_gradients(model, "y", feeds, engine)
    assert set(names) == {"scaler.offset", "scaler.scale", "means" if marks else "imputer.imputed"}


def test_numbers_that_stay_missing_are_scaled_plainly():
    node = onnx.helper.make_node("Scaler", ["x"], ["y"], "s", domain=ML, offset=[0.5], scale=[2.0])
    model = rewrite(load(several_nodes(node, outputs=[("y", 1, ["N", 3])]))).model
    assert [node.op_type for node in model.graph if node.op_type != "Constant"] == ["Sub", "Mul"]


def test_trees_find_the_same_leaves_in_float64():
    attributes = tree_attributes("target", [3, 2])
    node = onnx.helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], "t", domain=ML, n_targets=1, **attributes)
    model = rewrite(load(several_nodes(node))).model
    double = in_dtype(model, ir.DataType.DOUBLE)
    assert_same(run(model, {"x": GRID})[0].astype(float), run(double, {"x": GRID.astype(float)})[0], tolerance=1e-6)


@pytest.mark.parametrize("opset", [12, 18])  # before 13, axes are an attribute
@pytest.mark.parametrize("axis", [0, 1])
def test_scan_that_sums_over_the_rows_of_the_state_is_kept(axis, opset):
    total = f"ReduceSum<axes = [{axis}], keepdims = 0>(e)" if opset < 13 else "ReduceSum<keepdims = 0>(e, a)"
    graph = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": {opset}]>
        pairs (float[3, 3] y, float[N, 3] x) => (float[3, 3] state, float[N, 3] z) {{
            state, z = Scan <num_scan_inputs = 1, body = one_row (float[3, 3] s, float[3] row)
                => (float[3, 3] t, float[3] d) <int64[1] a = {{{axis}}}>
                {{ t = Identity(s) e = Sub(s, row) d = {total} }}> (y, x)
        }}""")
    y, x = np.arange(9, dtype=np.float32).reshape(3, 3) ** 2, np.array([[1, 2, 4], [0, 3, 5]], np.float32)
    rewritten = rewrite(load(graph)).model
    assert any(node.op_type == "Scan" for node in rewritten.graph) == (axis == 0)
    found = run(rewritten, {"y": y, "x": x})[1]
    np.testing.assert_allclose(found, [(y - row).sum(axis) for row in x], rtol=1e-6)

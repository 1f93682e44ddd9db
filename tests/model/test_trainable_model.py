"""A graph pruned to what is trained: its shapes and types, its clones and its inference form."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import onnx_ir as ir
import pytest

from onnxtrain_sklearn import MLP, SGD, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn._importers.load import load
from onnxtrain_sklearn._ir import edits
from onnxtrain_sklearn._ir.protobuf import to_proto
from onnxtrain_sklearn._model import batch_axis, modes, precision
from onnxtrain_sklearn._model.heads import frozen_part
from onnxtrain_sklearn._model.trainable import trainable_model
from onnxtrain_sklearn.exceptions import ModelError, UnsupportedOperatorError
from tests.helpers.data import rows
from tests.helpers.environment import available_engines
from tests.helpers.graphs import W, model, operator_types, trainable
from tests.helpers.sessions import evaluate
from tests.helpers.training import one_step, quietly

# Shapes and types


def test_batch_axis_that_an_exporter_fixed_is_freed():
    found = trainable("H = MatMul(X, W) Y = Add(H, B)", x="float[1, 3] X, float[1, 1] B", y="float[1, 1] Y")
    assert [spec.shape for spec in found.inputs] == [(None, 3), (None, 1)]
    X = rows()
    result = evaluate(to_proto(found.model), X=X, B=np.zeros((8, 1), np.float32))[0]
    np.testing.assert_allclose(result, X @ [[1.0], [-2], [3]], rtol=0, atol=1e-5)


def test_batch_baked_into_a_shape_is_freed():
    weights = f"{W}, int64[2] shape = {{1, 3}}"
    proto = model("F = Reshape(X, shape) Y = MatMul(F, W)", x="float[1, 1, 3] X", weights=weights, y="float[1, 1] Y")
    free = model("Y = MatMul(X, W)", x="float[N, 3] X", weights=W, y="float[N, 1] Y")
    trained = one_step(proto, rows().reshape(8, 1, 3), rows(8, 1).ravel())
    expected = one_step(free, rows(), rows(8, 1).ravel())
    np.testing.assert_allclose(trained.weights_["W"], expected.weights_["W"], rtol=0, atol=1e-6)


def test_axes_behind_the_batch_are_fixed_to_the_data():
    weights = f"{W}, int64[1] axes = {{1}}"
    found = trainable("H = ReduceMean <keepdims = 0> (X, axes) Y = MatMul(H, W)", x="float[N, T, 3] X", weights=weights)
    assert found.inputs[0].shape == (None, None, 3)
    fixed = found.with_shapes({"X": (5, 3)})
    assert fixed.inputs[0].shape == (None, 5, 3)
    assert found.inputs[0].shape == (None, None, 3)
    assert fixed.with_shapes({"X": (5, 3)}) is fixed
    X, y = rows(8, 15).reshape(8, 5, 3), rows(8, 1, seed=1).ravel()
    proto = to_proto(found.model)
    gradient = 2 * X.mean(axis=1).T @ (X.mean(axis=1) @ [[1.0], [-2], [3]] - y[:, None]) / 8
    expected = [[1], [-2], [3]] - 0.1 * gradient
    np.testing.assert_allclose(one_step(proto, X, y).weights_["W"], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ("float X", "'X' is a single float32, the same for all rows.*constant_inputs={'X': 1}"),
        ("seq(float[N, 3]) S, float[N, 3] X", "must be a tensor of a declared type and shape with a batch axis"),
    ],
)
def test_inputs_without_a_batch_axis(x, message):
    body = "i = Constant <value_int = 0> () E = SequenceAt(S, i) H = Add(X, E) Y = MatMul(H, W)"
    body = "Y = Mul(X, W)" if x == "float X" else body
    with pytest.raises(ModelError, match=message):
        trainable(body, x=x)


def test_several_inputs_train():
    proto = model(
        "A = MatMul(X, W) B = MatMul(U, V) Y = Add(A, B)",
        x="float[N, 3] X, float[N, 2] U",
        weights=f"{W}, float[2, 1] V = {{1, 1}}",
    )
    X, U, y = rows(), rows(8, 2, seed=1), rows(8, 1, seed=2).ravel()
    trained = one_step(proto, {"U": U, "X": X}, y)
    slope = 2 * (X @ [[1.0], [-2], [3]] + U @ [[1.0], [1]] - y[:, None]) / 8
    np.testing.assert_allclose(trained.weights_["V"], 1 - 0.1 * U.T @ slope, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(trained.predict({"X": X, "U": U}), evaluate(trained.to_onnx(), X=X, U=U)[0].ravel())


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.float64])
def test_tables_are_trained_by_the_rows_that_are_looked_up(kind):
    body = "E = Gather(T, ids) H = Concat <axis = 1> (E, X) Y = MatMul(H, W)"
    weights = "float[4, 1] T = {1, 2, 3, 4}, float[4, 1] W = {0.5, 1, -2, 3}"
    proto = model(body, x="int64[N] ids, float[N, 3] X", weights=weights)
    X, y, ids = rows(), rows(8, 1, seed=1).ravel(), np.array([0, 2, 2, 0, 2, 1, 0, 0])
    trained = one_step(proto, {"ids": ids.astype(kind), "X": X}, y)
    table, w = np.array([1.0, 2, 3, 4]), np.array([0.5, 1, -2, 3])
    inputs = np.column_stack([table[ids], X])
    slope = 2 * (inputs @ w - y) / 8
    expected = table - 0.1 * np.bincount(ids, weights=slope * 0.5, minlength=4)
    np.testing.assert_allclose(trained.weights_["T"].ravel(), expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(trained.weights_["W"].ravel(), w - 0.1 * inputs.T @ slope, rtol=0, atol=1e-5)
    assert trained.weights_["T"][3] == 4


def test_head_behind_a_frozen_normalization_is_trained():
    weights = "float[3] s = {1, 2, 3}, float[3] b = {0.1, 0.2, 0.3}, float[3] m = {0, 1, 2}, float[3] v = {1, 2, 4}"
    proto = model("H = BatchNormalization <epsilon = 0.0> (X, s, b, m, v) Y = MatMul(H, W)", weights=f"{W}, {weights}")
    X, y = rows(), rows(8, 1, seed=1).ravel()
    if "ort-training" in available_engines():
        with pytest.raises(UnsupportedOperatorError, match=r"'BatchNormalization_0' \(BatchNormalization\)"):
            quietly(OrtGradientRegressor(proto, engine="ort-training").fit, X, y)
    regressor = OrtGradientRegressor(proto, trainable="W", optimizer=SGD(), learning_rate_init=0.1, max_iter=1)
    trained = quietly(regressor.fit, X, y).weights_
    hidden = (X - [0, 1, 2]) / np.sqrt([1, 2, 4]) * [1, 2, 3] + [0.1, 0.2, 0.3]
    w = np.array([1.0, -2, 3])
    np.testing.assert_allclose(trained["W"].ravel(), w - 0.2 * hidden.T @ (hidden @ w - y) / 8, rtol=0, atol=1e-5)
    assert [trained[name].tolist() for name in "smv"] == [[1, 2, 3], [0, 1, 2], [1, 2, 4]]


def test_double_graph():
    found = trainable(x="double[N, 3] X", y="double[N, 1] Y", weights=W.replace("float", "double"))
    assert (found.dtype, found.inputs[0].dtype) == (np.float64, np.float64)


DOUBLES = """
    c = Constant <value = double[1] {0.5}> ()
    f = Cast <to = 1> (X) d = Cast <to = 11> (f)
    s = Shape(X) z = ConstantOfShape <value = double[1] {0.25}> (s)
    q = MatMul(X, V) e = EyeLike <dtype = 11> (V) r = MatMul(q, e)
    g = If (yes) <then_branch = t () => (double[N, 3] a) { k = Constant <value = double[1] {2}> () a = Mul(X, k) },
                  else_branch = u () => (double[N, 3] b) { l = Cast <to = 11> (f) b = Add(l, z) }>
    h1 = Mul(d, c) h2 = Add(h1, z) h3 = Add(h2, g) h4 = Add(h3, r) Y = MatMul(h4, W)"""


def test_in_dtype_changes_every_double():
    weights = "double[3, 1] W = {1, -2, 3}, double[3, 3] V = {1, 0, 0, 0, 1, 0, 0, 0, 1}, bool yes = {1}"
    proto = model(DOUBLES, x="double[N, 3] X", y="double[N, 1] Y", weights=weights)
    source = load(proto)
    single = to_proto(precision.in_dtype(source, ir.DataType.FLOAT))
    onnx.checker.check_model(single, full_check=True)
    X = rows()
    expected = evaluate(proto, X=X.astype(np.float64))[0]
    result = evaluate(single, X=X)[0]
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5)
    assert source.graph.inputs[0].dtype is ir.DataType.DOUBLE


def test_in_dtype_reaches_initializers_of_subgraphs():
    body = """Y = If (yes) <then_branch = t () => (double[N, 1] a) { a = MatMul(X, W) },
                             else_branch = u () => (double[N, 1] b) { b = MatMul(X, k) }>"""
    weights = f"{W.replace('float', 'double')}, bool yes = {{0}}"
    proto = model(body, x="double[N, 3] X", y="double[N, 1] Y", weights=weights)
    inner = proto.graph.node[0].attribute[1].g
    inner.initializer.append(onnx.numpy_helper.from_array(np.ones((3, 1)), "k"))
    single = to_proto(precision.in_dtype(load(proto), ir.DataType.FLOAT))
    np.testing.assert_allclose(evaluate(single, X=rows())[0], rows().sum(axis=1, keepdims=True), rtol=0, atol=1e-5)


# Clones, and what never changes


def test_the_given_model_is_never_changed():
    proto = model("D = Dropout(X) H = MatMul(D, W) Y = Add(H, b)", weights=f"{W}, float[1] b = {{1}}", opset=22)
    proto.opset_import.add(domain="ai.onnx", version=22)
    proto.graph.input.append(onnx.helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, [1]))
    before = proto.SerializeToString()
    one_step(proto, rows(), rows(8, 1).ravel()).predict(rows())
    assert proto.SerializeToString() == before


def test_trainable_model_pickles():
    found = trainable("H = MatMul(X, W) Y = Sigmoid(H)")
    copy = pickle.loads(pickle.dumps(found))
    assert to_proto(copy.model) == to_proto(found.model)
    assert (copy.inputs, copy.parameters, copy.scores) == (found.inputs, found.parameters, found.scores)
    np.testing.assert_array_equal(copy.weights()["W"], found.weights()["W"])


def test_weights_are_copies():
    found = trainable()
    found.weights()["W"][...] = 0
    np.testing.assert_array_equal(found.weights()["W"], [[1], [-2], [3]])


def test_with_batch_fixes_the_rows_of_a_clone():
    found = trainable("H = MatMul(X, W) Y = Sigmoid(H)")
    fixed = batch_axis.with_batch(found.model, 7)
    assert [tuple(v.shape) for v in [*fixed.graph.inputs, *fixed.graph.outputs]] == [(7, 3), (7, 1), (7, 1)]
    assert found.model.graph.inputs[0].shape[0] != 7
    again = batch_axis.with_batch(fixed, 5)
    assert [tuple(v.shape) for node in again.graph for v in node.outputs] == [(5, 1), (5, 1)]


def test_initializers_become_inputs():
    found = trainable()
    edits.swap_initializers(found.model.graph, {"W": np.ones((3, 1), np.float32)})
    sums = rows().sum(axis=1, keepdims=True)
    np.testing.assert_allclose(evaluate(to_proto(found.model), X=rows())[0], sums, rtol=0, atol=1e-6)
    edits.initializers_to_inputs(found.model.graph, ["W"])
    result = evaluate(to_proto(found.model), X=rows(), W=np.zeros((3, 1), np.float32))[0]
    np.testing.assert_array_equal(result, np.zeros((8, 1)))


# Dropout, subgraphs


@pytest.mark.parametrize(
    "body",
    [
        "D = Dropout(X, r, yes) Y = MatMul(D, W)",
        "D, mask = Dropout(X, r, yes) Y = MatMul(D, W)",
        "H = MatMul(X, W) Y = Dropout(H, r, yes)",
        "D = Dropout(X, r, yes) E = Dropout(D, r, yes) Y = MatMul(E, W)",
        """Y = If (yes) <then_branch = t () => (float[N, 1] a) { D = Dropout(X, r, yes) a = MatMul(D, W) },
                      else_branch = u () => (float[N, 1] b) { H = MatMul(X, W) b = Dropout(H, r, yes) }>""",
    ],
)
def test_inference_form_has_no_dropout(body):
    found = trainable(body, weights=f"{W}, float r = {{0.5}}, bool yes = {{1}}")
    proto = to_proto(modes.inference_form(found.model))
    assert "Dropout" not in {node.op_type for node in load(proto).graph.all_nodes()}
    assert "Dropout" in {node.op_type for node in found.model.graph.all_nodes()}
    assert [value.name for value in proto.graph.output] == ["Y"]
    np.testing.assert_allclose(evaluate(proto, X=rows())[0], rows() @ [[1.0], [-2], [3]], rtol=0, atol=1e-5)


def test_used_mask_has_no_inference_form():
    body = "D, mask = Dropout(X, r, yes) M = Cast <to = 1> (mask) E = Mul(D, M) Y = MatMul(E, W)"
    found = trainable(body, weights=f"{W}, float r = {{0.5}}, bool yes = {{1}}")
    with pytest.raises(ModelError, match="mask of Dropout node 'Dropout_0' is used"):
        modes.inference_form(found.model)


@pytest.mark.parametrize("opset", [11, 12, 13, 18, 21, 22, 26])
def test_dropout_that_never_drops_trains_as_if_it_were_not_there(opset):
    plain, y = one_step(model(), rows(), rows(8, 1).ravel()), rows(8, 1).ravel()
    node = "Dropout <ratio = 0.5> (X)" if opset == 11 else "Dropout(X, r)"
    proto = model(f"D = {node} Y = MatMul(D, W)", opset=opset, weights=f"{W}, float r = {{0.5}}" if opset > 11 else W)
    np.testing.assert_allclose(one_step(proto, rows(), y).weights_["W"], plain.weights_["W"], rtol=0, atol=1e-7)


def dropping(ratio="r", opset=18):
    weights = "float[6, 1] W = {1, 1, 1, 1, 1, 1}, float r = {0.5}, bool yes = {1}"
    return model(f"D = Dropout(X, {ratio}, yes) Y = MatMul(D, W)", x="float[N, 6] X", weights=weights, opset=opset)


@pytest.mark.parametrize("opset", [12, 13, 18, 21, 22, 26])
@pytest.mark.parametrize("ratio", ["r", ""])
def test_dropout_trains_with_its_mask_and_predicts_without(ratio, opset):
    proto = dropping(ratio, opset)
    X = np.ones((1, 6), np.float32)
    trained = one_step(proto, X, np.zeros(1), rate=0.01)
    steps = (1 - trained.weights_["W"].ravel()) / 0.01  # 2 · 2 · (sum of what was kept), or nothing
    kept = steps > 0
    assert 0 < kept.sum() < 6
    np.testing.assert_allclose(steps[kept], 2 * 2 * 2 * kept.sum(), rtol=1e-3)
    np.testing.assert_allclose(trained.predict(X), trained.weights_["W"].sum(), rtol=1e-6)
    assert operator_types(load(trained.to_onnx()).graph) == ["MatMul"]


def test_every_step_draws_a_new_mask():
    regressor = OrtGradientRegressor(dropping(), optimizer=SGD(), learning_rate_init=0.01, random_state=0)
    X, masks, before = np.ones((1, 6), np.float32), set(), np.ones(6)
    for _ in range(5):
        after = regressor.partial_fit(X, np.zeros(1)).weights_["W"].ravel()
        masks.add(tuple(after != before))
        before = after
    assert len(masks) > 2


def test_masks_are_drawn_from_the_random_state():
    X, y = np.ones((30, 6), np.float32), np.zeros(30)

    def weights(seed):
        regressor = OrtGradientRegressor(dropping(), max_iter=3, batch_size=10, shuffle=False, random_state=seed)
        return quietly(regressor.fit, X, y).weights_["W"].tolist()

    assert weights(0) == weights(0)
    assert weights(0) != weights(1)


def test_weights_that_a_subgraph_reads_are_parameters():
    body = """H = If (yes) <then_branch = t () => (float[N, 1] a) { a = MatMul(X, W) },
                             else_branch = u () => (float[N, 1] b) { b = MatMul(X, V) }> Y = Add(H, b0)"""
    proto = model(body, weights=f"{W}, {W.replace('W', 'V')}, float[1] b0 = {{1}}, bool yes = {{1}}")
    assert set(trainable_model(load(proto)).parameters) == {"W", "V", "b0"}
    both = one_step(proto, rows(), rows(8, 1).ravel())
    assert (both.weights_["W"] != [[1], [-2], [3]]).all()
    np.testing.assert_array_equal(both.weights_["V"], [[1], [-2], [3]])
    trained = quietly(OrtGradientRegressor(proto, trainable="b0", max_iter=1).fit, rows(), rows(8, 1).ravel())
    np.testing.assert_array_equal(trained.weights_["W"], [[1], [-2], [3]])
    assert trained.weights_["b0"] != 1


def test_label_and_probabilities_as_skl2onnx_writes_them():
    body = """
        S = MatMul(X, W) R = Add(S, b) probabilities = Softmax <axis = 1> (R)
        I = ArgMax <axis = 1> (probabilities) L = ai.onnx.ml.ArrayFeatureExtractor(classes, I)
        K = Cast <to = 7> (L) label = Reshape(K, shape)"""
    weights = "float[3, 2] W = {1, -1, 1, 0, 0, 1}, float[2] b = {0, 0}"
    weights += ", int32[2] classes = {3, 5}, int64[1] shape = {-1}"
    outputs = "int64[N] label, float[N, 2] probabilities"
    proto = model(body, y=outputs, weights=weights, more=(', "ai.onnx.ml": 1', ""))
    X = rows(20)
    trained = quietly(OrtGradientClassifier(proto, max_iter=3, random_state=0).fit, X, np.where(X[:, 0] > 0, 5, 3))
    assert trained.classes_.tolist() == [3, 5]  # those that the file names
    exported = trained.to_onnx()
    assert [value.name for value in exported.graph.output] == ["label", "probabilities"]
    assert [entry.domain for entry in exported.opset_import] == [""]
    label, probabilities = evaluate(exported, X=X)
    assert label.tolist() == trained.predict(X).tolist()
    np.testing.assert_array_equal(probabilities, trained.predict_proba(X))


# The part before all trained weights


def crossing_rows():
    """A graph that subtracts the mean of all rows before its weights."""
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["N", c]) for n, c in (("X", 64), ("Y", 1)))
    weight = onnx.numpy_helper.from_array(np.zeros((64, 1), np.float32) + 0.1, "weight")
    axes = onnx.numpy_helper.from_array(np.array([0]), "axes")
    nodes = [
        onnx.helper.make_node("ReduceMean", ["X", "axes"], ["mean"]),
        onnx.helper.make_node("Sub", ["X", "mean"], ["centered"]),
        onnx.helper.make_node("MatMul", ["centered", "weight"], ["Y"]),
    ]
    graph = onnx.helper.make_graph(nodes, "g", [x], [y], [weight, axes])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)


def test_a_graph_is_cut_where_trained_weights_begin():
    graph = ir.from_proto(crossing_rows())
    part = frozen_part(graph, "Y", ["weight"], {})
    assert part is not None
    assert [node.op_type for node in part.first.graph] == ["ReduceMean", "Sub"]
    assert [node.op_type for node in part.second.graph] == ["MatMul"]
    assert [value.name for value in part.second.graph.inputs] == ["centered"]
    assert [node.op_type for node in graph.graph] == ["ReduceMean", "Sub", "MatMul"]


def test_nothing_is_cut_where_the_first_layer_is_trained():
    graph = ir.from_proto(MLP((4,)).build(n_features=3, n_outputs=1, random_state=0))
    weights = [name for name in graph.graph.initializers if graph.graph.initializers[name].dtype == ir.DataType.FLOAT]
    assert frozen_part(graph, graph.graph.outputs[0].name, weights, {}) is None

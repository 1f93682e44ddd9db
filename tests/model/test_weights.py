"""Which constants of a given graph are trained: by their roles, and by their names where the role is open."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from onnx.reference import ReferenceEvaluator

from onnxtrain_sklearn import SGD, GraphModel, OrtGradientRegressor
from onnxtrain_sklearn._estimators.graph_plan import trainable_graph_of
from onnxtrain_sklearn._importers.load import load
from onnxtrain_sklearn._ir.protobuf import to_proto
from onnxtrain_sklearn._model.trainable import trainable_model
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.data import rows
from tests.helpers.environment import available_engines

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

W = "float[3, 1] W = {1, -2, 3}"
ENGINES = pytest.mark.parametrize("engine", available_engines())


def weighted_model(body, weights=W, x="float[N, 3] X", y="float[N, 1] Y", opset=18, **arrays):
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}]> net ({x}) => ({y}) <{weights}> {{ {body} }}'
    )
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in arrays.items())
    return proto


def names_of_parameters(proto):
    return set(trainable_graph_of(GraphModel(proto))[0].parameters)


def first_output(proto, **feeds):
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


def step_of_weights(proto, engine="auto", **settings):
    settings = {"optimizer": SGD(), "learning_rate_init": 0.1, "max_iter": 1, "engine": engine} | settings
    return OrtGradientRegressor(proto, **settings).fit(rows(), rows(8, 1, seed=1).ravel())


def single(number):
    return np.array(number, np.float32)


def table(*shape, seed=2):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def sines(n=5, d=8):
    angles = np.arange(n)[:, None] * np.exp(np.arange(0, d, 2) * (-np.log(1e4) / d))
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(n, d).astype(np.float32)


# What is a weight, and what is not: body, the constants, and those that are trained. Names begin with "c" for what must
# not be trained, whatever else they say.

SEQUENCE, LAST = "float[N, 5, 8] X", "Y = ReduceMean <keepdims = 0> (Z, axes)"
FILLED = """b = Shape <start = 0, end = 1> (X) s = Concat <axis = 0> (one, b, four) h = Expand ({}, s)
    T = Transpose <perm = [1, 0, 2]> (X) A, H = GRU <hidden_size = 4> (T, W, R, B, , h)
    Z = Squeeze(H, zero) Y = MatMul(Z, V)"""
GRU = {"W": table(1, 12, 8), "R": table(1, 12, 4), "B": table(1, 24), "V": table(4, 1)}
SIZES = "int64[1] one = {1}, int64[1] four = {4}, int64[1] zero = {0}, int64[1] axes = {1}"
ATTENTION = """Q = MatMul(X, A) K = MatMul(X, B) T = Transpose <perm = [0, 2, 1]> (K) {}
    P = Softmax <axis = -1> (S) V = MatMul(P, X) U = MatMul(V, W) Y = ReduceMean <keepdims = 0> (U, axes)"""
SCORES = {"A": table(8, 4), "B": table(8, 4), "W": table(8, 1)}
MASK = np.triu(np.full((5, 5), -np.inf, np.float32), 1)
HIDDEN = {"A": table(3, 4), "W": table(4, 1)}
LAYER = "H = MatMul(X, A) {} Y = MatMul(G, W)"
PLACES = "G = Add(X, {}) U = MatMul(G, W) Y = ReduceMean <keepdims = 0> (U, axes)"

CASES = {
    "filler of an initial state": (FILLED.format("val_1"), GRU | {"val_1": single(0)}, set(GRU)),
    "filler that Keras names": (
        FILLED.format("filler"), GRU | {"net/gru/zeros/Const:0": single(0)}, set(GRU)
    ),
    "initial state that is learned": (
        FILLED.format("h0"), GRU | {"h0": np.zeros((1, 1, 4), np.float32)}, {*GRU, "h0"}
    ),
    "scale of scores": (
        ATTENTION.format("D = MatMul(Q, T) S = Div(D, val_2)"), SCORES | {"val_2": single(2)}, set(SCORES)
    ),
    "scale of scores under a name": (
        ATTENTION.format("D = MatMul(Q, T) S = Mul(D, scale)"), SCORES | {"scale": single(8**-0.5)}, set(SCORES)
    ),
    "scale of queries and keys": (
        ATTENTION.format("E = Mul(Q, val_69) F = Mul(T, val_69) S = MatMul(E, F)"),
        SCORES | {"val_69": np.full(1, 4**-0.25, np.float32)}, set(SCORES),
    ),
    "factor": (ATTENTION.format("D = MatMul(Q, T) S = Mul(D, g)"), SCORES | {"g": single(0.0431)}, {*SCORES, "g"}),
    "temperature that is learned": (
        ATTENTION.format("D = MatMul(Q, T) S = Mul(D, temperature)"),
        SCORES | {"temperature": single(1)}, {*SCORES, "temperature"},
    ),
    "causal mask": (
        ATTENTION.format("D = MatMul(Q, T) S = Add(D, mask)"), SCORES | {"mask": MASK}, set(SCORES)
    ),
    "mask of large numbers": (
        ATTENTION.format("D = MatMul(Q, T) S = Add(D, mask)"),
        SCORES | {"mask": np.triu(np.full((5, 5), -1e4, np.float32), 1)}, set(SCORES),
    ),
    "mask of zeros and ones": (
        ATTENTION.format("D = MatMul(Q, T) S = Mul(D, bias)"),
        SCORES | {"bias": np.tril(np.ones((5, 5), np.float32))}, set(SCORES),
    ),
    "bias of scores that is learned": (
        ATTENTION.format("D = MatMul(Q, T) S = Add(D, relative_bias)"),
        SCORES | {"relative_bias": table(5, 5)}, {*SCORES, "relative_bias"},
    ),
    "array that a folded program leaves": (
        LAYER.format("F = Relu(H) G = Add(F, full)"), HIDDEN | {"full": np.full(4, 0.1, np.float32)}, set(HIDDEN)
    ),
    "sines": (PLACES.format("pe"), {"W": table(8, 1), "pe": sines()}, {"W"}),
    "places that are learned": (PLACES.format("pos"), {"W": table(8, 1), "pos": table(1, 5, 8)}, {"W", "pos"}),
    "scale and bias behind a normalization": (
        """H = MatMul(X, A) I = Unsqueeze(H, one) J = InstanceNormalization (I, val_8, val_11) K = Squeeze(J, one)
           L = Mul(K, val_21) G = Add(L, val_23) Y = MatMul(G, W)""",
        HIDDEN | {"val_8": np.ones(1, np.float32), "val_11": np.zeros(1, np.float32), "val_21": np.ones(4, np.float32),
                  "val_23": np.zeros(4, np.float32)},
        {*HIDDEN, "val_21", "val_23"},
    ),
    "normalization of its own": (
        LAYER.format("G = LayerNormalization(H, g, b)"),
        HIDDEN | {"g": np.ones(4, np.float32), "b": np.zeros(4, np.float32)}, {*HIDDEN, "g", "b"},
    ),
    "normalization without scale": (
        LAYER.format("G = LayerNormalization(H, ones)"), HIDDEN | {"ones": np.ones(4, np.float32)}, set(HIDDEN)
    ),
    "mean and scale of the data": (
        "C = Sub(X, mean) S = Div(C, std) Y = MatMul(S, W)",
        {"mean": table(3), "std": np.abs(table(3)) + 1, "W": table(3, 1)}, {"W"},
    ),
    "slopes": (
        LAYER.format("G = PRelu(H, val_1)"), HIDDEN | {"val_1": np.full((1, 1), 0.2, np.float32)}, {*HIDDEN, "val_1"}
    ),
    "gate and temperature": (
        LAYER.format("F = Relu(H) G = Mul(F, gate)"), HIDDEN | {"gate": single(0.3)}, {*HIDDEN, "gate"}
    ),
    "single numbers": (
        LAYER.format("F = Relu(H) E = Mul(F, val_3) G = Add(E, add_7)"),
        HIDDEN | {"val_3": single(2.5), "add_7": single(0.1)}, set(HIDDEN),
    ),
    "names of the older exporter": (
        "H = MatMul(X, M) I = Add(H, B) Y = MatMul(I, N)",
        {"onnx::MatMul_12": table(3, 4), "onnx::Add_13": np.zeros(4, np.float32), "onnx::MatMul_14": table(4, 1)},
        {"onnx::MatMul_12", "onnx::Add_13", "onnx::MatMul_14"},
    ),
    "bias of zeros and ones": (
        "H = MatMul(X, A) I = MatMul(X, C) J = Add(H, I) G = Add(J, B) Y = MatMul(G, W)",
        HIDDEN | {"C": table(3, 4, seed=5), "onnx::Add_2": np.array([0, 0, 1, 1], np.float32)},
        {*HIDDEN, "C", "onnx::Add_2"},
    ),
    "part of a table": (
        "G = Slice(A, zero, four, zero) H = MatMul(X, G) I = Cast <to = 1> (B) J = Add(H, I) Y = MatMul(J, W)",
        {"A": table(3, 4), "B": np.zeros(4, np.float32), "W": table(4, 1)}, {"A", "B", "W"},
    ),
}  # fmt: skip

RENAMED = {"filler": "net/gru/zeros/Const:0", "M": "onnx::MatMul_12", "N": "onnx::MatMul_14"}


@pytest.mark.parametrize("case", CASES)
def test_role_and_name_select_trained_weights(case):
    body, arrays, expected = CASES[case]
    x = SEQUENCE if "axes" in body or "GRU" in body else "float[N, 3] X"
    proto = weighted_model(body, SIZES, x, **arrays)
    renamed = dict(RENAMED, B=next((n for n in ("onnx::Add_13", "onnx::Add_2") if n in arrays), "B"))
    for node in proto.graph.node:
        node.input[:] = [renamed.get(name, name) if renamed.get(name) in arrays else name for name in node.input]
    before = proto.SerializeToString()
    source, _ = trainable_graph_of(GraphModel(proto))
    assert proto.SerializeToString() == before
    assert set(source.parameters) == expected
    assert set(source.roles) == expected
    assert set(source.constants) == set(arrays) - expected


def test_constants_are_no_weights_and_stay_in_the_file():
    body, arrays, expected = CASES["filler of an initial state"]
    X = np.random.default_rng(0).normal(size=(8, 5, 8)).astype(np.float32)
    settings = {"optimizer": SGD(), "learning_rate_init": 0.1, "max_iter": 2, "engine": "portable"}
    proto = weighted_model(body, SIZES, SEQUENCE, **arrays)
    trained = OrtGradientRegressor(proto, **settings).fit(X, X[:, 0, 0])
    assert set(trained.weights_) == expected
    assert all((trained.weights_[name] != arrays[name]).any() for name in expected)
    kept = {t.name: onnx.numpy_helper.to_array(t) for t in trained.to_onnx().graph.initializer}
    assert kept["val_1"] == 0


# Weights that a graph holds elsewhere


@ENGINES
@pytest.mark.parametrize(
    "body",
    ["k = Constant <value = float[3, 1] {1, -2, 3}> () Y = MatMul(X, k)",
     "a = Constant <value_floats = [1.0, -2.0, 3.0]> () k = Unsqueeze(a, last) Y = MatMul(X, k)",
     "a = Constant <value = float[1, 3] {1, -2, 3}> () k = Transpose(a) Y = MatMul(X, k)",
     "a = Constant <value = double[3, 1] {1, -2, 3}> () k = Cast <to = 1> (a) Y = MatMul(X, k)",
     "a = Constant <value = float[3, 1] {1, -2, 3}> () k = Identity(a) Y = MatMul(X, k)",
     "a = Constant <value = float[3] {1, -2, 3}> () k = Reshape(a, shape) Y = MatMul(X, k)"],
)  # fmt: skip
def test_weights_in_constant_nodes_are_trained(body, engine):
    proto = weighted_model(body, "int64[1] last = {1}, int64[2] shape = {3, 1}")
    before = proto.SerializeToString()
    trained = step_of_weights(proto, engine)
    assert proto.SerializeToString() == before
    [(name, array)] = trained.weights_.items()
    assert name == body.split(" =")[0]
    assert_allclose(
        array.ravel(), step_of_weights(weighted_model("Y = MatMul(X, W)"), engine).weights_["W"].ravel(), atol=1e-6
    )
    assert_allclose(first_output(trained.to_onnx(), X=rows()).ravel(), trained.predict(rows()), rtol=1e-6)


def test_bias_in_a_constant_node_is_trained_and_settings_stay():
    body = """b = Constant <value = float[1] {0.5}> () low = Constant <value_float = -9.0> ()
              two = Constant <value_float = 2.0> () H = MatMul(X, W) I = Add(H, b) J = Clip(I, low) Y = Mul(J, two)"""
    source, _ = trainable_graph_of(GraphModel(weighted_model(body)))
    assert set(source.parameters) == {"W", "b"}
    assert set(source.constants) == {"low", "two"}
    assert [n.op_type for n in source.model.graph] == ["Constant", "Constant", "MatMul", "Add", "Clip", "Mul"]


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_narrow_weights_behind_a_cast_are_trained_in_float32(half):
    given = table(3, 1)
    tensor = onnx.helper.make_tensor("W", getattr(onnx.TensorProto, half.upper()), (3, 1), given.ravel())
    proto = weighted_model("k = Cast <to = 1> (W) Y = MatMul(X, k)", "")
    proto.graph.initializer.append(tensor)
    rounded = onnx.numpy_helper.to_array(tensor).astype(np.float32)
    expected = step_of_weights(weighted_model("Y = MatMul(X, W)", "", W=rounded)).weights_["W"]
    trained = step_of_weights(proto)
    narrow = ir.DataType[half.upper()].numpy()
    assert_array_equal(trained.weights_["W"], expected.astype(narrow).astype(np.float32))
    assert trained.weights_["W"].dtype == np.float32


@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("name", ["W_quantized", "W"])
def test_integer_weights_behind_dequantize_train_as_floats(axis, name):
    integers = np.array([[10, -20, 3], [4, 5, -6]], np.int8).T.copy()
    scale = np.array(0.1 if axis is None else [0.1, 0.2, 0.3][: integers.shape[axis]], np.float32)
    zero = np.full(scale.shape, 2, np.int8)
    attribute = "" if axis is None else f"<axis = {axis}>"
    body = f"D = DequantizeLinear {attribute} ({name}, s, z) H = MatMul(X, D) Y = MatMul(H, V)"
    proto = weighted_model(body, "float[2, 1] V = {1, -1}", opset=19, **{name: integers, "s": scale, "z": zero})
    source, _ = trainable_graph_of(GraphModel(proto))
    assert set(source.parameters) == {"W", "V"}
    X = rows()
    expected = ReferenceEvaluator(proto).run(None, {"X": X})[0]  # onnxruntime may compute with integers
    assert_allclose(first_output(to_proto(source.model), X=X), expected, rtol=0, atol=1e-6)
    assert (step_of_weights(proto).weights_["W"] != source.weights()["W"]).all()


def test_weights_in_bodies_are_trained():
    body = """Y = If (yes) <then_branch = t () => (float[N, 1] a) {
                  k = Constant <value = float[3, 1] {1, -2, 3}> () a = MatMul(X, k) },
                  else_branch = e () => (float[N, 1] b) { b = MatMul(X, W) }>"""
    proto = weighted_model(body, "bool yes = {1}")
    branch = next(a.g for a in proto.graph.node[0].attribute if a.name == "else_branch")
    branch.initializer.append(onnx.numpy_helper.from_array(table(3, 1), "W"))
    assert names_of_parameters(proto) == {"k", "W"}
    trained = step_of_weights(proto, "portable")
    assert_allclose(
        trained.weights_["k"], step_of_weights(weighted_model("Y = MatMul(X, W)")).weights_["W"], rtol=0, atol=1e-6
    )
    assert_array_equal(trained.weights_["W"], table(3, 1))


def test_names_that_clash_stay_unique():
    body = """Y = If (yes) <then_branch = t () => (float[N, 1] a) { a = MatMul(X, W) },
                            else_branch = e () => (float[N, 1] b) { b = MatMul(X, W) }>"""
    proto = weighted_model(body, "bool yes = {1}")
    for attribute, seed in zip(proto.graph.node[0].attribute, (1, 2), strict=True):
        attribute.g.initializer.append(onnx.numpy_helper.from_array(table(3, 1, seed=seed), "W"))
    before = proto.SerializeToString()
    source, _ = trainable_graph_of(GraphModel(proto))
    assert proto.SerializeToString() == before
    assert set(source.parameters) == {"W", "W_1"}
    assert_allclose(first_output(to_proto(source.model), X=rows()), first_output(proto, X=rows()))


def test_graphs_of_known_exporters_are_unchanged():
    proto = weighted_model("H = MatMul(X, W) Y = Mul(H, val_3)", val_3=single(2))
    assert set(trainable_model(load(proto)).parameters) == {"W", "val_3"}
    assert set(trainable_model(load(proto), foreign=True).parameters) == {"W"}


# What is selected, and what cannot be trained


def dynamic(tail="Y = Add(P, b)"):
    body = f"""Q, s, z = DynamicQuantizeLinear(X) I = MatMulInteger(Q, W, z) F = Cast <to = 1> (I) t = Mul(s, scale)
               P = Mul(F, t) {tail}"""
    arrays = {"W": np.array([[10], [-20], [3]], np.int8), "scale": single(0.1), "b": np.ones(1, np.float32)}
    return weighted_model(body, "float[1, 1] V = {2}", **arrays)


def test_quantized_graph_with_integers_read_twice_is_refused():
    proto = dynamic("J = Cast <to = 1> (I) O = Mul(J, V) Y = Add(P, b)")
    proto.graph.output.append(onnx.helper.make_tensor_value_info("I", onnx.TensorProto.INT32, ["N", 1]))
    with pytest.raises(ModelError, match=r"quantized: DynamicQuantizeLinear '.*', MatMulInteger .*'b'"):
        step_of_weights(proto)


def test_floats_behind_quantized_body_train_if_named():
    proto = dynamic("H = Add(P, b) Y = MatMul(H, V)")
    trained = step_of_weights(proto, trainable=["V"])
    assert set(trained.weights_) == {"W_1", "b", "V"}
    assert_allclose(trained.weights_["W_1"], [[1], [-2], [0.3]], rtol=1e-6)  # the integers, by their scale
    assert trained.weights_["b"] == 1
    assert trained.weights_["V"] != 2
    every = step_of_weights(proto)
    assert all((every.weights_[name] != trained.weights_[name]).all() for name in ("W_1", "b"))


def test_floats_before_rounding_are_refused_if_named():
    body = (
        """H = MatMul(X, W) Q = QuantizeLinear(H, s, z) I = Identity(Q) D = DequantizeLinear(I, s, z) Y = Mul(D, V)"""
    )
    proto = weighted_model(body, f"{W}, float[1] V = {{2}}, float s = {{0.1}}, uint8 z = {{128}}")
    with pytest.raises(ValueError, match="'W' matches no parameter"):
        step_of_weights(proto, trainable=["W", "V"])
    assert step_of_weights(proto, trainable=["V"]).weights_["V"] != 2
    second = "A = Add(P, b) C, r, o = DynamicQuantizeLinear(A) D = DequantizeLinear(C, r, o) Y = MatMul(D, V)"
    with pytest.raises(ModelError, match=r"quantized: .* Rounding has no gradient.*: 'V'\."):
        step_of_weights(dynamic(second), trainable=["b", "V"])


def test_integer_output_error_names_quantization():
    body = "H = MatMul(X, W) Q = QuantizeLinear(H, s, z) I = Identity(Q) Y = DequantizeLinear(I, s, z)"
    with pytest.raises(ModelError, match=r"quantized: .*QuantizeLinear"):
        step_of_weights(weighted_model(body, f"{W}, float s = {{0.1}}, uint8 z = {{128}}"))


def test_a_constant_is_trained_where_it_is_named():
    proto = weighted_model("H = MatMul(X, W) Y = Mul(H, val_3)", val_3=single(2))
    assert set(step_of_weights(proto).weights_) == {"W"}
    trained = step_of_weights(proto, trainable=["W", "val_3"])
    assert set(trained.weights_) == {"W", "val_3"}
    assert trained.weights_["val_3"] != 2
    assert set(step_of_weights(proto, trainable="*").weights_) == {"W"}


def test_a_constant_is_trained_from_the_call_that_names_it():
    proto = weighted_model("H = MatMul(X, W) Y = Mul(H, val_3)", val_3=single(2))
    X, y = rows(), rows(8, 1, seed=1).ravel()
    trained = OrtGradientRegressor(proto, optimizer=SGD(), learning_rate_init=0.1).partial_fit(X, y)
    before = trained.weights_["W"]
    trained.set_params(trainable=["val_3"]).partial_fit(X, y)
    assert_array_equal(trained.weights_["W"], before)
    assert trained.weights_["val_3"] != 2
    assert_allclose(trained.predict(X), X @ before.ravel() * trained.weights_["val_3"], rtol=1e-5)


def test_a_constant_node_that_is_named_cannot_be_trained():
    proto = weighted_model("two = Constant <value_float = 2.0> () H = MatMul(X, W) Y = Mul(H, two)")
    with pytest.raises(ValueError, match=r"'two' names a constant .*\(a constant in Mul.*Store it"):
        step_of_weights(proto, trainable=["two"])


def test_weights_of_float16_are_not_left_out_silently():
    body = """A = Cast <to = 10> (X) H = MatMul(A, W) B = Cast <to = 1> (H) Y = Add(B, b)"""
    proto = weighted_model(body, "float[1] b = {1}", W=table(3, 1).astype(np.float16))
    assert {entry.name for entry in step_of_weights(proto).describe().of("trained")} == {"W", "b"}


# Declarations


@pytest.mark.parametrize("place", ["input", "value_info"])
@pytest.mark.parametrize(("kind", "shape"), [("FLOAT", [3, 2]), ("FLOAT", [4, 1]), ("FLOAT", [3]), ("DOUBLE", [3, 1])])
def test_a_declaration_that_contradicts_an_initializer_is_named(place, kind, shape):
    proto = weighted_model("Y = MatMul(X, W)")
    info = onnx.helper.make_tensor_value_info("W", getattr(onnx.TensorProto, kind), shape)
    getattr(proto.graph, place).append(info)
    declared = rf"{kind}\[{','.join(map(str, shape))}\]"
    with pytest.raises(ModelError, match=rf"declares 'W' as {declared}, but its initializer is FLOAT\[3,1\]"):
        step_of_weights(proto)


@pytest.mark.parametrize("shape", [[3, 1], ["rows", 1]])
def test_initializers_among_the_inputs_are_weights_and_no_data(shape):
    proto = weighted_model("Y = MatMul(X, W)")
    proto.graph.input.append(onnx.helper.make_tensor_value_info("W", onnx.TensorProto.FLOAT, shape))
    trained = step_of_weights(proto)
    assert_array_equal(trained.weights_["W"], step_of_weights(weighted_model("Y = MatMul(X, W)")).weights_["W"])
    assert [value.name for value in trained.to_onnx().graph.input] == ["X"]

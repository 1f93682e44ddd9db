"""The border: what is taken for a model, what is refused and why, and what of a graph is trained."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import pytest

from onnxtrain_sklearn import GraphModel
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.data import rows
from tests.helpers.graphs import W, from_file, model, operator_types, trainable
from tests.helpers.training import one_step


def trained(form):
    """Return an estimator that took a step from a model, at a rate of zero."""
    return one_step(form, rows(), rows(8, 1).ravel(), 0.0)


def test_forms_of_a_model(tmp_path):
    proto = model()
    onnx.save(proto, tmp_path / "net.onnx")
    forms = [proto, proto.SerializeToString(), tmp_path / "net.onnx", str(tmp_path / "net.onnx")]
    for form in forms:
        np.testing.assert_array_equal(trained(form).weights_["W"], [[1], [-2], [3]])


def test_weights_in_files_beside_the_model(tmp_path):
    path, proto = tmp_path / "net.onnx", model()
    proto.graph.initializer[0].raw_data = np.array([1, -2, 3], np.float32).tobytes()
    proto.graph.initializer[0].ClearField("float_data")
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    np.testing.assert_array_equal(trained(path).weights_["W"], [[1], [-2], [3]])
    (tmp_path / "weights.bin").write_bytes(b"12")
    with pytest.raises(ModelError, match=r"'W'.* cannot be read: the file 'weights.bin' has 2 bytes.* ends at byte 12"):
        trained(path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelError, match=r"'W'.* cannot be read: there is no file 'weights.bin' in .*Put it there"):
        trained(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"hello world, this is a text\n" * 9, b'{"a": 1}', pickle.dumps([1, 2]), np.arange(10.0).tobytes()],
    ids=["empty", "text", "json", "pickle", "numbers"],
)
def test_inputs_other_than_models_are_refused(content, tmp_path):
    with pytest.raises(ModelError, match=r"There is no ONNX (model|graph).* in the bytes"):
        trained(content)
    (tmp_path / "net.onnx").write_bytes(content)
    with pytest.raises(ModelError, match=r"There is no ONNX (model|graph).* in the file '.*net.onnx'.* truncated"):
        trained(tmp_path / "net.onnx")


def test_truncated_model():
    content = model(body="H = MatMul(X, W) Y = Tanh(H)").SerializeToString()
    for length in range(len(content)):
        with pytest.raises(ModelError, match="truncated"):
            trained(content[:length])


def test_no_file(tmp_path):
    for path in (tmp_path / "missing.onnx", tmp_path):
        with pytest.raises(ModelError, match=f"There is no file '{path}'"):
            trained(path)


@pytest.mark.parametrize("proto", [onnx.ModelProto(), model(body="", y="float[N, 3] X"), model(y="")], ids=str)
def test_graph_without_nodes_or_outputs(proto):
    with pytest.raises(ModelError, match="no ONNX graph with nodes and outputs in the ModelProto"):
        trained(proto)


def test_invalid_graph():
    with pytest.raises(ModelError, match=r"The ONNX graph is not valid: .*Nonsense"):
        trained(model("Y = Nonsense(X, W)"))


def test_sparse_initializers_are_refused():
    values = onnx.helper.make_tensor("W", onnx.TensorProto.FLOAT, [1], [1.0])
    indices = onnx.helper.make_tensor("indices", onnx.TensorProto.INT64, [1], [2])
    proto = model(weights="")
    proto.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, indices, [3, 1]))
    with pytest.raises(ModelError, match="sparse initializers"):
        trained(proto)


def test_reserved_names():
    for proto in (model('"onnxtrain/h" = Relu(X) Y = MatMul("onnxtrain/h", W)'), model()):
        proto.graph.node[0].output[0] = "onnxtrain/y"
        proto.graph.node[-1].input[0] = "onnxtrain/y" if len(proto.graph.node) > 1 else "X"
        proto.graph.output[0].name = proto.graph.node[-1].output[0]
        with pytest.raises(ModelError, match="names that begin with 'onnxtrain/' are reserved"):
            trained(proto)


@pytest.mark.parametrize("ir_version", [3, 8])
def test_initializers_listed_as_inputs(ir_version):
    proto = model(ir_version=ir_version)
    proto.graph.input.append(onnx.helper.make_tensor_value_info("W", onnx.TensorProto.FLOAT, [3, 1]))
    fitted = trained(proto)
    assert list(fitted.weights_) == ["W"]
    assert [value.name for value in fitted.to_onnx().graph.input] == ["X"]


def test_every_node_gets_unique_name():
    proto = model("A = Relu(X) B = Relu(A) C = Tanh(B) D = Tanh(C) E = Tanh(D) Y = MatMul(E, W)")
    for node, name in zip(proto.graph.node, ["", "same", "same", "", "Tanh_0", "same_0"], strict=True):
        node.name = name
    names = [node.name for node in from_file(proto).model.graph]
    assert len(set(names)) == len(names)
    assert "" not in names
    assert names[1] == "same"


@pytest.mark.parametrize(
    ("body", "weights", "expected"),
    [
        ("H = Pow(X, p) Y = MatMul(H, W)", "float p = {2}", ["W"]),
        ("H = Pow(p, X) Y = MatMul(H, W)", "float p = {2}", ["W", "p"]),
        ("H = Clip(X, p, q) Y = MatMul(H, W)", "float p = {-1}, float q = {1}", ["W"]),
        ("H = Clip(X, , p) Y = MatMul(H, W)", "float p = {1}", ["W"]),
        ("M = MatMul(X, W) Y = Max(M, p)", "float[1] p = {1}", ["W"]),
        ("M = MatMul(X, W) Y = Min(p, M)", "float p = {1}", ["W"]),
        ("M = MatMul(X, W) Y = Max(M, p)", "float[1, 1] p = {1}", ["W", "p"]),
        ("M = MatMul(X, W) C = IsNaN(M) Y = Where(C, p, M)", "float p = {1}", ["W"]),
        ("M = MatMul(X, W) C = IsNaN(M) Y = Where(C, p, M)", "float[1] p = {1}", ["W", "p"]),
        ("M = MatMul(X, W) S = Add(M, p) Y = Sqrt(S)", "float p = {0.00001}", ["W"]),
        ("M = MatMul(X, W) S = Add(p, M) Y = Div(X, S)", "float[1] p = {0.00001}", ["W"]),
        ("M = MatMul(X, W) S = Add(M, p) Y = Div(S, X)", "float p = {0.00001}", ["W", "p"]),
        ("M = MatMul(X, W) S = Add(M, p) Y = Sqrt(S)", "float p = {0.1}", ["W", "p"]),
        ("M = MatMul(X, W) S = Add(M, p) Y = Neg(S)", "float p = {0.00001}", ["W", "p"]),
        ("H = Dropout(X, p) Y = MatMul(H, W)", "float p = {0.5}", ["W"]),
        (
            "H = BatchNormalization(X, s, s, m, v) Y = MatMul(H, W)",
            "float[3] s = {1, 2, 3}, float[3] m = {0, 0, 0}, float[3] v = {1, 1, 1}",
            ["W", "s"],
        ),
        ("H = MatMul(X, W) Y = Pad(H, pads, p)", "int64[4] pads = {0, 0, 0, 0}, float p = {0.5}", ["W"]),
        ("c = Constant <value = float[3] {1, 2, 3}> () H = Add(X, c) Y = MatMul(H, W)", "", ["W"]),
        ("s = Cast <to = 1> (k) H = Mul(X, s) Y = MatMul(H, W)", "int64[1] k = {2}", ["W"]),
        ("d = DequantizeLinear(k, s) H = Mul(X, d) Y = MatMul(H, W)", "int8[3] k = {1, 2, 3}, float s = {0.1}", ["W"]),
        ("H = MatMul(X, W) T = Transpose(W) G = MatMul(H, T) Y = MatMul(G, W)", "", ["W"]),
        ("H = Pow(X, p) G = Mul(H, p) Y = MatMul(G, W)", "float p = {2}", ["W", "p"]),
        ("H = MatMul(X, W) u = Identity(p) Y = Tanh(H)", "float p = {2}", ["W"]),
        ("i = Cast <to = 7> (p) f = Cast <to = 1> (i) H = Mul(X, f) Y = MatMul(H, W)", "float p = {2}", ["W"]),
        ("H = MatMul(X, W) Y = Add(H, p)", "float[0] p = {}", ["W"]),
    ],
)
def test_parameters_are_chosen_by_their_role(body, weights, expected):
    found = trainable(body, weights=f"{W}{', ' if weights else ''}{weights}")
    assert sorted(found.parameters) == expected


def test_running_statistics():
    weights = "float[3] s = {1, 1, 1}, float[3] b = {0, 0, 0}, float[3] m = {0, 1, 2}, float[3] v = {1, 1, 1}"
    found = trainable("H = BatchNormalization(X, s, b, m, v) Y = MatMul(H, W)", weights=f"{W}, {weights}")
    assert (found.parameters, found.statistics) == (("W", "s", "b"), ("m", "v"))
    np.testing.assert_array_equal(found.weights()["m"], [0, 1, 2])


def test_running_statistics_that_batches_move():
    weights = "float[3] s = {1, 1, 1}, float[3] b = {0, 0, 0}, float[3] m = {0, 1, 2}"
    body = "H, m2, v2 = BatchNormalization <training_mode = 1> (X, s, b, m, m) Y = MatMul(H, W)"
    found = trainable(body, weights=f"{W}, {weights}")
    assert (found.parameters, found.statistics) == (("W", "s", "b"), ("m", "m/BatchNormalization_0"))
    assert found.running_statistics == {"m": "m2", "m/BatchNormalization_0": "v2"}
    assert found.with_frozen_statistics(["W", "b"]) is found
    assert not found.with_frozen_statistics(["W"]).running_statistics
    assert found.running_statistics


@pytest.mark.parametrize(
    ("graph", "listed"),
    [
        (("Y = Neg(X)", "float[N, 3] X", "float[N, 3] Y", "int64[2] k = {1, 2}"), r"'Y' \(FLOAT\).*'k' \(INT64\)"),
        (
            ("w = Constant <value = float[3, 1] {1, 2, 3}> () Y = MatMul(X, w)", "float[N, 3] X", "float[N, 1] Y", ""),
            "none",
        ),
        (
            (
                "d = DequantizeLinear(k, s) Y = MatMul(X, d)",
                "float[N, 3] X",
                "float[N, 1] Y",
                "int8[3, 1] k = {1, 2, 3}, float s = {1}",
            ),
            r"'k' \(INT8\), 's' \(FLOAT\)",
        ),
        (("Y = MatMul(X, W)", "int64[N, 3] X", "int64[N, 1] Y", "int64[3, 1] W = {1, 2, 3}"), r"'Y' \(INT64\)"),
        (("Y = MatMul(X, W)", "float16[N, 3] X", "float16[N, 1] Y", "float16[3, 1] W = {1, 2, 3}"), r"'W' \(FLOAT16\)"),
        (("Y = MatMul(X, W)", "float[N, 3] X", "float[3, 1] W", W), r"Outputs: 'W' \(FLOAT\)"),
    ],
)
def test_no_float_parameter(graph, listed):
    body, x, y, weights = graph
    with pytest.raises(ModelError, match=rf"no parameter to train.*{listed}.*must be float32 or float64 initializers"):
        trainable(body, x=x, y=y, weights=weights)


def test_named_output_without_parameter():
    with pytest.raises(ModelError, match=r"Output 'Z' depends on no float parameter. Initializers .*'W' \(FLOAT\)"):
        trainable("Z = Neg(X) Y = MatMul(X, W)", y="float[N, 3] Z, float[N, 1] Y", output="Z")


def test_unknown_output():
    with pytest.raises(ModelError, match=r"output='score' .*Did you mean 'scores'\? Valid names: 'other', 'scores'"):
        trainable("scores = MatMul(X, W) other = Neg(X)", y="float[N, 1] scores, float[N, 3] other", output="score")


def test_mixed_types_are_refused():
    body = "H = MatMul(X, W) D = Cast <to = 11> (H) E = Add(D, b) Y = Cast <to = 1> (E)"
    with pytest.raises(ModelError, match="mixes float32 and float64"):
        trainable(body, weights=f"{W}, double[1] b = {{1}}")


@pytest.mark.parametrize(
    ("body", "y", "expected"),
    [
        ("L = ArgMax <axis = 1> (Y) Y = MatMul(X, W)", "int64[N, 1] L, float[N, 1] Y", "Y"),
        ("Y = MatMul(X, W)", "float[N, 3] X, float[N, 1] Y", "Y"),
        ("Y = MatMul(X, W)", "float[3, 1] W, float[N, 1] Y", "Y"),
        ("Z = Neg(X) Y = MatMul(X, W)", "float[N, 3] Z, float[N, 1] Y", "Y"),
        ("Y = MatMul(X, W) Z = Neg(Y)", "float[N, 1] Y, float[N, 1] Z", "Y"),
        ("Y = MatMul(X, W) Z = Neg(Y)", "float[N, 1] Z, float[N, 1] Y", "Z"),
        ("Y = MatMul(X, W) S = SequenceConstruct(Y)", "seq(float[N, 1]) S, float[N, 1] Y", "Y"),
    ],
)
def test_trained_output(body, y, expected):
    proto = model(body, y=y)
    if proto.graph.node[0].op_type == "ArgMax":
        proto.graph.node.reverse()
    assert from_file(proto).output == expected


def test_only_the_way_to_the_output_is_kept():
    proto = model(
        "Z = MatMul(X, W) P = Sigmoid(Z) L = ai.onnx.ml.Binarizer(Q) H = Mul(U, V)",
        more=(', "ai.onnx.ml": 3', ""),
        x="float[N, 3] X, float[N, 2] U, float[N, 3] Q",
        y="float[N, 3] L, float[N, 1] P, float[N, 2] H",
        weights=f"{W}, float[1, 2] V = {{1, 2}}",
    )
    fitted = trained(GraphModel(proto, "P"))
    exported = fitted.to_onnx()
    assert operator_types(exported.graph.node)[:2] == ["MatMul", "Sigmoid"]
    assert not {"Binarizer", "Mul"} & {*operator_types(exported.graph.node)}
    assert ([value.name for value in exported.graph.input], list(fitted.weights_)) == (["X"], ["W"])
    assert [entry.domain for entry in exported.opset_import] == [""]


@pytest.mark.parametrize(
    ("opset", "body", "y", "link"),
    [
        (18, "Y = Softmax(H)", "float[N, 1] Y", "softmax"),
        (18, "Y = Softmax <axis = 1> (H)", "float[N, 1] Y", "softmax"),
        (18, "Y = Softmax <axis = 0> (H)", "float[N, 1] Y", None),
        (11, "Y = Softmax(H)", "float[N, 1] Y", "softmax"),
        (12, "Y = LogSoftmax(H)", "float[N, 1] Y", "softmax"),
        (12, "Y = Softmax <axis = 0> (H)", "float[N, 1] Y", None),
        (13, "Y = LogSoftmax(H)", "float[N, 1] Y", "softmax"),
        (18, "Y = Sigmoid(H)", "float[N, 1] Y", "sigmoid"),
        (18, "Y = Exp(H)", "float[N, 1] Y", "exp"),
        (18, "P = Sigmoid(H) I = Identity(P) Y = Identity(I)", "float[N, 1] Y", "sigmoid"),
        (18, "Y = Tanh(H)", "float[N, 1] Y", None),
        (18, "P = Sigmoid(H) Y = Neg(P)", "float[N, 1] Y", None),
        (18, "U = Unsqueeze(H, axes) Y = Softmax(U)", "float[N, 1, 1] Y", "softmax"),
        (18, "S = Squeeze(H, axes) Y = Sigmoid(S)", "float[N] Y", "sigmoid"),
        (18, "S = Squeeze(H, axes) Y = Softmax(S)", "float[N] Y", None),
    ],
)
def test_final_activation(opset, body, y, link):
    found = trainable(f"H = MatMul(X, W) {body}", opset=opset, y=y, weights=f"{W}, int64[1] axes = {{1}}")
    assert (found.output, found.link, found.log_output) == ("Y", link, "LogSoftmax" in body)
    assert (found.scores == "Y") is (link is None)
    assert found.ignoring_activation().scores == "Y"


@pytest.mark.parametrize(
    ("ending", "seen_through"),
    [
        ("P = Sigmoid(H) Q = Sub(one, P) Y = Concat <axis = 1> (Q, P)", True),
        ("P = Sigmoid(H) Q = Sub(one, P) Y = Concat <axis = -1> (Q, P)", True),
        ("P = Sigmoid(H) Q = Sub(one, P) Y = Concat <axis = 0> (Q, P)", False),
        ("P = Sigmoid(H) Q = Sub(one, P) Y = Concat <axis = 1> (P, Q)", True),
        ("P = Sigmoid(H) Q = Sub(two, P) Y = Concat <axis = 1> (Q, P)", False),
        ("P = Sigmoid(H) Q = Sub(P, one) Y = Concat <axis = 1> (Q, P)", False),
        ("P = Sigmoid(H) M = Neg(H) Q = Sigmoid(M) Y = Concat <axis = 1> (Q, P)", True),
        ("P = Sigmoid(H) M = Neg(P) Q = Sigmoid(M) Y = Concat <axis = 1> (Q, P)", False),
        ("P = Sigmoid(H) M = Abs(H) Q = Sigmoid(M) Y = Concat <axis = 1> (Q, P)", False),
        ("P = Tanh(H) M = Neg(H) Q = Sigmoid(M) Y = Concat <axis = 1> (Q, P)", False),
        ("P = Tanh(H) Q = Sub(one, P) Y = Concat <axis = 1> (Q, P)", False),
        ("P = Sigmoid(H) Q = Sub(one, P) Y = Concat <axis = 1> (Q, P, P)", False),
    ],
)
def test_two_columns_of_a_binary_classifier(ending, seen_through):
    weights = f"{W}, float one = {{1}}, float two = {{2}}"
    found = trainable(f"H = MatMul(X, W) {ending}", y="float[N, 2] Y", weights=weights)
    assert (found.output, found.paired) == ("Y", seen_through)
    assert (found.scores, found.link) == ((found.scores, "sigmoid") if seen_through else ("Y", None))
    assert found.scores in ("H", "scores/Neg", "Y")

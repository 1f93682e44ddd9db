"""Broken and hostile graphs: whatever is wrong with one, the answer is a ModelError that says what."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.external_data_helper
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import OrtGradientRegressor, gradient_graph
from onnxtrain_sklearn._importers.load import load
from onnxtrain_sklearn._ort import sessions as ort_sessions
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.environment import each_engine
from tests.helpers.hostile import X, fit_once, net, refused

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@each_engine
def test_a_graph_without_inputs(engine):
    model = net("Y = MatMul(c, W)", x="", c=np.ones((1, 3), np.float32))
    refused(model, "depends on no input of the graph", engine=engine)


def test_a_zip_map_without_outputs():
    model = net("Y = MatMul(X, W)", domains=', "ai.onnx.ml": 3')
    model.graph.node.add(op_type="ZipMap", domain="ai.onnx.ml", input=["Y"])
    refused(model, "not valid")


def test_a_node_without_its_subgraph():
    model = net(
        "H = MatMul(X, W)  Y = If(yes) <then_branch = g () => (float[N,1] Z) { Z = Neg(H) }>", yes=np.array(True)
    )
    refused(model, "not valid: .*else_branch|If.*subgraph")
    with pytest.raises(ModelError):
        gradient_graph(model, wrt="W", of="Y")


def test_functions_without_an_opset():
    functions = '<domain: "own", opset_import: ["": 18]> f (x) => (z) { z = Neg(x) }'
    model = net("H = own.f(X) Y = MatMul(H, W)", domains=', "own": 1', functions=functions)
    del model.opset_import[1:]
    refused(model, "local functions cannot be inlined: .*own")


def test_batch_statistics_that_are_not_returned():
    """onnxruntime-training ends the process where the next mean is left out."""
    numbers = {name: np.ones(3, np.float32) for name in "sbmv"}
    model = net("H, m2, v2 = BatchNormalization <training_mode = 1> (X, s, b, m, v) Y = MatMul(H, W)", **numbers)
    model.graph.node[0].output[1] = ""
    refused(model, "must have three outputs")


SPLIT = "Split <num_outputs = 1> (W)"
NESTED = f"H = If (yes) <then_branch = g () => (A) {{ A, B = {SPLIT} }}, else_branch = e () => (C) {{ C = Neg(W) }}>"


@pytest.mark.parametrize(
    ("node", "match"),
    [
        ("H = GatherND <batch_dims = -2> (W, i)", "batch_dims=-2 must not be negative"),
        ("H = LayerNormalization <axis = 9223372036854775807> (W, s)", "its axis is 922.*, .* at most 32"),
        (f"H, G = {SPLIT}", "num_outputs=1, but it has 2 outputs"),
        (NESTED, "num_outputs=1"),
    ],
)  # fmt: skip
def test_nodes_that_shape_inference_does_not_survive(node, match):
    """It ends the process for each of them."""
    numbers = {"i": np.zeros((4, 1), np.int64), "s": np.ones(1, np.float32), "yes": np.array(True)}
    model = net(f"{node} Y = MatMul(X, H)", **numbers)
    refused(model, rf"Node '.*' \(.*\) is not valid: .*{match}")
    with pytest.raises(ModelError, match=match):
        gradient_graph(model, wrt="W", of="Y")


@pytest.mark.parametrize("name", ["rho", "coefficients", "support_vectors", "vectors_per_class", "prob_a"])
def test_lists_of_a_support_vector_machine_that_do_not_fit(name):
    """onnxruntime's kernel reads behind their ends, and ends the process."""
    machine = {"classlabels_ints": [0, 1], "coefficients": [1.0, -1.0], "kernel_type": "LINEAR", "prob_a": [1.0]}
    machine |= {"prob_b": [0.0], "rho": [0.0], "support_vectors": [1.0] * 6, "vectors_per_class": [1, 1]}
    model = net("L, S = ai.onnx.ml.SVMClassifier(X)", out="int64[N] L, float[N,2] S", domains=', "ai.onnx.ml": 3')
    model.graph.node[0].attribute.extend(onnx.helper.make_attribute(k, v) for k, v in machine.items())
    assert load(model)
    del model.graph.node[0].attribute[:]
    machine[name] = machine[name] + machine[name][:1]
    model.graph.node[0].attribute.extend(onnx.helper.make_attribute(k, v) for k, v in machine.items())
    refused(model, r"\(SVMClassifier\) is not valid: .* does not fit the others")


@each_engine
def test_dangerous_graph_is_loaded_in_a_child_first(engine):
    """Releases differ: 1.19 ends the process, later ones raise an error."""
    body = "C = Conv <pads = [1, 1, 1, 1]> (X, K) F = Flatten(C) Y = MatMul(F, W)"
    model = net(body, x="float[N,2,3] X", K=np.ones((1, 2, 3, 3), np.float32))
    with pytest.raises(ModelError, match=r"does not survive loading the graph: .*Conv|Conv"):
        OrtGradientRegressor(model, max_iter=1, engine=engine).fit(np.ones((4, 2, 3), np.float32), np.ones(4))


@pytest.mark.parametrize(("program", "alive"), [("raise ValueError", True), ("import os; os.abort()", False)])
def test_child_process_decides_whether_a_model_survives_loading(program, alive, monkeypatch):
    monkeypatch.setattr(ort_sessions, "_IN_CHILD", program)
    assert ort_sessions.survives_loading(b"") is alive


@pytest.mark.slow
def test_graphs_that_are_right_need_no_child_process(monkeypatch):
    asked = []
    monkeypatch.setattr(ort_sessions, "survives_loading", lambda model: not asked.append(model))
    for path in sorted((Path(__file__).parents[1] / "files").glob("*.onnx")):
        load(path)
    assert not asked
    kernel = np.ones((1, 2, 3, 3), np.float32)
    load(net("C = Conv(X, K) F = Flatten(C) Y = MatMul(F, W)", x="float[N,2,3] X", K=kernel))
    assert len(asked) == 1


def test_a_type_that_onnx_ir_lacks():
    model = net()
    model.graph.input[0].type.map_type.key_type = onnx.TensorProto.INT64
    refused(model, "not valid")
    with pytest.raises(ModelError):
        gradient_graph(model, wrt="W")


@pytest.mark.parametrize("dims", [(3, 2), (4,), (70,), (2**40, 2**40), (-1, 3), (0, 3), (1,) * 70])
def test_an_initializer_whose_bytes_and_shape_disagree(dims):
    model = net()
    model.graph.initializer[0].dims[:] = dims
    refused(model, r"not valid: .*W|'W'.* axes|'W'.* negative|bytes up to 'W'|'W' holds 12 bytes")


@each_engine
def test_unread_bytes_are_checked(engine):
    model = net("D = Dropout(X, ratio) H = MatMul(D, W) Y = ReduceSum <keepdims = 0> (H)", out="float Y")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0.5), "ratio"))
    model.graph.initializer[-1].raw_data *= 3
    with pytest.raises(ModelError, match=r"'ratio' holds 12 bytes, but its shape \(\) and type need 4"):
        gradient_graph(model, wrt="W", engine=engine)


@pytest.mark.parametrize(("gates", "operator"), [(4, "LSTM"), (3, "GRU"), (1, "RNN")])
@pytest.mark.parametrize("wrong", ["W", "R", "B"])
def test_weights_of_a_recurrence_that_do_not_fit(operator, gates, wrong):
    """onnxruntime-training does not survive some of them."""
    sizes = {"W": (1, 2 * gates, 3), "R": (1, 2 * gates, 2), "B": (1, 4 * gates)}
    sizes[wrong] = tuple(n + 1 for n in sizes[wrong])
    model = net(
        f"S = Unsqueeze(X, first) Z, H = {operator} <hidden_size = 2> (S, W_, R, B) Y = Squeeze(H, both)",
        out="float[N,2] Y",
        first=np.array([0]),
        both=np.array([0]),
        W_=np.ones(sizes["W"], np.float32),
        R=np.ones(sizes["R"], np.float32),
        B=np.ones(sizes["B"], np.float32),
    )
    refused(model, rf"\({operator}\) is not valid: its input {wrong} has the shape .*, and hidden_size=2 needs \(\?, ")


@each_engine
def test_a_size_of_minus_one_is_not_fixed(engine):
    given, usual = net(x="float[N,3] X"), net()
    for size in given.graph.input[0].type.tensor_type.shape.dim:
        size.dim_value = -1
    given.graph.output[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert_array_equal(fit_once(given, engine=engine).weights_["W"], fit_once(usual, engine=engine).weights_["W"])


@pytest.mark.parametrize("kind", [0, 8, 16, 23, 999, 2**31 - 1])
def test_an_initializer_of_another_type(kind):
    model = net()
    model.graph.initializer[0].data_type = kind
    with pytest.raises(ModelError):
        fit_once(model)


@each_engine
def test_initializers_may_all_be_inputs(engine):
    model = net(
        "H = Gemm(X, V, b) T = Tanh(H) Y = MatMul(T, W)", V=np.eye(3, dtype=np.float32), b=np.zeros(3, np.float32)
    )
    for tensor in model.graph.initializer:
        model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    model.ir_version = 3
    trained = fit_once(model, engine=engine)
    onnx.checker.check_model(trained.to_onnx())
    assert [v.name for v in trained.to_onnx().graph.input] == ["X"]
    scalar = net("H = MatMul(X, W) Y = ReduceSum <keepdims = 0> (H)", out="float Y")
    scalar.graph.input.append(onnx.helper.make_tensor_value_info("W", onnx.TensorProto.FLOAT, [3, 1]))
    graph = gradient_graph(scalar, wrt="W", engine=engine)
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    assert_allclose(session.run(["W_grad"], {"X": X})[0], X.sum(axis=0)[:, None], rtol=1e-6)


@each_engine
@pytest.mark.parametrize("body", ["H = MatMul(X, W) Y = Add(H, W_grad)", "W_grad = MatMul(X, W) Y = Neg(W_grad)"])
def test_a_value_called_like_a_gradient(engine, body):
    more = {} if "W_grad =" in body else {"W_grad": np.ones(1, np.float32)}
    refused(
        net(body, **more), "already has a value named 'W_grad', as the gradient of 'W' is; rename it", engine=engine
    )


@each_engine
def test_declared_shapes_that_contradict_inferred_ones(engine):
    right = net("H = MatMul(X, W) Y = ReduceSum <keepdims = 0> (H)", out="float Y")
    wrong = net("H = MatMul(X, W) Y = ReduceSum <keepdims = 0> (H)", out="float Y")
    wrong.graph.value_info.append(onnx.helper.make_tensor_value_info("H", onnx.TensorProto.FLOAT, ["N"]))
    graphs = [gradient_graph(model, wrt="W", engine=engine) for model in (right, wrong)]
    sessions = [onnxruntime.InferenceSession(g.SerializeToString(), providers=["CPUExecutionProvider"]) for g in graphs]
    assert_array_equal(*(session.run(["W_grad"], {"X": X})[0] for session in sessions))


def test_a_declared_number_of_rows_is_not_believed():
    model = load(net("H = Relu(X) Y = MatMul(H, W)", out="float[2147483647,1] Y"))
    assert [str(d) for d in model.graph.outputs[0].shape] == ["N", "1"]

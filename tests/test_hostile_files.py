"""Broken and hostile models: whatever is wrong with one, the answer is a ModelError that says what."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnx.external_data_helper
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import onnxruntime
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import LogisticRegression, Ridge

from onnxtrain_sklearn import OrtGradientClassifier, OrtGradientRegressor, gradient_graph
from onnxtrain_sklearn._graph.protobuf import load
from onnxtrain_sklearn._runtime import loading
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.engines import each_engine

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

rng = np.random.RandomState(0)
X = rng.normal(size=(8, 3)).astype(np.float32)
y = rng.normal(size=8)


def net(body="Y = MatMul(X, W)", x="float[N,3] X", out="float[N,1] Y", domains="", functions="", opset=18, **more):
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}{domains}]> net ({x}) => ({out}) {{ {body} }} {functions}'
    )
    for name, array in ({"W": np.array([[1.0], [-2], [3]], np.float32)} | more).items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return model


def fit(model, kind=OrtGradientRegressor, **settings):
    return kind(model, max_iter=1, batch_size=4, random_state=0, **settings).fit(X, y)


def refused(model, match, **settings):
    with pytest.raises(ModelError, match=match):
        fit(model, **settings)


# --- graphs that lack something ---


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
def test_a_graph_that_onnxruntime_may_not_survive_is_loaded_in_a_child_first(engine):
    """Releases differ: 1.19 ends the process, later ones raise an error."""
    body = "C = Conv <pads = [1, 1, 1, 1]> (X, K) F = Flatten(C) Y = MatMul(F, W)"
    model = net(body, x="float[N,2,3] X", K=np.ones((1, 2, 3, 3), np.float32))
    with pytest.raises(ModelError, match=r"does not survive loading the graph: .*Conv|Conv"):
        OrtGradientRegressor(model, max_iter=1, engine=engine).fit(np.ones((4, 2, 3), np.float32), np.ones(4))


@pytest.mark.parametrize(("program", "alive"), [("raise ValueError", True), ("import os; os.abort()", False)])
def test_what_a_child_process_tells(program, alive, monkeypatch):
    monkeypatch.setattr(loading, "_IN_CHILD", program)
    assert loading.survives_loading(b"") is alive


def test_graphs_that_are_right_need_no_child_process(monkeypatch):
    asked = []
    monkeypatch.setattr(loading, "survives_loading", lambda model: not asked.append(model))
    for path in sorted((Path(__file__).parent / "data").glob("*.onnx")):
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


# --- initializers ---


@pytest.mark.parametrize("dims", [(3, 2), (4,), (70,), (2**40, 2**40), (-1, 3), (0, 3), (1,) * 70])
def test_an_initializer_whose_bytes_and_shape_disagree(dims):
    model = net()
    model.graph.initializer[0].dims[:] = dims
    refused(model, r"not valid: .*W|'W'.* axes|'W'.* negative|bytes up to 'W'|'W' holds 12 bytes")


@each_engine
def test_bytes_that_no_gradient_reads_are_checked_too(engine):
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
    assert_array_equal(fit(given, engine=engine).weights_["W"], fit(usual, engine=engine).weights_["W"])


@pytest.mark.parametrize("kind", [0, 8, 16, 23, 999, 2**31 - 1])
def test_an_initializer_of_another_type(kind):
    model = net()
    model.graph.initializer[0].data_type = kind
    with pytest.raises(ModelError):
        fit(model)


@each_engine
def test_all_initializers_are_inputs_too(engine):
    model = net(
        "H = Gemm(X, V, b) T = Tanh(H) Y = MatMul(T, W)", V=np.eye(3, dtype=np.float32), b=np.zeros(3, np.float32)
    )
    for tensor in model.graph.initializer:
        model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    model.ir_version = 3
    trained = fit(model, engine=engine)
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


# --- files ---


@pytest.mark.parametrize("ending", ["json", "textproto", "onnxtxt", "onnx"])
@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe\0", b'{"graph": 3}', b"graph { node { op_tyqe: 1 } }", b"[" * 10000]
)
def test_junk_in_every_format(ending, content, tmp_path):
    path = tmp_path / f"net.{ending}"
    path.write_bytes(content)
    refused(path, rf"(There is no ONNX (model|graph).*net\.{ending}')|(imports no opset)")


@pytest.mark.filterwarnings("ignore:The onnxtxt format is experimental")
@pytest.mark.parametrize("ending", ["json", "textproto", "onnxtxt", "onnx"])
def test_every_format_is_read(ending, tmp_path):
    onnx.save(net(), tmp_path / f"net.{ending}")
    assert_array_equal(fit(tmp_path / f"net.{ending}").weights_["W"], fit(net()).weights_["W"])


@pytest.mark.parametrize("path", ["n" * 5000, "net\0.onnx", "", "/", "/dev/zero", "/proc/self/mem"])
def test_paths_that_are_no_file(path):
    refused(path, r"There is no (file|ONNX model)|cannot be read")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read all files")
def test_a_file_that_may_not_be_read(tmp_path):
    path = tmp_path / "net.onnx"
    onnx.save(net(), path)
    path.chmod(0)
    refused(path, "cannot be (read|parsed).*PermissionError")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "net.onnx")
    refused(tmp_path / "net.onnx", "There is no file")


# --- weights beside the file ---


def saved(folder: Path, **entries: object) -> Path:
    """Return the path of a model with two weights in a file beside it; ``entries`` say where the second one is."""
    model = net("H = Mul(X, V) Y = MatMul(H, W)", V=np.ones(3, np.float32))
    onnx.external_data_helper.convert_model_to_external_data(model, location="weights.bin", size_threshold=0)
    onnx.save(model, folder / "net.onnx")
    model = onnx.load(folder / "net.onnx", load_external_data=False)
    tensor = model.graph.initializer[1]
    if "dims" in entries:
        tensor.dims[:] = entries.pop("dims")
    known = {entry.key: entry.value for entry in tensor.external_data} | {k: str(v) for k, v in entries.items()}
    del tensor.external_data[:]
    for key, value in known.items():
        if value != "None":
            tensor.external_data.add(key=key, value=value)
    (folder / "net.onnx").write_bytes(model.SerializeToString())
    return folder / "net.onnx"


def test_weights_beside_the_file_are_read(tmp_path):
    assert_array_equal(fit(saved(tmp_path)).weights_["V"].shape, (3,))


@pytest.mark.parametrize(
    ("entries", "match"),
    [
        ({"offset": -1}, "offset is '-1', which is no number"),
        ({"offset": "x"}, "offset is 'x'"),
        ({"offset": 2**63}, "cannot be read"),
        ({"offset": 10**30}, "offset is '1000000"),
        ({"offset": 4}, "overlap"),
        ({"length": -1}, "length is '-1'"),
        ({"length": 2**40}, r"length is 1,099,511,627,776 bytes, and its shape and type take 12"),
        ({"length": 8}, "length is 8 bytes"),
        ({"length": 2**40, "dims": [2**38]}, "more than the limit tensor_bytes"),
        ({"dims": [2**30], "length": 2**32}, "cannot be read"),
        ({"location": ""}, "cannot be read"),
        ({"location": "n" * 5000}, "cannot be read"),
        ({"location": "a\0b"}, "cannot be read"),
        ({"location": "."}, "cannot be read"),
    ],
)
def test_places_of_weights_that_make_no_sense(entries, match, tmp_path):
    refused(saved(tmp_path, **entries), match)


@pytest.mark.skipif(os.name != "posix", reason="sparse files, links and devices")
@pytest.mark.parametrize(
    "location",
    [
        "../outside.bin",
        "{outside}",
        "link.bin",
        "hard.bin",
        "folder/../../outside.bin",
        "up/outside.bin",
        "/dev/zero",
        "zero",
    ],
)
def test_weights_never_come_from_outside_the_folder(location, tmp_path):
    outside, folder = tmp_path / "outside.bin", tmp_path / "model"
    (folder / "folder").mkdir(parents=True)
    outside.write_bytes(np.ones(3, np.float32).tobytes())
    (folder / "link.bin").symlink_to(outside)
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "up").symlink_to(tmp_path, target_is_directory=True)
    os.link(outside, folder / "hard.bin")
    path = saved(folder, location=location.format(outside=outside), offset="None", length="None")
    refused(path, "cannot be read")


@pytest.mark.skipif(os.name != "posix", reason="sparse files")
def test_a_file_of_a_terabyte_is_not_read(tmp_path):
    path = saved(tmp_path, location="huge.bin", offset="None", length="None")
    with open(tmp_path / "huge.bin", "wb") as file:
        file.truncate(2**40)
    refused(path, "its length is not told, and 1,099,511,627,776 bytes are there")
    with open(tmp_path / "net.onnx", "wb") as file:
        file.truncate(2**40)
    refused(path, "more than the limit file_bytes")


def test_weights_beside_a_model_that_has_no_folder(tmp_path, monkeypatch):
    path = saved(tmp_path)
    monkeypatch.chdir(tmp_path)  # where they would be found
    for model in (onnx.load(path, load_external_data=False), path.read_bytes()):
        refused(model, "Give the path of the model's file")
    assert load(path)


# --- running ---


def test_data_that_the_graph_cannot_run_on():
    """The first and last rows, on which it is tried, are right."""
    model = net("e = Gather(E, X) Y = MatMul(e, W)", x="int64[N] X", E=np.ones((5, 3), np.float32))
    numbers = np.array([0, 1, 9, 9, 2, 1])
    for settings in ({}, {"early_stopping": True, "validation_fraction": 0.5}):
        with pytest.raises(ModelError, match=r"does not run on the data: .*Gather.*out of data bounds"):
            OrtGradientRegressor(model, max_iter=1, random_state=0, **settings).fit(numbers, np.ones(6))
    trained = OrtGradientRegressor(model, max_iter=1).fit(numbers % 5, np.ones(6))
    with pytest.raises(ModelError, match="does not run on the data"):
        trained.predict(numbers)


def test_a_fitted_model_takes_no_dict():
    fitted = Ridge().fit(X, y)
    with pytest.raises(TypeError, match="got a dict of arrays"):
        OrtGradientRegressor(fitted).fit({"X": X}, y)
    with pytest.raises(ValueError, match=r"inhomogeneous|differ in length"):
        OrtGradientRegressor(fitted).fit(X, [1, 2, 3, [4.0]])
    classifier = LogisticRegression().fit(X, np.arange(8) % 2)
    with pytest.raises(ValueError, match="its rows differ in length"):
        OrtGradientClassifier(classifier).fit(X, [[0], [1, 1]] * 4)


@pytest.mark.parametrize(
    "settings", [{"providers": 3}, {"providers": "CPUExecutionProvider"}, {"provider_options": 1.5}]
)
def test_providers_that_are_no_list(settings):
    with pytest.raises(TypeError, match="providers must list names, provider_options one dict for each; got provider"):
        fit(net(), **settings)


@pytest.mark.parametrize("name", ["early_stopping", "warm_start", "shuffle"])
def test_switches_that_are_none(name):
    estimator = OrtGradientClassifier(**{name: np.array([1, 2])})
    for call in (estimator.fit, estimator.partial_fit):
        with pytest.raises(TypeError, match=f"{name} must be True or False"):
            call(X, np.arange(8) % 2, classes=[0, 1])


def test_patience_that_is_no_number():
    with pytest.raises(TypeError, match="n_iter_no_change must be"):
        OrtGradientRegressor(n_iter_no_change=np.array([1, 2])).fit(X, y)


@pytest.mark.skipif(sp.coo_array([1]).ndim != 1, reason="SciPy before 1.13 has no sparse arrays of one axis")
def test_sparse_labels_of_one_axis():
    labels = np.arange(8) % 2
    trained = [OrtGradientClassifier(max_iter=2, random_state=0).fit(X, y) for y in (labels, sp.coo_array(labels))]
    assert_array_equal(trained[0].predict_proba(X), trained[1].predict_proba(X))


def test_no_rows_of_a_graph_of_several_axes():
    with pytest.raises(ValueError, match=r"0 sample\(s\)"):
        OrtGradientRegressor(net(x="float[N,3,1] X", body="F = Flatten(X) Y = MatMul(F, W)")).fit(X[:0, :, None], y[:0])


def test_labels_of_another_type_than_the_classes():
    trained = OrtGradientClassifier(max_iter=1).fit(X, np.arange(8) % 2)
    with pytest.raises((TypeError, ValueError), match="labels"):
        trained.partial_fit(X, ["a", "b"] * 4)
    with pytest.raises(ValueError, match=r"inhomogeneous|Expected 2D array"):
        fit(net(x="float[N,3,1] X", body="F = Flatten(X) Y = MatMul(F, W)")).fit([[1.0, 2.0, 3.0], [1.0]], [1, 2])

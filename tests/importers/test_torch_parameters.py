"""Parameters of PyTorch's modules in exported files: each is trained once, under its name, and nothing else is.

``data/make_torch_exports.py`` wrote the files and what PyTorch trains the modules to.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import SGD, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError, OnnxTrainWarning, UnsupportedOperatorError
from tests.helpers.data import DATA
from tests.helpers.environment import LIMITS, available_engines
from tests.helpers.graphs import from_file

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

SETTINGS = {
    "optimizer": SGD(momentum=0.0), "learning_rate_init": 0.05, "batch_size": 12, "max_iter": 5, "tol": 0,
    "shuffle": False,
}  # fmt: skip
FILES = [f"{name}_{exporter}" for name in ("fresh", "shared") for exporter in ("dynamo", "classic")]


def archive_of(name):
    """Return X, y, the losses, and PyTorch's parameters after training."""
    with np.load(DATA / f"torch_{name.partition('_')[0]}.npz") as archive:
        known = dict(archive)
    state = {key.removeprefix("state/"): known[key] for key in known if key.startswith("state/")}
    return known["X"], known["y"].ravel(), known["losses"], state


def trained_on(name, **settings):
    X, y, _, _ = archive_of(name)
    return OrtGradientRegressor(DATA / f"torch_{name}.onnx", **SETTINGS | settings).fit(X, y)


def assert_as_in_pytorch(trained, state, but=()):
    """Compare by name; the name of a matrix that the exporter transposed ends in ``.T``."""
    for name in (name for name in state if name not in but):
        found = trained.weights_[name] if name in trained.weights_ else trained.weights_[f"{name}.T"].T
        assert_allclose(found, state[name], rtol=0, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("name", FILES)
def test_parameters_are_trained_as_in_pytorch(name, engine):
    _, _, losses, state = archive_of(name)
    trained = trained_on(name, engine=engine)
    assert_allclose(trained.loss_curve_, losses, rtol=1e-4)
    tied = {"head.weight"} if "table.weight" in trained.weights_ else {"table.weight"}
    but = tied if name.startswith("shared") else ()
    assert_as_in_pytorch(trained, state, but)
    assert len(trained.weights_) == len(state) - len(but)


@pytest.mark.parametrize("engine", available_engines())
def test_copies_of_a_shared_matrix_are_trained_as_one(engine):
    proto = onnx.load(DATA / "torch_shared_dynamo.onnx")
    readers = [node for node in proto.graph.node if "%p_layer_weight" in str(node.metadata_props)]
    (name,) = {node.input[1] for node in readers if node.op_type in ("Gemm", "MatMul")}
    copied = [node for node in proto.graph.node if name in node.input][1:]
    assert copied
    proto.graph.initializer.add().CopyFrom(next(i for i in proto.graph.initializer if i.name == name))
    proto.graph.initializer[-1].name = "val_copy"
    for node in copied:
        node.input[1] = "val_copy"
    X, y, losses, _ = archive_of("shared")
    trained = OrtGradientRegressor(proto, **SETTINGS, engine=engine).fit(X, y)
    assert_allclose(trained.loss_curve_, losses, rtol=1e-4)
    assert "val_copy" not in trained.weights_


def test_constants_and_buffers_are_not_trained():
    _, _, losses, state = archive_of("constants")
    trained = trained_on("constants_dynamo", engine="portable")
    assert_allclose(trained.loss_curve_, losses, rtol=1e-4)
    assert_as_in_pytorch(trained, state, {"place"})  # of which only a row is in the file
    assert abs(trained.weights_["power"] - 2) > 1e-3  # an exponent that began as the square
    assert len(trained.weights_) == len(state)
    given, found = (
        {w.name: onnx.numpy_helper.to_array(w) for w in proto.graph.initializer}
        for proto in (onnx.load(DATA / "torch_constants_dynamo.onnx"), trained.to_onnx())
    )
    for name in ("shift", "mixing"):
        assert_array_equal(found[name], given[name])


@pytest.mark.slow
def test_patterns_select_by_the_names_of_modules():
    trained = trained_on("fresh_dynamo", trainable="body.layers.1.*", max_iter=1)
    names = {name for name in trained.weights_ if name.startswith("body.layers.1.")}
    given = trained_on("fresh_dynamo", learning_rate_init=1e-30, max_iter=1).weights_
    moved = {
        name for name, array in trained.weights_.items() if not np.allclose(array, given[name], rtol=0, atol=1e-12)
    }
    assert moved == names
    assert "body.layers.1.linear1.weight.T" in moved
    patterns = trained_on("fresh_dynamo", trainable="*.weight", max_iter=1)
    assert not np.array_equal(
        patterns.weights_["body.layers.1.linear1.weight.T"], given["body.layers.1.linear1.weight.T"]
    )


@pytest.mark.slow
def test_files_of_trained_networks_keep_the_names():
    trained = trained_on("fresh_classic", max_iter=1)
    again = OrtGradientRegressor(trained.to_onnx(), **SETTINGS).fit(*archive_of("fresh")[:2])
    assert set(again.weights_) == set(trained.weights_)


@pytest.mark.parametrize("opset", [18, 21])
def test_records_survive_the_conversion_to_another_opset(opset):
    limits = replace(LIMITS, opset=opset)
    source = onnx.load(DATA / "torch_fresh_dynamo.onnx")
    found = from_file(source, limits)
    assert found.model.opset_imports[""] == min(opset, 20)
    assert "body.layers.1.linear1.weight.T" in found.parameters
    assert len(found.parameters) == len(archive_of("fresh")[3])


@pytest.mark.long
@pytest.mark.parametrize("name", [*FILES, "constants_dynamo"])
def test_given_model_is_unchanged(name):
    """Names of weights and constants too: onnx_ir shares them with the protobuf that it reads."""
    given = onnx.load(DATA / f"torch_{name}.onnx")
    before = given.SerializeToString(deterministic=True)
    X, y, _, _ = archive_of(name)
    trained = OrtGradientRegressor(given, **SETTINGS).fit(X, y)
    assert given.SerializeToString(deterministic=True) == before
    again = OrtGradientRegressor(given, **SETTINGS).fit(X, y)
    assert_array_equal(again.predict(X), trained.predict(X))


@pytest.mark.parametrize("name", ["padded", "crossed", "grouped"])
def test_steps_are_those_of_pytorch(name):
    """A row of padding is not trained by what names it; a bias of zeros that is split is not merged with another.

    Nor are the ones and zeros of normalization by groups, which are no parameters, merged with a layer that begins so.
    """
    _, _, losses, state = archive_of(f"{name}_dynamo")
    trained = trained_on(f"{name}_dynamo")
    assert trained.engine_ == "portable" or name in ("crossed", "grouped")
    assert len(trained.weights_) == len(state)
    assert_allclose(trained.loss_curve_, losses, rtol=1e-5)
    for key, array in state.items():
        found = trained.weights_[key] if key in trained.weights_ else trained.weights_[f"{key}.T"].T
        assert_allclose(found.reshape(array.shape), array, rtol=0, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("engine", available_engines())
def test_equal_folded_factors_are_trained_separately(engine):
    """The file holds one initializer for ``0.5 + weight`` of two layers, one of which is called twice."""
    _, _, losses, state = archive_of("folded")
    trained = trained_on("folded_dynamo", engine=engine)
    assert_allclose(trained.loss_curve_, losses, rtol=1e-5)
    assert len(trained.weights_) == len(state)
    one, twice = (
        next(w for name, w in trained.weights_.items() if name.startswith(f"{key}/")) for key in ("one", "twice")
    )
    assert_allclose(one - 0.5, state["one.weight"], rtol=0, atol=1e-6)
    assert_allclose(twice - 0.5, state["twice.weight"], rtol=0, atol=1e-6)


def test_equal_numbers_that_were_drawn_stay_one():
    """A module under two names has two parameters in the record; after training its numbers tell that it is one."""
    proto = onnx.load(DATA / "torch_folded_dynamo.onnx")
    merged = [
        i
        for i in proto.graph.initializer
        if list(i.dims) == [4] and sum(i.name in n.input for n in proto.graph.node) == 3
    ]
    merged[0].CopyFrom(onnx.numpy_helper.from_array(np.float32([0.1, 0.7, 0.4, 0.2]), merged[0].name))
    X, y, _, state = archive_of("folded")
    trained = OrtGradientRegressor(proto, **SETTINGS).fit(X, y)
    assert len(trained.weights_) == len(state) - 1


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("engine", available_engines())
def test_folded_constants_train_the_parameter_they_come_from(engine, recorded):
    """The exporter records the parameter; otherwise numbers that were drawn tell, which a single one is not."""
    proto = onnx.load(DATA / "torch_computed_dynamo.onnx")
    for value in () if recorded else [value for value in proto.graph.value_info if value.name != "exp"]:
        del value.metadata_props[:]
    X, y, losses, state = archive_of("computed")
    with warnings.catch_warnings():
        warnings.simplefilter("error", OnnxTrainWarning)
        trained = OrtGradientRegressor(proto, **SETTINGS, engine=engine).fit(X, y)
    assert_allclose(trained.loss_curve_, losses, rtol=1e-5)
    assert set(trained.weights_) == set(state)
    assert_as_in_pytorch(trained, state)


def test_results_that_are_trained_in_place_of_parameters_are_named():
    """Parts of a parameter train as it does; the product of two does not."""
    with pytest.warns(OnnxTrainWarning, match=r"in advance: 'matmul' \(from 'first', 'second'\)\. .*optimize=False"):
        trained = trained_on("replaced_dynamo")
    assert_allclose(trained.loss_curve_[0], archive_of("replaced")[2][0], rtol=1e-5)
    assert sorted(array.shape for array in trained.weights_.values()) == [(1,), (1, 4), (4, 4), (4, 4), (4, 4)]


@pytest.mark.skipif("ort-training" not in available_engines(), reason="needs onnxruntime-training")
def test_padding_row_is_refused_unless_table_is_frozen():
    with pytest.raises(UnsupportedOperatorError, match=r"\(Gather\) cannot be.* row 2 of its table \(padding_idx\)"):
        trained_on("padded_dynamo", engine="ort-training")
    frozen = trained_on("padded_dynamo", engine="ort-training", trainable="head.*")
    assert frozen.loss_curve_[-1] < frozen.loss_curve_[0]


RELU6 = """<ir_version: 8, opset_import: ["": 18]> g (float[n, 4] x) => (float[n, 1] y)
    <float[4] shift = {0, 0, 0, 0}, float low = {0}, float high = {6}, float[4, 1] w = {1, 2, 3, 4}>
    { h = Add(x, shift) c = Clip(h, low, high) y = MatMul(c, w) }"""
CALL = "%c : [num_users=1] = call_function[target=torch.ops.aten.{}.default](args = (%h, 0.0, 6.0), kwargs = {{}})"


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize(("call", "derivative"), [(None, 0.0), ("hardtanh", 0.0), ("relu6", 0.0), ("clamp", 1.0)])
def test_relu6_has_no_derivative_at_its_lower_bound_and_clamp_has(call, derivative, engine):
    model = onnx.parser.parse_model(RELU6)
    if call is not None:
        node = next(n for n in model.graph.node if n.op_type == "Clip")
        node.metadata_props.add(key="pkg.torch.onnx.fx_node", value=CALL.format(call))
    X = np.array([[0.0, 1.0, -1.0, 7.0]], np.float32)
    trained = OrtGradientRegressor(model, **SETTINGS | {"max_iter": 1, "engine": engine, "trainable": "shift"})
    trained.fit(X, np.zeros(1))
    moved = trained.weights_["shift"] / -0.05  # the gradient: twice the prediction, times the weight
    assert_allclose(moved, 2 * (2 + 24) * np.array([derivative, 2.0, 0.0, 0.0]), rtol=1e-5)


def test_constants_that_copy_parameters_are_weights():
    """As ``torch.export`` records a model of Keras: its variables are copied at each call."""
    text = """<ir_version: 8, opset_import: ["": 18]> net (float[N, 3] X) => (float[N, 1] Y)
        <float[3, 2] lifted_tensor_0 = {1, 2, 3, 4, 5, 6}, float[2, 1] lifted_tensor_1 = {1, -1}>
        { h = MatMul(X, lifted_tensor_0) r = Relu(h) Y = MatMul(r, lifted_tensor_1) }"""
    model = onnx.parser.parse_model(text)
    lines = ["# inputs", "p_kernel: PARAMETER target='dense/kernel'", "p_out: PARAMETER target='out/kernel'"]
    lines += [f"c_lifted_tensor_{i}: CONSTANT_TENSOR target='lifted_tensor_{i}'" for i in range(2)]
    signature = "\n".join([*lines, "x: USER_INPUT", "# outputs", "y: USER_OUTPUT"])
    model.graph.metadata_props.add(key="pkg.torch.export.ExportedProgram.graph_signature", value=signature)
    for i, (node, x, y) in enumerate(((0, "x", "matmul"), (2, "relu", "matmul_1"))):
        call = f"%{y} : [num_users=1] = call_function[target=torch.ops.aten.matmul.default]"
        call += f"(args = (%{x}, %c_lifted_tensor_{i}), kwargs = {{}})"
        model.graph.node[node].metadata_props.add(key="pkg.torch.onnx.fx_node", value=call)
    source = from_file(model)
    assert source.parameters == ("lifted_tensor_0", "lifted_tensor_1")
    used = model.graph.node[0].metadata_props[0]
    used.value = used.value.replace("%c_lifted_tensor_0", "%p_kernel")
    with pytest.raises(ModelError, match="no parameter to train"):  # one parameter is read: the record counts
        from_file(model)


def folded_file(sources):
    """Return tanh(x M) w as the newer exporter writes it, where M was computed in advance from `sources`."""
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 18], producer_name: "pytorch">
        g (float[N, 2] x) => (float[N, 1] linear) <float[2, 3] mul = {0.5, -0.2, 0.1, 0.3, 0.4, -0.6},
        float[3, 1] w = {0.2, 0.1, -0.3}> {
            matmul = MatMul(x, mul) tanh = Tanh(matmul) linear = MatMul(tanh, w) }"""
    )
    signature = "\n# inputs\np_w: PARAMETER target='w'\np_scale: PARAMETER target='scale'\n"
    signature += "b_basis: BUFFER target='basis'\nb_window: BUFFER target='window'\nx: USER_INPUT\n# outputs\n"
    onnx.helper.set_metadata_props(proto.graph, {"pkg.torch.export.ExportedProgram.graph_signature": signature})
    calls = {"matmul": "(%x, %mul)", "tanh": "(%matmul,)", "linear": "(%tanh, %p_w)"}
    for node in proto.graph.node:
        name = node.output[0]
        call = f"%{name} : [num_users=1] = call_function[target=torch.ops.aten.{name}.default]"
        props = {"pkg.torch.onnx.fx_node": f"{call}(args = {calls[name]}, kwargs = {{}})"}
        onnx.helper.set_metadata_props(node, props)
    computed = onnx.helper.make_tensor_value_info("mul", onnx.TensorProto.FLOAT, [2, 3])
    onnx.helper.set_metadata_props(computed, {"pkg.onnxscript.optimizer.folded_from": repr(sources)})
    proto.graph.value_info.append(computed)
    return proto


def test_constants_folded_from_buffers_are_not_trained():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(20, 2)), rng.normal(size=20)
    settings = {"optimizer": SGD(), "learning_rate_init": 0.1, "batch_size": 20, "max_iter": 1, "shuffle": False}
    trained = OrtGradientRegressor(folded_file(["basis", "window"]), **settings).fit(X, y)
    w, M = np.array([0.2, 0.1, -0.3]), np.array([[0.5, -0.2, 0.1], [0.3, 0.4, -0.6]])
    hidden = np.tanh(X @ M)
    assert set(trained.weights_) == {"w"}
    assert_allclose(trained.weights_["w"][:, 0], w - 0.1 * 2 / 20 * hidden.T @ (hidden @ w - y), rtol=1e-5)
    with pytest.warns(OnnxTrainWarning, match=r"computed results of parameters in advance: 'mul' \(from 'scale'\)"):
        trained = OrtGradientRegressor(folded_file(["basis", "scale"]), **settings).fit(X, y)
    assert set(trained.weights_) == {"w", "mul"}

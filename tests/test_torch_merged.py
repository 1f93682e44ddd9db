"""Layers of PyTorch that begin equal and have one input, which its exporter merges, and layers that are called twice.

``data/make_torch_exports.py`` wrote the files and what PyTorch trains the modules to.
"""

from __future__ import annotations

import warnings

import onnx
import onnx.parser
import pytest
from numpy.testing import assert_allclose

from onnxtrain_sklearn import OrtGradientRegressor
from onnxtrain_sklearn._gradient.engine import available_engines
from onnxtrain_sklearn._graph.protobuf import load
from onnxtrain_sklearn._graph.trainable import trainable_model
from onnxtrain_sklearn.exceptions import OnnxTrainWarning
from tests.helpers.data import DATA
from tests.test_torch_parameters import SETTINGS, archive_of, assert_as_in_pytorch

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def merged():
    return onnx.load(DATA / "torch_merged_dynamo.onnx")


@pytest.mark.parametrize("engine", available_engines())
def test_merged_layers_are_trained_apart_and_one_that_is_called_twice_as_one(engine):
    X, y, losses, state = archive_of("merged")
    with warnings.catch_warnings():
        warnings.simplefilter("error", OnnxTrainWarning)
        trained = OrtGradientRegressor(merged(), **SETTINGS, engine=engine).fit(X, y)
    assert_allclose(trained.loss_curve_, losses, rtol=1e-5)
    assert set(trained.weights_) == set(state)
    assert_as_in_pytorch(trained, state)


def test_exported_files_keep_the_layers_apart():
    X, y, _, state = archive_of("merged")
    trained = OrtGradientRegressor(merged(), **SETTINGS).fit(X, y)
    again = OrtGradientRegressor(trained.to_onnx(), **SETTINGS | {"learning_rate_init": 1e-30}).fit(X, y)
    assert_as_in_pytorch(again, state)
    assert_allclose(again.predict(X), trained.predict(X), rtol=1e-6)


def test_what_the_file_does_not_tell_apart_is_named():
    """One call is missing where two layers could be read: neither is guessed."""
    proto = merged()
    for node in proto.graph.node:
        for entry in node.metadata_props:
            entry.value = entry.value.replace("%layer_norm_2,", "%layer_norm_1,")
    X, y, _, _ = archive_of("merged")
    with pytest.warns(
        OnnxTrainWarning, match=r"'norms.0', stands for 'layer_norm_1' too.*'norms.2.weight'.*optimize=F"
    ):
        trained = OrtGradientRegressor(proto, **SETTINGS).fit(X, y)
    assert "norms.1.weight" not in trained.weights_
    assert "late.weight" in trained.weights_


def test_layers_that_are_read_through_calls_that_the_exporter_removed_are_named():
    """``norm(x) + 0``: no call names the result of the merged layer, and its parameters are in no call either."""
    proto = merged()
    for node in proto.graph.node:
        for entry in node.metadata_props:
            for i in (1, 2):
                entry.value = entry.value.replace(f"%layer_norm_{i},", f"%add_9{i},")
    X, y, _, _ = archive_of("merged")
    with pytest.warns(OnnxTrainWarning, match=r"stands for 'add_91', 'add_92' too.*'norms.1.weight'"):
        trained = OrtGradientRegressor(proto, **SETTINGS).fit(X, y)
    assert "norms.1.weight" not in trained.weights_


@pytest.mark.parametrize("engine", available_engines())
def test_a_layer_under_two_paths_and_one_that_is_called_twice_are_one_also_where_parameters_are_folded(engine):
    """The file names factors that were computed for each call, and lacks the zero bias that each call adds."""
    X, y, losses, state = archive_of("repeated")
    trained = OrtGradientRegressor(DATA / "torch_repeated_dynamo.onnx", **SETTINGS, engine=engine).fit(X, y)
    assert_allclose(trained.loss_curve_, losses, rtol=1e-5)
    assert len(trained.weights_) == len({name.replace("blocks.0", "blocks.1") for name in state})
    for name in ("blocks.1.last.bias", "twice.last.bias", "once.last.bias"):
        assert_allclose(trained.weights_[name], state[name], rtol=0, atol=2e-5)
    factors = [w - 0.5 for name, w in trained.weights_.items() if name not in state and w.ndim == 1]
    for name in ("blocks.1.scale", "twice.scale", "once.scale"):
        assert min(abs(factor - state[f"{name}.weight"]).max() for factor in factors) < 2e-5


def test_a_layer_with_several_results_is_separated_too():
    """PyTorch's normalization by stored statistics returns three results, and its readers name the first."""
    text = """<ir_version: 8, opset_import: ["": 18]> net (float[N, 2] X) => (float[N, 1] Y)
        <float[2] one.weight = {1, 1}, float[2] one.bias = {0, 0}, float[2, 1] w = {1, 2}, float[2, 1] v = {3, 4}>
        { getitem_3 = BatchNormalization(X, one.weight, one.bias, one.bias, one.weight)
          mm = MatMul(getitem_3, w) mm_1 = MatMul(getitem_3, v) Y = Add(mm, mm_1) }"""
    text = text.replace("one.weight", '"one.weight"').replace("one.bias", '"one.bias"')
    model = onnx.parser.parse_model(text)
    targets = {"p_one_weight": "one.weight", "p_one_bias": "one.bias", "p_two_weight": "two.weight"}
    targets |= {"p_two_bias": "two.bias", "p_w": "w", "p_v": "v"}
    lines = ["# inputs", *(f"{name}: PARAMETER target='{target}'" for name, target in targets.items()), "# outputs"]
    model.graph.metadata_props.add(key="pkg.torch.export.ExportedProgram.graph_signature", value="\n".join(lines))
    called = {
        "_native_batch_norm_legit_no_training": "%x, %p_one_weight, %p_one_bias, %b_mean, %b_var, 0.1, 1e-05",
        "mm": "%getitem_3, %p_w",
        "mm_1": "%getitem_6, %p_v",
        "add": "%mm, %mm_1",
    }
    for node, (name, arguments) in zip(model.graph.node, called.items(), strict=True):
        function = name.removesuffix("_1")
        call = f"%{name} : [num_users=1] = call_function[target=torch.ops.aten.{function}.default]"
        node.metadata_props.add(key="pkg.torch.onnx.fx_node", value=f"{call}(args = ({arguments}), kwargs = {{}})")
    source = trainable_model(load(model), foreign=True)
    assert set(source.parameters) == {"one.weight", "one.bias", "two.weight", "two.bias", "w", "v"}

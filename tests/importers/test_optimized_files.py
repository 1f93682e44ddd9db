"""Files that onnxruntime's optimizers wrote train as the files that they were made from, and come back in plain ONNX.

The installed onnxruntime optimizes the networks here; ``bert_fused.onnx`` is what onnxruntime.transformers.optimizer
made of ``bert.onnx``: EmbedLayerNormalization, Attention, SkipLayerNormalization and BiasGelu.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from numpy.testing import assert_allclose

from onnxtrain_sklearn import SGD, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError, UnsupportedOperatorError
from tests.helpers.data import DATA
from tests.helpers.environment import available_engines

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

LEVELS = onnxruntime.GraphOptimizationLevel
FUSED = {"mlp": "FusedGemm", "lenet": "FusedConv", "encoder": "BiasGelu", "gpt": "FusedMatMul", "bert": "FusedGemm"}


def optimized(name, folder, level=LEVELS.ORT_ENABLE_EXTENDED):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = level, 4
    options.optimized_model_filepath = str(folder / f"{name}.onnx")
    onnxruntime.InferenceSession(str(DATA / f"{name}.onnx"), options, providers=["CPUExecutionProvider"])
    return folder / f"{name}.onnx"


def rows_of_network(name):
    """Return X and y: those that came with a transformer, or random ones of the network's shape."""
    if name in ("encoder", "gpt", "bert"):
        with np.load(DATA / f"{name}.npz") as archive:
            inputs = {key: archive[key] for key in ("X", "mask") if key in archive}
            return inputs if len(inputs) > 1 else inputs["X"], archive["y"]
    given = onnx.load(DATA / f"{name}.onnx").graph.input[0].type.tensor_type.shape.dim
    rng = np.random.default_rng(0)
    X = rng.normal(size=(24, *(d.dim_value for d in given[1:]))).astype(np.float32)
    return X, np.arange(24) % (3 if name == "mlp" else 10)


def fitted_file(path, name, engine):
    X, y = rows_of_network(name)
    settings = {"optimizer": SGD(momentum=0.0), "learning_rate_init": 0.02, "batch_size": 24, "max_iter": 3}
    return OrtGradientClassifier(path, engine=engine, shuffle=False, tol=0, **settings).fit(X, y)


def domains(proto):
    return {node.domain for node in proto.graph.node}


def assert_trains_alike(path, name, engine):
    X, _ = rows_of_network(name)
    plain, other = fitted_file(DATA / f"{name}.onnx", name, engine), fitted_file(path, name, engine)
    assert_allclose(other.loss_curve_[0], plain.loss_curve_[0], rtol=1e-6)
    assert_allclose(other.loss_curve_, plain.loss_curve_, rtol=1e-5)
    assert_allclose(other.predict_proba(X), plain.predict_proba(X), rtol=1e-4, atol=1e-6)
    given_back = other.to_onnx()
    assert domains(given_back) <= {"", "ai.onnx.ml"}
    onnx.checker.check_model(given_back, full_check=True)


@pytest.mark.slow
@pytest.mark.thinned(by=lambda name, engine: {engine})
@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("name", FUSED)
def test_a_file_of_the_session_optimizer(name, engine, tmp_path):
    path = optimized(name, tmp_path)
    assert FUSED[name] in {node.op_type for node in onnx.load(path).graph.node}
    assert_trains_alike(path, name, engine)


@pytest.mark.slow
@pytest.mark.thinned(by=lambda engine: {"bert"})
@pytest.mark.parametrize("engine", available_engines())
def test_a_file_of_the_transformer_optimizer(engine):
    assert_trains_alike(DATA / "bert_fused.onnx", "bert", engine)


def test_a_layout_of_one_processor_is_refused(tmp_path):
    path = optimized("lenet", tmp_path, LEVELS.ORT_ENABLE_ALL)
    if "com.microsoft.nchwc" not in domains(onnx.load(path)):
        pytest.skip("onnxruntime keeps the layout on this processor")
    with pytest.raises(UnsupportedOperatorError, match=r"laid it out for the processor.*ORT_ENABLE_EXTENDED"):
        fitted_file(path, "lenet", "portable")


def test_head_behind_blocked_layout_trains(tmp_path):
    """What is frozen is only run."""
    path = optimized("lenet", tmp_path, LEVELS.ORT_ENABLE_ALL)
    X, y = rows_of_network("lenet")
    start = {w.name: onnx.numpy_helper.to_array(w) for w in onnx.load(path).graph.initializer}
    settings = {"max_iter": 3, "batch_size": 24, "engine": "portable"}
    classifier = OrtGradientClassifier(path, trainable=["f2.*"], **settings).fit(X, y)
    moved = [name for name, w in classifier.weights_.items() if not np.array_equal(w, start[name])]
    assert sorted(moved) == ["f2.bias", "f2.weight"]


@pytest.mark.parametrize("engine", available_engines())
@pytest.mark.parametrize("axis", ["bytes", "numbers", "node", "computed"])
def test_expand_dims_becomes_unsqueeze(axis, engine):
    """Stored as bytes, the axis ends the process in onnxruntime 1.19."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]> g (float[N, 3] x) => (float[N, 1] y) {
            h = MatMul(x, W)
            u = com.microsoft.ExpandDims(h, axis)
            s = ReduceSum <keepdims = 0> (u, last)
            a = Tanh(s)
            y = MatMul(a, V)
        }"""
    )
    rng = np.random.default_rng(0)
    W, V = rng.normal(size=(3, 4)).astype(np.float32), rng.normal(size=(4, 1)).astype(np.float32)
    for name, array in (("W", W), ("V", V), ("last", np.array([2]))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    stored = onnx.numpy_helper.from_array(np.array(-1, np.int32), "axis")
    if axis == "node":
        model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["axis"], value=stored))
    elif axis == "computed":
        model.graph.initializer.append(stored)
        stored.name = model.graph.initializer[-1].name = "held"
        model.graph.node.insert(0, onnx.helper.make_node("Identity", ["held"], ["axis"]))
    else:
        if axis == "numbers":
            stored = onnx.helper.make_tensor("axis", onnx.TensorProto.INT32, [], [-1])
        model.graph.initializer.append(stored)
    X, y = rng.normal(size=(20, 3)).astype(np.float32), rng.normal(size=20)
    settings = {
        "optimizer": SGD(momentum=0.0),
        "learning_rate_init": 0.1,
        "alpha": 0.0,
        "batch_size": 20,
        "max_iter": 1,
    }
    fitted = OrtGradientRegressor(model, engine=engine, tol=0, **settings)
    if axis == "computed":
        with pytest.raises(ModelError, match=r"ExpandDims\) has an axis that is computed.*Unsqueeze"):
            fitted.fit(X, y)
        return
    fitted.fit(X, y)
    a = np.tanh(X.astype(float) @ W)
    slope = 2 * (a @ V - y[:, None]) / 20
    assert_allclose(fitted.weights_["V"], V - 0.1 * a.T @ slope, rtol=1e-4, atol=1e-6)
    assert_allclose(fitted.weights_["W"], W - 0.1 * X.T @ (slope @ V.T * (1 - a**2)), rtol=1e-4, atol=1e-6)
    assert domains(fitted.to_onnx()) == {""}

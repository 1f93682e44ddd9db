"""A pattern that stands for a layer, and takes its bias alone, deserves a word."""

from __future__ import annotations

import warnings

import numpy as np
import onnx.parser
import pytest

from onnxtrain_sklearn import OrtGradientRegressor
from onnxtrain_sklearn.exceptions import OnnxTrainWarning

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X = np.ones((9, 2), np.float32)
LAYERS = {
    "MatMul": "h = MatMul(X, w) k = Add(h, b)",
    "bias first": "h = MatMul(X, w) k = Add(b, h)",
    "Gemm": "k = Gemm(X, w, b)",
    "Conv": "u = Unsqueeze(X, two) c = Conv(u, w3, b) k = Squeeze(c, two)",
}


def layered(kind, matrix="val_7"):
    """A network whose first layer has a bias ``enc.0.bias`` and a matrix of another name."""
    shape = "2, 2, 1" if kind == "Conv" else "2, 2"
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]> g (float[N, 2] X) => (float[N, 1] Y)
        <float[{shape}] w = {{1, 2, 3, 4}}, float[2] b = {{1, 2}}, float[2, 1] v = {{1, 2}}, int64[1] two = {{2}}>
        {{ {LAYERS[kind].replace("w3", "w")} r = Relu(k) Y = MatMul(r, v) }}"""
    )
    names = {"w": matrix, "b": "enc.0.bias", "v": "head.weight"}
    for tensor in model.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    return model


def described(model, trainable):
    return [entry.name for entry in OrtGradientRegressor(model, trainable=trainable).describe().of("trained")]


@pytest.mark.parametrize("trainable", ["enc.0.*", ["enc.*", "head.weight"]])
@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_without_its_matrix_is_named(kind, trainable):
    with pytest.warns(OnnxTrainWarning, match=r"misses the matrices.*'val_7' \(bias 'enc\.0\.bias'\).*Add them"):
        described(layered(kind), trainable)
    with pytest.warns(OnnxTrainWarning, match="misses the matrices"):
        OrtGradientRegressor(layered(kind), trainable=trainable, max_iter=1).fit(X, np.ones(9))


@pytest.mark.parametrize(
    "trainable", ["*.bias", "enc.0.bias", ["enc.0.bias"], "enc.?.bias", ["enc.0.*", "val_7"], "*", "all", "head.*"]
)
def test_explicit_trainable_gives_no_warning(trainable):
    with warnings.catch_warnings():
        warnings.simplefilter("error", OnnxTrainWarning)
        described(layered("MatMul"), trainable)


def test_a_pattern_that_selects_both_is_silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error", OnnxTrainWarning)
        assert described(layered("Gemm", "enc.0.weight"), "enc.0.*") == ["enc.0.weight", "enc.0.bias"]

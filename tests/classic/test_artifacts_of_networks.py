"""generate_artifacts for other networks than perceptrons: equal to the official files, or right where those are not."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx
import onnx.parser
import pytest

from onnxtrain_sklearn.classic.artifacts import LossType, OptimType, generate_artifacts
from tests.classic.test_artifacts import FILES, OnDevice, load
from tests.helpers import official
from tests.helpers.official import needs_training

RNG = np.random.default_rng(8)
HEAD = {"W": (8, 3), "b": (3,)}


def net(x, y, body, weights, **constants):
    text = f'<ir_version: 8, opset_import: ["": 18]> net ({x} X) => ({y} Y) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    arrays = {name: RNG.normal(size=shape).astype(np.float32) / 2 for name, shape in weights.items()}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in {**arrays, **constants}.items())
    for i, node in enumerate(model.graph.node):
        node.name = f"node{i}"
    return model, list(weights)


CONVOLUTION = net(
    "float[N, 1, 4, 4]",
    "float[N, 3]",
    "C = Conv<pads = [1, 1, 1, 1]>(X, K, k) R = Relu(C) P = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(R) "
    "F = Flatten(P) Y = Gemm(F, W, b)",
    {"K": (2, 1, 3, 3), "k": (2,), **HEAD},
)
DROPOUT = net(
    "float[N, 6]",
    "float[N, 3]",
    "A = MatMul(X, U) D, M = Dropout(A, r, t) Y = Gemm(D, W, b)",
    {"U": (6, 8), **HEAD},
    r=np.array(0.3, np.float32),
    t=np.array(True),
)
TWICE = net("float[N, 6]", "float[N, 6]", "A = MatMul(X, U) T = Tanh(A) Y = MatMul(T, U)", {"U": (6, 6)})


@needs_training
@pytest.mark.parametrize("network", [CONVOLUTION, DROPOUT, TWICE], ids=["convolution", "dropout", "weight read twice"])
def test_equal_to_the_official_ones(tmp_path, network):
    theirs, (model, names) = official.artifacts(), network
    folders = [tmp_path / "ours", tmp_path / "theirs"]
    folders[1].mkdir()
    generate_artifacts(model, names, [], LossType.MSELoss, OptimType.AdamW, folders[0])
    theirs.generate_artifacts(model, names, [], theirs.LossType.MSELoss, theirs.OptimType.AdamW, str(folders[1]))
    for ours, expected in zip(*(load(folder).values() for folder in folders), strict=True):
        official.assert_equal_graphs(ours, expected)


RIGHT = {
    "vector": (net("float[N, 6]", "float[N]", "Y = MatMul(X, U)", {"U": (6,)}), (20,)),
    "elu": (net("float[N, 6]", "float[N, 6]", "A = MatMul(X, U) Y = Elu(A)", {"U": (6, 6)}), (20, 6)),
    "unused": (net("float[N, 6]", "float[N, 6]", "A = MatMul(X, U) Y = Tanh(A)", {"U": (6, 6), "V": (3,)}), (20, 6)),
    "normalization": (
        net(
            "float[N, 6]",
            "float[N, 3]",
            "A = MatMul(X, U) L = LayerNormalization(A, s, t) Y = Gemm(L, W, b)",
            {"U": (6, 8), "s": (8,), "t": (8,), **HEAD},
        ),
        (20, 3),
    ),
}


@needs_training
@pytest.mark.parametrize("name", RIGHT)
def test_networks_that_the_official_ones_refuse_or_train_wrongly(tmp_path, name):
    (model, names), shape = RIGHT[name]
    generate_artifacts(model, names, [], LossType.MSELoss, OptimType.SGD, tmp_path)
    device, x = OnDevice(tmp_path, 0.05), RNG.normal(size=(20, 6)).astype(np.float32)
    y = RNG.normal(size=shape).astype(np.float32) / 4
    losses = [float(device.step(x, y)) for _ in range(50)]
    assert losses[-1] < losses[0]
    assert all(b < a + 1e-6 for a, b in pairwise(losses))


@pytest.mark.parametrize("network", [CONVOLUTION, TWICE, *(one for one, _ in RIGHT.values())])
def test_files_of_the_portable_engine(tmp_path, network):
    model, names = network
    generate_artifacts(model, names, [], LossType.MSELoss, OptimType.SGD, tmp_path, engine="portable")
    training = load(tmp_path)[FILES[0]]
    assert [o.name for o in training.graph.output][1:] == [f"{name}_grad.accumulation.out" for name in names]
    own = {node.op_type for node in training.graph.node if node.domain}
    assert own == {"InPlaceAccumulatorV2"}

"""generate_artifacts for other networks than perceptrons: equal to the official files, or right where those are not."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnxruntime
import pytest

from onnxtrain_sklearn.classic.artifacts import LossType, OptimType, generate_artifacts, read_checkpoint
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


def hidden(body, weights=None, **constants):
    """Return a network that computes H from X, A from H by ``body``, and Y from A."""
    text = f"Z = MatMul(X, U) H = Add(Z, u) {body} Y = MatMul(A, V)"
    return net(
        "float[N, 6]", "float[N, 3]", text, {"U": (6, 4), "u": (4,), "V": (4, 3), **(weights or {})}, **constants
    )


def scalars(**values):
    return {name: np.array(value, np.float32) for name, value in values.items()}


FUSED = {
    "Gelu of Erf": hidden(
        "D = Div(H, r) E = Erf(D) F = Add(E, o) G = Mul(H, F) A = Mul(G, h)", **scalars(r=np.sqrt(2), o=1, h=0.5)
    ),
    "FastGelu of Tanh": hidden(
        "P = Pow(H, t) Q = Mul(P, k) S = Add(H, Q) T = Mul(S, r) E = Tanh(T) F = Add(E, o) G = Mul(H, h) A = Mul(G, F)",
        **scalars(t=3, k=0.044715, r=np.sqrt(2 / np.pi), o=1, h=0.5),
    ),
    "QuickGelu of Sigmoid": hidden("S = Mul(H, k) G = Sigmoid(S) A = Mul(H, G)", **scalars(k=1.702)),
    "ConcatTraining": net(
        "float[N, 6]", "float[N, 3]", "Z = MatMul(X, U) A = Concat<axis = 1>(Z, X) Y = MatMul(A, V)",
        {"U": (6, 4), "V": (10, 3)},
    ),
    "SimplifiedLayerNormalization of its parts": hidden(
        "Q = Pow(H, t) a = Constant<value_ints = [-1]>() S = ReduceMean(Q, a) E = Add(S, e) R = Sqrt(E) "
        "D = Div(H, R) A = Mul(D, s)",
        {"s": (4,)},
        **scalars(t=2, e=1e-5),
    ),
    "BatchNormInternal of training mode": hidden(
        "A, m, v = BatchNormalization<training_mode = 1>(H, s, t, mean, variance)",
        {"s": (4,), "t": (4,)},
        mean=np.zeros(4, np.float32),
        variance=np.ones(4, np.float32),
    ),
}  # fmt: skip


def both_files(tmp_path, network):
    """Return our files and the official ones."""
    theirs, (model, names) = official.artifacts(), network
    folders = [tmp_path / "ours", tmp_path / "theirs"]
    folders[1].mkdir()
    generate_artifacts(model, names, [], LossType.MSELoss, OptimType.AdamW, folders[0])
    theirs.generate_artifacts(model, names, [], theirs.LossType.MSELoss, theirs.OptimType.AdamW, str(folders[1]))
    return tuple(load(folder) for folder in folders)


EQUAL = {"convolution": CONVOLUTION, "dropout": DROPOUT, "weight read twice": TWICE, **FUSED}


@needs_training
@pytest.mark.parametrize("name", EQUAL)
def test_equal_to_the_official_ones(tmp_path, name):
    ours, theirs = both_files(tmp_path, EQUAL[name])
    for file in FILES:
        if (name, file) != ("BatchNormInternal of training mode", "eval_model"):  # the official one does not load
            official.assert_equal_graphs(ours[file], theirs[file])


def trained_weights(folder, network, engine, shape=(20, 3)):
    """Return the weights after a step of size one on a device, and the losses before and after it."""
    model, names = network
    generate_artifacts(model, names, [], LossType.MSELoss, OptimType.SGD, folder, engine=engine)
    device, rng = OnDevice(folder, 1.0), np.random.default_rng(9)
    x, y = rng.normal(size=(20, 6)).astype(np.float32), rng.normal(size=shape).astype(np.float32) / 4
    losses = [float(device.step(x, y)), float(device.step(x, y))]
    device.save(folder / "trained")
    return read_checkpoint(folder / "trained"), losses


@needs_training
@pytest.mark.parametrize("name", FUSED)
def test_fused_operators_train_as_their_parts(tmp_path, name):
    fused, losses = trained_weights(tmp_path / "auto", FUSED[name], "auto")
    parts, expected = trained_weights(tmp_path / "portable", FUSED[name], "portable")
    operators = {node.op_type for node in load(tmp_path / "auto")["training_model"].graph.node}
    assert name.split()[0] in operators
    assert losses[1] != losses[0]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for weight, array in parts.items():
        np.testing.assert_allclose(fused[weight], array, rtol=1e-4, atol=1e-5)


OWN_GRADIENTS = {
    "Gelu by tanh": 'A = Gelu<approximate = "tanh">(H)',
    "BatchNormalization in inference mode": "A = BatchNormalization(H, s, t, m, v)",
}


@needs_training
@pytest.mark.parametrize("name", OWN_GRADIENTS)
def test_gradients_of_our_own_where_the_official_ones_are_wrong(tmp_path, name):
    """The official gradient is that of the exact Gelu, or of another function: training mode."""
    statistics = {n: np.full(4, 0.5, np.float32) for n in "mv"} if "Batch" in name else {}
    model, names = hidden(OWN_GRADIENTS[name], {"s": (4,), "t": (4,)} if statistics else {}, **statistics)
    model.opset_import[0].version = 20
    ours, theirs = both_files(tmp_path, (model, names))
    with pytest.raises(AssertionError):
        official.assert_equal_graphs(ours["training_model"], theirs["training_model"])
    own, losses = trained_weights(tmp_path / "auto", (model, names), "auto")
    portable, expected = trained_weights(tmp_path / "portable", (model, names), "portable")
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for weight, array in portable.items():
        np.testing.assert_allclose(own[weight], array, rtol=1e-4, atol=1e-5)


def test_evaluation_models_of_batch_statistics_load(tmp_path):
    model, names = FUSED["BatchNormInternal of training mode"]
    generate_artifacts(model, names, [], LossType.MSELoss, OptimType.SGD, tmp_path)
    evaluation = load(tmp_path)["eval_model"]
    session = onnxruntime.InferenceSession(evaluation.SerializeToString(), providers=["CPUExecutionProvider"])
    x, y = RNG.normal(size=(5, 6)).astype(np.float32), np.zeros((5, 3), np.float32)
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    (loss,) = session.run(None, {"X": x, "target": y, **{name: weights[name] for name in names}})
    normalized = (x @ weights["U"] + weights["u"]) / np.sqrt(1 + 1e-5) * weights["s"] + weights["t"]
    np.testing.assert_allclose(loss, ((normalized @ weights["V"]) ** 2).mean(), rtol=1e-4)


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

"""The valid models that the fuzzer starts from, each with data that fit it: about twenty small ones of every kind."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import hypothesis
import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from tests.contracts.random_graphs import GENERATORS, sketches

ROWS = 12


@dataclass(frozen=True)
class Seed:
    """A model, and data on which it can be trained."""

    model: Any
    X: Any
    y: np.ndarray
    classify: bool = False


def _net(
    nodes: str,
    arrays: dict[str, Any],
    *,
    inputs: str = "float[N,4] X",
    output: str = "float[N,1] Y",
    opset: int = 18,
    ir_version: int = 8,
    domains: str = "",
    functions: str = "",
) -> onnx.ModelProto:
    text = f"""<ir_version: {ir_version}, opset_import: ["": {opset}{domains}]>
        net ({inputs}) => ({output}) {{ {nodes} }} {functions}"""
    model = onnx.parser.parse_model(text)
    for name, array in arrays.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return model


_rng = np.random.RandomState(0)


def _w(*shape: int) -> np.ndarray:
    return (0.5 * _rng.normal(size=shape)).astype(np.float32)


def _ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


_X = _w(ROWS, 4)
_NUMBERS = _w(ROWS)
_LABELS = np.arange(ROWS) % 3
_SIGNS = np.arange(ROWS) % 2


def _mlp() -> Seed:
    nodes = "H = Gemm(X, W0, b0) R = Relu(H) Z = Gemm(R, W1, b1) Y = Softmax(Z)"
    arrays = {"W0": _w(4, 5), "b0": _w(5), "W1": _w(5, 3), "b1": _w(3)}
    return Seed(_net(nodes, arrays, output="float[N,3] Y"), _X, _LABELS, True)


def _linear() -> Seed:
    return Seed(_net("Y = Gemm(X, W, b)", {"W": _w(4, 1), "b": _w(1)}), _X, _NUMBERS)


def _binary() -> Seed:
    nodes = "H = MatMul(X, W0) T = Tanh(H) Z = MatMul(T, W1) S = Sigmoid(Z) Y = Squeeze(S, axes)"
    return Seed(_net(nodes, {"W0": _w(4, 3), "W1": _w(3, 1), "axes": _ints(1)}, output="float[N] Y"), _X, _SIGNS, True)


def _conv() -> Seed:
    nodes = """C = Conv <pads = [1,1,1,1]> (X, K, k) R = Relu(C) P = MaxPool <kernel_shape = [2,2], strides = [2,2]> (R)
        F = Flatten(P) Y = Gemm(F, W, b)"""
    arrays = {"K": _w(2, 1, 3, 3), "k": _w(2), "W": _w(18, 3), "b": _w(3)}
    model = _net(nodes, arrays, inputs="float[N,1,6,6] X", output="float[N,3] Y", opset=17)
    return Seed(model, _w(ROWS, 1, 6, 6), _LABELS, True)


def _lstm() -> Seed:
    nodes = """T = Transpose <perm = [1,0,2]> (X) Ys, Yh = LSTM <hidden_size = 3> (T, W, R, B) H = Squeeze(Yh, axes)
        Y = Gemm(H, V, v)"""
    arrays = {"W": _w(1, 12, 2), "R": _w(1, 12, 3), "B": _w(1, 24), "axes": _ints(0), "V": _w(3, 1), "v": _w(1)}
    return Seed(_net(nodes, arrays, inputs="float[N,5,2] X"), _w(ROWS, 5, 2), _NUMBERS)


def _attention() -> Seed:
    nodes = """Q = MatMul(X, Wq) K = MatMul(X, Wk) V = MatMul(X, Wv) Kt = Transpose <perm = [0,2,1]> (K)
        S = MatMul(Q, Kt) S1 = Mul(S, scale) A = Softmax(S1) O = MatMul(A, V) R = Add(O, X)
        L = LayerNormalization(R, g, b) M = ReduceMean <keepdims = 0> (L, axes) Y = Gemm(M, W, w)"""
    arrays = {f"W{k}": _w(4, 4) for k in "qkv"} | {"scale": np.float32(0.5), "g": _w(4), "b": _w(4)}
    arrays |= {"axes": _ints(1), "W": _w(4, 3), "w": _w(3)}
    return Seed(_net(nodes, arrays, inputs="float[N,3,4] X", output="float[N,3] Y"), _w(ROWS, 3, 4), _LABELS, True)


def _towers() -> Seed:
    nodes = """u = Gather(E, user) v = Gather(F, item) m = Mul(u, v) D = Concat <axis = 1> (m, extra)
        H = Gemm(D, W0, b0) R = LeakyRelu(H) Y = Gemm(R, W1, b1)"""
    arrays = {"E": _w(7, 3), "F": _w(9, 3), "W0": _w(5, 4), "b0": _w(4), "W1": _w(4, 1), "b1": _w(1)}
    model = _net(nodes, arrays, inputs="int64[N] user, int64[N] item, float[N,2] extra")
    X = {"user": np.arange(ROWS) % 7, "item": np.arange(ROWS) % 9, "extra": _w(ROWS, 2)}
    return Seed(model, X, _NUMBERS)


def _batch_statistics() -> Seed:
    nodes = """H = MatMul(X, W) B, m2, v2 = BatchNormalization <training_mode = 1> (H, s, b, m, v) R = Relu(B)
        D = Dropout(R, ratio, yes) Y = MatMul(D, V)"""
    arrays = {"W": _w(4, 4), "s": _w(4), "b": _w(4), "m": np.zeros(4, np.float32), "v": np.ones(4, np.float32)}
    arrays |= {"ratio": np.float32(0.5), "yes": np.array(True), "V": _w(4, 1)}
    return Seed(_net(nodes, arrays), _X, _NUMBERS)


def _converted(estimator: Any, y: np.ndarray, classify: bool = False, **options: Any) -> Seed:
    from skl2onnx import to_onnx

    model = to_onnx(estimator.fit(_X, y), _X, target_opset={"": 18, "ai.onnx.ml": 3}, **options)
    return Seed(model, _X, y, classify)


def _ml_logistic() -> Seed:
    return _converted(make_pipeline(StandardScaler(), LogisticRegression()), _LABELS, True)


def _ml_forest() -> Seed:
    return _converted(RandomForestRegressor(2, max_depth=2, random_state=0), _NUMBERS)


def _ml_vectors() -> Seed:
    return _converted(SVC(kernel="rbf"), _SIGNS, True, options={"zipmap": False})


def _if() -> Seed:
    nodes = """s = ReduceSum <keepdims = 0> (X) c = Greater(s, zero)
        H = If (c) <then_branch = yes () => (float[N,3] A) { A = MatMul(X, W) },
                    else_branch = no () => (float[N,3] B) { n = Neg(X) B = MatMul(n, W) }>
        Y = Gemm(H, V, v)"""
    return Seed(_net(nodes, {"zero": np.float32(0), "W": _w(4, 3), "V": _w(3, 1), "v": _w(1)}), _X, _NUMBERS)


def _loop() -> Seed:
    nodes = """H = Loop (trips, yes, X) <body = g (int64 i, bool go, float[N,4] a) => (bool more, float[N,4] t)
            { m = MatMul(a, W) t = Tanh(m) more = Identity(go) }>
        Y = Gemm(H, V, v)"""
    arrays = {"trips": np.int64(3), "yes": np.array(True), "W": _w(4, 4), "V": _w(4, 1), "v": _w(1)}
    return Seed(_net(nodes, arrays), _X, _NUMBERS)


def _scan() -> Seed:
    nodes = """T = Transpose <perm = [1,0,2]> (X) R = ReduceMean <keepdims = 0> (T, axes)
        H, All = Scan <num_scan_inputs = 1, body = g (float[N,2] a, float[N,2] x) => (float[N,2] n, float[N,2] o)
            { p = MatMul(a, W) q = Add(p, x) n = Tanh(q) o = Identity(n) }> (R, T)
        Y = Gemm(H, V, v)"""
    arrays = {"axes": _ints(0), "W": _w(2, 2), "V": _w(2, 1), "v": _w(1)}
    return Seed(_net(nodes, arrays, inputs="float[N,3,2] X"), _w(ROWS, 3, 2), _NUMBERS)


def _functions() -> Seed:
    functions = """<domain: "own", opset_import: ["": 18, "own": 1]>
        layer (x, w, b) => (y) { h = MatMul(x, w) s = Add(h, b) y = own.bend(s) }
        <domain: "own", opset_import: ["": 18]> bend (x) => (y) { y = Tanh(x) }"""
    nodes = "H = own.layer(X, W0, b0) Y = own.layer(H, W1, b1)"
    arrays = {"W0": _w(4, 4), "b0": _w(4), "W1": _w(4, 1), "b1": _w(1)}
    return Seed(_net(nodes, arrays, domains=', "own": 1', functions=functions), _X, _NUMBERS)


def _quantized() -> Seed:
    nodes = """q = QuantizeLinear(X, s, z) D = DequantizeLinear(q, s, z) E = DequantizeLinear(Wq, t) H = MatMul(D, E)
        R = Clip(H, low, high) Y = Gemm(R, W, b)"""
    arrays = {"s": np.float32(0.02), "z": np.int8(0), "Wq": np.arange(-8, 8, dtype=np.int8).reshape(4, 4)}
    arrays |= {"t": np.float32(0.05), "low": np.float32(-1), "high": np.float32(1), "W": _w(4, 1), "b": _w(1)}
    return Seed(_net(nodes, arrays), _X, _NUMBERS)


def _embedding() -> Seed:
    nodes = "e = Gather(E, X) m = ReduceMean <axes = [1], keepdims = 0> (e) Y = Gemm <transB = 1> (m, W, b)"
    arrays = {"E": _w(11, 4), "W": _w(3, 4), "b": _w(3)}
    model = _net(nodes, arrays, inputs="int64[N,5] X", output="float[N,3] Y", opset=15)
    return Seed(model, np.arange(ROWS * 5).reshape(ROWS, 5) % 11, _LABELS, True)


def _inputs_too() -> Seed:
    """Give every initializer as an input too, as files of IR version 3 must."""
    model = _net("H = Gemm(X, W0, b0) T = Tanh(H) Y = Gemm(T, W1, b1)",
                 {"W0": _w(4, 4), "b0": _w(4), "W1": _w(4, 1), "b1": _w(1)}, ir_version=3, opset=12)  # fmt: skip
    for tensor in model.graph.initializer:
        model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return Seed(model, _X, _NUMBERS)


def _double() -> Seed:
    arrays = {"W": _w(4, 3).astype(np.float64), "b": _w(3).astype(np.float64), "V": _w(3, 1).astype(np.float64)}
    nodes = "H = Gemm(X, W, b) T = Elu(H) M = MatMul(T, V) E = Exp(M) Y = ReduceLogSumExp <keepdims = 1> (E, axes)"
    model = _net(nodes, arrays | {"axes": _ints(-1)}, inputs="double[N,4] X", output="double[N,1] Y")
    return Seed(model, _X.astype(np.float64), _NUMBERS)


def _newer() -> Seed:
    """Take operators of opset 23 and 24, which the training build does not read."""
    nodes = """Q = MatMul(X, Wq) K = MatMul(X, Wk) A = Attention <q_num_heads = 2, kv_num_heads = 2> (Q, K, X)
        R = RMSNormalization(A, g) S = Swish(R) F = Flatten(S) Y = MatMul(F, W)"""
    arrays = {"Wq": _w(4, 4), "Wk": _w(4, 4), "g": _w(4), "W": _w(12, 1)}
    return Seed(_net(nodes, arrays, inputs="float[N,3,4] X", opset=24, ir_version=10), _w(ROWS, 3, 4), _NUMBERS)


def _contributed() -> Seed:
    nodes = "H = com.microsoft.FusedMatMul <transB = 1> (X, W) G = com.microsoft.Gelu(H) Y = MatMul(G, V)"
    return Seed(_net(nodes, {"W": _w(4, 4), "V": _w(4, 1)}, domains=', "com.microsoft": 1'), _X, _NUMBERS)


def _sequences() -> Seed:
    nodes = """A = MatMul(X, W) B = Neg(A) S = SequenceConstruct(A, B) C = ConcatFromSequence <axis = 1> (S)
        P, Q = Split <axis = 1, num_outputs = 2> (C) D = Mul(P, Q) Y = Gemm(D, V, v)"""
    return Seed(_net(nodes, {"W": _w(4, 3), "V": _w(3, 1), "v": _w(1)}), _X, _NUMBERS)


def _fitted_pipeline() -> Seed:
    return Seed(make_pipeline(StandardScaler(), LogisticRegression()).fit(_X, _LABELS), _X, _LABELS, True)


def _fitted_ridge() -> Seed:
    return Seed(Ridge().fit(_X, _NUMBERS), _X, _NUMBERS)


def _built_classifier() -> Seed:
    return Seed(None, _X, _LABELS, True)


def _built_regressor() -> Seed:
    return Seed(None, _X, np.c_[_NUMBERS, _NUMBERS])


SEEDS: dict[str, Callable[[], Seed]] = {
    function.__name__.lstrip("_"): function
    for function in (
        *(_mlp, _linear, _binary, _conv, _lstm, _attention, _towers, _batch_statistics, _ml_logistic, _ml_forest),
        *(_ml_vectors, _if, _loop, _scan, _functions, _quantized, _embedding, _inputs_too, _double, _newer),
        *(_contributed, _sequences, _fitted_pipeline, _fitted_ridge, _built_classifier, _built_regressor),
    )
}


@cache
def seed(name: str) -> Seed:
    """Return a seed by its name; made once a process, to be copied before it is changed."""
    _rng.seed(sorted(SEEDS).index(name))  # whatever was made before
    return SEEDS[name]()


def drawn(number: int) -> Seed:
    """Return a graph that Hypothesis draws for this number, of a scalar output: for gradients."""
    found = []

    @hypothesis.seed(number)
    @hypothesis.settings(
        max_examples=2, database=None, deadline=None, phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    @hypothesis.given(sketches(sorted(GENERATORS), [13, 15, 18, 21], full=True))
    def draw(sketch: Any) -> None:
        found.append(sketch)

    draw()
    return Seed(found[-1].model(np.float32), None, np.zeros(0))


def pick(rng: random.Random) -> tuple[str, Seed]:
    """Return a seed and its name: one of the list, or one that Hypothesis draws."""
    if rng.random() < 0.08:
        number = rng.randrange(2**32)
        return f"drawn({number})", drawn(number)
    name = rng.choice(list(SEEDS))
    return name, seed(name)

"""If nodes whose condition shapes decide: the graph is differentiated as if the branch stood in their place."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import OrtGradientRegressor, gradient_graph
from tests.helpers.data import rows
from tests.helpers.environment import available_engines

ENGINES = pytest.mark.parametrize("engine", available_engines())
K = np.random.default_rng(0).normal(size=(2, 3, 3)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(3, 1)).astype(np.float32)


def model(body: str, x: str = "float[N, 3, 3] X", y: str = "float[?] y") -> onnx.ModelProto:
    """A graph with a kernel ``k`` of a convolution of width 3 and a matrix ``w``."""
    sizes = "int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}"
    proto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> net ({x}) => ({y}) <{sizes}> {{ {body} }}'
    )
    proto.graph.initializer.extend([onnx.numpy_helper.from_array(K, "k"), onnx.numpy_helper.from_array(W, "w")])
    return proto


def removed_if_one(value: str, axis: str, result: str) -> str:
    """What the older exporter of PyTorch writes for ``value.squeeze(axis)`` where it does not know the size."""
    return f"""s{result} = Shape({value}) g{result} = Gather(s{result}, {axis}) q{result} = Equal(g{result}, one)
        {result} = If (q{result}) <
            then_branch = t{result} () => (float[] a{result}) {{ a{result} = Squeeze({value}, {axis}) }},
            else_branch = e{result} () => (float[] b{result}) {{ b{result} = Identity({value}) }}>"""


def by_rank(then: str, otherwise: str) -> str:
    """A branch that is taken as ``m`` has three axes."""
    return f"""m = MatMul(X, w) s = Shape(m) r = Shape(s) b = Equal(r, three) v = If (b) <
        then_branch = t () => (float[] a) {{ {then} }}, else_branch = e () => (float[] o) {{ {otherwise} }}>"""


CASES = {  # the graph with If, and what it computes
    "an axis of one": (f"c = Conv(X, k) {removed_if_one('c', 'two', 'v')}", "c = Conv(X, k) v = Squeeze(c, two)"),
    "an axis of more": (
        f"c = Conv <pads = [1, 1]> (X, k) {removed_if_one('c', 'two', 'h')} v = Tanh(h)",
        "c = Conv <pads = [1, 1]> (X, k) v = Tanh(c)",
    ),
    "a pool behind it, which reads how many axes there are": (
        f"c = Conv <pads = [1, 1]> (X, k) {removed_if_one('c', 'two', 'h')} v = GlobalAveragePool(h)",
        "c = Conv <pads = [1, 1]> (X, k) v = GlobalAveragePool(c)",
    ),
    "one after the other": (
        f"c = Conv(X, k) {removed_if_one('c', 'two', 'h')} u = Unsqueeze(h, two) d = Tanh(u) "
        f"{removed_if_one('d', 'two', 'v')}",
        "c = Conv(X, k) v = Tanh(c)",
    ),
    "within a branch": (
        by_rank(f"{removed_if_one('m', 'two', 'i')} a = Tanh(i)", "o = Exp(m)"), "m = MatMul(X, w) v = Tanh(m)"
    ),
    "with constants of its own": (
        by_rank("f = Constant <value = float {2.0}> () g = Sin(m) a = Mul(g, f)", "o = Exp(m)"),
        "m = MatMul(X, w) g = Sin(m) v = Add(g, g)",
    ),
}  # fmt: skip


def gradients(body: str, engine: str, wrt: str) -> list[np.ndarray]:
    proto = model(f"{body} l = ReduceSum <keepdims = 0> (v)", y="float l")
    graph = gradient_graph(proto, wrt=wrt, of="l", engine=engine)
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"X": rows(6, 9).reshape(6, 3, 3)})


@ENGINES
@pytest.mark.parametrize("case", CASES)
def test_gradient_is_that_of_the_branch(case, engine):
    with_if, plain = CASES[case]
    wrt = "k" if "Conv" in plain else "w"
    for found, expected in zip(gradients(with_if, engine, wrt), gradients(plain, engine, wrt), strict=True):
        assert np.abs(expected).max() > 0
        assert_allclose(found, expected, rtol=1e-6)


@ENGINES
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_recurrence_behind_a_squeeze_is_trained_as_without_if(engine):
    """The pattern of Silero VAD: convolutions down to one frame, ``squeeze(-1)``, and layers for rows."""
    tail = "z = Gemm(h, v) y = Squeeze(z, one)"
    v = np.random.default_rng(2).normal(size=(2, 1)).astype(np.float32)
    found = []
    for body in (
        f"c = Conv(X, k) {removed_if_one('c', 'two', 'h')} {tail}",
        f"c = Conv(X, k) h = Squeeze(c, two) {tail}",
    ):
        proto = model(body, "float[N, 3, L] X", "float[N] y")
        proto.graph.initializer.append(onnx.numpy_helper.from_array(v, "v"))
        net = OrtGradientRegressor(proto, max_iter=3, random_state=0, engine=engine)
        found.append(net.fit(rows(8, 9).reshape(8, 3, 3), rows(8, 1, seed=1).ravel()))
    first, second = found
    assert set(first.weights_) == {"k", "v"}
    for name, array in second.weights_.items():
        assert_array_equal(first.weights_[name], array)
    assert [node.op_type for node in first.to_onnx().graph.node].count("If") == 1  # sizes may vary in what is exported


def test_an_unknown_condition_stays_an_if():
    body = """m = MatMul(X, w) q = ReduceSum <keepdims = 0> (X) b = Greater(q, bound) v = If (b) <
        then_branch = t () => (float[] a) { a = Tanh(m) }, else_branch = e () => (float[] o) { o = Sin(m) }>
        l = ReduceSum <keepdims = 0> (v)"""
    proto = model(body, y="float l")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0), "bound"))
    graph = gradient_graph(proto, wrt="w", of="l", engine="portable")
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    for sign, slope in ((1, lambda m: 1 - np.tanh(m) ** 2), (-1, np.cos)):
        X = sign * np.abs(rows(6, 9)).reshape(6, 3, 3)
        expected = np.einsum("nij,nik->jk", X, slope(X @ W))
        assert_allclose(session.run(["w_grad"], {"X": X})[0], expected, rtol=1e-4)

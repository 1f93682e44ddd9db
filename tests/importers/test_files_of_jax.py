"""Files of jax2onnx: its names say nothing, its loops take weights as states, and its epsilons are cast like others."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.testing import assert_allclose
from onnx import numpy_helper

from onnxtrain_sklearn import SGD, OrtGradientRegressor
from tests.helpers.data import rows

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
RNG = np.random.default_rng(0)
W, V = RNG.normal(size=(3, 3)).astype(np.float32), RNG.normal(size=(3, 1)).astype(np.float32)
ONES, BIAS = np.ones(3, np.float32), np.float32([0.1, -0.2, 0.3])
STEP = "t = Gemm(h, w, c) n = Tanh(t)"
LOOP = f"""u, z, e = Loop (trips, , const_0, const_1, X) <body = b
    (int64 i, bool go, float[?, ?] w, float[?] c, float[N, 3] h) =>
    (bool more, float[?, ?] w1, float[?] c1, float[?, ?] n) {{
    {STEP} more = Identity(go) w1 = Identity(w) c1 = Identity(c) }}>"""
SCAN = f"""u, z, e = Scan <num_scan_inputs = 1, body = b
    (float[?, ?] w, float[?] c, float[N, 3] h, int64 i) => (float[?, ?] w1, float[?] c1, float[?, ?] n)
    {{ {STEP} w1 = Identity(w) c1 = Identity(c) }}> (const_0, const_1, X, indices)"""
WRITTEN_OUT = """a = Gemm(X, const_0, const_1) b = Tanh(a) c = Gemm(b, const_0, const_1) d = Tanh(c)
    f = Gemm(d, const_0, const_1) e = Tanh(f)"""
END = " y = MatMul(e, const_2)"
LOOPED = {"const_0": W, "const_1": BIAS, "const_2": V}
INTEGERS = {"trips": np.array(3), "indices": np.arange(3)}


def model(body: str, arrays: dict[str, np.ndarray], producer: str = "jax2onnx") -> onnx.ModelProto:
    proto = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> net (float[N, 3] X) => (float[N, 1] y) {{ {body} }}'
    )
    proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items() if n in body)
    proto.producer_name = producer
    return proto


def fitted(proto: onnx.ModelProto) -> OrtGradientRegressor:
    plain = {"optimizer": SGD(), "learning_rate_init": 0.05, "max_iter": 5, "shuffle": False, "engine": "portable"}
    return OrtGradientRegressor(proto, **plain).fit(rows(), rows(8, 1, seed=1).ravel())


@pytest.mark.parametrize("body", [LOOP, SCAN], ids=["Loop", "Scan"])
def test_weights_that_a_loop_takes_as_states_are_trained(body):
    found = fitted(model(body + END, LOOPED | INTEGERS))
    expected = fitted(model(WRITTEN_OUT + END, LOOPED))
    assert found.weights_.keys() == expected.weights_.keys() == LOOPED.keys()
    for name, array in expected.weights_.items():
        assert np.abs(array - LOOPED[name]).max() > 1e-3
        assert_allclose(found.weights_[name], array, rtol=0, atol=1e-6, err_msg=name)
    exported = onnx.ModelProto.FromString(found.to_onnx().SerializeToString())
    onnx.checker.check_model(exported, full_check=True)


def test_scanned_inputs_are_no_states():
    echo = SCAN.replace("z, e =", "z, e, k =").replace("n)\n", "n, int64 j)\n").replace(" }>", " j = Identity(i) }>")
    mean = " q = Cast <to = 1> (k) m = ReduceMean <keepdims = 0> (q) o = Add(e, m) y = MatMul(o, const_2)"
    one = " m = Constant <value_float = 1.0> () o = Add(e, m) y = MatMul(o, const_2)"
    found, expected = fitted(model(echo + mean, LOOPED | INTEGERS)), fitted(model(WRITTEN_OUT + one, LOOPED))
    for name, array in expected.weights_.items():
        assert_allclose(found.weights_[name], array, rtol=0, atol=1e-6, err_msg=name)


def test_a_state_that_the_graph_returns_stays():
    proto = model(LOOP + END, LOOPED | INTEGERS)
    proto.graph.output.append(onnx.helper.make_tensor_value_info("u", onnx.TensorProto.FLOAT, [3, 3]))
    assert fitted(proto).weights_.keys() >= {"const_2"}


SCALED = "m = MatMul(X, const_0) p = Mul(m, m) q = ReduceMean(p, axis) r = Add(q, {}) s = Sqrt(r) d = Div(m, s) "
NORMALIZED = SCALED + "e = Mul(d, const_3)" + END
ARRAYS = {"const_0": W, "const_2": V, "const_3": ONES, "axis": np.array([1]), "eps_0": np.array(1e-6, np.float32)}


def test_an_epsilon_that_is_cast_is_not_trained():
    body = NORMALIZED.format("o").replace("r =", "o = CastLike(eps_0, q) r =")
    assert fitted(model(body, ARRAYS)).weights_.keys() == {"const_0", "const_2", "const_3"}


@pytest.mark.parametrize(("producer", "trained"), [("jax2onnx", True), ("", False)])
def test_jax_arrays_of_any_name_are_parameters(producer, trained):
    found = fitted(model(NORMALIZED.format("eps_0"), ARRAYS, producer))
    assert ("const_3" in found.weights_) == trained


def test_scale_and_bias_of_a_fresh_batch_normalization_are_trained():
    body = "m = MatMul(X, const_0) e = BatchNormalization(m, const_3, const_4, const_5, const_6)" + END
    arrays = ARRAYS | {"const_4": 0 * ONES, "const_5": BIAS, "const_6": ONES}
    found = fitted(model(body, arrays)).weights_
    moved = {name for name, array in found.items() if np.abs(array - arrays[name]).max() > 1e-4}
    assert moved == {"const_0", "const_2", "const_3", "const_4"}


def test_a_single_zero_in_the_place_of_a_bias_is_not_trained():
    body = "m = Gemm(X, const_0, none) e = Tanh(m)" + END
    assert fitted(model(body, ARRAYS | {"none": np.float32(0)})).weights_.keys() == {"const_0", "const_2"}

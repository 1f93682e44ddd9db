"""Files that were exported for a fixed number of rows: constants that hold for it alone are made to suit any number."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.testing import assert_allclose

from onnxtrain_sklearn import SGD, GraphModel, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.environment import each_engine
from tests.model.test_constant_inputs import parsed

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RNG = np.random.default_rng(2)
ROWS = 11
X = RNG.normal(size=(ROWS, 4, 6)).astype(np.float32)
y = RNG.normal(size=ROWS)


def weight(*shape):
    return np.random.default_rng(sum(shape)).normal(scale=0.5, size=shape).astype(np.float32)


def ints(*numbers):
    return np.array(numbers, np.int64)


# Bodies of graphs from ``x`` (batch, 4, 6) to ``out`` (batch, 1), and their constants, or functions of the batch.
HEADS = """q = MatMul(x, Q) s = Reshape(q, heads) t = Transpose<perm = [0, 2, 1, 3]>(s) m = Reshape(t, merged)
    u = Transpose<perm = [0, 2, 1]>(m) a = MatMul(m, u) p = Softmax<axis = -1>(a) v = MatMul(p, m)
    w = Reshape(v, heads_first) z = Transpose<perm = [0, 2, 1, 3]>(w) r = Reshape(z, joined) out = MatMul(r, V)"""
STEPS_FIRST = """q = MatMul(x, Q) s = Transpose<perm = [1, 0, 2]>(q) m = Reshape(s, merged)
    t = Transpose<perm = [1, 0, 2]>(m) u = Transpose<perm = [0, 2, 1]>(t) a = MatMul(t, u)
    p = Softmax<axis = -1>(a) v = MatMul(p, t)
    w = Transpose<perm = [1, 0, 2]>(v) r = Reshape(w, flat) o = MatMul(r, P) k = Reshape(o, steps)
    z = Transpose<perm = [1, 0, 2]>(k) j = Reshape(z, joined) out = MatMul(j, V)"""
ENDS = {"V": weight(24, 1), "joined": lambda b: ints(b, 24)}
CASES = {
    "heads joined with rows": (
        HEADS,
        {
            "Q": weight(6, 6), "heads": lambda b: ints(b, 4, 2, 3), "merged": lambda b: ints(2 * b, 4, 3),
            "heads_first": lambda b: ints(b, 2, 4, 3), **ENDS,
        },
    ),
    "steps before rows": (
        STEPS_FIRST,
        {
            "Q": weight(6, 6), "P": weight(6, 6), "merged": lambda b: ints(4, 2 * b, 3),
            "flat": lambda b: ints(4 * b, 6), "steps": lambda b: ints(4, b, 6), **ENDS,
        },
    ),
    "token before the steps": (
        "t = Concat<axis = 1>(token, x) a = MatMul(t, Q) h = Tanh(a) r = Reshape(h, joined) out = MatMul(r, V)",
        {
            "token": lambda b: np.repeat(weight(1, 1, 6), b, axis=0), "Q": weight(6, 6), "V": weight(30, 1),
            "joined": lambda b: ints(b, 30),
        },
    ),
    "expanded token": (
        """e = Expand(token, shape) t = Concat<axis = 1>(e, x) a = MatMul(t, Q) h = Tanh(a) r = Reshape(h, joined)
        out = MatMul(r, V)""",
        {
            "token": weight(1, 1, 6), "shape": lambda b: ints(b, 1, 6), "Q": weight(6, 6), "V": weight(30, 1),
            "joined": lambda b: ints(b, 30),
        },
    ),
    "expanded rows": (
        "a = MatMul(x, Q) e = Expand(a, shape) h = Tanh(e) r = Reshape(h, joined) out = MatMul(r, V)",
        {"Q": weight(6, 1), "shape": lambda b: ints(b, 4, 6), **ENDS},
    ),
    "initial state": (
        """t = Transpose<perm = [1, 0, 2]>(x) h, l = RNN<hidden_size = 3>(t, K, R, , , start) s = Squeeze(l, zero)
        out = MatMul(s, V)""",
        {
            "K": weight(1, 3, 6), "R": weight(1, 3, 3), "V": weight(3, 1), "zero": ints(0),
            "start": lambda b: np.zeros((1, b, 3), np.float32),
        },
    ),
    "sizes of an image": (
        """i = Unsqueeze(x, one) g = Resize<mode = "nearest">(i, , , sizes) h = Tanh(g) r = Reshape(h, joined)
        out = MatMul(r, V)""",
        {"one": ints(1), "sizes": lambda b: ints(b, 1, 8, 12), "joined": lambda b: ints(b, 96), "V": weight(96, 1)},
    ),
    "all rows of a slice": (
        "s = Slice(x, start, end, axis) h = Tanh(s) r = Reshape(h, joined) out = MatMul(r, V)",
        {"start": ints(0), "end": lambda b: ints(b), "axis": ints(0), **ENDS},
    ),
    "positions for each row": (
        "p = Mul(x, places) h = Tanh(p) r = Reshape(h, joined) out = MatMul(r, V)",
        {"places": lambda b: np.repeat(np.arange(1, 5, dtype="f").reshape(1, 4, 1), b, axis=0), **ENDS},
    ),
}  # fmt: skip


def case(name, batch):
    body, arrays = CASES[name]
    made = {n: array(batch) if callable(array) else array for n, array in arrays.items()}
    return parsed(body, f"float[{batch}, 4, 6] x", f"float[{batch}, 1] out", **made)


def regressor(model, **settings):
    defaults = {"optimizer": SGD(), "learning_rate_init": 0.05, "batch_size": ROWS, "shuffle": False, "max_iter": 1}
    return OrtGradientRegressor(model, **defaults | settings)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_prediction_of_each_row_is_that_of_the_file(name, batch):
    proto = case(name, batch)
    fitted = regressor(proto, learning_rate_init=0.0).fit(X, y)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    expected = [session.run(None, {"x": np.repeat(X[[i]], batch, axis=0)})[0][0] for i in range(ROWS)]
    assert_allclose(fitted.predict(X), np.ravel(expected), rtol=1e-5, atol=1e-6)
    assert_allclose(fitted.predict(X[:2]), np.ravel(expected)[:2], rtol=1e-5, atol=1e-6)
    exported = onnxruntime.InferenceSession(fitted.to_onnx().SerializeToString())
    assert_allclose(np.ravel(exported.run(None, {"x": X})[0]), np.ravel(expected), rtol=1e-5, atol=1e-6)


@each_engine
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_step_is_that_of_the_file_written_for_all_rows(name, batch, engine):
    """The file for a batch of all rows needs no edit: its constants hold for the minibatch."""
    if engine == "ort-training" and name in ("initial state", "sizes of an image"):
        pytest.skip("onnxruntime-training has no gradient of RNN and Resize")
    whole, edited = (regressor(case(name, b), engine=engine).fit(X, y).weights_ for b in (ROWS, batch))
    trained = [n for n in edited if n not in ("token", "places", "start")]  # one row, not one for each
    assert trained
    for n in trained:
        assert_allclose(edited[n], whole[n], rtol=1e-5, atol=1e-6, err_msg=n)


@pytest.mark.parametrize("batch", [1, 3])
def test_token_of_the_file_is_trained_by_the_sum_over_all_rows(batch):
    proto = case("token before the steps", batch)
    arrays = {t.name: onnx.numpy_helper.to_array(t).astype(np.float64) for t in proto.graph.initializer}

    def loss(token):
        rows = np.concatenate([np.repeat(token, ROWS, axis=0), X.astype(np.float64)], axis=1)
        found = np.tanh(rows @ arrays["Q"]).reshape(ROWS, 30) @ arrays["V"]
        return np.mean((found.ravel() - y) ** 2)

    start = arrays["token"][:1]
    gradient = np.zeros(start.shape)
    for at in np.ndindex(start.shape):
        step = np.zeros(start.shape)
        step[at] = 1e-6
        gradient[at] = (loss(start + step) - loss(start - step)) / 2e-6
    found = regressor(proto).fit(X, y).weights_["token"]
    assert_allclose(found, start - 0.05 * gradient, rtol=1e-5, atol=1e-6)


REFUSED = {
    "other numbers for each row": (
        "p = Mul(x, places) h = Tanh(p) r = Reshape(h, joined) out = MatMul(r, V)",
        {"places": weight(3, 4, 1), "joined": ints(3, 24), "V": weight(24, 1)},
        "its place among the 3 rows for which the graph was exported",
    ),
    "computed numbers for each row": (
        "c = Cast<to = 1>(numbers) p = Mul(x, c) h = Tanh(p) r = Reshape(h, joined) out = MatMul(r, V)",
        {"numbers": np.arange(3).reshape(3, 1, 1), "joined": ints(3, 24), "V": weight(24, 1)},
        "the 3 rows for which the graph was exported",
    ),
    "one row of the batch": (
        "s = Gather<axis = 0>(x, first) r = Reshape(s, joined) out = MatMul(r, V)",
        {"first": np.array(1), "joined": ints(1, 24), "V": weight(24, 1)},
        "depends on the other rows|does not run|output rows",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_file_in_which_rows_are_not_alike_is_refused(name):
    body, arrays, message = REFUSED[name]
    estimator = regressor(parsed(body, "float[3, 4, 6] x", "float[3, 1] out", **arrays))
    with pytest.raises(ModelError, match=message):
        estimator.fit(X, y)
    assert not hasattr(estimator, "n_iter_")


def test_states_of_a_fixed_batch_are_rows_on_their_axis():
    """The form of Silero VAD for OpenVINO: signal (1, T), state (2, 1, H)."""
    proto = parsed(
        """t = Transpose<perm = [1, 0, 2]>(x) h, l = RNN<hidden_size = 3>(t, K, R, , , state) s = Squeeze(l, zero)
        out = MatMul(s, V) last = Identity(l)""",
        "float[1, 4, 6] x, float[1, 1, 3] state",
        "float[1, 1] out, float[1, 1, 3] last",
        K=weight(1, 3, 6),
        R=weight(1, 3, 3),
        V=weight(3, 1),
        zero=ints(0),
    )
    states = RNG.normal(size=(ROWS, 1, 3)).astype(np.float32)
    given = GraphModel(proto, output="out", batch_axis={"state": 1, "last": 1})
    fitted = regressor(given, learning_rate_init=0.0).fit({"x": X, "state": states}, y)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    expected = [session.run(["out"], {"x": X[[i]], "state": states[[i]]})[0] for i in range(ROWS)]
    assert_allclose(fitted.predict({"x": X, "state": states}), np.ravel(expected), rtol=1e-5, atol=1e-6)

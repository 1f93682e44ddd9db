"""Estimators that train graphs with recurrences, attention and branches: what the portable engine takes apart."""

from __future__ import annotations

import pickle
from contextlib import nullcontext

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import OrtGradientClassifier
from onnxtrain_sklearn.exceptions import OnnxTrainWarning

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

STEPS, FEATURES, SIZE = 6, 3, 8

rng = np.random.RandomState(0)
X = rng.normal(size=(150, STEPS, FEATURES)).astype(np.float32)
y = np.where(X[:, :, 0].sum(axis=1) * X[:, -1, 1] > 0, "same", "different")

RECURRENCE = f"""
    t = Transpose<perm = [1, 0, 2]>(X)
    s, e, c = LSTM<hidden_size = {SIZE}, direction = "bidirectional">(t, W, R, B)
    q = Transpose<perm = [1, 0, 2]>(e)
    h = Reshape(q, flat)"""
BRANCH = """
    m = ReduceMean<keepdims = 0>(X)
    more = Cast<to = 9>(m)
    h = If(more)<
        then_branch = one () => (float[N, 16] a) { r = Reshape(X, wide) p = MatMul(r, W) a = Tanh(p) },
        else_branch = two () => (float[N, 16] u) { v = Reshape(X, wide) u = MatMul(v, W) }>"""
SEQUENCE = """
    k = MatMul(X, W)
    s = SplitToSequence<axis = 1, keepdims = 1>(k)
    first = SequenceAt(s, zero)
    last = SequenceAt(s, end)
    pair = Concat<axis = 2>(first, last)
    p = Squeeze(pair, axes)
    h = Tanh(p)"""


def recurrent_graph(body: str, arrays: dict[str, np.ndarray | tuple[int, ...]]) -> onnx.ModelProto:
    """Return a classifier of sequences; a shape stands for weights drawn from a fixed seed."""
    head = f'<ir_version: 8, opset_import: ["": 18]> net (float[N,{STEPS},{FEATURES}] X) => (float[N,1] z)'
    model = onnx.parser.parse_model(f"{head} {{ {body} z = Gemm(h, V, b) }}")
    draw = np.random.RandomState(1)
    for name, array in {**arrays, "V": (16, 1), "b": (1,)}.items():
        values = draw.normal(size=array).astype(np.float32) * 0.4 if isinstance(array, tuple) else array
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return model


GRAPHS = {
    "recurrence": recurrent_graph(
        RECURRENCE,
        {"W": (2, 4 * SIZE, FEATURES), "R": (2, 4 * SIZE, SIZE), "B": (2, 8 * SIZE), "flat": np.array([0, 16])},
    ),
    "branch": recurrent_graph(BRANCH, {"W": (STEPS * FEATURES, 16), "wide": np.array([0, STEPS * FEATURES])}),
    "sequence": recurrent_graph(
        SEQUENCE,
        {"W": (FEATURES, SIZE), "zero": np.array(0), "end": np.array(STEPS - 1), "axes": np.array([1])},
    ),
}


def recurrent_classifier(model: onnx.ModelProto, **settings: object) -> OrtGradientClassifier:
    usual = {"learning_rate_init": 0.02, "max_iter": 15, "batch_size": 50, "random_state": 0, "engine": "auto"}
    return OrtGradientClassifier(model, **{**usual, **settings})


@pytest.mark.parametrize("name", GRAPHS)
def test_trains_pickles_and_exports(name):
    rows_meet = name == "branch"  # its condition reads the mean over all rows
    with pytest.warns(OnnxTrainWarning, match="depends on the other rows") if rows_meet else nullcontext():
        net = recurrent_classifier(GRAPHS[name]).fit(X, y)
    assert net.engine_ == "portable"
    assert net.loss_curve_[-1] < 0.95 * net.loss_curve_[0]
    assert all(np.isfinite(array).all() for array in net.weights_.values())
    proba = net.predict_proba(X)
    assert_array_equal(pickle.loads(pickle.dumps(net)).predict_proba(X), proba)
    session = onnxruntime.InferenceSession(net.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    outputs = dict(zip([o.name for o in session.get_outputs()], session.run(None, {"X": X}), strict=True))
    assert any(np.shape(a) == proba.shape and np.allclose(a, proba, 1e-5, 1e-6) for a in outputs.values())


def test_goes_on_exactly_after_unpickling():
    one = recurrent_classifier(GRAPHS["recurrence"]).partial_fit(X, y, classes=np.unique(y))
    other = pickle.loads(pickle.dumps(one))
    one.partial_fit(X, y)
    other.partial_fit(X, y)
    for name, array in one.weights_.items():
        assert_allclose(other.weights_[name], array, rtol=0, atol=0, err_msg=name)


def test_the_length_of_a_sequence_may_be_symbolic():
    model = onnx.ModelProto()
    model.CopyFrom(GRAPHS["recurrence"])
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "T"
    fixed, free = (
        recurrent_classifier(GRAPHS["recurrence"], max_iter=3).fit(X, y),
        recurrent_classifier(model, max_iter=3).fit(X, y),
    )
    assert_allclose(free.loss_curve_, fixed.loss_curve_, rtol=1e-6)

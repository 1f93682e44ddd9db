"""Graphs that were exported for a number of rows, and graphs in which rows meet."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose

from onnxtrain_sklearn import SGD, FineTuner, GraphModel, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

SETTINGS = {"optimizer": SGD(), "max_iter": 2, "batch_size": 10, "engine": "portable", "random_state": 0}
WEIGHT = "float[3, 1] w = {1, -2, 0.5}"
X = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
Y = X @ [1.0, 0.0, -1.0]


def parsed(body, x="float[N, 3] x", y="float[N, 1] y", weights=WEIGHT):
    text = f'<ir_version: 8, opset_import: ["": 18]> g ({x}) => ({y}) <{weights}> {{ {body} }}'
    return onnx.parser.parse_model(text)


def fitted(model, X=X):
    return OrtGradientRegressor(model, **SETTINGS).fit(X, Y[: len(X)])


@pytest.mark.parametrize("setting", ["", "<allowzero = 1>"])
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("shape", ["-1, 3", "{batch}, 3", "{batch}, -1"])
def test_shapes_that_begin_with_the_batch_are_freed(shape, batch, setting):
    """PyTorch's newer exporter sets ``allowzero``, by which a size of zero is not the data's own."""
    shape = shape.format(batch=batch)
    weights = f"{WEIGHT}, int64[2] s = {{{shape}}}"
    x = f"float[{batch}, 3, 1] x"
    found = fitted(
        parsed(f"f = Reshape {setting} (x, s) y = MatMul(f, w)", x, f"float[{batch}, 1] y", weights), X[:, :, None]
    )
    assert_allclose(found.predict(X[:, :, None]), fitted(parsed("y = MatMul(x, w)")).predict(X), rtol=1e-5)


def test_reshapes_of_weights_stay():
    weights = f"{WEIGHT}, int64[2] s = {{3, 1}}"
    found = fitted(parsed("f = Reshape(w, s) y = MatMul(x, f)", "float[3, 3] x", "float[3, 1] y", weights))
    assert_allclose(found.predict(X), fitted(parsed("y = MatMul(x, w)")).predict(X), rtol=1e-5)


def test_a_batch_that_cannot_be_freed_is_named_in_a_sentence():
    """The text of onnxruntime is the cause, and not part of the message."""
    weights = f"{WEIGHT}, float[4, 1] b = {{1, 2, 3, 4}}"
    model = parsed("a = MatMul(x, w) y = Add(a, b)", "float[4, 3] x", "float[4, 1] y", weights)
    expected = (
        r"depends on the other rows, or on its place among the 4 rows for which.*dynamic batch axis.*dynamic_shapes"
    )
    with pytest.raises(ModelError, match=expected) as found:
        fitted(model)
    with pytest.raises(ModelError, match=expected):  # as many rows as it was exported for are not enough either
        fitted(model, X[:4])
    assert "onnxruntime" not in str(found.value).lower()
    assert len(str(found.value)) < 370


def test_a_fixed_first_axis_beside_a_free_one_is_refused():
    weights = "float[5, 1] w = {1, 2, 3, 4, 5}, int64[1] axis = {0}"
    model = parsed(
        "m = ReduceMean<keepdims = 0>(x, axis) y = MatMul(m, w)", "float[7, b, 5] x", "float[b, 1] y", weights
    )
    with pytest.raises(
        ModelError, match=r"first axis is fixed to 7, and its rows are on axis 1 \('b'\).*batch_axis={'x': 1}"
    ):
        fitted(model, np.zeros((30, 7, 5), np.float32))


@pytest.mark.parametrize(
    "body",
    [
        "a = MatMul(x, w) y = Softmax<axis = 0>(a)",
        "m = ReduceMean<keepdims = 1>(x, axis) c = Sub(x, m) y = MatMul(c, w)",
        "a = MatMul(x, w) y = CumSum(a, zero)",
    ],
)
def test_graphs_of_a_fixed_batch_in_which_rows_meet_are_refused(body):
    weights = f"{WEIGHT}, int64[1] axis = {{0}}, int64 zero = {{0}}"
    with pytest.raises(ModelError, match="for a row of X depends on the other rows"):
        fitted(parsed(body, "float[8, 3] x", "float[8, 1] y", weights))


@pytest.mark.parametrize("steps", [6, 5, 13])
def test_rows_on_another_axis_of_the_output_are_named(steps):
    """Recurrent networks of PyTorch give the steps first; there may be as many steps as rows."""
    model = parsed("t = Transpose <perm = [2, 0, 1]> (x) y = MatMul(t, w)", "float[N, 3, T] x", "float[T, N, 1] y")
    n_rows = 40 if steps == 13 else 6
    sequences = np.random.default_rng(1).normal(size=(n_rows, 3, steps))
    with pytest.raises(ModelError, match=f"gives {steps} output rows.*axis 1 of its output.*batch_axis=.*batch_first"):
        OrtGradientRegressor(model, **SETTINGS).fit(sequences, sequences[:, 0])


def test_as_many_steps_as_rows_are_trained_where_the_rows_come_first():
    model = parsed("t = Transpose <perm = [0, 2, 1]> (x) y = MatMul(t, w)", "float[N, 3, T] x", "float[N, T, 1] y")
    sequences = np.random.default_rng(1).normal(size=(6, 3, 6)).astype(np.float32)
    net = OrtGradientRegressor(model, **SETTINGS).fit(sequences, sequences[:, 0])
    assert net.predict(sequences[:2]).shape == (2, 6)


STEPS_FIRST = {
    "a recurrent layer": ("T, B", "h = GRU <hidden_size = 1> (x, k, r) y = Squeeze(h, one)", "h"),
    "a sum of an input that names its batch": (
        "steps, batch",
        "h = MatMul(x, w) t = CumSum(h, zero) y = Identity(t)",
        "t",
    ),
}


@pytest.mark.parametrize("case", STEPS_FIRST)
def test_sequences_whose_steps_come_first_are_refused(case):
    """The steps of such a graph would be the rows of X: a prediction would depend on the rows before."""
    axes, body, features = STEPS_FIRST[case]
    weights = f"{WEIGHT}, int64[1] one = {{1}}, int64 zero = {{0}}"
    model = parsed(body, f"float[{axes}, 3] x", f"float[{axes}, 1] y", weights)
    for name, shape in (("k", (1, 3, 3)), ("r", (1, 3, 1))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.full(shape, 0.5, np.float32), name))
    sequences = np.random.default_rng(1).normal(size=(30, 5, 3))
    head = OrtGradientRegressor(GraphModel(model, output=features), finetune=FineTuner(new_head=True), random_state=0)
    with pytest.raises(ModelError, match="for a row of X depends on the other rows"):
        head.fit(sequences, sequences[:, 0, 0])
    with pytest.raises(ModelError, match=r"for a row of X depends on the other rows.*batch_first=True"):
        OrtGradientRegressor(model, **SETTINGS).fit(sequences, sequences[:, :, 0])

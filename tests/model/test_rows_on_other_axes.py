"""``batch_axis``: files whose rows are on another axis than the first, such as states of recurrent layers."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

from onnxtrain_sklearn import (
    SGD,
    FineTuner,
    GraphModel,
    Inputs,
    LoRA,
    OrtGradientClassifier,
    OrtGradientMultiOutput,
    OrtGradientRegressor,
)
from onnxtrain_sklearn.exceptions import InvalidParameterError, ModelError
from tests.helpers.environment import each_engine
from tests.model.test_constant_inputs import parsed, slopes

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RNG = np.random.default_rng(1)
ROWS, STEPS, FEATURES, HIDDEN = 24, 4, 3, 2
SEQUENCES = RNG.normal(size=(ROWS, STEPS, FEATURES)).astype(np.float32)
STATES = RNG.normal(size=(ROWS, 1, HIDDEN)).astype(np.float32)
X = {"frames": SEQUENCES, "state": STATES}
WEIGHTS = {
    "K": RNG.normal(size=(1, HIDDEN, FEATURES)).astype(np.float32),
    "R": RNG.normal(size=(1, HIDDEN, HIDDEN)).astype(np.float32),
    "V": RNG.normal(size=(HIDDEN, 1)).astype(np.float32),
}
y = RNG.normal(size=(ROWS, STEPS))
RECURRENT = parsed(
    f"h, last = RNN<hidden_size = {HIDDEN}>(frames, K, R, , , state) s = Squeeze(h, one) out = MatMul(s, V)",
    f"float[steps, batch, {FEATURES}] frames, float[1, batch, {HIDDEN}] state",
    f"float[steps, batch, 1] out, float[1, batch, {HIDDEN}] last",
    one=np.array([1]),
    **WEIGHTS,
)
SETTINGS = {"optimizer": SGD(), "learning_rate_init": 0.05, "batch_size": ROWS, "shuffle": False, "max_iter": 1}


def regressor(model=RECURRENT, axes=1, **settings):
    return OrtGradientRegressor(GraphModel(model, output="out", batch_axis=axes), **SETTINGS | settings)


def predictions(weights):
    """The recurrent network in float64, one row after the other."""
    k, r, v = (np.asarray(weights[name], np.float64) for name in ("K", "R", "V"))
    found = np.zeros((ROWS, STEPS))
    for i in range(ROWS):
        h = STATES[i, 0].astype(np.float64)
        for t in range(STEPS):
            h = np.tanh(k[0] @ SEQUENCES[i, t] + r[0] @ h)
            found[i, t] = (h @ v).item()
    return found


@each_engine
@pytest.mark.parametrize("axes", [1, {"frames": 1, "state": 1, "out": 1}])
def test_step_of_a_network_with_states_matches_central_differences(axes, engine):
    if engine == "ort-training":
        pytest.skip("onnxruntime-training has no gradient of RNN")
    fitted = regressor(axes=axes, engine=engine).fit(X, y)
    for name, start in WEIGHTS.items():
        gradient = slopes(start, lambda w, name=name: np.mean((predictions({**WEIGHTS, name: w}) - y) ** 2))
        assert_allclose(fitted.weights_[name], start - 0.05 * gradient, rtol=1e-5, atol=2e-6, err_msg=name)
    assert_allclose(fitted.predict(X).reshape(ROWS, STEPS), predictions(fitted.weights_), rtol=1e-4, atol=1e-5)


def test_exported_file_has_the_axes_of_the_given_one():
    fitted = regressor(max_iter=3).fit(X, y)
    proto = fitted.to_onnx()
    onnx.checker.check_model(proto, full_check=True)
    given = {value.name: value.type for value in (*RECURRENT.graph.input, *RECURRENT.graph.output)}
    for value in (*proto.graph.input, *proto.graph.output):
        declared = [d.dim_value for d in given[value.name].tensor_type.shape.dim]
        assert [d.dim_value for d in value.type.tensor_type.shape.dim] == declared
    assert [n.op_type for n in proto.graph.node] == ["RNN", "Squeeze", "MatMul"]  # no transposition is left
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    feeds = {name: np.ascontiguousarray(np.moveaxis(array, 0, 1)) for name, array in X.items()}
    (found,) = session.run(["out"], feeds)
    assert_array_equal(np.moveaxis(found, 1, 0).reshape(ROWS, STEPS), fitted.predict(X).reshape(ROWS, STEPS))


TWO_ENDS = parsed(
    "t = Transpose<perm = [1, 0]>(x) a = MatMul(t, W) s = Mul(a, a) out = Transpose<perm = [1, 0]>(s)",
    "float[3, N] x",
    "float[2, N] out",
    W=RNG.normal(size=(3, 2)).astype(np.float32),
)


@each_engine
def test_columns_as_rows_are_trained_by_the_formula(engine):
    rows, targets = RNG.normal(size=(ROWS, 3)).astype(np.float32), RNG.normal(size=(ROWS, 2))
    start = onnx.numpy_helper.to_array(TWO_ENDS.graph.initializer[0]).astype(np.float64)
    fitted = regressor(TWO_ENDS, engine=engine).fit(rows, targets)
    a = rows.astype(np.float64) @ start
    gradient = rows.T @ (2 * (a * a - targets) * 2 * a) / (2 * ROWS)
    assert_allclose(fitted.weights_["W"], start - 0.05 * gradient, rtol=1e-5, atol=1e-6)
    proto = fitted.to_onnx()
    assert [d.dim_value for d in proto.graph.output[0].type.tensor_type.shape.dim] == [2, 0]
    (found,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": rows.T.copy()})
    assert_allclose(found.T, fitted.predict(rows), rtol=1e-6)


@pytest.mark.long
def test_classifier_with_states_is_exported_with_states_of_the_file():
    model = parsed(
        f"h, last = GRU<hidden_size = {HIDDEN}>(frames, K, R, , , state) s = Squeeze(last, zero) z = MatMul(s, V)"
        " p = Sigmoid(z)",
        f"float[T, N, {FEATURES}] frames, float[1, N, {HIDDEN}] state",
        "float[N, 1] p",
        zero=np.array([0]),
        K=RNG.normal(size=(1, 3 * HIDDEN, FEATURES)).astype(np.float32),
        R=RNG.normal(size=(1, 3 * HIDDEN, HIDDEN)).astype(np.float32),
        V=np.ones((HIDDEN, 1), np.float32),
    )
    labels = np.array(["no", "yes"])[(SEQUENCES[:, :, 0].sum(axis=1) > 0).astype(int)]
    given = GraphModel(model, batch_axis={"frames": 1, "state": 1})
    fitted = OrtGradientClassifier(clone(given), max_iter=3, random_state=0).fit(X, labels)
    copy = pickle.loads(pickle.dumps(fitted))
    assert_array_equal(copy.predict_proba(X), fitted.predict_proba(X))
    copy.partial_fit(X, labels)
    for one in (fitted, copy):
        session = onnxruntime.InferenceSession(one.to_onnx().SerializeToString())
        feeds = {name: np.ascontiguousarray(np.moveaxis(array, 0, 1)) for name, array in X.items()}
        label, p = session.run(None, feeds)
        assert_array_equal(label, one.predict(X))
        assert_allclose(p, one.predict_proba(X), rtol=1e-5, atol=1e-6)
    onnx.checker.check_model(fitted.to_training_onnx())
    scores = cross_val_score(OrtGradientClassifier(given, max_iter=2), Inputs(X), labels, cv=2)
    assert np.isfinite(scores).all()


def test_low_rank_factors_and_new_heads_keep_the_axes_of_the_file():
    adapted = regressor(TWO_ENDS, adapters=LoRA(rank=1)).fit(SEQUENCES[:, 0], RNG.normal(size=(ROWS, 2)))
    proto = adapted.to_onnx(adapter=True)
    assert [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim] == [3, 0]
    given = GraphModel(TWO_ENDS, output="s", batch_axis=1)
    head = OrtGradientRegressor(given, finetune=FineTuner(new_head=True)).fit(SEQUENCES[:, 0], SEQUENCES[:, 1])
    proto = head.to_onnx()
    assert [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim] == [3, 0]
    (found,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": SEQUENCES[:, 0].T.copy()})
    assert_allclose(found, head.predict(SEQUENCES[:, 0]), rtol=1e-5, atol=1e-6)


def test_training_graphs_have_the_rows_first(tmp_path):
    fitted = regressor(TWO_ENDS, batch_size=8).fit(SEQUENCES[:, 0], SEQUENCES[:, 1, :2])
    fitted.export_training(tmp_path)
    shapes = [
        [d.dim_value for d in v.type.tensor_type.shape.dim]
        for file in tmp_path.glob("*.onnx")
        for v in onnx.load(file).graph.input
        if v.name == "x"
    ]
    assert shapes
    assert all(shape[-1] == 3 for shape in shapes)


def test_several_outputs_have_axes_of_their_own():
    model = parsed(
        "t = Transpose<perm = [1, 0]>(x) a = MatMul(t, P) b = MatMul(t, Q) one = Transpose<perm = [1, 0]>(a)"
        " two = Identity(b)",
        "float[3, N] x",
        "float[1, N] one, float[N, 1] two",
        P=np.ones((3, 1), np.float32),
        Q=np.full((3, 1), 2, np.float32),
    )
    rows, targets = SEQUENCES[:, 0], {"one": y[:, 0], "two": y[:, 1]}
    losses = dict.fromkeys(targets, "squared_error")
    net = OrtGradientMultiOutput(
        GraphModel(model, batch_axis={"x": 1, "one": 1}), loss=losses, learning_rate_init=0.0
    ).fit(rows, targets)
    found = net.predict(rows)
    assert_allclose(found["one"], rows.sum(axis=1), rtol=1e-5, atol=1e-6)
    assert_allclose(found["two"], 2 * rows.sum(axis=1), rtol=1e-5, atol=1e-6)
    session = onnxruntime.InferenceSession(net.to_onnx().SerializeToString())
    one, two = session.run(["one", "two"], {"x": rows.T.copy()})
    assert one.shape == (1, ROWS)
    assert two.shape == (ROWS, 1)


REFUSED = [
    ({"stat": 1}, ModelError, "batch_axis names 'stat', which is no input and no output.*'state'"),
    ({"state": 3}, ModelError, r"'state' has no axis 3, its shape is \(1, 'batch', 2\)"),
    (7, ModelError, r"has no axis 7.*Give a dict"),
    ({"state": -1}, InvalidParameterError, "must be the number of an axis, at least 0"),
    ({"state": True}, InvalidParameterError, "must be the number of an axis"),
    ({"state": "1"}, InvalidParameterError, "must be the number of an axis"),
    (True, InvalidParameterError, "must be the number of an axis"),
    (-1, InvalidParameterError, "'batch_axis' parameter of GraphModel must be an int in the range"),
    ("rows", InvalidParameterError, "'batch_axis' parameter of GraphModel must be an int in the range"),
]


@pytest.mark.parametrize(("axes", "error", "message"), REFUSED)
def test_axis_that_no_input_has_is_refused(axes, error, message):
    estimator = regressor(axes=axes)
    with pytest.raises(error, match=message):
        estimator.fit(X, y)
    assert not hasattr(estimator, "n_iter_")


def test_wrong_axis_is_refused_before_training():
    """Each row would meet the others: the steps are taken for rows."""
    with pytest.raises((ModelError, ValueError)):
        regressor(axes={"frames": 0, "state": 1}).fit({"frames": SEQUENCES[:STEPS], "state": STATES[:STEPS]}, y[:STEPS])


def test_data_in_the_layout_of_the_file_are_refused_with_the_remedy():
    fitted = regressor().fit(X, y)
    with pytest.raises(ValueError, match="same number of rows"):
        fitted.predict({"frames": np.moveaxis(SEQUENCES, 0, 1), "state": STATES})
    with pytest.raises(ValueError, match=r"give np.moveaxis\(X, 1, 0\)"):
        fitted.predict({"frames": SEQUENCES, "state": np.moveaxis(STATES, 0, 1)})

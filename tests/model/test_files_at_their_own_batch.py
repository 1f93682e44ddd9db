"""Files for a fixed number of rows whose batch axis cannot be freed: they are run on so many rows at a time."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from onnxtrain_sklearn import (
    LBFGS,
    SGD,
    FineTuner,
    GraphModel,
    OrtGradientClassifier,
    OrtGradientMultiOutput,
    OrtGradientRegressor,
    RowBlocks,
)
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.environment import each_engine
from tests.helpers.plain_steps import STEPS, assert_weights, logistic, squared
from tests.model.test_constant_inputs import parsed

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RNG = np.random.default_rng(0)
ROWS = 11
X, y = RNG.normal(size=(ROWS, 6)).astype(np.float32), RNG.normal(size=ROWS)
labels = np.arange(ROWS) % 2
W, B, V = (RNG.normal(scale=0.5, size=shape).astype(np.float32) for shape in ((6, 4), (4,), (4, 1)))
ARRAYS = {"W": W, "B": B, "V": V}
ALONE = np.r_[np.zeros(4), RNG.uniform(0.5, 2, ROWS - 4)]
"""Weights of rows, zero for more than a whole pass of three rows."""


def file(batch):
    """Return a file that computes the rows of its batch one by one, as exporters unroll a loop over them."""
    body, parts = [], []
    for i in range(batch):
        body.append(f"r{i} = Gather<axis = 0>(x, i{i}) z{i} = MatMul(r{i}, W) b{i} = Add(z{i}, B) h{i} = Tanh(b{i})")
        body.append(f"s{i} = MatMul(h{i}, V) u{i} = Unsqueeze(s{i}, zero)")
        parts.append(f"u{i}")
    body.append(f"out = Concat<axis = 0>({', '.join(parts)})")
    places = {f"i{i}": np.array(i) for i in range(batch)}
    signature = f"float[{batch}, 6] x", f"float[{batch}, 1] out"
    return parsed(" ".join(body), *signature, **ARRAYS, **places, zero=np.array([0]))


FORMS = {
    "one by one 1": (file(1), 1),
    "one by one 3": (file(3), 3),
    "no axis of rows": (
        parsed(
            "r = Squeeze(x, zero) z = MatMul(r, W) b = Add(z, B) h = Tanh(b) s = MatMul(h, V) out = Unsqueeze(s, zero)",
            "float[1, 6] x",
            "float[1, 1] out",
            **ARRAYS,
            zero=np.array([0]),
        ),
        1,
    ),
    "mean over one row": (
        parsed(
            """m = ReduceMean<keepdims = 0>(x, zero) z = MatMul(m, W) b = Add(z, B) h = Tanh(b) s = MatMul(h, V)
            out = Unsqueeze(s, zero)""",
            "float[1, 6] x",
            "float[1, 1] out",
            **ARRAYS,
            zero=np.array([0]),
        ),
        1,
    ),
}
each_form = pytest.mark.parametrize("form", FORMS)


def scores_of(w, rows=X):
    return np.tanh(rows.astype(np.float64) @ w["W"] + w["B"]) @ w["V"]


def trained(slope, targets, weights, batch_size, epochs, rate=0.1):
    """Return weights after steps of gradient descent in float64 on all rows of weight above zero, in order."""
    w = {name: array.astype(np.float64) for name, array in ARRAYS.items()}
    rows = np.flatnonzero(weights)
    for _ in range(epochs):
        for start in range(0, len(rows), batch_size):
            own = rows[start : start + batch_size]
            x, hidden = X[own].astype(np.float64), np.tanh(X[own].astype(np.float64) @ w["W"] + w["B"])
            of_scores = (weights[own] / weights[own].sum() * slope((hidden @ w["V"]).ravel(), targets[own]))[:, None]
            of_hidden = of_scores @ w["V"].T * (1 - hidden**2)
            step = {"W": x.T @ of_hidden, "B": of_hidden.sum(axis=0), "V": hidden.T @ of_scores}
            w = {name: w[name] - rate * step[name] for name in w}
    return w


@each_engine
@each_form
@pytest.mark.parametrize(("batch_size", "weighted"), [(1, False), (4, True), (5, False), ("auto", True)])
def test_training_is_that_of_all_rows_of_a_minibatch(form, engine, batch_size, weighted):
    graph, _ = FORMS[form]
    own = ALONE if weighted else np.ones(ROWS)
    fitted = OrtGradientRegressor(graph, **STEPS, batch_size=batch_size, max_iter=3, engine=engine)
    fitted.fit(X, y, sample_weight=own if weighted else None)
    assert_weights(fitted, trained(squared, y, own, ROWS if batch_size == "auto" else batch_size, 3))
    assert fitted.t_ == 3 * np.count_nonzero(own)
    for n_rows in (1, 2, 3, 7):
        assert_allclose(fitted.predict(X[:n_rows]), scores_of(fitted.weights_, X[:n_rows]).ravel(), atol=1e-5)


@each_engine
@each_form
def test_classifier_scores_and_exports_the_file_for_its_batch(form, engine):
    graph, batch = FORMS[form]
    fitted = OrtGradientClassifier(graph, **STEPS, batch_size=4, max_iter=2, engine=engine).fit(X, labels)
    assert_weights(fitted, trained(logistic, labels, np.ones(ROWS), 4, 2))
    expected = 1 / (1 + np.exp(-scores_of(fitted.weights_).ravel()))
    assert_allclose(fitted.predict_proba(X)[:, 1], expected, atol=1e-5)
    assert fitted.score(X, labels) == np.mean((expected > 0.5) == labels)
    assert f"a pass takes {batch} rows" in str(fitted.describe())
    session = onnxruntime.InferenceSession(fitted.to_onnx().SerializeToString())
    assert session.get_inputs()[0].shape == [batch, 6]
    assert_allclose(session.run(None, {"x": X[:batch]})[1][:, 1], expected[:batch], atol=1e-5)


@each_form
def test_accumulate_drop_last_and_few_rows(form):
    graph, _ = FORMS[form]
    settings = STEPS | {"optimizer": SGD(momentum=0.0, accumulate=2)}
    fitted = OrtGradientRegressor(graph, **settings, batch_size=2, max_iter=2).fit(X, y)
    assert_weights(fitted, trained(squared, y, np.ones(ROWS), 4, 2))
    fitted = OrtGradientRegressor(graph, **STEPS, batch_size=4, drop_last=True, max_iter=2).fit(X, y)
    assert_weights(fitted, trained(squared, y, np.arange(ROWS) < 8, 4, 2))
    fitted = OrtGradientRegressor(graph, **STEPS, max_iter=2).fit(X[:2], y[:2])
    assert_weights(fitted, trained(squared, y, np.arange(ROWS) < 2, 2, 2))


@each_form
def test_lbfgs_minimizes_the_mean_over_all_rows(form):
    graph, _ = FORMS[form]
    fitted = OrtGradientRegressor(graph, optimizer=LBFGS(), alpha=0.0, max_iter=4).fit(X, y, sample_weight=ALONE)
    error = np.average((scores_of(fitted.weights_).ravel() - y) ** 2, weights=ALONE)
    assert_allclose(fitted.loss_, error, rtol=1e-4)


@each_form
def test_calls_that_continue_keep_the_batch(form):
    graph, _ = FORMS[form]
    expected = trained(squared, y, np.ones(ROWS), 4, 2)
    parts = OrtGradientRegressor(graph, **STEPS, batch_size=4).partial_fit(X, y)
    assert_weights(copy.deepcopy(parts).partial_fit(X, y), expected)
    assert_weights(pickle.loads(pickle.dumps(parts)).partial_fit(X, y), expected)
    warm = OrtGradientRegressor(graph, **STEPS, batch_size=4, max_iter=1, warm_start=True)
    assert_weights(warm.fit(X, y).fit(X, y), expected)


def test_generators_draw_as_for_a_file_that_is_read_once():
    settings = {"batch_size": 4, "max_iter": 3, "early_stopping": True}
    seeded = OrtGradientRegressor(file(3), **settings, random_state=0).fit(X, y)
    drawn = OrtGradientRegressor(file(3), **settings, random_state=np.random.RandomState(0)).fit(X, y)
    assert_array_equal(seeded.predict(X), drawn.predict(X))
    assert len(seeded.validation_scores_) == 3


def test_several_outputs_of_a_fixed_batch_are_trained():
    two = file(3)
    two.graph.node.append(onnx.helper.make_node("Mul", ["out", "two"], ["twice"], name="twice"))
    two.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(2), "two"))
    two.graph.output.append(onnx.helper.make_tensor_value_info("twice", onnx.TensorProto.FLOAT, [3, 1]))
    losses = {"out": "squared_error", "twice": "squared_error"}
    fitted = OrtGradientMultiOutput(two, loss=losses, **STEPS, batch_size=4, max_iter=2, trainable=["W", "B", "V"])
    fitted.set_params(loss_weights={"twice": 0.25}).fit(X, {"out": y, "twice": 2 * y})
    assert_weights(fitted, trained(lambda s, t: 4 * (s - t), y, np.ones(ROWS), 4, 2))


def test_batch_normalization_in_training_mode_is_refused():
    body = (
        "r = Gather<axis = 0>(x, place) n = Unsqueeze(r, zero) m = BatchNormalization(n, S, B, M, C) out = MatMul(m, V)"
    )
    arrays = {name: np.ones(6, np.float32) for name in "SBMC"}
    proto = parsed(
        body, "float[1, 6] x", "float[1, 1] out", **arrays, V=np.ones((6, 1), np.float32), place=np.array(0),
        zero=np.array([0]),
    )  # fmt: skip
    assert OrtGradientRegressor(proto, max_iter=1).fit(X, y).n_iter_ == 1
    with pytest.raises(ModelError, match="statistics of a minibatch, and the graph is run on 1 of its rows at a time"):
        OrtGradientRegressor(GraphModel(proto, training_mode=True), max_iter=1).fit(X, y)


def test_uses_that_need_any_number_of_rows_are_refused(tmp_path):
    with pytest.raises(ModelError, match="runs only on 3 rows at a time"):
        OrtGradientRegressor(file(3), finetune=FineTuner()).fit(X, y)
    fitted = OrtGradientRegressor(file(3), max_iter=1).fit(X, y)
    with pytest.raises(ModelError, match="runs only on 3 of them"):
        fitted.export_training("/nowhere", X, y)
    frame = pd.DataFrame(X, columns=list("abcdef")).assign(y=y)
    pd.concat([frame, frame]).to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(ValueError, match="runs only on 3 rows at a time"):
        OrtGradientRegressor(file(3), max_iter=1).fit(RowBlocks(tmp_path / "rows.csv", "y", buffer_rows=8))
    with pytest.raises(ModelError, match="Rows meet in the loss"):
        OrtGradientRegressor(file(3), loss="cox").fit(X, {"time": np.abs(y) + 1, "event": labels})


def test_scores_with_axes_of_one_element_are_columns():
    body = "r = Squeeze(x, zero) z = MatMul(r, W) b = Add(z, B) out = Reshape(b, shape)"
    arrays = {"W": W, "B": B, "zero": np.array([0]), "shape": np.array([1, 4, 1])}
    proto = parsed(body, "float[1, 6] x", "float[1, 4, 1] out", **arrays)
    classes = np.arange(ROWS) % 4
    fitted = OrtGradientClassifier(proto, **STEPS, batch_size=4, max_iter=2).fit(X, classes)
    expected = X @ fitted.weights_["W"] + fitted.weights_["B"]
    assert_allclose(fitted.decision_function(X), expected, atol=1e-5)
    assert_array_equal(fitted.predict(X), expected.argmax(axis=1))


@pytest.mark.parametrize(
    "second", ["half = Add(e0, e1) g1 = Identity(half)", "g1 = Mul(e1, three)"], ids=["other rows", "place"]
)
def test_rows_of_a_table_that_depend_on_their_batch_are_refused(second):
    # Rows select from a table, so the graph runs on none of the numbers drawn for trials.
    graph = parsed(
        f"""d = Sub(x, hundred) c = Cast<to = 7>(d) r0 = Gather<axis = 0>(c, i0) r1 = Gather<axis = 0>(c, i1)
        e0 = Gather<axis = 0>(T, r0) e1 = Gather<axis = 0>(T, r1) {second} s0 = MatMul(e0, V) s1 = MatMul(g1, V)
        out = Concat<axis = 0>(s0, s1)""",
        "float[2, 1] x",
        "float[2, 1] out",
        T=RNG.normal(size=(3, 4)).astype(np.float32),
        V=V,
        hundred=np.float32(100),
        three=np.float32(3),
        i0=np.array(0),
        i1=np.array(1),
    )
    table = np.array([[100], [102], [101], [102]], np.float32)
    with pytest.raises(ModelError, match="on its place among the 2 rows"):
        OrtGradientRegressor(graph, max_iter=1).fit(table, np.arange(4.0))

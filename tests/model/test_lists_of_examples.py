"""X as a list of examples of different sizes: small networks, sequences, images, each run by itself."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from onnx import numpy_helper
from scipy.linalg import block_diag
from sklearn.base import clone
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, PredefinedSplit, cross_val_score

from onnxtrain_sklearn import (
    LBFGS,
    MLP,
    SGD,
    AdamW,
    FineTuner,
    OrtGradientClassifier,
    OrtGradientMultiOutput,
    OrtGradientRegressor,
    PaddedRows,
)
from onnxtrain_sklearn.callbacks import SnapshotEnsemble
from onnxtrain_sklearn.exceptions import ModelError
from tests.helpers.environment import each_engine
from tests.helpers.plain_steps import STEPS, assert_weights, logistic, squared

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

FEATURES, HIDDEN = 4, 6


def parsed(text, **arrays):
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 18]> ' + text)
    for name, array in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return model


def normal(*shape, seed=0, scale=1.0):
    return np.random.default_rng(seed).normal(scale=scale, size=shape).astype(np.float32)


W1, B1, W2, V = (
    normal(FEATURES, HIDDEN, scale=0.5),
    normal(HIDDEN, seed=1, scale=0.5),
    normal(HIDDEN, HIDDEN, seed=2, scale=0.5),
    normal(HIDDEN, 1, seed=3, scale=0.5),
)
WEIGHTS = {"W1": W1, "B1": B1, "W2": W2, "V": V}

# A graph isomorphism network of two layers, whose readout is the mean over the atoms of a molecule.
GIN = parsed(
    """gin (float[atoms, 4] x, int64[2, bonds] bonds) => (float[1, 1] score) {
        source = Gather <axis = 0> (bonds, zero)
        targets = Gather <axis = 0> (bonds, one)
        target = Unsqueeze(targets, last)
        message1 = Gather <axis = 0> (x, source)
        sum1 = ScatterND <reduction = "add"> (x, target, message1)
        z1 = MatMul(sum1, W1)
        b1 = Add(z1, B1)
        h1 = Tanh(b1)
        message2 = Gather <axis = 0> (h1, source)
        sum2 = ScatterND <reduction = "add"> (h1, target, message2)
        z2 = MatMul(sum2, W2)
        h2 = Tanh(z2)
        read = ReduceMean <keepdims = 1> (h2, axis)
        score = MatMul(read, V)
    }""",
    **WEIGHTS,
    zero=np.array(0),
    one=np.array(1),
    last=np.array([1]),
    axis=np.array([0]),
)

# The same network with an adjacency matrix in place of bonds, for which both engines have gradients.
DENSE = parsed(
    """gin (float[atoms, 4] x, float[atoms, atoms] adjacency) => (float[1, 1] score) {
        sum1 = MatMul(adjacency, x)
        z1 = MatMul(sum1, W1)
        b1 = Add(z1, B1)
        h1 = Tanh(b1)
        sum2 = MatMul(adjacency, h1)
        z2 = MatMul(sum2, W2)
        h2 = Tanh(z2)
        read = ReduceMean <keepdims = 1> (h2, axis)
        score = MatMul(read, V)
    }""",
    **WEIGHTS,
    axis=np.array([0]),
)


def molecules(n, seed=0):
    """Return molecules with 1 to 7 atoms; the first has no bonds."""
    rng, found = np.random.default_rng(seed), []
    for i in range(n):
        atoms = int(rng.integers(1, 8))
        bonds = rng.integers(0, atoms, (2, 0 if i == 0 else int(rng.integers(0, 9))))
        found.append({"x": rng.normal(size=(atoms, FEATURES)), "bonds": bonds})
    return found


N = 11
X = molecules(N)
y = np.random.default_rng(5).normal(size=N)
labels = np.arange(N) % 2
weights = np.random.default_rng(6).integers(0, 3, N).astype(float)


def adjacency(example):
    n = len(example["x"])
    found = np.eye(n)
    np.add.at(found, (example["bonds"][1], example["bonds"][0]), 1)
    return found


FORMS = {"bonds": (GIN, X), "adjacency": (DENSE, [{"x": one["x"], "adjacency": adjacency(one)} for one in X])}
each_form = pytest.mark.parametrize("form", FORMS)


def engine_of(form, engine):
    return "auto" if form == "bonds" else engine  # onnxruntime-training adds no numbers in ScatterND


def forward(w, example):
    A = adjacency(example)
    s1 = A @ example["x"]
    h1 = np.tanh(s1 @ w["W1"] + w["B1"])
    h2 = np.tanh(A @ h1 @ w["W2"])
    return A, s1, h1, h2, h2.mean(axis=0) @ w["V"]


def score_of(w, example):
    return forward(w, example)[-1].item()


def gradient_of(w, example):
    """Return the gradient of the score of an example."""
    A, s1, h1, h2, _ = forward(w, example)
    n = len(h2)
    d2 = np.broadcast_to(w["V"].T / n, h2.shape) * (1 - h2**2)
    d1 = A.T @ (d2 @ w["W2"].T) * (1 - h1**2)
    return {"W1": s1.T @ d1, "B1": d1.sum(axis=0), "W2": (A @ h1).T @ d2, "V": h2.mean(axis=0)[:, None]}


def trained(slope, examples, targets, weights, batch_size, epochs, rate=0.1):
    """Return weights after steps of gradient descent in float64, without shuffling."""
    w = {name: array.astype(np.float64) for name, array in WEIGHTS.items()}
    rows = np.flatnonzero(weights)
    for _ in range(epochs):
        for start in range(0, len(rows), batch_size):
            chosen = rows[start : start + batch_size]
            total, step = weights[chosen].sum(), dict.fromkeys(w, 0.0)
            for i in chosen:
                factor = weights[i] / total * slope(score_of(w, examples[i]), targets[i])
                for name, own in gradient_of(w, examples[i]).items():
                    step[name] = step[name] + factor * own
            w = {name: w[name] - rate * step[name] for name in w}
    return w


@each_engine
@each_form
@pytest.mark.parametrize(("batch_size", "weighted"), [(1, False), (4, True), (N, False), (None, True)])
def test_classifier_of_networks_trains_as_in_float64(engine, form, batch_size, weighted):
    graph, examples = FORMS[form]
    own = weights if weighted else np.ones(N)
    model = OrtGradientClassifier(
        graph, **STEPS, batch_size=batch_size, max_iter=3, engine=engine_of(form, engine)
    ).fit(examples, labels, sample_weight=own if weighted else None)
    assert_weights(model, trained(logistic, X, labels, own, batch_size or N, 3))
    expected = np.array([score_of(model.weights_, one) for one in X])
    assert_allclose(model.decision_function(examples), expected, rtol=1e-5, atol=1e-6)
    assert_allclose(model.predict_proba(examples)[:, 1], 1 / (1 + np.exp(-expected)), rtol=1e-5)
    assert_array_equal(model.predict(examples), expected > 0)
    assert model.score(examples, labels) == np.mean((expected > 0) == labels)


@each_engine
def test_regressor_accumulates_passes_and_minibatches(engine):
    settings = STEPS | {"optimizer": SGD(momentum=0.0, accumulate=2)}
    model = OrtGradientRegressor(DENSE, **settings, batch_size=3, max_iter=2, engine=engine, loss="squared_error")
    model.fit(FORMS["adjacency"][1], y, sample_weight=weights)
    assert_weights(model, trained(squared, X, y, weights, 6, 2))
    assert model.t_ == 2 * np.count_nonzero(weights)


def test_examples_of_weight_zero_and_dropped_ones_are_not_trained_on():
    own = np.r_[np.zeros(4), np.ones(N - 4)]
    fitted = OrtGradientClassifier(GIN, **STEPS, batch_size=2, max_iter=2).fit(X, labels, sample_weight=own)
    assert_weights(fitted, trained(logistic, X, labels, own, 2, 2))
    fitted = OrtGradientClassifier(GIN, **STEPS, batch_size=4, drop_last=True, max_iter=2).fit(X, labels)
    assert_weights(fitted, trained(logistic, X[:8], labels, np.ones(8), 4, 2))
    assert fitted.t_ == 16


def test_lbfgs_reaches_the_minimum_of_the_weighted_mean():
    fitted = OrtGradientRegressor(GIN, optimizer=LBFGS(), alpha=0.01, max_iter=5, batch_size=None)
    fitted.fit(X, y, sample_weight=weights)
    w = {name: array.astype(np.float64) for name, array in fitted.weights_.items()}
    errors = np.array([(score_of(w, one) - target) ** 2 for one, target in zip(X, y, strict=True)])
    penalty = 0.01 / 2 * sum((w[name] ** 2).sum() for name in ("W1", "W2", "V")) / weights.sum()
    assert_allclose(fitted.loss_, np.average(errors, weights=weights) + penalty, rtol=1e-4)


def test_partial_fit_trains_as_fit_and_takes_larger_examples():
    fitted = OrtGradientClassifier(GIN, **STEPS, batch_size=4, max_iter=2).fit(X, labels)
    parts = OrtGradientClassifier(GIN, **STEPS, batch_size=4)
    for _ in range(2):
        parts.partial_fit(X, labels, classes=[0, 1])
    assert_weights(parts, {name: array.astype(float) for name, array in fitted.weights_.items()})
    small = [one for one in X if len(one["x"]) < 4]
    parts = OrtGradientClassifier(GIN, **STEPS, batch_size=4).partial_fit(
        small, np.arange(len(small)) % 2, classes=[0, 1]
    )
    before = {name: array.astype(np.float64) for name, array in parts.weights_.items()}
    parts.partial_fit(X[:4], labels[:4])
    step = dict.fromkeys(before, 0.0)
    for one, label in zip(X[:4], labels[:4], strict=True):
        factor = logistic(score_of(before, one), label) / 4
        step = {name: step[name] + factor * own for name, own in gradient_of(before, one).items()}
    assert_weights(parts, {name: before[name] - 0.1 * step[name] for name in before})


def test_warm_start_continues():
    twice = OrtGradientClassifier(GIN, **STEPS, batch_size=4, max_iter=1, warm_start=True)
    twice.fit(X, labels).fit(X, labels)
    assert_weights(twice, trained(logistic, X, labels, np.ones(N), 4, 2))


def test_early_stopping_scores_examples_that_are_held_out():
    shown = list[int]()

    class Scores:
        def __call__(self, estimator, examples, targets):
            shown.append(len(examples))
            assert len(targets) == len(examples)
            return float(np.mean(estimator.predict(examples) == targets))

    settings = {"batch_size": 3, "early_stopping": True, "max_iter": 3, "random_state": 0}
    fitted = OrtGradientClassifier(GIN, **settings, validation_split=0.3, scoring=Scores()).fit(X, labels)
    assert shown == [4, 4, 4]
    assert len(fitted.validation_scores_) == 3
    larger = [*molecules(6, seed=3), {"x": normal(30, FEATURES), "bonds": np.zeros((2, 40), int)}]
    own = np.arange(7) % 2
    fitted = OrtGradientClassifier(GIN, **settings).fit(X, labels, X_val=larger, y_val=own)
    best = OrtGradientClassifier(GIN, **settings | {"early_stopping": False, "max_iter": 1}).fit(X, labels)
    assert fitted.validation_scores_[0] == best.score(larger, own)


def test_pickle_clone_copy_and_onnx_keep_predictions():
    fitted = OrtGradientClassifier(GIN, **STEPS, max_iter=2).fit(X, labels)
    further = [*molecules(5, seed=9), {"x": normal(40, FEATURES), "bonds": np.zeros((2, 0), int)}]
    expected = fitted.predict_proba(further)
    for other in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted)):
        assert_array_equal(other.predict_proba(further), expected)
        other.partial_fit(X, labels)
    assert_array_equal(clone(fitted).fit(X, labels).predict_proba(further), expected)
    model = fitted.to_onnx()
    onnx.checker.check_model(model, full_check=True)
    assert [value.name for value in model.graph.input] == ["x", "bonds"]
    assert [[d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input] == [
        ["atoms", 4],
        [2, "bonds"],
    ]
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for one, row in zip(further, expected, strict=True):
        found = session.run(None, {"x": one["x"].astype(np.float32), "bonds": one["bonds"].astype(np.int64)})
        assert_allclose(found[1], row[None], rtol=1e-6)


def test_snapshots_of_networks_are_averaged():
    fitted = OrtGradientClassifier(
        GIN, max_iter=4, tol=0.0, n_iter_no_change=np.inf, callbacks=[SnapshotEnsemble(2)], random_state=0
    ).fit(X, labels)
    session = onnxruntime.InferenceSession(fitted.to_onnx().SerializeToString())
    found = session.run(None, {"x": X[3]["x"].astype(np.float32), "bonds": X[3]["bonds"]})[1]
    assert_allclose(found, fitted.predict_proba(X[3:4]), rtol=1e-6)


def test_several_outputs_train_on_networks():
    two = copy.deepcopy(GIN)
    two.graph.node.append(onnx.helper.make_node("MatMul", ["read", "V2"], ["other"], name="other"))
    two.graph.initializer.append(numpy_helper.from_array(V, "V2"))
    two.graph.output.append(onnx.helper.make_tensor_value_info("other", onnx.TensorProto.FLOAT, [1, 1]))
    fitted = OrtGradientMultiOutput(
        two, loss={"score": "log_loss", "other": "log_loss"}, **STEPS, batch_size=4, max_iter=2
    ).fit(X, {"score": labels, "other": labels})
    scores = np.array([forward(fitted.weights_, one)[3].mean(axis=0) @ fitted.weights_["V2"] for one in X]).ravel()
    assert_array_equal(fitted.predict(X)["other"], scores > 0)
    half = OrtGradientMultiOutput(
        two, loss={"score": "log_loss", "other": "log_loss"}, loss_weights={"other": 0.0}, **STEPS, batch_size=4
    )
    half.set_params(max_iter=2).fit(X, {"score": labels, "other": labels})
    assert_weights(half, {**trained(logistic, X, labels, np.ones(N), 4, 2), "V2": V.astype(float)})


@pytest.mark.long
def test_searches_and_cross_validation_split_lists():
    found = cross_val_score(OrtGradientClassifier(GIN, max_iter=2, random_state=0), X, labels, cv=2)
    assert found.shape == (2,)
    assert np.isfinite(found).all()
    search = GridSearchCV(
        OrtGradientClassifier(GIN, random_state=0, batch_size=4), {"max_iter": [1, 2]}, cv=2, error_score="raise"
    ).fit(X, labels)
    assert_array_equal(search.predict(X), search.best_estimator_.predict(X))


def test_class_weights_seed_and_callbacks_see_examples():
    balanced = OrtGradientClassifier(GIN, **STEPS, batch_size=4, max_iter=2, class_weight="balanced").fit(X, labels)
    counts = np.bincount(labels)
    assert_weights(balanced, trained(logistic, X, labels, (N / (2 * counts))[labels], 4, 2))
    one, two = (OrtGradientClassifier(GIN, batch_size=4, max_iter=3, random_state=3).fit(X, labels) for _ in range(2))
    assert_array_equal(one.predict_proba(X), two.predict_proba(X))


# Sequences: an example is a row of its own length, which lacks the axis of rows.

LSTM = parsed(
    """net (float[N, steps, 2] signal) => (float[N, 3] scores) {
        steps_first = Transpose <perm = [1, 0, 2]> (signal)
        h, last = LSTM <hidden_size = 4> (steps_first, K, R, B)
        features = Squeeze(last, zero)
        scores = MatMul(features, V)
    }""",
    K=normal(1, 16, 2, scale=0.5),
    R=normal(1, 16, 4, seed=1, scale=0.5),
    B=normal(1, 32, seed=2, scale=0.5),
    V=normal(4, 3, seed=3),
    zero=np.array([0]),
)
SIGNALS = [normal(n, 2, seed=n).astype(float) for n in (3, 7, 1, 12, 5, 5, 2, 9)]
PHONES = np.array(["a", "b", "c", "a", "c", "b", "b", "a"])


def lstm_scores(w, signal):
    """Return the scores of the last step; gates are in the order input, output, forget, cell."""
    h = c = np.zeros(4)
    bias = w["B"][0, :16] + w["B"][0, 16:]
    for x in signal:
        i, o, f, g = np.split(w["K"][0] @ x + w["R"][0] @ h + bias, 4)
        i, o, f = (1 / (1 + np.exp(-one)) for one in (i, o, f))
        c = f * c + i * np.tanh(g)
        h = o * np.tanh(c)
    return h @ w["V"]


def mean_log_loss(w, signals, targets):
    scores = np.array([lstm_scores(w, one) for one in signals])
    shifted = scores - scores.max(axis=1, keepdims=True)
    return np.mean(np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(targets)), targets])


def test_lstm_on_ragged_sequences_equals_central_differences():
    signals, phones = SIGNALS[:3], PHONES[:3]
    step, targets = STEPS | {"max_iter": 1, "batch_size": None}, np.unique(phones, return_inverse=True)[1]
    fitted = OrtGradientClassifier(LSTM, **step).fit(signals, phones)
    start = {one.name: numpy_helper.to_array(one).astype(float) for one in LSTM.graph.initializer}
    assert_allclose(fitted.loss_curve_[0], mean_log_loss(start, signals, targets), rtol=1e-6)
    for name, after in fitted.weights_.items():
        gradient, size = np.zeros(start[name].shape), 1e-5
        for at in np.ndindex(gradient.shape):
            values = []
            for sign in (1, -1):
                moved = start[name].copy()
                moved[at] += sign * size
                values.append(mean_log_loss(start | {name: moved}, signals, targets))
            gradient[at] = (values[0] - values[1]) / (2 * size)
        assert_allclose((start[name] - after) / 0.1, gradient, rtol=1e-3, atol=3e-6)
    expected = np.array([lstm_scores(fitted.weights_, one) for one in SIGNALS])
    assert_allclose(fitted.decision_function(SIGNALS), expected, atol=1e-5)


def test_ragged_sequences_train_as_padded_ones_with_a_mask():
    masked = parsed(
        """net (float[N, steps, 2] signal, float[N, steps] mask) => (float[N, 3] scores) {
            z = MatMul(signal, W)
            a = Tanh(z)
            weights = Unsqueeze(mask, one)
            sums = MatMul(weights, a)
            sum = Squeeze(sums, one)
            count = ReduceSum(mask, one)
            mean = Div(sum, count)
            scores = MatMul(mean, V)
        }""",
        W=normal(2, 8),
        V=normal(8, 3, seed=1),
        one=np.array([1]),
    )
    plain = parsed(
        """net (float[N, steps, 2] signal) => (float[N, 3] scores) {
            z = MatMul(signal, W)
            a = Tanh(z)
            mean = ReduceMean <keepdims = 0> (a, one)
            scores = MatMul(mean, V)
        }""",
        W=normal(2, 8),
        V=normal(8, 3, seed=1),
        one=np.array([1]),
    )
    settings = {"optimizer": AdamW(), "batch_size": 3, "max_iter": 20, "random_state": 0, "tol": 0.0}
    one_by_one = OrtGradientClassifier(plain, **settings).fit(SIGNALS, PHONES)
    rows = PaddedRows(name="signal").fit_transform(SIGNALS)
    together = OrtGradientClassifier(masked, **settings).fit(rows, PHONES)
    assert_allclose(one_by_one.predict_proba(SIGNALS), together.predict_proba(rows), rtol=1e-4, atol=1e-5)
    assert_allclose(one_by_one.loss_curve_, together.loss_curve_, rtol=1e-4)


def test_files_for_one_row_and_object_arrays_are_taken():
    fixed = copy.deepcopy(LSTM)
    for value in (fixed.graph.input[0], fixed.graph.output[0]):
        value.type.tensor_type.shape.dim[0].Clear()
        value.type.tensor_type.shape.dim[0].dim_value = 1
    listed = np.empty(len(SIGNALS), object)
    listed[:] = SIGNALS
    expected = OrtGradientClassifier(LSTM, **STEPS, batch_size=3, max_iter=2).fit(SIGNALS, PHONES)
    fitted = OrtGradientClassifier(fixed, **STEPS, batch_size=3, max_iter=2).fit(listed, PHONES)
    assert_allclose(fitted.predict_proba(listed), expected.predict_proba(SIGNALS), rtol=1e-6)
    dim = fitted.to_onnx().graph.input[0].type.tensor_type.shape.dim
    assert dim[0].dim_value == 1
    as_rows = [one[None] for one in SIGNALS]  # with the axis of rows that the file has
    assert_array_equal(fitted.predict_proba(as_rows), fitted.predict_proba(listed))
    assert_array_equal(fitted.predict_proba(SIGNALS[4:6]), fitted.predict_proba(SIGNALS)[4:6])
    assert fitted.predict(SIGNALS[:1]).shape == (1,)


def test_folds_of_equal_sizes_are_lists_too():
    listed = np.empty(len(SIGNALS), object)
    listed[:] = SIGNALS
    equal = np.array([len(one) == 5 for one in SIGNALS])
    assert np.count_nonzero(equal) == 2
    two = copy.deepcopy(LSTM)  # with two classes, both of which each fold has
    two.graph.initializer[3].CopyFrom(numpy_helper.from_array(normal(4, 2, seed=3), "V"))
    two.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 2
    targets = np.arange(len(SIGNALS)) % 2
    model = OrtGradientClassifier(two, **STEPS, batch_size=3, max_iter=2)
    found = cross_val_score(
        model, listed, targets, cv=PredefinedSplit(equal.astype(int)), scoring="neg_log_loss", error_score="raise"
    )
    arrays = np.stack([SIGNALS[i] for i in np.flatnonzero(equal)])  # trained as rows of one size
    others = [SIGNALS[i] for i in np.flatnonzero(~equal)]
    first, second = clone(model).fit(arrays, targets[equal]), clone(model).fit(others, targets[~equal])
    of_first = np.concatenate([first.predict_proba(one[None]) for one in others])
    expected = [log_loss(targets[~equal], of_first), log_loss(targets[equal], second.predict_proba(list(arrays)))]
    assert_allclose(-found, expected, rtol=1e-5)


# Bad input.


def changed(i, **arrays):
    found = [dict(one) for one in X]
    found[i] = {**found[i], **arrays}
    return found


@pytest.mark.parametrize(
    ("examples", "error", "message"),
    [
        ([], ValueError, "minimum|at least|empty"),
        ([*X[:-1], {"x": X[-1]["x"]}], ValueError, r"X\[10\] has the inputs \['x'\].*Add \['bonds'\]"),
        (changed(2, more=np.ones(3)), ValueError, r"X\[2\] has the inputs .*Leave out \['more'\]"),
        ([*X[:-1], X[-1]["x"]], TypeError, r"X\[10\] is a ndarray.*must be a dict"),
        (changed(3, x=np.ones((3, 5))), ValueError, r"X\[3\]\['x'\] has the shape \(3, 5\).*\(\?, 4\)"),
        (changed(3, x=np.full((3, 4), "a")), TypeError, r"X\[3\]\['x'\] must be an array of numbers"),
        (changed(3, x=np.full((3, 4), np.nan)), ValueError, r"X\[3\]\['x'\].*NaN"),
        (changed(3, bonds=np.full((2, 1), 0.5)), ValueError, r"X\[3\]\['bonds'\]"),
        (changed(3, x=np.full((3, 4), 1e300)), ValueError, "too large for float32"),
    ],
)
def test_bad_examples_are_named(examples, error, message):
    model = OrtGradientClassifier(GIN, max_iter=1)
    with pytest.raises(error, match=message):
        model.fit(examples, labels[: len(examples)])
    assert not hasattr(model, "_state")
    fitted = OrtGradientClassifier(GIN, max_iter=1, random_state=0).fit(X, labels)
    before = fitted.predict_proba(X)
    with pytest.raises(error, match=message):
        fitted.predict(examples)
    with pytest.raises(error, match=message):
        fitted.partial_fit(examples, labels[: len(examples)])
    assert_array_equal(fitted.predict_proba(X), before)


def test_arrays_for_a_graph_of_lists_and_lists_for_rows_are_refused():
    fitted = OrtGradientClassifier(GIN, max_iter=1).fit(X, labels)
    with pytest.raises(TypeError, match="takes such a list: give \\[X\\]"):
        fitted.predict(X[0])
    with pytest.raises(TypeError, match="PaddedRows"):
        OrtGradientClassifier(MLP(), max_iter=1).fit(SIGNALS, PHONES)
    with pytest.raises(ValueError, match="finetune=None"):
        OrtGradientClassifier(GIN, finetune=FineTuner()).fit(X, labels)
    with pytest.raises(ModelError, match="list of examples"):
        fitted.export_training("/nowhere", X, labels)
    assert "a pass takes an example" in str(fitted.describe())
    with pytest.raises(ValueError, match=r"11.*10|10.*11"):
        OrtGradientClassifier(GIN, max_iter=1).fit(X, labels[:-1])


def test_axes_of_one_name_must_have_one_size():
    examples = [dict(one) for one in FORMS["adjacency"][1]]
    examples[4]["adjacency"] = np.eye(len(examples[4]["x"]) + 1)
    with pytest.raises(ValueError, match=r"X\[4\]: the axis 'atoms' of the graph has"):
        OrtGradientClassifier(DENSE).fit(examples, labels)


def test_outputs_of_nodes_and_losses_that_mix_rows_are_refused():
    nodes = copy.deepcopy(DENSE)
    del nodes.graph.node[-2:]
    nodes.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("h2", onnx.TensorProto.FLOAT, ["atoms", HIDDEN]))
    with pytest.raises(ModelError, match="one row for each example"):
        OrtGradientRegressor(nodes).fit(FORMS["adjacency"][1], y)
    flat = copy.deepcopy(DENSE)
    flat.graph.node[-2].attribute[0].i = 0
    flat.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("score", onnx.TensorProto.FLOAT, [1]))
    fitted = OrtGradientRegressor(flat, **STEPS, batch_size=4, max_iter=2).fit(FORMS["adjacency"][1], y)
    assert_weights(fitted, trained(squared, X, y, np.ones(N), 4, 2))
    with pytest.raises(ModelError, match="Rows meet in the loss"):
        OrtGradientRegressor(GIN, loss="cox", batch_size=4).fit(X, {"time": np.abs(y) + 1, "event": labels})


# A target of each node: the examples of a list have targets of one shape, so networks are given one by one, or joined.

NODES = copy.deepcopy(DENSE)
del NODES.graph.node[-2]
NODES.graph.node[-1].input[0] = "h2"
NODES.graph.output[0].type.tensor_type.shape.dim[0].Clear()
NODES.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "atoms"
TARGETS = [normal(len(one["x"]), seed=i).astype(float) for i, one in enumerate(X)]


def step_on_nodes(w, A, x, targets, rate=0.1):
    """Return the weights after a step of gradient descent on the mean of (score - target)^2 / 2 over the nodes."""
    s1 = A @ x
    h1 = np.tanh(s1 @ w["W1"] + w["B1"])
    h2 = np.tanh(A @ h1 @ w["W2"])
    ds = squared(h2 @ w["V"], targets[:, None]) / len(targets)
    d2 = ds @ w["V"].T * (1 - h2**2)
    d1 = A.T @ (d2 @ w["W2"].T) * (1 - h1**2)
    gradient = {"W1": s1.T @ d1, "B1": d1.sum(axis=0), "W2": (A @ h1).T @ d2, "V": h2.T @ ds}
    return {name: w[name] - rate * gradient[name] for name in w}


@each_engine
def test_targets_of_nodes_are_refused_and_networks_given_one_by_one_or_joined(engine):
    examples = [{"x": one["x"], "adjacency": adjacency(one)} for one in X]
    for one in examples:  # means over the neighbors, because 1 - tanh² of large sums rounds badly in float32
        one["adjacency"] /= one["adjacency"].sum(axis=1, keepdims=True)
    for kind, values in ((OrtGradientRegressor, TARGETS), (OrtGradientClassifier, [one > 0 for one in TARGETS])):
        model = kind(NODES, engine=engine)
        with pytest.raises(ValueError, match=r"y\[1\] has .*batch_size=None .*partial_fit"):
            model.fit(examples, values)
        assert not hasattr(model, "_state")
    several = OrtGradientMultiOutput(NODES, loss={"score": "squared_error"}, engine=engine)
    with pytest.raises(ValueError, match=r"y\[1\] has .*batch_size=None .*partial_fit"):
        several.fit(examples, {"score": TARGETS})

    start = {name: array.astype(float) for name, array in WEIGHTS.items()}
    one_by_one = OrtGradientRegressor(NODES, **STEPS, batch_size=None, engine=engine)
    w = start
    for example, targets in zip(examples, TARGETS, strict=True):
        one_by_one.partial_fit(example, targets)
        w = step_on_nodes(w, example["adjacency"], example["x"], targets)
    assert_weights(one_by_one, w)
    joined = {"x": np.concatenate([one["x"] for one in examples])}
    joined["adjacency"] = block_diag(*(one["adjacency"] for one in examples))
    together = OrtGradientRegressor(NODES, **STEPS, batch_size=None, max_iter=1, engine=engine)
    together.fit(joined, np.concatenate(TARGETS))
    assert_weights(together, step_on_nodes(start, joined["adjacency"], joined["x"], np.concatenate(TARGETS)))

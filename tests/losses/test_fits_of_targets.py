"""Fits with losses that declare their targets: published results, what is learned, and scores that do not suit."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from numpy.testing import assert_allclose
from onnx import numpy_helper, parser
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

from onnxtrain_sklearn import MLP, Linear, OrtGradientRegressor
from onnxtrain_sklearn.losses import CTC, Cox, InfoNCE, Triplet
from tests.helpers.environment import each_engine

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
EXACT = {"optimizer": "lbfgs", "max_iter": 300, "tol": 1e-10, "alpha": 0.0, "random_state": 0}

# Weeks of remission of leukemia (Freireich et al., 1963), negative where it had not ended: with 6-MP, then placebo.
DRUG = [6, 6, 6, -6, 7, -9, 10, -10, -11, 13, 16, -17, -19, -20, 22, 23, -25, -32, -32, -34, -35]
WEEKS = np.array([*DRUG, 1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23])
REMISSION = {"time": np.abs(WEEKS), "event": WEEKS > 0}
PLACEBO = np.repeat([[0.0], [1.0]], 21, axis=0)


def numbered(y, rows):
    return {name: array[rows] for name, array in y.items()}


@each_engine
@pytest.mark.parametrize(("ties", "coefficient", "log_likelihood"), [
    ("efron", 1.57212515, -85.00842458), ("breslow", 1.50919141, -86.37962207),
])  # fmt: skip
def test_cox_finds_the_coefficient_of_coxph_and_phreg(ties, coefficient, log_likelihood, engine):
    net = OrtGradientRegressor(Linear(), loss=Cox(ties), engine=engine, **EXACT).fit(PLACEBO, REMISSION)
    assert_allclose(net.coef_, [coefficient], rtol=1e-3)
    assert_allclose(net.loss_, -log_likelihood / 42, rtol=1e-6)
    assert_allclose(np.diff(net.predict([[0.0], [1.0]])), coefficient, rtol=1e-3)


def test_cox_weights_of_whole_rows_repeat_them_with_breslow():
    rng = np.random.default_rng(0)
    times = rng.integers(0, 4, 42)
    rows = np.repeat(np.arange(42), times)
    net = OrtGradientRegressor(Linear(), loss=Cox("breslow"), **EXACT)
    weighted = clone(net).fit(PLACEBO, REMISSION, sample_weight=times)
    repeated = clone(net).fit(PLACEBO[rows], numbered(REMISSION, rows))
    assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-3)


@pytest.mark.long
def test_cox_networks_train_in_minibatches_and_by_cross_validation():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 2))
    risk = X[:, 0] ** 2
    time, end = rng.exponential(np.exp(-2 * risk)), rng.exponential(1.0, size=600)
    y = np.zeros(600, [("time", float), ("event", bool)])
    y["time"], y["event"] = np.minimum(time, end), time <= end
    net = OrtGradientRegressor(MLP((16,)), loss="cox", max_iter=60, learning_rate_init=0.02, batch_size=100)
    net.set_params(random_state=0, early_stopping=True, n_iter_no_change=20).fit(X[:500], y[:500])
    assert np.corrcoef(net.predict(X[500:]), risk[500:])[0, 1] > 0.8
    assert np.isfinite(cross_val_score(net.set_params(early_stopping=False, max_iter=3), X, y, cv=3)).all()


def spoken(n, rng):
    """Rows of 12 steps, each near the unit vector of its class or of the blank 0; labels and numbers of steps."""
    labels, lengths = np.full((n, 3), -1), rng.integers(8, 13, n)
    X = rng.normal(0, 0.3, (n, 12, 4))
    for i in range(n):
        own = rng.integers(1, 4, rng.integers(1, 4))
        labels[i, : len(own)] = own
        places = np.sort(rng.choice(lengths[i] // 2, len(own), replace=False)) * 2
        path = np.zeros(12, int)
        path[places] = own
        X[i] += np.roll(np.eye(4), 1, axis=0)[path]
    return X.astype(np.float32), {"labels": labels, "lengths": lengths}


def recognizer(layout="float[N, T, 4] x) => (float[N, T, 4] scores"):
    graph = parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 18]>
        net ({layout}) {{
          scores = MatMul (x, weight)
        }}""")
    weight = np.random.default_rng(1).normal(0, 0.1, (4, 4)).astype(np.float32)
    graph.graph.initializer.append(numpy_helper.from_array(weight, "weight"))
    return graph


def decoded(scores, lengths):
    """The labels of the most probable alignment."""
    best = [scores[i, :n].argmax(axis=1) for i, n in enumerate(lengths)]
    return [[int(c) for c, before in zip(row, [0, *row[:-1]], strict=True) if c and c != before] for row in best]


@pytest.mark.long
@pytest.mark.parametrize("engine", ["portable", "auto"])
def test_ctc_learns_to_read_sequences_without_alignments(engine):
    rng = np.random.default_rng(0)
    X, y = spoken(150, rng)
    net = OrtGradientRegressor(recognizer(), loss=CTC(lengths=True), engine=engine, batch_size=32, max_iter=60)
    net.set_params(learning_rate_init=0.1, random_state=0, tol=0.0).fit(X[:100], numbered(y, slice(100)))
    assert net.engine_ == "portable"
    found = decoded(net.predict(X[100:]), y["lengths"][100:])
    right = [list(labels[labels > 0]) == own for labels, own in zip(y["labels"][100:], found, strict=True)]
    assert np.mean(right) > 0.8
    assert net.score(X[100:], numbered(y, slice(100, None))) > -1.0
    session = onnxruntime.InferenceSession(net.to_onnx().SerializeToString(), providers=["CPUExecutionProvider"])
    assert_allclose(session.run(None, {"x": X})[0], net.predict(X), rtol=1e-5, atol=1e-6)


def test_ctc_scores_that_do_not_suit_are_refused():
    X, y = spoken(20, np.random.default_rng(0))
    net = OrtGradientRegressor(recognizer(), loss=CTC(lengths=True))
    bad = {
        r"classes other than the blank 0, and -1": {"labels": np.zeros((20, 3), int)},
        r"-1 may only follow the last label of a row, but row 0": {"labels": np.tile([1, -1, 2], (20, 1))},
        r"scores of 4 classes, 0 to 3, but .* up to 7": {"labels": np.full((20, 3), 7)},
        r"goes up to 13, but the graph has scores of 12 steps": {"lengths": np.full(20, 13)},
        r"Row 0 of y needs at least 5 steps for its labels, but has 4": {
            "labels": np.full((20, 3), 2), "lengths": np.full(20, 4),
        },
    }  # fmt: skip
    for message, part in bad.items():
        with pytest.raises(ValueError, match=message):
            clone(net).fit(X, y | part)
    with pytest.raises(ValueError, match=r"takes scores of shape \(N, T, C\), but the graph's output has \('N', 3\)"):
        OrtGradientRegressor(Linear(), loss="ctc").fit(X[:, 0], y["labels"])
    net.set_params(max_iter=2).fit(X, y)
    with pytest.raises(ValueError, match="goes up to 13, but the graph has scores of 12 steps"):
        net.fit(X, y, X_val=X, y_val=y | {"lengths": np.full(20, 13)})


def towers():
    graph = parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        net (float[N, 6] a, float[N, 6] b) => (float[N, 8] both) {
          one = MatMul (a, first)
          two = MatMul (b, second)
          both = Concat <axis = 1> (one, two)
        }""")
    rng = np.random.default_rng(1)
    for name in ("first", "second"):
        graph.graph.initializer.append(numpy_helper.from_array(rng.normal(size=(6, 4)).astype(np.float32), name))
    return graph


@each_engine
def test_info_nce_brings_the_two_sides_of_a_row_together(engine):
    rng = np.random.default_rng(0)
    a = rng.normal(size=(300, 6)).astype(np.float32)
    turn = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    X = {"a": a, "b": (a @ turn + 0.1 * rng.normal(size=a.shape)).astype(np.float32)}
    net = OrtGradientRegressor(towers(), loss="info_nce", engine=engine, batch_size=64, max_iter=60, random_state=0)
    net.set_params(learning_rate_init=0.03, tol=0.0).fit(X)
    one, two = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in np.split(net.predict(X), 2, axis=1))
    assert ((one @ two.T).argmax(axis=1) == np.arange(300)).mean() > 0.8


@each_engine
def test_triplet_separates_labels(engine):
    rng = np.random.default_rng(0)
    label = rng.integers(0, 3, 150)
    X = rng.normal(size=(150, 5)) * [1, 1, 5, 5, 5]
    X[:, :2] += 4 * np.array([[0, 0], [1, 0], [0, 1]])[label]
    net = OrtGradientRegressor(MLP((16,)), loss=Triplet("soft", dimension=2), engine=engine, batch_size=50)
    net.set_params(max_iter=60, learning_rate_init=0.01, random_state=0, tol=0.0).fit(X, label)
    found = net.predict(X)
    assert found.shape == (150, 2)
    distances = np.linalg.norm(found[:, None] - found, axis=2) + 1e9 * np.eye(150)
    assert (label[distances.argmin(axis=1)] == label).mean() > 0.85


def test_wrong_scores_and_targets_are_refused():
    X = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
    wide = Linear().build(6, 3, 0)
    with pytest.raises(ValueError, match=r"takes one score a row, \(N, 1\), but .* has \('N', 3\)"):
        OrtGradientRegressor(wide, loss="cox").fit(X, {"time": np.arange(20), "event": np.ones(20, bool)})
    with pytest.raises(ValueError, match=r"takes two embeddings a row, .* \('N', 3\)"):
        OrtGradientRegressor(wide, loss="info_nce").fit(X)
    with pytest.raises(ValueError, match="No row of y has an event"):
        OrtGradientRegressor(loss="cox").fit(X, {"time": np.arange(20), "event": np.zeros(20, bool)})
    with pytest.raises(ValueError, match=r"Different times in .* are equal in float32"):
        OrtGradientRegressor(loss="cox").fit(X, {"time": 1e9 + np.arange(20), "event": np.ones(20, bool)})
    with pytest.raises(ValueError, match="batch_size=None takes labels or numbers as y"):
        OrtGradientRegressor(towers(), loss="info_nce", batch_size=None).fit({"a": X, "b": X})
    assert InfoNCE(dimension=5).n_scores("regression", 1) == 10

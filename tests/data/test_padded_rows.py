"""``PaddedRows``: lists of examples of different lengths become arrays with a mask."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import onnx.parser
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from onnx import numpy_helper
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline

from onnxtrain_sklearn import SGD, OrtGradientClassifier, PaddedRows
from tests.helpers.environment import each_engine

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

RNG = np.random.default_rng(0)
FEATURES, HIDDEN, CLASSES = 4, 6, 3
W, V = (RNG.normal(size=shape).astype(np.float32) for shape in ((FEATURES, HIDDEN), (HIDDEN, CLASSES)))

# A graph isomorphism network with a mean over the nodes that the mask counts.
GIN = onnx.parser.parse_model(
    """<ir_version: 8, opset_import: ["": 18]>
    gin (float[N, nodes, 4] x, float[N, nodes, nodes] adjacency, float[N, nodes] mask) => (float[N, 3] scores) {
        sums = MatMul(adjacency, x)
        all = Add(sums, x)
        z = MatMul(all, W)
        zb = Add(z, b)
        a = Tanh(zb)
        m = Unsqueeze(mask, last)
        counted = Mul(a, m)
        total = ReduceSum <keepdims = 0> (counted, one)
        count = ReduceSum <keepdims = 1> (mask, one)
        mean = Div(total, count)
        scores = MatMul(mean, V)
    }"""
)
B = RNG.normal(size=HIDDEN).astype(np.float32)
for name, array in {"W": W, "V": V, "b": B, "last": np.array([2]), "one": np.array([1])}.items():
    GIN.graph.initializer.append(numpy_helper.from_array(array, name))


def graphs(count, seed=0):
    rng = np.random.default_rng(seed)
    found = []
    for n in rng.integers(2, 9, count):
        adjacency = np.triu(rng.random((n, n)) < 0.4, 1).astype(float)
        found.append({"x": rng.normal(size=(n, FEATURES)), "adjacency": adjacency + adjacency.T})
    return found


EXAMPLES = graphs(24)
y = np.arange(24) % CLASSES


def pipeline(lengths=None, **settings):
    return make_pipeline(PaddedRows(lengths), OrtGradientClassifier(GIN, alpha=0.0, random_state=0, **settings))


def scores_of(one, w, v, b):
    hidden = np.tanh((one["adjacency"] @ one["x"] + one["x"]) @ w + b)
    return hidden, hidden.mean(axis=0) @ v


@pytest.mark.parametrize("lengths", [None, 12])
@each_engine
def test_gradients_are_the_weighted_mean_over_examples_without_padding(engine, lengths):
    weights = np.random.default_rng(1).uniform(0, 2, 24)
    w, v, b = (one.astype(float) for one in (W, V, B))
    of_w, of_v, of_b = (np.zeros(one.shape) for one in (w, v, b))
    for one, label, weight in zip(EXAMPLES, y, weights / weights.sum(), strict=True):
        hidden, scores = scores_of(one, w, v, b)
        p = np.exp(scores - scores.max())
        slope = (p / p.sum() - np.eye(CLASSES)[label]) * weight
        inner = (1 - hidden**2) * (v @ slope) / len(hidden)
        of_v += np.outer(hidden.mean(axis=0), slope)
        of_w += (one["adjacency"] @ one["x"] + one["x"]).T @ inner
        of_b += inner.sum(axis=0)
    step = {"optimizer": SGD(momentum=0.0), "learning_rate_init": 0.5, "max_iter": 1, "batch_size": 24}
    fitted = pipeline(lengths, engine=engine, **step)
    fitted.fit(EXAMPLES, y, ortgradientclassifier__sample_weight=weights)
    for name, before, expected in (("W", W, of_w), ("V", V, of_v), ("b", B, of_b)):
        assert_allclose((before - fitted[-1].weights_[name]) / 0.5, expected, atol=2e-6, err_msg=name)
        assert np.abs(expected).max() > 1e-2


def test_predictions_do_not_depend_on_padding():
    fitted = pipeline(max_iter=3).fit(EXAMPLES, y)
    weights = [fitted[-1].weights_[name].astype(float) for name in ("W", "V", "b")]
    others = graphs(7, seed=3)
    expected = np.array([scores_of(one, *weights)[1] for one in others])
    assert_allclose(fitted.decision_function(others), expected, atol=1e-5)
    assert_allclose(fitted.decision_function(others[:1]), expected[:1], atol=1e-5)
    assert_allclose(pickle.loads(pickle.dumps(fitted)).decision_function(others), expected, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("form", ["list", "object array"])
def test_scikit_learn_splits_and_searches(form):
    X = EXAMPLES
    if form == "object array":
        X = np.empty(len(EXAMPLES), object)
        X[:] = EXAMPLES
    estimator = pipeline(max_iter=3)
    assert cross_val_score(estimator, X, y, cv=3).shape == (3,)
    assert cross_val_predict(estimator, X, y, cv=3).shape == y.shape
    search = GridSearchCV(estimator, {"ortgradientclassifier__learning_rate_init": [0.01, 0.1]}, cv=2).fit(X, y)
    assert search.predict(X).shape == y.shape
    own = clone(estimator).set_params(ortgradientclassifier__learning_rate_init=search.best_params_.popitem()[1])
    assert_array_equal(own.fit(X, y).predict(X), search.predict(X))


def test_masks_and_padded_axes():
    rows = PaddedRows(mask={"x": "nodes", "edges": "is_edge"}).fit(
        [{"x": np.ones((2, 3)), "edges": np.ones((1, 2), int)}, {"x": np.ones((3, 3)), "edges": np.ones((4, 2), int)}]
    )
    assert rows.axes_ == {"x": (0,), "edges": (0,)}
    found = rows.transform([{"x": np.ones((1, 3)), "edges": np.ones((2, 2), int)}] * 2)
    assert found["x"].shape == (2, 1, 3)
    assert found["edges"].dtype.kind == "i"
    assert_array_equal(found["is_edge"], np.ones((2, 2)))
    fixed = PaddedRows({"X": 4}, mask=None).fit_transform([[1.0], [2.0, 3.0]])
    assert list(fixed.arrays) == ["X"]
    assert_array_equal(fixed["X"], [[1, 0, 0, 0], [2, 3, 0, 0]])


def test_mask_is_of_the_first_input_of_fit():
    rows = PaddedRows().fit([{"x": np.ones((2, 3)), "edges": np.ones((1, 2))}])
    found = rows.transform([{"edges": np.ones((n, 2)), "x": np.ones((n + 1, 3))} for n in (1, 3)])
    assert_array_equal(found["mask"], [[1, 1, 0, 0], [1, 1, 1, 1]])


ONE = [np.ones((2, 3)), np.ones((4, 3))]
REFUSED = {
    "array by input": (lambda: PaddedRows().fit({"x": np.ones(3)}), TypeError, "list or an object array of examples"),
    "no example": (lambda: PaddedRows().fit([]), ValueError, "at least one example"),
    "too long": (lambda: PaddedRows(3).fit_transform(ONE), ValueError, "has 4 elements on axis 0, and lengths is 3"),
    "other width": (
        lambda: PaddedRows().fit(ONE).transform([np.ones((2, 3)), np.ones((2, 4))]),
        ValueError,
        r"\[3, 4\] elements on axis 1",
    ),
    "unknown input": (lambda: PaddedRows({"y": 3}).fit(ONE), ValueError, r"lengths names 'y', .*\['X'\]"),
    "name taken": (lambda: PaddedRows(mask="X").fit(ONE), ValueError, "name the mask otherwise"),
    "one name for two masks": (
        lambda: PaddedRows(mask={"x": "m", "z": "m"}).fit([{"x": np.ones(2), "z": np.ones(2)}]),
        ValueError,
        r"mask\['x'\] must be a str that names this mask alone",
    ),
    "name of a mask": (lambda: PaddedRows(mask={"X": 3}).fit(ONE), ValueError, "must be a str that names"),
    "ranks": (lambda: PaddedRows().fit([np.ones(2), np.ones((2, 2))]), ValueError, "same number of axes"),
    "text": (lambda: PaddedRows().fit([np.array(["a"])]), TypeError, "must hold numbers"),
    "other inputs": (
        lambda: PaddedRows().fit([{"x": np.ones(2)}, {"x": np.ones(2), "z": np.ones(2)}]),
        ValueError,
        "Example 1 has the inputs",
    ),
    "length": (lambda: PaddedRows(0).fit(ONE), ValueError, "lengths"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_say_what_was_expected(case):
    call, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        call()

"""Classification of each position of a row: words of texts, pixels of images, with labels to ignore."""

from __future__ import annotations

import pickle

import numpy as np
import onnxruntime
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.model_selection import GridSearchCV

from onnxtrain_sklearn import LBFGS, SGD, GraphModel, Linear, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError
from onnxtrain_sklearn.losses import LOSSES
from tests.contracts.test_losses import REFERENCES
from tests.helpers.environment import each_engine
from tests.helpers.graphs import model
from tests.helpers.step_options import configured
from tests.helpers.training import NEVER

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

START = np.array([[1, -2, 3], [0.5, 1, 2], [0, 0, 1], [1, 1, -1]], np.float32) / 4
WEIGHTS = f"float[4, 3] W = {{{', '.join(map(str, START.ravel()))}}}"
WORDS = model(x="float[N, T, 4] X", y="float[N, T, 3] Y", weights=WEIGHTS)
PIXELS = model(
    "C = Constant <value_ints = [3, 4, 1, 1]> () V = Transpose <perm = [1, 0]> (W) K = Reshape (V, C) Y = Conv (X, K)",
    x="float[N, 4, H, W_] X",
    y="float[N, 3, H, W_] Y",
    weights=WEIGHTS,
)
ONE = model(x="float[N, T, 4] X", y="float[N, T, 1] Y", weights="float[4, 1] W = {1, -1, 0.5, 0}")
LABELS = sorted(name for name, loss in LOSSES.items() if "multiclass" in loss.tasks and name != "ordinal")


def tagged(n=23, steps=6, classes=3, seed=0):
    """Rows of words with tags that depend on them; short rows are filled up, and one is nothing but filling."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, steps, 4)).astype(np.float32)
    y = (X @ rng.normal(size=(4, classes)) + rng.normal(0, 0.1, (n, steps, classes))).argmax(axis=-1)
    y[np.arange(steps) >= rng.integers(1, steps + 1, n)[:, None]] = -100
    y[3] = -100
    return X, y


def images(seed=0):
    X, y = tagged(seed=seed)
    return X.transpose(0, 2, 1).reshape(len(X), 4, 2, 3), y.reshape(len(y), 2, 3)


def tagger(net=WORDS, **parameters):
    defaults = {"optimizer": SGD(), "learning_rate_init": 0.2, "shuffle": False, "max_iter": 3, "tol": NEVER}
    return configured(OrtGradientClassifier(net), **defaults | parameters)


def mean_loss(w, loss, X, y, weights, task="multiclass"):
    """The mean over all labels that count, each weighted by its row and its class, as PyTorch's CrossEntropyLoss."""
    counted = y >= 0
    scores, true = X[counted].astype(float) @ w, y[counted]
    target = np.eye(w.shape[1])[true] if task == "multiclass" else true[:, None].astype(float)
    losses = REFERENCES[loss](scores, target, task).mean(axis=1)
    return np.average(losses, weights=weights[counted])


def slope_of(w, *data):
    found, h = np.zeros_like(w), 1e-6
    for place in np.ndindex(w.shape):
        step = np.zeros_like(w)
        step[place] = h
        found[place] = (mean_loss(w + step, *data) - mean_loss(w - step, *data)) / (2 * h)
    return found


def numpy_weights(loss, X, y, weights, size=5, group=1, start=START, task="multiclass"):
    """The weights after three epochs of gradient descent; rows without labels that count are in no minibatch."""
    rows = np.flatnonzero((weights * (y >= 0)).sum(axis=1))
    X, y, weights = X[rows], y[rows], weights[rows]
    w = start.astype(float)
    for _ in range(3):
        for first in range(0, len(X), size * group):
            piece = slice(first, first + size * group)
            w = w - 0.2 * slope_of(w, loss, X[piece], y[piece], weights[piece], task)
    return w


@each_engine
@pytest.mark.parametrize("loss", LABELS)
def test_every_loss_is_the_mean_over_all_labels_that_count(loss, engine):
    X, y = tagged()
    weights = np.random.default_rng(1).uniform(0, 2, len(X))
    fitted = tagger(loss=loss, engine=engine, batch_size=5).fit(X, y, sample_weight=weights)
    expected = numpy_weights(loss, X, y, np.repeat(weights[:, None], 6, axis=1))
    assert_allclose(fitted.weights_["W"], expected, rtol=2e-4, atol=2e-5)


@each_engine
def test_classes_are_in_front_of_the_pixels(engine):
    X, y = images()
    fitted = tagger(PIXELS, engine=engine, batch_size=5).fit(X, y)
    words, tags = tagged()
    assert_allclose(
        fitted.weights_["W"], numpy_weights("log_loss", words, tags, np.ones(tags.shape)), rtol=2e-4, atol=2e-5
    )
    assert fitted.predict(X).shape == y.shape
    p = fitted.predict_proba(X)
    assert p.shape == (*y.shape, 3)
    assert_allclose(p.sum(axis=-1), 1, rtol=1e-6)
    assert_array_equal(p.argmax(axis=-1), fitted.predict(X))


@each_engine
@pytest.mark.parametrize("loss", ["log_loss", "hinge"])
def test_one_score_is_that_of_the_second_class(loss, engine):
    X, y = tagged(classes=2)
    weights = np.random.default_rng(1).uniform(0, 2, len(X))
    fitted = tagger(ONE, loss=loss, engine=engine, batch_size=5).fit(X, y, sample_weight=weights)
    start, every = np.array([[1.0], [-1], [0.5], [0]]), np.repeat(weights[:, None], 6, axis=1)
    expected = numpy_weights(loss, X, y, every, start=start, task="binary")
    assert_allclose(fitted.weights_["W"], expected, rtol=2e-4, atol=2e-5)
    scores = fitted.decision_function(X)
    assert scores.shape == y.shape
    assert_array_equal(scores > 0, fitted.predict(X) == 1)
    if loss == "log_loss":
        assert_allclose(fitted.predict_proba(X)[..., 1], 1 / (1 + np.exp(-scores.astype(float))), rtol=1e-6)


@each_engine
@pytest.mark.parametrize("class_weight", [{0: 3.0, 2: 0.5}, "balanced"])
def test_class_weights_are_those_of_single_labels(class_weight, engine):
    X, y = tagged()
    rows = np.random.default_rng(1).uniform(0.5, 2, len(X))[:, None]
    fitted = tagger(class_weight=class_weight, engine=engine, batch_size=5).fit(X, y, sample_weight=rows.ravel())
    totals = [(rows * (y == k)).sum() for k in range(3)]
    own = [3.0, 1.0, 0.5] if isinstance(class_weight, dict) else sum(totals) / 3 / np.array(totals)
    expected = numpy_weights("log_loss", X, y, rows * np.append(own, 0.0)[np.where(y < 0, -1, y)])
    assert_allclose(fitted.weights_["W"], expected, rtol=2e-4, atol=2e-5)


@each_engine
def test_accumulated_minibatches_are_one(engine):
    X, y = tagged()
    fitted = tagger(engine=engine, batch_size=5, optimizer__accumulate=2).fit(X, y)
    expected = numpy_weights("log_loss", X, y, np.ones(y.shape), group=2)
    assert_allclose(fitted.weights_["W"], expected, rtol=2e-4, atol=2e-5)


def test_the_loss_of_an_epoch_is_the_mean_of_its_labels():
    X, y = tagged()
    fitted = tagger(learning_rate_init=0.0, batch_size=5, max_iter=1).fit(X, y)
    assert_allclose(fitted.loss_, mean_loss(START.astype(float), "log_loss", X, y, np.ones(y.shape)), rtol=1e-6)


@pytest.mark.parametrize("optimizer", [SGD(), LBFGS()])
def test_ignored_positions_have_no_effect(optimizer):
    X, y = tagged()
    fitted = tagger(optimizer=optimizer).fit(X, y)
    other = np.where((y < 0)[:, :, None], 7.0, X).astype(np.float32)
    assert_allclose(tagger(optimizer=optimizer).fit(other, y).weights_["W"], fitted.weights_["W"], rtol=1e-5)
    kept = np.arange(len(y)) != 3
    assert_allclose(tagger(optimizer=optimizer).fit(X[kept], y[kept]).weights_["W"], fitted.weights_["W"], rtol=1e-5)
    assert fitted.classes_.tolist() == [0, 1, 2]
    assert np.isfinite(fitted.loss_curve_).all()


@pytest.mark.parametrize(("names", "ignored"), [(["b", "a", "c"], "PAD"), ([0.5, -1.0, 2.0], -100), ([7, 5, 6], 0)])
def test_labels_of_any_kind(names, ignored):
    X, y = tagged()
    labels = np.where(y < 0, np.array(ignored), np.array(names)[np.maximum(y, 0)])
    ranked = np.argsort(np.argsort(names))[np.maximum(y, 0)]
    fitted = tagger(ignore_label=ignored).fit(X, labels)
    assert fitted.classes_.tolist() == sorted(names)
    same = tagger().fit(X, np.where(y < 0, -100, ranked))
    assert_array_equal(fitted.predict(X), np.sort(names)[same.predict(X)])
    assert fitted.score(X, labels) == same.score(X, np.where(y < 0, -100, ranked))


@pytest.mark.parametrize("ignored", [-100, 0.5, "pad", None, float("nan")])
def test_numbers_among_python_objects_are_numbers(ignored):
    X, y = tagged()
    labels = y.astype(object)
    labels[y < 0] = ignored
    found = tagger(ignore_label=float("nan") if ignored is None else ignored).fit(X, labels)
    assert found.classes_.dtype == np.int64
    assert_array_equal(found.weights_["W"], tagger().fit(X, y).weights_["W"])
    assert found.score(X, labels) == tagger().fit(X, y).score(X, y)


def test_labels_that_are_not_a_number_can_be_ignored():
    X, y = tagged()
    labels = np.where(y < 0, np.nan, y)
    found = tagger(ignore_label=float("nan")).fit(X, labels)
    assert_array_equal(found.weights_["W"], tagger().fit(X, y).weights_["W"])
    assert found.score(X, labels) == tagger().fit(X, y).score(X, y)
    assert pickle.loads(pickle.dumps(found)).partial_fit(X, labels).t_ > found.t_


@pytest.mark.parametrize("label", [None, b"noun", 2])
def test_labels_of_several_kinds_are_refused(label):
    X, y = tagged()
    words = np.array(["adj", "noun", "verb", "pad"], object)[y.clip(-1)]
    words[0, 0] = label
    with pytest.raises(TypeError, match=rf"texts or numbers, and not both.*got .*{type(label).__name__}"):
        tagger(ignore_label="pad").fit(X, words)


def test_labels_none_of_which_counts_are_named_as_the_reason():
    (X, y), nothing = tagged(), np.full((23, 6), -100)
    with pytest.raises(ValueError, match="No label of y counts: all are ignore_label=-100"):
        tagger().fit(X, nothing)
    with pytest.raises(ValueError, match="No label of y counts"):
        tagger().partial_fit(X, y, classes=[0, 1, 2]).partial_fit(X, nothing)
    with pytest.raises(ValueError, match="No label of y_val counts"):
        tagger().fit(X, y, X_val=X, y_val=nothing)


def test_scores_count_labels():
    X, y = tagged()
    weights = np.random.default_rng(1).uniform(0.5, 2, len(X))
    fitted = tagger(class_weight={0: 3.0}).fit(X, y, X_val=X, y_val=y, sample_weight_val=weights)
    right, shares = fitted.predict(X) == y, weights[:, None] * (y >= 0)
    assert_allclose(fitted.score(X, y, weights), np.average(right, weights=shares))
    assert_allclose(fitted.validation_scores_[-1], np.average(right, weights=shares * np.where(y == 0, 3.0, 1.0)))
    with pytest.raises(ValueError, match="No label of y counts"):
        fitted.score(X, np.full(y.shape, -100))


def test_files_and_pickles_predict_the_same():
    for net, (X, y) in ((WORDS, tagged()), (PIXELS, images())):
        fitted = tagger(net).fit(X, y)
        session = onnxruntime.InferenceSession(fitted.to_onnx().SerializeToString())
        labels, p = session.run(["label", "probabilities"], {"X": X})
        assert_array_equal(labels, fitted.predict(X))
        assert_array_equal(p, fitted.predict_proba(X))
        raw = onnxruntime.InferenceSession(fitted.to_onnx(raw_scores=True).SerializeToString())
        assert_array_equal(raw.run(["probabilities"], {"X": X})[0], fitted.decision_function(X))
        twin = pickle.loads(pickle.dumps(fitted))
        assert_array_equal(twin.partial_fit(X, y).weights_["W"], fitted.partial_fit(X, y).weights_["W"])


def test_graph_of_free_length_predicts_any_length():
    X, y = tagged()
    fitted = tagger().fit({"X": X}, y)
    assert_array_equal(fitted.predict({"X": X[:, :2]}), fitted.predict({"X": X})[:, :2])
    fitted.partial_fit({"X": X[:, :2]}, y[:, :2])
    with pytest.raises(ValueError, match="shape"):
        fitted.partial_fit({"X": X[:, :2]}, y)


@pytest.mark.long
def test_searches_early_stopping_and_scorers():
    X, y = tagged(80)

    def errors(estimator, X, y):
        return -np.mean((estimator.predict(X) != y)[y >= 0])

    net = tagger(early_stopping=True, scoring=errors, random_state=0, max_iter=8)
    search = GridSearchCV(net, {"learning_rate_init": [0.0, 0.5]}, cv=3).fit(X, y)
    assert search.best_params_ == {"learning_rate_init": 0.5}
    assert -0.5 < search.best_estimator_.best_validation_score_ <= 0
    assert search.score(X, y) > 0.8


def test_classes_of_all_passes_are_given_first():
    X, y = tagged()
    with pytest.raises(ValueError, match="classes must be passed"):
        tagger(ONE).partial_fit(X, np.where(y < 0, -100, y > 0))
    fitted = tagger().partial_fit(X[:2], np.minimum(y[:2], 1), classes=[0, 1, 2])
    assert fitted.partial_fit(X, y).classes_.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="Remove it from classes"):
        tagger().fit(X, y, classes=[-100, 0, 1, 2])


@pytest.mark.parametrize("end", ["Softmax <axis = -1>", "LogSoftmax <axis = -1>"])
def test_a_final_softmax_is_recognized(end):
    X, y = tagged()
    ended = model(f"S = MatMul(X, W) Y = {end} (S)", x="float[N, T, 4] X", y="float[N, T, 3] Y", weights=WEIGHTS)
    fitted = tagger(ended).fit(X, y)
    assert_allclose(fitted.weights_["W"], tagger().fit(X, y).weights_["W"], rtol=1e-5)
    assert_allclose(fitted.predict_proba(X).sum(axis=-1), 1, rtol=1e-6)
    pixels = model(
        "C = Constant <value_ints = [3, 4, 1, 1]> () V = Transpose <perm = [1, 0]> (W) K = Reshape (V, C)"
        "S = Conv (X, K) Y = Softmax <axis = 1> (S)",
        x="float[N, 4, 2, 3] X", y="float[N, 3, 2, 3] Y", weights=WEIGHTS,
    )  # fmt: skip
    assert_allclose(tagger(pixels).fit(*images()).weights_["W"], tagger().fit(X, y).weights_["W"], rtol=1e-5)


def test_probabilities_of_one_score():
    X, y = tagged(classes=2)
    ended = model(
        "S = MatMul(X, W) Y = Sigmoid (S)", x="float[N, T, 4] X", y="float[N, T, 1] Y",
        weights="float[4, 1] W = {1, -1, 0.5, 0}",
    )  # fmt: skip
    fitted = tagger(ended).fit(X, y)
    assert_allclose(fitted.weights_["W"], tagger(ONE).fit(X, y).weights_["W"], rtol=1e-5)
    assert fitted.predict_proba(X).shape == (*y.shape, 2)


def test_the_axis_of_the_classes_is_asked_for_where_two_fit():
    X, y = tagged(steps=3)
    net = model(x="float[N, 3, 4] X", y="float[N, 3, 3] Y", weights=WEIGHTS)
    with pytest.raises(ValueError, match=r"class_axis=1\) or class_axis=-1"):
        tagger(net).fit(X, y)
    last = tagger(GraphModel(net, class_axis=-1)).fit(X, y)
    assert_array_equal(last.weights_["W"], tagger().fit(X, y).weights_["W"])
    turned = model(
        "S = MatMul(X, W) Y = Transpose <perm = [0, 2, 1]> (S)", x="float[N, 3, 4] X", y="float[N, 3, 3] Y",
        weights=WEIGHTS,
    )  # fmt: skip
    assert_allclose(tagger(GraphModel(turned, class_axis=1)).fit(X, y).weights_["W"], last.weights_["W"], rtol=1e-6)
    with pytest.raises(ValueError, match="'class_axis' parameter"):
        tagger(GraphModel(net, class_axis=2)).fit(X, y)
    flat = model("S = MatMul(X, W) A = Constant <value_ints = [2]> () Y = Squeeze (S, A)",
                 x="float[N, T, 4] X", y="float[N, T] Y", weights="float[4, 1] W = {1, -1, 0.5, 0}")  # fmt: skip
    X, y = tagged(classes=2)
    fitted = tagger(GraphModel(flat, class_axis=-1)).fit(X, y)
    assert_allclose(fitted.weights_["W"], tagger(ONE).fit(X, y).weights_["W"], rtol=1e-6)


def test_labels_that_do_not_fit_are_refused():
    X, y = tagged()
    for labels, message in (
        (y[:, :4], r"scores of shape \('n', 4, 'k'\) or \('n', 'k', 4\)"),
        (np.where(y == 0, 5, y), r"3 column\(s\), but y has 4 classes|has 3 column"),
        (np.where(y < 0, y, 1), "at least 2 classes"),
    ):
        labels = np.where((labels == 5) & (np.arange(labels.shape[1]) == 0), 6, labels)
        with pytest.raises(ValueError, match=message):
            tagger().fit(X, labels)
    with pytest.raises(ValueError, match="one list of labels"):
        tagger().fit(X, y, classes=[[0, 1], [0, 1]])
    with pytest.raises(ValueError, match="differ in length"):
        tagger(GraphModel(WORDS, class_axis=-1)).fit(X[:2], [[0, 1], [1]])
    with pytest.raises(ValueError, match="for which the graph must have scores"):
        OrtGradientClassifier(GraphModel(Linear(), class_axis=-1)).fit(X.reshape(len(X), -1), y)
    with pytest.raises(ModelError, match="zipmap"):
        tagger().fit(X, y).to_onnx(zipmap=True)
    with pytest.raises(ModelError, match="one label a row"):
        tagger().fit(X, y).export_artifacts("nowhere")
    assert not hasattr(tagger().fit(X, y), "coef_")


def test_columns_of_labels_stay_columns():
    """A matrix of labels beside one score for each is one label problem per column, as before."""
    X = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    Y = (X[:, :3] > 0).astype(int)
    fitted = OrtGradientClassifier(Linear(), max_iter=3, random_state=0).fit(X, Y)
    assert fitted.predict_proba(X).shape == (40, 3)
    assert OrtGradientRegressor(Linear(), max_iter=3, random_state=0).fit(X, Y).predict(X).shape == (40, 3)

"""Labels that do not count: those of whole rows, and some of several labels a row."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, log_loss
from sklearn.utils.class_weight import compute_sample_weight

from onnxtrain_sklearn import (
    LBFGS,
    SGD,
    Linear,
    OrtGradientClassifier,
    OrtGradientMultiOutput,
    RealMLPClassifier,
    TabMClassifier,
    load_training,
)
from onnxtrain_sklearn.exceptions import ModelError, OnnxTrainWarning
from onnxtrain_sklearn.losses import LOSSES, Loss
from tests.contracts.test_losses import REFERENCES
from tests.helpers.environment import each_engine
from tests.helpers.graphs import model
from tests.helpers.step_options import configured
from tests.helpers.training import NEVER, quietly

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

N = 23
START = np.random.default_rng(5).normal(0, 0.5, (4, 5)).astype(np.float32)
X = np.random.default_rng(6).normal(size=(N, 4)).astype(np.float32)
WEIGHTS = np.random.default_rng(7).uniform(0.5, 2, N)
NAMES = {task: sorted(n for n, one in LOSSES.items() if task in one.tasks) for task in ("multiclass", "multilabel")}
NAMES["multiclass"].remove("ordinal")  # for one label a row
NAMES["multilabel"].remove("dice")  # a loss of all labels of a row, which refuses that some do not count


def net(columns):
    numbers = ", ".join(map(str, START[:, :columns].ravel()))
    return model(x="float[N, 4] X", y=f"float[N, {columns}] Y", weights=f"float[4, {columns}] W = {{{numbers}}}")


def indicators(seed=0):
    """Three labels a row, three tenths of which do not count; one row has none that does."""
    rng = np.random.default_rng(seed)
    y = (X @ rng.normal(size=(4, 3)) + rng.normal(0, 0.3, (N, 3)) > 0).astype(int)
    y[rng.random(y.shape) < 0.3] = -100
    y[3] = -100
    return y


def two_labels(seed=0):
    """A label of three classes and one of two."""
    rng = np.random.default_rng(seed)
    y = np.stack([(X @ rng.normal(size=(4, k))).argmax(axis=1) * 10 + k for k in (3, 2)], axis=1)
    y[rng.random(y.shape) < 0.3] = -100
    y[3] = -100
    return y


KINDS = {"indicators": (indicators, 3), "several": (two_labels, 5)}


def new(kind="indicators", **parameters):
    settings = {"optimizer": SGD(), "learning_rate_init": 0.2, "shuffle": False, "max_iter": 3, "tol": NEVER}
    return configured(OrtGradientClassifier(net(KINDS[kind][1])), **settings | {"batch_size": 5} | parameters)


def mean_loss(w, kind, loss, rows, y, weights):
    """The mean over all labels that count, each weighted by its row, in float64."""
    total = count = 0.0
    first = 0
    for j in range(y.shape[1]):
        classes = [0, 1] if kind == "indicators" else np.unique(two_labels()[:, j])[1:]
        width = 1 if kind == "indicators" else len(classes)
        task = "multilabel" if kind == "indicators" else "multiclass"
        own = y[:, j] != -100
        scores = rows[own].astype(float) @ w[:, first : first + width]
        place = np.searchsorted(classes, y[own, j])
        true = place[:, None].astype(float) if width == 1 else np.eye(width)[place]
        losses = REFERENCES[loss](scores, true, task).mean(axis=1)
        total, count, first = total + (losses * weights[own]).sum(), count + weights[own].sum(), first + width
    return total / count


def slope(w, *data):
    found, h = np.zeros_like(w), 1e-6
    for place in np.ndindex(w.shape):
        step = np.zeros_like(w)
        step[place] = h
        found[place] = (mean_loss(w + step, *data) - mean_loss(w - step, *data)) / (2 * h)
    return found


def descended(kind, loss, y, weights, *, size=5, epochs=3):
    """The weights after gradient descent, by central differences; rows without labels are in no minibatch."""
    rows = np.flatnonzero((y != -100).any(axis=1) & (weights > 0))
    w = START[:, : KINDS[kind][1]].astype(float)
    for _ in range(epochs):
        for first in range(0, len(rows), size):
            part = rows[first : first + size]
            w = w - 0.2 * slope(w, kind, loss, X[part], y[part], weights[part])
    return w


@each_engine
@pytest.mark.parametrize(
    ("kind", "loss"),
    [("indicators", name) for name in NAMES["multilabel"]] + [("several", name) for name in NAMES["multiclass"]],
)
def test_the_loss_is_the_mean_over_the_labels_that_count(kind, loss, engine):
    y = KINDS[kind][0]()
    fitted = new(kind, loss=loss, engine=engine).fit(X, y, sample_weight=WEIGHTS)
    assert_allclose(fitted.weights_["W"], descended(kind, loss, y, WEIGHTS), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_machine_code(kind):
    pytest.importorskip("llvmlite", reason="graphs are compiled by llvmlite")
    y = KINDS[kind][0]()
    fitted = new(kind, engine="compiled").fit(X, y, sample_weight=WEIGHTS)
    assert fitted.engine_ == "compiled"
    assert_allclose(fitted.weights_["W"], descended(kind, "log_loss", y, WEIGHTS), rtol=2e-4, atol=2e-5)


@each_engine
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("balanced", [True, False])
def test_class_weights_multiply_over_the_labels_that_count(kind, balanced, engine):
    y = KINDS[kind][0]()
    given = "balanced" if balanced else [{label: 1.0 + i for i, label in enumerate(np.unique(c)[1:])} for c in y.T]
    fitted = new(kind, class_weight=given, engine=engine).fit(X, y, sample_weight=WEIGHTS)
    product = WEIGHTS.copy()
    for j, column in enumerate(y.T):
        own = column != -100
        product[own] *= compute_sample_weight(given if balanced else given[j], column[own])
    assert_allclose(fitted.weights_["W"], descended(kind, "log_loss", y, product), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_accumulation_full_batch_and_partial_fit_agree(kind):
    y, whole = KINDS[kind][0](), np.ones(N)
    fitted = new(kind, optimizer__accumulate=2).fit(X, y)
    assert_allclose(fitted.weights_["W"], descended(kind, "log_loss", y, whole, size=10), rtol=2e-4, atol=2e-5)
    classes = None if kind == "indicators" else [np.unique(c)[1:] for c in y.T]
    passes = new(kind, max_iter=1)
    for _ in range(3):
        passes.partial_fit(X, y, classes=classes)
    assert_allclose(passes.weights_["W"], descended(kind, "log_loss", y, whole), rtol=2e-4, atol=2e-5)
    best = new(kind, optimizer=LBFGS(), alpha=1.0, max_iter=300, tol=1e-9).fit(X, y).weights_["W"].astype(float)
    rows = (y != -100).mean(axis=1).sum()  # which weigh as much as their labels
    assert_allclose(slope(best, kind, "log_loss", X, y, whole), -best / rows, rtol=0, atol=2e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_and_losses_leave_them_out(kind):
    y = KINDS[kind][0]()
    fitted = new(kind, learning_rate_init=0.0, max_iter=1, early_stopping=True)
    quietly(fitted.fit, X[:9], np.where(y[:9] == -100, y[4], y[:9]), X_val=X, y_val=y, sample_weight_val=WEIGHTS)
    w, labels = START[:, : KINDS[kind][1]].astype(float), y != -100
    scores = X @ w
    if kind == "indicators":
        found = scores > 0
    else:
        found = np.stack([scores[:, :3].argmax(axis=1) * 10 + 3, scores[:, 3:].argmax(axis=1) * 10 + 2], axis=1)
    assert_array_equal(fitted.predict(X), found)
    rows = labels.any(axis=1)
    right = ((found == y) | ~labels).all(axis=1)[rows]
    assert 0 < right.mean() < 1
    assert_allclose(fitted.score(X, y), right.mean())
    assert_allclose(fitted.score(X, y, sample_weight=WEIGHTS), np.average(right, weights=WEIGHTS[rows]))
    assert_allclose(fitted.validation_scores_, np.average(right, weights=WEIGHTS[rows]))
    expected = mean_loss(w, kind, "log_loss", X, y, WEIGHTS)
    assert_allclose(fitted.history_[0]["validation_loss"], expected, rtol=1e-5)

    def share(estimator, rows, given):
        return float((estimator.predict(rows) == given)[given != -100].mean())

    scored = new(kind, learning_rate_init=0.0, max_iter=1, scoring=share).fit(X, y, X_val=X, y_val=y)
    assert_allclose(scored.validation_scores_, (found == y)[labels].mean())
    if kind == "indicators":
        assert_allclose(fitted.score(X, sp.csr_matrix(y)), right.mean())


@pytest.mark.parametrize("marker", [-1, np.nan, "none", None])
def test_a_row_with_one_label_that_is_ignored_adds_nothing(marker):
    y = (X @ [1.0, -1, 0.5, 0] > 0).astype(int) + (X[:, 0] > 1)
    labels = np.array(["low", "mid", "top"], object)[y] if marker in ("none", None) else y.astype(float)
    ignored, given = np.arange(N) % 4 == 1, labels.copy()
    given[ignored] = marker
    settings = {"ignore_label": np.nan if marker is None else marker, "class_weight": "balanced"}
    fitted = new(**settings).fit(X, given, sample_weight=WEIGHTS, X_val=X, y_val=given)
    plain = new(**settings).fit(X[~ignored], labels[~ignored], sample_weight=WEIGHTS[~ignored])
    assert_array_equal(fitted.weights_["W"], plain.weights_["W"])
    assert fitted.classes_.tolist() == plain.classes_.tolist()
    assert fitted.score(X, given) == plain.score(X[~ignored], labels[~ignored])
    assert (
        fitted.validation_scores_[-1]
        == new(**settings)
        .fit(X, given, sample_weight=WEIGHTS, X_val=X[~ignored], y_val=labels[~ignored])
        .validation_scores_[-1]
    )
    for scoring in ("f1_macro", "neg_log_loss"):
        scored = new(scoring=scoring, **settings).fit(X, given, X_val=X, y_val=given)
        plain = new(scoring=scoring, **settings).fit(X, given, X_val=X[~ignored], y_val=labels[~ignored])
        assert scored.validation_scores_ == plain.validation_scores_


def test_default_ignore_label_of_whole_row_warns():
    y = np.arange(N) % 3
    y[4] = -100
    with pytest.warns(OnnxTrainWarning, match=r"ignore_label=-100 in 1 of 23 rows.*ignore_label=None if it is a class"):
        fitted = new().fit(X, y)
    assert fitted.classes_.tolist() == [0, 1, 2]
    assert OrtGradientClassifier(max_iter=1, ignore_label=None).fit(X, y).classes_.tolist() == [-100, 0, 1, 2]


def test_missing_labels_of_several():
    y = indicators()
    expected = new().fit(X, y).weights_["W"]
    missing = np.where(y == -100, np.nan, y)
    assert_array_equal(new(ignore_label=np.nan).fit(X, missing).weights_["W"], expected)
    objects = y.astype(object)
    objects[y == -100] = None
    assert_array_equal(new(ignore_label=np.nan).fit(X, objects).weights_["W"], expected)
    for y_missing in (missing, objects, pd.DataFrame(missing).astype("Int64")):
        for ignore_label in (-100, None):
            with pytest.warns(OnnxTrainWarning, match="1 of 23 rows of y have no label, and are left out"):
                fitted = new(ignore_label=ignore_label).fit(X, y_missing)
            assert_array_equal(fitted.weights_["W"], expected)
            assert fitted.score(X, y_missing) == new().fit(X, y).score(X, y)


@each_engine
def test_each_label_is_fitted_to_the_rows_that_have_it(engine):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 4))
    whole = (rows @ rng.normal(size=(4, 3)) + rng.normal(0, 1, (200, 3)) > 0).astype(float)
    y = np.where(rng.random(whole.shape) < 0.3, np.nan, whole)
    y[np.isnan(y).all(axis=1)] = 1
    weights = rng.uniform(0.2, 2, 200)
    net = OrtGradientClassifier(Linear(), optimizer="lbfgs", alpha=0.0, max_iter=500, tol=1e-9, engine=engine)
    found = net.fit(rows, y, weights).predict_proba(rows)
    for j in range(3):
        own = ~np.isnan(y[:, j])
        plain = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(rows[own], y[own, j], weights[own])
        assert_allclose(found[:, j], plain.predict_proba(rows)[:, 1], atol=2e-3)


@pytest.mark.parametrize("scoring", ["neg_log_loss", "neg_brier_score", None])
def test_scores_of_held_out_rows_leave_missing_labels_out(scoring):
    y = np.where(indicators() == -100, np.nan, indicators())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = new(scoring=scoring).fit(X, y, WEIGHTS, X_val=X, y_val=y, sample_weight_val=WEIGHTS)
        score = fitted.score(X, y, WEIGHTS)
    there, found = ~np.isnan(y), fitted.predict_proba(X).astype(float)
    if scoring is None:
        right = ((fitted.predict(X) == y) | ~there).all(axis=1)
        rows = there.any(axis=1)
        expected = np.average(right[rows], weights=WEIGHTS[rows])
        assert score == pytest.approx(expected)
    else:
        metric = log_loss if scoring == "neg_log_loss" else brier_score_loss
        weights = np.repeat(WEIGHTS[:, None], 3, axis=1)[there]
        expected = -metric(y[there].astype(int), found[there], sample_weight=weights)
    assert fitted.validation_scores_[-1] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("recipe", [RealMLPClassifier("td-s", n_ensembles=2), TabMClassifier()])
@pytest.mark.parametrize("class_weight", [None, "balanced"])
def test_recipes_leave_missing_labels_out(recipe, class_weight):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(400, 4))
    whole = (rows[:, :3] + 0.3 * rng.normal(size=(400, 3)) > 0).astype(float)
    y = np.where(rng.random(whole.shape) < 0.5, np.nan, whole)
    y[3] = np.nan
    recipe = clone(recipe).set_params(max_iter=15, class_weight=class_weight, random_state=0)
    with pytest.warns(OnnxTrainWarning, match="rows of y have no label, and are left out"):
        fitted = recipe.fit(rows, y)
    score = fitted.score(rows, y)
    predicted = fitted.predict(rows)
    assert np.isfinite(fitted.validation_scores_[0]).all()
    assert (predicted == whole).mean() > 0.85
    some = ~np.isnan(y).all(axis=1)
    assert score == pytest.approx(((predicted == y) | np.isnan(y)).all(axis=1)[some].mean())


def test_missing_labels_of_blocks_and_exports_are_refused(tmp_path):
    y = np.where(indicators() == -100, np.nan, indicators())
    y[3] = 1
    with pytest.raises(ValueError, match="takes no missing labels"):
        RealMLPClassifier("td-s").export_training(tmp_path / "folder", X, y)

    class Blocks:
        buffer_rows = 100

        def __len__(self):
            return 8

        def block(self, i):
            y = np.ones((1000, 2))
            y[::3], y[i, 0] = 0, np.nan
            return np.ones((1000, 4)), y, None

    for estimator in (OrtGradientClassifier(Linear()), RealMLPClassifier("td-s", validation_split=None)):
        with pytest.raises(ValueError, match=r"lacks one of several labels of a row|NaN"):
            estimator.fit(Blocks())
        assert not hasattr(estimator, "n_iter_")


class PerRow(Loss):
    """One loss for all labels of a row."""

    tasks = frozenset({"multilabel"})

    def __call__(self, op, scores, y, link):
        return op.ReduceSum(op.Abs(op.Sub(scores, y)), axes=[1], keepdims=True)


class Compared(PerRow):
    """Each label beside the mean of all labels of its row."""

    def __call__(self, op, scores, y, link):
        return op.Abs(op.Sub(op.Sub(scores, op.ReduceMean(scores, axes=[1], keepdims=True)), y))


class Ranked(PerRow):
    """Each row beside the mean of all rows."""

    def __call__(self, op, scores, y, link):
        return op.Abs(op.Sub(op.Sub(scores, op.ReduceMean(scores, axes=[0], keepdims=True)), y))


class Single(PerRow):
    """Each label by itself."""

    def __call__(self, op, scores, y, link):
        return op.Abs(op.Sub(scores, y))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (PerRow(), r"PerRow gives one loss for all 3 labels.*\(N, 3\)"),
        (Compared(), "In the loss Compared the labels or numbers of a row meet"),
        (Ranked(), "Rows meet in the loss Ranked, and some labels"),
    ],
)
def test_losses_in_which_labels_meet_are_refused(loss, message):
    y = indicators()
    with pytest.raises(ModelError, match=message):
        new(loss=loss).fit(X, y)
    whole = np.where(y == -100, 0, y)
    assert new(loss=loss).fit(X, whole).n_iter_ == 3
    with pytest.raises(ModelError, match=message):
        new(loss=loss, early_stopping=True).fit(X, whole, X_val=X, y_val=y)
    assert new(loss=Single()).fit(X, y).n_iter_ == 3


def test_impossible_ignored_labels_are_refused():
    y = indicators()
    with pytest.raises(ValueError, match=r"scoring='f1_macro' cannot leave out single labels.*missing or ignored"):
        new(scoring="f1_macro").fit(X, y, X_val=X, y_val=y)
    with pytest.raises(ValueError, match=r"No label of y counts: all are ignore_label=-100"):
        new().fit(X, np.full_like(y, -100))
    with pytest.raises(ValueError, match=r"classes contains ignore_label=-100.*ignore_label=None"):
        new("several").fit(X, two_labels(), classes=[np.unique(column) for column in two_labels().T])
    empty = two_labels()
    empty[:, 1] = -100
    with pytest.raises(ValueError, match=r"Column 1 of y has no label that counts.*classes"):
        new("several").fit(X, empty)
    assert new("several").fit(X, empty, classes=[[3, 13, 23], [2, 12]]).n_iter_ == 3
    with pytest.raises(ValueError, match="balanced"):
        new(class_weight={0: 2.0}).fit(X, y)


def test_a_column_without_labels_is_not_trained():
    y = indicators()
    y[:, 1] = -100
    fitted = new().fit(X, y)
    assert_array_equal(fitted.weights_["W"][:, 1], START[:, 1])
    assert_allclose(fitted.weights_["W"], descended("indicators", "log_loss", y, np.ones(N)), rtol=2e-4, atol=2e-5)


@each_engine
def test_several_outputs(engine):
    y, other = indicators(), two_labels()
    numbers = ", ".join(map(str, START[:, :3].ravel())), ", ".join(map(str, START.ravel()))
    both = model(
        "A = MatMul (X, W) B = MatMul (X, V)",
        x="float[N, 4] X",
        y="float[N, 3] A, float[N, 5] B",
        weights=f"float[4, 3] W = {{{numbers[0]}}}, float[4, 5] V = {{{numbers[1]}}}",
    )
    settings = {"optimizer": SGD(), "learning_rate_init": 0.2, "shuffle": False, "max_iter": 3, "tol": NEVER}
    losses = {"A": "log_loss", "B": "log_loss"}
    fitted = OrtGradientMultiOutput(both, loss=losses, engine=engine, batch_size=N, **settings)
    fitted.fit(X, {"A": y, "B": other}, sample_weight=WEIGHTS, X_val=X, y_val={"A": y, "B": other})
    for name, kind, labels in (("W", "indicators", y), ("V", "several", other)):
        expected = descended(kind, "log_loss", labels, WEIGHTS, size=N)
        assert_allclose(fitted.weights_[name], expected, rtol=2e-4, atol=2e-5)
    found = fitted.output_scores(X, {"A": y, "B": other})
    for name, kind, labels in (("A", "indicators", y), ("B", "several", other)):
        single = new(kind).fit(X, labels)
        single._state.parameters.view("W")[...] = fitted.weights_["W" if name == "A" else "V"]
        rows = (labels != -100).any(axis=1)
        right = ((fitted.predict(X)[name] == labels) | (labels == -100)).all(axis=1)[rows]
        assert_allclose(found[name], right.mean())


def test_training_graphs_count_every_label_of_several(tmp_path):
    y = indicators()
    fitted = new().fit(X, y)
    fitted.export_training(tmp_path)
    with pytest.raises(ValueError, match="Indicators of several labels a row must be 0 or 1"):
        load_training(tmp_path).partial_fit(X, y)
    whole = np.where(y == -100, 0, y)
    training = load_training(tmp_path, shuffle=False).partial_fit(X, whole)
    fitted.partial_fit(X, whole)
    assert_allclose(training.state["parameters"], fitted._state.parameters.vector, rtol=0, atol=1e-6)

"""Relations between runs that hold whatever the settings: each takes a case and raises where it does not hold.

A relation that does not apply to a case raises ``NotApplicable``.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.metrics import check_scoring
from sklearn.utils.class_weight import compute_sample_weight

from onnxtrain_sklearn import Runtime, load_training
from onnxtrain_sklearn.callbacks import Checkpoint, EpochScoring, GradientStatistics
from tests.combinations.draws import LABELS
from tests.combinations.outcomes import NotApplicable, applies, difference, near, outcome, same
from tests.combinations.recording import watched_in
from tests.combinations.steering import STEERING
from tests.combinations.wide_draws import WideDraw, quiet
from tests.helpers.environment import OWN_MEMORY, available_engines


def keeps_labels(draw: WideDraw, kept: np.ndarray) -> bool:
    """Whether the rows that are kept have all labels, and labels that are held out have rows enough."""
    if draw.has("early_stopping") and draw.validation is None and draw.task != "regression":
        return False
    return draw.task in ("regression", "several") or len(np.unique(draw.y[kept])) == len(np.unique(draw.y))


# the relations.


def refit_begins_anew(draw: WideDraw) -> None:
    first = draw.fit()
    used = draw.fit(
        draw.fit(draw.estimator(learning_rate_init=0.02, random_state=5), rows=np.arange(len(draw.y))[::-1])
    )
    used.set_params(**draw.estimator().get_params(deep=False))
    same(draw.fit(used), first, draw.X)
    same(draw.fit(clone(first)), first, draw.X)


def copies_go_on(draw: WideDraw) -> None:
    applies(draw.takes_minibatches and not draw.has("early_stopping"))
    applies(draw.parameters.get("class_weight") != "balanced")
    first = draw.fit()
    twins = [pickle.loads(pickle.dumps(first)), copy.deepcopy(first)]
    for one in (first, *twins):
        one.set_params(**draw.changed)
        draw.passes(one)
        draw.fit(one.set_params(warm_start=True))
    for twin in twins:
        same(first, twin, draw.X)


def pickles_between_calls_do_not_matter(draw: WideDraw) -> None:
    """Calls of several sizes go on from a pickle as they would without it."""
    applies(draw.takes_minibatches)
    straight = draw.estimator(early_stopping=False)
    if "class_weight" in draw.parameters:
        straight.set_params(class_weight=None)
    twin, rng = clone(straight), np.random.default_rng(draw.number)
    draw.passes(straight), draw.passes(twin)
    for size in rng.integers(1, len(draw.y), 5):
        rows = np.sort(rng.permutation(len(draw.y))[:size])
        applies(draw.weights is None or draw.weights[rows].any())
        twin = pickle.loads(pickle.dumps(twin))
        for one in (straight, twin):
            draw.part(one, rows)
    same(straight, twin, draw.X)


def calls_add_up(draw: WideDraw) -> None:
    """Fits and passes that go on from each other are one fit."""
    applies(draw.takes_minibatches and draw.constant_rates)
    applies(not draw.has("early_stopping") and draw.parameters.get("class_weight") != "balanced")
    settings = {"tol": -np.inf}
    whole = draw.fit(draw.estimator(max_iter=4, **settings))
    parts = draw.fit(draw.estimator(max_iter=1, warm_start=True, **settings))
    draw.fit(parts.set_params(max_iter=2))
    draw.passes(parts)
    leave = {"scores"} if draw.validation else set()
    first, second = outcome(whole, draw.X), outcome(parts, draw.X)
    for name in first.keys() - leave:
        assert np.array_equal(first[name], second[name]), difference(name, first[name], second[name])
    applies(draw.validation is None)
    same(draw.passes(draw.estimator(max_iter=4, **settings), 4), whole, draw.X)


def file_predicts_alike(draw: WideDraw) -> None:
    fitted = draw.fit()
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    session = onnxruntime.InferenceSession(
        fitted.to_onnx().SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    kinds = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64}
    given = draw.X if isinstance(draw.X, dict) else {session.get_inputs()[0].name: draw.X}
    feeds = {v.name: given[v.name].astype(kinds[v.type]) for v in session.get_inputs()}
    found = [np.asarray(x) for x in session.run(None, feeds)]
    expected = [fitted.predict(draw.X)]
    for method in ("predict_proba", "decision_function"):
        if hasattr(fitted, method) and len(expected) < len(found):
            expected.append(getattr(fitted, method)(draw.X))
    for a, b in zip(found, expected, strict=False):
        a = a.reshape(b.shape)
        if b.dtype.kind in "fc":
            assert np.allclose(a, b, rtol=1e-5, atol=1e-6), difference("file", a, b)
        else:
            assert np.array_equal(a, b), difference("file", a, b)


def forms_of_data_are_alike(draw: WideDraw) -> None:
    first = draw.fit()
    if isinstance(draw.X, dict):
        forms: list[Any] = [{name: np.asfortranarray(array) for name, array in reversed(draw.X.items())}]
    else:
        forms = [draw.X.astype(np.float64), np.asfortranarray(draw.X), draw.X.tolist()]
        forms += [pd.DataFrame(draw.X)] if draw.X.ndim == 2 else []
    rounded = ("scores",) if "scoring" in draw.parameters else ()  # in the type of predictions, which is that of X
    for X in forms:
        same(first, draw.fit(X=X), draw.X, leave_out=rounded)
    compared = near if "scoring" in draw.parameters else same  # scikit-learn computes scores in the type of y
    compared(first, draw.fit(y=draw.y.tolist()), draw.X)
    if not isinstance(draw.X, dict) and draw.X.ndim == 2 and draw.kind != "pipeline":
        near(first, draw.fit(X=sp.csr_matrix(draw.X)), draw.X)


def callbacks_only_watch(draw: WideDraw) -> None:
    seen: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        callbacks: list[Any] = [lambda epoch: seen.append(epoch.number)]
        callbacks += [EpochScoring(draw.scorer)] if draw.validation or draw.has("early_stopping") else []
        if draw.takes_minibatches:
            callbacks += [GradientStatistics(), Checkpoint(folder)]
        first, watched = draw.fit(), draw.fit(draw.estimator(callbacks=callbacks, verbose=0))
        same(first, watched, draw.X)
        assert seen == list(range(1, first.n_iter_ + 1))
        if draw.takes_minibatches:
            same(first, draw.fit(draw.estimator(callbacks=[Checkpoint(folder)])), draw.X)  # from the last file


class Crash(Exception):
    pass


def checkpoints_resume(draw: WideDraw) -> None:
    applies(draw.takes_minibatches)

    def crash(epoch: Any) -> None:
        if epoch.number == 1:
            raise Crash

    whole = draw.fit()
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.suppress(Crash):
            draw.fit(draw.estimator(callbacks=[Checkpoint(folder), crash]))
        resumed = draw.fit(draw.estimator(callbacks=[Checkpoint(folder)]))
        same(whole, resumed, draw.X)
        if not draw.has("early_stopping") and draw.parameters.get("class_weight") != "balanced":
            resumed.set_params(callbacks=None)
            same(draw.passes(whole), draw.passes(resumed), draw.X)


def training_graphs_go_on(draw: WideDraw) -> None:
    applies(draw.takes_minibatches and not draw.has("early_stopping", "class_weight"))
    applies(draw.weights is None or bool((draw.weights > 0).all()))
    applies(draw.parameters["batch_size"] != "auto" and draw.parameters["batch_size"] < len(draw.y))
    fitted = draw.fit(draw.estimator(shuffle=False))
    with tempfile.TemporaryDirectory() as folder:
        quiet(fitted.export_training, Path(folder) / "graphs")
        training = load_training(Path(folder) / "graphs", shuffle=False)
    before = len(fitted.loss_curve_)
    for _ in range(2):
        draw.passes(fitted)
        training.partial_fit(draw.X, draw.y, sample_weight=draw.weights)
    found, expected = training.state["parameters"], fitted._state.parameters.vector
    scale = max(0.1, float(np.abs(expected).max()))
    assert np.abs(found - expected).max() <= 1e-4 * scale, difference("parameters", found, expected)
    assert np.allclose(training.loss_curve_, fitted.loss_curve_[before:], rtol=1e-3), "losses"
    if draw.task == "regression":
        assert np.allclose(
            np.ravel(training.predict(draw.X)), np.ravel(fitted.predict(draw.X)), rtol=1e-3, atol=1e-3
        ), "predict"


def devices_train_alike(draw: WideDraw) -> None:
    applies(draw.takes_minibatches and not draw.has("optimizer__lazy_rows"))
    host = draw.fit()
    with mock.patch.dict(OWN_MEMORY, {"CPUExecutionProvider": "cpu"}):
        device = draw.fit()
        near(host, device, draw.X)
        assert host.n_iter_ == device.n_iter_ or draw.has("tol", "early_stopping")


def engines_train_alike(draw: WideDraw) -> None:
    applies("ort-training" in available_engines() and not draw.has("runtime"))
    applies(draw.kind != "batch")
    near(draw.fit(draw.estimator(engine="portable")), draw.fit(draw.estimator(engine="ort-training")), draw.X)


def weight_zero_is_absent(draw: WideDraw) -> None:
    kept = np.random.default_rng(draw.number).random(len(draw.y)) < 0.7
    applies(bool(kept.sum() >= 8) and keeps_labels(draw, kept))
    weights = (np.ones(len(draw.y)) if draw.weights is None else draw.weights) * kept
    applies(bool(weights.sum() > 0))
    absent = draw.fit(rows=kept, sample_weight=weights[kept])
    compared = near if draw.has("class_weight") else same  # sums over all rows and over those that count round apart
    compared(draw.fit(sample_weight=weights), absent, draw.X)


def weights_are_repetitions(draw: WideDraw) -> None:
    """In a full batch, where rows do not meet."""
    applies(not draw.rows_meet and not draw.has("early_stopping", "optimizer__accumulate", "n_iter_no_change", "tol"))
    applies(draw.task != "several" or not draw.has("class_weight"))  # by which the penalty counts rows, not weights
    weights = np.random.default_rng(draw.number).integers(0, 4, size=len(draw.y))
    applies(keeps_labels(draw, weights > 0) and not draw.has("learning_rate"))
    applies(not draw.has("optimizer__weight_decay_schedule", "dropout_schedule"))
    repeated = draw.fit(
        draw.estimator(batch_size=500), rows=np.repeat(np.arange(len(draw.y)), weights), sample_weight=None
    )
    near(draw.fit(draw.estimator(batch_size=500), sample_weight=weights), repeated, draw.X)


def size_of_weights_does_not_matter(draw: WideDraw) -> None:
    applies(not draw.has("alpha", "learning_rate"))
    weights = np.ones(len(draw.y)) if draw.weights is None else draw.weights
    near(draw.fit(), draw.fit(sample_weight=4 * weights), draw.X)


def groups_are_minibatches(draw: WideDraw) -> None:
    applies(draw.takes_minibatches and not draw.rows_meet)
    near(
        draw.fit(draw.estimator(batch_size=3, optimizer__accumulate=2, optimizer__lazy_rows=False)),
        draw.fit(draw.estimator(batch_size=6, optimizer__accumulate=1, optimizer__lazy_rows=False)),
        draw.X,
    )


def scores_are_those_of_score(draw: WideDraw) -> None:
    applies(draw.validation is not None and not (draw.has("class_weight") and draw.task == "several"))
    applies(not (draw.has("class_weight") and "scoring" in draw.parameters))
    assert draw.validation is not None
    last: list[float] = []
    fitted = draw.fit(draw.estimator(callbacks=[lambda epoch: last.append(epoch.validation_score)]))
    assert last == fitted.validation_scores_ == [row["validation_score"] for row in fitted.history_]
    watched = [watched_in(row) for row in fitted.history_]
    best = watched.index(max(watched))
    if draw.parameters.get("early_stopping") == "best_epoch":
        best = max(i for i, value in enumerate(watched) if value == max(watched))
    expected = last[best] if draw.has("early_stopping") else last[-1]
    weights = {}
    if draw.has("class_weight"):
        weights = {"sample_weight": compute_sample_weight(draw.parameters["class_weight"], draw.validation[1])}
    scoring = draw.parameters.get("scoring")
    score = check_scoring(fitted, scoring) if scoring is not None else type(fitted).score
    with warnings.catch_warnings():  # of balanced accuracy: the drawn validation rows are few
        warnings.filterwarnings("ignore", "y_pred contains classes not in y_true", UserWarning)
        found = score(fitted, *draw.validation, **weights)
    assert np.isclose(found, expected, rtol=1e-6, atol=1e-6)
    assert fitted.best_validation_score_ == (expected if draw.has("early_stopping") else max(last))


def best_epoch_is_a_shorter_fit(draw: WideDraw) -> None:
    applies(draw.validation is not None and draw.takes_minibatches and draw.constant_rates)
    long = draw.fit(draw.estimator(early_stopping="best_epoch", max_iter=4))
    scores = np.array([watched_in(row) for row in long.history_])
    best = int(np.flatnonzero(scores == scores.max())[-1]) + 1
    short = draw.fit(draw.estimator(early_stopping=False, max_iter=best, tol=-np.inf))
    for name, array in long.weights_.items():
        assert np.array_equal(array, short.weights_[name]), difference(name, array, short.weights_[name])


def order_of_classes_does_not_matter(draw: WideDraw) -> None:
    applies(draw.task == "multiclass" and draw.kind in ("onnx", "float64", "two inputs"))
    applies(not draw.has("early_stopping", "class_weight"))
    names = dict(zip(LABELS.tolist(), LABELS[::-1].tolist(), strict=True))
    mirrored = copy.copy(draw)
    mirrored.model = onnx.ModelProto()
    mirrored.model.CopyFrom(draw.model)
    wanted = ("W", "V", "c") if draw.kind == "two inputs" else ("weight", "bias")
    layers = [t for t in mirrored.model.graph.initializer if t.dims[-1:] == [4]]
    last = max(t.name.split(".")[1] for t in layers if "." in t.name) if draw.kind != "two inputs" else ""
    for tensor in layers:
        if tensor.name.startswith(f"layers.{last}.") or tensor.name in wanted:
            array = onnx.numpy_helper.to_array(tensor)[..., ::-1]
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))
    mirrored.y = np.array([names[label] for label in draw.y.tolist()])
    if draw.validation is not None:
        mirrored.validation = draw.validation[0], np.array([names[label] for label in draw.validation[1].tolist()])
    a, b = draw.fit(), mirrored.fit()
    for method in ("predict_proba", "decision_function"):
        if hasattr(a, method):
            first, second = getattr(a, method)(draw.X), getattr(b, method)(draw.X)[:, ::-1]
            assert np.allclose(first, second, rtol=1e-3, atol=1e-3), difference(method, first, second)
    assert np.allclose(a.loss_curve_, b.loss_curve_, rtol=1e-3)


def units_of_targets_do_not_matter(draw: WideDraw) -> None:
    applies(draw.task == "regression" and not draw.has("target_scaling"))
    applies(draw.kind in ("mlp", "dropout", "batch", "linear", "convnet", "realmlp", "tabm"))
    method = draw.parameters["loss"].target_scaling
    applies(method is not None)
    shift = 30.0 if method == "standard" and getattr(draw.model, "fit_intercept", True) else 0.0
    applies(method == "standard" or getattr(draw.model, "fit_intercept", True))
    factor = 100.0
    if draw.parameters["optimizer"].name == "lion":
        factor, shift = (
            128.0,
            0.0,
        )  # exact: the first slope of a bias is the mean of scaled targets, whose sign is rounding
    a = draw.fit()
    validation = {} if draw.validation is None else {"y_val": draw.validation[1] * factor + shift}
    b = draw.fit(y=draw.y * factor + shift, **validation)
    assert np.allclose(a.loss_curve_, b.loss_curve_, rtol=2e-3), difference(
        "losses", np.array(a.loss_curve_), np.array(b.loss_curve_)
    )
    first, second = a.predict(draw.X) * factor + shift, b.predict(draw.X)
    assert np.allclose(first, second, rtol=5e-3, atol=5e-3 * np.abs(first).max()), difference("predict", first, second)
    unit = factor if draw.parameters.get("scoring") == "neg_mean_absolute_error" else 1.0
    scores = [np.array(one.validation_scores_ or []) for one in (a, b)]
    assert np.allclose(scores[0] * unit, scores[1], rtol=1e-2, atol=1e-2 * unit)


def threads_do_not_matter(draw: WideDraw) -> None:
    near(draw.fit(), draw.fit(draw.estimator(runtime=Runtime(session_options={"intra_op_num_threads": 2}))), draw.X)


def frozen_parameters_stay(draw: WideDraw) -> None:
    applies(draw.kind not in ("lora", "embedding", "probabilities"))
    initial = draw.fit(draw.estimator(learning_rate_init=0.0, max_iter=1, early_stopping=False)).weights_
    applies(draw.takes_minibatches)
    names = [name for name in initial if "running" not in name]
    if draw.kind == "pipeline":
        names = [e.name for e in draw.estimator().describe().entries if e.status == "trained"]
    chosen = names[draw.number % len(names)]
    fitted = draw.fit(draw.estimator(trainable=[chosen], early_stopping=False))
    for name, array in fitted.weights_.items():
        if name != chosen and name in initial and "running" not in name:
            assert np.array_equal(array, initial[name]), difference(name, array, initial[name])


def states_are_loaded(draw: WideDraw) -> None:
    applies(draw.takes_minibatches and not draw.has("early_stopping") and not draw.rows_meet)
    applies(draw.parameters.get("class_weight") != "balanced")
    fitted = draw.fit(draw.estimator(shuffle=False))
    with tempfile.TemporaryDirectory() as folder:
        try:
            quiet(fitted.export_training, Path(folder) / "graphs")
        except Exception as error:
            raise NotApplicable from error
        other = draw.fit(draw.estimator(shuffle=False, max_iter=1))
        other.load_state(Path(folder) / "graphs")
    for name, array in fitted.weights_.items():
        assert np.allclose(array, other.weights_[name], rtol=1e-6, atol=1e-7), difference(
            name, array, other.weights_[name]
        )
    other.set_params(max_iter=fitted.max_iter)
    applies(draw.constant_rates)
    near(draw.passes(fitted), draw.passes(other), draw.X, leave_out=("losses", "scores"))


OF_RUNS: dict[str, Callable[[WideDraw], None]] = {
    function.__name__: function
    for function in (
        refit_begins_anew, copies_go_on, pickles_between_calls_do_not_matter, calls_add_up,
        file_predicts_alike, forms_of_data_are_alike,
        callbacks_only_watch, checkpoints_resume, training_graphs_go_on, devices_train_alike, engines_train_alike,
        weight_zero_is_absent, weights_are_repetitions, size_of_weights_does_not_matter, groups_are_minibatches,
        scores_are_those_of_score, best_epoch_is_a_shorter_fit, order_of_classes_does_not_matter,
        units_of_targets_do_not_matter, threads_do_not_matter, frozen_parameters_stay, states_are_loaded,
    )
}  # fmt: skip

RELATIONS = OF_RUNS | STEERING
"""All of them, by name."""

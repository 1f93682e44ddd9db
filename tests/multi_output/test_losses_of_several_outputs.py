"""The sum of losses on several outputs and its gradient, beside float64 in NumPy and central differences."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose

from onnxtrain_sklearn import LBFGS, SGD, OrtGradientClassifier, OrtGradientMultiOutput, OrtGradientRegressor
from onnxtrain_sklearn.callbacks import EpochScoring
from onnxtrain_sklearn.losses import LOSSES
from tests.helpers.environment import each_engine
from tests.helpers.several_outputs import KINDS, data, graph, slopes, total_loss, weights
from tests.helpers.step_options import configured
from tests.helpers.training import NEVER

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X, Y = data()
PAIRS = [*pairwise(KINDS), ("switches", "class"), ("class", "number"), ("words", "number"), ("map", "class")]
LOSS_WEIGHTS = {name: 0.5 + 0.25 * i for i, name in enumerate(KINDS)}
RNG = np.random.default_rng(1)
SAMPLE_WEIGHTS = {name: RNG.integers(0, 3, len(X)) * RNG.uniform(0.5, 1.5, len(X)) for name in KINDS}


def net(names, **parameters):
    defaults = {"optimizer": SGD(), "learning_rate_init": 0.1, "shuffle": False, "max_iter": 1, "tol": NEVER}
    losses = {name: KINDS[name].loss for name in names}
    return configured(
        OrtGradientMultiOutput(graph(list(names)), loss=losses), **{"batch_size": len(X), **defaults, **parameters}
    )


def of(names, values=None):
    return {name: (Y if values is None else values)[name] for name in names}


def arrays_of(names):
    return {name: array for name, array in weights(float).items() if name == "trunk" or name.split(".")[0] in names}


def gradient(estimator, rate=0.1):
    """The gradient of the first step, by how far plain gradient descent moved the weights."""
    start = weights(float)
    return {name: (start[name] - array) / rate for name, array in estimator.weights_.items()}


def assert_gradient(names, engine, sample_weight=None, **others):
    estimator = net(names, loss_weights=of(names, LOSS_WEIGHTS), engine=engine, **others)
    estimator.fit(X, of(names), sample_weight)
    given = sample_weight if isinstance(sample_weight, dict) else dict.fromkeys(names, sample_weight)
    known = {name: own for name, own in given.items() if own is not None}
    expected = slopes(arrays_of(names), X, of(names), LOSS_WEIGHTS, known)
    found = gradient(estimator)
    assert set(found) == set(expected)
    for name, own in expected.items():
        assert_allclose(found[name], own, rtol=2e-4, atol=5e-6, err_msg=name)
    assert_allclose(estimator.loss_, total_loss(arrays_of(names), X, of(names), LOSS_WEIGHTS, known), rtol=1e-5)


@each_engine
@pytest.mark.parametrize("names", PAIRS, ids="-".join)
def test_gradient_of_two_kinds_of_heads(names, engine):
    assert_gradient(names, engine)


@pytest.mark.slow
@each_engine
@pytest.mark.parametrize("weight", [None, SAMPLE_WEIGHTS["class"], SAMPLE_WEIGHTS], ids=["ones", "rows", "by output"])
def test_gradient_of_all_kinds_of_heads(weight, engine):
    assert_gradient(KINDS, engine, weight)


@each_engine
@pytest.mark.parametrize("names", PAIRS[::3], ids="-".join)
def test_loss_weight_of_zero_leaves_other_output_unchanged(names, engine):
    size = len(X) if "words" in names else 10  # words weigh rows, and so differently in minibatches
    settings = {"optimizer": SGD(), "learning_rate_init": 0.1, "shuffle": False, "max_iter": 3, "batch_size": size}
    for chosen in names:
        several = net(names, loss_weights={name: float(name == chosen) for name in names}, engine=engine, **settings)
        several.fit(X, of(names))
        kind = KINDS[chosen]
        single = OrtGradientRegressor if kind.task == "regression" else OrtGradientClassifier
        alone = single(graph([chosen]), loss=kind.loss, engine=engine, tol=NEVER, **settings).fit(X, Y[chosen])
        for name, array in alone.weights_.items():
            assert_allclose(several.weights_[name], array, rtol=1e-5, atol=1e-6, err_msg=name)
        assert_allclose(several.loss_curve_, alone.loss_curve_, rtol=1e-5)


def minibatch_loss(arrays, rows, names, sample_weights):
    """The loss of a minibatch: its rows with the factors that each output has for all rows."""
    counts = np.any([own > 0 for own in sample_weights.values()], axis=0)
    total, kept = 0.0, rows[counts[rows]]
    for name in names:
        share = np.mean(sample_weights[name][counts])
        factor = sample_weights[name][kept].sum() / (share * len(kept))
        if factor:
            one = {name: sample_weights[name][kept]}
            total += factor * total_loss(arrays, X[kept], {name: Y[name][kept]}, LOSS_WEIGHTS, one)
    return total


@pytest.mark.long
@each_engine
@pytest.mark.parametrize("accumulate", [1, 2])
def test_minibatches_of_rows_that_the_outputs_weigh_differently(accumulate, engine):
    names = ("class", "number", "count")
    given = of(names, SAMPLE_WEIGHTS)
    estimator = net(
        names, loss_weights=of(names, LOSS_WEIGHTS), batch_size=8, engine=engine, optimizer__accumulate=accumulate
    )
    estimator.fit(X, of(names), given)
    rows = np.flatnonzero(np.any([own > 0 for own in given.values()], axis=0))
    arrays, h, curve = arrays_of(names), 1e-6, []
    for batch in np.split(rows, range(8 * accumulate, len(rows), 8 * accumulate)):
        moved = {name: array.copy() for name, array in arrays.items()}
        for name, array in arrays.items():
            for place in np.ndindex(array.shape):
                step = np.zeros_like(array)
                step[place] = h
                ends = [minibatch_loss({**arrays, name: array + s * step}, batch, names, given) for s in (1, -1)]
                moved[name][place] -= 0.1 * (ends[0] - ends[1]) / (2 * h)
        curve.append((len(batch), minibatch_loss(arrays, batch, names, given)))
        arrays = moved
    for name, array in arrays.items():
        assert_allclose(estimator.weights_[name], array, rtol=1e-4, atol=1e-6, err_msg=name)
    assert_allclose(estimator.loss_, np.average([v for _, v in curve], weights=[n for n, _ in curve]), rtol=1e-5)


@each_engine
def test_full_batches_of_lbfgs_minimize_the_same_sum(engine):
    names = ("class", "number", "words")
    estimator = net(names, optimizer=LBFGS(), max_iter=60, tol=1e-9, loss_weights={"words": 2.0}, engine=engine)
    estimator.fit(X, of(names), of(names, SAMPLE_WEIGHTS))
    found = {name: array.astype(float) for name, array in estimator.weights_.items()}
    arguments = X, of(names), {"words": 2.0}, of(names, SAMPLE_WEIGHTS)
    assert_allclose(estimator.loss_, total_loss(found, *arguments), rtol=1e-4)
    assert total_loss(found, *arguments) < 0.3 * total_loss(arrays_of(names), *arguments)


@each_engine
def test_rows_of_weight_zero_are_as_if_left_out(engine):
    known = np.arange(len(X)) % 4 > 0
    y = {"class": np.where(known, Y["class"], "unknown"), "number": np.where(known, np.nan, Y["number"])}
    weight = {"class": known, "number": ~known}
    some = net(("class", "number"), engine=engine).fit(X, y, weight)
    assert some.classes_["class"].tolist() == ["a", "b", "c"]
    assert_gradient(("class", "number"), engine, {name: own.astype(float) for name, own in weight.items()})
    both = {"class": known, "number": known}
    left = net(("class", "number"), engine=engine, batch_size=7).fit(X, {**y, "number": Y["number"]}, both)
    few = net(("class", "number"), engine=engine, batch_size=7).fit(
        X[known], {name: own[known] for name, own in of(("class", "number")).items()}
    )
    for name, array in few.weights_.items():
        assert_allclose(left.weights_[name], array, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("loss", ["gamma", "tweedie", "poisson"])
def test_rows_without_positive_target_do_not_count(loss):
    known = np.arange(len(X)) % 4 > 0
    y = {"class": Y["class"], "number": np.where(known, np.abs(Y["number"]) + 0.1, np.nan)}
    losses = {"class": "log_loss", "number": loss}
    estimator = net(("class", "number")).set_params(loss=losses).fit(X, y, {"number": known})
    assert np.isfinite(estimator.loss_curve_).all()
    other = {**y, "number": np.where(known, y["number"], -5.0)}
    again = net(("class", "number")).set_params(loss=losses).fit(X, other, {"number": known})
    assert again.loss_curve_ == estimator.loss_curve_


@each_engine
def test_weights_of_the_classes_of_one_output(engine):
    names, balanced = ("class", "number"), {"class": {"a": 3.0, "b": 1.0, "c": 0.5}}
    weight = np.vectorize(balanced["class"].get)(Y["class"])
    one = net(names, class_weight=balanced, engine=engine).fit(X, of(names))
    two = net(names, engine=engine).fit(X, of(names), {"class": weight})
    for name, array in one.weights_.items():
        assert_allclose(array, two.weights_[name], rtol=1e-6, atol=1e-7)
    plain = net(names, engine=engine).fit(X, of(names))
    assert not np.allclose(plain.weights_["trunk"], one.weights_["trunk"])


def test_every_link_of_a_loss_is_among_the_kinds():
    links = {
        LOSSES[kind.loss]().link(kind.task if kind.task != "multioutput" else "multiclass") for kind in KINDS.values()
    }
    assert links >= {"identity", "exp", "sigmoid", "softmax"}


@pytest.mark.long
def test_callbacks_measure_the_same_sum_on_rows_that_are_not_trained():
    held = {name: own[20:] for name, own in SAMPLE_WEIGHTS.items()}
    scores = [EpochScoring("loss"), EpochScoring("loss", on="train")]
    estimator = net(KINDS, loss_weights=LOSS_WEIGHTS, callbacks=scores)
    y, y_held = ({name: Y[name][rows] for name in KINDS} for rows in (slice(20), slice(20, None)))
    estimator.fit(X[:20], y, {"map": None}, X_val=X[20:], y_val=y_held, sample_weight_val=held)
    found = {name: array.astype(float) for name, array in estimator.weights_.items()}
    row = estimator.history_[-1]
    assert_allclose(row["validation_loss"], total_loss(found, X[20:], y_held, LOSS_WEIGHTS, held), rtol=1e-5)
    assert_allclose(row["train_loss"], total_loss(found, X[:20], y, LOSS_WEIGHTS, {}), rtol=1e-5)


@each_engine
def test_the_epoch_of_the_least_total_loss_is_kept_where_r2_judges_wrongly(engine):
    names, held_out = ("class", "numbers"), slice(0, 20)
    train, truth = {n: Y[n][20:] for n in names}, {n: Y[n][held_out] for n in names}
    settings = {"loss_weights": of(names, LOSS_WEIGHTS), "early_stopping": "best_epoch", "engine": engine}
    settings |= {"max_iter": 30, "learning_rate_init": 0.5, "batch_size": 10}
    fitted = net(names, **settings).fit(X[20:], train, X_val=X[held_out], y_val=truth)
    losses = [row["validation_loss"] for row in fitted.history_]
    arrays = {name: array.astype(float) for name, array in fitted.weights_.items()}
    assert_allclose(total_loss(arrays, X[held_out], truth, LOSS_WEIGHTS, {}), min(losses), rtol=1e-5)
    assert 0 < np.argmin(losses) < 29
    by_score = net(("class", "number"), early_stopping=True, max_iter=2)
    targets = of(("class", "number"))
    assert "validation_loss" not in by_score.fit(X, targets, X_val=X, y_val=targets).history_[0]

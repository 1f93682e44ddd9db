"""Every schedule, optimizer and loss at work in an estimator, and one's own."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import scale

from onnxtrain_sklearn import LBFGS, MLP, AdamW, Linear, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.losses import LOSSES, Loss
from onnxtrain_sklearn.optimizers import OPTIMIZERS, Optimizer
from onnxtrain_sklearn.schedules import SCHEDULES, Cosine, Progress, Schedule, Warmup, resolve_schedule
from tests.contracts.test_losses import REFERENCES
from tests.helpers.data import blobs, line
from tests.helpers.observed import record_epochs
from tests.helpers.training import NEVER, record_steps, small

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_rates_used_are_those_of_the_schedule(name, monkeypatch):
    X, y = blobs(100)
    steps = record_steps(monkeypatch)
    estimator = small(learning_rate=name, max_iter=6, batch_size=40).fit(X, y)
    schedule = resolve_schedule(name)
    progress = [Progress(step=t, epoch=t // 3, samples=100 * (t // 3), total_steps=18) for t in range(18)]
    assert_allclose(steps.rates, [0.01 * schedule.factor(p) for p in progress], rtol=1e-12)
    assert np.isfinite(estimator.loss_)


def test_warm_up_comes_before_any_schedule(monkeypatch):
    X, y = blobs(100)
    steps = record_steps(monkeypatch)
    small(learning_rate=Warmup(5, Cosine()), max_iter=5, batch_size=25).fit(X, y)
    assert_allclose(steps.rates[:6], np.array([0, 0.2, 0.4, 0.6, 0.8, 1]) * 0.01, rtol=1e-12)
    assert steps.rates[5:] == sorted(steps.rates[5:], reverse=True)
    assert steps.rates[-1] < 3e-4


def test_adaptive_divides_the_rate_at_a_plateau(monkeypatch):
    X, y = blobs(32)
    steps = record_steps(monkeypatch)
    small(learning_rate="adaptive", learning_rate_init=1e-5, tol=10.0, n_iter_no_change=1, max_iter=50).fit(X, y)
    assert_allclose(np.unique(steps.rates)[::-1], [1e-5, 2e-6, 4e-7], rtol=1e-9)


def test_a_warm_fit_plans_its_own_epochs(monkeypatch):
    X, y = blobs(32)
    steps = record_steps(monkeypatch)
    estimator = small(learning_rate="cosine", warm_start=True, max_iter=4).fit(X, y)
    first = estimator.weights_["layers.0.weight"]
    estimator.fit(X, y)
    assert steps.rates[4] > 0
    assert not np.array_equal(estimator.weights_["layers.0.weight"], first)


class EveryOther(Schedule):
    def factor(self, progress: Progress) -> float:
        return float(progress.step % 2)


def test_user_defined_schedule(monkeypatch):
    steps = record_steps(monkeypatch)
    small(learning_rate=EveryOther(), max_iter=1).fit(*blobs(128))
    assert steps.rates == [0.0, 0.01, 0.0, 0.01]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_learns(name):
    X, y = blobs(300, classes=3)
    rate = {"sgd": 0.3, "adagrad": 0.1}.get(name, 0.02)
    estimator = small(optimizer=name, learning_rate_init=rate, max_iter=25, tol=1e-5).fit(X, y)
    assert estimator.score(X, y) > 0.85
    assert estimator.loss_curve_[-1] < 0.6 * estimator.loss_curve_[0]


class Signs(Optimizer):
    """Steps of one size, by the sign of the gradient."""

    def update(self, op, p, g, state, k):
        return op.Sub(p, op.Mul(op.Sign(g), k["learning_rate"])), {}


def test_user_defined_optimizer():
    X, y = blobs(100)
    graph = Linear().build(5, 1, 0)
    start = onnx.numpy_helper.to_array(graph.graph.initializer[0])
    estimator = OrtGradientClassifier(graph, optimizer=Signs(), batch_size=100, learning_rate_init=0.25, max_iter=1)
    moved = estimator.fit(X, y).weights_["weight"] - start
    assert_allclose(np.abs(moved), 0.25, rtol=1e-5)
    assert small(optimizer=Signs(), max_iter=20).fit(X, y).score(X, y) > 0.85


class Half(AdamW):
    """A subclass of an optimizer for which the runtime has a kernel."""

    def update(self, op, p, g, state, k):
        return op.Mul(p, 0.5), state


def test_subclass_rule_is_not_replaced_by_base_kernel():
    X, y = blobs(20)
    graph = Linear().build(5, 1, 0)
    fitted = OrtGradientClassifier(graph, optimizer=Half(), max_iter=1).fit(X, y)
    start = onnx.numpy_helper.to_array(graph.graph.initializer[0])
    assert_allclose(fitted.weights_["weight"], start / 2, rtol=1e-6)


@pytest.mark.parametrize(("C", "classes"), [(0.1, 2), (1.0, 2), (1.0, 3)])
def test_lbfgs_reaches_logistic_regression(C, classes):
    X, y = load_iris(return_X_y=True)
    X, y = scale(X), np.minimum(y, classes - 1)
    expected = LogisticRegression(C=C, tol=1e-8, max_iter=1000).fit(X, y)
    ours = OrtGradientClassifier(Linear(), optimizer="lbfgs", alpha=1 / C, tol=1e-6, max_iter=500, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        ours.fit(X, y)
    assert_allclose(ours.weights_["weight"].T, expected.coef_, atol=1e-3 * max(1.0, np.abs(expected.coef_).max()))
    bias = ours.weights_["bias"] - (ours.weights_["bias"].mean() if classes > 2 else 0)
    assert_allclose(bias, expected.intercept_, atol=1e-3)
    assert_allclose(ours.predict_proba(X), expected.predict_proba(X), atol=1e-3)


def test_lbfgs_on_weighted_rows_and_in_pieces_is_lbfgs_on_all_at_once(monkeypatch):
    X, y = blobs(500)
    weights = np.random.RandomState(0).uniform(0, 2, 500)
    estimator = OrtGradientClassifier(Linear(), optimizer="lbfgs", alpha=1.0, tol=1e-6, random_state=0)
    whole = estimator.fit(X, y, sample_weight=weights).weights_
    monkeypatch.setattr("onnxtrain_sklearn._estimators.config.LBFGS_PIECE", 64)
    pieces = clone(estimator).fit(X, y, sample_weight=weights).weights_
    expected = LogisticRegression(C=1.0, tol=1e-8).fit(X, y, sample_weight=weights)
    for name, array in (("weight", expected.coef_.T), ("bias", expected.intercept_)):
        assert_allclose(whole[name], array, atol=1e-3)
        assert_allclose(pieces[name], array, atol=1e-3)


def test_lbfgs_sums_its_pieces_in_one_order(monkeypatch):
    X, y = blobs(50)
    epochs = record_epochs(monkeypatch)
    monkeypatch.setattr("onnxtrain_sklearn._estimators.config.LBFGS_PIECE", 20)
    OrtGradientClassifier(Linear(), optimizer="lbfgs", random_state=0).fit(X, y)
    pieces = [list(range(20)), list(range(20, 40)), list(range(40, 50))]
    assert all([rows.tolist() for rows in epoch] == pieces for epoch in epochs)
    assert epochs


@pytest.mark.parametrize("seed", range(5))
def test_lbfgs_ends_without_a_warning_at_the_limit_of_float32(seed):
    X, y = line(200, seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        tight = OrtGradientRegressor(Linear(), optimizer="lbfgs", tol=0.0, max_iter=1000, random_state=seed).fit(X, y)
        tight.set_params(warm_start=True).fit(X, y)
    solution = np.linalg.lstsq(np.c_[X, np.ones(len(X))].astype(np.float64), y, rcond=None)[0]
    assert_allclose(np.r_[tight.weights_["weight"].ravel(), tight.weights_["bias"]], solution, atol=1e-3)


@pytest.mark.parametrize("limit", [{"max_iter": 2}, {"optimizer__max_fun": 3}])
def test_lbfgs_warns_at_its_limit(limit):
    X, y = blobs()
    with pytest.warns(ConvergenceWarning):
        OrtGradientClassifier(Linear(), optimizer=LBFGS(), random_state=0).set_params(**limit).fit(X, y)


def test_lbfgs_that_starts_at_the_minimum_counts_one_epoch():
    X = np.ones((10, 2), np.float32)
    estimator = OrtGradientRegressor(Linear(initialization="zeros"), optimizer="lbfgs").fit(X, np.zeros(10))
    assert (estimator.n_iter_, estimator.loss_) == (1, 0.0)


def test_lbfgs_has_no_partial_fit():
    for optimizer in ("lbfgs", LBFGS(history_size=5)):
        assert not hasattr(OrtGradientClassifier(optimizer=optimizer), "partial_fit")
    assert hasattr(OrtGradientClassifier(optimizer="sgd"), "partial_fit")


def test_lbfgs_trains_on_a_validation_split():
    X, y = blobs(200)
    estimator = OrtGradientClassifier(MLP((20,)), optimizer="lbfgs", early_stopping=True, random_state=0).fit(X, y)
    assert len(estimator.validation_scores_) == estimator.n_iter_


def test_the_penalty_is_scikit_learns():
    X, y = line(100)
    estimator = OrtGradientRegressor(Linear(), alpha=0.5, l1_ratio=0.25, learning_rate_init=0, max_iter=1)
    estimator.fit(X, y)
    w, b = estimator.weights_["weight"].astype(float), estimator.weights_["bias"]
    penalty = 0.5 * (0.25 * np.abs(w).sum() + 0.75 / 2 * (w**2).sum()) / 100
    assert_allclose(estimator.loss_, np.mean((X @ w + b - y[:, None]) ** 2) + penalty, rtol=1e-5)


def metric(name, y, prediction):
    """The mean loss of predictions."""
    is_log = LOSSES[name]().link("regression") == "exp"
    scores = np.log(np.maximum(prediction, 1e-30)) if is_log else prediction
    return float(REFERENCES[name](scores, y, "regression").mean())


OF_ONE_SCORE = [
    n
    for n, kind in LOSSES.items()
    if n != "reconstruction"
    and "regression" in kind.tasks
    and kind().targets == "labels"
    and kind().n_scores("regression", 1) == 1
]


@pytest.mark.parametrize("name", OF_ONE_SCORE)
def test_every_regression_loss_beats_the_best_constant(name):
    X, y = line(300)
    if LOSSES[name]().link("regression") == "exp":
        y = np.exp(0.7 * y)
        y = np.random.RandomState(0).poisson(y) if name == "poisson" else y
    estimator = OrtGradientRegressor(
        MLP((16,)), loss=name, learning_rate_init=0.02, max_iter=60, random_state=0, target_scaling=None
    )
    estimator.fit(X, y)
    constants = np.linspace(y.min() + 1e-3, y.max(), 500)
    best = min(metric(name, y, np.full(len(y), c)) for c in constants)
    own = metric(name, y, estimator.predict(X).astype(float))
    assert own < best - 0.1
    assert_allclose(estimator.loss_, own, rtol=0.1, atol=0.02)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", [name for name, kind in LOSSES.items() if "binary" in kind.tasks])
def test_every_classification_loss_learns(name, classes):
    X, y = blobs(200, classes=classes)
    estimator = small(loss=name, max_iter=40, learning_rate_init=0.03).fit(X, y)
    assert estimator.score(X, y) > 0.88
    scores = estimator.decision_function(X)
    assert scores.shape == ((200,) if classes == 2 else (200, 3))
    assert_array_equal(estimator.predict(X), scores > 0 if classes == 2 else scores.argmax(axis=1))
    if name in ("hinge", "squared_hinge"):
        assert not hasattr(estimator, "predict_proba")
    else:
        p = estimator.predict_proba(X)
        assert_allclose(p.sum(axis=1), 1, rtol=1e-6)
        if name != "modified_huber":  # clips probabilities: many are 1
            assert_array_equal(p.argmax(axis=1), estimator.predict(X))


class ScaledFourthPower(Loss):
    """(s - y)⁴ times a factor."""

    tasks = frozenset({"regression"})

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor

    def __call__(self, op, scores, y, link):
        squared = op.Mul(op.Sub(scores, y), op.Sub(scores, y))
        return op.Mul(op.Mul(squared, squared), float(self.factor))


def test_user_defined_loss():
    X, y = line(100)
    settings = {"learning_rate_init": 0.02, "max_iter": 30, "random_state": 0, "tol": NEVER}
    estimator = OrtGradientRegressor(Linear(), loss=ScaledFourthPower(2.0), **settings).fit(X, y)
    estimator.set_params(learning_rate_init=0.0).partial_fit(X, y)
    assert_allclose(estimator.loss_, 2 * np.mean((estimator.predict(X) - y) ** 4), rtol=1e-4)
    assert estimator.score(X, y) > 0.5


def test_quantiles_cover_their_share():
    X, y = line(500)
    noisy = y + np.random.RandomState(0).normal(size=500)
    for q in (0.1, 0.9):
        loss = LOSSES["quantile"](q)
        estimator = OrtGradientRegressor(Linear(), loss=loss, optimizer="adam", learning_rate_init=0.05, random_state=0)
        share = np.mean(noisy <= estimator.fit(X, noisy).predict(X))
        assert abs(share - q) < 0.04


@pytest.mark.parametrize("name", ["poisson", "gamma"])
def test_means_of_a_log_link_are_positive(name):
    X, y = line(100)
    estimator = OrtGradientRegressor(MLP((4,)), loss=name, max_iter=3, random_state=0).fit(X, np.exp(y))
    assert (estimator.predict(X) > 0).all()


@pytest.mark.parametrize(("schedule", "warned"), [("constant", True), ("cosine", False), ("one_cycle", False)])
def test_epochs_that_were_planned_are_no_failure_to_converge(schedule, warned):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        small(learning_rate=schedule, max_iter=3, tol=NEVER).fit(*blobs())
    assert any(issubclass(w.category, ConvergenceWarning) for w in caught) is warned

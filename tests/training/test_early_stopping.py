"""What early stopping watches: the loss on validation data, R² for the squared error, and the score of ``scoring``."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss, mean_absolute_error, mean_pinball_loss
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import OneHotEncoder

from onnxtrain_sklearn import MLP, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn.callbacks import EpochScoring
from onnxtrain_sklearn.losses import Huber, Loss, Quantile, Tweedie
from tests.helpers.environment import each_engine
from tests.helpers.observed import change_predictions, predict_in_chunks

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

DIGITS, DIGIT = load_digits(return_X_y=True)
DIGITS = (DIGITS / 16).astype(np.float32)
PARTS = train_test_split(DIGITS, DIGIT, train_size=300, test_size=200, random_state=0)
X, X_VAL, Y, Y_VAL = PARTS
LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


def wins(board, mark):
    return any(all(board[i] == mark for i in line) for line in LINES)


def endings_of_tic_tac_toe():
    """All 958 boards at the end of a game that x begins, and whether x has won: a data set of the UCI repository."""
    ended = set()

    def play(board, mark):
        if wins(board, "x") or wins(board, "o") or " " not in board:
            ended.add(board)
            return
        for i in range(9):
            if board[i] == " ":
                play(board[:i] + mark + board[i + 1 :], "o" if mark == "x" else "x")

    play(" " * 9, "x")
    boards = sorted(ended)
    return OneHotEncoder(sparse_output=False).fit_transform([list(b) for b in boards]), [wins(b, "x") for b in boards]


def classifier(**settings):
    defaults = {"learning_rate_init": 0.02, "max_iter": 40, "batch_size": 50, "random_state": 0, "early_stopping": True}
    return OrtGradientClassifier(MLP((20,)), **(defaults | settings))


def fit(estimator, **weights):
    return estimator.fit(X, Y, X_val=X_VAL, y_val=Y_VAL, **weights)


@pytest.mark.slow
def test_a_small_table_is_learned():
    boards, won = endings_of_tic_tac_toe()
    assert (len(won), sum(won)) == (958, 626)
    scores = []
    for seed in range(3):
        train, test, y, truth = train_test_split(boards, won, test_size=0.2, stratify=won, random_state=seed)
        scores.append(OrtGradientClassifier(early_stopping=True, random_state=seed).fit(train, y).score(test, truth))
    assert np.mean(scores) > 0.95  # 0.82 by the accuracy on 77 rows


@each_engine
def test_a_classifier_keeps_the_weights_of_the_least_loss(engine):
    fitted = fit(classifier(learning_rate_init=0.1, n_iter_no_change=5, engine=engine))
    losses, scores = ([row[name] for row in fitted.history_] for name in ("validation_loss", "validation_score"))
    best = int(np.argmin(losses))
    assert 0 < best < len(losses) - 1
    assert fitted.n_iter_ < 40
    assert fitted.best_validation_score_ == scores[best] == fitted.score(X_VAL, Y_VAL)
    assert_allclose(log_loss(Y_VAL, fitted.predict_proba(X_VAL)), losses[best], rtol=1e-5)
    assert max(scores) > scores[best]  # the accuracy would have chosen another epoch


def test_a_scorer_is_followed_as_written():
    for scoring in ("accuracy", "neg_log_loss", lambda e, X, y: e.score(X, y)):
        fitted = fit(classifier(scoring=scoring, n_iter_no_change=3))
        scores = fitted.validation_scores_
        assert "validation_loss" not in fitted.history_[0]
        assert fitted.best_validation_score_ == max(scores)
        best = int(np.argmax(scores))
        assert fitted.n_iter_ in (best + 5, 40)
    by_name, by_function = fit(classifier(scoring="accuracy")), fit(classifier(scoring=lambda e, X, y: e.score(X, y)))
    assert by_name.validation_scores_ == by_function.validation_scores_


def test_scorers_take_probabilities_that_round_above_one(monkeypatch):
    def rounded_up(found):
        if found.dtype.kind == "f" and found.ndim == 2 and found.max() <= 1:  # probabilities
            found[0] = np.eye(10)[0] * np.nextafter(np.float32(1), np.float32(2))
        return found

    change_predictions(monkeypatch, rounded_up)
    assert all(np.isfinite(fit(classifier(scoring="neg_log_loss", max_iter=3)).validation_scores_))


def test_loss_equals_callback_loss_for_weights_and_pieces(monkeypatch):
    weights = np.linspace(0, 2, len(Y_VAL))
    settings = {"max_iter": 3, "callbacks": [EpochScoring("neg_log_loss")]}
    whole = fit(classifier(**settings), sample_weight_val=weights)
    rows = [(row["validation_loss"], -row["validation_neg_log_loss"]) for row in whole.history_]
    assert_allclose(*zip(*rows, strict=True), rtol=1e-5)
    predict_in_chunks(monkeypatch, rows=70)  # the last piece is shorter
    pieces = fit(classifier(**settings), sample_weight_val=weights)
    assert_allclose([row["validation_loss"] for row in pieces.history_], [loss for loss, _ in rows], rtol=1e-6)


def test_going_on_does_not_lose_the_least_loss():
    fitted = fit(classifier(warm_start=True, max_iter=15))
    best, before = min(row["validation_loss"] for row in fitted.history_), fitted.best_validation_score_
    fit(fitted.set_params(learning_rate_init=5.0, max_iter=3))
    assert fitted.best_validation_score_ == before
    assert_allclose(log_loss(Y_VAL, fitted.predict_proba(X_VAL)), best, rtol=1e-5)
    fitted.set_params(early_stopping=False).partial_fit(X, Y)
    assert fitted.best_validation_score_ == before


def test_what_is_watched_by_default():
    regressor = OrtGradientRegressor(MLP((4,)), early_stopping=True, max_iter=3, random_state=0).fit(X, X[:, 20])
    assert "validation_loss" not in regressor.history_[0]
    watching = fit(classifier(early_stopping=False, max_iter=2))
    assert "validation_loss" not in watching.history_[0]
    assert fit(classifier(early_stopping="best_epoch", max_iter=2)).history_[0]["validation_loss"] > 0


def test_partial_fit_after_early_stopping_records_best_loss():
    net = fit(classifier(max_iter=2))
    assert net.best_loss_ is None
    net.set_params(early_stopping=False).partial_fit(X, Y)
    assert net.best_loss_ == min(net.loss_curve_)


# Regressors: the loss judges the epochs, unless it is the squared error, which R² judges.


class Expectile(Loss):
    """Squared errors that count nine times as much below the prediction: a loss of the user."""

    def __call__(self, op, scores, y, link):
        above = op.Relu(op.Sub(y, scores))
        below = op.Relu(op.Sub(scores, y))
        return op.Add(op.Mul(op.Mul(above, above), 0.1), op.Mul(op.Mul(below, below), 0.9))


def expectile_loss(y, p):
    return np.mean(np.where(y > p, 0.1, 0.9) * (y - p) ** 2)


def huber_loss(y, p):
    size = np.abs(y - p)
    return np.mean(np.where(size < 0.5, size**2 / 2, 0.5 * (size - 0.25)))


OF_NUMBERS = {
    "absolute_error": ("absolute_error", mean_absolute_error),
    "huber": (Huber(0.5), huber_loss),
    "quantile": (Quantile(0.1), partial(mean_pinball_loss, alpha=0.1)),
    "poisson": ("poisson", lambda y, p: np.mean(p - y * np.log(p))),
    "gamma": ("gamma", lambda y, p: np.mean(np.log(p) + y / p)),
    "tweedie": (Tweedie(1.5), lambda y, p: np.mean(2 * np.sqrt(p) + 2 * y / np.sqrt(p))),
    "a loss of the user": (Expectile(), expectile_loss),
}
RNG = np.random.default_rng(0)
COLUMNS = RNG.normal(size=(400, 3)).astype(np.float32)
SKEWED = np.exp(COLUMNS[:, 0]) * (0.5 + RNG.exponential(size=400))  # R² falls as a low quantile is learned
SKEWED_PARTS = (COLUMNS[:200], SKEWED[:200], COLUMNS[200:], SKEWED[200:])


def skewed_regressor(loss, **settings):
    defaults = {"learning_rate_init": 0.02, "max_iter": 60, "tol": 0.0, "target_scaling": None, "random_state": 0}
    return OrtGradientRegressor(MLP((16,)), loss=loss, batch_size=50, **(defaults | settings))


def fit_skewed(estimator):
    train, y, held_out, truth = SKEWED_PARTS
    return estimator.fit(train, y, X_val=held_out, y_val=truth)


@each_engine
@pytest.mark.parametrize(("loss", "measure"), OF_NUMBERS.values(), ids=OF_NUMBERS)
def test_a_regressor_keeps_the_weights_of_the_least_loss(loss, measure, engine):
    _, _, held_out, truth = SKEWED_PARTS
    fitted = fit_skewed(skewed_regressor(loss, early_stopping="best_epoch", engine=engine))
    losses, scores = ([row[name] for row in fitted.history_] for name in ("validation_loss", "validation_score"))
    assert_allclose(measure(truth, fitted.predict(held_out).astype(float)), min(losses), rtol=1e-5)
    assert fitted.best_validation_score_ == scores[int(np.argmin(losses))]
    assert_allclose(fitted.best_validation_score_, fitted.score(held_out, truth), rtol=1e-5)


@each_engine
def test_a_quantile_is_learned_although_its_r2_falls(engine):
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(800, 3)).astype(np.float32)
    y = 0.5 * columns[:, 0] + 4 * rng.exponential(size=800)
    settings = {"early_stopping": True, "learning_rate_init": 0.002, "batch_size": 50, "random_state": 0}
    found = {}
    for scoring in (None, "r2"):
        fitted = OrtGradientRegressor(MLP((16,)), loss=Quantile(0.1), scoring=scoring, engine=engine, **settings)
        fitted.fit(columns[:400], y[:400], X_val=columns[400:], y_val=y[400:])
        p = fitted.predict(columns[400:])
        found[scoring] = mean_pinball_loss(y[400:], p, alpha=0.1), np.mean(y[400:] < p)
        assert ("validation_loss" in fitted.history_[0]) == (scoring is None)
    constant = mean_pinball_loss(y[400:], np.full(400, np.quantile(y[:400], 0.1)), alpha=0.1)
    assert found[None][0] < constant < found["r2"][0] / 1.5
    assert abs(found[None][1] - 0.1) < 0.03 < abs(found["r2"][1] - 0.1)


def test_the_squared_error_is_judged_by_r2():
    fitted = fit_skewed(skewed_regressor("squared_error", early_stopping="best_epoch"))
    assert "validation_loss" not in fitted.history_[0]
    assert fitted.best_validation_score_ == max(fitted.validation_scores_)


def test_validation_data_alone_are_scored():
    fitted = fit_skewed(skewed_regressor(Quantile(0.1), max_iter=3))
    assert "validation_loss" not in fitted.history_[0]
    assert len(fitted.validation_scores_) == 3


def test_lbfgs_keeps_the_iteration_of_the_least_loss():
    _, _, held_out, truth = SKEWED_PARTS
    fitted = fit_skewed(skewed_regressor(Quantile(0.9), optimizer="lbfgs", early_stopping=True))
    losses = [row["validation_loss"] for row in fitted.history_]
    assert_allclose(mean_pinball_loss(truth, fitted.predict(held_out), alpha=0.9), min(losses), rtol=1e-5)


def test_going_on_keeps_the_least_loss_of_a_quantile():
    _, _, held_out, truth = SKEWED_PARTS
    settings = {"warm_start": True, "early_stopping": True, "max_iter": 20}
    fitted = fit_skewed(skewed_regressor(Quantile(0.1), **settings))
    best = min(row["validation_loss"] for row in fitted.history_)
    fit_skewed(fitted.set_params(learning_rate_init=5.0, max_iter=3))
    assert_allclose(mean_pinball_loss(truth, fitted.predict(held_out), alpha=0.1), best, rtol=1e-5)

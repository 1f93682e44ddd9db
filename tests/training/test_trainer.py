"""The epoch loop by itself: a step, batches and a validation score are made up."""

from __future__ import annotations

import math
import pickle
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning

from onnxtrain_sklearn.exceptions import DivergenceError, OnnxTrainWarning
from onnxtrain_sklearn.schedules import Cosine, Linear, OneCycle, Progress, Schedule, Warmup
from tests.helpers.loop import Batches, History, Step, trainer

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def epochs_by_scikit_learns_rule(losses: list[float], tol: float, patience: int) -> int:
    best, count = math.inf, 0
    for epoch, loss in enumerate(losses, start=1):
        count = count + 1 if loss > best - tol else 0
        best = min(best, loss)
        if count > patience:
            return epoch
    return len(losses)


@pytest.mark.parametrize("seed", range(10))
def test_the_rule_of_patience_is_scikit_learns(seed):
    rng = np.random.RandomState(seed)
    losses = (np.linspace(3, 1, 60) + rng.normal(scale=0.3, size=60)).tolist()
    tol, patience = rng.uniform(0, 0.3), rng.randint(1, 6)
    history = History()
    trainer(Step(losses), history=history, tol=tol, n_iter_no_change=patience, max_iter=60).fit()
    assert len(history.loss_curve) == epochs_by_scikit_learns_rule(losses, tol, patience)
    assert history.best_loss == min(history.loss_curve)


def test_a_loss_that_falls_by_exactly_tol_improves():
    history = History()
    trainer(Step([1.0, 0.75, 0.5, 0.5, 0.5, 0.5]), history=history, tol=0.25).fit()
    assert len(history.loss_curve) == 6


def test_scores_of_early_stopping_must_rise_by_tol():
    scores = [0.5, 0.75, 0.8, 0.85, 0.9]
    step, history = Step([1.0] * 9), History()
    trainer(step, history=history, tol=0.25, early_stopping=True, validate=iter(scores).__next__).fit()
    assert history.validation_scores == scores
    assert step.parameters.vector == 5  # better still, if not by tol
    assert history.best_score == 0.9


def test_the_loss_on_validation_data_must_fall_by_tol():
    step, history = Step([1.0] * 9), History()
    running = trainer(step, history=history, early_stopping=True, validate=lambda: 0.5, tol=0.25, n_iter_no_change=1)
    running.validation_loss = iter([2.0, 1.75, 1.6, 1.4]).__next__
    running.fit()
    assert [row["validation_loss"] for row in history.rows] == [2.0, 1.75, 1.6, 1.4]
    assert step.parameters.vector == 4  # the least one counts, whatever tol is


def test_the_best_weights_come_back():
    step, scores = Step([1.0] * 9), iter([0.1, 0.9, 0.9, 0.3, 0.2, 0.1])
    trainer(step, early_stopping=True, validate=scores.__next__, tol=0.0, n_iter_no_change=2).fit()
    assert step.parameters.vector == 2  # the first of equal ones
    assert len(step.rates) == 6


@pytest.mark.parametrize("early_stopping", [True, False])
def test_scores_that_are_no_numbers_are_a_divergence(early_stopping):
    step, scores, history = Step([1.0] * 9), iter([0.5, math.nan]), History()
    with pytest.raises(DivergenceError, match="validation predictions"):
        trainer(step, history=history, early_stopping=early_stopping, validate=scores.__next__).fit()
    assert step.parameters.vector == 1  # from where the epoch began
    assert (history.loss_curve, history.validation_scores, history.progress.epoch) == ([1.0], [0.5], 1)


def test_infinite_optimizer_state_is_a_divergence():
    """An infinite second moment would stop the training without a word: steps are divided by it."""
    step = Step([1.0] * 9)
    step.optimizer_state.slots["second_moment"] = np.array([np.inf], np.float32)
    with pytest.raises(DivergenceError, match="the optimizer's state"):
        trainer(step).fit()
    assert step.forgotten == 1


def test_patience_without_an_end():
    step = Step([1.0] * 50)
    trainer(step, n_iter_no_change=math.inf, max_iter=50).fit()
    assert len(step.rates) == 50


def test_going_on_scores_the_weights_it_starts_from():
    history = History()
    step = Step([1.0] * 20)
    trainer(step, history=history, early_stopping=True, validate=iter([0.9, 0.1, 0.1, 0.1]).__next__).fit()
    assert step.parameters.vector == 1
    trainer(step, history=history, early_stopping=True, validate=iter([0.2, 0.3, 0.1, 0.1, 0.1]).__next__).fit()
    assert step.parameters.vector == 2
    assert history.best_score == 0.3


def test_later_fit_resets_patience():
    history, scores = History(), iter([0.9, 0.1, 0.1, 0.2, 0.25, 0.1, 0.1])
    for epochs in (3, 9):  # the first call ends before its patience does
        running = trainer(
            Step([1.0] * 9), history=history, early_stopping=True, validate=scores.__next__, max_iter=epochs
        )
        running.fit()
    assert len(history.loss_curve) == 3 + 3


def test_later_fit_improves_on_the_validation_loss_it_starts_from():
    history = History()
    for start, vector in (([], 2), ([2.0], 1)):
        step = Step([1.0] * 9)
        running = trainer(step, history=history, early_stopping=True, validate=lambda: 0.5, n_iter_no_change=1)
        running.validation_loss = iter([*start, 1.5, 1.6, 1.7] if start else [3.0, 2.0, 2.5, 2.5]).__next__
        running.fit()
        assert step.parameters.vector == vector


def test_continued_training_resets_improvement():
    history = History()
    trainer(Step([0.5, 0.5, 0.5, 0.5]), history=history).fit()
    assert history.best_loss == 0.5
    trainer(Step([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 4.0, 4.0, 4.0, 4.0]), history=history).fit()
    assert len(history.loss_curve) == 4 + 9
    assert history.best_loss == 4.0


def test_the_loss_of_an_epoch_is_the_mean_over_its_rows():
    history = History()
    trainer(Step([1.0, 2.0, 6.0]), Batches(2.0, 2.0, 1.0), history).partial_fit()
    assert_allclose(history.loss_curve, [(2 + 4 + 6) / 5])
    assert (history.progress.step, history.progress.epoch, history.progress.samples) == (3, 1, 10)


def test_schedules_are_asked_before_each_step_and_see_the_plan():
    class Seen(Schedule):
        seen: list[tuple[int | None, ...]] = []  # noqa: RUF012

        def factor(self, progress):
            self.seen.append((progress.step, progress.epoch, progress.samples, progress.total_steps))
            return 0.5

    step, history = Step([1.0] * 8), History()
    trainer(step, Batches(1.0, 1.0), history, schedule=Seen(), max_iter=2).fit()
    trainer(step, Batches(1.0, 1.0), history, schedule=Seen(), max_iter=2).fit()
    assert step.rates == [0.5] * 8
    assert Seen.seen[:4] == [(0, 0, 0, 4), (1, 0, 0, 4), (2, 1, 10, 4), (3, 1, 10, 4)]
    assert Seen.seen[4] == (4, 2, 20, 8)


def test_passes_share_one_plan():
    history = History()
    for _ in range(3):
        trainer(Step([1.0] * 2), Batches(1.0, 1.0), history, max_iter=5).partial_fit()
        assert history.progress.total_steps == 10


@pytest.mark.parametrize("schedule", ["cosine", "linear", "one_cycle", Warmup(1, "cosine")])
def test_passes_beyond_the_plan_warn_once(schedule):
    history, options = History(), {"schedule": schedule, "max_iter": 2}
    for _ in range(2):
        trainer(Step([1.0] * 2), Batches(1.0, 1.0), history, **options).partial_fit()
    beyond = trainer(Step([1.0] * 2), Batches(1.0, 1.0), history, **options)
    with pytest.warns(OnnxTrainWarning, match=r"at its end .* at step 4: .* Give total_steps"):
        beyond.partial_fit()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer(Step([1.0] * 2), Batches(1.0, 1.0), pickle.loads(pickle.dumps(history)), **options).partial_fit()


def test_fit_beyond_schedule_warns(recwarn):
    history = History()
    for steps in (3, 3):
        trainer(Step([1.0] * 3), history=history, schedule=Linear(total_steps=3), max_iter=steps).fit()
    assert [w.category for w in recwarn] == [OnnxTrainWarning]


@pytest.mark.parametrize("schedule", [Cosine(total_steps=8), Cosine(final=0.1), "step", "constant", "exponential"])
def test_passes_that_change_something_do_not_warn(schedule, recwarn):
    history = History()
    for _ in range(4):
        trainer(Step([1.0] * 2), Batches(1.0, 1.0), history, schedule=schedule, max_iter=2).partial_fit()
    assert not recwarn.list


@pytest.mark.parametrize("kind", [Cosine, Linear, OneCycle])
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_the_steps_given_to_a_schedule_are_its_plan(kind, method):
    step, history = Step([2.0, 1.0, 1.5, 1.0] * 2), History()
    for _ in range(2):
        running = trainer(step, Batches(1.0, 1.0), history, schedule=kind(total_steps=8), max_iter=1)
        getattr(running, method)()
    assert step.rates == [kind().factor(Progress(step=t, total_steps=8)) for t in range(4)]


def test_plateaus_lower_an_adaptive_rate_until_it_is_small():
    step, history = Step([1.0] * 99), History()
    trainer(step, history=history, schedule="adaptive", learning_rate_init=1e-4, n_iter_no_change=1).fit()
    assert_allclose(step.rates, np.repeat([1e-4, 2e-5, 4e-6, 8e-7], [3, 2, 2, 2]), rtol=1e-12)
    assert history.progress.plateaus == 4


@pytest.mark.parametrize(("epochs", "warned"), [(4, True), (5, False), (6, False)])
def test_a_warning_tells_that_epochs_ran_out(epochs, warned, recwarn):
    trainer(Step([2.0, 1.0, 1.0, 1.0, 1.0, 1.0]), max_iter=epochs).fit()
    assert [w.category for w in recwarn] == [ConvergenceWarning] * warned


# -- the table --------------------------------------------------------------------------------------------------------


def test_the_table_shows_epoch_loss_score_and_the_rate_used(capsys):
    step = Step([1.5, 0.25])
    trainer(step, verbose=True, schedule="cosine", max_iter=2, validate=iter([0.5, 0.75]).__next__).fit()
    header, first, second = (line.split() for line in capsys.readouterr().out.splitlines())
    assert header == ["epoch", "loss", "validation", "rate", "seconds"]
    assert first[:4] == ["1", "1.500000", "0.500000", "1"]
    assert second[:4] == ["2", "0.250000", "0.750000", "0.5"]


def test_the_table_goes_on_without_a_second_header(capsys):
    history = History()
    for _ in range(2):
        trainer(Step([1.0]), history=history, verbose=True).partial_fit()
    assert capsys.readouterr().out.count("epoch") == 1

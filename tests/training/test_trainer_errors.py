"""Which weights the epoch loop leaves after a loss that is not finite, an error or an interrupt."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from onnxtrain_sklearn.exceptions import DivergenceError
from tests.helpers.loop import Batches, History, LateStep, Rates, Step, Trainer, trainer

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
BOTH_STEPS = pytest.mark.parametrize("kind", [Step, LateStep])


@BOTH_STEPS
def test_divergence_restores_weights_of_epoch_begin(kind):
    step, history = kind([1.0, 1.0, 1.0, math.nan]), History()
    with pytest.raises(DivergenceError, match="epoch 2") as caught:
        trainer(step, Batches(1.0, 1.0), history).fit()
    assert_array_equal(step.parameters.buffer, 2)
    assert caught.value.loss_curve == history.loss_curve == [1.0]
    assert step.forgotten == 1


@BOTH_STEPS
@pytest.mark.parametrize("spoilt", [math.nan, math.inf])
def test_weights_of_an_infinite_loss_are_not_restored(spoilt, kind):
    step, history = kind([1.0, 1.0, spoilt]), History()
    with pytest.raises(DivergenceError):
        trainer(step, history=history).fit()
    assert_array_equal(step.parameters.buffer, 1)  # with 2 the loss was spoilt


@BOTH_STEPS
def test_passes_remember_the_last_weights_of_a_finite_loss(kind):
    step, history = kind([1.0, 1.0, math.inf, 1.0]), History()
    for _ in range(2):
        trainer(step, history=history).partial_fit()
    with pytest.raises(DivergenceError):
        trainer(step, history=history).partial_fit()
    assert_array_equal(step.parameters.buffer, 1)
    trainer(step, history=history).partial_fit()
    assert history.loss_curve == [1.0, 1.0, 1.0]
    assert pickle.loads(pickle.dumps(history)).last_finite is None
    assert pickle.loads(pickle.dumps(history)).best_parameters is None


@pytest.mark.parametrize("where", ["weights", "state"])
def test_the_end_of_an_epoch_is_looked_at(where):
    step = Step([1.0])
    step.optimizer_state.slots["moment"] = np.zeros(3)
    (step.parameters.vector if where == "weights" else step.optimizer_state.slots["moment"])[-1] = np.inf
    with pytest.raises(DivergenceError):
        trainer(step).partial_fit()


@BOTH_STEPS
def test_a_first_step_that_diverges_changes_nothing(kind):
    step, history = kind([math.nan]), History()
    with pytest.raises(DivergenceError, match="epoch 1"):
        trainer(step, history=history).fit()
    assert_array_equal(step.parameters.buffer, 0)
    assert (history.loss_curve, history.progress.epoch) == ([], 0)


@BOTH_STEPS
@pytest.mark.parametrize("at", [0, 1])
def test_an_error_takes_back_the_epoch_in_which_it_was_raised(at, kind):
    class Failing(Batches):
        @property
        def weights(self):
            yield from [1.0] * at
            raise OSError("unreadable")

        @weights.setter
        def weights(self, given):
            pass

    step, history = kind([1.0] * 9), History()
    trainer(step, Batches(1.0, 1.0), history).partial_fit()
    with pytest.raises(OSError, match="unreadable"):
        trainer(step, Failing(1.0, 1.0), history).partial_fit()
    assert_array_equal(step.parameters.buffer, 2)


class Raising(Step):
    def __init__(self, at: int, error: type[BaseException], spoil: bool = False) -> None:
        super().__init__([1.0] * 99)
        self.at, self.error, self.spoil = at, error, spoil

    def run(self, rates: Rates, weight: float) -> float:
        if len(self.rates) == self.at:
            self.parameters.vector[:] = np.nan if self.spoil else self.parameters.vector
            raise self.error
        return super().run(rates, weight)


def interrupted(running: Trainer, method: str = "fit") -> None:
    with pytest.raises(KeyboardInterrupt):
        getattr(running, method)()
    running.restore_usable()


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_interruption_keeps_every_step_made(method):
    step = Raising(1, KeyboardInterrupt)
    interrupted(trainer(step, Batches(1.0, 1.0, 1.0)), method)
    assert step.parameters.vector == 1


def test_interruption_does_not_keep_weights_that_are_spoilt():
    step = Raising(3, KeyboardInterrupt, spoil=True)
    interrupted(trainer(step, Batches(1.0, 1.0)))
    assert np.isfinite(step.parameters.vector).all()


def test_interruption_keeps_the_best_weights_so_far():
    step = Raising(4, KeyboardInterrupt)
    running = trainer(step, early_stopping=True, validate=iter([0.1, 0.9, 0.3, 0.2]).__next__)
    interrupted(running)
    assert step.parameters.vector == 2
    step.parameters.vector += 5  # by a later call
    running.restore_usable()
    assert step.parameters.vector == 7


def test_an_interruption_before_the_first_step_changes_nothing():
    history = History()
    trainer(Step([1.0] * 9), history=history, early_stopping=True, validate=lambda: 0.5).fit()
    step = Step([])
    step.parameters.vector += 7
    trainer(step, history=history).restore_usable()
    assert step.parameters.vector == 7


def test_another_error_goes_back_to_the_epoch_before():
    step = Raising(3, RuntimeError)
    with pytest.raises(RuntimeError):
        trainer(step, Batches(1.0, 1.0)).fit()
    assert step.parameters.vector == 2

"""Learning rate, weight decay and dropout of each step, and sweeps over learning rates.

The epoch loop asks :meth:`ScheduledRates.advance` for the :class:`~.step_parts.Rates` of each step.
:func:`swept_losses` takes steps at given rates instead, for the callback ``LearningRateFinder``.
"""

from __future__ import annotations

import math
from numbers import Real

import numpy as np

from .._data.batches import Batches
from .._utils.errors import ignores_float_errors
from ..exceptions import warn
from ..schedules import Constant, Progress, Schedule
from .history import History
from .step import TrainingStep
from .step_parts import Rates

NEGLIGIBLE_FACTOR = 1e-3
"""Factor of a finished schedule below which further training has practically no effect."""


class ScheduledRates:
    """The rates of the steps of a run.

    Parameters
    ----------
    history : History
        Its progress says which step is next, and :meth:`advance` counts it.
    learning_rate_init : float
    schedule, decay, dropout : Schedule
        The schedules of the learning rate, of weight decay and of dropout.

    Attributes
    ----------
    initial : float
        The learning rate that the schedule starts from.
    learning_rate : float or None
        The rate of the last step; None before the first one.
    """

    def __init__(
        self, history: History, learning_rate_init: float, schedule: Schedule, decay: Schedule, dropout: Schedule
    ) -> None:
        self._history, self.initial = history, learning_rate_init
        self._schedule, self._decay, self._dropout = schedule, decay, dropout
        self._changes_more = not (isinstance(decay, Constant) and isinstance(dropout, Constant))
        self._is_constant = type(schedule) is Constant
        self.learning_rate: float | None = None
        self._latest = Rates(math.nan)

    def advance(self) -> Rates:
        """Return the rates of the next step, and count it."""
        # This runs in every step: constant schedules are not called, and equal rates are the same object.
        progress = self._history.progress
        rate = self.initial * (1.0 if self._is_constant else _factor(self._schedule, progress))
        if self._changes_more:
            self._latest = Rates(rate, _factor(self._decay, progress), _factor(self._dropout, progress))
        elif rate != self.learning_rate:
            self._latest = Rates(rate)
        self.learning_rate = rate
        progress.step += 1
        return self._latest

    def go_on_from(self, rate: float) -> None:
        """Set the learning rate of the last step, which was taken before training was resumed."""
        self.learning_rate, self._latest = rate, Rates(rate)

    def warn_if_finished(self) -> None:
        """Warn once if the schedule has ended near a rate of 0, so that training on has practically no effect."""
        history, schedule, progress = self._history, self._schedule, self._history.progress
        if history.warned_of_end or not schedule.finished(progress) or schedule.factor(progress) >= NEGLIGIBLE_FACTOR:
            return
        history.warned_of_end = True
        warn(
            f"{schedule!r} was at its end when this call began, at step {progress.step}: the learning rate stays at "
            f"{self.initial * schedule.factor(progress):.3g}, so training changes practically nothing. Without "
            f"total_steps the schedule lasts max_iter epochs of the last fit or the first partial_fit. Give "
            f"total_steps, the steps of all calls together, such as "
            f"learning_rate=schedules.Cosine(total_steps=100_000).",
        )

    def follow(self, schedule: Schedule) -> None:
        """Switch to another schedule of the learning rate."""
        self._schedule, self._is_constant = schedule, type(schedule) is Constant

    @property
    def finished(self) -> bool:
        """True if the schedule has ended."""
        return self._schedule.finished(self._history.progress)

    def stops_at_plateau(self) -> bool:
        """Notify the schedule of a plateau; return True if training ends with it."""
        self._history.add_plateau()
        return self._schedule.stops_at_plateau(self._history.progress, self.initial)


@ignores_float_errors
def swept_losses(step: TrainingStep, batches: Batches, rates: np.ndarray) -> np.ndarray:
    """Return the losses of steps at these rates; NaN from the first one on that is not finite.

    Growing rates show where training begins to learn and where it diverges. The steps change weights and state: the
    caller restores them.
    """
    losses, remaining = np.full(len(rates), np.nan), iter(rates.tolist())
    count = 0
    while count < len(rates):
        for _, loss in step.train(batches, lambda: Rates(next(remaining, 0.0))):
            if not math.isfinite(loss):
                return losses
            losses[count] = loss
            count += 1
            if count == len(rates):
                break
    return losses


def _factor(schedule: Schedule, progress: Progress) -> float:
    """Return the factor of a schedule, which may be the user's, as a float."""
    factor: object = schedule.factor(progress)
    if isinstance(factor, np.ndarray | np.generic) and not factor.ndim:  # a scalar array, as np.where returns it
        factor = factor.item()
    if isinstance(factor, Real) and 0 <= (number := float(factor)) < math.inf:
        return number
    raise ValueError(
        f"{schedule!r}.factor must return a finite number >= 0, by which the initial value is multiplied; for step "
        f"{progress.step} it returned {factor!r}."
    )

"""The epoch loop: minibatches, learning rate, validation, early stopping, divergence.

The trainer passes numbers between a training step, the batches and a schedule. It knows no graph, no session and no
estimator. What happened is recorded in :class:`~onnxtrain_sklearn._training.history.History`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from .._data.batches import Batches
from .._data.finite import is_finite
from .._support.float_errors import ignores_float_errors
from ..exceptions import DivergenceError, warn
from ..schedules import Constant, Schedule
from .history import Epoch, History
from .kept_weights import KeptWeights
from .loss_graph import Scheduled
from .rates import ScheduledRates
from .report import EpochTable, report_of
from .step import TrainingStep
from .watcher import Watched


class Digested(Protocol):
    """Data that can be told from others."""

    def digest(self, update: Callable[[bytes], object], size: int) -> None:
        """Call ``update`` with all of them, ``size`` rows at a time."""


@dataclass(frozen=True)
class TrainerSettings:
    """The settings of the loop, named after the estimators' parameters; ``all_epochs``: it never stops early."""

    learning_rate_init: float
    schedule: Schedule
    max_iter: int
    tol: float
    n_iter_no_change: float
    early_stopping: bool
    verbose: int
    callbacks: Sequence[Callable[[Epoch], object]] = ()
    decay_schedule: Schedule = field(default_factory=Constant)
    dropout_schedule: Schedule = field(default_factory=Constant)
    all_epochs: bool = False
    accumulate: int = 1

    @property
    def scheduled(self) -> Scheduled:
        """Whether weight decay and dropout change from step to step."""
        return Scheduled(not isinstance(self.decay_schedule, Constant), not isinstance(self.dropout_schedule, Constant))


class Trainer(Watched):
    """Train for some epochs.

    Parameters
    ----------
    settings : TrainerSettings
    step : TrainingStep
    batches : Batches
    history : History
        Continued in place.
    validate : callable () -> float, optional
        Score of the current parameters on the validation data, higher is better.

    Attributes
    ----------
    step, batches, history, rates
    data : tuple
        All data that the training depends on, each with a method ``digest``.
    validation_loss : callable () -> float, or None
        Loss of the current parameters on the validation data, which early stopping watches instead of the score.
    first_epoch : int
        Epochs before this call.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        step: TrainingStep,
        batches: Batches,
        history: History,
        validate: Callable[[], float] | None = None,
    ) -> None:
        self._settings, self.step, self.batches, self.history = settings, step, batches, history
        self._validate = validate
        self.data: tuple[Digested, ...] = (batches,)
        self.validation_loss: Callable[[], float] | None = None
        self._vector, self._buffer = step.parameters.vector, step.parameters.buffer
        self._kept = KeptWeights(step, history)
        history.best = None
        self._recorded = time.perf_counter()
        self._report = report_of(settings.verbose, settings.max_iter)
        self.first_epoch = history.progress.epoch
        self.rates = ScheduledRates(
            history,
            settings.learning_rate_init,
            settings.schedule,
            decay=settings.decay_schedule,
            dropout=settings.dropout_schedule,
        )

    def fit(self) -> None:
        """Train for ``max_iter`` epochs, which ends with a warning, or until there is no more improvement.

        The schedule is planned to the end of these epochs. Improvement is measured from here on, also in a later call:
        the best loss on other data, or of another loss function, cannot be compared.
        """
        max_iter = self._settings.max_iter
        self._begin(self.most_steps(one_pass=False))
        self.rates.warn_if_finished()
        ended = self._guarded(lambda: self._watched(self._train))
        self._keep_best()
        self._tell_end()
        planned = self._settings.all_epochs or self.rates.finished
        if not ended and not planned:
            warn(
                f"Training has not converged after max_iter={max_iter} epochs. Raise max_iter or learning_rate_init, "
                f"or relax tol.",
                ConvergenceWarning,
            )

    def most_steps(self, *, one_pass: bool) -> int:
        """Return how many steps the call takes at most."""
        steps = -(-self.batches.steps // self._settings.accumulate)
        return steps if one_pass else self._settings.max_iter * steps

    def one_pass(self) -> None:
        """Train for one epoch, for ``partial_fit``."""
        progress = self.history.progress
        if progress.total_steps is None:
            progress.total_steps = self.most_steps(one_pass=False)
        self.history.change(early_stopping=False, best_watched=self.history.best_score)
        self.rates.warn_if_finished()

        if self._settings.verbose:  # a pass is a line of the table
            self._report = EpochTable(goes_on=self.first_epoch > 0)

        def one_epoch() -> bool:
            if self.history.progress.epoch == self.first_epoch:  # the end of the pass may have been restored
                self._settle(self._record(self._epoch()))
            return True

        self._guarded(lambda: self._watched(one_epoch))
        self._tell_end()

    def settle(self) -> None:
        """Leave usable weights after an interrupt: finite ones, and with early stopping the best ones."""
        self.step.synchronize()
        if not self._is_finite():
            self._kept.restore_finite()
        self._keep_best()

    def _begin(self, steps: int) -> None:
        history, progress = self.history, self.history.progress
        early_stopping = self._settings.early_stopping
        score = watched = history.best_score
        if early_stopping and self._validate is not None and progress.epoch:
            score = watched = self._validate()  # the score of the initial weights on these data
            watched = score if self.validation_loss is None else -self.validation_loss()
        history.change(
            progress=replace(progress, total_steps=progress.step + steps),
            best_loss=math.inf,
            best_score=-math.inf if math.isnan(score) else score,
            best_watched=-math.inf if math.isnan(watched) else watched,
            best=self._buffer.copy() if early_stopping else None,
            idle_epochs=0,
            early_stopping=early_stopping,
        )

    def _keep_best(self) -> None:
        history = self.history
        if history.early_stopping and math.isfinite(history.best_score) and history.best is not None:
            self._buffer[...] = history.best
        history.best = None

    def _guarded(self, train: Callable[[], bool]) -> bool:
        """Call ``train``; after an error, not after an interrupt, restore the weights of the previous epoch."""
        try:
            return train()
        except DivergenceError:
            self._kept.restore_finite()
            raise
        except Exception:
            self._kept.restore_epoch()
            raise
        finally:
            self._report.end()

    def _train(self) -> bool:
        """Train for up to ``max_iter`` epochs; return whether training ended earlier."""
        done = self.history.progress.epoch - self.first_epoch  # of this call, where a state was restored
        for _ in range(self._settings.max_iter - done):
            ended = self._record(self._epoch())
            if self._settle(ended or (self._idle() and self._ends_at_plateau())):
                return True
        return False

    def _epoch(self) -> float:
        """Train on all data once; return the mean loss."""
        self._tell_epoch()
        self._kept.begin_epoch()
        total, seen = _trained(self.step.train(self.batches, self.rates.advance), self._kept)
        if not (math.isfinite(total) and self._is_finite()):
            self._diverge()
        return total / (seen if self.batches.drop_last else self.batches.weight)

    def _is_finite(self) -> bool:
        """Whether weights and optimizer state are finite: an overflowed second moment would silently stop training."""
        return all(map(is_finite, (self._buffer, *self.step.state.slots.values())))

    def _diverge(self) -> None:
        """Reset the optimizer's state, which is not finite, and raise; the caller restores the weights."""
        self.step.forget_state()
        epoch = self.history.progress.epoch + 1
        raise DivergenceError(
            f"The loss, the weights, the optimizer's state or the predictions for validation became NaN or infinite in "
            f"epoch {epoch} with learning_rate_init={self._settings.learning_rate_init}; the last weights of a finite "
            f"loss were restored. "
            f"Scale the inputs (StandardScaler), lower learning_rate_init, or set max_grad_norm=1.0.",
            self.history.loss_curve,
        )

    def _record(self, loss: float) -> bool:
        """Record an epoch and call the callbacks; return whether one of them ends training."""
        score = None if self._validate is None else self._validate()
        if score is not None and math.isnan(score):
            self._diverge()
        settings, rate, now = self._settings, self.rates.learning_rate, time.perf_counter()
        took, self._recorded = now - self._recorded, now
        self.history.add_epoch(
            loss,
            score,
            rows=self.batches.n_rows,
            tol=settings.tol,
            parameters=self._buffer,
            validation_loss=None if self.validation_loss is None else self.validation_loss(),
            latest=settings.all_epochs,
            rate=rate,
            seconds=took,
        )
        self._report.show(self.history, rate, self.history.progress.epoch - self.first_epoch)
        if not settings.callbacks and self.watcher is None:
            return False
        epoch = Epoch(self.history.progress.epoch, loss, score, rate)
        answers = [callback(epoch) for callback in settings.callbacks]
        if self.watcher is not None:
            answers.append(self.watcher.end_epoch())
        return any(isinstance(answer, bool | np.bool_) and bool(answer) for answer in answers)

    def _idle(self) -> bool:
        return self.history.idle_epochs > self._settings.n_iter_no_change

    def _ends_at_plateau(self) -> bool:
        """Whether training ends where improvement did; the schedule may lower the rate instead."""
        return self.rates.stops_at_plateau() and not self._settings.all_epochs


@ignores_float_errors
def _trained(steps: Iterable[tuple[float, float]], kept: KeptWeights) -> tuple[float, float]:
    """Take the steps of a pass until a loss is not finite; return the weighted sum of the losses, and the weight."""
    total = seen = 0.0
    for weight, loss in steps:
        total += weight * loss
        if not math.isfinite(total):
            break
        if not seen:
            kept.keep()
        seen += weight
    return total, seen

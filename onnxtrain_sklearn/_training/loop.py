"""The epoch loop: minibatches, learning rate, validation, early stopping, divergence.

The trainer passes numbers between a training step, the batches and a schedule. It knows no graph, no session and no
estimator. What happened is recorded in :class:`~onnxtrain_sklearn._training.history.History`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from .._data.batches import Batches
from ..exceptions import DivergenceError, warn
from ..schedules import Constant, Schedule
from .history import Epoch, History
from .loss_graph import Scheduled
from .step import Rates, TrainingStep


@dataclass(frozen=True)
class TrainerSettings:
    """The settings of the loop, named after the estimators' parameters; ``all_epochs``: it never stops early."""

    learning_rate_init: float
    schedule: Schedule
    max_iter: int
    tol: float
    n_iter_no_change: float
    early_stopping: bool
    verbose: bool
    callbacks: Sequence[Callable[[Epoch], object]] = ()
    decay_schedule: Schedule = field(default_factory=Constant)
    dropout_schedule: Schedule = field(default_factory=Constant)
    all_epochs: bool = False
    accumulate: int = 1

    @property
    def scheduled(self) -> Scheduled:
        """Whether weight decay and dropout change from step to step."""
        return Scheduled(not isinstance(self.decay_schedule, Constant), not isinstance(self.dropout_schedule, Constant))


NEGLIGIBLE_FACTOR = 1e-3
"""Factor of a schedule below which a step has practically no effect."""


class Trainer:
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
    """

    def __init__(
        self,
        settings: TrainerSettings,
        step: TrainingStep,
        batches: Batches,
        history: History,
        validate: Callable[[], float] | None = None,
    ) -> None:
        self._settings, self._step, self._batches, self._history = settings, step, batches, history
        self._validate = validate
        self._vector, self._buffer = step.parameters.vector, step.parameters.buffer
        self._last = self._buffer.copy()
        if history.last_finite is None or history.last_finite.shape != self._buffer.shape:
            history.last_finite = self._last
        history.best = None
        self._started = time.perf_counter()
        self._rate: float | None = None
        self._has_factors = any(settings.scheduled)

    def fit(self) -> None:
        """Train for ``max_iter`` epochs, which ends with a warning, or until there is no more improvement.

        The schedule is planned to the end of these epochs. Improvement is measured from here on, also in a later call:
        the best loss on other data, or of another loss function, cannot be compared.
        """
        max_iter = self._settings.max_iter
        self._begin(max_iter * self._steps)
        self._warn_of_a_finished_schedule()
        ended = self._guarded(self._train)
        self._keep_best()
        planned = self._settings.all_epochs or self._settings.schedule.finished(self._history.progress)
        if not ended and not planned:
            warn(
                f"Training has not converged after max_iter={max_iter} epochs. Raise max_iter or learning_rate_init, "
                f"or relax tol.",
                ConvergenceWarning,
            )

    @property
    def _steps(self) -> int:
        """Steps of one pass."""
        return -(-self._batches.steps // self._settings.accumulate)

    def one_pass(self) -> None:
        """Train for one epoch, for ``partial_fit``."""
        progress = self._history.progress
        if progress.total_steps is None:
            progress.total_steps = self._settings.max_iter * self._steps
        self._history.change(early_stopping=False)
        self._warn_of_a_finished_schedule()

        def one_epoch() -> bool:
            self._record(self._epoch())
            return True

        self._guarded(one_epoch)

    def settle(self) -> None:
        """Leave usable weights after an interrupt: finite ones, and with early stopping the best ones."""
        self._step.synchronize()
        if not self._is_finite():
            self._buffer[...] = self._history.last_finite
        self._keep_best()

    def _begin(self, steps: int) -> None:
        history, progress = self._history, self._history.progress
        early_stopping = self._settings.early_stopping
        score = history.best_score
        if early_stopping and self._validate is not None and progress.epoch:
            score = self._validate()  # the score of the initial weights on these data
        history.change(
            progress=replace(progress, total_steps=progress.step + steps),
            best_loss=math.inf,
            best_score=-math.inf if math.isnan(score) else score,
            best=self._last,
            idle_epochs=0,
            early_stopping=early_stopping,
        )

    def _keep_best(self) -> None:
        history = self._history
        if history.early_stopping and math.isfinite(history.best_score) and history.best is not None:
            self._buffer[...] = history.best
        history.best = None

    def _warn_of_a_finished_schedule(self) -> None:
        """Warn once if the schedule is at its end, so that further training has practically no effect."""
        schedule, progress, rate = self._settings.schedule, self._history.progress, self._settings.learning_rate_init
        if (
            self._history.warned_of_end
            or not schedule.finished(progress)
            or schedule.factor(progress) >= NEGLIGIBLE_FACTOR
        ):
            return
        self._history.warned_of_end = True
        warn(
            f"{schedule!r} was at its end when this call began, at step {progress.step}: the learning rate stays at "
            f"{rate * schedule.factor(progress):.3g}, so training changes practically nothing. Without total_steps the "
            f"schedule lasts max_iter epochs of the last fit or the first partial_fit. Give total_steps, the steps of "
            f"all calls together, such as learning_rate=schedules.Cosine(total_steps=100_000).",
        )

    def _guarded(self, train: Callable[[], bool]) -> bool:
        """Call ``train``; after an error, not after an interrupt, restore the weights of the previous epoch."""
        try:
            return train()
        except DivergenceError:
            self._buffer[...] = self._history.last_finite
            raise
        except Exception:
            self._buffer[...] = self._last
            raise

    def _train(self) -> bool:
        """Train for up to ``max_iter`` epochs; return whether training ended earlier."""
        for _ in range(self._settings.max_iter):
            if self._record(self._epoch()) or (self._idle() and self._plateau() and not self._settings.all_epochs):
                return True
        return False

    def _epoch(self) -> float:
        """Train on all data once; return the mean loss."""
        total = 0.0
        self._last = self._buffer.copy()
        for weight, loss in self._step.train(self._batches, self._next_rates):
            total += weight * loss
            if not math.isfinite(total):
                break
            self._history.last_finite = self._last
        if not (math.isfinite(total) and self._is_finite()):
            self._diverge()
        return total / self._batches.weight

    def _next_rates(self) -> Rates:
        progress, settings = self._history.progress, self._settings
        self._rate = settings.learning_rate_init * settings.schedule.factor(progress)
        rates = Rates(self._rate)
        if self._has_factors:
            rates = Rates(
                self._rate, settings.decay_schedule.factor(progress), settings.dropout_schedule.factor(progress)
            )
        progress.step += 1
        return rates

    def _is_finite(self) -> bool:
        """Whether weights and optimizer state are finite: an overflowed second moment would silently stop training."""
        return all(bool(np.isfinite(vector).all()) for vector in (self._buffer, *self._step.state.slots.values()))

    def _diverge(self) -> None:
        """Reset the optimizer's state, which is not finite, and raise; the caller restores the weights."""
        self._step.forget_state()
        epoch = self._history.progress.epoch + 1
        raise DivergenceError(
            f"The loss, the weights, the optimizer's state or the predictions for validation became NaN or infinite in "
            f"epoch {epoch} with learning_rate_init={self._settings.learning_rate_init}; the last weights of a finite "
            f"loss were restored. "
            f"Scale the inputs (StandardScaler), lower learning_rate_init, or set max_grad_norm=1.0.",
            self._history.loss_curve,
        )

    def _record(self, loss: float) -> bool:
        """Record an epoch and call the callbacks; return whether one of them ends training."""
        score = None if self._validate is None else self._validate()
        if score is not None and math.isnan(score):
            self._diverge()
        settings, rows = self._settings, self._batches.n_rows
        self._history.add_epoch(
            loss, score, rows=rows, tol=settings.tol, parameters=self._buffer, latest=settings.all_epochs
        )
        if self._settings.verbose:
            self._report()
        epoch = Epoch(self._history.progress.epoch, loss, score, self._rate)
        answers = [callback(epoch) for callback in self._settings.callbacks]
        return any(isinstance(answer, bool | np.bool_) and bool(answer) for answer in answers)

    def _idle(self) -> bool:
        return self._history.idle_epochs > self._settings.n_iter_no_change

    def _plateau(self) -> bool:
        """Notify the schedule of a plateau; return whether training ends."""
        self._history.add_plateau()
        return self._settings.schedule.stops_at_plateau(self._history.progress, self._settings.learning_rate_init)

    def _report(self) -> None:
        history, epoch = self._history, self._history.progress.epoch
        if epoch == 1:
            print(f"{'epoch':>6} {'loss':>12} {'validation':>12} {'rate':>12} {'seconds':>9}")
        score = f"{history.scores.last():12.6f}" if history.scores.size else f"{'':>12}"
        rate = f"{'':>12}" if self._rate is None else f"{self._rate:12.3g}"
        seconds = time.perf_counter() - self._started
        print(f"{epoch:6d} {history.losses.last():12.6f} {score} {rate} {seconds:9.2f}")

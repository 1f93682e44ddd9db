"""The epoch loop in small steps: batches, learning rate, validation, early stopping, divergence.

The trainer moves numbers between a training step, the batches and a schedule; it knows neither graph nor session nor
estimator. What it learns is in :class:`History`, which outlives a call and travels with a pickle.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from ._data import Batches
from ._device_step import DeviceStep
from ._step import TrainingStep
from .exceptions import DivergenceError
from .optimizers import LBFGS
from .schedules import Progress, Schedule


@dataclass(frozen=True)
class TrainerSettings:
    """How long and how fast to train; the names are those of the estimators' parameters."""

    learning_rate_init: float
    schedule: Schedule
    max_iter: int
    tol: float
    n_iter_no_change: int
    early_stopping: bool
    verbose: bool


@dataclass
class History:
    """What happened in training so far.

    Attributes
    ----------
    loss_curve : list of float
        Mean loss over the rows of each epoch, the penalty included.
    validation_scores : list of float
        Score of each epoch on the validation data, empty where there are none.
    best_loss, best_score : float
        What improvement is measured from.
    idle_epochs : int
        Epochs in a row that did not improve by ``tol``.
    proven : ndarray or None
        The latest parameters seen to give a finite loss; not pickled.
    """

    progress: Progress = field(default_factory=Progress)
    loss_curve: list[float] = field(default_factory=list)
    validation_scores: list[float] = field(default_factory=list)
    best_loss: float = math.inf
    best_score: float = -math.inf
    idle_epochs: int = 0
    proven: np.ndarray | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "proven": None}


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
        step: TrainingStep | DeviceStep,
        batches: Batches,
        history: History,
        validate: Callable[[], float] | None = None,
    ) -> None:
        self._settings, self._step, self._batches, self._history = settings, step, batches, history
        self._validate = validate
        self._vector, self._everything = step.parameters.vector, step.parameters.everything
        self._best = self._last = self._everything.copy()
        if history.proven is None or history.proven.shape != self._everything.shape:
            history.proven = self._last
        self._started = time.perf_counter()
        self._rate: float | None = None

    def fit(self) -> None:
        """Train until ``max_iter`` epochs are done or nothing improves any more; warn where it was the former.

        The plan that schedules see reaches to the end of these epochs, and improvement is judged anew, whatever was
        trained before: on other data, or with another loss, what was best then says nothing.
        """
        optimizer, progress, max_iter = self._step.settings.optimizer, self._history.progress, self._settings.max_iter
        progress.total_steps = progress.step + max_iter * self._batches.steps
        self._history.best_loss, self._history.idle_epochs = math.inf, 0
        if self._settings.early_stopping and self._validate is not None and progress.epoch:
            self._history.best_score = self._validate()  # of the weights to start from, on these data
        ended = self._guarded(lambda: self._minimize(optimizer) if isinstance(optimizer, LBFGS) else self._epochs())
        if self._settings.early_stopping and math.isfinite(self._history.best_score):
            self._everything[...] = self._best
        if not ended and not self._settings.schedule.finished(progress):
            warnings.warn(
                f"Training has not converged after max_iter={max_iter} epochs. Raise max_iter or learning_rate_init, "
                f"or relax tol.",
                ConvergenceWarning,
                stacklevel=4,
            )

    def one_pass(self) -> None:
        """Train for one epoch, for ``partial_fit``."""
        progress = self._history.progress
        if progress.total_steps is None:
            progress.total_steps = self._settings.max_iter * self._batches.steps

        def one_epoch() -> bool:
            self._record(self._epoch())
            return True

        self._guarded(one_epoch)

    def _guarded(self, train: Callable[[], bool]) -> bool:
        """Return what ``train`` does, True where it is interrupted; an error takes the weights back by an epoch."""
        try:
            return train()
        except KeyboardInterrupt:
            self._step.synchronize()
            warnings.warn("Training was interrupted: the estimator keeps the weights reached so far.", stacklevel=5)
            if not self._is_finite():
                self._everything[...] = self._history.proven
            return True
        except DivergenceError:
            self._everything[...] = self._history.proven
            raise
        except Exception:
            self._everything[...] = self._last
            raise

    def _epochs(self) -> bool:
        for _ in range(self._settings.max_iter):
            self._record(self._epoch())
            if self._idle() and self._plateau():
                return True
        return False

    def _epoch(self) -> float:
        """Go through the data once; return the mean loss."""
        total = 0.0
        self._last = self._everything.copy()
        for weight, loss in self._step.train(self._batches, self._next_rate):
            total += weight * loss
            if not math.isfinite(total):
                break
            self._history.proven = self._last
        if not (math.isfinite(total) and self._is_finite()):
            self._diverge()
        self._end_epoch()
        return total / self._batches.weight

    def _next_rate(self) -> float:
        progress = self._history.progress
        self._rate = self._settings.learning_rate_init * self._settings.schedule.factor(progress)
        progress.step += 1
        return self._rate

    def _is_finite(self) -> bool:
        """Whether weights and optimizer state are: a second moment that overflowed stops training without a sign."""
        return all(bool(np.isfinite(vector).all()) for vector in (self._everything, *self._step.state.slots.values()))

    def _end_epoch(self) -> None:
        self._history.progress.epoch += 1
        self._history.progress.samples += self._batches.n_rows

    def _diverge(self) -> None:
        """Forget the optimizer's state, which is spoilt, and raise; the weights are put back where it is caught."""
        self._step.forget_state()
        epoch = self._history.progress.epoch + 1
        raise DivergenceError(
            f"The loss, the weights or the optimizer's state became NaN or infinite in epoch {epoch} with "
            f"learning_rate_init={self._settings.learning_rate_init}; the last weights of a finite loss were restored. "
            f"Scale the inputs (StandardScaler), lower learning_rate_init, or set max_grad_norm=1.0.",
            self._history.loss_curve,
        )

    def _record(self, loss: float) -> None:
        history, tol = self._history, self._settings.tol
        history.loss_curve.append(loss)
        improved = loss <= history.best_loss - tol
        history.best_loss = min(history.best_loss, loss)
        if self._validate is not None:
            score = self._validate()
            history.validation_scores.append(score)
            if self._settings.early_stopping:
                improved = score >= history.best_score + tol
            if score > history.best_score:
                history.best_score, self._best = score, self._everything.copy()
        history.idle_epochs = 0 if improved else history.idle_epochs + 1
        if self._settings.verbose:
            self._report()

    def _idle(self) -> bool:
        return self._history.idle_epochs > self._settings.n_iter_no_change

    def _plateau(self) -> bool:
        """Let the schedule act on a plateau; return whether training ends there."""
        self._history.idle_epochs = 0
        self._history.progress.plateaus += 1
        return self._settings.schedule.stops_at_plateau(self._history.progress, self._settings.learning_rate_init)

    def _minimize(self, optimizer: LBFGS) -> bool:
        """Minimize the loss of all rows, an iteration counting as an epoch; return whether no limit ended the search.

        A line search that finds no lower loss is no reason to warn: in float32 that is how a minimum looks.
        """
        step, total_weight = self._step, self._batches.weight
        assert isinstance(step, TrainingStep)
        reached = self._vector.astype(np.float64)

        def objective(vector: np.ndarray) -> tuple[float, np.ndarray]:
            self._vector[...] = vector
            loss, gradient = 0.0, np.zeros(len(vector))
            for weight in self._batches.into(step.room):
                loss += weight * step.gradients(total_weight)
                gradient += weight * step.parameters.gradient
            return loss / total_weight, gradient / total_weight

        def after_iteration(vector: np.ndarray, loss: float) -> bool:
            reached[...] = self._vector[...] = vector
            if not (math.isfinite(loss) and np.isfinite(vector).all()):
                self._diverge()
            self._history.proven = self._last = self._everything.copy()
            self._end_epoch()
            self._record(loss)
            return self._settings.early_stopping and self._idle()

        settings = self._settings
        try:
            end = optimizer.minimize(
                objective, reached, max_iter=settings.max_iter, tol=settings.tol, callback=after_iteration
            )
        finally:
            self._vector[...] = reached
        if not math.isfinite(end.loss):
            self._diverge()
        if not end.n_iter:
            after_iteration(reached, end.loss)
        self._history.idle_epochs = 0
        return not end.limited

    def _report(self) -> None:
        history = self._history
        if len(history.loss_curve) == 1:
            print(f"{'epoch':>6} {'loss':>12} {'validation':>12} {'rate':>12} {'seconds':>9}")
        score = f"{history.validation_scores[-1]:12.6f}" if history.validation_scores else f"{'':>12}"
        rate = f"{'':>12}" if self._rate is None else f"{self._rate:12.3g}"
        seconds = time.perf_counter() - self._started
        print(f"{history.progress.epoch:6d} {history.loss_curve[-1]:12.6f} {score} {rate} {seconds:9.2f}")

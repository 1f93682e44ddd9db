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

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from ._data import Batches
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
    idle_epochs : int
        Epochs in a row that did not improve by ``tol``.
    """

    progress: Progress = field(default_factory=Progress)
    loss_curve: list[float] = field(default_factory=list)
    validation_scores: list[float] = field(default_factory=list)
    best_loss: float = math.inf
    best_score: float = -math.inf
    idle_epochs: int = 0


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
        self._vector = step.parameters.vector
        self._finite = self._vector.copy()
        self._best = self._finite
        self._started = time.perf_counter()
        if history.progress.total_steps is None:
            history.progress.total_steps = settings.max_iter * batches.steps

    def fit(self) -> None:
        """Train until ``max_iter`` epochs are done or nothing improves any more; warn where it was the former."""
        optimizer = self._step.settings.optimizer
        try:
            ended = self._minimize(optimizer) if isinstance(optimizer, LBFGS) else self._epochs()
        except KeyboardInterrupt:
            warnings.warn("Training was interrupted; the estimator keeps the weights reached so far.", UserWarning, stacklevel=4)
            ended = True
        if self._settings.early_stopping and math.isfinite(self._history.best_score):
            self._vector[...] = self._best
        if not ended:
            warnings.warn(
                f"Training has not converged after max_iter={self._settings.max_iter} epochs: the last of them still improved. "
                f"Raise max_iter or learning_rate_init, or relax tol.",
                ConvergenceWarning,
                stacklevel=4,
            )

    def one_pass(self) -> None:
        """Train for one epoch, for ``partial_fit``."""
        self._record(self._epoch())

    def _epochs(self) -> bool:
        for _ in range(self._settings.max_iter):
            self._record(self._epoch())
            if self._idle() and self._plateau():
                return True
        return False

    def _epoch(self) -> float:
        """Go through the data once; return the mean loss."""
        run, progress, rate = self._step.run, self._history.progress, self._settings.learning_rate_init
        factor, total = self._settings.schedule.factor, 0.0
        for weight in self._batches.into(self._step.buffers, self._step.sample_weight):
            total += weight * run(rate * factor(progress), weight)
            progress.step += 1
            if not math.isfinite(total):
                break
        if not (math.isfinite(total) and np.isfinite(self._vector).all()):
            self._diverge()
        self._finite = self._vector.copy()
        progress.epoch += 1
        progress.samples += self._batches.n_rows
        return total / self._batches.weight

    def _diverge(self) -> None:
        """Go back to the last finite weights, forget the optimizer's state, which is spoilt, and raise."""
        self._vector[...] = self._finite
        self._step.forget_state()
        epoch = self._history.progress.epoch + 1
        raise DivergenceError(
            f"The loss became NaN or infinite in epoch {epoch} with learning_rate_init={self._settings.learning_rate_init}; the "
            f"last finite weights were restored. Scale the inputs (StandardScaler), lower learning_rate_init, or set "
            f"max_grad_norm=1.0.",
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
                history.best_score, self._best = score, self._finite.copy()
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
        """Minimize the loss of all rows; an iteration of L-BFGS counts as an epoch."""
        step, total_weight = self._step, self._batches.weight
        reached = self._vector.astype(np.float64)

        def objective(vector: np.ndarray) -> tuple[float, np.ndarray]:
            self._vector[...] = vector
            loss, gradient = 0.0, np.zeros(len(vector))
            for weight in self._batches.into(step.buffers, step.sample_weight):
                loss += weight * step.gradients(total_weight)
                gradient += weight * step.parameters.gradient
            return loss / total_weight, gradient / total_weight

        def after_iteration(vector: np.ndarray, loss: float) -> bool:
            reached[...] = self._vector[...] = vector
            if not (math.isfinite(loss) and np.isfinite(vector).all()):
                self._diverge()
            self._finite = self._vector.copy()
            self._history.progress.epoch += 1
            self._history.progress.samples += self._batches.n_rows
            self._record(loss)
            return self._settings.early_stopping and self._idle()

        settings = self._settings
        try:
            end = optimizer.minimize(objective, reached, max_iter=settings.max_iter, tol=settings.tol, callback=after_iteration)
        finally:
            self._vector[...] = reached
        if not math.isfinite(end.loss):
            self._diverge()
        self._history.idle_epochs = 0
        return end.n_iter < settings.max_iter

    def _report(self) -> None:
        history = self._history
        if len(history.loss_curve) == 1:
            print(f"{'epoch':>6} {'loss':>12} {'validation':>12} {'rate':>12} {'seconds':>9}")
        score = f"{history.validation_scores[-1]:12.6f}" if history.validation_scores else f"{'':>12}"
        rate = self._settings.learning_rate_init * self._settings.schedule.factor(history.progress)
        seconds = time.perf_counter() - self._started
        print(f"{history.progress.epoch:6d} {history.loss_curve[-1]:12.6f} {score} {rate:12.3g} {seconds:9.2f}")

"""Training by L-BFGS: each iteration of the search sees all rows and counts as an epoch."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .._data.batches import Batches
from .._optimizers.lbfgs import LBFGS, MinimizeResult
from .history import History
from .loop import Trainer, TrainerSettings
from .step import GradientStep


class FullBatchTrainer(Trainer):
    """Minimize the loss of all rows by ``optimizer``; the other parameters are those of :class:`~.loop.Trainer`."""

    def __init__(
        self,
        optimizer: LBFGS,
        settings: TrainerSettings,
        step: GradientStep,
        batches: Batches,
        history: History,
        validate: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(settings, step, batches, history, validate)
        self._optimizer, self._gradient_step = optimizer, step
        self._reached = np.empty(len(self._vector))
        self._met_overflow = False

    def _train(self) -> bool:
        """Search for the minimum; return whether it ended before a limit.

        There is no warning if a line search finds no lower loss: in float32 this happens at a minimum. But where the
        first one met losses that are not finite and found no other weights, nothing was trained.
        """
        self._kept.note()
        start = self._vector.copy()
        self._reached[...] = start
        try:
            end = self._search()
        finally:
            self._vector[...] = self._reached
        if not math.isfinite(end.loss) or (self._met_overflow and np.array_equal(end.vector, start)):
            self._diverge()
        if not end.n_iter:
            self._after_iteration(self._reached, end.loss)
        self.history.idle_epochs = 0
        self._settle(True)
        return not end.limited

    def _search(self) -> MinimizeResult:
        max_iter, tol = self._settings.max_iter, self._settings.tol
        return self._optimizer.minimize(
            self._objective, self._reached, max_iter=max_iter, tol=tol, callback=self._after_iteration
        )

    def _objective(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the loss of all rows and its gradient, both in float64."""
        step, total_weight = self._gradient_step, self.batches.weight
        self._vector[...] = vector
        loss, gradient = 0.0, np.zeros(len(vector))
        for weight in self.batches.fill(step.buffers):
            loss += weight * step.gradients(total_weight)
            gradient += weight * step.parameters.gradient
        self._met_overflow |= not math.isfinite(loss)
        return loss / total_weight, gradient / total_weight

    def _after_iteration(self, vector: np.ndarray, loss: float) -> bool:
        """Record the iteration; return whether the search is to stop."""
        self._reached[...] = self._vector[...] = vector
        if not (math.isfinite(loss) and np.isfinite(vector).all()):
            self._diverge()
        self._kept.renew()
        ended = self._record(loss)
        stops = self._settings.early_stopping and not self._settings.all_epochs
        return ended or (stops and self._idle())

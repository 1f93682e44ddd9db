"""Train by L-BFGS: each iteration of the search sees all rows and counts as an epoch."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .._data.batches import Batches, filled
from ..optimizers import LBFGS
from .history import History
from .step_interface import GradientStep
from .trainer import Trainer, TrainerSettings


class FullBatchTrainer(Trainer):
    """Minimize the loss of all rows by ``optimizer``; the other parameters are those of :class:`Trainer`."""

    is_resumable = False

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
        if batches.weight is None:
            raise ValueError(
                f"{type(optimizer).__name__} computes the loss of all rows in each evaluation, and the rows of this "
                f"stream have no known weight. Set an optimizer of minibatch steps, such as AdamW()."
            )
        self._optimizer, self._gradient_step, self._weight = optimizer, step, batches.weight
        self._reached = np.empty(len(self._vector))
        self._met_overflow = False

    def _train(self) -> bool:
        """Search for the minimum; return whether it ended before a limit.

        There is no warning if a line search finds no lower loss: in float32 this happens at a minimum. But if the
        search met losses that are not finite and ended at its start, nothing was trained: that is divergence.
        """
        self._kept.note()
        start = self._vector.copy()
        self._reached[...] = start
        try:
            end = self._optimizer.minimize(
                self._objective,
                self._reached,
                max_iter=self._settings.max_iter,
                tol=self._settings.tol,
                callback=self._after_iteration,
            )
        finally:
            self._vector[...] = self._reached
        if not math.isfinite(end.loss) or (self._met_overflow and np.array_equal(end.vector, start)):
            self._diverge()
        if not end.n_iter:
            self._after_iteration(self._reached, end.loss)
        self.history.idle_epochs = 0
        self._conclude(True)
        return not end.limited

    def _objective(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the loss of all rows and its gradient, both in float64."""
        step, total_weight = self._gradient_step, self._weight
        self._vector[...] = vector
        loss, gradient = 0.0, np.zeros(len(vector))
        for weight in filled(self.batches.epoch(), step.buffers):
            loss += weight * step.compute_gradients(total_weight)
            gradient += weight * step.parameters.gradient
        self._met_overflow |= not math.isfinite(loss)
        return loss / total_weight, gradient / total_weight

    def _after_iteration(self, vector: np.ndarray, loss: float) -> bool:
        """Record the iteration; return whether the search is to stop."""
        self._reached[...] = self._vector[...] = vector
        if not (math.isfinite(loss) and np.isfinite(vector).all()):
            self._diverge()
        self._kept.renew()
        if self._step_hook is not None:
            before = self._vector.copy()
            self._after_step(loss)
            if not np.array_equal(self._vector, before):
                raise ValueError(
                    f"A callback changed weights in after_step, but {type(self._optimizer).__name__} goes on from its "
                    f"own. Change them at the end, or set an optimizer of minibatch steps, such as AdamW()."
                )
        ended = self._record(loss, self.batches.n_rows)
        stops = self._settings.early_stopping and not self._settings.all_epochs
        return ended or (stops and self._idle())

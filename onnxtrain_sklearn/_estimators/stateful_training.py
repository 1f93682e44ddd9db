"""A training whose state is stored and restored: for checkpoints, and for steps beside the course of training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._callbacks.base import State
from .._schedules.annealing import Restarts
from .._training.loop import Trainer
from .._training.parameters import FlatParameters
from .._training.sweep import swept_losses
from ..exceptions import ModelError
from .run import Run
from .snapshots import require_single_scores
from .training_state import restore_state, stored_state


class StatefulTraining:
    """The run and its loop.

    Attributes
    ----------
    ended : bool
        Whether training ends with this epoch, where that is decided.
    """

    ended = False
    _run: Run
    _trainer: Trainer

    @property
    def parameters(self) -> FlatParameters:
        """The trained parameters."""
        return self._run.parameters

    def state(self) -> State:
        """Return a copy of all that the training goes on from."""
        self._trainer.step.synchronize()
        return {**stored_state(self._run), "ended": self.ended}

    def restore(self, state: State) -> None:
        """Go on from a state."""
        ended = state.get("ended")
        if not isinstance(ended, bool | np.bool_):
            raise ModelError("The stored state is none of this training: it does not say whether that had ended.")
        restore_state(self._run, state)
        self._trainer.step.reload()
        self.ended = bool(ended)

    def sweep(self, rates: np.ndarray) -> np.ndarray:
        """Return the losses of steps at these learning rates; the training stays as it is."""
        before = self.state()
        try:
            return swept_losses(self._trainer.step, self._trainer.batches, rates)
        finally:
            self.restore(before)

    def refresh_statistics(self) -> None:
        """Let running statistics follow the weights by a pass over the data that changes no weight."""
        before = self.state()
        swept_losses(self._trainer.step, self._trainer.batches, np.zeros(self._trainer.batches.steps))
        statistics = self.parameters.statistics.copy()
        self.restore(before)
        self.parameters.statistics[...] = statistics

    def restart_rates(self, ends: Sequence[int]) -> None:
        """Let the learning rate fall to 0 up to each of these epochs of this call, and start again."""
        step, total = self._run.history.progress.step, self._run.history.progress.total_steps or 0
        each = (total - step) // ends[-1]
        self._trainer.rates.follow(Restarts(step, [step + each * epochs for epochs in ends]))

    def require_ensemble(self) -> None:
        """Raise ValueError if :meth:`predict_by` cannot be."""
        require_single_scores(self._run)

    def predict_by(self, snapshots: Sequence[np.ndarray]) -> None:
        """Let the mean of networks predict, whose parameters are copies of the buffer, until training goes on."""
        self._run.snapshots = tuple(snapshots)
        self._run.predictors.clear()

    def set_learning_rate(self, rate: float) -> None:
        """Let the schedule start from this learning rate, in this call."""
        self._trainer.rates.initial = rate

"""The weights that training goes back to when it fails.

A step in the host's memory tells its loss before it updates the weights. So weights are copied when their loss is known
to be finite, over those kept before: a large network has one copy beside the weights. A step on a device tells the
losses of an epoch at its end, and its weights are copied when the epoch begins.
"""

from __future__ import annotations

import numpy as np

from .history import History
from .step import TrainingStep


class KeptWeights:
    """Keep the latest weights that gave a finite loss, in ``history.last_finite``."""

    def __init__(self, step: TrainingStep, history: History) -> None:
        self._parameters, self._history = step.parameters, history
        self._copies_first = not step.updates_after_loss
        self._first: np.ndarray | None = None
        self._moving = step.parameters.statistics
        self._statistics: np.ndarray | None = None
        self._is_kept = False
        if history.last_finite is not None and history.last_finite.shape != self._parameters.buffer.shape:
            history.last_finite = None

    def begin_epoch(self) -> None:
        """Note with which weights an epoch begins; their loss is not known yet."""
        self._is_kept = False
        if self._copies_first:
            self.note()
        if self._moving.size:
            self._statistics = self._moving.copy()  # a pass changes them before the loss is known

    def note(self) -> None:
        """Copy the weights, which will change before their loss is known."""
        self._first = self._parameters.buffer.copy()

    def keep(self) -> None:
        """Keep the weights with which the epoch began: their loss is finite."""
        if self._is_kept:
            return
        if self._first is not None:
            self._history.last_finite, self._first, self._is_kept = self._first, None, True
            return
        self.renew()
        end = len(self._parameters.vector)
        if self._statistics is not None and self._history.last_finite is not None:
            self._history.last_finite[end : end + len(self._statistics)] = self._statistics

    def renew(self) -> None:
        """Keep the weights as they are."""
        history, buffer = self._history, self._parameters.buffer
        if history.last_finite is None:
            history.last_finite = np.empty_like(buffer)
        history.last_finite[...] = buffer
        self._first, self._is_kept = None, True

    def restore_finite(self) -> None:
        """Go back to the latest weights of a finite loss; where there are none, to those of the epoch's begin."""
        if self._history.last_finite is None:
            self._restore_first()
        else:
            self._parameters.buffer[...] = self._history.last_finite

    def restore_epoch(self) -> None:
        """Go back to the weights with which the epoch began."""
        if self._is_kept:
            self.restore_finite()
        else:
            self._restore_first()

    def _restore_first(self) -> None:
        if self._first is not None:
            self._parameters.buffer[...] = self._first
        elif self._statistics is not None:
            self._moving[...] = self._statistics

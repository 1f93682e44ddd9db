"""The weights that stay when training ends, is interrupted, diverges, or fails with another error.

===================================  ===============================================================
end of training                      weights that stay
===================================  ===============================================================
``fit`` ends, or Ctrl-C              with early stopping the best weights, else the current ones
Ctrl-C, current weights not finite   with early stopping the best weights, else the kept ones
divergence                           the kept weights: from the last epoch whose first loss was finite
another error                        the weights from the start of the epoch
===================================  ===============================================================

:class:`.Trainer` calls the methods; ``_estimators/fit.py`` publishes the result or rolls the whole call back.

A step in the host's memory yields its loss before it updates the weights. So the weights can be copied after their loss
proves finite, and one reusable copy suffices. A step on a device yields the losses of many steps after the last of
them, so its weights are copied when the epoch begins.
"""

from __future__ import annotations

import math

import numpy as np

from .history import History
from .step import TrainingStep


class KeptWeights:
    """Copies of weights that a training run may restore.

    Once an epoch, the weights that gave its first loss are kept in ``history.last_finite`` if that loss is finite.
    L-BFGS and fine-tuning keep the current ones after each iteration. With validation scores,
    :meth:`.History.add_epoch` keeps the best ones in ``history.best_parameters``; with early stopping, training returns
    to them.
    """

    def __init__(self, step: TrainingStep, history: History) -> None:
        self._parameters, self._history = step.parameters, history
        self._copies_first = not step.in_host_memory
        self._first: np.ndarray | None = None
        self._moving = step.parameters.statistics
        self._statistics: np.ndarray | None = None
        self._is_kept = False
        if history.last_finite is not None and history.last_finite.shape != self._parameters.buffer.shape:
            history.last_finite = None

    def begin_epoch(self, *, resumes: bool = False) -> None:
        """Record the weights at the start of an epoch; their loss is not known yet.

        If the epoch ``resumes``, its first weights are in ``history.last_finite``.
        """
        self._is_kept = resumes
        if resumes:
            return
        if self._copies_first:
            self.copy_first()
        if self._moving.size:
            self._statistics = self._moving.copy()  # a pass changes them before the loss is known

    def copy_first(self) -> None:
        """Copy the weights, because they will change before their loss is known."""
        self._first = self._parameters.buffer.copy()

    def keep_first(self) -> None:
        """Keep the weights that gave the first loss of the epoch, which is finite.

        On the host they are not updated yet; on a device they are those that :meth:`copy_first` copied.
        """
        if self._is_kept:
            return
        if self._first is not None:
            self._history.last_finite, self._first, self._is_kept = self._first, None, True
            return
        self.keep_current()
        end = len(self._parameters.vector)
        if self._statistics is not None and self._history.last_finite is not None:
            self._history.last_finite[end : end + len(self._statistics)] = self._statistics

    def keep_current(self) -> None:
        """Keep the current weights."""
        history = self._history
        buffer = self._parameters.buffer
        if history.last_finite is None:
            history.last_finite = np.empty_like(buffer)
        history.last_finite[...] = buffer
        self._first, self._is_kept = None, True

    def restore_finite(self) -> None:
        """Restore the kept weights; if there are none, the weights from the start of the epoch."""
        if self._history.last_finite is None:
            self._restore_first()
        else:
            self._parameters.buffer[...] = self._history.last_finite

    def restore_best(self) -> None:
        """With early stopping, restore the best weights; forget them in any case."""
        history = self._history
        if history.early_stopping and math.isfinite(history.best_score) and history.best_parameters is not None:
            self._parameters.buffer[...] = history.best_parameters
        history.best_parameters = None

    def restore_epoch(self) -> None:
        """Restore the weights from the start of the epoch."""
        if self._is_kept:
            self.restore_finite()
        else:
            self._restore_first()

    def _restore_first(self) -> None:
        if self._first is not None:
            self._parameters.buffer[...] = self._first
        elif self._statistics is not None:  # on the host, only these change before the first loss is known
            self._moving[...] = self._statistics

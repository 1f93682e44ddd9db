"""The mean loss on validation data, computed from the scores of a model, without dropout and penalty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._ir.protobuf import to_proto
from .._ort import devices, sessions
from .._utils.typing import DType
from .loss_graph import LOSS, TARGET, WEIGHT, as_target, score_loss_graph
from .rows_meet import require_separate_labels, rows_meet_in_loss
from .step_parts import StepSettings

SCORED_PIECE = 8192
"""Number of rows whose losses are computed at a time."""


class ScoreLoss:
    """The mean loss as a function of scores; ``settings`` are those of the step, ``dtype`` is the type of the scores.

    If rows meet in the loss, it is the mean over minibatches of ``batch_size`` rows; the last one may be shorter.

    Attributes
    ----------
    rows_meet : bool
    """

    def __init__(self, settings: StepSettings, dtype: DType, batch_size: int) -> None:
        self._settings, self._dtype = settings, dtype
        require_separate_labels(settings, dtype)
        self.rows_meet = rows_meet_in_loss(settings, dtype)
        self._rows = batch_size if self.rows_meet else SCORED_PIECE
        self._session: Any = None
        self._shape: tuple[int, ...] = ()

    def __call__(self, scores: np.ndarray, y: np.ndarray, weights: np.ndarray | None) -> float:
        """Return the weighted mean loss; ``y`` holds the encoded targets: class indices or numbers."""
        settings, rows = self._settings, len(scores)
        values, dtype = as_target(settings, y, self._dtype, settings.positions)
        targets = values.astype(dtype)
        weights = (np.ones(rows) if weights is None else weights).astype(self._dtype)
        size = min(rows, self._rows)
        self._prepare((size, *scores.shape[1:]))
        parts = [slice(i, min(i + size, rows)) for i in range(0, rows, size)]
        found = [self._piece(scores[part], targets[part], weights[part]) for part in parts]
        return weighted_mean(found, [weights[part] for part in parts])

    def _prepare(self, shape: tuple[int, ...]) -> None:
        """Open a session for pieces of this shape, unless the present one takes at least as many rows."""
        present = self._shape[0] if self._shape else 0
        suits = shape[0] == present if self.rows_meet else shape[0] <= present
        if shape[1:] != self._shape[1:] or not suits:
            graph = to_proto(score_loss_graph(self._settings, shape, self._dtype)).SerializeToString()
            self._session = sessions.create_session(graph, devices.resolve_device())
            self._shape = shape

    def _piece(self, scores: np.ndarray, y: np.ndarray, weights: np.ndarray) -> float:
        """Return the mean loss of a piece of rows; unless rows meet, rows of weight zero fill the piece up."""
        if self.rows_meet:
            self._prepare(scores.shape)
        filled = np.minimum(np.arange(self._shape[0]), len(scores) - 1)
        weight = np.zeros(len(filled), self._dtype)
        weight[: len(scores)] = weights
        feeds = {"scores": scores[filled].astype(self._dtype), TARGET: y[filled], WEIGHT: weight}
        return float(sessions.run_session(self._session, [LOSS], feeds)[0])


def weighted_mean(losses: Sequence[float], weights: Sequence[np.ndarray]) -> float:
    """Return the mean loss over all pieces, given the mean loss and the row weights of each; NaN without rows."""
    sums = [float(one.sum(dtype=np.float64)) for one in weights]
    total = sum(sums)
    return sum(own / total * loss for own, loss in zip(sums, losses, strict=True) if own) if total else math.nan

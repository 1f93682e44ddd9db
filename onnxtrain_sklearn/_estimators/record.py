"""The fitted attributes on the course of training: properties that read the history of the run.

So they cannot disagree with each other or with the weights, whenever training ended.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np

from .._training.history import EpochRows, History


class TrainingRecord:
    """Attributes of an estimator with a run; before the first run they do not exist."""

    @property
    def n_iter_(self) -> int:
        """Epochs trained, over all calls."""
        return self._history("n_iter_").progress.epoch

    @property
    def t_(self) -> int:
        """Rows seen, over all calls."""
        return self._history("t_").progress.samples

    @property
    def loss_(self) -> float:
        """Mean loss of the last epoch; NaN before the first has ended."""
        return self._history("loss_").losses.last()

    @property
    def loss_curve_(self) -> list[float]:
        """Mean loss of each epoch, of the latest 100,000."""
        return self._history("loss_curve_").loss_curve

    @property
    def history_(self) -> EpochRows:
        """A dict for each epoch: epoch, step, loss, learning_rate, seconds, scores, and what callbacks add.

        ``history_.to_frame()`` returns a pandas DataFrame. Of epochs before the latest 10,000 epoch and loss are kept.
        """
        return self._history("history_").rows

    @property
    def callbacks_(self) -> dict[str, dict[str, Any]]:
        """What callbacks remember, by class; of further ones of a class by class and number, ``"EpochScoring 2"``."""
        return copy.deepcopy(self._history("callbacks_").memories)

    @property
    def best_loss_(self) -> float | None:
        """Least mean loss of an epoch; None with early stopping."""
        history = self._history("best_loss_")
        return None if history.early_stopping else history.least_loss

    @property
    def validation_scores_(self) -> list[float] | None:
        """Score after each epoch, of the latest 100,000; None without validation data."""
        return self._history("validation_scores_").validation_scores or None

    @property
    def best_validation_score_(self) -> float | None:
        """Best of the scores, with early stopping that of the best epoch; None without validation data."""
        history = self._history("best_validation_score_")
        return history.best_score if history.scores.size and math.isfinite(history.best_score) else None

    @property
    def fine_tuning_(self) -> dict[str, np.ndarray]:
        """The candidates of fine-tuning, in columns; plain training has none."""
        found = self._history("fine_tuning_").fine_tuning
        if found is None:
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute 'fine_tuning_': its model was not fine-tuned."
            )
        return {name: column.copy() for name, column in found.items()}

    def _history(self, name: str) -> History:
        run: Any = vars(self).get("_run")
        if run is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}: it is not fitted.")
        history: History = run.history
        return history

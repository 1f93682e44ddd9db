"""Fitted attributes on the course of training, which are read from the history of the fitted state.

They are no copies that are set at the end of a call: so they cannot disagree with each other or with the weights,
whenever training ended, and callbacks see them as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .._training.history import History


class NotRecordedError(Exception):
    """Raised where a fitted estimator lacks an attribute, with the reason."""


class Recorded(property):
    """A property that is a function of the history; before the first fit it does not exist."""

    def __init__(self, read: Callable[[History], Any], doc: str) -> None:
        super().__init__(self._value, doc=doc)
        self._read = read

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def _value(self, estimator: object) -> Any:
        state = vars(estimator).get("_state")
        try:
            if state is None:
                raise NotRecordedError("it is not fitted")
            return self._read(state.history)
        except NotRecordedError as reason:
            name = type(estimator).__name__
            raise AttributeError(f"{name!r} object has no attribute {self._name!r}: {reason}.") from None


def best_validation_score(history: History) -> float | None:
    """Return the best score; None without validation data, and where no score was a number."""
    return history.best_score if history.scores.size and math.isfinite(history.best_score) else None


def fine_tuning_columns(history: History) -> dict[str, np.ndarray]:
    """Return a copy of the candidates of fine-tuning."""
    if history.fine_tuning is None:
        raise NotRecordedError("its model was not fine-tuned")
    return {name: column.copy() for name, column in history.fine_tuning.items()}

"""Other constants by which training chooses who updates the parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from onnxtrain_sklearn._training import update_executors


def tune(monkeypatch: Any, **values: float) -> None:
    """Set some constants of :class:`~onnxtrain_sklearn._training.update_executors.UpdateTuning`."""
    monkeypatch.setattr(update_executors, "TUNING", replace(update_executors.TUNING, **values))

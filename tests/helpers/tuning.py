"""Other constants by which training chooses who updates the parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from onnxtrain_sklearn._training import formula_updates


def tune(monkeypatch: Any, **values: float) -> None:
    """Set some constants of :class:`~onnxtrain_sklearn._training.formula_updates.UpdateTuning`."""
    monkeypatch.setattr(formula_updates, "TUNING", replace(formula_updates.TUNING, **values))

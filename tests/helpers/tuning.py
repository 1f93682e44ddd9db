"""Other constants by which training chooses who computes and who updates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from onnxtrain_sklearn._training import step_choice, update_executors


def tune(monkeypatch: Any, **values: float) -> None:
    """Set some constants of :class:`~onnxtrain_sklearn._training.update_executors.UpdateTuning`."""
    monkeypatch.setattr(update_executors, "TUNING", replace(update_executors.TUNING, **values))


def compile_any_fit(monkeypatch: Any) -> None:
    """Let engine="auto" compile the graph of a fit of any length."""
    monkeypatch.setattr(step_choice, "MARGIN", 1e-12)


def hide_compiler(monkeypatch: Any) -> None:
    """Let engine="auto" find no compiler."""
    monkeypatch.setattr(step_choice, "auto_compiles", lambda: False)

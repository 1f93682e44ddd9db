"""Other constants: by which training chooses who computes and who updates, and sizes of what is copied and kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from onnxtrain_sklearn._data import row_blocks
from onnxtrain_sklearn._fitted import fitted_model
from onnxtrain_sklearn._recipes import preprocessing
from onnxtrain_sklearn._training import step_choice, step_parts, update_executors


def tune(monkeypatch: Any, **values: float) -> None:
    """Set some constants of :class:`~onnxtrain_sklearn._training.update_executors.UpdateTuning`."""
    monkeypatch.setattr(update_executors, "TUNING", replace(update_executors.TUNING, **values))


def compile_any_fit(monkeypatch: Any) -> None:
    """Let engine="auto" compile the graph of a fit of any length."""
    monkeypatch.setattr(step_choice, "MARGIN", 1e-12)


def hide_compiler(monkeypatch: Any) -> None:
    """Let engine="auto" find no compiler."""
    monkeypatch.setattr(step_choice, "auto_compiles", lambda: False)


def order_stages(monkeypatch: Any, stages: Sequence[str]) -> None:
    """Let the steps of a training that begins later have this order."""
    monkeypatch.setattr(step_parts, "STAGES", stages)


def copy_into_blocks(monkeypatch: Any, count: int) -> None:
    """Copy tables without small row groups into so many blocks for a buffer."""
    monkeypatch.setattr(row_blocks, "COPIED_BLOCKS", count)
    monkeypatch.setattr(row_blocks, "LEAST_ROWS", 1)


def limit_categories(monkeypatch: Any, most: int) -> None:
    """Let recipes refuse columns of more categories."""
    monkeypatch.setattr(preprocessing, "MOST_CATEGORIES", most)


def keep_encodings_sparse(monkeypatch: Any, *, rows: int) -> list[Any]:
    """Keep encodings of any size sparse, made for so many rows at a time; return a list that gets each of them."""
    found: list[Any] = []
    stacked = fitted_model._stacked
    monkeypatch.setattr(fitted_model, "COPY_LIMIT", 0)
    monkeypatch.setattr(fitted_model, "CHUNK", rows)
    monkeypatch.setattr(fitted_model, "_stacked", lambda pieces: found.append(stacked(pieces)) or found[-1])
    return found

"""Fine-tuning before its first step, and the damping that it begins with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxtrain_sklearn._anchored_search.objective import OutputWeights, output_weights
from onnxtrain_sklearn._anchored_search.tuning_trainer import FineTuningTrainer
from onnxtrain_sklearn._estimators import finetuning
from onnxtrain_sklearn._estimators.call import Call
from onnxtrain_sklearn._estimators.fit import prepare


def prepared_trainer(estimator: Any, X: Any, y: Any) -> FineTuningTrainer:
    """Return the trainer that a fit would run."""
    trainer = prepare(estimator, Call(X, y))[1]
    assert isinstance(trainer, FineTuningTrainer)
    return trainer


def record_damping(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Return a list that gets, for each fit, the numbers by which it divides the weights."""
    found: list[np.ndarray] = []
    plain = finetuning.damping_of
    monkeypatch.setattr(finetuning, "damping_of", lambda *arguments: found.append(plain(*arguments)) or found[-1])
    return found


def weights_of_output(trainer: FineTuningTrainer) -> OutputWeights:
    """Return the weights that scale and shift the scores."""
    return output_weights(trainer._objective.parameters, trainer._tuning.scores)


def record_searched_graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that gets, for each search, the part of the graph that each iteration computes."""
    found: list[Any] = []
    plain = finetuning.remaining
    monkeypatch.setattr(finetuning, "remaining", lambda *arguments: found.append(plain(*arguments)) or found[-1])
    return found


def search_whole_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each iteration of a search compute the whole graph."""
    monkeypatch.setattr(finetuning, "frozen_part", lambda *_: None)


def limit_precomputed_bytes(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Compute larger values in each iteration of a search."""
    monkeypatch.setattr(finetuning, "COPY_LIMIT", most)

"""Fine-tuning before its first step."""

from __future__ import annotations

from typing import Any

from onnxtrain_sklearn._anchored_search.tuning_trainer import FineTuningTrainer
from onnxtrain_sklearn._estimators.call import Call
from onnxtrain_sklearn._estimators.fit import prepare


def prepared_trainer(estimator: Any, X: Any, y: Any) -> FineTuningTrainer:
    """Return the trainer that a fit would run."""
    trainer = prepare(estimator, Call(X, y))[1]
    assert isinstance(trainer, FineTuningTrainer)
    return trainer

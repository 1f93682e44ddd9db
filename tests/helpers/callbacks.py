"""Callbacks in scikit-learn's form that record what they are told, and small fits with callbacks."""

from __future__ import annotations

from typing import Any

from onnxtrain_sklearn import MLP, OrtGradientClassifier
from tests.helpers.training import NEVER


class Recorder:
    """Records the hooks that are called; ends training after ``last`` epochs."""

    def __init__(self, last: int | None = None) -> None:
        self.last, self.told = last, []

    def setup(self, estimator: Any, context: Any) -> None:
        self.told.append("setup")

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
        self.told.append(f"{context.task_name} begins")

    def on_fit_task_end(self, estimator: Any, context: Any) -> bool:
        self.told.append(f"{context.task_name} {context.task_id} ends")
        return context.task_name == "epoch" and context.task_id + 1 == self.last

    def teardown(self, estimator: Any, context: Any) -> None:
        self.told.append("teardown")


class Scores(Recorder):
    """Records the score on the rows of training of the estimator as it would be, and these rows."""

    def on_fit_task_end(
        self, estimator: Any, context: Any, *, X: Any, y: Any, metadata: Any, fitted_estimator: Any
    ) -> None:
        self.told.append((X, y, metadata, fitted_estimator))

    def values(self) -> list[tuple[Any, ...]]:
        return [one for one in self.told if isinstance(one, tuple)]


def net(*callbacks: object, **parameters: object) -> OrtGradientClassifier:
    settings = {
        "model": MLP((6,)),
        "learning_rate_init": 0.02,
        "max_iter": 6,
        "batch_size": 32,
        "tol": NEVER,
        "random_state": 0,
    }
    return OrtGradientClassifier(callbacks=list(callbacks)).set_params(**settings | parameters)


def without_seconds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


class Writer:
    """Has the method of a writer for TensorBoard."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.seen.append((tag, value, step))


def single_callback(kind: type, folder: Any) -> Any:
    """Return a callback of a kind, with settings for a fit of a few epochs."""
    settings: dict[str, dict[str, Any]] = {
        "Checkpoint": {"path": folder}, "EarlyStopping": {"monitor": "train_accuracy", "patience": 50},
        "EpochScoring": {"scoring": "accuracy", "on": "train"}, "GradientStatistics": {"by_parameter": True},
        "LearningRateFinder": {"steps": 10}, "MetricLogger": {"target": Writer}, "SnapshotEnsemble": {"cycles": 2},
        "TimeLimit": {"seconds": 3600}, "WeightAveraging": {"start": 0.5},
    }  # fmt: skip
    return kind(**settings.get(kind.__name__, {}))

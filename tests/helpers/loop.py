"""The epoch loop by itself: a step, batches and a validation score that are made up."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from onnxtrain_sklearn._training.history import History
from onnxtrain_sklearn._training.step_parts import Rates
from onnxtrain_sklearn._training.trainer import Trainer, TrainerSettings
from onnxtrain_sklearn.optimizers import SGD
from onnxtrain_sklearn.schedules import resolve_schedule

__all__ = ["Batches", "History", "LateStep", "Rates", "Step", "Trainer", "trainer"]


class Step:
    """A step whose losses are given; each adds one to its single weight."""

    in_host_memory = False

    def __init__(self, losses: list[float]) -> None:
        self.losses = iter(losses)
        vector = np.zeros(1, np.float32)
        self.parameters = SimpleNamespace(vector=vector, buffer=vector, statistics=vector[1:])
        self.optimizer_state = SimpleNamespace(slots={})
        self.settings = SimpleNamespace(optimizer=SGD())
        self.rates: list[float] = []
        self.forgotten = 0

    def run(self, rates: Rates, weight: float) -> float:
        self.rates.append(rates.learning_rate)
        self.parameters.vector += 1
        return next(self.losses)

    def train(self, batches: Any, next_rates: Any, after: Any = None, skip: int = 0) -> Iterator[tuple[float, float]]:
        for weight in batches.weights:
            yield weight, self.run(next_rates(), weight)

    def synchronize(self) -> None:
        self.synchronized = True

    def forget_state(self) -> None:
        self.forgotten += 1


class LateStep(Step):
    """Adds one after it has told the loss; running statistics, its second number, have changed before."""

    in_host_memory = True

    def __init__(self, losses: list[float]) -> None:
        super().__init__(losses)
        buffer = np.zeros(2, np.float32)
        self.parameters = SimpleNamespace(vector=buffer[:1], buffer=buffer, statistics=buffer[1:])

    def train(self, batches: Any, next_rates: Any, after: Any = None, skip: int = 0) -> Iterator[tuple[float, float]]:
        for weight in batches.weights:
            self.rates.append(next_rates().learning_rate)
            self.parameters.statistics[...] += 1
            yield weight, next(self.losses)
            self.parameters.vector[...] += 1


class Batches:
    """Batches of the given weights."""

    def __init__(self, *weights: float) -> None:
        self.weights, self.n_rows = weights, 10
        self.weight, self.n_minibatches = sum(weights), len(weights)


def trainer(step: Step, batches: Batches | None = None, history: History | None = None, **options: Any) -> Trainer:
    validate = options.pop("validate", None)
    defaults = {
        "learning_rate_init": 1.0, "schedule": "constant", "max_iter": 100, "tol": 0.1, "n_iter_no_change": 2,
        "early_stopping": False, "verbose": False,
    } | options  # fmt: skip
    settings = TrainerSettings(**defaults | {"schedule": resolve_schedule(defaults["schedule"])})
    return Trainer(settings, step, batches or Batches(1.0), history or History(), validate)

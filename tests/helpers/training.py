"""Short trainings, and what is seen of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from onnxtrain_sklearn import MLP, SGD, OrtGradientClassifier, OrtGradientRegressor
from onnxtrain_sklearn._training.step import HostStep
from onnxtrain_sklearn._training.step_parts import Rates

NEVER = -np.inf
"""A tol that every epoch improves by: training takes all its epochs."""


def quietly(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what a call returns, without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*args, **kwargs)


def small(**parameters: object) -> OrtGradientClassifier:
    defaults = {"learning_rate_init": 0.01, "max_iter": 5, "batch_size": 32, "tol": NEVER, "random_state": 0}
    return OrtGradientClassifier(MLP((6,)), **defaults | parameters)


def one_step(proto: onnx.ModelProto, X: np.ndarray, y: np.ndarray, rate: float = 0.1) -> OrtGradientRegressor:
    regressor = OrtGradientRegressor(proto, optimizer=SGD(), learning_rate_init=rate, max_iter=1, random_state=0)
    return quietly(regressor.fit, X, y)


def weights_equal(a: object, b: object) -> bool:
    return all(np.array_equal(x, b.weights_[name]) for name, x in a.weights_.items())


class record_steps:
    """Record the learning rate of every step while the block runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rates: list[float] = []
        update = HostStep.update

        def recorded(step: HostStep, rates: Rates) -> None:
            self.rates.append(rates.learning_rate)
            update(step, rates)

        monkeypatch.setattr(HostStep, "update", recorded)

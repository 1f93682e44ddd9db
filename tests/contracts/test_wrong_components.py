"""Losses, optimizers and schedules of a user that return what they must not: the error names the method and says it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from onnxtrain_sklearn import Linear, OrtGradientRegressor
from onnxtrain_sklearn.exceptions import ModelError
from onnxtrain_sklearn.losses import Loss
from onnxtrain_sklearn.optimizers import Optimizer
from onnxtrain_sklearn.schedules import Schedule

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

X = np.random.RandomState(0).normal(size=(12, 3)).astype(np.float32)


class Wrong(Loss, Schedule, Optimizer):
    """Returns what it is given a function for."""

    def __init__(self, function=None):
        self.function = function

    def __call__(self, op, scores, y, link):
        return self.function(op, scores, y)

    def update(self, op, p, g, state, k):
        return self.function(op, p, g)

    def factor(self, progress):
        return self.function(progress)


def fit(**parameters: object) -> OrtGradientRegressor:
    return OrtGradientRegressor(Linear(), max_iter=2, batch_size=4).set_params(**parameters).fit(X, X[:, 0])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda op, scores, y: None, "Wrong must return the result of an operator .*got NoneType"),
        (lambda op, scores, y: 1.0, "Wrong must return the result of an operator .*got float"),
        (lambda op, scores, y: op.Cast(scores, to=7), "of the type of the scores, FLOAT, got INT64: op.Cast.x, to=1"),
        (
            lambda op, scores, y: op.Mul(y, y),
            "The loss does not depend on the parameter 'weight'. Compute it",
        ),
    ],
)
def test_losses(function, message):
    with pytest.raises(ModelError, match=message):
        fit(loss=Wrong(function))


@pytest.mark.parametrize(
    "function",
    [
        lambda op, parameters, gradients: op.Sub(parameters, gradients),
        lambda op, parameters, gradients: None,
        lambda op, parameters, gradients: (op.Sub(parameters, gradients), None),
        lambda op, parameters, gradients: (0.0, {}),
    ],
)
def test_optimizers(function):
    with pytest.raises(ModelError, match=r"Wrong\.update must return the new parameters and a dict of the new state"):
        fit(optimizer=Wrong(function))


@pytest.mark.parametrize("factor", [None, "a", -1.0, math.nan, math.inf, np.array([0.5])])
@pytest.mark.parametrize("name", ["learning_rate", "optimizer__weight_decay_schedule"])
def test_schedules(name, factor):
    later = Wrong(lambda progress: factor if progress.step == 4 else 1.0)
    with pytest.raises(ValueError, match=r"factor must return a finite number >= 0.* for step 4 it returned"):
        fit(**{name: later})


@pytest.mark.parametrize("factor", [1, True, np.float32(0.5), np.int64(1), np.array(0.5)])
def test_schedules_may_return_any_number(factor):
    assert fit(learning_rate=Wrong(lambda progress: factor)).history_[-1]["learning_rate"] == 0.001 * float(factor)

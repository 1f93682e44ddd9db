"""Callbacks that change what is trained: the mean of weights, the learning rate."""

from __future__ import annotations

from numbers import Integral
from typing import ClassVar

import numpy as np

from .._support.rules import BELOW_ONE, COUNT, POSITIVE, Range, Rules
from ..exceptions import warn
from .base import CALLBACKS_MODULE, Callback, TrainingInProgress


class WeightAveraging(Callback):
    """Stochastic weight averaging: training ends with the mean of the weights of the last epochs.

    Running statistics are computed anew for the mean by a pass over the data.

    Parameters
    ----------
    start : float, default=0.75
        Share of ``max_iter`` epochs, in [0, 1), after which the mean begins. If training ends before, the weights stay
        as they are, with a warning. Calls of ``partial_fit`` change nothing: ``ema_decay`` averages over those.
    every : int, default=1
        Epochs from one summand to the next.

    References
    ----------
    Izmailov, Podoprikhin, Garipov, Vetrov and Wilson, "Averaging weights leads to wider optima and better
    generalization", 2018.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from onnxtrain_sklearn import OrtGradientClassifier
    >>> from onnxtrain_sklearn.callbacks import WeightAveraging
    >>> X, y = load_iris(return_X_y=True)
    >>> settings = {"learning_rate_init": 0.05, "max_iter": 1000, "random_state": 0}
    >>> net = OrtGradientClassifier(callbacks=[WeightAveraging(start=0.01)], **settings).fit(X, y)
    >>> net.score(X, y) > 0.9, net.callbacks_["WeightAveraging"]["count"] == net.n_iter_ - 10
    (True, True)
    """

    __module__ = CALLBACKS_MODULE
    name = "weight_averaging"
    passing = ("mean",)
    valid: ClassVar[Rules] = {"start": (BELOW_ONE,), "every": (COUNT,)}

    def __init__(self, start: float = 0.75, every: int = 1) -> None:
        self.start = start
        self.every = every

    def begin(self, training: TrainingInProgress) -> None:
        if training.parameters.averages:
            raise ValueError("WeightAveraging and ema_decay both average the weights: choose one of them.")
        training.memory(self).clear()

    def after_epoch(self, training: TrainingInProgress) -> None:
        beyond = training.epochs_done - int(self.start * training.max_iter)
        if training.one_pass or beyond < 1 or (beyond - 1) % self.every:
            return
        memory, vector = training.memory(self), training.parameters.vector.astype(np.float64)
        count = memory.get("count", 0) + 1
        mean = memory.get("mean", vector)
        memory.update(count=count, mean=mean + (vector - mean) / count)

    def end(self, training: TrainingInProgress) -> None:
        mean = training.memory(self).pop("mean", None)
        if mean is not None:
            training.parameters.vector[...] = mean
            if training.parameters.running_statistics:
                training.refresh_statistics()
        elif not training.one_pass:
            epochs = int(self.start * training.max_iter)
            warn(f"Training ended before epoch {epochs + 1}, with which WeightAveraging(start={self.start}) begins.")


class LearningRateFinder(Callback):
    """Find a learning rate before training: steps at growing rates show where the loss falls and where it diverges.

    The weights and all else stay as they were before these steps. The rate is that at which the smoothed loss falls
    fastest; the schedule starts from it. ``callbacks_["LearningRateFinder"]`` of the estimator holds the ``rates``, the
    ``losses`` (NaN where they diverged) and the ``suggestion``. Later calls of ``partial_fit`` and of ``fit`` with
    ``warm_start`` keep the rate.

    Parameters
    ----------
    lowest, highest : float, default=1e-6 and 1.0
        The first and the last rate.
    steps : int, default=100
        Number of steps, at least 10.

    References
    ----------
    Smith, "Cyclical learning rates for training neural networks", 2017.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from onnxtrain_sklearn import OrtGradientClassifier
    >>> from onnxtrain_sklearn.callbacks import LearningRateFinder
    >>> X, y = load_iris(return_X_y=True)
    >>> net = OrtGradientClassifier(callbacks=[LearningRateFinder()], max_iter=500, random_state=0).fit(X, y)
    >>> 1e-4 < net.callbacks_["LearningRateFinder"]["suggestion"] == net.history_[0]["learning_rate"] < 1
    True
    """

    __module__ = CALLBACKS_MODULE
    name = "learning_rate_finder"
    valid: ClassVar[Rules] = {"lowest": (POSITIVE,), "highest": (POSITIVE,), "steps": (Range(Integral, 10),)}

    def __init__(self, lowest: float = 1e-6, highest: float = 1.0, steps: int = 100) -> None:
        self.lowest = lowest
        self.highest = highest
        self.steps = steps

    def validate(self) -> None:
        super().validate()
        if self.lowest >= self.highest:
            raise ValueError(f"lowest={self.lowest!r} must be less than highest={self.highest!r}.")

    def begin(self, training: TrainingInProgress) -> None:
        if not training.is_resumable:
            raise ValueError("LearningRateFinder is for training in minibatches: L-BFGS and fine-tuning have no rate.")
        memory = training.memory(self)
        if "suggestion" not in memory:
            rates = np.geomspace(self.lowest, self.highest, self.steps)
            losses = training.sweep(rates)
            training.memory(self).update(rates=rates, losses=losses, suggestion=_steepest(rates, losses))
        training.set_learning_rate(float(training.memory(self)["suggestion"]))


def _steepest(rates: np.ndarray, losses: np.ndarray) -> float:
    """Return the rate at which the smoothed loss falls fastest, before it is far above its least value."""
    known = losses[: int(np.isfinite(losses).cumprod().sum())]
    if len(known) < 5:
        raise ValueError(
            f"The loss diverged at a learning rate of {rates[len(known)]:.3g}, after {len(known)} steps. Scale the "
            f"inputs (StandardScaler), or lower lowest={rates[0]:.3g}."
        )
    smooth = np.convolve(np.pad(known, 2, mode="edge"), np.ones(5) / 5, mode="valid")
    least = int(np.argmin(smooth))
    slopes = np.gradient(smooth[: max(least, 1) + 1]) if least else np.zeros(1)
    return float(rates[int(np.argmin(slopes))])

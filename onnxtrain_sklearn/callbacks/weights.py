"""Callbacks that change weights or rates: WeightAveraging, LearningRateFinder, SnapshotEnsemble."""

from __future__ import annotations

import math
from numbers import Integral
from typing import ClassVar

import numpy as np

from .._utils.params import BELOW_ONE, COUNT, POSITIVE, Range, Rules
from ..exceptions import warn
from .base import CALLBACKS_MODULE, Callback, TrainingInProgress


class WeightAveraging(Callback):
    """Stochastic weight averaging: training ends with the mean of the weights of the last epochs.

    Running statistics are recomputed for the mean by a pass over the data.

    Parameters
    ----------
    start : float, default=0.75
        Share of ``max_iter`` epochs, in [0, 1), after which averaging begins. If training ends earlier, the weights are
        not averaged, with a warning. Calls of ``partial_fit`` are not averaged; use ``ema_decay`` for them.
    every : int, default=1
        Epochs between two weights that enter the mean.

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
        if training.one_epoch or beyond < 1 or (beyond - 1) % self.every:
            return
        # Average in float64: in float32, a mean of many vectors would lose the digits in which the last epochs differ.
        memory = training.memory(self)
        vector = training.parameters.vector.astype(np.float64)
        count = memory.get("count", 0) + 1
        mean = memory.get("mean", vector)
        memory.update(count=count, mean=mean + (vector - mean) / count)

    def end(self, training: TrainingInProgress) -> None:
        mean = training.memory(self).pop("mean", None)
        if mean is not None:
            training.parameters.vector[...] = mean
            if training.parameters.running_statistics:  # the statistics belong to other weights than the mean
                training.refresh_statistics()
        elif not training.one_epoch:
            epochs = int(self.start * training.max_iter)
            warn(f"Training ended before epoch {epochs + 1}, with which WeightAveraging(start={self.start}) begins.")


class LearningRateFinder(Callback):
    """Find a learning rate before training, by trial steps at growing rates until the loss diverges.

    The trial steps are undone. The learning rate becomes the one at which the smoothed loss falls fastest, and the
    schedule starts from it. ``callbacks_["LearningRateFinder"]`` of the estimator holds the ``rates``, the
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
    """Return the rate at which the smoothed loss falls fastest, up to where it is smallest."""
    known = losses[: int(np.isfinite(losses).cumprod().sum())]  # the losses before the first one that diverged
    if len(known) < 5:
        raise ValueError(
            f"The loss diverged at a learning rate of {rates[len(known)]:.3g}, after {len(known)} steps. Scale the "
            f"inputs (StandardScaler), or lower lowest={rates[0]:.3g}."
        )
    # Losses of single minibatches are noisy, so take means of five. After the smallest mean, training becomes unstable:
    # a steep fall there follows a rise, and is no progress.
    smooth = np.convolve(np.pad(known, 2, mode="edge"), np.ones(5) / 5, mode="valid")
    least = int(np.argmin(smooth))
    slopes = np.gradient(smooth[: max(least, 1) + 1]) if least else np.zeros(1)
    return float(rates[int(np.argmin(slopes))])


SEVERAL = Range(Integral, 2)


class SnapshotEnsemble(Callback):
    r"""Train an ensemble in one run, whose members are the weights at the end of each cycle of the learning rate.

    In each cycle, the learning rate falls from its initial value to 0 by half a cosine. Then it starts again, which
    moves the weights away from the minimum that they have reached. Predictions are the mean of the members'
    probabilities, or of their numbers; ``predict``, ``to_onnx`` and pickles use one graph with all members.
    ``weights_`` are the last weights alone, and there is no ``coef_``. ``partial_fit`` and a warm start continue from
    the last weights, which then predict alone until another ensemble is complete.

    Parameters
    ----------
    cycles : int, default=5
        Cycles in ``max_iter`` epochs, at least 2.
    last : int or None, default=None
        Number of the latest snapshots that predict, at least 2; None for all.

    Notes
    -----
    The callback sets the schedule, and requires ``learning_rate="constant"`` and ``n_iter_no_change=np.inf``, as a loss
    that rises again must not end the training. It is for one network with a score for each target or class: quantized
    graphs, low-rank adapters, several outputs, and labels or targets at positions are refused. In predictions, each
    member costs the time and memory of a network. With ``early_stopping``, the validation scores are those of single
    networks; ``weights_`` are then the best ones, and the snapshots predict. The members of ``n_ensembles``, which the
    estimators for raw tables have, differ more, and each costs a training.

    References
    ----------
    Huang, Li, Pleiss, Liu, Hopcroft and Weinberger, "Snapshot ensembles: train 1, get M for free", ICLR 2017.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_iris
    >>> from onnxtrain_sklearn import OrtGradientClassifier
    >>> from onnxtrain_sklearn.callbacks import SnapshotEnsemble
    >>> X, y = load_iris(return_X_y=True)
    >>> settings = {"learning_rate_init": 0.05, "max_iter": 60, "n_iter_no_change": np.inf, "random_state": 0}
    >>> net = OrtGradientClassifier(callbacks=[SnapshotEnsemble(3)], **settings).fit(X, y)
    >>> net.score(X, y) > 0.9, net.callbacks_["SnapshotEnsemble"]["epochs"]
    (True, [20, 40, 60])
    """

    __module__ = CALLBACKS_MODULE
    name = "snapshot_ensemble"
    passing = ("snapshots",)
    valid: ClassVar[Rules] = {"cycles": (SEVERAL,), "last": (SEVERAL, None)}

    def __init__(self, cycles: int = 5, last: int | None = None) -> None:
        self.cycles = cycles
        self.last = last

    def begin(self, training: TrainingInProgress) -> None:
        training.memory(self).clear()
        if not training.one_epoch:
            estimator = training.estimator
            if not training.is_resumable:
                raise ValueError(
                    "SnapshotEnsemble is for training in minibatches: L-BFGS and fine-tuning have no cycles."
                )
            if training.max_iter < self.cycles:
                raise ValueError(
                    f"{self.cycles} cycles need as many epochs, but max_iter={training.max_iter}: raise it."
                )
            if estimator.learning_rate != "constant" or math.isfinite(estimator.n_iter_no_change):
                raise ValueError(
                    f"SnapshotEnsemble sets the learning rate of each cycle, and trains to the end of the last one: it "
                    f"needs learning_rate='constant' and n_iter_no_change=np.inf, got learning_rate="
                    f"{estimator.learning_rate!r} and n_iter_no_change={estimator.n_iter_no_change!r}."
                )
            if any(isinstance(one, WeightAveraging) for one in estimator.callbacks or ()):
                raise ValueError(
                    "SnapshotEnsemble predicts by several weights, WeightAveraging by their mean: choose one."
                )
            training.require_ensemble()
            training.restart_rates(cycle_ends(training.max_iter, self.cycles))

    def after_epoch(self, training: TrainingInProgress) -> None:
        if not training.one_epoch and training.epochs_done in cycle_ends(training.max_iter, self.cycles):
            memory = training.memory(self)
            memory["epochs"] = [*memory.get("epochs", []), training.row["epoch"]]
            most = self.cycles if self.last is None else self.last
            memory["snapshots"] = [*memory.get("snapshots", []), training.parameters.buffer.copy()][-most:]

    def end(self, training: TrainingInProgress) -> None:
        snapshots = training.memory(self).pop("snapshots", [])
        if len(snapshots) > 1:
            training.predict_by(snapshots)
        elif not training.one_epoch:
            warn(
                f"Training ended after {training.epochs_done} epochs, before the second of {self.cycles} cycles did: "
                f"SnapshotEnsemble has no ensemble, and the last weights predict."
            )


def cycle_ends(max_iter: int, cycles: int) -> list[int]:
    """Return the last epoch of each cycle; cycles differ in length by at most one epoch."""
    return [max_iter * (i + 1) // cycles for i in range(cycles)]

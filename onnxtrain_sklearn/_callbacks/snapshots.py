"""An ensemble from one training: snapshots of the weights at the ends of cycles of the learning rate."""

from __future__ import annotations

import math
from numbers import Integral
from typing import ClassVar

from .._support.rules import Range, Rules
from ..exceptions import warn
from .base import CALLBACKS_MODULE, Callback, TrainingInProgress
from .weights import WeightAveraging

SEVERAL = Range(Integral, 2)


class SnapshotEnsemble(Callback):
    r"""Train an ensemble in one run: its members are the weights at the end of each cycle of the learning rate.

    In each cycle the learning rate falls from its initial value to 0 by half a cosine, then it starts again, which
    takes the weights away from the minimum that they were in. Predictions are the mean of the members' probabilities,
    or of their numbers; ``predict``, ``to_onnx`` and pickles hold them in one graph. ``weights_`` and ``coef_`` are
    not those of the ensemble: ``weights_`` are the last ones. ``partial_fit`` and a warm start continue from them; they
    then predict alone until another cycle of snapshots has ended.

    Parameters
    ----------
    cycles : int, default=5
        Cycles in ``max_iter`` epochs, at least 2.
    last : int or None, default=None
        Number of the latest snapshots that predict, at least 2; None: all.

    Notes
    -----
    The callback sets the schedule: ``learning_rate="constant"`` and ``n_iter_no_change=np.inf`` are required, as a loss
    that rises again must not end the training. It is for one network with a score for each target or class: quantized
    graphs, low-rank adapters, several outputs, and labels or targets at positions are refused. Each member costs the
    time and the memory of a network when it predicts. With ``early_stopping`` the validation scores are those of single
    networks, the best of which ``weights_`` are; the snapshots predict. Members of ``n_ensembles`` of the estimators
    for raw tables differ more, and cost a training each.

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
        if not training.one_pass:
            self._require_cycles(training)
            training.restart_rates(cycle_ends(training.max_iter, self.cycles))

    def after_epoch(self, training: TrainingInProgress) -> None:
        if not training.one_pass and training.epochs_done in cycle_ends(training.max_iter, self.cycles):
            memory = training.memory(self)
            memory["epochs"] = [*memory.get("epochs", []), training.row["epoch"]]
            memory["snapshots"] = [*memory.get("snapshots", []), training.parameters.buffer.copy()][-self._most :]

    def end(self, training: TrainingInProgress) -> None:
        snapshots = training.memory(self).pop("snapshots", [])
        if len(snapshots) > 1:
            training.predict_by(snapshots)
        elif not training.one_pass:
            warn(
                f"Training ended after {training.epochs_done} epochs, before the second of {self.cycles} cycles did: "
                f"SnapshotEnsemble has no ensemble, and the last weights predict."
            )

    @property
    def _most(self) -> int:
        return self.cycles if self.last is None else self.last

    def _require_cycles(self, training: TrainingInProgress) -> None:
        estimator = training.estimator
        if not training.is_resumable:
            raise ValueError("SnapshotEnsemble is for training in minibatches: L-BFGS and fine-tuning have no cycles.")
        if training.max_iter < self.cycles:
            raise ValueError(f"{self.cycles} cycles need as many epochs, but max_iter={training.max_iter}: raise it.")
        if estimator.learning_rate != "constant" or math.isfinite(estimator.n_iter_no_change):
            raise ValueError(
                f"SnapshotEnsemble sets the learning rate of each cycle, and trains to the end of the last one: it "
                f"needs learning_rate='constant' and n_iter_no_change=np.inf, got learning_rate="
                f"{estimator.learning_rate!r} "
                f"and n_iter_no_change={estimator.n_iter_no_change!r}."
            )
        if any(isinstance(one, WeightAveraging) for one in estimator.callbacks or ()):
            raise ValueError("SnapshotEnsemble predicts by several weights, WeightAveraging by their mean: choose one.")
        training.require_ensemble()


def cycle_ends(max_iter: int, cycles: int) -> list[int]:
    """Return the number of the last epoch of each cycle; cycles differ by one epoch at most."""
    return [max_iter * (i + 1) // cycles for i in range(cycles)]

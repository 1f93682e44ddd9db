"""Local SGD: shards train by themselves for some steps, then their weights are averaged.

An exchange of gradients in each step would cost a hundred times the step: a step of a small network takes 40 to 300
microseconds, a round of messages on a cluster 45 milliseconds and more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from .._utils.params import BELOW_ONE, COUNT, POSITIVE, Component, OneOf, Rules, check_parameters

ROUND_SECONDS = 0.045
"""Seconds that a round takes beside its steps: messages to the workers and back, on one machine."""

BYTES_PER_SECOND = 4e8
"""Bytes that the scheduler moves in a second."""


class LocalSGD(Component):
    """How shards of a cluster train together: steps by themselves, then an average.

    In a round, each shard takes ``sync_every`` steps with its own rows and its own optimizer, starting from common
    weights. The mean of what the shards changed is then the gradient of an outer optimizer, which moves the common
    weights (DiLoCo). Averages of running statistics and of ``ema_decay`` are plain means.

    Parameters
    ----------
    sync_every : int, default=200
        Steps of a shard between two averages, at most: an epoch ends with an average.
    outer : {"nesterov", "momentum"}, default="nesterov"
        The outer optimizer: Nesterov's momentum, or the plain one.
    outer_learning_rate : float, default=0.7
        Its learning rate. With 1 and ``outer_momentum=0``, the common weights become the mean of the shards' weights.
    outer_momentum : float in [0, 1), default=0.9
        Its momentum.
    n_shards : int or "auto", default="auto"
        Parts of the rows that train at the same time. The result depends on it, and not on the number of workers.
        "auto": one for each worker that is there when ``fit`` begins.

    Notes
    -----
    More shards take less time and more epochs. With a million rows of seven classes, 8 shards, 50 steps between
    averages and 12 epochs, the accuracy is 0.0035 above that of one machine with the default outer optimizer, and
    0.003 below it with a plain mean (means of three seeds, ``benchmarks/cluster.py``). With 4 epochs and a third of
    the learning rate, 0.001, both are behind, by 0.021 and 0.031, because a shard takes an eighth of the steps.
    Multiply the learning rate of one machine by the number of shards, up to about 0.01: at 0.008, the default is ahead
    by 0.0003 (means of five seeds).

    After fewer than 20 rounds, or rounds of fewer than 8 steps, the momentum may overshoot at a high learning rate:
    ``fit`` then warns. Take smaller minibatches, fewer shards, more epochs, or compare the plain mean.

    References
    ----------
    Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", arXiv:2311.08105, 2023.

    Examples
    --------
    >>> from onnxtrain_sklearn.dask import LocalSGD
    >>> step_seconds, n_rows = 80e-6, 1_000_000  # an epoch of one machine takes 5,000 steps, 0.4 seconds
    >>> for sync_every in (50, 600):
    ...     averaging = LocalSGD(sync_every)
    ...     print(round(averaging.epoch_seconds(n_rows, 8, step_seconds=step_seconds, n_parameters=10_000), 2))
    0.67
    0.1
    """

    __module__ = "onnxtrain_sklearn.dask"  # the path by which pickles name it
    name = "local_sgd"
    valid: ClassVar[Rules] = {
        "sync_every": (COUNT,),
        "outer": (OneOf(("nesterov", "momentum")),),
        "outer_learning_rate": (POSITIVE,),
        "outer_momentum": (BELOW_ONE,),
        "n_shards": (OneOf(("auto",)), COUNT),
    }

    def __init__(
        self,
        sync_every: int = 200,
        *,
        outer: str = "nesterov",
        outer_learning_rate: float = 0.7,
        outer_momentum: float = 0.9,
        n_shards: int | str = "auto",
    ) -> None:
        self.sync_every = sync_every
        self.outer = outer
        self.outer_learning_rate = outer_learning_rate
        self.outer_momentum = outer_momentum
        self.n_shards = n_shards

    def epoch_seconds(
        self,
        n_rows: int,
        n_workers: int,
        *,
        step_seconds: float,
        n_parameters: int,
        batch_size: int = 200,
        n_slots: int = 2,
        round_seconds: float = ROUND_SECONDS,
        bytes_per_second: float = BYTES_PER_SECOND,
    ) -> float:
        """Return about how long an epoch takes on a cluster with a shard for each worker.

        The rounds of an epoch, times the seconds of a round: its steps, its messages, and the weights of all shards
        with the vectors of the optimizer, which go through the scheduler to the workers and back. Compare it with one
        machine, ``n_rows / batch_size * step_seconds``.

        Parameters
        ----------
        n_rows, n_workers : int
        step_seconds : float
            Seconds of a step on one worker; ``history_`` of a short local fit shows them.
        n_parameters : int
        batch_size : int, default=200
        n_slots : int, default=2
            Vectors of the optimizer: 2 for Adam and AdamW, 1 for momentum, 0 for SGD.
        round_seconds : float
            Seconds of the messages of a round.
        bytes_per_second : float
            Bytes that pass the scheduler in a second.
        """
        check_parameters(self, self.valid)
        for name, count in {"n_rows": n_rows, "n_workers": n_workers, "batch_size": batch_size}.items():
            if count < 1:
                raise ValueError(f"{name} must be an int >= 1, got {count!r}.")
        steps = n_rows / (n_workers * batch_size)
        rounds = max(1.0, steps / self.sync_every)
        moved = n_workers * 2 * 4 * n_parameters * (1 + n_slots)  # float32, to the workers and back
        return steps * step_seconds + rounds * (round_seconds + moved / bytes_per_second)


def weighted_mean(arrays: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    """Return the mean of arrays of the shards in float64; that of one, or of equal ones, is exact."""
    first = np.asarray(arrays[0], np.float64)
    total = float(sum(weights))
    change = np.zeros_like(first)
    for array, weight in zip(arrays[1:], weights[1:], strict=True):
        change += (array - first) * (weight / total)
    return first + change


def outer_step(
    averaging: LocalSGD, start: np.ndarray, mean: np.ndarray, velocity: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the common weights after a round that began with ``start``, and the velocity; all are of float64.

    With rate 1 and no momentum, the weights are ``mean`` to the bit.
    """
    rate, momentum = float(averaging.outer_learning_rate), float(averaging.outer_momentum)
    gradient = start - mean
    velocity = momentum * velocity + gradient
    step = gradient + momentum * velocity if averaging.outer == "nesterov" else velocity
    # start - rate * step, written so that a mean is not rounded by a difference from a weight of another size
    return mean + (gradient - rate * step), velocity

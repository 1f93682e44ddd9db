"""The base class of the schedules, and the progress of a run that they read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from .._support.components import Component

PUBLIC = "onnxtrain_sklearn.schedules"
"""The module by which pickles name the schedules."""


@dataclass
class Progress:
    """How far a training run has come; schedules read it, only the trainer writes it.

    Attributes
    ----------
    step : int
        Optimizer steps taken.
    epoch : int
        Epochs completed.
    samples : int
        Rows seen, as of the end of the last epoch (scikit-learn's ``t_``).
    total_steps : int or None
        Step at which the plan ends that ``max_iter`` epochs make, when known.
    plateaus : int
        Times that training went ``n_iter_no_change`` epochs without improving by ``tol``.
    """

    __module__ = PUBLIC

    step: int = 0
    epoch: int = 0
    samples: int = 0
    total_steps: int | None = None
    plateaus: int = 0


class Schedule(Component, ABC):
    """Base class of the schedules; derive from it to write your own.

    Examples
    --------
    >>> from onnxtrain_sklearn.schedules import Progress, Schedule
    >>> class Halving(Schedule):
    ...     def __init__(self, every=100):
    ...         self.every = every
    ...     def factor(self, progress):
    ...         return 0.5 ** (progress.step // self.every)
    >>> Halving().factor(Progress(step=250))
    0.25
    """

    __module__ = PUBLIC

    @abstractmethod
    def factor(self, progress: Progress) -> float:
        """Return what the initial value is multiplied with in the coming step (dimensionless, >= 0)."""

    def stops_at_plateau(self, progress: Progress, learning_rate_init: float) -> bool:
        """Whether training ends at the plateau just counted in ``progress``; a schedule that goes on returns False."""
        return True

    def finished(self, progress: Progress) -> bool:
        """Whether a plan has come to its end, so that training that ends there has not failed to converge."""
        return False

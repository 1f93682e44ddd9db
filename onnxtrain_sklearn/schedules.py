"""Learning-rate schedules: plain Python functions of the progress of a run.

A schedule returns a *factor*; the learning rate of a step is ``learning_rate_init * factor``. It keeps no state:
everything it may depend on is in :class:`Progress`, which the trainer advances and which travels with a pickle.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from sklearn.base import BaseEstimator

from .exceptions import nearest


@dataclass(slots=True)
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
        Steps that ``max_iter`` epochs take, when known.
    plateaus : int
        Times that training went ``n_iter_no_change`` epochs without improving by ``tol``.
    """

    step: int = 0
    epoch: int = 0
    samples: int = 0
    total_steps: int | None = None
    plateaus: int = 0


class Schedule(BaseEstimator, ABC):
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

    @abstractmethod
    def factor(self, progress: Progress) -> float:
        """Return what the initial learning rate is multiplied with in the coming step (dimensionless, >= 0)."""

    def stops_at_plateau(self, progress: Progress, learning_rate_init: float) -> bool:
        """Whether training ends at the plateau just counted; a schedule that goes on from there returns False."""
        return True


class Constant(Schedule):
    """The learning rate stays at ``learning_rate_init``."""

    def factor(self, progress: Progress) -> float:
        return 1.0


SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant,
}


def resolve_schedule(schedule: str | Schedule) -> Schedule:
    """Return the schedule object that a name or an object stands for."""
    if isinstance(schedule, Schedule):
        return schedule
    if not isinstance(schedule, str):
        raise TypeError(f"learning_rate must be a name or a Schedule object, got {type(schedule).__name__}.")
    if schedule not in SCHEDULES:
        raise ValueError(f"Unknown learning_rate {schedule!r}.{nearest(schedule, SCHEDULES)}")
    return SCHEDULES[schedule]()

"""Schedules of the learning rate, of weight decay and of dropout: plain Python functions of the progress of a run.

A schedule returns a *factor*: the learning rate of a step is ``learning_rate_init * factor``. It keeps no state:
everything it may depend on is in :class:`Progress`, which the trainer advances and which travels with a pickle.
The loop asks for a factor at every step, so a factor is a few arithmetic operations: parameters are
checked beforehand, by :func:`resolve_schedule`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from ._schedules.annealing import Cosine as Cosine
from ._schedules.annealing import CosineLog as CosineLog
from ._schedules.annealing import FlatCosine as FlatCosine
from ._schedules.annealing import Linear as Linear
from ._schedules.annealing import OneCycle as OneCycle
from ._schedules.base import Progress as Progress
from ._schedules.base import Schedule as Schedule
from ._schedules.decay import Adaptive as Adaptive
from ._schedules.decay import Constant as Constant
from ._schedules.decay import Exponential as Exponential
from ._schedules.decay import InverseScaling as InverseScaling
from ._schedules.decay import StepDecay as StepDecay
from ._support.components import registered, resolve
from ._support.rules import COUNT, FRACTION, Rules


class Warmup(Schedule):
    r"""A straight line up to the beginning of another schedule, then that schedule.

    .. math:: (a + (1 - a) t / W) f(0) \text{ for } t < W, \quad f(t - W) \text{ after}

    Parameters
    ----------
    steps : int, default=100
        W, at least 1. The other schedule counts its steps from there, and has that many fewer in all.
    schedule : str or Schedule, default="constant"
        f, the other schedule; its parameters are tunable as ``schedule__NAME`` when it is an object.
    start : float, default=0.0
        a, in [0, 1]. With 0 the first step leaves the parameters as they are.

    Examples
    --------
    >>> from onnxtrain_sklearn.schedules import Cosine, Progress, Warmup
    >>> schedule = Warmup(steps=10, schedule=Cosine(total_steps=100))
    >>> [schedule.factor(Progress(step=t)) for t in (0, 5, 10, 110)]
    [0.0, 0.5, 1.0, 0.0]
    """

    name = "warmup"
    valid: ClassVar[Rules] = {"steps": (COUNT,), "start": (FRACTION,)}

    def __init__(self, steps: int = 100, schedule: str | Schedule = "constant", start: float = 0.0) -> None:
        self.steps = steps
        self.schedule = schedule
        self.start = start

    def validate(self) -> None:
        super().validate()
        resolve_schedule(self.schedule)

    def factor(self, progress: Progress) -> float:
        factor = self._inner().factor(self._after(progress))
        if progress.step >= self.steps:
            return factor
        return (self.start + (1.0 - self.start) * progress.step / self.steps) * factor

    def stops_at_plateau(self, progress: Progress, learning_rate_init: float) -> bool:
        return self._inner().stops_at_plateau(self._after(progress), learning_rate_init)

    def finished(self, progress: Progress) -> bool:
        return self._inner().finished(self._after(progress))

    def _inner(self) -> Schedule:
        return SCHEDULES[self.schedule]() if isinstance(self.schedule, str) else self.schedule

    def _after(self, progress: Progress) -> Progress:
        """Return ``progress`` as the other schedule sees it."""
        total = None if progress.total_steps is None else max(progress.total_steps - self.steps, 1)
        return replace(progress, step=max(progress.step - self.steps, 0), total_steps=total)


SCHEDULES: dict[str, type[Schedule]] = registered(Schedule, vars())
"""The schedules above, by name."""


def resolve_schedule(schedule: str | Schedule, role: str = "learning_rate") -> Schedule:
    """Return the schedule that a name or an object stands for, its parameters validated; errors name the ``role``."""
    return resolve(role, schedule, SCHEDULES, Schedule)

"""Schedules of the learning rate, of weight decay and of dropout: plain Python functions of the progress of a run.

A schedule returns a *factor*: the learning rate of a step is ``learning_rate_init * factor``. It keeps no state:
everything it may depend on is in :class:`Progress`, which the trainer advances and which travels with a pickle.
The loop asks for a factor at every step, so a factor is a few arithmetic operations: parameters are
checked beforehand, by :func:`resolve_schedule`.
"""

from __future__ import annotations

from dataclasses import replace
from numbers import Real
from typing import ClassVar

from ._schedules.annealing import Cosine, CosineLog, FlatCosine, Linear, OneCycle
from ._schedules.base import Progress, Schedule
from ._support.components import resolve
from ._support.rules import COUNT, FRACTION, NOT_NEGATIVE, Range, Rules

__all__ = [
    "SCHEDULES",
    "Adaptive",
    "Constant",
    "Cosine",
    "CosineLog",
    "Exponential",
    "FlatCosine",
    "InverseScaling",
    "Linear",
    "OneCycle",
    "Progress",
    "Schedule",
    "StepDecay",
    "Warmup",
    "resolve_schedule",
]

_GAMMA = Range(Real, 0, 1, closed="right")


class Constant(Schedule):
    """The learning rate stays at ``learning_rate_init``.

    Examples
    --------
    >>> from onnxtrain_sklearn.schedules import Constant, Progress
    >>> Constant().factor(Progress(step=1000))
    1.0
    """

    def factor(self, progress: Progress) -> float:
        return 1.0


class InverseScaling(Schedule):
    r"""The learning rate falls with the number n of rows seen, epoch by epoch: :math:`(n + 1)^{-p}`.

    It is ``learning_rate="invscaling"`` of scikit-learn's MLP, and as steep: a factor of 0.03 after 1000 rows.

    Parameters
    ----------
    power : float, default=0.5
        p, in [0, inf).

    Examples
    --------
    >>> from onnxtrain_sklearn.schedules import InverseScaling, Progress
    >>> InverseScaling().factor(Progress(samples=99))
    0.1
    """

    valid: ClassVar[Rules] = {"power": (NOT_NEGATIVE,)}

    def __init__(self, power: float = 0.5) -> None:
        self.power = power

    def factor(self, progress: Progress) -> float:
        return float(1.0 / (progress.samples + 1) ** self.power)


class Adaptive(Schedule):
    r"""The learning rate is divided at every plateau: :math:`d^{-k}` after k plateaus.

    Training ends at the first plateau at which the rate is at most ``min_rate``. With the defaults it
    is ``learning_rate="adaptive"`` of scikit-learn's MLP.

    Parameters
    ----------
    divisor : float, default=5.0
        d, in (1, inf).
    min_rate : float, default=1e-6
        A learning rate, in [0, inf): not a factor.

    Examples
    --------
    >>> from onnxtrain_sklearn.schedules import Adaptive, Progress
    >>> Adaptive().factor(Progress(plateaus=1))
    0.2
    """

    valid: ClassVar[Rules] = {
        "divisor": (Range(Real, 1, closed="neither"),),
        "min_rate": (NOT_NEGATIVE,),
    }

    def __init__(self, divisor: float = 5.0, min_rate: float = 1e-6) -> None:
        self.divisor = divisor
        self.min_rate = min_rate

    def factor(self, progress: Progress) -> float:
        return self.divisor**-progress.plateaus

    def stops_at_plateau(self, progress: Progress, learning_rate_init: float) -> bool:
        # The rate that led to the plateau just counted decides, not the one that would follow.
        return learning_rate_init * self.divisor ** (1 - progress.plateaus) <= self.min_rate


class StepDecay(Schedule):
    r"""The learning rate is multiplied with γ every so many steps: :math:`γ^{⌊t / s⌋}` after t steps.

    Parameters
    ----------
    step_size : int, default=1000
        s, in steps, at least 1.
    gamma : float, default=0.1
        γ, in (0, 1].

    Examples
    --------
    >>> from onnxtrain_sklearn.schedules import Progress, StepDecay
    >>> StepDecay(step_size=10, gamma=0.5).factor(Progress(step=25))
    0.25
    """

    valid: ClassVar[Rules] = {"step_size": (COUNT,), "gamma": (_GAMMA,)}

    def __init__(self, step_size: int = 1000, gamma: float = 0.1) -> None:
        self.step_size = step_size
        self.gamma = gamma

    def factor(self, progress: Progress) -> float:
        return self.gamma ** (progress.step // self.step_size)


class Exponential(Schedule):
    r"""The learning rate is multiplied with γ after each step: :math:`γ^t` after t steps.

    Parameters
    ----------
    gamma : float, default=0.999
        γ, in (0, 1]; 0.999 halves the rate every 693 steps.

    Examples
    --------
    >>> from onnxtrain_sklearn.schedules import Exponential, Progress
    >>> Exponential(gamma=0.5).factor(Progress(step=2))
    0.25
    """

    valid: ClassVar[Rules] = {"gamma": (_GAMMA,)}

    def __init__(self, gamma: float = 0.999) -> None:
        self.gamma = gamma

    def factor(self, progress: Progress) -> float:
        return self.gamma**progress.step


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


SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant,
    "invscaling": InverseScaling,
    "adaptive": Adaptive,
    "step": StepDecay,
    "exponential": Exponential,
    "cosine": Cosine,
    "linear": Linear,
    "flat_cos": FlatCosine,
    "coslog4": CosineLog,
    "one_cycle": OneCycle,
    "warmup": Warmup,
}


def resolve_schedule(schedule: str | Schedule, role: str = "learning_rate") -> Schedule:
    """Return the schedule that a name or an object stands for, its parameters validated; errors name the ``role``."""
    return resolve(role, schedule, SCHEDULES, Schedule)

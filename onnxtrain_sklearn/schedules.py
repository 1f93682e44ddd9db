"""Schedules of learning rate, weight decay and dropout, their base class and their registry.

Derive from :class:`Schedule` to write your own; :func:`resolve_schedule` finds one by its name.

A schedule returns a *factor*: the learning rate of a step is ``learning_rate_init * factor``. It has no state. All that
a factor may depend on is in :class:`Progress`, which the trainer updates and pickles include. The loop computes a
factor in every step, so computing it must be fast; :func:`resolve_schedule` checks parameters beforehand.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import cos, log2, pi
from numbers import Integral, Real
from typing import ClassVar

from ._utils.params import (
    BELOW_ONE,
    COUNT,
    FRACTION,
    NOT_NEGATIVE,
    Component,
    Range,
    Rules,
    registered,
    resolve,
    with_texts,
)

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

# The base class of the schedules, and the progress of a run that they read.


PUBLIC = "onnxtrain_sklearn.schedules"
"""The module by which pickles refer to the schedules."""


@dataclass
class Progress:
    """Progress of a training run, which the trainer updates and schedules read.

    Attributes
    ----------
    step : int
        Optimizer steps taken.
    epoch : int
        Epochs completed.
    samples : int
        Rows trained on until the end of the last epoch (scikit-learn's ``t_``).
    total_steps : int or None
        Number of steps after which ``max_iter`` epochs will have ended; None if it is not known.
    plateaus : int
        Number of times that training went ``n_iter_no_change`` epochs without improving by ``tol``.
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
        """Return the factor by which the initial value is multiplied in the next step (dimensionless, >= 0)."""

    def stops_at_plateau(self, progress: Progress, learning_rate_init: float) -> bool:
        """Return True if training must stop at the plateau that ``progress.plateaus`` has just counted."""
        return True

    def finished(self, progress: Progress) -> bool:
        """Return True if all planned steps were taken, so that training may end without a ConvergenceWarning."""
        return False


# Schedules over a known number of steps.


ENTRIES = {
    "total_steps": """\
total_steps : int or None, default=None
    T, the number of steps over all calls of ``fit`` and ``partial_fit``, at least 1. None: the steps of ``max_iter``
    epochs for each ``fit``, or ``max_iter`` times the steps of the first ``partial_fit``. After T steps the factor is
    ``final``.""",
    "final": """\
final : float, default=0.0
    f, in [0, inf).""",
}
"""Docstring entries of parameters that several schedules share."""


class Planned(Schedule):
    """A schedule over a known number of steps."""

    valid: ClassVar[Rules] = {"total_steps": (COUNT, None)}
    total_steps: int | None

    def finished(self, progress: Progress) -> bool:
        return progress.step >= total_steps_of(self, self.total_steps, progress)


class Annealing(Planned):
    """A schedule from the factor 1 to a final factor, over a known number of steps."""

    valid: ClassVar[Rules] = {**Planned.valid, "final": (NOT_NEGATIVE,)}

    def __init__(self, total_steps: int | None = None, final: float = 0.0) -> None:
        self.total_steps = total_steps
        self.final = final

    def factor(self, progress: Progress) -> float:
        total = total_steps_of(self, self.total_steps, progress)
        return self._factor_within(progress.step, total) if progress.step < total else float(self.final)

    @abstractmethod
    def _factor_within(self, step: int, total: int) -> float:
        """Return the factor at ``step``, which is less than the number of steps ``total``."""


@with_texts(**ENTRIES)
class Cosine(Annealing):
    r"""Half a cosine from 1 down to the final factor f: :math:`f + (1 - f)(1 + \cos(π t / T)) / 2`.

    It has no restarts, like ``torch.optim.lr_scheduler.CosineAnnealingLR`` up to step T.

    Parameters
    ----------
    {total_steps}
    {final}

    References
    ----------
    Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts", ICLR 2017.

    Examples
    --------
    >>> from onnxtrain_sklearn.schedules import Cosine, Progress
    >>> Cosine(total_steps=100).factor(Progress(step=100))
    0.0
    """

    name = "cosine"

    def _factor_within(self, step: int, total: int) -> float:
        return _cosine(1.0, self.final, step / total)


# It has no name in the registry, because SnapshotEnsemble makes it for the steps of one training.
class Restarts(Schedule):
    """Cycles of half a cosine from 1 down to 0, each of which ends at a given step.

    Parameters
    ----------
    start : int
        The first step of the first half cosine.
    ends : sequence of int
        The step at which each half cosine ends.

    References
    ----------
    Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts", ICLR 2017.
    """

    def __init__(self, start: int, ends: Sequence[int]) -> None:
        self.start = start
        self.ends = ends

    def factor(self, progress: Progress) -> float:
        number = bisect_right(self.ends, progress.step)
        if number == len(self.ends):
            return 0.0
        begun = self.ends[number - 1] if number else self.start
        return _cosine(1.0, 0.0, (progress.step - begun) / (self.ends[number] - begun))

    def finished(self, progress: Progress) -> bool:
        return progress.step >= self.ends[-1]


@with_texts(**ENTRIES)
class Linear(Annealing):
    r"""A straight line from 1 to the final factor f: :math:`1 + (f - 1) t / T`.

    Parameters
    ----------
    {total_steps}
    {final}

    Examples
    --------
    >>> from onnxtrain_sklearn.schedules import Linear, Progress
    >>> Linear(total_steps=100).factor(Progress(step=25))
    0.75
    """

    name = "linear"

    def _factor_within(self, step: int, total: int) -> float:
        return 1.0 + (self.final - 1.0) * step / total


@with_texts(**ENTRIES)
class FlatCosine(Annealing):
    r"""Constant at first, then half a cosine from 1 down to the final factor f.

    .. math:: 1 \text{ for } t < sT, \quad f + (1 - f)(1 + \cos(π (t - sT) / (T - sT))) / 2 \text{ after}

    Parameters
    ----------
    {total_steps}
    {final}
    flat : float, default=0.5
        s, the fraction of the steps in which the factor is 1, in [0, 1).

    References
    ----------
    Holzmüller, Grinsztajn and Steinwart, "Better by default: strong pre-tuned MLPs and boosted trees on tabular data",
    NeurIPS 2024: the schedule of dropout and weight decay.

    Examples
    --------
    >>> from onnxtrain_sklearn.schedules import FlatCosine, Progress
    >>> [round(FlatCosine(total_steps=100).factor(Progress(step=t)), 3) for t in (0, 50, 75, 100)]
    [1.0, 1.0, 0.5, 0.0]
    """

    name = "flat_cos"
    valid: ClassVar[Rules] = {**Annealing.valid, "flat": (BELOW_ONE,)}

    def __init__(self, total_steps: int | None = None, final: float = 0.0, flat: float = 0.5) -> None:
        super().__init__(total_steps, final)
        self.flat = flat

    def _factor_within(self, step: int, total: int) -> float:
        start = self.flat * total
        return 1.0 if step < start else _cosine(1.0, self.final, (step - start) / (total - start))


class CosineLog(Planned):
    r"""Cycles from 0 to 1 and back to 0, each twice as long as the cycle before.

    .. math:: \left(1 - \cos(2π \log_2(1 + (2^c - 1) t / T))\right) / 2

    High learning rates alternate with low ones, and training ends with a long decrease to 0.

    Parameters
    ----------
    total_steps : int or None, default=None
        T, the number of steps over all calls of ``fit`` and ``partial_fit``, at least 1. None: the steps of
        ``max_iter`` epochs for each ``fit``, or ``max_iter`` times the steps of the first ``partial_fit``. After T
        steps the factor is 0.
    cycles : int, default=4
        c, the number of cycles, from 1 to 50.

    References
    ----------
    Holzmüller, Grinsztajn and Steinwart, "Better by default: strong pre-tuned MLPs and boosted trees on tabular data",
    NeurIPS 2024: the schedule of the learning rate.

    Examples
    --------
    >>> from onnxtrain_sklearn.schedules import CosineLog, Progress
    >>> [round(CosineLog(total_steps=30).factor(Progress(step=t)), 3) for t in (0, 2, 6, 14, 30)]
    [0.0, 0.0, 0.0, 0.0, 0.0]
    >>> round(CosineLog(total_steps=30).factor(Progress(step=1)), 2)
    0.93
    """

    name = "coslog4"  # the published name, for four cycles, the default
    valid: ClassVar[Rules] = {**Planned.valid, "cycles": (Range(Integral, 1, 50, closed="both"),)}

    def __init__(self, total_steps: int | None = None, cycles: int = 4) -> None:
        self.total_steps = total_steps
        self.cycles = cycles

    def factor(self, progress: Progress) -> float:
        step = progress.step
        total = total_steps_of(self, self.total_steps, progress)
        if step >= total:
            return 0.0
        return (1.0 - cos(2.0 * pi * log2(1.0 + (2.0**self.cycles - 1.0) * step / total))) / 2.0


@with_texts(**ENTRIES)
class OneCycle(Planned):
    r"""Half a cosine up from a low rate to ``learning_rate_init``, then half a cosine down to a much lower rate.

    It is ``torch.optim.lr_scheduler.OneCycleLR`` with cosine annealing: ``learning_rate_init`` is its ``max_lr``. The
    factor is 1 at step :math:`w T - 1` and ``final`` from step :math:`T - 1`.

    Parameters
    ----------
    {total_steps}
    warmup_fraction : float, default=0.3
        w, the fraction of the steps in which the rate rises, in [0, 1).
    initial : float, default=0.04
        Factor of the first step, in [0, inf): 1 / ``div_factor``.
    final : float, default=4e-6
        Factor of the last step, in [0, inf): 1 / ``div_factor`` / ``final_div_factor``.

    References
    ----------
    Smith and Topin, "Super-convergence: very fast training of neural networks using large learning rates", 2018.

    Examples
    --------
    >>> from onnxtrain_sklearn.schedules import OneCycle, Progress
    >>> [round(OneCycle(total_steps=10).factor(Progress(step=t)), 2) for t in range(10)]
    [0.04, 0.52, 1.0, 0.95, 0.81, 0.61, 0.39, 0.19, 0.05, 0.0]
    """

    name = "one_cycle"

    valid: ClassVar[Rules] = {
        **Planned.valid,
        "warmup_fraction": (BELOW_ONE,),
        "initial": (NOT_NEGATIVE,),
        "final": (NOT_NEGATIVE,),
    }

    def __init__(
        self, total_steps: int | None = None, warmup_fraction: float = 0.3, initial: float = 0.04, final: float = 4e-6
    ) -> None:
        self.total_steps = total_steps
        self.warmup_fraction = warmup_fraction
        self.initial = initial
        self.final = final

    def factor(self, progress: Progress) -> float:
        step = progress.step
        total = total_steps_of(self, self.total_steps, progress)
        # PyTorch counts T steps from 0 to T - 1
        top = self.warmup_fraction * total - 1.0
        end = total - 1.0
        if step >= end:
            return float(self.final)
        if step < top:
            return _cosine(self.initial, 1.0, step / top)
        return _cosine(1.0, self.final, (step - top) / (end - top))


def total_steps_of(schedule: Schedule, own: int | None, progress: Progress) -> int:
    """Return the number of steps of a schedule: ``own``, or that of the training run if ``own`` is None."""
    total = progress.total_steps if own is None else own
    if total is None:
        raise ValueError(f"{schedule!r} does not know how many steps training takes: give total_steps.")
    return total


def _cosine(start: float, end: float, fraction: float) -> float:
    """Return the value at ``fraction`` of half a cosine from ``start`` to ``end``."""
    return end + (start - end) * (1.0 + cos(pi * fraction)) / 2.0


# Schedules without a planned number of steps.


_GAMMA = Range(Real, 0, 1, closed="right")


class Constant(Schedule):
    """The learning rate stays at ``learning_rate_init``.

    Examples
    --------
    >>> from onnxtrain_sklearn.schedules import Constant, Progress
    >>> Constant().factor(Progress(step=1000))
    1.0
    """

    name = "constant"

    def factor(self, progress: Progress) -> float:
        return 1.0


class InverseScaling(Schedule):
    r"""The learning rate falls after each epoch with the number n of rows trained on: :math:`(n + 1)^{-p}`.

    It is ``learning_rate="invscaling"`` of scikit-learn's MLP, and falls as fast: the factor is 0.03 after 1000 rows.

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

    name = "invscaling"
    valid: ClassVar[Rules] = {"power": (NOT_NEGATIVE,)}

    def __init__(self, power: float = 0.5) -> None:
        self.power = power

    def factor(self, progress: Progress) -> float:
        return float(1.0 / (progress.samples + 1) ** self.power)


class Adaptive(Schedule):
    r"""The learning rate is divided by d at every plateau: :math:`d^{-k}` after k plateaus.

    Training ends at the first plateau at which the learning rate is at most ``min_rate``. With the defaults it is
    ``learning_rate="adaptive"`` of scikit-learn's MLP.

    Parameters
    ----------
    divisor : float, default=5.0
        d, in (1, inf).
    min_rate : float, default=1e-6
        The learning rate (not a factor) at which training ends, in [0, inf).

    Examples
    --------
    >>> from onnxtrain_sklearn.schedules import Adaptive, Progress
    >>> Adaptive().factor(Progress(plateaus=1))
    0.2
    """

    name = "adaptive"
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
        # progress already counts the new plateau, but the rate before the plateau decides
        return learning_rate_init * self.divisor ** (1 - progress.plateaus) <= self.min_rate


class StepDecay(Schedule):
    r"""The learning rate is multiplied by γ every s steps: :math:`γ^{⌊t / s⌋}` after t steps.

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

    name = "step"
    valid: ClassVar[Rules] = {"step_size": (COUNT,), "gamma": (_GAMMA,)}

    def __init__(self, step_size: int = 1000, gamma: float = 0.1) -> None:
        self.step_size = step_size
        self.gamma = gamma

    def factor(self, progress: Progress) -> float:
        return self.gamma ** (progress.step // self.step_size)


class Exponential(Schedule):
    r"""The learning rate is multiplied by γ after each step: :math:`γ^t` after t steps.

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

    name = "exponential"
    valid: ClassVar[Rules] = {"gamma": (_GAMMA,)}

    def __init__(self, gamma: float = 0.999) -> None:
        self.gamma = gamma

    def factor(self, progress: Progress) -> float:
        return self.gamma**progress.step


# Warmup before another schedule, and the registry.


class Warmup(Schedule):
    r"""A straight line up to the initial factor of another schedule, then that schedule.

    .. math:: (a + (1 - a) t / W) f(0) \text{ for } t < W, \quad f(t - W) \text{ after}

    Parameters
    ----------
    steps : int, default=100
        W, the number of warmup steps, at least 1. The other schedule starts after them. If its length is that of
        training, it is shortened by W steps.
    schedule : str or Schedule, default="constant"
        f, the other schedule. If it is an object, its parameters are tunable as ``schedule__NAME``.
    start : float, default=0.0
        a, the initial factor, in [0, 1]. With 0, the first step does not change the parameters.

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
        # Make the object in each step, because the parameter must remain the given name; this takes a microsecond.
        return SCHEDULES[self.schedule]() if isinstance(self.schedule, str) else self.schedule

    def _after(self, progress: Progress) -> Progress:
        """Return ``progress`` without the warmup steps, for the other schedule."""
        total = None if progress.total_steps is None else max(progress.total_steps - self.steps, 1)
        return replace(progress, step=max(progress.step - self.steps, 0), total_steps=total)


SCHEDULES: dict[str, type[Schedule]] = registered(Schedule, vars())
"""The schedules above, by name."""


def resolve_schedule(schedule: str | Schedule, role: str = "learning_rate") -> Schedule:
    """Return the schedule for a name or an object, with validated parameters; errors name the parameter ``role``."""
    return resolve(role, schedule, SCHEDULES, Schedule)

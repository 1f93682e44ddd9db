"""Schedules over a known number of steps."""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from math import cos, log2, pi
from numbers import Integral
from typing import ClassVar

from .._support.declared import with_texts
from .._support.rules import BELOW_ONE, COUNT, NOT_NEGATIVE, Range, Rules
from .base import Progress, Schedule

ENTRIES = {
    "total_steps": """\
total_steps : int or None, default=None
    T, at least 1, in steps of all calls of ``fit`` and ``partial_fit`` together. None: ``max_iter`` epochs of each
    ``fit``, or ``max_iter`` times the steps of the first ``partial_fit``. From there on the factor stays at
    ``final``.""",
    "final": """\
final : float, default=0.0
    f, in [0, inf).""",
}
"""Entries of the documentation that several schedules share."""


class Planned(Schedule):
    """A schedule over all steps."""

    valid: ClassVar[Rules] = {"total_steps": (COUNT, None)}
    total_steps: int | None

    def finished(self, progress: Progress) -> bool:
        return progress.step >= total_steps_of(self, self.total_steps, progress)


class Annealing(Planned):
    """A schedule from 1 to a final factor over all steps."""

    valid: ClassVar[Rules] = {**Planned.valid, "final": (NOT_NEGATIVE,)}

    def __init__(self, total_steps: int | None = None, final: float = 0.0) -> None:
        self.total_steps = total_steps
        self.final = final

    def factor(self, progress: Progress) -> float:
        total = total_steps_of(self, self.total_steps, progress)
        return self._factor_within(progress.step, total) if progress.step < total else float(self.final)

    @abstractmethod
    def _factor_within(self, step: int, total: int) -> float:
        """Return the factor at a step before the last."""


@with_texts(**ENTRIES)
class Cosine(Annealing):
    r"""Half a cosine from 1 down to the final factor f: :math:`f + (1 - f)(1 + \cos(π t / T)) / 2`.

    Without restarts, as ``torch.optim.lr_scheduler.CosineAnnealingLR`` up to T.

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


class Restarts(Schedule):
    """Half a cosine from 1 down to 0 up to each of several steps, after which it starts again.

    Parameters
    ----------
    start : int
        The step that the first one begins with.
    ends : sequence of int
        The steps up to which they last.

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
        s, the part of the steps in which the factor stays at 1, in [0, 1).

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
    r"""Cycles from 0 to 1 and back, each twice as long as the one before.

    .. math:: \left(1 - \cos(2π \log_2(1 + (2^c - 1) t / T))\right) / 2

    High rates alternate with low ones, and training ends in a long descent to 0.

    Parameters
    ----------
    total_steps : int or None, default=None
        T, at least 1, in steps of all calls of ``fit`` and ``partial_fit`` together. None: ``max_iter`` epochs of each
        ``fit``, or ``max_iter`` times the steps of the first ``partial_fit``. From there on the factor stays at 0.
    cycles : int, default=4
        c, from 1 to 50.

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

    name = "coslog4"
    valid: ClassVar[Rules] = {**Planned.valid, "cycles": (Range(Integral, 1, 50, closed="both"),)}

    def __init__(self, total_steps: int | None = None, cycles: int = 4) -> None:
        self.total_steps = total_steps
        self.cycles = cycles

    def factor(self, progress: Progress) -> float:
        step, total = progress.step, total_steps_of(self, self.total_steps, progress)
        if step >= total:
            return 0.0
        return (1.0 - cos(2.0 * pi * log2(1.0 + (2.0**self.cycles - 1.0) * step / total))) / 2.0


@with_texts(**ENTRIES)
class OneCycle(Planned):
    r"""Half a cosine up from a low learning rate to ``learning_rate_init``, then one down to a far lower rate.

    It is ``torch.optim.lr_scheduler.OneCycleLR`` with cosine annealing: ``learning_rate_init`` is its ``max_lr``, the
    top is reached at step :math:`w T - 1` and the end at step :math:`T - 1`.

    Parameters
    ----------
    {total_steps}
    warmup_fraction : float, default=0.3
        w, the part of the steps in which the rate rises, in [0, 1).
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
        step, total = progress.step, total_steps_of(self, self.total_steps, progress)
        top, end = self.warmup_fraction * total - 1.0, total - 1.0
        if step >= end:
            return float(self.final)
        if step < top:
            return _cosine(self.initial, 1.0, step / top)
        return _cosine(1.0, self.final, (step - top) / (end - top))


def total_steps_of(schedule: Schedule, own: int | None, progress: Progress) -> int:
    total = progress.total_steps if own is None else own
    if total is None:
        raise ValueError(f"{schedule!r} does not know how many steps training takes: give total_steps.")
    return total


def _cosine(start: float, end: float, fraction: float) -> float:
    """Return the point of half a cosine from ``start`` to ``end``."""
    return end + (start - end) * (1.0 + cos(pi * fraction)) / 2.0

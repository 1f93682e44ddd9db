"""Schedules without a planned number of steps."""

from __future__ import annotations

from numbers import Real
from typing import ClassVar

from .._support.rules import COUNT, NOT_NEGATIVE, Range, Rules
from .base import Progress, Schedule

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

    name = "invscaling"
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

    name = "step"
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

    name = "exponential"
    valid: ClassVar[Rules] = {"gamma": (_GAMMA,)}

    def __init__(self, gamma: float = 0.999) -> None:
        self.gamma = gamma

    def factor(self, progress: Progress) -> float:
        return self.gamma**progress.step

"""Losses for counts and amounts, which are not negative: deviances with a log link."""

from __future__ import annotations

from numbers import Real
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from .._model.links import Link
from .._utils.params import Range, Rules
from ..graph import GraphBuilder
from .base import ExponentialLoss, require_targets


class Poisson(ExponentialLoss):
    r"""Poisson deviance of counts, :math:`e^s - y s`; the prediction is :math:`e^s`.

    Half the deviance, up to a term in :math:`y` alone; the definition of ``torch.nn.PoissonNLLLoss``.
    The targets must not be negative.

    References
    ----------
    P. McCullagh and J. A. Nelder, "Generalized Linear Models", second edition, 1989, chapter 6.
    """

    name = "poisson"

    def check_targets(self, y: np.ndarray) -> None:
        require_targets(self, y, y >= 0, "not negative")

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        return op.Sub(op.Exp(scores), op.Mul(y, scores))


class Gamma(ExponentialLoss):
    r"""Gamma deviance of positive amounts, :math:`s + y e^{-s}`; the prediction is :math:`e^s`.

    Half the deviance, up to a term in :math:`y` alone; the definition of scikit-learn's ``HalfGammaLoss``.
    The targets must be positive.

    References
    ----------
    P. McCullagh and J. A. Nelder, "Generalized Linear Models", second edition, 1989, chapter 8.
    """

    name = "gamma"

    def check_targets(self, y: np.ndarray) -> None:
        require_targets(self, y, y > 0, "positive")

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        return op.Add(scores, op.Mul(y, op.Exp(op.Neg(scores))))


class Tweedie(ExponentialLoss):
    r"""Tweedie deviance of amounts that are often zero, such as insurance claims; the prediction is :math:`e^s`.

    :math:`e^{(2 - p) s} / (2 - p) - y e^{(1 - p) s} / (1 - p)`: half the deviance of a distribution whose variance is
    the p-th power of its mean, but for a term of :math:`y` alone; the definition of scikit-learn's ``HalfTweedieLoss``.
    At p = 1 and p = 2 the loss is its limit, :class:`Poisson` or :class:`Gamma`. The targets must not be negative;
    for p >= 2 they must be positive.

    Parameters
    ----------
    power : float, default=1.5
        p, at least 1.

    References
    ----------
    B. Jørgensen, "Exponential dispersion models", Journal of the Royal Statistical Society B 49, 1987.

    Examples
    --------
    >>> from onnxtrain_sklearn.losses import Tweedie
    >>> Tweedie(power=1.9)
    Tweedie(power=1.9)
    """

    name = "tweedie"
    valid: ClassVar[Rules] = {"power": (Range(Real, 1),)}

    def __init__(self, power: float = 1.5) -> None:
        self.power = power

    def check_targets(self, y: np.ndarray) -> None:
        zeros = self.power < 2
        require_targets(self, y, y >= 0 if zeros else y > 0, "not negative" if zeros else "positive")

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        if self.power in (1, 2):
            return (Poisson() if self.power == 1 else Gamma())(op, scores, y, link)
        first, second = 1.0 - float(self.power), 2.0 - float(self.power)
        exponent = op.Mul(op.Mul(scores, op.Sign(y)), first)  # 0 for y = 0: 0 · exp(100) would be NaN in float32
        term = op.Mul(op.Mul(y, op.Exp(exponent)), -1.0 / first)
        return op.Add(op.Mul(op.Exp(op.Mul(scores, second)), 1.0 / second), term)

"""Losses for regression."""

from __future__ import annotations

from numbers import Real
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from .._graph.builder import GraphBuilder
from .._graph.links import Link, TargetScaling, Task
from .._graph.loss_terms import quadratic_then_linear
from .._support.rules import FRACTION, POSITIVE, Range, Rules
from .base import Loss


class _RegressionLoss(Loss):
    tasks = frozenset({"regression"})
    target_scaling: ClassVar[TargetScaling | None] = "standard"


class _ExponentialLoss(_RegressionLoss):
    target_scaling = "mean"

    def link(self, task: Task) -> Link:
        return "exp"


class SquaredError(_RegressionLoss):
    r"""Squared error, :math:`(s - y)^2`, without a factor of one half.

    The definition of ``torch.nn.MSELoss``, onnxruntime's ``MSELoss`` and :func:`sklearn.metrics.mean_squared_error`.
    """

    name = "squared_error"

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        residual = op.Sub(scores, y)
        return op.Mul(residual, residual)


class AbsoluteError(_RegressionLoss):
    r"""Absolute error, :math:`|s - y|`; its minimum is the conditional median.

    The subgradient at :math:`s = y` is 0. The definition of ``torch.nn.L1Loss`` and
    :func:`sklearn.metrics.mean_absolute_error`.
    """

    name = "absolute_error"

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        return op.Abs(op.Sub(scores, y))


class Huber(_RegressionLoss):
    r"""Squared error for small residuals, absolute error for large ones.

    With :math:`r = s - y`, :math:`r^2 / 2` where :math:`|r| \le \delta`, else :math:`\delta (|r| - \delta / 2)`.
    The definition of ``torch.nn.HuberLoss``.

    Parameters
    ----------
    delta : float, default=1.0
        Residual at which the quadratic part ends, positive, in the unit of the targets that are trained on: standard
        deviations of ``y`` where the estimator scales them (``target_scaling``).

    References
    ----------
    P. J. Huber, "Robust estimation of a location parameter", Annals of Mathematical Statistics 35, 1964.
    """

    name = "huber"
    valid: ClassVar[Rules] = {"delta": (POSITIVE,)}

    def __init__(self, delta: float = 1.0) -> None:
        self.delta = delta

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        return op.Mul(quadratic_then_linear(op, op.Abs(op.Sub(scores, y)), float(self.delta)), 0.5)


class Quantile(_RegressionLoss):
    r"""Pinball loss; its minimum is the conditional quantile.

    :math:`q (y - s)` where :math:`y \ge s`, else :math:`(1 - q) (s - y)`. The definition of
    :func:`sklearn.metrics.mean_pinball_loss`. The subgradient at :math:`s = y` is :math:`1/2 - q`.

    Parameters
    ----------
    quantile : float, default=0.5
        The quantile :math:`q` to estimate, in (0, 1). 0.5 is half the absolute error.

    References
    ----------
    R. Koenker and G. Bassett, "Regression quantiles", Econometrica 46, 1978.

    Examples
    --------
    >>> from onnxtrain_sklearn import OrtGradientRegressor
    >>> from onnxtrain_sklearn.losses import Quantile
    >>> OrtGradientRegressor(loss=Quantile(0.9))
    OrtGradientRegressor(loss=Quantile(quantile=0.9))
    """

    name = "quantile"
    valid: ClassVar[Rules] = {"quantile": (Range(Real, 0, 1, closed="neither"),)}

    def __init__(self, quantile: float = 0.5) -> None:
        self.quantile = quantile

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        residual = op.Sub(scores, y)
        half = op.Mul(op.Abs(residual), 0.5)
        return half if self.quantile == 0.5 else op.Add(half, op.Mul(residual, 0.5 - float(self.quantile)))


class Poisson(_ExponentialLoss):
    r"""Poisson deviance of counts, :math:`e^s - y s`; the prediction is :math:`e^s`.

    Half the deviance but for a term of :math:`y` alone; the definition of ``torch.nn.PoissonNLLLoss``.
    The targets must not be negative.

    References
    ----------
    P. McCullagh and J. A. Nelder, "Generalized Linear Models", second edition, 1989, chapter 6.
    """

    name = "poisson"

    def check_targets(self, y: np.ndarray) -> None:
        _require_targets(self, y, y >= 0, "not negative")

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        return op.Sub(op.Exp(scores), op.Mul(y, scores))


class Gamma(_ExponentialLoss):
    r"""Gamma deviance of positive amounts, :math:`s + y e^{-s}`; the prediction is :math:`e^s`.

    Half the deviance but for a term of :math:`y` alone; the definition of scikit-learn's ``HalfGammaLoss``.
    The targets must be positive.

    References
    ----------
    P. McCullagh and J. A. Nelder, "Generalized Linear Models", second edition, 1989, chapter 8.
    """

    name = "gamma"

    def check_targets(self, y: np.ndarray) -> None:
        _require_targets(self, y, y > 0, "positive")

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        return op.Add(scores, op.Mul(y, op.Exp(op.Neg(scores))))


class Tweedie(_ExponentialLoss):
    r"""Tweedie deviance of amounts of which many are zero, such as insurance claims; the prediction is :math:`e^s`.

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
        _require_targets(self, y, y >= 0 if zeros else y > 0, "not negative" if zeros else "positive")

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        if self.power in (1, 2):
            return (Poisson() if self.power == 1 else Gamma())(op, scores, y, link)
        first, second = 1.0 - float(self.power), 2.0 - float(self.power)
        exponent = op.Mul(op.Mul(scores, op.Sign(y)), first)  # y = 0 has no such term: 0 · exp(100) is NaN
        term = op.Mul(op.Mul(y, op.Exp(exponent)), -1.0 / first)
        return op.Add(op.Mul(op.Exp(op.Mul(scores, second)), 1.0 / second), term)


class LogCosh(_RegressionLoss):
    r"""Smooth absolute error, :math:`\log \cosh r` with :math:`r = s - y`.

    Near :math:`r^2 / 2` for small residuals and :math:`|r| - \log 2` for large ones. Computed as
    :math:`r + \mathrm{softplus}(-2 r) - \log 2`, which does not overflow.
    """

    name = "log_cosh"

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        residual = op.Sub(scores, y)
        return op.Add(residual, op.Sub(op.Softplus(op.Mul(residual, -2.0)), float(np.log(2.0))))


class Elastic(_RegressionLoss):
    r"""Mixture of absolute and squared error, :math:`\rho |r| + (1 - \rho) r^2` with :math:`r = s - y`.

    Parameters
    ----------
    l1_ratio : float, default=0.5
        Share :math:`\rho` of the absolute error, in [0, 1]. 0 is the squared error, 1 the absolute error.
    """

    name = "elastic"
    valid: ClassVar[Rules] = {"l1_ratio": (FRACTION,)}

    def __init__(self, l1_ratio: float = 0.5) -> None:
        self.l1_ratio = l1_ratio

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        residual, l1_ratio = op.Sub(scores, y), float(self.l1_ratio)
        squares = op.Mul(op.Mul(residual, residual), 1.0 - l1_ratio)
        return op.Add(op.Mul(op.Abs(residual), l1_ratio), squares)


def _require_targets(loss: Loss, y: np.ndarray, valid: np.ndarray, expected: str) -> None:
    if not np.all(valid):
        raise ValueError(
            f"{type(loss).__name__} needs targets that are {expected}, got {np.count_nonzero(~valid)} of {np.size(y)} "
            f"that are not, the smallest {np.min(y)}. Check y, or use a loss for targets of any sign: 'squared_error'."
        )

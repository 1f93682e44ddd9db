"""Losses for numbers of any sign, of their errors."""

from __future__ import annotations

from numbers import Real
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from .._model.links import Link
from .._model.loss_terms import quadratic_then_linear
from .._utils.params import FRACTION, NOT_NEGATIVE, POSITIVE, Range, Rules
from ..graph import GraphBuilder
from .base import RegressionLoss


class SquaredError(RegressionLoss):
    r"""Squared error, :math:`(s - y)^2`, without a factor of one half.

    The definition of ``torch.nn.MSELoss``, onnxruntime's ``MSELoss`` and :func:`sklearn.metrics.mean_squared_error`.
    """

    name = "squared_error"
    judged_by = "score"

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        residual = op.Sub(scores, y)
        return op.Mul(residual, residual)


class Reconstruction(SquaredError):
    r"""Squared error of the rows of ``X`` themselves, :math:`(s - x)^2`: the network is an autoencoder.

    ``fit(X)`` takes no ``y``, and ignores one, as transformers do. ``predict`` returns the rows that the network makes
    of ``X``, ``transform`` the narrowest hidden layer, and ``score(X)`` is the R² of the rows. A network that is built
    learns columns that are scaled to the same deviation (``target_scaling``), so that each counts as much.

    Notes
    -----
    For :class:`~onnxtrain_sklearn.OrtGradientRegressor`, on numbers in memory that are not sparse.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from onnxtrain_sklearn import MLP, OrtGradientRegressor
    >>> X, _ = load_digits(return_X_y=True)
    >>> net = OrtGradientRegressor(MLP((32, 8, 32)), loss="reconstruction", tol=0.1, random_state=0).fit(X)
    >>> net.predict(X).shape, net.transform(X).shape
    ((1797, 64), (1797, 8))
    """

    name = "reconstruction"


def reconstructs(loss: object) -> bool:
    """Return True if the targets of a loss are the rows of X themselves."""
    return loss == Reconstruction.name if isinstance(loss, str) else isinstance(loss, Reconstruction)


class AbsoluteError(RegressionLoss):
    r"""Absolute error, :math:`|s - y|`; its minimum is the conditional median.

    The subgradient at :math:`s = y` is 0. The definition of ``torch.nn.L1Loss`` and
    :func:`sklearn.metrics.mean_absolute_error`.
    """

    name = "absolute_error"

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        return op.Abs(op.Sub(scores, y))


class Huber(RegressionLoss):
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


class Quantile(RegressionLoss):
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
        # |r| / 2 plus a slope: one form for both sides of the kink, where Where would take two.
        half = op.Mul(op.Abs(residual), 0.5)
        return half if self.quantile == 0.5 else op.Add(half, op.Mul(residual, 0.5 - float(self.quantile)))


class LogCosh(RegressionLoss):
    r"""Smooth absolute error, :math:`\log \cosh r` with :math:`r = s - y`.

    Near :math:`r^2 / 2` for small residuals and :math:`|r| - \log 2` for large ones. Computed as
    :math:`r + \mathrm{softplus}(-2 r) - \log 2`, which does not overflow.
    """

    name = "log_cosh"

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        residual = op.Sub(scores, y)
        return op.Add(residual, op.Sub(op.Softplus(op.Mul(residual, -2.0)), float(np.log(2.0))))


class Elastic(RegressionLoss):
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
        residual = op.Sub(scores, y)
        l1_ratio = float(self.l1_ratio)
        squares = op.Mul(op.Mul(residual, residual), 1.0 - l1_ratio)
        return op.Add(op.Mul(op.Abs(residual), l1_ratio), squares)


class EpsilonInsensitive(RegressionLoss):
    r"""Absolute error beyond a margin, :math:`\max(0, |r| - \epsilon)` with :math:`r = s - y`, or its square.

    The loss of support vector regression. The subgradient at :math:`|r| = \epsilon` is 0.

    Parameters
    ----------
    epsilon : float, default=0.1
        The margin within which errors do not count, not negative, in the unit of the targets that are trained on, as
        ``delta`` of :class:`Huber`.
    squared : bool, default=False
        Whether to square the loss.

    References
    ----------
    A. J. Smola and B. Schölkopf, "A tutorial on support vector regression", Statistics and Computing 14, 2004.
    """

    name = "epsilon_insensitive"
    valid: ClassVar[Rules] = {"epsilon": (NOT_NEGATIVE,), "squared": (bool,)}

    def __init__(self, epsilon: float = 0.1, *, squared: bool = False) -> None:
        self.epsilon = epsilon
        self.squared = squared

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        beyond = op.Relu(op.Sub(op.Abs(op.Sub(scores, y)), float(self.epsilon)))
        return op.Mul(beyond, beyond) if self.squared else beyond

"""Losses that learn more than one number of each target: location and scale, mean and dispersion, quantiles.

A target has several scores, in blocks: the first block holds the locations, which are the predictions, the next ones
the further parameters (:meth:`.Loss.n_scores`). :meth:`.Loss.further_predictions` emits these for the inference graph,
and :meth:`DistributionLoss.distribution` makes a distribution of SciPy from them.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from .._model.links import Link, TargetScaling, Task
from .._utils.params import POSITIVE, Levels, Rules
from ..graph import GraphBuilder
from .base import FurtherPrediction, RegressionLoss, require_targets


def blocks(op: GraphBuilder, scores: ir.Value, count: int) -> list[ir.Value]:
    """Emit the ``count`` blocks of columns of the scores, of equal width."""
    shape = op.shape(scores)
    assert shape is not None
    width = int(str(shape[1])) // count
    return [op.Slice(scores, [i * width], [(i + 1) * width], [1]) for i in range(count)]


def mean_over_members(op: GraphBuilder, values: ir.Value) -> ir.Value:
    """Emit the mean (N, k) of values (N, m, k)."""
    return op.ReduceMean(values, axes=[1], keepdims=False)


class DistributionLoss(RegressionLoss):
    """A negative log-likelihood: the graph learns a distribution of each target, whose parameters depend on the row.

    An ensemble predicts the distribution of the same family with the mean and the variance of the mixture of its
    members: by the law of total variance, the mean of their variances plus the variance of their means.
    """

    def n_scores(self, task: Task, n_targets: int) -> int:
        return 2 * n_targets

    @abstractmethod
    def distribution(self, location: np.ndarray, further: np.ndarray) -> Any:
        """Return the frozen distribution of SciPy with these parameters.

        Parameters
        ----------
        location : ndarray of shape (n,) or (n, k)
            What ``predict`` returns, in the unit of the targets.
        further : ndarray of the same shape
            What :meth:`further_predictions` emits, in the unit of the targets.
        """


class _LocationAndScale(DistributionLoss):
    """A loss of the location and the scale of each target."""

    valid: ClassVar[Rules] = {"min_scale": (POSITIVE,)}
    squared_scales: ClassVar[float]
    """The variance, divided by the square of the scale."""

    def __init__(self, min_scale: float = 1e-3) -> None:
        self.min_scale = min_scale

    def location_and_scale(self, op: GraphBuilder, scores: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Emit location and scale of each target, (N, k) each, in the unit of the targets that are trained on."""
        location, raw = blocks(op, scores, 2)
        return location, op.Add(op.Softplus(raw), float(self.min_scale))

    def further_predictions(self, op: GraphBuilder, scores: ir.Value) -> Mapping[str, FurtherPrediction]:
        return {"scale": FurtherPrediction([self.location_and_scale(op, scores)[1]], "scale")}

    def of_members(self, op: GraphBuilder, predictions: ir.Value, values: Sequence[ir.Value]) -> Sequence[ir.Value]:
        (scale,) = values
        unit = op.ReduceMax(scale, axes=[1], keepdims=True)  # squares in this unit do not overflow
        own = op.Div(scale, unit)
        apart = op.Div(op.Sub(predictions, op.ReduceMean(predictions, axes=[1], keepdims=True)), unit)
        squares = op.Add(op.Mul(own, own), op.Mul(op.Mul(apart, apart), 1.0 / self.squared_scales))
        return [op.Mul(op.Sqrt(mean_over_members(op, squares)), op.Squeeze(unit, axes=[1]))]


class GaussianNLL(_LocationAndScale):
    r"""Negative log-likelihood of a normal distribution whose mean and standard deviation depend on the row.

    :math:`\log \sigma + (y - \mu)^2 / (2 \sigma^2)`, without the constant :math:`\log(2 \pi) / 2`, as
    ``torch.nn.GaussianNLLLoss``. Each target has two scores: :math:`\mu`, which ``predict`` returns, and :math:`t`,
    with :math:`\sigma = \mathrm{softplus}(t) + \sigma_{\min}`.

    Parameters
    ----------
    min_scale : float, default=1e-3
        Least standard deviation :math:`\sigma_{\min}`, positive, in the unit of the targets that are trained on:
        standard deviations of ``y`` where the estimator scales them (``target_scaling``). Without it, the likelihood of
        rows that are fitted exactly has no bound.

    References
    ----------
    D. A. Nix and A. S. Weigend, "Estimating the mean and variance of the target probability distribution", ICNN 1994.

    B. Lakshminarayanan, A. Pritzel, C. Blundell, "Simple and scalable predictive uncertainty estimation using deep
    ensembles", NeurIPS 2017, for the softplus.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from onnxtrain_sklearn import Linear, OrtGradientRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> net = OrtGradientRegressor(Linear(), loss="gaussian_nll", optimizer="lbfgs", tol=1e-3).fit(X, y)
    >>> net.predict(X).shape, net.score(X, y) > 0.5
    ((442,), True)
    """

    name = "gaussian_nll"
    squared_scales = 1.0

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        location, scale = self.location_and_scale(op, scores)
        standardized = op.Div(op.Sub(location, y), scale)
        return op.Add(op.Log(scale), op.Mul(op.Mul(standardized, standardized), 0.5))

    def distribution(self, location: np.ndarray, further: np.ndarray) -> Any:
        from scipy import stats

        return stats.norm(loc=location, scale=further)


class LaplaceNLL(_LocationAndScale):
    r"""Negative log-likelihood of a Laplace distribution whose median and scale depend on the row.

    :math:`\log b + |y - m| / b`, without the constant :math:`\log 2`: an absolute error that learns how large it is.
    Each target has two scores: the median :math:`m`, which ``predict`` returns, and :math:`t`, with
    :math:`b = \mathrm{softplus}(t) + b_{\min}`. The subgradient at :math:`m = y` is 0.

    Parameters
    ----------
    min_scale : float, default=1e-3
        Least scale :math:`b_{\min}`, positive, in the unit of the targets that are trained on, as of
        :class:`GaussianNLL`.

    References
    ----------
    A. Kendall and Y. Gal, "What uncertainties do we need in Bayesian deep learning for computer vision?", NeurIPS 2017,
    section 3.
    """

    name = "laplace_nll"
    squared_scales = 2.0

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        location, scale = self.location_and_scale(op, scores)
        return op.Add(op.Log(scale), op.Div(op.Abs(op.Sub(location, y)), scale))

    def distribution(self, location: np.ndarray, further: np.ndarray) -> Any:
        from scipy import stats

        return stats.laplace(loc=location, scale=further)


LEAST_MEAN = float(np.finfo(np.float32).tiny)
"""Lower bound of the mean of an ensemble, which may round to 0."""


class _MeanAndDispersion(DistributionLoss):
    """A loss of the mean, with a log link, and the dispersion of each target."""

    target_scaling: ClassVar[TargetScaling | None] = None
    valid: ClassVar[Rules] = {"min_dispersion": (POSITIVE,)}

    def __init__(self, min_dispersion: float = 1e-3) -> None:
        self.min_dispersion = min_dispersion

    def link(self, task: Task) -> Link:
        return "exp"

    def log_mean_and_dispersion(self, op: GraphBuilder, scores: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Emit the logarithm of the mean, and the dispersion, of each target, (N, k) each."""
        log_mean, raw = blocks(op, scores, 2)
        return log_mean, op.Add(op.Softplus(raw), float(self.min_dispersion))

    def further_predictions(self, op: GraphBuilder, scores: ir.Value) -> Mapping[str, FurtherPrediction]:
        return {"dispersion": FurtherPrediction([self.log_mean_and_dispersion(op, scores)[1]], "none")}

    def of_members(self, op: GraphBuilder, predictions: ir.Value, values: Sequence[ir.Value]) -> Sequence[ir.Value]:
        # The dispersion is (variance - v) / mean², where v is the mean (NB2) or 0 (gamma).
        (dispersion,) = values
        mean = op.Max(op.ReduceMean(predictions, axes=[1], keepdims=True), LEAST_MEAN)
        ratio = op.Div(predictions, mean)
        apart = op.Sub(ratio, 1.0)
        return [mean_over_members(op, op.Add(op.Mul(dispersion, op.Mul(ratio, ratio)), op.Mul(apart, apart)))]


class NegativeBinomial(_MeanAndDispersion):
    r"""Negative log-likelihood of counts that vary more than Poisson counts; the prediction is the mean :math:`e^s`.

    The variance is :math:`\mu + \alpha \mu^2` (NB2). Each target has two scores: :math:`s = \log \mu`, and :math:`t`,
    with :math:`\alpha = \mathrm{softplus}(t) + \alpha_{\min}`, so that the dispersion depends on the row. With
    :math:`r = 1 / \alpha` the loss is

    .. math:: \log \Gamma(r) - \log \Gamma(y + r) + (y + r) \log(\mu + r) - r \log r - y s + y \log y - y,

    the negative logarithm of the probability without :math:`\log y! - y \log y + y`, which depends on :math:`y` alone.
    The targets must not be negative; they keep their unit.

    Parameters
    ----------
    min_dispersion : float, default=1e-3
        Least dispersion :math:`\alpha_{\min}`, positive; at 0 the counts are those of Poisson.

    References
    ----------
    J. M. Hilbe, "Negative Binomial Regression", second edition, 2011, chapter 8.

    M. Abramowitz and I. A. Stegun, "Handbook of Mathematical Functions", 1964, 6.1.41, for the series of
    :math:`\log \Gamma`.

    Examples
    --------
    >>> import numpy as np
    >>> from onnxtrain_sklearn import Linear, OrtGradientRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.integers(2, size=(2000, 1)).astype(float)
    >>> y = rng.negative_binomial(2, 2 / (2 + np.where(X[:, 0] == 1, 6, 3)))
    >>> net = OrtGradientRegressor(Linear(), loss="negative_binomial", optimizer="lbfgs", tol=1e-3).fit(X, y)
    >>> net.predict([[0.0], [1.0]]).round()
    array([3., 6.])
    """

    name = "negative_binomial"
    starts_at_mean = True

    def check_targets(self, y: np.ndarray) -> None:
        require_targets(self, y, y >= 0, "not negative")

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        log_mean, dispersion = self.log_mean_and_dispersion(op, scores)
        r = op.Div(1.0, dispersion)
        total = op.Add(y, r)
        # Stirling's formula turns both logarithms of gamma into terms of which the large ones cancel before they are
        # computed: y log((mu + r) / mu) - y log((y + r) / y) + r log((mu + r) / (y + r)).
        beyond_mean = op.Softplus(op.Sub(op.Log(r), log_mean))
        counted = op.Max(y, 1e-30)
        fit = op.Mul(y, op.Sub(beyond_mean, op.Sub(op.Log(op.Add(counted, r)), op.Log(counted))))
        log_mean_and_r = op.Add(op.Log(r), op.Softplus(op.Sub(log_mean, op.Log(r))))
        fit = op.Add(fit, op.Mul(r, op.Sub(log_mean_and_r, op.Log(total))))
        spread = op.Mul(op.Sub(op.Log(total), op.Log(r)), 0.5)
        return op.Add(op.Add(fit, spread), op.Sub(_stirling_rest(op, r), _stirling_rest(op, total)))

    def distribution(self, location: np.ndarray, further: np.ndarray) -> Any:
        from scipy import stats

        return stats.nbinom(n=1 / further, p=1 / (1 + further * location))


class GammaNLL(_MeanAndDispersion):
    r"""Negative log-likelihood of a gamma distribution whose mean and dispersion depend on the row.

    The variance is :math:`\phi \mu^2`. Each target has two scores: :math:`s = \log \mu`, whose exponential ``predict``
    returns, and :math:`t`, with :math:`\phi = \mathrm{softplus}(t) + \phi_{\min}`. With the shape
    :math:`k = 1 / \phi` the loss is

    .. math:: k (s + y / \mu - \log y) - k \log k + \log \Gamma(k),

    the negative logarithm of the density without :math:`\log y`. :class:`Gamma` learns the mean alone, for a dispersion
    that all rows share. The targets must be positive.

    Parameters
    ----------
    min_dispersion : float, default=1e-3
        Least dispersion :math:`\phi_{\min}`, positive.

    References
    ----------
    G. K. Smyth, "Generalized linear models with varying dispersion", Journal of the Royal Statistical Society B 51,
    1989.

    Examples
    --------
    >>> import numpy as np
    >>> from onnxtrain_sklearn import Linear, OrtGradientRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.integers(2, size=(2000, 1)).astype(float)
    >>> y = rng.gamma(4, np.where(X[:, 0] == 1, 6, 3) / 4)
    >>> net = OrtGradientRegressor(Linear(), loss="gamma_nll", optimizer="lbfgs", tol=1e-3).fit(X, y)
    >>> net.predict([[0.0], [1.0]]).round()
    array([3., 6.])
    """

    name = "gamma_nll"
    target_scaling = "mean"

    def check_targets(self, y: np.ndarray) -> None:
        require_targets(self, y, y > 0, "positive")

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        log_mean, dispersion = self.log_mean_and_dispersion(op, scores)
        k = op.Div(1.0, dispersion)
        log_ratio = op.Sub(op.Log(op.Max(y, 1e-30)), log_mean)  # the targets of padding rows are 0
        ratio = op.Exp(op.Sub(log_ratio, op.Log(dispersion)))  # times k; finite where the ratio itself is not
        # Stirling's formula for the logarithm of gamma: k log k cancels before it is computed.
        deviance = op.Sub(ratio, op.Mul(k, op.Add(log_ratio, 1.0)))
        return op.Sub(op.Add(deviance, _stirling_rest(op, k)), op.Mul(op.Log(op.Div(k, 2 * math.pi)), 0.5))

    def distribution(self, location: np.ndarray, further: np.ndarray) -> Any:
        from scipy import stats

        return stats.gamma(a=1 / further, scale=location * further)


def _stirling_rest(op: GraphBuilder, z: ir.Value) -> ir.Value:
    """Emit ``log gamma(z) - ((z - 1/2) log z - z + log(2 pi) / 2)`` for z > 0, to float32 precision.

    Above 5 it is the first terms of Stirling's series. Below, ``rest(z) = rest(z + 1) + (z + 1/2) log(1 + 1 / z) - 1``
    leads there; far above, that difference would be lost to rounding.
    """

    def series(z: ir.Value) -> ir.Value:
        inverse = op.Div(1.0, z)
        square = op.Mul(inverse, inverse)
        return op.Mul(inverse, op.Add(op.Mul(square, op.Add(op.Mul(square, 1 / 1260), -1 / 360)), 1 / 12))

    first = small = op.Min(z, 5.0)
    steps: ir.Value | None = None
    for _ in range(5):
        above = op.Add(small, 1.0)
        step = op.Sub(op.Mul(op.Add(small, 0.5), op.Log(op.Div(above, small))), 1.0)
        steps = step if steps is None else op.Add(steps, step)
        small = above
    assert steps is not None
    return op.Where(op.Less(first, 5.0), op.Add(steps, series(small)), series(op.Max(z, 5.0)))


class Quantiles(RegressionLoss):
    r"""Pinball losses of several quantiles that do not cross; ``predict`` returns the median.

    The mean over the quantiles of the loss of :class:`Quantile`. Each target has a score for each quantile: the first
    is the median, the others are the steps from one quantile to the next, which a softplus makes positive, in the order
    of the quantiles: :math:`v_{i+1} = v_i + \mathrm{softplus}(t_{i+1})` above the median, and
    :math:`v_i = v_{i+1} - \mathrm{softplus}(t_i)` below. An ensemble predicts the means of the quantiles of its
    members, which do not cross either.

    Parameters
    ----------
    quantiles : sequence of float, default=(0.1, 0.5, 0.9)
        The quantiles to estimate, increasing, in (0, 1), 0.5 among them.

    References
    ----------
    R. Koenker and G. Bassett, "Regression quantiles", Econometrica 46, 1978.

    Y. Park, D. Maddix, F.-X. Aubet, K. Kan, J. Gasthaus, Y. Wang, "Learning quantile functions without quantile
    crossing for distribution-free time series forecasting", AISTATS 2022, for the steps.

    Examples
    --------
    >>> from onnxtrain_sklearn import OrtGradientRegressor
    >>> from onnxtrain_sklearn.losses import Quantiles
    >>> OrtGradientRegressor(loss=Quantiles([0.05, 0.5, 0.95]))
    OrtGradientRegressor(loss=Quantiles(quantiles=[0.05, 0.5, 0.95]))
    """

    name = "quantiles"
    valid: ClassVar[Rules] = {"quantiles": (Levels(),)}

    def __init__(self, quantiles: Sequence[float] = (0.1, 0.5, 0.9)) -> None:
        self.quantiles = quantiles

    def n_scores(self, task: Task, n_targets: int) -> int:
        return len(self.quantiles) * n_targets

    def values(self, op: GraphBuilder, scores: ir.Value) -> list[ir.Value]:
        """Emit the quantiles of each target, (N, k) each, in increasing order."""
        levels = [float(level) for level in self.quantiles]
        middle = levels.index(0.5)
        median, *steps = blocks(op, scores, len(levels))
        below, above = [median], [median]
        for step in reversed(steps[:middle]):
            below.append(op.Sub(below[-1], op.Softplus(step)))
        for step in steps[middle:]:
            above.append(op.Add(above[-1], op.Softplus(step)))
        return [*below[:0:-1], *above]

    def further_predictions(self, op: GraphBuilder, scores: ir.Value) -> Mapping[str, FurtherPrediction]:
        return {"quantiles": FurtherPrediction(self.values(op, scores), "location")}

    def of_members(self, op: GraphBuilder, predictions: ir.Value, values: Sequence[ir.Value]) -> Sequence[ir.Value]:
        return [mean_over_members(op, value) for value in values]

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        total = None
        for level, value in zip(self.quantiles, self.values(op, scores), strict=True):
            residual = op.Sub(value, y)
            loss = op.Mul(op.Abs(residual), 0.5)
            if level != 0.5:
                loss = op.Add(loss, op.Mul(residual, 0.5 - float(level)))
            total = loss if total is None else op.Add(total, loss)
        assert total is not None
        return op.Mul(total, 1.0 / len(self.quantiles))

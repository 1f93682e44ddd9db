"""Losses as ONNX subgraphs, and their registry.

Derive from :class:`Loss` to write your own; :data:`LOSSES` names the losses, and :func:`resolve_loss` finds one.

A loss is written for one minibatch: scores and targets of shape (N, k) go in, a matrix (N, k) or a column (N, 1)
of losses comes out. :func:`append_loss` turns it into the scalar that is differentiated, the weighted mean over
rows of the plain mean over a row's columns, ``sum_i w_i mean_j l_ij / sum_i w_i``, so that a row of weight zero
changes nothing. Losses see the scores before the final activation (logits, log-means): the *link* names that
activation, and :func:`apply_link` emits it for prediction. No gradient is written by hand; the operators used are
those that every gradient engine has proven, in forms whose derivative is a subgradient at the kinks too: a model that
starts at zero has scores of exactly 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from numbers import Real
from typing import ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import onnx_ir as ir

from ._model.links import LINKS as LINKS
from ._model.links import Link as Link
from ._model.links import TargetScaling as TargetScaling
from ._model.links import Task as Task
from ._model.links import apply_link as apply_link
from ._model.links import row_sum
from ._model.loss_terms import append_loss as append_loss
from ._model.loss_terms import append_pairwise_loss as append_pairwise_loss
from ._model.loss_terms import append_penalty as append_penalty
from ._model.loss_terms import class_log_odds, margin, quadratic_then_linear
from ._utils.params import BELOW_ONE, FRACTION, NOT_NEGATIVE, POSITIVE, Component, Range, Rules, registered, resolve
from .graph import GraphBuilder

__all__ = [
    "LINKS",
    "LOSSES",
    "AbsoluteError",
    "Elastic",
    "EpsilonInsensitive",
    "Focal",
    "Gamma",
    "Hinge",
    "Huber",
    "Link",
    "LogCosh",
    "LogLoss",
    "Loss",
    "LossBlock",
    "ModifiedHuber",
    "Poisson",
    "Quantile",
    "SquaredError",
    "SquaredHinge",
    "TargetScaling",
    "Task",
    "Tweedie",
    "append_loss",
    "append_pairwise_loss",
    "append_penalty",
    "apply_link",
    "resolve_loss",
]

# The base class of the losses.


class Loss(Component, ABC):
    """Base class of the losses; derive from it to write your own.

    Override ``__call__`` to emit the loss of every row. No gradient is needed: the gradient engine differentiates
    the operators. Constructor parameters are stored verbatim, as scikit-learn requires, and are then tunable
    as ``loss__NAME``.

    Attributes
    ----------
    tasks : frozenset of {"regression", "binary", "multiclass", "multilabel"}
        What the loss can be used for.
    target_scaling : {"standard", "mean"} or None
        How regression targets may be scaled for training (``target_scaling="auto"`` of the estimator). "standard": to
        mean 0 and standard deviation 1, for losses whose minimum moves with the unit of the targets. "mean": to mean
        1, for those with a log link. None, the default: the loss takes them in their own unit.
    judged_by : {"loss", "score"}
        How the weights of a regressor are judged on validation data, by early stopping and by fine-tuning with
        ``X_val``. "loss", the default: by this loss, which is right for any. "score": by R², which is right for the
        squared error alone.

    Notes
    -----
    A loss must be finite for every finite score: a row of weight zero is a product with 0, and 0 times infinity is NaN.
    Where the loss of a row depends on the other rows of the minibatch, a short minibatch is trained as it is.
    At a kink the derivatives of ``Abs`` and ``Relu`` are 0.

    Examples
    --------
    >>> from onnxtrain_sklearn.losses import Loss
    >>> class FourthPower(Loss):
    ...     def __call__(self, op, scores, y, link):
    ...         squared = op.Mul(op.Sub(scores, y), op.Sub(scores, y))
    ...         return op.Mul(squared, squared)
    >>> FourthPower()
    FourthPower()
    """

    __module__ = "onnxtrain_sklearn.losses"  # the path by which pickles name it
    tasks: ClassVar[frozenset[Task]] = frozenset({"regression", "binary", "multiclass", "multilabel"})
    target_scaling: ClassVar[TargetScaling | None] = None
    judged_by: ClassVar[Literal["loss", "score"]] = "loss"

    @abstractmethod
    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        """Emit the loss of every row and output.

        Parameters
        ----------
        op : GraphBuilder
            Emits operators: ``op.Sub(scores, y)``.
        scores : value of shape (N, k)
            The model's output before its final activation.
        y : value of shape (N, k), of the type of ``scores``
            Targets: numbers for regression; 0 or 1 for classification (one column for a binary problem on one
            score, one-hot rows for several classes, indicators for several labels).
        link : str
            The function that makes predictions of the scores: "identity", "exp", "sigmoid", "softmax", ...

        Returns
        -------
        value of shape (N, k) or (N, 1)
        """

    def of_labels(self, op: GraphBuilder, scores: ir.Value, labels: ir.Value) -> ir.Value | None:
        """Emit the loss (N, 1) of every row from its class index, ``labels`` (N,).

        It saves the memory that one-hot rows of many classes take. Return None, as the default does, if the loss needs
        these rows.
        """
        return None

    def link(self, task: Task) -> Link:
        """Return the function that turns scores into predictions for ``task``, "identity" unless overridden."""
        return "identity"

    def check_targets(self, y: np.ndarray) -> None:
        """Raise ValueError where the loss is not defined for the targets ``y``; every number is allowed by default."""


# Losses for classification: two classes, several classes, several labels.


class _ClassificationLoss(Loss):
    tasks = frozenset({"binary", "multiclass", "multilabel"})


class _LikelihoodLoss(_ClassificationLoss):
    def link(self, task: Task) -> Link:
        return "softmax" if task == "multiclass" else "sigmoid"


class LogLoss(_LikelihoodLoss):
    r"""Negative log-likelihood of the labels, also known as cross-entropy.

    With a softmax over the scores :math:`-\sum_k y_k \log \mathrm{softmax}(s)_k`; with a sigmoid of each score
    :math:`\mathrm{softplus}(s) - y s = -y \log \sigma(s) - (1 - y) \log \sigma(-s)`. Both are computed from the logits
    and stay finite for scores of any size. The definition of :func:`sklearn.metrics.log_loss`,
    ``torch.nn.CrossEntropyLoss`` and ``torch.nn.BCEWithLogitsLoss``.

    Parameters
    ----------
    label_smoothing : float, default=0.0
        Share :math:`\varepsilon` of the target that is spread evenly over the classes, in [0, 1): the target is
        :math:`y (1 - \varepsilon) + \varepsilon / K` for K classes, as in ``torch.nn.CrossEntropyLoss``. A sigmoid has
        two classes, 0 and 1; with several labels a row, so has each label.

    References
    ----------
    C. Szegedy et al., "Rethinking the Inception architecture for computer vision", CVPR 2016.

    Examples
    --------
    >>> from onnxtrain_sklearn import OrtGradientClassifier
    >>> from onnxtrain_sklearn.losses import LogLoss
    >>> OrtGradientClassifier(loss=LogLoss(label_smoothing=0.1))
    OrtGradientClassifier(loss=LogLoss(label_smoothing=0.1))
    """

    name = "log_loss"
    valid: ClassVar[Rules] = {"label_smoothing": (BELOW_ONE,)}

    def __init__(self, label_smoothing: float = 0.0) -> None:
        self.label_smoothing = label_smoothing

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        if self.label_smoothing:
            share, shape = float(self.label_smoothing), op.shape(y)
            assert shape is not None
            classes = int(str(shape[-1])) if link == "softmax" else 2
            y = op.Add(op.Mul(y, 1.0 - share), share / classes)
        if link == "softmax":
            return op.Neg(row_sum(op, op.Mul(y, op.LogSoftmax(scores, axis=-1))))
        return op.Sub(op.Softplus(scores), op.Mul(scores, y))

    def of_labels(self, op: GraphBuilder, scores: ir.Value, labels: ir.Value) -> ir.Value:
        log_p, share = op.LogSoftmax(scores, axis=-1), float(self.label_smoothing)
        loss = op.Neg(op.GatherElements(log_p, op.Unsqueeze(labels, axes=[1]), axis=1))
        if not share:
            return loss
        # The smoothed part of the target weighs all log-probabilities equally: their mean, times the share.
        return op.Sub(op.Mul(loss, 1.0 - share), op.Mul(op.ReduceMean(log_p, axes=[-1], keepdims=True), share))


class Hinge(_ClassificationLoss):
    r"""Loss of linear support vector machines, :math:`\max(0, 1 - z)` with the margin :math:`z = (2 y - 1) s`.

    Several classes are trained one against the rest: the mean over the columns. Gives no probabilities. The
    subgradient at :math:`z = 1` is 0.

    References
    ----------
    C. Cortes and V. Vapnik, "Support-vector networks", Machine Learning 20, 1995.
    """

    name = "hinge"

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        return op.Relu(op.Sub(1.0, margin(op, scores, y)))


class SquaredHinge(_ClassificationLoss):
    r"""Square of the hinge loss, :math:`\max(0, 1 - z)^2` with the margin :math:`z = (2 y - 1) s`.

    Several classes are trained one against the rest: the mean over the columns. Gives no probabilities. The
    default of :class:`sklearn.svm.LinearSVC`.
    """

    name = "squared_hinge"

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        missing = op.Relu(op.Sub(1.0, margin(op, scores, y)))
        return op.Mul(missing, missing)


class ModifiedHuber(_ClassificationLoss):
    r"""Squared hinge loss that grows linearly for gross errors, and gives probabilities.

    With the margin :math:`z = (2 y - 1) s`, :math:`\max(0, 1 - z)^2` where :math:`z \ge -1`, else :math:`-4 z`.
    The probability of a label is :math:`(\mathrm{clip}(s, -1, 1) + 1) / 2`. Several classes are trained one against the
    rest, the mean over the columns, and their probabilities normalized. The definition of
    :class:`sklearn.linear_model.SGDClassifier`.

    References
    ----------
    T. Zhang, "Solving large scale linear prediction problems using stochastic gradient descent algorithms", ICML 2004.
    """

    name = "modified_huber"

    def link(self, task: Task) -> Link:
        # Labels are independent of each other; the probabilities of classes must add up to one.
        return "hard_sigmoid" if task == "multilabel" else "clipped_margin"

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        return quadratic_then_linear(op, op.Relu(op.Sub(1.0, margin(op, scores, y))), 2.0)


class Focal(_LikelihoodLoss):
    r"""Log loss that discounts rows predicted well already, :math:`-(1 - p_t)^\gamma \log p_t`.

    :math:`p_t` is the probability of the true class under a softmax, or of the true label under a sigmoid of each
    score. With its log-odds :math:`t` the loss is :math:`e^{-\gamma \mathrm{softplus}(t)} \mathrm{softplus}(-t)`,
    finite for scores of any size and every :math:`\gamma`.

    Parameters
    ----------
    gamma : float, default=2.0
        Strength of the discount, not negative. 0 is the log loss.

    References
    ----------
    T.-Y. Lin, P. Goyal, R. Girshick, K. He, P. Dollár, "Focal loss for dense object detection", ICCV 2017.
    """

    name = "focal"
    valid: ClassVar[Rules] = {"gamma": (NOT_NEGATIVE,)}

    def __init__(self, gamma: float = 2.0) -> None:
        self.gamma = gamma

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        odds = class_log_odds(op, scores, y) if link == "softmax" else margin(op, scores, y)
        discount = op.Exp(op.Mul(op.Softplus(odds), -float(self.gamma)))
        return op.Mul(discount, op.Softplus(op.Neg(odds)))


# Losses for regression.


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
    judged_by = "score"

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
        # |r| / 2 plus a slope: one form for both sides of the kink, where Where would take two.
        half = op.Mul(op.Abs(residual), 0.5)
        return half if self.quantile == 0.5 else op.Add(half, op.Mul(residual, 0.5 - float(self.quantile)))


class Poisson(_ExponentialLoss):
    r"""Poisson deviance of counts, :math:`e^s - y s`; the prediction is :math:`e^s`.

    Half the deviance, up to a term in :math:`y` alone; the definition of ``torch.nn.PoissonNLLLoss``.
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

    Half the deviance, up to a term in :math:`y` alone; the definition of scikit-learn's ``HalfGammaLoss``.
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
        _require_targets(self, y, y >= 0 if zeros else y > 0, "not negative" if zeros else "positive")

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        if self.power in (1, 2):
            return (Poisson() if self.power == 1 else Gamma())(op, scores, y, link)
        first, second = 1.0 - float(self.power), 2.0 - float(self.power)
        exponent = op.Mul(op.Mul(scores, op.Sign(y)), first)  # 0 for y = 0: 0 · exp(100) would be NaN in float32
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


class EpsilonInsensitive(_RegressionLoss):
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


def _require_targets(loss: Loss, y: np.ndarray, valid: np.ndarray, expected: str) -> None:
    if not np.all(valid):
        raise ValueError(
            f"{type(loss).__name__} needs targets that are {expected}, got {np.count_nonzero(~valid)} of {np.size(y)} "
            f"that are not, the smallest {np.min(y)}. Check y, or use a loss for targets of any sign: 'squared_error'."
        )


# The registry of losses.


LOSSES: dict[str, type[Loss]] = registered(Loss, vars())
"""The losses above, by name."""


@runtime_checkable
class LossBlock(Protocol):
    """A source of a loss, given in its place: a block of ``onnxtrain_sklearn.classic.onnxblock``."""

    def as_loss(self, widths: tuple[int, ...] = ()) -> Loss:
        """Return the loss on outputs of a graph that have ``widths`` columns; empty: on one output."""


def resolve_loss(loss: str | Loss | LossBlock, widths: tuple[int, ...] = ()) -> Loss:
    """Return the loss that a name or an object stands for, its parameters validated."""
    if not isinstance(loss, str | Loss | type) and isinstance(loss, LossBlock):
        loss = loss.as_loss(widths)
    return resolve("loss", loss, LOSSES, Loss)

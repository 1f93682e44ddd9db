"""Losses for labels: of two classes, of several classes, of several labels per row."""

from __future__ import annotations

from typing import ClassVar, get_args

import numpy as np
import onnx_ir as ir

from .._model.links import Link, Task, row_sum
from .._model.loss_terms import class_log_odds, margin, quadratic_then_linear
from .._utils.params import BELOW_ONE, NOT_NEGATIVE, OneOf, Rules
from ..graph import GraphBuilder
from .base import ClassificationLoss, LabelKind, LikelihoodLoss


class LogLoss(LikelihoodLoss):
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
    targets : {"labels", "probabilities", "counts"}, default="labels"
        The content of ``y``. Soft labels have a column for each class, in the order of ``classes``, which are 0, 1, ...
        unless ``fit`` names them. "probabilities": rows sum to one. "counts": numbers of observations of each class,
        such as votes; a row weighs as much as their sum. A row of soft labels counts like a row of each class, with the
        class's share as its weight.

    References
    ----------
    C. Szegedy et al., "Rethinking the Inception architecture for computer vision", CVPR 2016.

    G. Hinton, O. Vinyals, J. Dean, "Distilling the knowledge in a neural network", 2015, for soft targets.

    Examples
    --------
    >>> from onnxtrain_sklearn import OrtGradientClassifier
    >>> from onnxtrain_sklearn.losses import LogLoss
    >>> OrtGradientClassifier(loss=LogLoss(label_smoothing=0.1))
    OrtGradientClassifier(loss=LogLoss(label_smoothing=0.1))

    Soft labels: annotators do not agree on the second row.

    >>> soft = OrtGradientClassifier("linear", loss=LogLoss(targets="counts"), optimizer="lbfgs", tol=0.01)
    >>> soft = soft.fit([[0.0], [1.0], [2.0]], [[5, 0], [2, 3], [0, 5]], classes=["cat", "dog"])
    >>> soft.predict([[0.0], [2.0]]).tolist()
    ['cat', 'dog']
    """

    name = "log_loss"
    valid: ClassVar[Rules] = {"label_smoothing": (BELOW_ONE,), "targets": (OneOf(get_args(LabelKind)),)}

    def __init__(self, label_smoothing: float = 0.0, targets: LabelKind = "labels") -> None:
        self.label_smoothing = label_smoothing
        self.targets = targets

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
        log_p = op.LogSoftmax(scores, axis=-1)
        share = float(self.label_smoothing)
        loss = op.Neg(op.GatherElements(log_p, op.Unsqueeze(labels, axes=[1]), axis=1))
        if not share:
            return loss
        # The smoothed part of the target weighs all log-probabilities equally: their mean, times the share.
        return op.Sub(op.Mul(loss, 1.0 - share), op.Mul(op.ReduceMean(log_p, axes=[-1], keepdims=True), share))


class Hinge(ClassificationLoss):
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


class SquaredHinge(ClassificationLoss):
    r"""Square of the hinge loss, :math:`\max(0, 1 - z)^2` with the margin :math:`z = (2 y - 1) s`.

    Several classes are trained one against the rest: the mean over the columns. Gives no probabilities. The
    default of :class:`sklearn.svm.LinearSVC`.
    """

    name = "squared_hinge"

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        missing = op.Relu(op.Sub(1.0, margin(op, scores, y)))
        return op.Mul(missing, missing)


class ModifiedHuber(ClassificationLoss):
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


class Focal(LikelihoodLoss):
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


class Ordinal(LikelihoodLoss):
    r"""Negative log-likelihood of classes in order, by conditional probabilities (CORN).

    K classes have K - 1 scores: :math:`\sigma(s_j)` is the probability that the class is beyond j, given that it is
    j or beyond. So :math:`P(y = c) = (1 - \sigma(s_c)) \prod_{j < c} \sigma(s_j)`, which sums to one, and the loss is
    :math:`-\log P(y = c)`: CORN's loss, but for a factor that depends on the minibatch. The labels must be numbers;
    their sorted order is that of the classes. ``predict`` returns the most probable class, ``decision_function`` the
    log-probabilities. Two classes are those of :class:`LogLoss`.

    References
    ----------
    X. Shi, W. Cao, S. Raschka, "Deep neural networks for rank-consistent ordinal regression based on conditional
    probabilities", 2021 (CORN).

    Examples
    --------
    >>> import numpy as np
    >>> from onnxtrain_sklearn import Linear, OrtGradientClassifier
    >>> X = np.linspace(-1, 1, 60)[:, None]
    >>> stars = np.clip(np.round(2 * X[:, 0] + 3), 1, 5).astype(int)
    >>> net = OrtGradientClassifier(Linear(), loss="ordinal", optimizer="lbfgs", max_iter=50, tol=1e-3).fit(X, stars)
    >>> net.predict([[-1.0], [0.0], [1.0]]).tolist()
    [1, 3, 5]
    """

    name = "ordinal"
    tasks = frozenset({"binary", "multiclass"})

    def link(self, task: Task) -> Link:
        return "ordinal" if task == "multiclass" else "sigmoid"

    def n_scores(self, task: Task, n_targets: int) -> int:
        return n_targets - 1 if task == "multiclass" else n_targets

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        if link == "sigmoid":
            return op.Sub(op.Softplus(scores), op.Mul(scores, y))
        # Of score j: softplus(s) where the class is j or beyond, less s where it is beyond.
        k = int(str((op.shape(y) or (0, 0))[1]))
        reached = op.MatMul(y, np.tril(np.ones((k, k - 1))).astype(op.dtype.numpy()))
        passed = op.MatMul(y, np.tril(np.ones((k, k - 1)), -1).astype(op.dtype.numpy()))
        return row_sum(op, op.Sub(op.Mul(op.Softplus(scores), reached), op.Mul(scores, passed)))


class Dice(LikelihoodLoss):
    r"""Dice loss of each row, :math:`1 - (2 \sum_k p_k y_k + 1) / (\sum_k p_k^2 + \sum_k y_k^2 + 1)`.

    For several labels a row of which few are 1, such as the pixels of a mask in flat rows: it measures the overlap of
    the labels with their probabilities :math:`p`, and rows of many zeros do not outweigh the ones. The sums go over the
    labels, or over the classes; the 1 keeps rows without labels finite.

    References
    ----------
    F. Milletari, N. Navab, S.-A. Ahmadi, "V-Net: fully convolutional neural networks for volumetric medical image
    segmentation", 3DV 2016.

    X. Li, X. Sun, Y. Meng, J. Liang, F. Wu, J. Li, "Dice loss for data-imbalanced NLP tasks", ACL 2020, for the 1.
    """

    name = "dice"

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        p = op.Softmax(scores, axis=-1) if link == "softmax" else op.Sigmoid(scores)
        overlap = op.Add(op.Mul(row_sum(op, op.Mul(p, y)), 2.0), 1.0)
        total = op.Add(row_sum(op, op.Add(op.Mul(p, p), op.Mul(y, y))), 1.0)
        return op.Sub(1.0, op.Div(overlap, total))

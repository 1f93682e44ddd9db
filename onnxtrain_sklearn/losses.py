"""Losses as ONNX subgraphs, their links, the penalty on the weights, and the registry of losses.

A loss is written for one minibatch: scores and targets of shape (N, k) go in, a matrix (N, k) or a column (N, 1)
of losses comes out. :func:`append_loss` turns it into the scalar that is differentiated, the weighted mean over
rows of the plain mean over a row's columns, ``sum_i w_i mean_j l_ij / sum_i w_i``, so that a row of weight zero
changes nothing. Losses see the scores before the final activation (logits, log-means): the *link* names that
activation. No gradient is written by hand; the operators used are those that every gradient engine has proven.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, TypeAlias

import numpy as np
import onnx_ir as ir
from sklearn.base import BaseEstimator

from ._graph.builder import GraphBuilder
from .exceptions import ModelError, nearest

Task: TypeAlias = Literal["regression", "binary", "multiclass", "multilabel"]
Link: TypeAlias = Literal["identity", "exp", "sigmoid", "softmax", "clipped_margin"]


class Loss(BaseEstimator, ABC):
    """Base class of the losses; derive from it to write your own.

    Override :meth:`__call__` to emit the loss of every row. No gradient is needed: the gradient engine differentiates
    the operators. Constructor parameters are stored verbatim, as scikit-learn requires, and are then tunable
    as ``loss__NAME``.

    Attributes
    ----------
    tasks : frozenset of {"regression", "binary", "multiclass", "multilabel"}
        What the loss can be used for.

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

    tasks: ClassVar[frozenset[Task]] = frozenset({"regression", "binary", "multiclass", "multilabel"})

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

    def link(self, task: Task) -> Link:
        """Return the function that turns scores into predictions for ``task``, "identity" unless overridden."""
        return "identity"


class _RegressionLoss(Loss):
    tasks = frozenset({"regression"})


class _ClassificationLoss(Loss):
    tasks = frozenset({"binary", "multiclass", "multilabel"})


class SquaredError(_RegressionLoss):
    """Squared error, ``(s - y)²``, without a factor of one half.

    The definition of ``torch.nn.MSELoss``.

    Examples
    --------
    >>> from onnxtrain_sklearn import OrtGradientRegressor
    >>> from onnxtrain_sklearn.losses import SquaredError
    >>> OrtGradientRegressor(loss=SquaredError())
    OrtGradientRegressor(loss=SquaredError())
    """

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        residual = op.Sub(scores, y)
        return op.Mul(residual, residual)


class LogLoss(_ClassificationLoss):
    """Negative log-likelihood of the labels, also known as cross-entropy.

    With a softmax over the scores ``-sum_k y_k log softmax(s)_k``; with a sigmoid of each score
    ``softplus(s) - y s``, which is ``-y log σ(s) - (1 - y) log(1 - σ(s))`` without its overflow.
    Both are computed from the logits and stay finite for scores of any size.
    """

    def link(self, task: Task) -> Link:
        return "softmax" if task == "multiclass" else "sigmoid"

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        if link == "softmax":
            return op.Neg(op.ReduceSum(op.Mul(y, op.LogSoftmax(scores, axis=-1)), axes=[-1], keepdims=True))
        return op.Sub(op.Softplus(scores), op.Mul(scores, y))


def append_loss(
    op: GraphBuilder, loss: Loss, *, scores: ir.Value, y: ir.Value, sample_weight: ir.Value, link: Link
) -> ir.Value:
    """Emit the scalar ``sum_i w_i mean_j l_ij / sum_i w_i`` of a minibatch; 0 where all weights are zero.

    ``scores`` and ``y`` have the static shape (N, k), ``sample_weight`` (N,).
    """
    rows = loss(op, scores, y, link)
    expected, got = op.shape(scores), op.shape(rows)
    if expected is None or got is None or len(got) != 2 or got[0] != expected[0] or got[1] not in (1, expected[1]):
        raise ModelError(
            f"{type(loss).__name__} must return losses of shape (N, k) or (N, 1) for scores of shape (N, k) = {expected}, "
            f"got {got}. Keep the reduced axis: op.ReduceSum(x, axes=[-1], keepdims=True)."
        )
    total = op.Max(op.ReduceSum(sample_weight, keepdims=False), float(np.finfo(np.float32).tiny))
    share = op.Div(sample_weight, op.Mul(total, float(got[1]))) if got[1] != 1 else op.Div(sample_weight, total)
    return op.ReduceSum(op.Mul(op.Unsqueeze(share, axes=[1]), rows), keepdims=False)


def append_penalty(op: GraphBuilder, weights: ir.Value, *, alpha: float, l1_ratio: float) -> ir.Value:
    """Emit the scalar ``alpha (l1_ratio |w|_1 + (1 - l1_ratio) / 2 |w|²)`` of a vector of weights."""
    squares = op.Mul(op.ReduceSum(op.Mul(weights, weights), keepdims=False), 0.5 * alpha * (1.0 - l1_ratio))
    if not l1_ratio:
        return squares
    return op.Add(squares, op.Mul(op.ReduceSum(op.Abs(weights), keepdims=False), alpha * l1_ratio))


LOSSES: dict[str, type[Loss]] = {
    "squared_error": SquaredError,
    "log_loss": LogLoss,
}


def resolve_loss(loss: str | Loss) -> Loss:
    """Return the loss object that a name or an object stands for."""
    if isinstance(loss, Loss):
        return loss
    if not isinstance(loss, str):
        raise TypeError(f"loss must be a name or a Loss object, got {type(loss).__name__}.")
    if loss not in LOSSES:
        raise ValueError(f"Unknown loss {loss!r}.{nearest(loss, LOSSES)}")
    return LOSSES[loss]()

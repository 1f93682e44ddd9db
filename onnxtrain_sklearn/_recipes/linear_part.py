"""Linear models beside the networks of a recipe, fitted to the same rows; held-out rows choose their share."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from scipy.special import softmax
from sklearn.exceptions import ConvergenceWarning

from .._model.links import Task
from ..graph import GraphBuilder

PENALTIES = (0.1, 1.0, 10.0, 100.0)
"""Penalties among which leave-one-out errors choose, for numbers; that of labels is scikit-learn's default."""


UNSEEN = -30.0
"""Score of a class of which no row is trained on; its probability is about 0."""


@dataclass(frozen=True, eq=False)
class LinearModel:
    """A linear model of the preprocessed matrix.

    Attributes
    ----------
    task : {"binary", "multiclass", "regression"}
    coefficients : ndarray of shape (n_columns, n_outputs)
        Of two classes, those of the first are 0.
    intercept : ndarray of shape (n_outputs,)
    limits : ndarray of shape (2, n_outputs)
        The range of the numbers seen, in which predictions stay; of classes not used.
    """

    task: Task
    coefficients: np.ndarray
    intercept: np.ndarray
    limits: np.ndarray

    @classmethod
    def fit(
        cls,
        task: Task,
        X: np.ndarray,
        y: np.ndarray,
        weights: np.ndarray | None,
        codes: Collection[int],
        n_outputs: int,
    ) -> LinearModel:
        """Fit logistic or ridge regression.

        Parameters
        ----------
        X : ndarray of shape (n_samples, n_columns)
        y : ndarray
            Class indices (n_samples,), or numbers (n_samples, n_outputs).
        weights : ndarray of shape (n_samples,) or None
        codes : collection of int
            Columns that hold codes of categories, which are left out.
        n_outputs : int
            The number of classes, or of numbers a row.
        """
        from sklearn.linear_model import LogisticRegression, RidgeCV  # slow to import, as sklearn.metrics follows

        kept = np.setdiff1d(np.arange(X.shape[1]), list(codes))
        coefficients, limits = np.zeros((X.shape[1], n_outputs)), np.zeros((2, n_outputs))
        if task == "regression":
            ridge = RidgeCV(PENALTIES, alpha_per_target=True).fit(X[:, kept], y, weights)
            coefficients[kept], limits = ridge.coef_.reshape(n_outputs, -1).T, np.stack([y.min(axis=0), y.max(axis=0)])
            return cls(task, coefficients, np.broadcast_to(ridge.intercept_, n_outputs), limits)
        intercept, seen = np.full(n_outputs, UNSEEN), np.unique(y)
        intercept[seen] = 0.0
        if len(seen) > 1:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # the held-out rows judge what it reached
                logistic = LogisticRegression(max_iter=1000).fit(X[:, kept], y, weights)
            places = seen[-len(logistic.coef_) :]  # of two classes the second, whose score is the logit
            coefficients[np.ix_(kept, places)], intercept[places] = logistic.coef_.T, logistic.intercept_
        return cls(task, coefficients, intercept, limits)

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return probabilities of the classes, or numbers, of shape (n_samples, n_outputs)."""
        scores: np.ndarray = X @ self.coefficients + self.intercept
        low, high = self.limits
        found: np.ndarray = np.clip(scores, low, high) if self.task == "regression" else softmax(scores, axis=1)
        return found

    def mixed(self, op: GraphBuilder, matrix: ir.Value, predictions: ir.Value, share: float) -> ir.Value:
        """Emit the mean of a network's predictions and of this model's, which has the weight ``share``."""
        scores = op.Gemm(matrix, self.coefficients.astype(np.float32), self.intercept.astype(np.float32))
        if self.task == "regression":
            low, high = self.limits.astype(np.float32)
            own = op.Min(op.Max(scores, low), high)
        else:
            own = op.Softmax(scores, axis=1)
        return op.Add(predictions, op.Mul(op.Sub(own, predictions), share))


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Held-out rows of a network: targets as for :meth:`LinearModel.fit`, weights, and predictions of both models."""

    y: np.ndarray
    weights: np.ndarray | None
    of_network: np.ndarray
    of_linear: np.ndarray


SHARES = np.linspace(0, 1, 21)


def share_of_linear(task: Task, held: Sequence[HeldOut], n_rows: int) -> float:
    """Return the weight of the linear models: the mean of all shares, weighted by the likelihood of the held-out rows.

    Few rows do not tell which share is best: the mean is then near one half, and not near 0 or 1 by chance.

    Parameters
    ----------
    held : sequence of HeldOut
        One for each network.
    n_rows : int
        The number of different rows.
    """
    if not n_rows:
        return float(SHARES.mean())
    weights = np.concatenate([np.ones(len(one.y)) if one.weights is None else one.weights for one in held])
    y = np.concatenate([one.y for one in held])
    network = np.concatenate([one.of_network for one in held]).astype(float)
    linear = np.concatenate([one.of_linear for one in held])
    if not weights.any():
        return float(SHARES.mean())
    losses = np.array([_mean_loss(task, y, (1 - w) * network + w * linear, weights) for w in SHARES])
    likelihood = np.exp(-n_rows * (losses - losses.min()))
    return float(SHARES @ likelihood / likelihood.sum())


def _mean_loss(task: Task, y: np.ndarray, predicted: np.ndarray, weights: np.ndarray) -> float:
    """Return the mean of the negative logarithm of the likelihood; of numbers with the variance that fits best."""
    tiny = np.finfo(np.float32).tiny
    if task == "regression":
        squares = np.average((y - predicted) ** 2, axis=0, weights=weights)
        return float(np.log(np.maximum(squares, tiny)).sum() / 2)
    return float(np.average(-np.log(np.maximum(predicted[np.arange(len(y)), y], tiny)), weights=weights))

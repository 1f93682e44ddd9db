"""Linear models beside the networks of a recipe, fitted to the same rows; held-out rows choose their share."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from scipy.special import softmax
from sklearn.exceptions import ConvergenceWarning

from .._model.links import Task
from ..graph import GraphBuilder

PENALTIES = (0.1, 1.0, 10.0, 100.0)
"""Penalties among which leave-one-out errors choose, for numbers; that of labels is scikit-learn's default."""


MOST_CODES = 1000
"""Categories of a column above which it is left out."""

UNSEEN = -30.0
"""Score of a class of which no row is trained on; its probability is about 0."""


@dataclass(frozen=True, eq=False)
class LinearModel:
    """A linear model of the preprocessed matrix.

    Attributes
    ----------
    task : {"binary", "multiclass", "regression"}
    coefficients : ndarray of shape (n_columns, n_outputs)
        Those of columns of codes are 0; of two classes, those of the first.
    by_code : dict of int to ndarray of shape (n_codes, n_outputs)
        The coefficient of each code of a column.
    intercept : ndarray of shape (n_outputs,)
    limits : ndarray of shape (2, n_outputs)
        The range of the numbers seen, in which predictions stay; of classes not used.
    """

    task: Task
    coefficients: np.ndarray
    by_code: Mapping[int, np.ndarray]
    intercept: np.ndarray
    limits: np.ndarray

    @classmethod
    def fit(
        cls,
        task: Task,
        X: np.ndarray,
        y: np.ndarray,
        weights: np.ndarray | None,
        codes: Mapping[int, int],
        n_outputs: int,
    ) -> LinearModel:
        """Fit logistic or ridge regression.

        Parameters
        ----------
        X : ndarray of shape (n_samples, n_columns)
        y : ndarray
            Class indices (n_samples,), or numbers (n_samples, n_outputs).
        weights : ndarray of shape (n_samples,) or None
        codes : dict of int to int
            Columns that hold codes of categories, and the number of codes; each code gets an indicator. Columns of more
            than MOST_CODES are left out.
        n_outputs : int
            The number of classes, or of numbers a row.
        """
        from sklearn.linear_model import LogisticRegression, RidgeCV  # slow to import, as sklearn.metrics follows

        numbers = np.setdiff1d(np.arange(X.shape[1]), list(codes))
        few = {place: count for place, count in codes.items() if count <= MOST_CODES}
        design = np.hstack([X[:, numbers], *(np.eye(n)[X[:, place].astype(int)] for place, n in few.items())])
        found, limits = np.zeros((design.shape[1], n_outputs)), np.zeros((2, n_outputs))
        intercept = np.zeros(n_outputs)
        if task == "regression":
            limits = np.stack([y.min(axis=0), y.max(axis=0)])
            ridge = RidgeCV(PENALTIES, alpha_per_target=True).fit(design, y, weights)
            found = ridge.coef_.reshape(n_outputs, -1).T
            intercept = np.broadcast_to(ridge.intercept_, n_outputs)
        else:
            seen = np.unique(y)
            intercept = np.where(np.isin(np.arange(n_outputs), seen), 0.0, UNSEEN)
            if len(seen) > 1:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", ConvergenceWarning)  # the held-out rows judge what it reached
                    logistic = LogisticRegression(max_iter=1000).fit(design, y, weights)
                places = seen[-len(logistic.coef_) :]  # of two classes the second, whose score is the logit
                found[:, places], intercept[places] = logistic.coef_.T, logistic.intercept_
        coefficients = np.zeros((X.shape[1], n_outputs))
        coefficients[numbers] = found[: len(numbers)]
        starts = len(numbers) + np.cumsum([0, *few.values()])
        by_code = {place: found[at : at + count] for at, (place, count) in zip(starts[:-1], few.items(), strict=True)}
        return cls(task, coefficients, by_code, intercept, limits)

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return probabilities of the classes, or numbers, of shape (n_samples, n_outputs)."""
        scores: np.ndarray = X @ self.coefficients + self.intercept
        for place, table in self.by_code.items():
            scores = scores + table[X[:, place].astype(int)]
        low, high = self.limits
        found: np.ndarray = np.clip(scores, low, high) if self.task == "regression" else softmax(scores, axis=1)
        return found

    def mixed(self, op: GraphBuilder, matrix: ir.Value, predictions: ir.Value, share: float) -> ir.Value:
        """Emit the mean of a network's predictions and of this model's, which has the weight ``share``."""
        scores = op.Gemm(matrix, self.coefficients.astype(np.float32), self.intercept.astype(np.float32))
        for place, table in self.by_code.items():
            code = op.Cast(op.Gather(matrix, np.int64(place), axis=1), to=ir.DataType.INT64)
            scores = op.Add(scores, op.Gather(table.astype(np.float32), code))
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

"""Scores of a trained model, beside those of the best constant prediction."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn import metrics

from .tables import TableTask
from .trained import Rows, Trained

LARGEST_TABLE = 12
"""Classes up to which the report has a confusion matrix."""


def prediction_scores(trained: Trained, rows: Rows, task: TableTask) -> dict[str, float]:
    """Return the scores on some rows by name."""
    X = trained.prepare(rows.frame)
    predicted = np.asarray(trained.predictor.predict(X))
    if task == "regression":
        return _regression_scores(rows.y, predicted)
    found = {
        "accuracy": float(metrics.accuracy_score(rows.y, predicted)),
        "balanced_accuracy": float(_balanced_accuracy(rows.y, predicted)),
    }
    if hasattr(trained.predictor, "predict_proba"):
        labels = trained.net.classes_
        if set(np.unique(rows.y)) <= set(labels):
            found["log_loss"] = float(metrics.log_loss(rows.y, trained.predictor.predict_proba(X), labels=labels))
    return found


def _balanced_accuracy(y: np.ndarray, predicted: np.ndarray) -> float:
    """Return the mean over the classes of ``y`` of the share of their rows that is predicted right."""
    return float(np.mean([np.mean(predicted[y == label] == label) for label in np.unique(y)]))


def _regression_scores(y: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    y, predicted = y.ravel(), predicted.ravel()
    return {
        "r2": float(metrics.r2_score(y, predicted)) if len(y) > 1 else float("nan"),
        "mean_absolute_error": float(metrics.mean_absolute_error(y, predicted)),
        "root_mean_squared_error": float(np.sqrt(metrics.mean_squared_error(y, predicted))),
    }


def baseline(train: np.ndarray, y: np.ndarray, task: TableTask) -> dict[str, float]:
    """Return the score of the most frequent class, or of the mean, of the rows that were trained."""
    if task == "regression":
        return _regression_scores(y, np.full(len(y), train.mean()))
    labels, counts = np.unique(train, return_counts=True)
    return {"accuracy": float(np.mean(y == labels[np.argmax(counts)]))}


def confusion(trained: Trained, rows: Rows, task: TableTask) -> tuple[list[Any], list[list[int]]] | None:
    """Return labels and counts (true by predicted) for few classes."""
    labels = [] if task == "regression" else list(trained.net.classes_)
    if not 2 <= len(labels) <= LARGEST_TABLE:
        return None
    predicted = trained.predictor.predict(trained.prepare(rows.frame))
    return labels, metrics.confusion_matrix(rows.y, predicted, labels=labels).tolist()

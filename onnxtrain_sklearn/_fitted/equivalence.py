"""The proof that two models predict the same: a fitted one, and the graph that was made from it or trained.

Numbers are equal within a tolerance; labels where a row is not even between two of them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.linear_model import SGDClassifier
from sklearn.multioutput import ClassifierChain
from sklearn.svm import SVC, NuSVC
from sklearn.utils import _safe_indexing

from .._typing import Estimator, MatrixLike
from ..exceptions import ModelError
from .converters.multioutput import is_estimator_an_output
from .decision_rules import threshold, threshold_rule
from .multioutput import classes_of_outputs
from .traversal import gives_labels, last_step, unwrapped

SAMPLE = 256
"""Rows that predictions are compared on."""


def sample_rows(X: MatrixLike) -> Any:
    """Return some rows of the data, spread over all of them, as scikit-learn takes them."""
    rows: Any = X
    n = rows.shape[0] if hasattr(rows, "shape") else len(rows)
    return _safe_indexing(X, np.unique(np.linspace(0, n - 1, min(n, SAMPLE)).astype(int)))


def require_equal(
    model: Estimator, rows: MatrixLike, ours: Mapping[str, np.ndarray], *, what: str, tolerance: float
) -> None:
    """Raise where ``model`` predicts something else than ``ours``, by method, for the same rows."""
    for method, numbers in ours.items():
        if method == "predict" and gives_labels(model):
            continue
        try:
            expected = values(model, method, rows, numbers.shape)
        except TypeError as error:  # of numpy, for numbers that the model takes and cannot compute with
            raise TypeError(f"{type(model).__name__}.{method} fails on rows of X: {error}") from error
        scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
        if not np.allclose(numbers, expected, rtol=tolerance, atol=tolerance * scale):
            _refuse(model, what, method, float(np.abs(numbers - expected).max()))
    if gives_labels(model):
        _require_equal_labels(model, rows, ours, what)


def values(model: Estimator, method: str, rows: MatrixLike, shape: tuple[int, ...]) -> np.ndarray:
    """Return the numbers that a method of ``model`` gives, in a shape.

    Of several labels a row, where ``model`` gives a list: the numbers of all classes, or those of the second ones.
    """
    found = getattr(model, method)(rows) if hasattr(model, method) else _of_each_output(model, method, rows)
    if isinstance(found, list):
        found = [np.stack([-one, one], axis=1) if one.ndim == 1 else one for one in found]
        every = np.concatenate(found, axis=1)
        found = every if every.shape == shape else np.stack([one[:, -1] for one in found], axis=1)
    return np.asarray(found, np.float64).reshape(shape)


def _of_each_output(model: Estimator, method: str, rows: MatrixLike) -> list[np.ndarray]:
    """Return what the estimators that each speak for one label give, where the one that holds them has no method."""
    rows, last = before_last(model, rows)
    parts = getattr(last, "estimators_", ())
    if not len(parts) or not all(hasattr(part, method) for part in parts):
        raise ModelError(f"{type(last).__name__} has no {method}(), with which a trained graph could be compared.")
    return [np.asarray(getattr(part, method)(rows)) for part in parts]


def _require_equal_labels(model: Estimator, rows: MatrixLike, ours: Mapping[str, np.ndarray], what: str) -> None:
    """Labels may differ only where two classes are even."""
    different = np.asarray(model.predict(rows)) != ours["predict"]
    if not different.any():
        return
    method, scores = next((method, numbers) for method, numbers in ours.items() if method != "predict")
    scores = np.asarray(scores, np.float64)
    several = classes_of_outputs(model) is not None
    sure = margins_of_labels(model, rows, scores, method) if several else margins(model, rows, scores)
    if (different & (sure > 1e-5)).any():
        _refuse(model, what, "predict", float(different.mean()))


def _refuse(model: Estimator, what: str, method: str, distance: float) -> None:
    raise ModelError(f"{what} and {type(model).__name__} differ: {method}() by up to {distance:.2g} on rows of X.")


# How sure a label is


def margins(model: Estimator, rows: MatrixLike, scores: np.ndarray) -> np.ndarray:
    """Return how far each row is from another label; ``scores`` are probabilities, or the decision function."""
    scores, rule = scores.reshape(len(scores), -1), threshold_rule(model)
    if rule is not None:
        return np.asarray(np.abs(_beyond_threshold(rule, model, rows)))
    if isinstance(last_step(model), SVC | NuSVC):
        return np.asarray(np.abs(_pairs(model, rows, len(scores))).min(axis=1))
    if isinstance(last_step(model), SGDClassifier):  # whose probabilities may be even where these are not
        scores = np.asarray(model.decision_function(rows)).reshape(len(scores), -1)
    if scores.shape[1] == 1:
        return np.asarray(np.abs(scores[:, 0]))
    top = np.sort(scores, axis=1)
    return np.asarray(top[:, -1] - top[:, -2])


def _beyond_threshold(rule: Estimator, model: Estimator, rows: MatrixLike) -> np.ndarray:
    limit, positive, of_probabilities = threshold(rule)
    if of_probabilities:
        return np.asarray(model.predict_proba(rows)[:, positive] - limit)
    return np.asarray(model.decision_function(rows)) * (1 if positive else -1) - limit


def _pairs(model: Estimator, rows: MatrixLike, n_rows: int) -> np.ndarray:
    """Return the scores of pairs of classes that a support vector machine counts its votes by."""
    model = copy.deepcopy(model)
    last_step(model).set_params(decision_function_shape="ovo", break_ties=False)
    return np.asarray(model.decision_function(rows)).reshape(n_rows, -1)


def before_last(model: Estimator, rows: MatrixLike) -> tuple[Any, Any]:
    """Return the rows as the estimator that a pipeline ends in takes them, and that estimator."""
    last: Any = unwrapped(model)
    while hasattr(last, "steps"):
        rows = last[:-1].transform(rows) if len(last.steps) > 1 else rows
        last = unwrapped(last.steps[-1][1])
    return rows, last


def margins_of_labels(model: Estimator, rows: MatrixLike, scores: np.ndarray, method: str) -> np.ndarray:
    """Return how far each label of each row is from being another; ``scores`` are what ``method`` gives of them all."""
    outputs = classes_of_outputs(model) or []
    if scores.shape[1] == len(outputs):
        parts = list((scores - (0.5 if method == "predict_proba" else 0.0)).T[:, :, None])
    else:
        parts = np.split(scores, np.cumsum([len(known) for known in outputs])[:-1], axis=1)
    rows, last = before_last(model, rows)
    alone = is_estimator_an_output(last) and not isinstance(last, ClassifierChain)
    owners = last.estimators_ if alone else [last] * len(parts)
    found = [margins(owner, rows, part) for owner, part in zip(owners, parts, strict=True)]
    return np.stack(found, axis=1)

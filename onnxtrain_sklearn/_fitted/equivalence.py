"""Compare the predictions of a fitted model with those of a graph, and find ties of nearest neighbors.

:func:`require_equal` compares numbers up to a tolerance. Labels must be equal, except in rows so near a decision
boundary that rounding decides; :func:`margins` computes the distance by the decision rule of the model. The comparison
runs before training, on the converted graph, and after it, on the model to which the trained numbers were written back.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor, KNeighborsTransformer
from sklearn.pipeline import Pipeline

from .._utils.typing import Estimator, MatrixLike
from ..exceptions import ModelError
from .converters.svm import unit_of_codes
from .model_record import ModelRecord, last_step, record_of, unwrapped


def require_equal(
    model: Estimator,
    rows: MatrixLike,
    ours: Mapping[str, np.ndarray],
    *,
    what: str,
    tolerance: float,
    reads_float64: bool,
    advice: str = "",
) -> None:
    """Raise ModelError if the predictions of ``model`` differ from ``ours``, which maps methods to results on ``rows``.

    The message begins with ``what`` and ends with ``advice``. If the graph ``reads_float64``, ``model`` gets the rows
    as float64 too, because scikit-learn computes in the type of the data.
    """
    record = record_of(model)
    rows = _in_float64(rows) if reads_float64 else rows
    for method, numbers in ours.items():
        if method == "predict" and record.gives_labels:
            continue
        try:
            expected = values(record, method, rows, numbers.shape)
        except TypeError as error:  # raised by NumPy for values that the model accepts but cannot compute with
            raise TypeError(f"{record.name}.{method} fails on rows of X: {error}") from error
        scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
        if not np.allclose(numbers, expected, rtol=tolerance, atol=tolerance * scale):
            _refuse_conversion(record, what, method, float(np.abs(numbers - expected).max()), advice)
    if not record.gives_labels:
        return
    different = np.asarray(record.estimator.predict(rows)) != ours["predict"]
    if different.any():
        # Labels may differ only in rows so near a decision boundary that rounding decides.
        method, scores = next((method, numbers) for method, numbers in ours.items() if method != "predict")
        scores = np.asarray(scores, np.float64)
        one_label = record.outputs is None
        sure = margins(record, rows, scores) if one_label else margins_of_labels(record, rows, scores, method)
        if (different & (sure > 1e-5)).any():
            _refuse_conversion(record, what, "predict", float(different.mean()), advice)


def _in_float64(rows: MatrixLike) -> Any:
    data: Any = rows
    if getattr(data, "dtype", None) == np.float32:
        return data.astype(np.float64)
    kinds = data.dtypes.items() if hasattr(data, "columns") and hasattr(data, "iloc") else ()
    single = [name for name, kind in kinds if kind == np.float32]
    return data.astype(dict.fromkeys(single, np.float64)) if single else rows


def values(record: ModelRecord, method: str, rows: MatrixLike, shape: tuple[int, ...]) -> np.ndarray:
    """Return the result of a method of the model, in the given shape.

    If the result is a list, with one array for each of several labels, concatenate the columns of all classes, or of
    the second class of each label.
    """
    model = record.estimator
    if hasattr(model, method):
        found = getattr(model, method)(rows)
    elif record.has_output_codes:
        found = _of_codes(record, rows)
    else:
        found = _of_each_label(record, method, rows)
    if isinstance(found, list):
        found = [np.stack([-one, one], axis=1) if one.ndim == 1 else one for one in found]
        every = np.concatenate(found, axis=1)
        found = every if every.shape == shape else np.stack([one[:, -1] for one in found], axis=1)
    return np.asarray(found, np.float64).reshape(shape)


def _of_codes(record: ModelRecord, rows: MatrixLike) -> np.ndarray:
    """Return, per class, how much nearer its code is than the nearest other code; for two classes, only the second."""
    rows, last = before_last(record.estimator, rows)
    given = np.stack(
        [
            np.ravel(one.decision_function(rows))
            if hasattr(one, "decision_function")
            else np.asarray(one.predict_proba(rows))[:, 1]
            for one in last.estimators_
        ],
        axis=1,
    )
    away = ((given[:, np.newaxis] - last.code_book_) ** 2).sum(axis=2)
    others = np.where(np.eye(len(last.classes_), dtype=bool), np.inf, away[:, np.newaxis]).min(axis=2)
    found = (others - away) * unit_of_codes(last)
    return np.asarray(found if len(last.classes_) > 2 else found[:, 1])


def _of_each_label(record: ModelRecord, method: str, rows: MatrixLike) -> list[np.ndarray]:
    """Return the results of a method of each label's estimator, for a meta-estimator that lacks the method."""
    rows, last = before_last(record.estimator, rows)
    parts = getattr(last, "estimators_", ())
    if not len(parts) or not all(hasattr(part, method) for part in parts):
        raise ModelError(f"{record.last_name} has no {method}() to compare a trained graph with.")
    return [np.asarray(getattr(part, method)(rows)) for part in parts]


def _refuse_conversion(record: ModelRecord, what: str, method: str, distance: float, advice: str) -> None:
    said = f"{what} and {record.name} differ: {method}() by up to {distance:.2g} on rows of X."
    raise ModelError(f"{said} {advice}" if advice else said)


# Distance of a row from a decision boundary


def margins(record: ModelRecord, rows: MatrixLike, scores: np.ndarray) -> np.ndarray:
    """Return how near each row is to a decision boundary, in ``scores``: probabilities, or the decision function."""
    scores = scores.reshape(len(scores), -1)
    model = record.estimator
    threshold = record.threshold
    if threshold is not None:
        if threshold.of_probabilities:
            beyond = model.predict_proba(rows)[:, threshold.positive] - threshold.limit
        else:
            beyond = np.asarray(model.decision_function(rows)) * (1 if threshold.positive else -1) - threshold.limit
        return np.asarray(np.abs(beyond))
    if record.is_libsvm:  # the labels follow votes by the scores of pairs of classes, not the decision function
        of_pairs = copy.deepcopy(model)
        last_step(of_pairs).set_params(decision_function_shape="ovo", break_ties=False)
        pairs = np.asarray(of_pairs.decision_function(rows)).reshape(len(scores), -1)
        return np.asarray(np.abs(pairs).min(axis=1))
    if record.is_linear_by_descent:  # use the decision function, because probabilities may saturate and tie
        scores = np.asarray(model.decision_function(rows)).reshape(len(scores), -1)
    if scores.shape[1] == 1:
        return np.asarray(np.abs(scores[:, 0]))
    top = np.sort(scores, axis=1)
    return np.asarray(top[:, -1] - top[:, -2])


def before_last(model: Estimator, rows: MatrixLike) -> tuple[Any, Any]:
    """Return the rows as they reach the last step of a pipeline, and that step."""
    last: Any = unwrapped(model)
    while hasattr(last, "steps"):
        rows = last[:-1].transform(rows) if len(last.steps) > 1 else rows
        last = unwrapped(last.steps[-1][1])
    return rows, last


def margins_of_labels(record: ModelRecord, rows: MatrixLike, scores: np.ndarray, method: str) -> np.ndarray:
    """Return how near each label of each row is to its decision boundary; ``scores`` are those of ``method``."""
    outputs = record.outputs or ()
    if scores.shape[1] == len(outputs):
        parts = list((scores - (0.5 if method == "predict_proba" else 0.0)).T[:, :, None])
    else:
        parts = np.split(scores, np.cumsum([len(known) for known in outputs])[:-1], axis=1)
    rows, last = before_last(record.estimator, rows)
    owners = [record_of(last)] * len(parts) if record.is_chain or not record.members else record.members
    found = [margins(owner, rows, part) for owner, part in zip(owners, parts, strict=True)]
    return np.stack(found, axis=1)


# Ties of nearest neighbors, which scikit-learn and graphs break differently; data with few distinct values have them.
#
# If several training points have the same distance, their order in scikit-learn's tree decides which of them are the
# nearest, as its documentation says. A graph cannot reproduce this order.


_NEIGHBORS = (KNeighborsClassifier, KNeighborsRegressor, KNeighborsTransformer)
_EQUAL = 1e-6
"""Relative difference up to which two distances may be equal in float32."""


def tied_rows(model: Estimator, rows: MatrixLike) -> tuple[float, str]:
    """Return the largest share, over the steps, of rows whose k-th neighbor ties with the next one, and that step."""
    shares = []
    for step, reaching in _steps_with_rows(model, rows):
        count = step.n_neighbors + (getattr(step, "mode", "") == "distance")
        if step.n_samples_fit_ > count:
            away = step.kneighbors(reaching, count + 1)[0]
            last, next_one = away[:, -2], away[:, -1]
            shares.append((float(np.mean(next_one - last <= _EQUAL * next_one)), type(step).__name__))
    return max(shares, default=(0.0, ""))


def _steps_with_rows(model: Estimator, rows: MatrixLike) -> Iterator[tuple[Estimator, MatrixLike]]:
    """Yield the steps that find the k nearest neighbors, each with the rows that reach it."""
    whole: Any = unwrapped(model)
    if isinstance(whole, _NEIGHBORS) and whole.effective_metric_ != "precomputed":
        yield whole, rows
    if isinstance(whole, Pipeline) and any(isinstance(unwrapped(step), _NEIGHBORS) for _, step in whole.steps):
        for place, (_, step) in enumerate(whole.steps):
            yield from _steps_with_rows(step, whole[:place].transform(rows) if place else rows)

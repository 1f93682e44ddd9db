"""Converters: neighbours that are weighted by the inverse of their distance, so that the points have a gradient.

Which points are neighbours has none. A row that lies on points is theirs alone, as in scikit-learn. Counts of
neighbours, and means of their targets, are left to skl2onnx.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from sklearn.base import is_classifier
from sklearn.neighbors import (
    KNeighborsClassifier,
    KNeighborsRegressor,
    RadiusNeighborsClassifier,
    RadiusNeighborsRegressor,
)

from .._graph.builder import GraphBuilder
from ..exceptions import ModelError
from .source import FLOAT, INT64, Converter, Source, several_labels

METRICS = ("euclidean", "manhattan", "minkowski")


def _nearest(s: Source) -> Sequence[ir.Value] | None:
    """The k nearest points; the distances to them are computed again from the points: exactly, for few."""
    op, model = s.op, s.estimator
    if not _is_weighted(s):
        return None
    points, power = s.parameter(model, "_fit_X"), _power(s)
    _, nearest = op.emit("TopK", _rough(s, points), np.array([model.n_neighbors]), axis=1, largest=0, outputs=2)
    distances = _distances(op, s.x, op.Gather(points, nearest, axis=0), power)
    weights = op.Unsqueeze(_inverse(op, distances), axes=[1])
    found = op.Gather(_targets(s), nearest, axis=0)
    return _mean(s, op.Squeeze(op.MatMul(weights, found), axes=[1]), op.ReduceSum(weights, axes=[2], keepdims=False))


def _within_radius(s: Source) -> Sequence[ir.Value] | None:
    """All points that are not beyond the radius."""
    op, model = s.op, s.estimator
    if not _is_weighted(s):
        return None
    points = s.parameter(model, "_fit_X", shape=(1, *model._fit_X.shape))
    distances = _distances(op, s.x, points, _power(s))
    near = op.Cast(op.LessOrEqual(distances, float(model.radius)), to=FLOAT)
    weights = _inverse(op, distances, near)
    return _mean(s, op.MatMul(weights, _targets(s)), op.ReduceSum(weights, axes=[1], keepdims=True))


def _is_weighted(s: Source) -> bool:
    model = s.estimator
    if model.weights != "distance":
        return False
    has_shares = (model.effective_metric_params_ or {}).get("w") is not None
    if model.effective_metric_ not in METRICS or has_shares or not isinstance(model._fit_X, np.ndarray):
        raise ModelError(
            f"This {type(model).__name__} has a metric without a form that can be trained: metric={model.metric!r}, "
            f"metric_params={model.metric_params!r}. Those that have one, on dense rows: {', '.join(METRICS)}."
        )
    return True


def _power(s: Source) -> float:
    model = s.estimator
    named = {"euclidean": 2.0, "manhattan": 1.0}
    return named.get(model.effective_metric_) or float(model.effective_metric_params_["p"])


def _rough(s: Source, points: ir.Value) -> ir.Value:
    """Return distances in which the nearest points can be found: nothing passes a gradient through their order."""
    op, power = s.op, _power(s)
    if power != 2:
        return _distances(op, s.x, op.Unsqueeze(points, axes=[0]), power)
    centre = s.estimator._fit_X.mean(axis=0).astype(np.float32)
    a, b = op.Sub(s.x, centre), op.Sub(points, centre)
    squares = op.Transpose(op.ReduceSum(op.Mul(b, b), axes=[1], keepdims=True), perm=[1, 0])
    return op.Sub(squares, op.Mul(op.MatMul(a, op.Transpose(b, perm=[1, 0])), 2.0))


def _distances(op: GraphBuilder, x: ir.Value, points: ir.Value, power: float) -> ir.Value:
    """Return the distances of each row to its points, (rows or 1, points, features): zero where they are equal."""
    apart = op.Abs(op.Sub(op.Unsqueeze(x, axes=[1]), points))
    if power == 1:
        return op.ReduceSum(apart, axes=[2], keepdims=False)
    total = op.ReduceSum(op.Mul(apart, apart) if power == 2 else op.Pow(apart, power), axes=[2], keepdims=False)
    at = op.Greater(total, 0.0)
    safe = op.Where(at, total, op.Expand(1.0, op.Shape(total)))
    root = op.Sqrt(safe) if power == 2 else op.Exp(op.Div(op.Log(safe), power))
    return op.Mul(root, op.Cast(at, to=FLOAT))


def _inverse(op: GraphBuilder, distances: ir.Value, near: ir.Value | None = None) -> ir.Value:
    """Return 1 / distance of the neighbours, or who is at no distance in the rows where one is."""
    on = op.Cast(op.Equal(distances, 0.0), to=FLOAT)
    free = op.Cast(op.Equal(op.ReduceSum(on, axes=[1], keepdims=True), 0.0), to=FLOAT)
    counted = free if near is None else op.Mul(free, near)
    return op.Add(op.Div(counted, op.Add(distances, on)), on)  # onnxruntime 1.19 crashes on Mul(Div(1, x), near)


def _targets(s: Source) -> ir.Value:
    """Return the targets of the points, which may be trained, or zeros and ones for each class of each output."""
    model = s.estimator
    if not is_classifier(model):
        return s.parameter(model, "_y", shape=(len(model._y), -1))
    classes = _classes(model)
    outputs = np.reshape(model._y, (-1, len(classes))).T
    parts = [np.eye(len(known), dtype=np.float32)[y] for known, y in zip(classes, outputs, strict=True)]
    return s.op.constant(np.concatenate(parts, axis=1))


def _classes(model: Any) -> list[np.ndarray]:
    """Return the classes of each output."""
    return list(model.classes_) if several_labels(model) else [np.asarray(model.classes_)]


def _mean(s: Source, sums: ir.Value, total: ir.Value) -> Sequence[ir.Value]:
    op, model = s.op, s.estimator
    if not is_classifier(model):
        return (op.Div(sums, total),)
    label = getattr(model, "outlier_label_", None)
    if label is None:
        p = op.Div(sums, total)
    else:  # a row without neighbours gets the class that the user has named for it
        alone = op.Cast(op.Equal(total, 0.0), to=FLOAT)
        p = op.Add(op.Div(sums, op.Add(total, alone)), op.Mul(alone, _shares_of(model, label)))
    # Labels of several outputs are made of the probabilities where predictions are.
    return op.Cast(p, to=INT64) if several_labels(model) else s.chosen(p), p


def _shares_of(model: Any, label: Any) -> np.ndarray:
    """Return one for the class of each output that rows without neighbours get, (1, classes)."""
    named = [known == own for known, own in zip(_classes(model), np.ravel(label), strict=True)]
    if not all(np.any(one) for one in named):
        raise ModelError(
            f"This {type(model).__name__} gives rows without neighbours the label {model.outlier_label!r}, which is no "
            f"class that it was fitted to: it has no probability. Fit it with outlier_label='most_frequent' or with "
            f"one of the classes."
        )
    return np.concatenate(named).astype(np.float32)[np.newaxis]


CONVERTERS: dict[type, Converter] = {
    KNeighborsClassifier: Converter(_nearest),
    KNeighborsRegressor: Converter(_nearest),
    RadiusNeighborsClassifier: Converter(_within_radius),
    RadiusNeighborsRegressor: Converter(_within_radius),
}

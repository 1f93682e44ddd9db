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
from .neighbours import METRICS, distances, nearest_points, power_of
from .source import FLOAT, INT64, Converter, Source, several_labels


def _nearest(s: Source) -> Sequence[ir.Value] | None:
    """The k nearest points."""
    op, model = s.op, s.estimator
    if model.weights != "distance":
        return None
    power = _power(model)
    nearest, away = nearest_points(op, s.x, s.parameter(model, "_fit_X"), model.n_neighbors, power)
    weights = op.Unsqueeze(_inverse(op, away), axes=[1])
    found = op.Gather(_targets(s), nearest, axis=0)
    return _mean(s, op.Squeeze(op.MatMul(weights, found), axes=[1]), op.ReduceSum(weights, axes=[2], keepdims=False))


def _within_radius(s: Source) -> Sequence[ir.Value] | None:
    """All points that are not beyond the radius."""
    op, model = s.op, s.estimator
    if model.weights != "distance":
        return None
    away = distances(op, s.x, s.parameter(model, "_fit_X"), _power(model))
    near = op.Cast(op.LessOrEqual(away, float(model.radius)), to=FLOAT)
    weights = _inverse(op, away, near)
    return _mean(s, op.MatMul(weights, _targets(s)), op.ReduceSum(weights, axes=[1], keepdims=True))


def _power(model: Any) -> float:
    power = power_of(model)
    if power is None:
        raise ModelError(
            f"This {type(model).__name__} has a metric without a form that can be trained: metric={model.metric!r}, "
            f"metric_params={model.metric_params!r}. Those that have one, on dense rows: {', '.join(METRICS)}."
        )
    return power


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

"""Convert nearest neighbors, whose training points, targets or votes are trained.

The choice of the neighbors is piecewise constant and has no gradient. With weights by inverse distance, the distances
have a gradient, so the points are trained. The gradient of a difference of zero is zero for every power. A row that
coincides with training points gets the mean of their targets alone, as in scikit-learn. With uniform weights, the
targets of the points are trained: numbers, or the share of its vote that a point gives to each class.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from sklearn.base import is_classifier
from sklearn.neighbors import (
    KNeighborsClassifier,
    KNeighborsRegressor,
    KNeighborsTransformer,
    NearestCentroid,
    RadiusNeighborsClassifier,
    RadiusNeighborsRegressor,
)

from ..._ir.queries import constant
from ..._ml_operators.kernel_methods import root, squared_distances
from ..._utils.typing import Estimator
from ...exceptions import ModelError
from ...graph import FLOAT, INT64, GraphBuilder
from .context import Converter, Source, of_rows, several_labels

METRICS = ("euclidean", "manhattan", "minkowski")
"""Metrics that :func:`distances` computes."""


def power_of(model: Estimator) -> float | None:
    """Return the power of the Minkowski metric of a neighbors model; None for other metrics."""
    parameters = model.effective_metric_params_ or {}
    has_shares = parameters.get("w") is not None
    if model.effective_metric_ not in METRICS or has_shares or not isinstance(model._fit_X, np.ndarray):
        return None
    named = {"euclidean": 2.0, "manhattan": 1.0}
    return named.get(model.effective_metric_) or float(parameters["p"])


def nearest_points(
    op: GraphBuilder, x: ir.Value, points: ir.Value, count: int, power: float
) -> tuple[ir.Value, ir.Value]:
    """Return the positions of the nearest points of each row, and their distances, both (rows, neighbors).

    The returned distances have a gradient and are computed exactly, from differences of features. The search uses
    faster, less exact distances.
    """
    if power == 2:
        array = constant(points)
        assert array is not None
        order = squared_distances(op, x, points, array.mean(axis=0, dtype=float))
    else:
        order = distances(op, x, points, power)
    nearest = op.emit("TopK", order, np.array([count]), axis=1, largest=0, outputs=2)[1]
    nearest.dtype = ir.DataType.INT64
    return nearest, distances(op, x, op.Gather(points, nearest, axis=0), power)


def distances(op: GraphBuilder, x: ir.Value, points: ir.Value, power: float) -> ir.Value:
    """Return the distances of each row to all points, or to points of its own, (rows, points, features)."""
    apart = op.Sub(op.Unsqueeze(x, axes=[1]), points)
    if power == 2:
        return root(op, op.ReduceSum(op.Mul(apart, apart), axes=[2], keepdims=False))
    sizes = op.Abs(apart)
    if power == 1:
        return op.ReduceSum(sizes, axes=[2], keepdims=False)
    off = op.Greater(sizes, 0.0)  # differences of zero are masked: with a power below one, their gradient is infinite
    powers = op.Where(off, op.Pow(op.Where(off, sizes, 1.0), power), 0.0)
    total = op.ReduceSum(powers, axes=[2], keepdims=False)
    off = op.Greater(total, 0.0)
    return op.Where(off, op.Exp(op.Div(op.Log(op.Where(off, total, 1.0)), power)), 0.0)


def _nearest(s: Source) -> Sequence[ir.Value] | None:
    """Convert the mean over the k nearest points; with uniform weights the points themselves have no gradient."""
    op, model = s.op, s.estimator
    if _counts(model):
        points = op.constant(np.ascontiguousarray(model._fit_X, np.float32))
        nearest = nearest_points(op, s.x, points, model.n_neighbors, _power(model))[0]
        return _predicted(s, op.ReduceMean(op.Gather(_targets(s), nearest, axis=0), axes=[1], keepdims=False))
    if model.weights != "distance":
        return None
    power = _power(model)
    nearest, away = nearest_points(op, s.x, s.parameter(model, "_fit_X"), model.n_neighbors, power)
    weights = op.Unsqueeze(_inverse(op, away), axes=[1])
    found = op.Gather(_targets(s), nearest, axis=0)
    return _neighbor_mean(
        s, op.Squeeze(op.MatMul(weights, found), axes=[1]), op.ReduceSum(weights, axes=[2], keepdims=False)
    )


def _counts(model: Estimator) -> bool:
    """Return True if the weights are uniform and the metric is supported."""
    return model.weights in ("uniform", None) and power_of(model) is not None


def _within_radius(s: Source) -> Sequence[ir.Value] | None:
    """Convert the mean over the points within the radius."""
    op, model = s.op, s.estimator
    counts = _counts(model)
    if model.weights != "distance" and not counts:
        return None
    points = op.constant(np.ascontiguousarray(model._fit_X, np.float32)) if counts else s.parameter(model, "_fit_X")
    away = distances(op, s.x, points, _power(model))
    near = op.Cast(op.LessOrEqual(away, float(model.radius)), to=FLOAT)
    weights = near if counts else _inverse(op, away, near)
    return _neighbor_mean(s, op.MatMul(weights, _targets(s)), op.ReduceSum(weights, axes=[1], keepdims=True))


def _neighbor_graph(s: Source) -> ir.Value:
    """Return a matrix (rows, points): the distance of each nearest neighbor, or 1, and 0 for all other points."""
    op, model = s.op, s.estimator
    by_distance = model.mode == "distance"
    points = (
        s.parameter(model, "_fit_X") if by_distance else op.constant(np.ascontiguousarray(model._fit_X, np.float32))
    )
    nearest, away = nearest_points(op, s.x, points, model.n_neighbors + by_distance, _power(model))
    chosen = op.OneHot(nearest, np.array(len(model._fit_X)), np.array([0, 1], np.float32))
    if not by_distance:
        return op.ReduceSum(chosen, axes=[1], keepdims=False)
    return op.Squeeze(op.MatMul(op.Unsqueeze(away, axes=[1]), chosen), axes=[1])


def _power(model: Estimator) -> float:
    power = power_of(model)
    if power is None:
        raise ModelError(
            f"This {type(model).__name__} has a metric without a form that can be trained: metric={model.metric!r}, "
            f"metric_params={model.metric_params!r}. Those that have one, on dense rows: {', '.join(METRICS)}."
        )
    return power


def _inverse(op: GraphBuilder, distances: ir.Value, near: ir.Value | None = None) -> ir.Value:
    """Return weights 1 / distance; in a row that coincides with points, 1 for these points and 0 for all others."""
    on = op.Cast(op.Equal(distances, 0.0), to=FLOAT)
    free = op.Cast(op.Equal(op.ReduceSum(on, axes=[1], keepdims=True), 0.0), to=FLOAT)
    counted = free if near is None else op.Mul(free, near)
    return op.Add(op.Div(counted, op.Add(distances, on)), on)  # not Mul(Div(1, x), near): onnxruntime 1.19 crashes


def _targets(s: Source) -> ir.Value:
    """Return the targets of the points, or their classes as zeros and ones.

    They are parameters, except the classes if the points themselves are trained.
    """
    model = s.estimator
    if not is_classifier(model):
        return s.parameter(model, "_y", shape=(len(model._y), -1))
    classes = _classes(model)
    outputs = np.reshape(model._y, (-1, len(classes))).T
    parts = [np.eye(len(known), dtype=np.float32)[y] for known, y in zip(classes, outputs, strict=True)]
    votes = np.concatenate(parts, axis=1)
    return s.parameter(model, "_y", votes, held=votes.shape, form="votes") if _counts(model) else s.op.constant(votes)


def _classes(model: Estimator) -> list[np.ndarray]:
    """Return the classes of each output."""
    return list(model.classes_) if several_labels(model) else [np.asarray(model.classes_)]


def _neighbor_mean(s: Source, sums: ir.Value, total: ir.Value) -> Sequence[ir.Value]:
    op, model = s.op, s.estimator
    if not is_classifier(model):
        return (op.Div(sums, total),)
    label = getattr(model, "outlier_label_", None)
    if label is None:
        return _predicted(s, op.Div(sums, total))
    # A row without neighbors gets the outlier label: a 1 in the column of its class, for each output.
    alone = op.Cast(op.Equal(total, 0.0), to=FLOAT)
    mean = op.Div(sums, op.Add(total, alone))
    named = [known == own for known, own in zip(_classes(model), np.ravel(label), strict=True)]
    if not all(np.any(one) for one in named):
        raise ModelError(
            f"This {type(model).__name__} gives rows without neighbors the label {model.outlier_label!r}, which is not "
            f"among its classes and has no probability. Fit it with outlier_label='most_frequent' or with "
            f"one of the classes."
        )
    return _predicted(s, op.Add(mean, op.Mul(alone, np.concatenate(named).astype(np.float32)[np.newaxis])))


def _predicted(s: Source, mean: ir.Value) -> Sequence[ir.Value]:
    if not is_classifier(s.estimator):
        return (mean,)
    # For several outputs, return placeholders: the inference graph makes the labels from the probabilities.
    return s.op.Cast(mean, to=INT64) if several_labels(s.estimator) else s.chosen(mean), mean


APART = "apart"
"""Mark of the node that computes the differences of each row from the centroids."""


def _nearest_centroid(s: Source) -> Sequence[ir.Value]:
    """Return scores 2 log p - d**2, with d the distance from the centroid divided by the within-class deviations."""
    op, model = s.op, s.estimator
    apart = op.Sub(op.Unsqueeze(s.x, axes=[1]), s.parameter(model, "centroids_"))  # (rows, classes, features)
    s.mark(APART, apart)
    spread = np.asarray(model.within_class_std_dev_, np.float32)
    scaled = op.Div(apart, np.where(spread == 0, np.float32(1), spread))
    distance = op.ReduceSum(op.Mul(scaled, scaled), axes=[2], keepdims=False)
    scores = op.Sub(2 * np.log(model.class_prior_).astype(np.float32), distance)
    return s.chosen(scores), scores if s.raw_scores else op.Softmax(scores, axis=1)


CONVERTERS: dict[type, Converter] = {
    KNeighborsClassifier: Converter(_nearest),
    KNeighborsRegressor: Converter(_nearest),
    KNeighborsTransformer: of_rows(
        _neighbor_graph,
        lambda transformer: len(transformer._fit_X),
        lambda transformer: power_of(transformer) is not None,
    ),
    NearestCentroid: Converter(_nearest_centroid),
    RadiusNeighborsClassifier: Converter(_within_radius),
    RadiusNeighborsRegressor: Converter(_within_radius),
}

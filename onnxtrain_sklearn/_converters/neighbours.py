"""Converters: averages over the rows that are nearest, of the rows that a model was fitted to.

Which rows these are changes in steps and has no gradient; how far away they are has one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from sklearn.neighbors import KNeighborsRegressor

from .._graph.builder import GraphBuilder
from .._graph.rewrites.distances import root, squared_distances
from .converter import Converter, parameter

_FLOAT = int(ir.DataType.FLOAT)


def neighbours(op: GraphBuilder, x: ir.Value, model: Any) -> tuple[ir.Value, ir.Value]:
    """Return the positions of the rows that are nearest to each row, and their distances: (rows, neighbours).

    Only those distances are exact, and have a gradient: they are taken of differences, not of what squares differ in.
    """
    fitted, euclidean = parameter(op, "fit_X", model._fit_X), model.effective_metric_ == "euclidean"
    rows = op.Unsqueeze(x, axes=[1])
    if euclidean:
        order = squared_distances(op, x, fitted, np.asarray(model._fit_X).mean(axis=0))
    else:
        order = op.ReduceSum(op.Abs(op.Sub(rows, fitted)), axes=[2], keepdims=False)
    count = int(getattr(model, "n_neighbors_", model.n_neighbors))
    nearest = op.emit("TopK", order, np.array([count]), axis=1, largest=0, outputs=2)[1]
    nearest.dtype = ir.DataType.INT64
    apart = op.Sub(rows, op.Gather(fitted, nearest, axis=0))
    sizes = op.Mul(apart, apart) if euclidean else op.Abs(apart)
    total = op.ReduceSum(sizes, axes=[2], keepdims=False)
    return nearest, root(op, total) if euclidean else total


def measures_differences(model: Any) -> bool:
    """Whether the distances of a model of neighbours are those of :func:`neighbours`."""
    return model.effective_metric_ in ("euclidean", "manhattan") and isinstance(model._fit_X, np.ndarray)


def _by_distance(op: GraphBuilder, x: ir.Value, model: KNeighborsRegressor) -> ir.Value:
    """The mean of the neighbours' targets, each weighted by the inverse of its distance; only those at none count."""
    nearest, distance = neighbours(op, x, model)
    near = op.Equal(distance, 0.0)
    touching = op.Cast(near, to=_FLOAT)
    inverse = op.Reciprocal(op.Where(near, 1.0, distance))
    touched = op.Greater(op.ReduceSum(touching, axes=[1], keepdims=True), 0.0)
    weights = op.Unsqueeze(op.Where(touched, touching, inverse), axes=[2])
    targets = parameter(op, "y", np.reshape(model._y, (len(model._y), -1)))
    total = op.ReduceSum(op.Mul(weights, op.Gather(targets, nearest, axis=0)), axes=[1], keepdims=False)
    return op.Div(total, op.ReduceSum(weights, axes=[1], keepdims=False))


def _weighs_distances(model: Any) -> bool:
    return model.weights == "distance" and measures_differences(model)


CONVERTERS: dict[type, Converter] = {
    KNeighborsRegressor: Converter(_by_distance, lambda model: int(np.size(model._y[0])), _weighs_distances),
}

"""The rows that are nearest to each row, of those that a model was fitted to.

Which rows these are changes in steps and has no gradient; how far away they are has one. Differences of zero have the
gradient zero, whatever their power.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from .._graph.builder import GraphBuilder
from .._graph.rewrites.distances import root, squared_distances

METRICS = ("euclidean", "manhattan", "minkowski")
"""What :func:`distances` computes."""


def power_of(model: Any) -> float | None:
    """Return the power of Minkowski's that the metric of a model of neighbours is; None where it is another one."""
    parameters = model.effective_metric_params_ or {}
    has_shares = parameters.get("w") is not None
    if model.effective_metric_ not in METRICS or has_shares or not isinstance(model._fit_X, np.ndarray):
        return None
    named = {"euclidean": 2.0, "manhattan": 1.0}
    return named.get(model.effective_metric_) or float(parameters["p"])


def nearest_points(
    op: GraphBuilder, x: ir.Value, points: ir.Value, count: int, power: float
) -> tuple[ir.Value, ir.Value]:
    """Return the positions of the points that are nearest to each row, and their distances: (rows, neighbours).

    Only those distances are exact, and have a gradient: they are taken of differences, not of what squares differ in.
    """
    if power == 2:
        assert points.const_value is not None
        order = squared_distances(op, x, points, points.const_value.numpy().mean(axis=0, dtype=float))
    else:
        order = distances(op, x, points, power)
    nearest = op.emit("TopK", order, np.array([count]), axis=1, largest=0, outputs=2)[1]
    nearest.dtype = ir.DataType.INT64
    return nearest, distances(op, x, op.Gather(points, nearest, axis=0), power)


def distances(op: GraphBuilder, x: ir.Value, points: ir.Value, power: float) -> ir.Value:
    """Return the distances of each row to all points, or to its own ones, if these are (rows, points, features)."""
    apart = op.Sub(op.Unsqueeze(x, axes=[1]), points)
    if power == 2:
        return root(op, op.ReduceSum(op.Mul(apart, apart), axes=[2], keepdims=False))
    sizes = op.Abs(apart)
    if power == 1:
        return op.ReduceSum(sizes, axes=[2], keepdims=False)
    off = op.Greater(sizes, 0.0)  # below a power of one, the slope at zero is infinite
    powers = op.Where(off, op.Pow(op.Where(off, sizes, 1.0), power), 0.0)
    total = op.ReduceSum(powers, axes=[2], keepdims=False)
    off = op.Greater(total, 0.0)
    return op.Where(off, op.Exp(op.Div(op.Log(op.Where(off, total, 1.0)), power)), 0.0)

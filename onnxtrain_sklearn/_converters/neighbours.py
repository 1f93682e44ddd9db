"""The rows that are nearest to each row, of those that a model was fitted to.

Which rows these are changes in steps and has no gradient; how far away they are has one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from .._graph.builder import GraphBuilder
from .._graph.rewrites.distances import root, squared_distances
from .source import parameter


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

"""The weight of a row in the loss: the given one times that of its class, or the mean of those of its labels.

The step has it in its graph, so that a loop in any language gives plain weights of the rows, as ``fit`` is given them.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from .._graph.builder import GraphBuilder
from .source import ExportSource


def label_weights(source: ExportSource) -> tuple[float, ...] | None:
    """Return the weight of each class; None where a label does not change the weight of its row."""
    positions = source.parts.settings.positions
    return source.class_weights if positions is None else positions.label_weights


def emit_row_weights(op: GraphBuilder, source: ExportSource, weight: ir.Value, y: ir.Value) -> ir.Value:
    """Emit the weights of the rows of a minibatch from the given ones (N,) and the target."""
    known, kind = label_weights(source), op.dtype.numpy()
    assert known is not None
    if source.parts.settings.positions is not None:
        own = op.Gather(np.array([*known, 0.0], kind), y)  # the index -1, of a label that is ignored, is the last
        return op.Mul(weight, op.ReduceMean(own, axes=[1], keepdims=False))
    if source.head.task == "multiclass":
        return op.Mul(weight, op.Gather(np.array(known, kind), y))
    second = op.Reshape(op.Greater(y, 0.5), [-1])
    return op.Mul(weight, op.Where(second, np.array(known[1], kind), np.array(known[0], kind)))


def weights_of_rows(known: list[float] | None, target: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return what the graph of a step makes of the weights of all rows."""
    if known is None:
        return weights
    indices = target.reshape(len(target), math.prod(target.shape[1:])).astype(np.int64)
    return np.asarray(weights * np.array([*known, 0.0])[indices].mean(axis=1))

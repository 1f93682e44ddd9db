"""The mean of what several networks predict, whose probabilities give the labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from .._graph.builder import GraphBuilder
from .._graph.links import Task
from .graph import class_constant


def averaged_predictions(
    op: GraphBuilder, results: Sequence[Sequence[ir.Value]], task: Task, classes: np.ndarray | None
) -> Sequence[ir.Value]:
    """Return the mean of the last outputs, and for classifiers the labels before it.

    A row has the label of the largest mean; of several labels that are 0 or 1, those above one half are 1.
    """
    if task == "regression":
        return [_mean_around(op, [result[-1] for result in results])]
    total = results[0][-1]
    for result in results[1:]:
        total = op.Add(total, result[-1])
    mean = op.Mul(total, 1 / len(results))
    if task == "multilabel":
        return [op.Cast(op.Greater(mean, 0.5), to=ir.DataType.INT64), mean]
    assert classes is not None
    return [op.Gather(class_constant(classes), op.ArgMax(mean, axis=1, keepdims=False)), mean]


def _mean_around(op: GraphBuilder, values: Sequence[ir.Value]) -> ir.Value:
    """Return the mean, which is exact where all values are equal."""
    first, *others = values
    differences = [op.Sub(other, first) for other in others]
    total = differences[0]
    for difference in differences[1:]:
        total = op.Add(total, difference)
    return op.Add(first, op.Mul(total, 1 / len(values)))

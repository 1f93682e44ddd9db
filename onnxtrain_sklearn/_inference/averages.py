"""The mean of what several networks predict, of which the largest probability gives the label."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from .._graph.builder import GraphBuilder
from .graph import class_constant


def averaged_predictions(
    op: GraphBuilder, results: Sequence[Sequence[ir.Value]], classes: np.ndarray | None
) -> Sequence[ir.Value]:
    """Return the mean of the last outputs, and for classifiers the label with the largest mean before it."""
    if classes is None:
        return [_mean_around(op, [result[-1] for result in results])]
    total = results[0][-1]
    for result in results[1:]:
        total = op.Add(total, result[-1])
    mean = op.Mul(total, 1 / len(results))
    return [op.Gather(class_constant(classes), op.ArgMax(mean, axis=1, keepdims=False)), mean]


def _mean_around(op: GraphBuilder, values: Sequence[ir.Value]) -> ir.Value:
    """Return the mean, which is exact where all values are equal."""
    first, *others = values
    differences = [op.Sub(other, first) for other in others]
    total = differences[0]
    for difference in differences[1:]:
        total = op.Add(total, difference)
    return op.Add(first, op.Mul(total, 1 / len(values)))

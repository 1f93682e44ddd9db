"""Links, which map scores to predictions, and the tasks that choose one.

:func:`apply_link` emits the predictions of a :data:`LINKS` name. A loss names its link; the inference graph applies it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import numpy as np
import onnx_ir as ir

from ..exceptions import nearest
from ..graph import GraphBuilder

Task: TypeAlias = Literal["regression", "binary", "multiclass", "multilabel", "multioutput"]

Link: TypeAlias = Literal["identity", "exp", "sigmoid", "softmax", "hard_sigmoid", "clipped_margin"]

TargetScaling: TypeAlias = Literal["standard", "mean"]


def apply_link(op: GraphBuilder, link: Link, scores: ir.Value) -> ir.Value:
    """Emit the predictions of scores of the shape (N, k); for prediction only, not to be differentiated.

    "hard_sigmoid" is ``(clip(s, -1, 1) + 1) / 2``. "clipped_margin" is the same for one column; several columns are
    divided by their sum, and if that is 0 all classes are equally likely. The other names are the usual functions.
    """
    if link not in LINKS:
        raise ValueError(f"Unknown link {link!r}.{nearest(link, LINKS)}")
    return LINKS[link](op, scores)


def _emit_hard_sigmoid(op: GraphBuilder, scores: ir.Value) -> ir.Value:
    if op.dtype == ir.DataType.DOUBLE:  # onnxruntime's kernel supports only float32
        return op.Clip(op.Add(op.Mul(scores, 0.5), 0.5), 0.0, 1.0)
    return op.HardSigmoid(scores, alpha=0.5, beta=0.5)


def _clipped_margin(op: GraphBuilder, scores: ir.Value) -> ir.Value:
    margins, shape = _emit_hard_sigmoid(op, scores), op.shape(scores)
    if shape is not None and shape[-1] == 1:
        return margins
    empty = op.Equal(row_sum(op, margins), 0.0)
    margins = op.Where(empty, 1.0, margins)
    return op.Div(margins, row_sum(op, margins))


LINKS: dict[str, Callable[[GraphBuilder, ir.Value], ir.Value]] = {
    "identity": lambda op, scores: scores,
    "exp": lambda op, scores: op.Exp(scores),
    "sigmoid": lambda op, scores: op.Sigmoid(scores),
    "softmax": lambda op, scores: op.Softmax(scores, axis=-1),
    "hard_sigmoid": _emit_hard_sigmoid,
    "clipped_margin": _clipped_margin,
}


def row_sum(op: GraphBuilder, x: ir.Value) -> ir.Value:
    """Emit the sum of each row, a column (N, 1)."""
    return op.ReduceSum(x, axes=[-1], keepdims=True)


def split_columns(op: GraphBuilder, value: ir.Value, groups: Sequence[int]) -> list[ir.Value]:
    """Emit the columns of each group, in order."""
    ends = np.cumsum(groups).tolist()
    return [op.Slice(value, [end - size], [end], [1]) for size, end in zip(groups, ends, strict=True)]

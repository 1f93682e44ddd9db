"""Links from scores to predictions, and scores with an axis of positions or ensemble members.

:func:`apply_link` emits the predictions for a link in :data:`LINKS`. A loss names its link, and the inference graph
applies it.

A loss and a link see matrices (N, k). Scores may have one more axis: positions within a row (the words of a text, the
pixels of an image; :class:`Positions`) or members of an ensemble in one graph (:func:`rows_of_members`). The functions
below reshape these scores to rows, and bring the results of the rows back together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import onnx_ir as ir

from ..exceptions import ModelError, nearest
from ..graph import GraphBuilder

Task: TypeAlias = Literal["regression", "binary", "multiclass", "multilabel", "multioutput"]

Link: TypeAlias = Literal["identity", "exp", "sigmoid", "softmax", "hard_sigmoid", "clipped_margin", "ordinal"]

TargetScaling: TypeAlias = Literal["standard", "mean"]


def apply_link(op: GraphBuilder, link: Link, scores: ir.Value) -> ir.Value:
    """Emit the predictions for scores of shape (N, k). They are not meant to be differentiated.

    "hard_sigmoid" is ``(clip(s, -1, 1) + 1) / 2``. "clipped_margin" is the same for one column; several columns are
    divided by their sum; if it is 0, all classes are equally likely. "ordinal" gives the probabilities of k + 1 ordered
    classes: score j is the log-odds of a class after j, among the classes from j on. All other names are the usual
    functions.
    """
    if link not in LINKS:
        raise ValueError(f"Unknown link {link!r}.{nearest(link, LINKS)}")
    return LINKS[link](op, scores)


def _emit_hard_sigmoid(op: GraphBuilder, scores: ir.Value) -> ir.Value:
    if op.dtype == ir.DataType.DOUBLE:  # onnxruntime's kernel supports only float32
        return op.Clip(op.Add(op.Mul(scores, 0.5), 0.5), 0.0, 1.0)
    return op.HardSigmoid(scores, alpha=0.5, beta=0.5)


def _clipped_margin(op: GraphBuilder, scores: ir.Value) -> ir.Value:
    margins = _emit_hard_sigmoid(op, scores)
    shape = op.shape(scores)
    if shape is not None and shape[-1] == 1:
        return margins
    empty = op.Equal(row_sum(op, margins), 0.0)
    margins = op.Where(empty, 1.0, margins)
    return op.Div(margins, row_sum(op, margins))


def log_probabilities_in_order(op: GraphBuilder, scores: ir.Value) -> ir.Value:
    """Emit the log-probabilities (..., k + 1) of ordered classes from scores (..., k).

    Score j is the log-odds that the class comes after j, given that it does not come before j.
    """
    k = int(str((op.shape(scores) or (0,))[-1]))
    beyond, at = op.Neg(op.Softplus(op.Neg(scores))), op.Neg(op.Softplus(scores))
    passed = np.triu(np.ones((k, k + 1)), 1).astype(op.dtype.numpy())  # class c passes each j < c, and stops at c
    return op.Add(op.MatMul(beyond, passed), op.MatMul(at, np.eye(k, k + 1, dtype=op.dtype.numpy())))


def _mean_in_order(op: GraphBuilder, values: ir.Value) -> ir.Value:
    """Emit the scores of ordered classes whose probabilities are the means over the members."""
    logs = _log_mean_exp(op, log_probabilities_in_order(op, values))
    k = int(str((op.shape(values) or (0,))[-1]))
    own = [op.Slice(logs, [j], [j + 1], [1]) for j in range(k)]
    beyond = [op.ReduceLogSumExp(op.Slice(logs, [j + 1], [k + 1], [1]), axes=[1], keepdims=True) for j in range(k)]
    return op.Concat(*(op.Sub(tail, one) for tail, one in zip(beyond, own, strict=True)), axis=1)


LINKS: dict[str, Callable[[GraphBuilder, ir.Value], ir.Value]] = {
    "identity": lambda op, scores: scores,
    "exp": lambda op, scores: op.Exp(scores),
    "sigmoid": lambda op, scores: op.Sigmoid(scores),
    "softmax": lambda op, scores: op.Softmax(scores, axis=-1),
    "hard_sigmoid": _emit_hard_sigmoid,
    "clipped_margin": _clipped_margin,
    "ordinal": lambda op, scores: op.Exp(log_probabilities_in_order(op, scores)),
}


def row_sum(op: GraphBuilder, x: ir.Value) -> ir.Value:
    """Emit the sum of each row, a column (N, 1)."""
    return op.ReduceSum(x, axes=[-1], keepdims=True)


def split_columns(op: GraphBuilder, value: ir.Value, groups: Sequence[int]) -> list[ir.Value]:
    """Emit the columns of each group as a separate value; ``groups`` are their numbers of columns."""
    ends = np.cumsum(groups).tolist()
    return [op.Slice(value, [end - size], [end], [1]) for size, end in zip(groups, ends, strict=True)]


# Positions. The scores of a row have the axes of the positions and an axis of classes, which is the last or the first.
# For loss and labels, each position becomes a row: (N * positions, k).


@dataclass(frozen=True)
class Positions:
    """The axes of the scores of rows with a label for each position.

    Attributes
    ----------
    rank : int
        Number of axes of the positions.
    axis : {1, -1}
        Axis of the classes in the scores; they may lack it if each position has one score.
    """

    rank: int
    axis: int

    def classes_last(self, scores: np.ndarray) -> np.ndarray:
        """Return scores as an array of shape (N, *positions, k)."""
        if scores.ndim == self.rank + 1:
            return scores[..., None]
        return np.moveaxis(scores, self.axis, -1)

    def emit_classes_last(self, op: GraphBuilder, scores: ir.Value) -> ir.Value:
        """Emit scores as a value of shape (N, *positions, k)."""
        shape = op.shape(scores)
        if shape is None or len(shape) not in (self.rank + 1, self.rank + 2):
            raise ModelError(
                f"The scores {scores.name!r} have {'an unknown shape' if shape is None else f'the shape {shape}'}, "
                f"but for labels at positions with {self.rank} axes they must have {self.rank + 2}."
            )
        if len(shape) == self.rank + 1:
            return op.Unsqueeze(scores, axes=[len(shape)])
        return scores if self.axis == -1 else op.Transpose(scores, perm=[0, *range(2, len(shape)), 1])


def as_position_rows(
    op: GraphBuilder, scores: ir.Value, positions: Positions, columns: int
) -> tuple[ir.Value, Callable[[ir.Value], ir.Value]]:
    """Emit one row per position; return the rows, and a function that reshapes their results to the positions."""
    whole = positions.emit_classes_last(op, scores)
    places = op.Slice(op.Shape(whole), [0], [-1], [0])

    def in_places(result: ir.Value) -> ir.Value:
        shape = op.shape(result)
        matrix = shape is not None and len(shape) == 2
        return op.Reshape(result, op.Concat(places, [shape[1]], axis=0) if matrix and shape is not None else places)

    return op.Reshape(whole, [-1, columns]), in_places


def position_weights(op: GraphBuilder, y: ir.Value, label_weights: tuple[float, ...]) -> ir.Value:
    """Emit the share of each position in its row, in proportion to the weight of its label; label -1 has weight 0.

    If all weights of a row are 0, all its shares are 0.
    """
    table = np.array([*label_weights, 0.0], op.dtype.numpy())  # the index -1 is the last
    own = op.Gather(table, y)
    total = op.ReduceSum(own, axes=[1], keepdims=True)
    return op.Div(own, op.Max(total, float(np.finfo(np.float32).tiny)))


# Members. Scores have the shape (N, members, n_scores). The loss of a row is the mean over the members. A prediction
# is the mean of the members' predictions: probabilities, means for a log link, or scores if the loss gives no
# probabilities.


def rows_of_members(op: GraphBuilder, scores: ir.Value, members: int, n_scores: int, rows: int) -> ir.Value:
    """Emit the scores as one row per member, (rows * members, n_scores); raise ModelError if their shape is wrong."""
    shape = op.shape(scores)
    if shape != (rows, members, n_scores):
        found = "an unknown shape" if shape is None else f"the shape ('N', {', '.join(map(str, shape[1:]))})"
        raise ModelError(
            f"The builder has n_members={members}, so the scores of its graph must have the shape "
            f"('N', {members}, {n_scores}); {scores.name!r} has {found}."
        )
    return op.Reshape(scores, [rows * members, n_scores])


def repeated_rows(op: GraphBuilder, values: ir.Value, members: int, columns: int | None) -> ir.Value:
    """Emit each row of (N, columns) once per member; if ``columns`` is None, each number of (N,)."""
    row = [] if columns is None else [columns]
    wide = op.Expand(op.Unsqueeze(values, axes=[1]), [1, members, *[1] * len(row)])
    return op.Reshape(wide, [-1, *row])


def mean_of_members(op: GraphBuilder, scores: ir.Value, link: Link, groups: Sequence[int] = ()) -> ir.Value:
    """Emit scores (N, n_scores) such that ``link(scores)`` is the mean of ``link(member's scores)`` over the members.

    ``groups`` holds the number of columns of each of several labels, to which the link is applied separately.
    """
    mean = _MEANS[link]
    if not groups:
        return mean(op, scores)
    ends = [sum(groups[: i + 1]) for i in range(len(groups))]
    parts = [op.Slice(scores, [end - size], [end], [2]) for size, end in zip(groups, ends, strict=True)]
    return op.Concat(*(mean(op, part) for part in parts), axis=1)


def _mean(op: GraphBuilder, values: ir.Value) -> ir.Value:
    return op.ReduceMean(values, axes=[1], keepdims=False)


def _log_mean_exp(op: GraphBuilder, values: ir.Value) -> ir.Value:
    shape = op.shape(values)
    assert shape is not None
    return op.Sub(op.ReduceLogSumExp(values, axes=[1], keepdims=False), math.log(int(str(shape[1]))))


def _mean_log_odds(op: GraphBuilder, scores: ir.Value) -> ir.Value:
    """Emit ``log p - log(1 - p)`` of the mean probability p; in float32, 1 - p itself is 0 for scores above 17."""
    right = _log_mean_exp(op, op.Neg(op.Softplus(op.Neg(scores))))
    return op.Sub(right, _log_mean_exp(op, op.Neg(op.Softplus(scores))))


def _mean_margin(link: Link) -> Callable[[GraphBuilder, ir.Value], ir.Value]:
    """Return the function that averages members for a link that is ``(s + 1) / 2`` of scores in [-1, 1]."""
    return lambda op, scores: op.Sub(op.Mul(_mean(op, apply_link(op, link, scores)), 2.0), 1.0)


_MEANS: dict[Link, Callable[[GraphBuilder, ir.Value], ir.Value]] = {
    "identity": _mean,
    "exp": _log_mean_exp,
    "sigmoid": _mean_log_odds,
    "softmax": lambda op, scores: _log_mean_exp(op, op.LogSoftmax(scores, axis=-1)),
    "hard_sigmoid": _mean_margin("hard_sigmoid"),
    "clipped_margin": _mean_margin("clipped_margin"),
    "ordinal": _mean_in_order,
}

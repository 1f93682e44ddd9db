"""Ensembles in one graph: scores of the shape (N, members, n_outputs).

The loss of a row is the mean over the members. A prediction is the mean of the members' probabilities, of their means
for a log link, or of their scores for losses that give no probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import onnx_ir as ir

from ..exceptions import ModelError
from .builder import GraphBuilder
from .links import Link, apply_link


def rows_of_members(op: GraphBuilder, scores: ir.Value, members: int, n_outputs: int, rows: int) -> ir.Value:
    """Emit the scores as one row per member, (rows * members, n_outputs); raise ModelError if their shape is wrong."""
    shape = op.shape(scores)
    if shape != (rows, members, n_outputs):
        found = "an unknown shape" if shape is None else f"the shape ('N', {', '.join(map(str, shape[1:]))})"
        raise ModelError(
            f"The builder has n_members={members}, so the scores of its graph must have the shape "
            f"('N', {members}, {n_outputs}); {scores.name!r} has {found}."
        )
    return op.Reshape(scores, [rows * members, n_outputs])


def repeated_rows(op: GraphBuilder, values: ir.Value, members: int, columns: int | None) -> ir.Value:
    """Emit each row of (N, columns), or each number of (N,) where ``columns`` is None, once per member."""
    row = [] if columns is None else [columns]
    wide = op.Expand(op.Unsqueeze(values, axes=[1]), [1, members, *[1] * len(row)])
    return op.Reshape(wide, [-1, *row])


def mean_of_members(op: GraphBuilder, scores: ir.Value, link: Link, groups: Sequence[int] = ()) -> ir.Value:
    """Emit scores (N, n_outputs) whose link is the mean over the members of the link of their scores.

    ``groups`` holds the number of columns of each of several labels; each has a link of its own.
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
    """Emit ``log p - log(1 - p)`` of the mean probability p; in float32 1 - p itself is 0 for scores above 17."""
    right = _log_mean_exp(op, op.Neg(op.Softplus(op.Neg(scores))))
    return op.Sub(right, _log_mean_exp(op, op.Neg(op.Softplus(scores))))


def _mean_margin(link: Link) -> Callable[[GraphBuilder, ir.Value], ir.Value]:
    """Return the mean for links that are ``(s + 1) / 2`` of scores in [-1, 1]."""
    return lambda op, scores: op.Sub(op.Mul(_mean(op, apply_link(op, link, scores)), 2.0), 1.0)


_MEANS: dict[Link, Callable[[GraphBuilder, ir.Value], ir.Value]] = {
    "identity": _mean,
    "exp": _log_mean_exp,
    "sigmoid": _mean_log_odds,
    "softmax": lambda op, scores: _log_mean_exp(op, op.LogSoftmax(scores, axis=-1)),
    "hard_sigmoid": _mean_margin("hard_sigmoid"),
    "clipped_margin": _mean_margin("clipped_margin"),
}

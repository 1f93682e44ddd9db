"""Terms of the loss of a minibatch: losses of rows, their weighted mean, the penalty, one-hot labels.

:func:`append_loss` calls a loss for the rows of a minibatch and emits their weighted mean; :func:`append_pairwise_loss`
does so for pairs of classes; :func:`row_means` emits the losses of rows without taking the mean. :func:`append_penalty`
emits the penalty on the weights for graphs of users; training calls :func:`weighted_penalty`. Expressions that several
losses share, such as :func:`margin`, are at the end. A row of weight zero has no effect: its loss, which must be
finite, is multiplied by zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from ..exceptions import ModelError, instead_of
from ..graph import GraphBuilder, Operand, operators_of
from .batch_axis import ROW_LOSSES
from .links import Link, Task, row_sum, split_columns

_NORMALIZED = "normalized"
"""Key in the ``meta`` of row weights that sum to 1 already, which :func:`as_normalized` marks."""


LEAST_TOTAL = float(np.finfo(np.float32).tiny)
"""Lower bound of the sum of the weights, so that a minibatch of weights of zero has the loss 0, not NaN."""


class RowLoss(Protocol):
    """A loss of rows; :class:`onnxtrain_sklearn.losses.Loss` documents it."""

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: Any, link: Link) -> ir.Value: ...

    def link(self, task: Task) -> Link: ...


def append_loss(
    op: GraphBuilder,
    loss: RowLoss,
    *,
    scores: ir.Value,
    y: ir.Value | Mapping[str, ir.Value],
    sample_weight: ir.Value,
    link: Link,
    groups: Sequence[int] = (),
    ignores: bool = False,
    shares: ir.Value | None = None,
    numbers: bool = False,
) -> ir.Value:
    """Emit the scalar ``sum_i w_i mean_j l_ij / sum_i w_i`` of a minibatch; 0 if all weights are zero.

    ``scores`` and ``y`` have the static shape (N, k), ``sample_weight`` (N,). Rows of weight zero have no effect if
    their loss is finite; with the link "exp", if their scores and targets are finite. ``y`` holds the targets by name
    if the loss declares them; scores may then have further axes.

    ``groups`` holds the number of columns of each label: the loss of a row is the mean of the losses of its labels.
    With ``ignores``, labels with the target -1 are ignored: the loss of a row is the mean over its other labels, or 0
    if there are none. If the targets are ``numbers``, those that are NaN are ignored. With ``shares`` (N, n_labels),
    the loss of a row is the sum of the losses of its labels, weighted by their shares; those of share 0 are ignored.
    """
    if isinstance(y, Mapping):
        rows, columns = _row_losses(op, loss, scores, y, link)
    else:
        rows, columns = _losses_of_rows(
            op, loss, scores, y, sample_weight, link, groups, ignores=ignores, shares=shares, numbers=numbers
        )
    return weighted_row_mean(op, rows, sample_weight, columns)


def row_means(
    op: GraphBuilder,
    loss: RowLoss,
    *,
    scores: ir.Value,
    y: ir.Value,
    weight: ir.Value,
    link: Link,
    groups: Sequence[int] = (),
    ignores: bool = False,
    shares: ir.Value | None = None,
    numbers: bool = False,
) -> ir.Value:
    """Emit the loss of each row as a column (N, 1), the mean over its columns or labels.

    The operands are those of :func:`append_loss`. Losses are not multiplied by ``weight``: a weight of zero only keeps
    the loss of its row finite.
    """
    rows, columns = _losses_of_rows(
        op, loss, scores, y, weight, link, groups, ignores=ignores, shares=shares, numbers=numbers
    )
    return rows if columns == 1 else op.Mul(row_sum(op, rows), 1.0 / columns)


def append_pairwise_loss(
    op: GraphBuilder, loss: RowLoss, *, scores: ir.Value, y: ir.Value, sample_weight: ir.Value, n_classes: int
) -> ir.Value:
    """Emit the loss of one-vs-one classifiers, as :func:`append_loss` does for other models.

    ``scores`` has a column for each pair of classes i < j, in the order (0, 1), (0, 2), ..., (1, 2), ...; a positive
    score predicts j. ``y`` (N,) holds class indices. The loss of a row is the mean of the binary losses of the
    ``n_classes - 1`` pairs that contain its class: each binary classifier is trained on the rows of its two classes.
    """
    # Tables by class and pair: whether the class is the second of the pair, and whether it is in the pair.
    pairs = np.array(list(combinations(range(n_classes), 2)))
    classes = np.arange(n_classes)[:, None]
    second = op.Gather(pairs[:, 1] == classes, y)
    member = op.Gather((pairs[:, 0] == classes) | (pairs[:, 1] == classes), y)
    with operators_of(type(loss).__name__):
        rows = loss(op, scores, op.Cast(second, to=op.dtype), loss.link("binary"))
    if op.shape(rows) != op.shape(scores):
        raise ModelError(f"{type(loss).__name__} gives one loss a row, but scores of pairs need one for each of them.")
    return weighted_row_mean(op, op.Mul(rows, op.Cast(member, to=op.dtype)), sample_weight, n_classes - 1)


def weighted_row_mean(op: GraphBuilder, rows: ir.Value, sample_weight: ir.Value, columns: int) -> ir.Value:
    """Emit the mean over ``columns`` of each row, and the weighted mean of these over the rows."""
    rows.meta[ROW_LOSSES] = True
    made = sample_weight.producer()
    normalized = made.inputs[0] if made is not None and _NORMALIZED in sample_weight.meta else None
    if normalized is None:
        total = op.Max(op.ReduceSum(sample_weight, keepdims=False), LEAST_TOTAL)
        normalized = op.Div(sample_weight, op.Mul(total, float(columns)) if columns != 1 else total)
        normalized = op.Unsqueeze(normalized, axes=[1])
    elif columns != 1:
        normalized = op.Mul(normalized, 1.0 / columns)
    return op.ReduceSum(op.Mul(normalized, rows), keepdims=False)


def as_normalized(op: GraphBuilder, column: ir.Value, batch: int) -> ir.Value:
    """Return a ``column`` (N, 1) of row weights whose sum is 1 as a vector (N,), marked as normalized.

    :func:`weighted_row_mean` recognizes the mark and multiplies by the column, without a sum and a division per step.
    """
    weights = op.Reshape(column, [batch])
    weights.meta[_NORMALIZED] = True
    return weights


def append_penalty(op: GraphBuilder, weights: ir.Value, *, alpha: float, l1_ratio: float) -> ir.Value:
    """Emit the scalar ``alpha (l1_ratio |w|_1 + (1 - l1_ratio) / 2 |w|²)`` of a vector of weights."""
    squares, absolutes = penalty_factors(alpha, l1_ratio)
    return weighted_penalty(op, weights, squares, absolutes if l1_ratio else None)


def penalty_factors(alpha: float, l1_ratio: float) -> tuple[float, float]:
    """Return two factors in the penalty: that of the sum of squares, and that of the sum of absolute values."""
    return 0.5 * alpha * (1.0 - l1_ratio), alpha * l1_ratio


def weighted_penalty(op: GraphBuilder, weights: ir.Value, squares: Operand, absolutes: Operand) -> ir.Value:
    """Emit the penalty: ``squares`` times the sum of squares plus ``absolutes`` times the sum of absolute values."""
    square = op.Mul(op.ReduceSum(op.Mul(weights, weights), keepdims=False), squares)
    if absolutes is None:
        return square
    return op.Add(square, op.Mul(op.ReduceSum(op.Abs(weights), keepdims=False), absolutes))


def _losses_of_rows(
    op: GraphBuilder,
    loss: RowLoss,
    scores: ir.Value,
    y: ir.Value,
    weight: ir.Value,
    link: Link,
    groups: Sequence[int],
    *,
    ignores: bool,
    shares: ir.Value | None,
    numbers: bool,
) -> tuple[ir.Value, int]:
    """Return the losses of the rows and their number of columns."""
    if ignores:
        # Take the mean of each row over the labels that are not ignored. For ignored labels, whose targets are -1, set
        # scores and targets to 0, so that the loss is finite; for missing numbers, set the target to 1, which all
        # losses accept. A loss may have more scores than numbers: they stay, because each belongs to one number.
        if shares is not None:
            column_of = np.repeat(np.arange(len(groups)), groups) if groups else None
            of_columns = shares if column_of is None else op.Gather(shares, column_of, axis=1)
            there = op.Greater(of_columns, np.zeros((), op.dtype.numpy()))
        else:
            there = op.Equal(y, y) if numbers else op.Greater(y, -0.5)  # NaN differs from itself
        counted = op.Cast(there, to=op.dtype)
        scores = op.Mul(scores, counted) if op.shape(scores) == op.shape(y) else scores
        y = op.Where(there, y, np.ones((), op.dtype.numpy())) if numbers else op.Mul(y, counted)
        find = _group_losses if groups else _row_losses
        rows, columns = find(op, loss, scores, y, link, *([groups] if groups else []))
        labels = len(groups) or (op.shape(y) or (0, 0))[1]
        if columns != labels:
            raise ModelError(
                f"{type(loss).__name__} gives one loss for all {labels} labels or numbers of a row, so those of y that "
                f"do not count (ignore_label, NaN) would affect it: return a loss for each, (N, {labels}), or leave "
                f"these rows out."
            )
        if shares is not None:
            return row_sum(op, op.Mul(rows, shares)), 1
        if groups:
            counted = op.Gather(counted, np.cumsum([0, *groups[:-1]]).astype(np.int64), axis=1)
        total = op.Max(row_sum(op, counted), 1.0)
        return row_sum(op, op.Mul(rows, op.Div(counted, total))), 1
    if link == "exp":  # 0 · exp(100) is NaN in float32, and so is 0 · 3e38 / 0.5
        nonzero = op.Cast(op.Cast(weight, to=ir.DataType.BOOL), to=op.dtype)
        nonzero = op.Unsqueeze(nonzero, axes=[1])
        scores, y = op.Mul(scores, nonzero), op.Mul(y, nonzero)
    if groups:
        return _group_losses(op, loss, scores, y, link, groups)
    return _row_losses(op, loss, scores, y, link)


def _row_losses(
    op: GraphBuilder, loss: RowLoss, scores: ir.Value, y: ir.Value | Mapping[str, ir.Value], link: Link
) -> tuple[ir.Value, int]:
    """Return the losses of the rows and their number of columns."""
    with operators_of(type(loss).__name__):
        rows: object = loss(op, scores, y, link)
    if not isinstance(rows, ir.Value):
        raise ModelError(
            f"{type(loss).__name__} must return the result of an operator (op.Abs(x)), {instead_of(rows)}."
        )
    if rows.dtype not in (None, op.dtype):
        raise ModelError(
            f"{type(loss).__name__} must return losses of the type of the scores, {op.dtype}, got {rows.dtype}: "
            f"op.Cast(x, to={int(op.dtype)})."
        )
    got = op.shape(rows)
    if isinstance(y, Mapping):
        n_rows = (op.shape(scores) or (None,))[0]
        if got is not None and len(got) == 2 and got[0] == n_rows and isinstance(got[1], int):
            return rows, got[1]
        raise ModelError(
            f"{type(loss).__name__} must return losses of shape (N, 1) or (N, k) for N = {n_rows} rows, got {got}. "
            f"Keep the reduced axes: op.ReduceSum(x, axes=[-1], keepdims=True)."
        )
    expected = op.shape(y)
    expected = op.shape(scores) if expected is not None and len(expected) == 1 else expected  # of class indices
    if expected is not None and got is not None and got in (expected, (expected[0], 1)):
        return rows, int(str(got[1]))
    raise ModelError(
        f"{type(loss).__name__} must return losses of shape (N, k) or (N, 1) for targets of shape (N, k) = {expected}, "
        f"got {got}. Keep the reduced axis: op.ReduceSum(x, axes=[-1], keepdims=True)."
    )


def _group_losses(
    op: GraphBuilder, loss: RowLoss, scores: ir.Value, y: ir.Value, link: Link, groups: Sequence[int]
) -> tuple[ir.Value, int]:
    """Return a column of losses for each label, computed from the label's columns, and the number of labels."""
    parts = []
    for own, true in zip(*(split_columns(op, value, groups) for value in (scores, y)), strict=True):
        rows, columns = _row_losses(op, loss, own, true, link)
        parts.append(rows if columns == 1 else op.Mul(row_sum(op, rows), 1.0 / columns))
    return op.Concat(*parts, axis=1), len(groups)


def margin(op: GraphBuilder, scores: ir.Value, y: ir.Value) -> ir.Value:
    """Emit the margin ``(2 y - 1) s``: the score where the target is 1, minus the score where it is 0."""
    return op.Mul(op.Sub(op.Mul(y, 2.0), 1.0), scores)


def class_log_odds(op: GraphBuilder, scores: ir.Value, y: ir.Value) -> ir.Value:
    """Emit ``log(p_t / (1 - p_t))`` of the true class: its score minus the log-sum-exp of all other scores."""
    others = op.Sub(scores, op.Mul(y, 1e30))  # takes the true class out of the sum
    return op.Sub(row_sum(op, op.Mul(y, scores)), op.ReduceLogSumExp(others, axes=[-1], keepdims=True))


def quadratic_then_linear(op: GraphBuilder, x: ir.Value, bound: float) -> ir.Value:
    """Emit ``x²`` for ``0 <= x <= bound`` and its tangent for larger x, as ``c (2 x - c)`` with ``c = min(x, bound)``.

    At ``x = bound`` the derivative ``2 c + 2 (x - c) dc/dx`` is ``2 c``, whichever value an engine takes for dc/dx.
    """
    smaller = op.Min(x, bound)
    return op.Mul(smaller, op.Sub(op.Mul(x, 2.0), smaller))


# Mark one-hot values. Their rows sum to one, so the gradient of a log-likelihood needs no sum over classes.


_ONE_HOT = "onnxtrain/one_hot"


def mark_one_hot(value: ir.Value) -> ir.Value:
    """Mark the result of a node as one-hot rows, one in one column and zero in the others; return it."""
    node = value.producer()
    assert node is not None
    node.meta[_ONE_HOT] = True
    return value


def is_one_hot(value: ir.Value | None) -> bool:
    """Return True if :func:`mark_one_hot` marked the value."""
    node = None if value is None else value.producer()
    return node is not None and _ONE_HOT in node.meta

"""Build the graph of a loss, on one output or several; the penalty has a graph of its own (:mod:`.updates`).

This module runs no graph and holds no data. The batch size is fixed; targets and row weights are inputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common

from .._ir.edits import swap_initializers
from .._model.batch_axis import with_batch
from .._model.declared_targets import DeclaredTargets
from .._model.links import Link, Positions, Task, position_weights, repeated_rows, rows_of_members, split_columns
from .._model.loss_terms import (
    LEAST_TOTAL,
    RowLoss,
    append_loss,
    append_pairwise_loss,
    as_normalized,
    mark_one_hot,
    row_means,
    weighted_row_mean,
)
from .._model.modes import follow_torch
from .._model.trainable import TrainableModel
from .._model.weights import template_of
from .._utils.typing import DType
from ..exceptions import ModelError
from ..graph import GraphBuilder, new_graph
from ..losses import Loss
from .step_parts import OutputLoss, StepSettings, TotalLoss, TrainedPositions

TARGET, WEIGHT, LOSS = "onnxtrain/y", "onnxtrain/sample_weight", "onnxtrain/loss"

TABLE_CLASSES = 64
"""Largest number of classes for which one-hot rows are read from a table."""


def training_graph(
    graph: TrainableModel,
    settings: StepSettings,
    frozen: Mapping[str, np.ndarray],
    batch_size: int,
    *,
    normalized: bool = False,
) -> ir.Model:
    """Return the forward graph for ``batch_size`` rows with target and weights as inputs.

    Its outputs are the loss and the next values of the running statistics. With ``normalized``, the caller has divided
    the weights by their sum and passes them as a column, which saves the division in each step.
    """
    model = with_batch(template_of(graph.model), batch_size)
    ir_graph = model.graph
    swap_initializers(ir_graph, frozen)  # trained weights become inputs later
    scores = next(v for v in ir_graph.outputs if v.name == graph.scores)
    op = GraphBuilder(ir_graph, dtype=ir_type(graph.dtype), prefix="onnxtrain")
    shape, y_dtype = target_layout(settings, batch_size, graph.dtype, settings.positions)
    y = ir.val(TARGET, ir.DataType.from_numpy(np.dtype(y_dtype)), shape)
    weights = ir.val(WEIGHT, ir_type(graph.dtype), (batch_size, 1) if normalized else (batch_size,))
    ir_graph.inputs.extend([y, weights])
    sample_weight = as_normalized(op, weights, batch_size) if normalized else weights
    if isinstance(settings.loss, TotalLoss):
        every = {v.name: v for v in ir_graph.outputs}
        outputs = [every[form.scores] for form in graph.forms]
        loss = append_total_loss(op, settings.loss, outputs, y, sample_weight, batch_size)
    elif settings.positions is not None:
        loss = _mean_loss_at_positions(op, settings, settings.positions, scores, y, sample_weight, batch_size)
    elif graph.members is None:
        columns = as_columns(op, scores, batch_size, settings.n_scores)
        loss = _mean_loss(op, settings, columns, y, sample_weight, of_pairs=graph.link == "votes")
    else:
        # An ensemble: the loss is the mean of the members' losses. Each member sees every row, with the row's weight.
        columns = rows_of_members(op, scores, graph.members, settings.n_scores, batch_size)
        one_label = settings.task == "multiclass" and not settings.soft
        width = None if one_label else settings.n_columns + settings.n_shares
        width = width if settings.declared is None else settings.declared.width
        y = repeated_rows(op, y, graph.members, width)
        every_weight = repeated_rows(op, sample_weight, graph.members, None)
        loss = _mean_loss(op, settings, columns, y, every_weight, of_pairs=False)
    loss.name, loss.dtype, loss.shape = LOSS, ir_type(graph.dtype), ir.Shape([])
    follow_torch(model, "onnxtrain/statistics")
    running_statistics = set(graph.running_statistics.values())
    next_statistics = [v for node in ir_graph for v in node.outputs if v.name in running_statistics]
    ir_graph.outputs.clear()
    ir_graph.outputs.extend([loss, *next_statistics])
    common.RemoveUnusedNodesPass()(model)
    return model


def _mean_loss(
    op: GraphBuilder, settings: StepSettings, scores: ir.Value, y: ir.Value, sample_weight: ir.Value, *, of_pairs: bool
) -> ir.Value:
    """Emit the mean loss of the rows, weighted by ``sample_weight``.

    With ``of_pairs``, each score compares two classes (one versus one).
    """
    assert isinstance(settings.loss, Loss)
    if settings.declared is not None:
        return _mean_loss_of_declared(op, settings.loss, settings.declared, scores, y, sample_weight, settings.link)
    if settings.task == "multiclass" and of_pairs:
        classes = n_classes_of(settings.n_scores)
        return append_pairwise_loss(
            op, settings.loss, scores=scores, y=y, sample_weight=sample_weight, n_classes=classes
        )
    loss: RowLoss = settings.loss
    of_indices = settings.task == "multiclass" and not settings.soft
    if of_indices and settings.link == "softmax" and takes_labels(settings.loss, settings.n_scores):
        loss = LossOfLabels(settings.loss)
    elif of_indices:
        y = one_hot(op, y, settings.n_columns, op.dtype, ignores=settings.positions is not None)
    y, shares = _targets_and_shares(op, y, settings.n_columns, settings.n_shares)
    return append_loss(
        op,
        loss,
        scores=scores,
        y=y,
        sample_weight=sample_weight,
        link=settings.link,
        groups=settings.groups,
        ignores=settings.ignores,
        shares=shares,
        numbers=settings.task == "regression",
    )


def _targets_and_shares(
    op: GraphBuilder, y: ir.Value, n_columns: int, n_shares: int
) -> tuple[ir.Value, ir.Value | None]:
    """Return the targets of the rows, and the shares of their labels if these follow them as columns."""
    if not n_shares:
        return y, None
    targets, shares = split_columns(op, y, [n_columns, n_shares])
    return targets, shares


def _mean_loss_of_declared(
    op: GraphBuilder,
    loss: Loss,
    declared: DeclaredTargets,
    scores: ir.Value,
    matrix: ir.Value,
    sample_weight: ir.Value,
    link: Link,
) -> ir.Value:
    """Emit the mean loss of the rows, from the matrix that holds the targets that the loss declares."""
    rows = int(str((op.shape(scores) or (0,))[0]))
    targets = declared.emit(op, matrix, rows)
    if loss.mixes_rows:  # the weights may sum to one or to anything else
        total = op.Max(op.ReduceSum(sample_weight, keepdims=False), LEAST_TOTAL)
        targets["sample_weight"] = op.Div(op.Mul(sample_weight, float(rows)), total)
    if len(declared.score_row) > 1:
        scores = op.Reshape(scores, [rows, *declared.score_row])
    return append_loss(op, loss, scores=scores, y=targets, sample_weight=sample_weight, link=link)


def _mean_loss_at_positions(
    op: GraphBuilder,
    settings: StepSettings,
    positions: TrainedPositions,
    scores: ir.Value,
    y: ir.Value,
    sample_weight: ir.Value,
    batch_size: int,
) -> ir.Value:
    """Emit the weighted mean loss of all labels; a label weighs its row's weight times its share in the row."""
    rows = batch_size * math.prod(positions.shape)
    whole = positions.axes.emit_classes_last(op, scores)
    found = op.shape(whole) or ()
    if all(isinstance(size, int) for size in found) and found[:-1] != (batch_size, *positions.shape):
        raise ModelError(f"The scores have the shape {op.shape(scores)}, but y has {(batch_size, *positions.shape)}.")
    whole = op.Reshape(whole, [rows, settings.n_scores])
    weights = op.Mul(position_weights(op, y, positions.label_weights), op.Unsqueeze(sample_weight, axes=[1]))
    if settings.task == "binary":
        labels = op.Cast(op.Greater(op.Reshape(y, [rows, 1]), np.zeros((), np.int64)), to=op.dtype)
    else:
        labels = op.Reshape(y, [rows])
    return _mean_loss(op, settings, whole, labels, op.Reshape(weights, [rows]), of_pairs=False)


def score_loss_graph(
    settings: StepSettings, shape: tuple[int, ...], dtype: DType, *, of_pairs: bool = False
) -> ir.Model:
    """Return the graph of the mean loss; its inputs are scores of this ``shape`` (classes last), target and weights."""
    batch_size, kind = shape[0], ir_type(dtype)
    scores, sample_weight = ir.val("scores", kind, shape), ir.val(WEIGHT, kind, (batch_size,))
    y_shape, y_dtype = target_layout(settings, batch_size, dtype, settings.positions)
    y = ir.val(TARGET, ir.DataType.from_numpy(np.dtype(y_dtype)), y_shape)
    op = new_graph([scores, y, sample_weight], kind, "onnxtrain")
    if settings.positions is None:
        columns = as_columns(op, scores, batch_size, settings.n_scores)
        loss = _mean_loss(op, settings, columns, y, sample_weight, of_pairs=of_pairs)
    else:
        last = settings.positions._replace(axes=replace(settings.positions.axes, axis=-1))
        loss = _mean_loss_at_positions(op, settings, last, scores, y, sample_weight, batch_size)
    loss.name, loss.dtype, loss.shape = LOSS, kind, ir.Shape([])
    op.graph.outputs.append(loss)
    return ir.Model(op.graph, ir_version=8)


def n_classes_of(pairs: int) -> int:
    """Return the number of classes k for which k (k - 1) / 2 equals ``pairs``."""
    return (1 + math.isqrt(1 + 8 * pairs)) // 2


class TargetForm(Protocol):
    """The attributes that determine the layout of the target; a decoding and the settings of a step have them."""

    @property
    def task(self) -> Task: ...

    @property
    def n_columns(self) -> int: ...

    @property
    def n_shares(self) -> int: ...

    @property
    def soft(self) -> bool: ...

    @property
    def declared(self) -> DeclaredTargets | None: ...


def target_layout(
    form: TargetForm, rows: int, dtype: DType, positions: TrainedPositions | None
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and the dtype of the target of ``rows`` rows: class indices, or numbers."""
    if form.declared is not None:
        return (rows, form.declared.width), np.dtype(dtype)
    if positions is not None:
        return (rows, math.prod(positions.shape)), np.dtype(np.int64)
    if form.task == "multiclass" and not form.soft:
        return (rows,), np.dtype(np.int64)
    return (rows, form.n_columns + form.n_shares), dtype


def as_target(
    form: TargetForm, values: np.ndarray, dtype: DType, positions: TrainedPositions | None
) -> tuple[np.ndarray, np.dtype[Any]]:
    """Return the encoded targets ``values`` in the shape that a step reads, and the dtype that it reads."""
    shape, kind = target_layout(form, len(values), dtype, positions)
    if form.soft and form.task == "binary":  # there is a single score, so keep only the share of the second class
        values = values[:, 1]
    return values.reshape(shape), kind


def one_hot(op: GraphBuilder, y: ir.Value, n_classes: int, dtype: ir.DataType, *, ignores: bool = False) -> ir.Value:
    """Return the one-hot encoding (N, n_classes) of the class indices ``y`` (N,).

    Up to ``TABLE_CLASSES`` classes, Gather reads the rows from a table, which is faster than OneHot. There an invalid
    index gives a row of NaN, unless the loss ``ignores`` labels of -1. With more classes it gives a row of zeros.
    """
    if n_classes <= TABLE_CLASSES:
        table = one_hot_table(n_classes).astype(dtype.numpy())
        return mark_one_hot(op.Gather(table[:n_classes] if ignores else table, y))
    classes = np.arange(n_classes, dtype=np.int64)
    return mark_one_hot(op.Cast(op.Equal(op.Unsqueeze(y, axes=[1]), classes), to=dtype))


def one_hot_table(n_classes: int) -> np.ndarray:
    """Return the one-hot rows of the classes, then as many rows of NaN.

    An invalid index such as -1 reads NaN, because Gather counts negative indices from the end.
    """
    identity = np.eye(n_classes)
    return np.vstack([identity, np.full_like(identity, np.nan)])


def ir_type(dtype: DType) -> ir.DataType:
    return ir.DataType.from_numpy(np.dtype(dtype))


# The loss on several outputs of a graph: the weighted sum of the loss on each.
#
# Each output may weigh rows differently: the weight of the row times a factor of the output. If the weighted mean of
# each factor over the training rows is one, the mean over rows of the summed losses equals the sum of the outputs'
# weighted means, and a minibatch estimates it without bias. So padding, accumulation and full batches work as for a
# single loss.
#
# One matrix holds the targets of all outputs as columns, in the order of the outputs, followed by the factors.


def append_total_loss(
    op: GraphBuilder,
    total: TotalLoss,
    scores: Sequence[ir.Value],
    y: ir.Value,
    sample_weight: ir.Value,
    batch_size: int,
) -> ir.Value:
    """Emit the mean, weighted by ``sample_weight`` (N,), of each row's sum of losses; 0 if all weights are 0.

    ``scores`` holds the scores of each output; ``y`` is the matrix of all targets.
    """
    count = len(total.outputs)
    parts = split_columns(op, y, [*(one.width for one in total.outputs), *([1] * count if total.has_factors else [])])
    rows = None
    for i, (one, own) in enumerate(zip(total.outputs, scores, strict=True)):
        factor = parts[count + i] if total.has_factors else None
        weight = sample_weight if factor is None else op.Mul(sample_weight, op.Reshape(factor, [batch_size]))
        if one.positions is not None:
            losses = _row_losses_at_positions(op, one, one.positions, own, parts[i], weight, batch_size)
        else:
            losses = _row_losses(op, one, as_columns(op, own, batch_size, one.n_scores), parts[i], weight)
        losses = losses if factor is None else op.Mul(losses, factor)
        losses = losses if one.weight == 1 else op.Mul(losses, float(one.weight))
        rows = losses if rows is None else op.Add(rows, losses)
    assert rows is not None
    return weighted_row_mean(op, rows, sample_weight, 1)


def as_columns(op: GraphBuilder, scores: ir.Value, batch_size: int, n_scores: int) -> ir.Value:
    """Return scores as a matrix with a row for each input row.

    Sizes that shape inference left unknown are assumed to be ``(batch_size, n_scores)``.
    """
    shape = op.shape(scores)
    if shape is not None and isinstance(shape[0] if shape else None, int) and shape[0] != batch_size:
        raise ModelError(
            f"The graph's output {scores.name!r} has {shape[0]} rows for {batch_size} input rows; each input row must "
            f"give one output row. Export the graph with a dynamic batch axis."
        )
    if shape == (batch_size, n_scores):
        return scores
    return op.Reshape(scores, [batch_size, n_scores])


def _row_losses_at_positions(
    op: GraphBuilder,
    one: OutputLoss,
    positions: Positions,
    scores: ir.Value,
    y: ir.Value,
    weight: ir.Value,
    batch_size: int,
) -> ir.Value:
    """Emit, for each row, the weighted mean loss of its labels; a label of -1 is ignored."""
    whole = positions.emit_classes_last(op, scores)
    found = op.shape(whole) or ()
    if all(isinstance(size, int) for size in found) and found[:-1] != (batch_size, *one.places):
        raise ModelError(f"The scores have the shape {op.shape(scores)}, but y has {(batch_size, *one.places)}.")
    labels = op.Cast(y, to=ir.DataType.INT64)
    shares = position_weights(op, labels, one.label_weights)
    every = op.Reshape(op.Mul(shares, op.Unsqueeze(weight, axes=[1])), [batch_size * one.width])
    # Relu maps ignored labels (-1) to class 0; their weight of zero keeps them out of the mean.
    flat = op.Relu(op.Reshape(y, [batch_size * one.width, 1]))
    columns = op.Reshape(whole, [batch_size * one.width, one.n_scores])
    losses = op.Reshape(_row_losses(op, one, columns, flat, every), [batch_size, one.width])
    return op.ReduceSum(op.Mul(losses, shares), axes=[1], keepdims=True)


def _row_losses(op: GraphBuilder, one: OutputLoss, scores: ir.Value, y: ir.Value, weight: ir.Value) -> ir.Value:
    """Emit the loss of each row on one of several outputs."""
    loss: RowLoss = one.loss
    if one.task == "multiclass" and one.link == "softmax" and takes_labels(one.loss, one.n_scores):
        loss = LossOfLabels(one.loss)
        y = op.Cast(op.Squeeze(y, axes=[1]), to=ir.DataType.INT64)
    elif one.task == "multiclass":  # the matrix of targets holds class indices as floats, which are exact
        y = op.Cast(op.Equal(y, np.arange(one.n_scores, dtype=op.dtype.numpy())), to=op.dtype)
    y, shares = _targets_and_shares(op, y, one.n_columns, one.n_shares)
    return row_means(
        op,
        loss,
        scores=scores,
        y=y,
        weight=weight,
        link=one.link,
        groups=one.groups,
        ignores=one.ignores,
        shares=shares,
        numbers=one.task == "regression",
    )


# Losses of many classes from class indices: one-hot rows would take more memory than the scores themselves.


MANY_CLASSES = 256
"""Smallest number of classes for which the loss is computed from class indices."""


@dataclass(frozen=True)
class LossOfLabels:
    """A loss that takes class indices in place of one-hot rows."""

    loss: Loss

    def __call__(self, op: GraphBuilder, scores: ir.Value, y: ir.Value, link: Link) -> ir.Value:
        """Emit the loss of every row from its class index."""
        rows = self.loss.of_labels(op, scores, y)
        assert rows is not None
        rows.shape = ir.Shape([(op.shape(scores) or (None,))[0], 1])
        return rows

    def link(self, task: Task) -> Link:
        """Return the function that turns scores into predictions."""
        return self.loss.link(task)


def takes_labels(loss: Loss, n_classes: int) -> bool:
    """Return True if there are at least ``MANY_CLASSES`` classes and the loss can read class indices (``of_labels``).

    The class that defines ``__call__`` must also define ``of_labels``. A subclass that overrides only ``__call__`` gets
    one-hot rows.
    """
    both = {"__call__", "of_labels"}
    owner = next(c for c in type(loss).__mro__ if both & vars(c).keys())
    return n_classes >= MANY_CLASSES and owner is not Loss and "of_labels" in vars(owner)

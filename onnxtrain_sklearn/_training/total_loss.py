"""The loss on several outputs of a graph: the weighted sum of the loss on each.

A row has one weight, and a factor of it for each output where the outputs weigh it differently. With factors whose
weighted mean over the trained rows is one, the mean over rows of the sum of the losses is the sum of the weighted means
of each output, and that of a minibatch estimates it without bias. Padding, accumulation and full batches are then
those of a single loss.

The targets of all outputs are columns of one matrix, in the order of the outputs; the factors follow them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .._graph.builder import GraphBuilder
from .._graph.links import Link, Task, split_columns
from .._graph.loss_terms import RowLoss, row_means, weighted_row_mean
from .._graph.positions import Positions, position_weights
from ..exceptions import ModelError
from ..losses import Loss
from .many_classes import of_labels, takes_labels


@dataclass(frozen=True)
class OutputLoss:
    """The loss on one of several outputs.

    Attributes
    ----------
    name : str
        Name of the output, for messages.
    loss : Loss
    task, link, n_outputs, groups
        As in :class:`~.loss_graph.StepSettings`.
    weight : float
        What the loss is multiplied by in the sum.
    positions : Positions or None
        The axes of scores at each position of a row.
    places : tuple of int
        The shape of the positions.
    label_weights : tuple of float
        The weights of labels at positions, by class.
    ignores : bool
        Whether some of several labels a row do not count: their targets are -1.
    """

    name: str
    loss: Loss
    task: Task
    link: Link
    n_outputs: int
    groups: tuple[int, ...] = ()
    weight: float = 1.0
    positions: Positions | None = None
    places: tuple[int, ...] = ()
    label_weights: tuple[float, ...] = ()
    ignores: bool = False

    @property
    def width(self) -> int:
        """Columns of its targets: class indices, or numbers."""
        if self.positions is not None:
            return math.prod(self.places)
        return 1 if self.task == "multiclass" else self.n_outputs


@dataclass(frozen=True)
class TotalLoss:
    """The sum of the losses on several outputs.

    Attributes
    ----------
    outputs : tuple of OutputLoss
    has_factors : bool
        Whether the targets are followed by a factor of the weight of the row for each output.
    """

    outputs: tuple[OutputLoss, ...]
    has_factors: bool = False

    @property
    def width(self) -> int:
        """Columns of the matrix of targets."""
        return sum(one.width for one in self.outputs) + (len(self.outputs) if self.has_factors else 0)


def append_total_loss(
    op: GraphBuilder, total: TotalLoss, scores: Sequence[ir.Value], y: ir.Value, sample_weight: ir.Value, batch: int
) -> ir.Value:
    """Emit the scalar mean over the rows of the sum of their losses, by ``sample_weight`` (N,); 0 without weights.

    ``scores`` are those of each output, ``y`` is the matrix of targets.
    """
    count = len(total.outputs)
    parts = split_columns(op, y, [*(one.width for one in total.outputs), *([1] * count if total.has_factors else [])])
    rows = None
    for i, (one, own) in enumerate(zip(total.outputs, scores, strict=True)):
        factor = parts[count + i] if total.has_factors else None
        weight = sample_weight if factor is None else op.Mul(sample_weight, op.Reshape(factor, [batch]))
        losses = _row_losses_of_output(op, one, own, parts[i], weight, batch)
        losses = losses if factor is None else op.Mul(losses, factor)
        losses = losses if one.weight == 1 else op.Mul(losses, float(one.weight))
        rows = losses if rows is None else op.Add(rows, losses)
    assert rows is not None
    return weighted_row_mean(op, rows, sample_weight, 1)


def _row_losses_of_output(
    op: GraphBuilder, one: OutputLoss, scores: ir.Value, y: ir.Value, weight: ir.Value, batch: int
) -> ir.Value:
    """Emit the losses of an output as a column (N, 1)."""
    if one.positions is not None:
        return _rows_at_positions(op, one, one.positions, scores, y, weight, batch)
    return _means(op, one, as_columns(op, scores, batch, one.n_outputs), y, weight)


def as_columns(op: GraphBuilder, scores: ir.Value, batch: int, n_outputs: int) -> ir.Value:
    """Return scores as a matrix of a row for each input row; sizes that inference does not know are taken for these."""
    shape = op.shape(scores)
    if shape is not None and isinstance(shape[0] if shape else None, int) and shape[0] != batch:
        raise ModelError(
            f"The graph's output {scores.name!r} has {shape[0]} rows for {batch} input rows; each input row must give "
            f"one output row. Export the graph with a dynamic batch axis."
        )
    if shape == (batch, n_outputs):
        return scores
    return op.Reshape(scores, [batch, n_outputs])


def _rows_at_positions(
    op: GraphBuilder,
    one: OutputLoss,
    positions: Positions,
    scores: ir.Value,
    y: ir.Value,
    weight: ir.Value,
    batch: int,
) -> ir.Value:
    """Emit the means over the labels of each row, by their weights; -1 stands for a label that does not count."""
    whole = positions.emit_classes_last(op, scores)
    found = op.shape(whole) or ()
    if all(isinstance(size, int) for size in found) and found[:-1] != (batch, *one.places):
        raise ModelError(f"The scores have the shape {op.shape(scores)}, but y has {(batch, *one.places)}.")
    labels = op.Cast(y, to=ir.DataType.INT64)
    shares = position_weights(op, labels, one.label_weights)
    every = op.Reshape(op.Mul(shares, op.Unsqueeze(weight, axes=[1])), [batch * one.width])
    flat = op.Relu(op.Reshape(y, [batch * one.width, 1]))  # what does not count has a weight of zero
    columns = op.Reshape(whole, [batch * one.width, one.n_outputs])
    losses = op.Reshape(_means(op, one, columns, flat, every), [batch, one.width])
    return op.ReduceSum(op.Mul(losses, shares), axes=[1], keepdims=True)


def _means(op: GraphBuilder, one: OutputLoss, scores: ir.Value, y: ir.Value, weight: ir.Value) -> ir.Value:
    loss: RowLoss = one.loss
    if one.task == "multiclass" and one.link == "softmax" and takes_labels(one.loss, one.n_outputs):
        loss, y = of_labels(one.loss), op.Cast(op.Squeeze(y, axes=[1]), to=ir.DataType.INT64)
    elif one.task == "multiclass":  # the index of a class is exact as a float
        y = op.Cast(op.Equal(y, np.arange(one.n_outputs, dtype=op.dtype.numpy())), to=op.dtype)
    parts = {"scores": scores, "y": y, "weight": weight}
    return row_means(op, loss, **parts, link=one.link, groups=one.groups, ignores=one.ignores)

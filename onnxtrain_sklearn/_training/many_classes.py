"""Losses of many classes from class indices: one-hot rows would take more memory than the scores themselves."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from .._graph.builder import GraphBuilder
from .._graph.links import Link, Task
from .._losses.base import Loss

MANY_CLASSES = 256
"""Classes from which on the loss is computed from class indices."""


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
    """Whether the loss is computed from class indices: a subclass may override the form for one-hot rows alone."""
    both = {"__call__", "of_labels"}
    owner = next(c for c in type(loss).__mro__ if both & vars(c).keys())
    return n_classes >= MANY_CLASSES and owner is not Loss and "of_labels" in vars(owner)


def of_labels(loss: Loss) -> LossOfLabels:
    """Return the form of the loss that takes class indices."""
    return LossOfLabels(loss)

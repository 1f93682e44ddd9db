"""Scores of the classes at each position of a row: of the words of a text, the pixels of an image.

The scores of a row have an axis of classes, the last one or the first, beside those of the positions. Loss and labels
take one row per position, (N * positions, k).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ..exceptions import ModelError
from .builder import GraphBuilder


@dataclass(frozen=True)
class Positions:
    """The axes of scores at each position.

    Attributes
    ----------
    rank : int
        Number of axes of the positions.
    axis : {1, -1}
        Axis of the classes in the scores; they may lack it where there is one score per position.
    """

    rank: int
    axis: int

    def classes_last(self, scores: np.ndarray) -> np.ndarray:
        """Return scores as an array of the shape (N, *positions, k)."""
        if scores.ndim == self.rank + 1:
            return scores[..., None]
        return np.moveaxis(scores, self.axis, -1)

    def emit_classes_last(self, op: GraphBuilder, scores: ir.Value) -> ir.Value:
        """Emit scores as a value of the shape (N, *positions, k)."""
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
    """Emit one row per position, and return the function that puts the results of rows back in their places."""
    whole = positions.emit_classes_last(op, scores)
    places = op.Slice(op.Shape(whole), [0], [-1], [0])

    def in_places(result: ir.Value) -> ir.Value:
        shape = op.shape(result)
        matrix = shape is not None and len(shape) == 2
        return op.Reshape(result, op.Concat(places, [shape[1]], axis=0) if matrix and shape is not None else places)

    return op.Reshape(whole, [-1, columns]), in_places


def position_weights(op: GraphBuilder, y: ir.Value, label_weights: tuple[float, ...]) -> ir.Value:
    """Emit the share of each position in its row: in proportion to the weight of its label; -1 has none.

    Rows without weights have shares of 0.
    """
    table = np.array([*label_weights, 0.0], op.dtype.numpy())  # the index -1 is the last
    own = op.Gather(table, y)
    total = op.ReduceSum(own, axes=[1], keepdims=True)
    return op.Div(own, op.Max(total, float(np.finfo(np.float32).tiny)))

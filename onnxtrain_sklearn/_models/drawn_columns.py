"""Columns of a table as a network takes them, drawn before a graph exists: weights first, nodes later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from .._graph.builder import GraphBuilder


@dataclass(frozen=True, eq=False)
class DrawnColumns:
    """Some columns of a network's first layer.

    Attributes
    ----------
    width : int
        The number of columns.
    emit : callable
        Emits the nodes that compute them from a table, and the weights; returns the value of shape (N, width).
    weights : mapping of str to ndarray
        The initial weights by name.
    constants : tuple of ndarray
        What the nodes contain of the data.
    is_own : bool
        Whether builder, weights and constants determine all that is emitted; an embedding of a user may do anything.
    """

    width: int
    emit: Callable[[GraphBuilder, ir.Value], ir.Value]
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    constants: tuple[np.ndarray, ...] = ()
    is_own: bool = True


def side_by_side(parts: Sequence[DrawnColumns]) -> DrawnColumns:
    """Return the columns of all parts."""
    if len(parts) == 1:
        return parts[0]
    return DrawnColumns(
        sum(part.width for part in parts),
        lambda op, x: op.Concat(*[part.emit(op, x) for part in parts], axis=1),
        {name: array for part in parts for name, array in part.weights.items()},
        tuple(array for part in parts for array in part.constants),
        all(part.is_own for part in parts),
    )

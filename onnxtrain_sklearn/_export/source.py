"""The source of an export, and the vectors that a training graph reads and returns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from .._inference.graph import Head
from .._training.parameters import FlatParameters
from .._training.settings import OutputLoss
from .._training.state import StepParts
from ..graph import GraphBuilder

PARAMETERS, STATISTICS, AVERAGE, STEP = "parameters", "statistics", "averaged_parameters", "step"
"""Names of the tensors of the state that are not the optimizer's own."""


TARGETS = {"any": ir.DataType.DOUBLE, "web": ir.DataType.FLOAT}
"""The types that scalars are computed in, by what the graphs are to run on: WebGPU in browsers has no float64."""


@dataclass(frozen=True, eq=False)
class OutputSource:
    """One of several outputs that are trained together: its loss, what follows its scores, and what labels weigh."""

    loss: OutputLoss
    head: Head
    class_weights: tuple[float, ...] | None = None
    ignore_label: object = None

    @property
    def label_weights(self) -> tuple[float, ...] | None:
        """The weight of each class; None where a label does not change the weight of its row."""
        return self.class_weights if self.loss.positions is None else self.loss.label_weights


@dataclass(frozen=True, eq=False)
class ExportSource:
    """A model in training.

    Attributes
    ----------
    parts : StepParts
        The graph, the settings of the step, the parameters, the frozen weights and the optimizer's state.
    head : Head
        What follows the scores.
    facts : mapping of str to object
        Plain values for the manifest that the graphs do not need: the estimator, the learning rate.
    class_weights : tuple of float, default=None
        The factor of a row's weight by its class; None: one.
    ignore_label : object, default=None
        The label at a position that does not count.
    target : str, default="any"
        One of :data:`TARGETS`.
    outputs : tuple of OutputSource
        Of several outputs that are trained together; the classes and weights above are then None.
    front : onnx_ir.Model, default=None
        The graph from the columns of a table to the inputs of the trained graph; None: these are the data.
    minibatches : int, default=1
        The minibatches that the rows of a step are, each with statistics of its own, one after the other.
    others : tuple of ExportSource
        Further networks that are trained beside this one, each alone, and whose predictions are averaged with its own.
    """

    parts: StepParts
    head: Head
    facts: Mapping[str, Any]
    class_weights: tuple[float, ...] | None = None
    ignore_label: object = None
    target: str = "any"
    outputs: tuple[OutputSource, ...] = ()
    front: ir.Model | None = None
    minibatches: int = 1
    others: tuple[ExportSource, ...] = ()

    @property
    def scalar_type(self) -> ir.DataType:
        """The type that the scalars of a step are computed in."""
        return TARGETS[self.target]


@dataclass(frozen=True, eq=False)
class StateTensor:
    """A tensor that a step reads as ``name`` and returns anew as ``output``.

    Attributes
    ----------
    name, output, role : str
        The role is "parameters", "statistics", "averaged_parameters", "optimizer" or "step".
    value : ndarray
        The current value.
    members : tuple of (str, tuple of int)
        The arrays, by name and shape, that lie in it one after the other; empty for the number of steps.
    initial : float or int
        The value before the first step, of optimizer state.
    """

    name: str
    output: str
    role: str
    value: np.ndarray
    members: tuple[tuple[str, tuple[int, ...]], ...] = ()
    initial: float = 0.0


def members_of(parameters: FlatParameters, names: Sequence[str]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return names and shapes of the parameters or statistics, in the order of their vector."""
    return tuple((name, parameters.view(name).shape) for name in names)


# The weight of a row in the loss: the given one times that of its class, or the mean of those of its labels.
#
# The step has it in its graph, so that a loop in any language gives plain weights of the rows, as ``fit`` is given
# them.


def label_weights(source: ExportSource) -> tuple[float, ...] | None:
    """Return the weight of each class; None where a label does not change the weight of its row."""
    positions = source.parts.settings.positions
    return source.class_weights if positions is None else positions.label_weights


def emit_row_weights(op: GraphBuilder, source: ExportSource, weight: ir.Value, y: ir.Value) -> ir.Value:
    """Emit the weights of the rows of a minibatch from the given ones (N,) and the target."""
    known, kind = label_weights(source), op.dtype.numpy()
    assert known is not None
    if source.parts.settings.positions is not None:
        own = op.Gather(np.array([*known, 0.0], kind), y)  # the index -1, of a label that is ignored, is the last
        return op.Mul(weight, op.ReduceMean(own, axes=[1], keepdims=False))
    if source.head.task == "multiclass":
        return op.Mul(weight, op.Gather(np.array(known, kind), y))
    second = op.Reshape(op.Greater(y, 0.5), [-1])
    return op.Mul(weight, op.Where(second, np.array(known[1], kind), np.array(known[0], kind)))


def weights_of_rows(known: list[float] | None, target: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return what the graph of a step makes of the weights of all rows."""
    if known is None:
        return weights
    indices = target.reshape(len(target), math.prod(target.shape[1:])).astype(np.int64)
    return np.asarray(weights * np.array([*known, 0.0])[indices].mean(axis=1))

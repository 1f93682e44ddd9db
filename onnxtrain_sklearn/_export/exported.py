"""The training that is exported, the tensors of a training state, and the layout of arrays in its vectors.

An estimator becomes an ``ExportedTraining``, from which all graphs are made. A ``StateTensor`` is an input of a step
whose next value is an output. ``cut_members`` and ``joined_vector`` cut and join the vectors of parameters.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from .._inference.graph import Decoding
from .._training.parameters import FlatParameters
from .._training.step_parts import OutputLoss, StepParts
from ..exceptions import ModelError
from ..graph import GraphBuilder

PARAMETERS, STATISTICS, AVERAGE, STEP = "parameters", "statistics", "averaged_parameters", "step"
"""Names of the tensors of the state, except those of the optimizer."""

TARGETS = {"any": ir.DataType.DOUBLE, "web": ir.DataType.FLOAT}
"""Types of the scalars of a step by target platform: WebGPU in browsers has no float64."""


@dataclass(frozen=True, eq=False)
class ExportedOutput:
    """One of several outputs that are trained together: its loss, its decoding, and the weights of its classes."""

    loss: OutputLoss
    decoding: Decoding
    class_weights: tuple[float, ...] | None = None
    ignore_label: object = None

    @property
    def label_weights(self) -> tuple[float, ...] | None:
        """The weight of each class; None if all classes weigh the same."""
        return self.class_weights if self.loss.positions is None else self.loss.label_weights


@dataclass(frozen=True, eq=False)
class ExportedTraining:
    """A model in training, from which all graphs of an export are made.

    Attributes
    ----------
    parts : StepParts
        The graph, the settings of the step, the parameters, the frozen weights and the optimizer's state.
    decoding : Decoding
        The end of the inference graph, after the scores.
    facts : mapping of str to object
        Values for the manifest that the graphs do not contain, such as the estimator's name and its learning rate.
    class_weights : tuple of float, default=None
        Factor of the weight of a row, by class; None: one.
    ignore_label : object, default=None
        The label at a position that does not count.
    target : str, default="any"
        One of :data:`TARGETS`.
    outputs : tuple of ExportedOutput
        The outputs, if several are trained together; the classes and weights above are then None.
    front : onnx_ir.Model, default=None
        The graph that preprocesses the columns of a table; None: the data are inputs of the trained graph.
    minibatches : int, default=1
        Number of minibatches in a step, one after the other, each with its own batch statistics.
    others : tuple of ExportedTraining
        Further networks, which are trained on the same minibatches, and whose predictions are averaged.
    """

    parts: StepParts
    decoding: Decoding
    facts: Mapping[str, Any]
    class_weights: tuple[float, ...] | None = None
    ignore_label: object = None
    target: str = "any"
    outputs: tuple[ExportedOutput, ...] = ()
    front: ir.Model | None = None
    minibatches: int = 1
    others: tuple[ExportedTraining, ...] = ()

    @property
    def scalar_type(self) -> ir.DataType:
        """The type in which the scalars of a step are computed."""
        return TARGETS[self.target]


@dataclass(frozen=True, eq=False)
class StateTensor:
    """A tensor that a step reads as input ``name`` and whose next value is ``output``.

    Attributes
    ----------
    name, output, role : str
        The role is "parameters", "statistics", "averaged_parameters", "optimizer" or "step".
    value : ndarray
        The current value.
    members : tuple of (str, tuple of int)
        Names and shapes of the arrays in the vector, in order; empty for the number of steps.
    initial : float or int
        For optimizer state, the value of all elements before the first step.
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


def cut_members(
    op: GraphBuilder, vector: ir.Value, members: Sequence[tuple[str, tuple[int, ...]]]
) -> Iterator[tuple[str, ir.Value]]:
    """Cut a vector; yield name and value of each array in it."""
    sizes = [math.prod(shape) for _, shape in members]
    pieces = op.emit("Split", vector, split=sizes, outputs=len(sizes), axis=0) if len(sizes) > 1 else [vector]
    for (name, shape), piece in zip(members, pieces, strict=True):
        yield name, piece if len(shape) == 1 else op.Reshape(piece, list(shape))


def joined_vector(op: GraphBuilder, values: Sequence[ir.Value]) -> ir.Value:
    """Join arrays to one vector."""
    flat = [op.Reshape(value, [-1]) for value in values]
    return op.Concat(*flat, axis=0) if len(flat) > 1 else flat[0]


def reserve_names(op: GraphBuilder, exported: ExportedTraining, names: Collection[str]) -> None:
    """Reserve names for tensors of the state: rename inner values of the graph that have them.

    Files of a state hold these names, so they are the same for every model. Raise ModelError if data or weights, which
    keep their names, have one of them. The columns of a table are reserved too: inputs of the step avoid their names.
    """
    columns = () if exported.front is None else [value.name or "" for value in exported.front.graph.inputs]
    layout = exported.parts.parameters
    inputs = [spec.name for spec in exported.parts.graph.inputs]
    given = {*columns, *layout.names, *layout.running_statistics, *(inputs if exported.front is None else ())}
    if clash := sorted(given & set(names)):
        raise ModelError(
            f"The model has an input, a column or a weight {clash[0]!r}, but training graphs use this name for a "
            f"tensor of the state. Rename it."
        )
    graph = op.graph
    values = [*graph.initializers.values(), *(value for node in graph.all_nodes() for value in node.outputs)]
    for value in [value for value in values if value.name in names]:
        value.name = op.taken.numbered(value.name or "")
    op.taken.difference_update(names)
    op.taken.update(columns)

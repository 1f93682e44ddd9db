"""Base class of the steps on host and device: the gradient graph, the optimizer's initial state.

A step runs up to four graphs in this order: the gradient, the gradient of the penalty, the clipping of the norm, the
update. The subclasses decide where the arrays are and when they are bound.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from .._graph.trainable import TrainableModel
from ..exceptions import warn
from ..optimizers import Optimizer
from .compiled_pass import PassSize
from .dropout import FACTOR
from .loss_graph import StepSettings
from .meeting_rows import meeting
from .parameters import FlatParameters
from .pass_graph import PassGraph, pass_graph
from .programs import PassProgram, PassSource
from .step import OptimizerState
from .vector_bindings import SegmentUpdate, ToMemory, VectorBindings


@dataclass(frozen=True, eq=False)
class StepParts:
    """The arguments from which a step is built.

    Attributes
    ----------
    model : TrainableModel
    settings : StepSettings
    parameters : FlatParameters
        Updated in place.
    frozen : mapping of str to ndarray
        Values of the parameters that are not trained.
    state : OptimizerState
        Updated in place; slots that the optimizer needs are created where they are missing.
    batch : int
        Rows of a full minibatch.
    sparse : collection of str
        Inputs whose rows come sparse. Their products with weights are computed without making the rows dense.
    """

    model: TrainableModel
    settings: StepSettings
    parameters: FlatParameters
    frozen: Mapping[str, np.ndarray]
    state: OptimizerState
    batch: int
    sparse: Collection[str] = ()

    @cached_property
    def meeting(self) -> str | None:
        """Where the rows of a minibatch meet, in the graph or in the loss; None: nowhere."""
        return meeting(self.model, self.settings)


class BaseStep:
    """The construction of a step; to the attributes of :class:`~.step.TrainingStep` it adds ``size`` and ``program``.

    Parameters
    ----------
    parts : StepParts
    place : callable
        Puts an array into the memory of the vectors.
    layout : FlatParameters, optional
        Where the parameters lie in these vectors, None: as in those of ``parts``.
    """

    adds_rows: ClassVar[bool] = False
    """Whether the step adds up the gradients of the rows that the graph reads of large matrices."""

    gives_shares: ClassVar[bool] = False
    """Whether the step gives the graph the weights of the rows divided by their sum."""

    for_cpu: ClassVar[bool] = False
    """Whether the graph has the matrix products that are the fastest on a CPU."""

    updates_after_loss: ClassVar[bool] = False

    def __init__(self, parts: StepParts, place: ToMemory, layout: FlatParameters | None = None) -> None:
        self.settings, self.parameters, self.state = parts.settings, parts.parameters, parts.state
        self.batch, self.engine = parts.batch, parts.settings.engine
        self._pads = parts.meeting is None  # rows that fill a minibatch up would meet the others
        self._parts, self._bindings = parts, VectorBindings(parts.settings, layout or parts.parameters, place)
        self._penalizes = bool(parts.settings.alpha and parts.parameters.penalized.stop)
        self._initial_slots: Mapping[str, float] = {}
        self.size = PassSize(0.0, 0, 0.0)
        self.program: PassProgram | None = None
        self._warned = False

    def forget_state(self) -> None:
        """Reset the optimizer to its state before the first step."""
        self.state.reset(self._initial_slots)

    def _pass_graph(self, batch: int, *, resident: bool = False) -> PassGraph:
        """Return the gradient graph for ``batch`` rows; warn once if dropout is scheduled, but the graph has none."""
        parts = self._parts
        data = parts.model, parts.settings, parts.parameters, parts.frozen, batch, resident, parts.sparse
        graph = pass_graph(PassSource(*data, self.adds_rows, self.gives_shares, any_shape=True, for_cpu=self.for_cpu))
        self.program, self.engine, self.size = graph.program, graph.program.engine, graph.program.size
        if self.settings.scheduled.dropout and FACTOR not in graph.uniform.arrays and not self._warned:
            self._warned = True
            warn("dropout_schedule has no effect: the graph has no Dropout in training mode.")
        return graph

    def _segment_updates(self, optimizer: Optimizer) -> list[SegmentUpdate]:
        """Return the updates of all segments, and create the slots of the optimizer's state that they need."""
        updates = self._bindings.segment_updates(optimizer)
        self._initial_slots = {name: value for one in updates for name, value in one.program.slots.items()}
        self.state.prepare(self._initial_slots, self.parameters.vector)
        return updates

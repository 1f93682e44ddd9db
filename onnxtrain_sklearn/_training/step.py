"""The training step in host memory: pass, penalty, clipping, update, average.

A step runs those of these graphs that it needs, in this order: gradient, accumulation, penalty, clipping, update,
average. The subclasses decide where the arrays are and when they are bound.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import ClassVar

import numpy as np

from .._data.batches import BatchBuffers, Batches, filled
from .._model.trainable import TrainableModel
from .._ort import runtime_errors
from ..exceptions import warn
from ..optimizers import Optimizer
from ..optimizers.in_place import moves_without_gradient
from .host_updates import HostAccumulation, HostAverage, HostPenalty, HostUpdates, RowChoice
from .loss_graph import as_float32
from .machine_code import COMPILED, PassSize
from .parameters import FlatParameters, state_slots
from .passes import HostPass, PassGraph, RowGradients, host_pass, pass_graph, product_gradients, row_gradients
from .programs import PassProgram, PassSource
from .randomness import FACTOR
from .row_dependence import meeting
from .settings import Scheduled, StepSettings
from .state import Choice, OptimizerState, Rates
from .update_bindings import SegmentUpdate, ToMemory, VectorBindings


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
        """Place where the rows of a minibatch meet, in the graph or in the loss; None: nowhere."""
        return meeting(self.model, self.settings)


class BaseStep:
    """The construction of a step; to the attributes of :class:`~.state.TrainingStep` it adds ``size`` and ``program``.

    Parameters
    ----------
    parts : StepParts
    place : callable
        Puts an array into the memory of the vectors.
    layout : FlatParameters, optional
        Where the parameters lie in these vectors, None: as in those of ``parts``.
    """

    adds_rows: ClassVar[bool] = False
    """True if the step adds up the gradients of the rows that the graph reads of large matrices."""

    gives_shares: ClassVar[bool] = False
    """True if the step gives the graph the weights of the rows divided by their sum."""

    for_cpu: ClassVar[bool] = False
    """True if the graph has the matrix products that are the fastest on a CPU."""

    in_host_memory: ClassVar[bool] = False

    def __init__(self, parts: StepParts, place: ToMemory, layout: FlatParameters | None = None) -> None:
        self.settings, self.parameters, self.state = parts.settings, parts.parameters, parts.state
        self.batch, self.engine = parts.batch, parts.settings.engine
        self._pads = parts.meeting is None  # padding rows would change the results of the others
        self._parts, self._bindings = parts, VectorBindings(parts.settings, layout or parts.parameters, place)
        self._penalizes = bool(parts.settings.alpha and parts.parameters.penalized.stop)
        self._slots = state_slots(parts.settings.optimizer, parts.parameters)
        self.size = PassSize(0.0, 0, 0.0)
        self.program: PassProgram | None = None
        self._warned = False
        self.choice: Choice | None = None

    def forget_state(self) -> None:
        """Reset the optimizer to its state before the first step."""
        self.state.reset(self._slots)

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
        self.state.prepare(self._slots, self.parameters.vector.dtype)
        return updates


# The training step in the host's memory: a gradient session, then an update session, over the same flat vectors.
#
# The gradient graph sees one fixed batch size. It reads its minibatch from static buffers and the parameters from views
# into their vector, and writes the gradients into views of theirs. The update graph then rewrites the parameters in
# place. It is a second session on purpose: an update inside the gradient graph would overwrite weights that the layer
# below has not used yet. Everything is bound once, so a step neither allocates nor copies.


class HostStep(BaseStep):
    """Train on one minibatch after the other."""

    adds_rows = True
    gives_shares = True
    for_cpu = True
    in_host_memory = True

    def __init__(self, parts: StepParts) -> None:
        super().__init__(parts, np.asarray)
        settings, parameters, bindings = parts.settings, parts.parameters, self._bindings
        self._passes: dict[int, HostPass] = {}
        self._tables: dict[str, RowGradients] | None = None
        self.buffers(self.batch)
        self._penalty = HostPenalty(bindings, parameters) if self._penalizes else None
        self._clip = None if settings.max_grad_norm is None else bindings.clipping(parameters.gradient)
        self._group = HostAccumulation(bindings, parameters) if settings.accumulate > 1 else None
        decay = settings.ema_decay
        self._average = None if decay is None else HostAverage(bindings, parameters, parts.state, decay)
        self._updates: HostUpdates | None = None
        if isinstance(settings.optimizer, Optimizer):
            segments = self._segment_updates(settings.optimizer)
            lazy = settings.lazy_rows
            rows = RowChoice(self._tables or {}, parameters, lazy=lazy, penalized=self._penalizes)
            self._updates = HostUpdates(segments, parameters, parts.state.slots, rows)

    def buffers(self, rows: int) -> BatchBuffers:
        """Return the buffers that the next step reads, for a minibatch of ``rows`` rows.

        Their columns are the graph's inputs and the target (:data:`TARGET`). They hold a full minibatch, whatever
        ``rows`` is. A minibatch in which rows meet is never padded: its buffers have exactly ``rows`` rows.
        """
        size = self.batch if self._pads else rows
        if size not in self._passes:
            self._passes = {n: known for n, known in self._passes.items() if n == self.batch}  # one remainder
            graph = self._pass_graph(size)
            if self._tables is None:
                self._tables = self._row_gradients(graph.program)
            self._passes[size] = host_pass(graph, self._tables)
        self._current = self._passes[size]
        self._current.buffers.forget()
        return self._current.buffers

    def _row_gradients(self, program: PassProgram) -> dict[str, RowGradients]:
        """Return the gradients of the matrices of which a minibatch reads some rows."""
        settings, parameters = self.settings, self.parameters
        rewritten = self._penalizes or settings.max_grad_norm is not None or settings.accumulate > 1
        found = row_gradients(parameters, program.lookups, rewritten=rewritten)
        lazy, optimizer = settings.lazy_rows, settings.optimizer
        rests = isinstance(optimizer, Optimizer) and not (self._penalizes or moves_without_gradient(optimizer))
        if lazy or rests:
            found |= product_gradients(parameters, program.products, rewritten=rewritten, lazy=lazy)
        return found

    def train(
        self, batches: Batches, next_rates: Callable[[], Rates], after: Callable[[float], bool] | None = None
    ) -> Iterator[tuple[float, float]]:
        """Train on each minibatch of one pass; before its update, yield the sum of its weights and its loss."""
        # Per step: compute the gradients, yield the loss, update when the caller asks for the next loss. While this
        # generator waits, the weights are those that gave the loss: the trainer copies them if the loss is finite
        # (``KeptWeights``), and abandons the pass before the update if not. ``in_host_memory`` promises this order.
        if self._updates is not None:
            self._updates.prepare((batches.steps or 0) // self.settings.accumulate)
        if self._group is not None:
            yield from self._train_groups(self._group, batches, next_rates, after)
            return
        for weight in filled(batches.epoch(), self.buffers):
            rates = next_rates()
            loss = self.gradients(weight, rates.dropout)
            yield weight, loss
            self.update(rates)
            if after is not None and after(loss):
                return

    def _train_groups(
        self,
        mean: HostAccumulation,
        batches: Batches,
        next_rates: Callable[[], Rates],
        after: Callable[[float], bool] | None,
    ) -> Iterator[tuple[float, float]]:
        """Take one step for each group of minibatches; before it, yield the sum of its weights and its loss."""
        minibatches = batches.epoch()
        while group := list(islice(minibatches, self.settings.accumulate)):
            rates = next_rates()
            total, loss = sum(one.weight for one in group), 0.0
            self._begin()
            for i, one in enumerate(group):
                one.fill(self.buffers(len(one.rows)))
                share = one.weight / total if total > 0 else 0.0
                loss += share * self._current.run(self.state, rates.dropout)
                mean.add(i, len(group), share)
            loss += 0.0 if self._penalty is None else self._penalty.run(total)
            del one, group  # they may hold the window of a stream
            yield total, loss
            self.update(rates)
            if after is not None and after(loss):
                return

    def gradients(self, weight: float, dropout: float = 1.0) -> float:
        """Compute the gradients of the minibatch in the buffers; return its loss, the penalty included.

        ``weight`` divides the penalty: the sum of the weights of the minibatch, or of all rows for L-BFGS. ``dropout``
        multiplies the scheduled dropout ratios.
        """
        if self._tables:
            self._begin()
        loss = self._current.run(self.state, dropout)
        return loss if self._penalty is None else loss + self._penalty.run(weight)

    def loss(self) -> float:
        """Return the loss of the minibatch in the buffers, without the penalty; its gradients are overwritten."""
        self._begin()
        return self._current.run(self.state, 1.0)

    def _begin(self) -> None:
        """Begin a step: no row of a matrix has occurred."""
        for table in (self._tables or {}).values():
            table.begin()

    def update(self, rates: Rates) -> None:
        """Update the parameters by the gradients."""
        if self._clip is not None:
            self._clip.run()
        self.state.t += 1
        if self._updates is not None:
            self._updates.run(rates, self.state.t)
        if self._average is not None:
            self._average.run()

    def synchronize(self) -> None:
        """Do nothing: the host's arrays are trained in place."""

    def reload(self) -> None:
        """Do nothing, for the same reason."""


def in_trainable_type(
    model: TrainableModel, settings: StepSettings, names: Sequence[str], sparse: Collection[str] = ()
) -> TrainableModel:
    """Return ``model``, or its float32 form if the engine lacks float64 kernels for its gradients.

    Inputs named in ``sparse`` come sparse.
    """
    if model.dtype == np.float32:
        return model
    if settings.engine == COMPILED:
        return as_float32(model)
    weights, plain = model.weights(), replace(settings, accumulate=1, ema_decay=None, scheduled=Scheduled())
    trained = FlatParameters(
        {n: weights[n] for n in names}, model.dtype, {n: weights[n] for n in model.running_statistics}
    )
    try:
        HostStep(StepParts(model, plain, trained, {}, OptimizerState(), batch=2, sparse=sparse))
    except Exception as error:
        if not runtime_errors.not_implemented(error):
            raise
        return as_float32(model)
    return model

"""Base class of the steps on host and device: the graphs of a step, their sessions, the optimizer's initial state.

A step runs up to four graphs in this order: the gradient, the gradient of the penalty, the clipping of the norm, the
update. The subclasses decide where the arrays are and when they are bound.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy as np

from .._data.batches import BatchBuffers
from .._data.sparse_rows import SparseRows
from .._graph.loss_terms import penalty_factors
from .._graph.trainable import TrainableModel
from .._optimizers.update_graph import Coefficients, clip_graph
from .._runtime import gradient_builder, sessions
from .._runtime.binding import Array, Binding
from .._runtime.sessions import InferenceSession
from .._runtime.shared_sessions import shared_session
from ..exceptions import warn
from ..optimizers import Optimizer
from .dropout import UniformNumbers
from .loss_graph import (
    ABSOLUTES,
    PARALLEL_WORK,
    SQUARES,
    TARGET,
    StepSettings,
    buffer_shape,
    ir_type,
    penalty_graph,
    target_layout,
)
from .parameters import FlatParameters
from .programs import PassProgram, PassSource, pass_program
from .segments import Factors, Segment, require_elementwise, segments, with_decay_factor
from .step import OptimizerState, Rates
from .vector_graphs import AVERAGE, SHARE, STEP_WEIGHT, TOTAL, accumulation_graph, average_graph
from .vector_programs import UpdateProgram, graph_bytes, update_program


@dataclass(frozen=True, eq=False)
class PassGraph:
    """The gradient graph for a fixed number of rows, and the host arrays that it reads."""

    program: PassProgram
    buffers: BatchBuffers
    uniform: UniformNumbers


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


@dataclass(frozen=True, eq=False)
class SegmentUpdate:
    """The update of a segment of the vectors: its graph and the session that runs it."""

    segment: Segment
    program: UpdateProgram
    session: InferenceSession

    @property
    def factors(self) -> Factors:
        """The factors of the segment; segments of equal ones have the same coefficients."""
        return self.segment.factors

    def coefficients(self, rates: Rates, t: int) -> Coefficients:
        """Return the scalars of step ``t``."""
        program, rate = self.program, rates.learning_rate * self.factors.rate
        return program.coefficients(rate, t, rates.decay) if program.scheduled else program.coefficients(rate, t)


class BaseStep:
    """The construction of a step; its public attributes are those of :class:`~.step.TrainingStep`."""

    def __init__(self, parts: StepParts) -> None:
        self.settings, self.parameters, self.state = parts.settings, parts.parameters, parts.state
        self.batch, self.engine = parts.batch, parts.settings.engine
        self._model, self._frozen, self._sparse = parts.model, parts.frozen, parts.sparse
        self._initial_slots: Mapping[str, float] = {}
        self._warned = False

    @property
    def penalized(self) -> bool:
        """Whether a penalty applies to any parameter."""
        return bool(self.settings.alpha and self.parameters.penalized.stop)

    def forget_state(self) -> None:
        """Reset the optimizer to its state before the first step."""
        self.state.reset(self._initial_slots)

    def _pass_graph(self, batch: int, *, resident: bool = False) -> PassGraph:
        """Return the gradient graph for ``batch`` rows; the trained parameters are among its inputs."""
        settings, dtype = self.settings, self.parameters.vector.dtype
        source = PassSource(self._model, settings, self.parameters, self._frozen, batch, resident, self._sparse)
        program = pass_program(source)
        sparse = {product.input: SparseRows() for product in program.products}
        dense = [spec for spec in self._model.inputs if spec.name not in sparse]
        columns = {spec.name: np.zeros(buffer_shape(spec.shape, batch), spec.dtype) for spec in dense}
        columns[TARGET] = np.zeros(*target_layout(settings.task, settings.n_outputs, batch, dtype))
        uniform = UniformNumbers(program.random, settings.seed)
        self._warn_of_missing_dropout(uniform)
        self.engine = program.engine
        return PassGraph(program, BatchBuffers(columns, np.ones(batch, dtype), sparse), uniform)

    def _warn_of_missing_dropout(self, uniform: UniformNumbers) -> None:
        """Warn once if dropout is scheduled, but the graph has none."""
        if self.settings.scheduled.dropout and not uniform.buffers and not self._warned:
            self._warned = True
            warn("dropout_schedule has no effect: the graph has no Dropout in training mode.")

    def _bind_pass(
        self,
        session: InferenceSession,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        gradients: Mapping[str, Array],
        statistics: Mapping[str, Array],
    ) -> Binding:
        """Bind a gradient graph.

        ``gradients`` and ``statistics`` map names to the arrays for the gradient of each parameter and the next value
        of each running statistic.
        """
        written = {**outputs, **{f"{name}_grad": array for name, array in gradients.items()}}
        written |= {self._model.running_statistics[name]: array for name, array in statistics.items()}
        names = {value.name for value in session.get_inputs()}
        return Binding(session, {name: array for name, array in inputs.items() if name in names}, written)

    def _bind_penalty(
        self, weights: Array, gradients: Array, place: Callable[[np.ndarray], Array], **scalars: Array
    ) -> Binding:
        """Bind the graph that adds the gradient of the penalty to ``gradients``, in place.

        ``place`` puts an array into the memory of the others.
        """
        settings, dtype = self.settings, self.parameters.vector.dtype
        squares, absolutes = penalty_factors(settings.alpha, settings.l1_ratio)
        factors = {SQUARES: squares, **({ABSOLUTES: absolutes} if settings.l1_ratio else {})}
        graph = graph_bytes(
            penalty_graph,
            self.parameters.penalized.stop,
            ir_type(dtype),
            settings.engine,
            absolute=bool(settings.l1_ratio),
        )
        inputs = {"weights": weights, "gradients": gradients, **scalars}
        inputs |= {name: place(np.array(factor, dtype)) for name, factor in factors.items()}
        return Binding(self._session(graph), inputs, {"new_gradients": gradients})

    def _bind_clipping(self, gradients: Array, place: Callable[[np.ndarray], Array]) -> Binding:
        """Bind the graph that clips the norm of ``gradients``, in place; ``place`` puts an array into its memory."""
        dtype = self.parameters.vector.dtype
        limit, norm = place(np.array(self.settings.max_grad_norm, dtype)), place(np.zeros((), dtype))
        session = self._session(graph_bytes(clip_graph, ir_type(dtype)))
        return Binding(session, {"gradients": gradients, "max_norm": limit}, {"new_gradients": gradients, "norm": norm})

    def _segment_updates(self, optimizer: Optimizer) -> list[SegmentUpdate]:
        """Return the updates of all segments, and create the slots of the optimizer's state that they need."""
        vector, fused = self.parameters.vector, gradient_builder.has_gradient_builder()
        found = segments(self.parameters, self.settings.factors)
        programs = {}
        for decay in dict.fromkeys(segment.factors.decay for segment in found):
            own = with_decay_factor(optimizer, decay)
            scheduled = self.settings.scheduled.decay and bool(getattr(own, "weight_decay", 0.0))
            programs[decay] = update_program(own, ir_type(vector.dtype), fused=fused, scheduled=scheduled)
        if len(found) > 1:
            require_elementwise(optimizer, elementwise=all(one.elementwise for one in programs.values()))
        opened = {decay: self._session(program.graph) for decay, program in programs.items()}
        self._initial_slots = {name: value for one in programs.values() for name, value in one.slots.items()}
        self.state.prepare(self._initial_slots, vector)
        return [SegmentUpdate(one, programs[one.factors.decay], opened[one.factors.decay]) for one in found]

    def _bind_accumulation(
        self, total: Array, gradients: Array, share: Array | None = None
    ) -> dict[tuple[bool, bool], Binding]:
        """Bind the graphs that add up the gradients of a group of minibatches, by whether one is the first or last."""
        dtype, found = self.parameters.vector.dtype, {}
        for first, last in ((True, False), (False, False), (False, True)):
            graph = graph_bytes(accumulation_graph, len(self.parameters.vector), ir_type(dtype), first=first, last=last)
            inputs = {"gradients": gradients, **({} if first else {TOTAL: total})}
            inputs |= {} if share is None else {SHARE: share}
            found[first, last] = Binding(self._session(graph), inputs, {"sum": gradients if last else total})
        return found

    def _bind_average(self, average: Array, parameters: Array, weight: Array | None = None) -> Binding:
        """Bind the graph that moves the average of the parameters."""
        graph = graph_bytes(average_graph, len(self.parameters.vector), ir_type(self.parameters.vector.dtype))
        inputs = {AVERAGE: average, "parameters": parameters, **({} if weight is None else {STEP_WEIGHT: weight})}
        return Binding(self._session(graph), inputs, {f"new_{AVERAGE}": average})

    def _bind_update(
        self, session: InferenceSession, vectors: Mapping[str, Array], gradients: Array, scalars: Mapping[str, Array]
    ) -> Binding:
        """Bind the in-place update of ``vectors``: the parameters and the slots."""
        outputs = {f"new_{name}": vector for name, vector in vectors.items()}
        return Binding(session, {**vectors, "gradients": gradients, **scalars}, outputs)

    def _pass_session(self, program: PassProgram, threads: int = 1) -> InferenceSession:
        """Return the session of a pass, which other fits may use too."""
        device, options = self.settings.device, self.settings.session_options
        if program.work >= PARALLEL_WORK:  # its plan of the memory of large tensors leaves gaps, half as much again
            options = {"enable_mem_pattern": False, **(options or {})}
        if not program.stateless:
            return sessions.create_session(program.graph, device, threads=threads, options=options)
        return shared_session(program.graph, device, threads=threads, options=options, memory=program.memory)

    def _session(self, graph: bytes) -> InferenceSession:
        """Return a session with one thread: a second spinning pool would compete with the gradient session's."""
        settings = self.settings
        memory = 8.0 * self.parameters.vector.nbytes  # a few vectors, of which pieces are computed at a time
        return shared_session(graph, settings.device, options=settings.session_options, memory=memory)

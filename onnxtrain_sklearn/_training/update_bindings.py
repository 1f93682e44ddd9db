"""Optimizer step, clipping, penalty and averages as graphs over flat vectors, bound in place."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir

from .._ir.edits import append_output
from .._ir.protobuf import to_proto
from .._model.loss_terms import penalty_factors
from .._ort import devices, gradient_builder
from .._ort.binding import Array, Binding
from .._ort.sessions import InferenceSession, shared_session
from .._utils.cache import Cache, content, is_plain
from ..graph import new_graph
from ..optimizers import Optimizer, Parameter, Slot, clip_graph, update_graph
from ..optimizers.in_place import moves_without_gradient, slots_for, update_rule
from .formula_updates import Formula, formula_of
from .loss_graph import ABSOLUTES, PARALLEL_WORK, SQUARES, ir_type, penalty_graph, work
from .machine_code import differentiating_engine
from .parameters import FlatParameters, Segment, segments, state_name
from .settings import StepSettings
from .step_interface import Rates

X = TypeVar("X")

_graphs: Cache[tuple[bytes, float, Formula | None]] = Cache(128, 2**24, lambda entry: len(entry[0]))


def graph_bytes(emit: Callable[..., ir.Model], *arguments: Hashable, **keywords: Hashable) -> bytes:
    """Return what ``emit``, a function of this package, makes of these arguments, as bytes."""

    def made() -> tuple[bytes, float, Formula | None]:
        return to_proto(emit(*arguments, **keywords)).SerializeToString(), 0.0, None

    return _graphs.get((emit, arguments, tuple(keywords.items())), made)[0]


@dataclass(frozen=True)
class UpdateProgram:
    """An update graph as bytes; the other attributes are those of :class:`~.optimizers.UpdateGraph`.

    ``formula`` is the same update for NumPy; None if NumPy cannot run it. ``work`` is the number of multiply-adds in
    its products of matrices. ``moves_without_gradient``: whether an element may change in a step in which its gradient
    is zero.
    """

    graph: bytes
    slots: Mapping[str, Slot]
    scalars: Callable[..., Mapping[str, Any]]
    elementwise: bool
    scheduled: bool
    formula: Formula | None = None
    work: float = 0.0
    moves_without_gradient: bool = True


def update_program(
    optimizer: Optimizer, parameter: Parameter, kind: ir.DataType, *, fused: bool, scheduled: bool
) -> UpdateProgram:
    """Return the update of ``optimizer``; its scalars are those of the object itself, never of an equal one."""

    def made() -> tuple[bytes, float, Formula | None]:
        found = update_graph(optimizer, kind, parameter=parameter, fused=fused, scheduled=scheduled)
        return to_proto(found.model).SerializeToString(), work(found.model.graph), formula_of(found)

    shapes = () if optimizer.elementwise else (parameter.shape, slots_for(optimizer, parameter).items())
    key = ("update", content(optimizer), *map(tuple, shapes), kind, fused, scheduled)
    graph, products, formula = _graphs.get(key, made) if is_plain(optimizer) else made()
    rule = update_rule(optimizer, kind, fused=fused, scheduled=scheduled)
    moves = moves_without_gradient(optimizer)
    slots, elementwise = slots_for(rule, parameter), optimizer.elementwise
    return UpdateProgram(graph, slots, rule.scalars, elementwise, scheduled, formula, products, moves)


# The graphs that run on whole vectors after the gradient, bound to arrays of the host or of a device.


ToMemory = Callable[[np.ndarray], Array]
"""Puts an array into the memory of the others."""


@dataclass(frozen=True, eq=False)
class SegmentUpdate:
    """The update of a segment of the vectors: its graph, and what opens the session that runs it."""

    segment: Segment
    program: UpdateProgram
    open_session: Callable[[], InferenceSession]

    @property
    def scalars_key(self) -> Hashable:
        """Segments of equal keys have the same scalars in each step."""
        return self.segment.factors, self.segment.parameter

    @cached_property
    def scalars(self) -> Callable[[Rates, int], Mapping[str, Any]]:
        """Returns the scalars of a step, by its rates and its number from 1."""
        found, factor = self.program.scalars, self.segment.factors.rate
        if self.program.scheduled:
            return lambda rates, t: found(float(rates.learning_rate * factor), t, rates.decay)
        return lambda rates, t: found(float(rates.learning_rate * factor), t)

    def slots(self, state: Mapping[str, X]) -> dict[str, X]:
        """Return the arrays of the optimizer's state that the segment has, or shares with others, by slot."""
        return {slot: state[state_name(slot, self.segment.parameter)] for slot in self.program.slots}

    def host_arrays(
        self, vector: np.ndarray, gradient: np.ndarray, state: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return the arrays that the graph updates, by its names, and the gradients: views in its shapes."""
        part, parameter, slots = self.segment.part, self.segment.parameter, self.slots(state)
        if parameter is None:
            return {name: array[part] for name, array in {"parameters": vector, **slots}.items()}, gradient[part]
        shape = (-1,) if self.program.elementwise else parameter.shape
        if self.program.elementwise:
            slots = {name: array.reshape(-1) for name, array in slots.items()}
        return {"parameters": vector[part].reshape(shape), **slots}, gradient[part].reshape(shape)


class VectorBindings:
    """Binds the graphs of a step. They have sessions of one thread each, which other fits may use too.

    Parameters
    ----------
    settings : StepSettings
    parameters : FlatParameters
        Their sizes and their type are read.
    place : callable
        Puts an array into the memory of the vectors.
    """

    def __init__(self, settings: StepSettings, parameters: FlatParameters, place: ToMemory) -> None:
        self._settings, self._parameters, self.place = settings, parameters, place
        self.dtype = parameters.vector.dtype
        self._size, self._kind = len(parameters.vector), ir_type(self.dtype)

    def penalty(self, weights: Array, gradients: Array, **scalars: Array) -> Binding:
        """Bind the graph that adds the gradient of the penalty to ``gradients``, in place."""
        settings = self._settings
        squares, absolutes = penalty_factors(settings.alpha, settings.l1_ratio)
        factors = {SQUARES: squares, **({ABSOLUTES: absolutes} if settings.l1_ratio else {})}
        graph = graph_bytes(
            penalty_graph,
            self._parameters.penalized.stop,
            self._kind,
            differentiating_engine(settings.engine),
            absolute=bool(settings.l1_ratio),
        )
        inputs = {"weights": weights, "gradients": gradients, **scalars}
        inputs |= {name: self.place(np.array(factor, self.dtype)) for name, factor in factors.items()}
        return Binding(self._session(graph), inputs, {"new_gradients": gradients})

    def clipping(self, gradients: Array) -> Binding:
        """Bind the graph that clips the norm of ``gradients``, in place."""
        limit, norm = np.array(self._settings.max_grad_norm, self.dtype), np.zeros((), self.dtype)
        inputs = {"gradients": gradients, "max_norm": self.place(limit)}
        outputs = {"new_gradients": gradients, "norm": self.place(norm)}
        return Binding(self._session(graph_bytes(clip_graph, self._kind)), inputs, outputs)

    def accumulation(self, gradients: Array, share: Array | None = None) -> dict[tuple[bool, bool], Binding]:
        """Bind the graphs that add up the gradients of a group of minibatches, by whether one is the first or last."""
        total, found = self.place(np.zeros(self._size, self.dtype)), {}
        for first, last in ((True, False), (False, False), (False, True)):
            graph = graph_bytes(accumulation_graph, self._size, self._kind, first=first, last=last)
            inputs = {"gradients": gradients, **({} if first else {TOTAL: total})}
            inputs |= {} if share is None else {SHARE: share}
            found[first, last] = Binding(self._session(graph), inputs, {"sum": gradients if last else total})
        return found

    def average(self, average: Array, parameters: Array, weight: Array | None = None) -> Binding:
        """Bind the graph that moves the average of the parameters."""
        graph = graph_bytes(average_graph, self._size, self._kind)
        inputs = {AVERAGE: average, "parameters": parameters, **({} if weight is None else {STEP_WEIGHT: weight})}
        return Binding(self._session(graph), inputs, {f"new_{AVERAGE}": average})

    def copying(self, moved: Array, statistics: Array) -> Binding:
        """Bind the graph that copies the next running statistics over the current ones."""
        graph = graph_bytes(copy_graph, self._parameters.statistics.size, self._kind)
        return Binding(self._session(graph), {"moved": moved}, {"statistics": statistics})

    def segment_updates(self, optimizer: Optimizer) -> list[SegmentUpdate]:
        """Return the updates of all segments."""
        settings, fused = self._settings, gradient_builder.has_gradient_builder()
        updates, programs, sessions = [], dict[object, UpdateProgram](), dict[bytes, Callable[[], InferenceSession]]()
        for one in segments(self._parameters, settings.factors, optimizer):
            # segments of a vector share the rule of their decay; that of a parameter may have been made for it
            parameter = one.parameter or Parameter("parameters", self._parameters.vector.shape)
            key = one.factors.decay if one.parameter is None else parameter
            if key not in programs:
                scheduled = settings.scheduled.decay and bool(getattr(one.optimizer, "weight_decay", 0.0))
                found = update_program(one.optimizer, parameter, self._kind, fused=fused, scheduled=scheduled)
                programs[key] = found
                sessions.setdefault(found.graph, cache(partial(self._session, found.graph, found.work)))
            updates.append(SegmentUpdate(one, programs[key], sessions[programs[key].graph]))
        return updates

    def _session(self, graph: bytes, products: float = 0.0) -> InferenceSession:
        """Return a session; ``products`` are the multiply-adds of its products of matrices.

        Without large ones it has one thread: a second spinning pool would compete with the gradient session's. Those of
        Muon take longer than the pass of a small minibatch.
        """
        settings = self._settings
        threads = devices.available_threads() if products >= PARALLEL_WORK else 1
        memory = 8.0 * self._parameters.vector.nbytes  # a few vectors, of which pieces are computed at a time
        return shared_session(graph, settings.device, threads=threads, options=settings.session_options, memory=memory)


def bind_update(
    session: InferenceSession, vectors: Mapping[str, Array], gradients: Array, scalars: Mapping[str, Array]
) -> Binding:
    """Bind the in-place update of ``vectors``: the parameters and the slots."""
    outputs = {f"new_{name}": vector for name, vector in vectors.items()}
    return Binding(session, {**vectors, "gradients": gradients, **scalars}, outputs)


# Small graphs over whole vectors that run in place: accumulated gradients and averaged weights, and a copy.


TOTAL, SHARE = "total", "share"
AVERAGE, STEP_WEIGHT = "average", "step_weight"


def accumulation_graph(size: int, kind: ir.DataType, *, first: bool, last: bool) -> ir.Model:
    r"""Return the graph that adds the gradient of a minibatch, times its share of the weights, to the total.

    .. math:: G ← G + s_i g_i, \quad s_i = w_i / \sum_j w_j

    That makes the weighted mean over a group of minibatches. The ``first`` of a group replaces the total; the ``last``
    writes the result over the gradients.
    """
    gradients, share = ir.val("gradients", kind, (size,)), ir.val(SHARE, kind, ())
    total = ir.val(TOTAL, kind, (size,))
    op = new_graph([gradients, share] if first else [gradients, share, total], kind, "accumulate")
    part = op.Mul(gradients, share)
    append_output(op.graph, part if first else op.Add(total, part), "sum", gradients if last else total)
    return ir.Model(op.graph, ir_version=8)


def average_graph(size: int, kind: ir.DataType) -> ir.Model:
    """Return the graph that moves ``average`` towards ``parameters`` by the share ``step_weight`` of their distance."""
    average, parameters = ir.val(AVERAGE, kind, (size,)), ir.val("parameters", kind, (size,))
    weight = ir.val(STEP_WEIGHT, kind, ())
    op = new_graph([average, parameters, weight], kind, "average")
    moved = op.Add(average, op.Mul(op.Sub(parameters, average), weight))
    append_output(op.graph, moved, f"new_{AVERAGE}", average)
    return ir.Model(op.graph, ir_version=8)


def step_weight(decay: float, steps: int) -> float:
    r"""Return the weight of the latest parameters in the average after so many steps.

    .. math:: \bar p_t = \bar p_{t-1} + \frac{1 - d}{1 - d^t} (p_t - \bar p_{t-1})

    is the moving average of decay d that starts from zero, divided by 1 - dᵗ: the initial weights are not part of it.
    """
    return (1.0 - decay) / (1.0 - decay**steps)


def copy_graph(size: int, kind: ir.DataType) -> ir.Model:
    """Return the graph that copies the vector ``moved`` to ``statistics``."""
    value = ir.val("moved", kind, (size,))
    op = new_graph([value], kind, "copy")
    append_output(op.graph, op.Identity(value), "statistics", value)
    return ir.Model(op.graph, ir_version=8)

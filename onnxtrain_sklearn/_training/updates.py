"""The updates that follow a pass: graphs over flat vectors, and the objects that run them on the host.

The optimizer's step, the penalty, clipping, accumulation and the average of the weights are graphs that change vectors
in place. :class:`VectorBindings` binds them to arrays of the host or of a device. :class:`HostUpdates` updates the
parameters on the host: segment by segment, by the fastest executor for each (:mod:`.update_executors`), and only the
rows that occur in the minibatch where that gives the same result, or where ``lazy_rows`` asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import onnx_ir as ir

from .._gradient.engine import differentiate
from .._ir.edits import append_output
from .._ir.protobuf import to_proto
from .._model.loss_terms import penalty_factors, weighted_penalty
from .._ort import devices, gradient_builder
from .._ort.binding import Array, Binding
from .._ort.sessions import InferenceSession, shared_session
from .._utils.cache import Cache, content, is_plain
from ..graph import GraphBuilder, new_graph
from ..optimizers import Optimizer, Parameter, Slot, clip_graph, update_graph
from ..optimizers.in_place import moves_without_gradient, slots_for, update_rule
from . import update_executors
from .loss_graph import ir_type
from .parameters import FlatParameters, VectorSegment, require_rows_apart, state_name, vector_segments
from .passes import RowSparseGradient
from .programs import PARALLEL_WORK, differentiating_engine, work
from .step_parts import OptimizerState, Rates, StepSettings
from .update_executors import SAVINGS, Formula, VectorUpdate, formula_of, formula_update, saved_by_compiling

PENALTY, SQUARES, ABSOLUTES = "penalty", "squares", "absolutes"
TOTAL, SHARE = "total", "share"
AVERAGE, STEP_WEIGHT = "average", "step_weight"

X = TypeVar("X")

# The optimizer's update as a graph, compiled once for equal optimizers.

_graphs: Cache[tuple[bytes, float, Formula | None]] = Cache(128, 2**24, lambda entry: len(entry[0]))


def graph_bytes(emit: Callable[..., ir.Model], *arguments: Hashable, **keywords: Hashable) -> bytes:
    """Return the bytes of the model that ``emit``, a function of this package, returns for these arguments; cached."""

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
    """Return the update of ``optimizer``.

    The graph may be the cached one of an equal optimizer; the scalars always come from this object.
    """

    def made() -> tuple[bytes, float, Formula | None]:
        found = update_graph(optimizer, kind, parameter=parameter, fused=fused, scheduled=scheduled)
        return to_proto(found.model).SerializeToString(), work(found.model.graph), formula_of(found)

    shapes = () if optimizer.elementwise else (parameter.shape, slots_for(optimizer, parameter).items())
    key = ("update", content(optimizer), *map(tuple, shapes), kind, fused, scheduled)
    graph, products, formula = _graphs.get(key, made) if is_plain(optimizer) else made()
    rule = update_rule(optimizer, kind, fused=fused, scheduled=scheduled)
    moves = moves_without_gradient(optimizer)
    slots = slots_for(rule, parameter)
    elementwise = optimizer.elementwise
    return UpdateProgram(graph, slots, rule.scalars, elementwise, scheduled, formula, products, moves)


# The graphs that run on whole vectors after the gradient, bound to arrays of the host or of a device.


ToMemory = Callable[[np.ndarray], Array]
"""A function that puts an array into the memory of the trained vectors: of the host or of a device."""


@dataclass(frozen=True, eq=False)
class SegmentUpdate:
    """The update of a segment of the vectors: its graph, and the function that opens a session for the graph."""

    segment: VectorSegment
    program: UpdateProgram
    open_session: Callable[[], InferenceSession]

    @property
    def scalars_key(self) -> Hashable:
        """A key that is equal for segments with the same scalars in each step."""
        return self.segment.factors, self.segment.parameter

    @cached_property
    def scalars(self) -> Callable[[Rates, int], Mapping[str, Any]]:
        """The function that returns the scalars of a step, given its rates and its number, counted from 1."""
        found = self.program.scalars
        factor = self.segment.factors.rate
        if self.program.scheduled:
            return lambda rates, t: found(float(rates.learning_rate * factor), t, rates.decay_factor)
        return lambda rates, t: found(float(rates.learning_rate * factor), t)

    def slots(self, state: Mapping[str, X]) -> dict[str, X]:
        """Return the optimizer's state by slot: arrays of this segment alone, or vectors that all segments share."""
        return {slot: state[state_name(slot, self.segment.parameter)] for slot in self.program.slots}

    def host_arrays(
        self, vector: np.ndarray, gradient: np.ndarray, state: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return the arrays that the graph updates, by name, and the gradients, all as views in the graph's shapes."""
        part = self.segment.part
        parameter = self.segment.parameter
        slots = self.slots(state)
        if parameter is None:
            return {name: array[part] for name, array in {"parameters": vector, **slots}.items()}, gradient[part]
        shape = (-1,) if self.program.elementwise else parameter.shape
        if self.program.elementwise:
            slots = {name: array.reshape(-1) for name, array in slots.items()}
        return {"parameters": vector[part].reshape(shape), **slots}, gradient[part].reshape(shape)


class VectorBindings:
    """Binds the graphs of a step, in sessions that other fits may use too.

    A session has one thread, unless it holds large products of matrices.

    Parameters
    ----------
    settings : StepSettings
    parameters : FlatParameters
        Only the sizes and the type of the vectors are read.
    place : callable
        The function that puts an array into the memory of the vectors.
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
        limit = np.array(self._settings.max_grad_norm, self.dtype)
        norm = np.zeros((), self.dtype)
        inputs = {"gradients": gradients, "max_norm": self.place(limit)}
        outputs = {"new_gradients": gradients, "norm": self.place(norm)}
        return Binding(self._session(graph_bytes(clip_graph, self._kind)), inputs, outputs)

    def accumulation(self, gradients: Array, share: Array | None = None) -> dict[tuple[bool, bool], Binding]:
        """Bind the graphs that add up the gradients of a group of minibatches, by whether one is the first or last."""
        total = self.place(np.zeros(self._size, self.dtype))
        found = {}
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

    def copying(self, next_statistics: Array, statistics: Array) -> Binding:
        """Bind the graph that copies the next running statistics over the current ones."""
        graph = graph_bytes(copy_graph, self._parameters.statistics.size, self._kind)
        return Binding(self._session(graph), {"next_statistics": next_statistics}, {"statistics": statistics})

    def segment_updates(self, optimizer: Optimizer) -> list[SegmentUpdate]:
        """Return the updates of all segments."""
        settings = self._settings
        fused = gradient_builder.has_gradient_builder()
        updates = []
        programs = dict[object, UpdateProgram]()
        sessions = dict[bytes, Callable[[], InferenceSession]]()
        for one in vector_segments(self._parameters, settings.factors, optimizer):
            # Segments with equal weight decay share a program. A parameter that is updated by itself has its own.
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

        The session has one thread, because a second thread pool would compete with that of the gradient session. Only
        for large products, such as Muon's, which take longer than the pass of a small minibatch, it has several.
        """
        settings = self._settings
        threads = devices.available_threads() if products >= PARALLEL_WORK else 1
        memory = 8.0 * self._parameters.vector.nbytes  # an estimate: a few vectors, computed piece by piece
        return shared_session(graph, settings.device, threads=threads, options=settings.session_options, memory=memory)


def bind_update(
    session: InferenceSession, vectors: Mapping[str, Array], gradients: Array, scalars: Mapping[str, Array]
) -> Binding:
    """Bind the in-place update of ``vectors``: the parameters and the slots."""
    outputs = {f"new_{name}": vector for name, vector in vectors.items()}
    return Binding(session, {**vectors, "gradients": gradients, **scalars}, outputs)


# The optimizer's update on the host.


@dataclass(frozen=True, eq=False)
class ScalarGroup:
    """The updates of segments with equal factors, which read the same scalars, such as the learning rate."""

    scalars_of: Callable[[Rates, int], Mapping[str, Any]]
    scalars: Mapping[str, np.ndarray]
    updates: list[VectorUpdate | RowUpdate]


class HostUpdates:
    """The update of all parameters and slots.

    NumPy or a session runs it, whichever is faster for the length of a segment (:data:`~.update_executors.TUNING`). In
    place of NumPy, a compiled loop runs as soon as that pays (:data:`~.update_executors.SAVINGS`), with equal bits.

    Parameters
    ----------
    segments : list of SegmentUpdate
    parameters : FlatParameters
    slots : mapping of str to ndarray
        The optimizer's state.
    row_sparse : mapping of str to RowSparseGradient
        The gradients of matrices of which a minibatch uses only some rows, by name.
    lazy : bool
        Whether all of these matrices are updated only in the rows that occur (``lazy_rows``). If not, this is done only
        where the other rows would not change anyway and are most of the matrix.
    penalized : bool
        Whether the penalty moves all rows.

    Attributes
    ----------
    groups : list of ScalarGroup
    """

    def __init__(
        self,
        segments: list[SegmentUpdate],
        parameters: FlatParameters,
        slots: Mapping[str, np.ndarray],
        row_sparse: Mapping[str, RowSparseGradient],
        *,
        lazy: bool,
        penalized: bool,
    ) -> None:
        self._segments, self._parameters, self._slots = segments, parameters, slots
        self._row_sparse, self._lazy, self._penalized = row_sparse, lazy, penalized
        self.groups = self._bound()
        self._saved = sum(saved_by_compiling(one) for group in self.groups for one in group.updates)

    def prepare(self, steps: int) -> None:
        """Count the coming steps; compile as soon as this would have saved more time in this process than it takes."""
        if self._saved:
            SAVINGS.add(steps * self._saved)
            if SAVINGS.suffice:
                self.groups, self._saved = self._bound(), 0.0

    def run(self, rates: Rates, t: int) -> None:
        """Take step ``t``."""
        for group in self.groups:
            for name, value in group.scalars_of(rates, t).items():
                group.scalars[name][()] = value
            for one in group.updates:
                one.run()

    def _bound(self) -> list[ScalarGroup]:
        """Bind the updates of all segments."""
        vector = self._parameters.vector
        gradient = self._parameters.gradient
        groups = dict[object, ScalarGroup]()
        for segment in self._segments:
            if segment.scalars_key not in groups:
                names_and_types = segment.scalars(Rates(0.001), 1)  # at any rate
                kinds = {n: np.int64 if isinstance(x, int) else vector.dtype for n, x in names_and_types.items()}
                scalars = {name: np.zeros((), kind) for name, kind in kinds.items()}
                groups[segment.scalars_key] = ScalarGroup(segment.scalars, scalars, [])
            group = groups[segment.scalars_key]
            for part, row_sparse in self._parts(segment):
                arrays, gradients = part.host_arrays(vector, gradient, self._slots)
                every: Sequence[VectorUpdate] = ()
                if row_sparse is None or row_sparse.most_indices is not None:
                    every = _vector_updates(part, arrays, gradients, group.scalars)
                if row_sparse is None:
                    group.updates.extend(every)
                else:
                    group.updates.append(RowUpdate(part, row_sparse, arrays, group.scalars, every))
        return list(groups.values())

    def _parts(self, segment: SegmentUpdate) -> list[tuple[SegmentUpdate, RowSparseGradient | None]]:
        """Split a segment into matrices that are updated row by row and the parts between them."""
        whole, program = segment.segment.part, segment.program
        # An update that is not elementwise reads the whole matrix.
        may_leave_rows = program.elementwise and not (program.moves_without_gradient or self._penalized)
        found = list[tuple[slice, RowSparseGradient | None]]()
        start = whole.start
        for name in self._parameters.names:
            gradient = self._row_sparse.get(name)
            span = self._parameters.span(name)
            if gradient is None or span.start < whole.start or whole.stop < span.stop:
                continue
            if self._lazy:
                require_rows_apart(segment.segment.optimizer)
            elif not may_leave_rows or 2 * gradient.n_indices > gradient.n_rows:
                continue
            found += [(slice(start, span.start), None), (span, gradient)]
            start = span.stop
        found.append((slice(start, whole.stop), None))
        return [
            (segment if part == whole else replace(segment, segment=replace(segment.segment, part=part)), gradient)
            for part, gradient in found
            if part.start < part.stop
        ]


def _vector_updates(
    one: SegmentUpdate, arrays: Mapping[str, np.ndarray], gradients: np.ndarray, scalars: Mapping[str, np.ndarray]
) -> list[VectorUpdate]:
    """Return the updates of a segment: one by NumPy or machine code if faster, else one by a session per piece."""
    formula = one.program.formula
    tuning = update_executors.TUNING
    if formula is not None and gradients.size > tuning.least_elements:
        return [formula_update(formula, arrays, gradients, scalars)]
    session = one.open_session()
    if not one.program.elementwise or gradients.size <= 2 * tuning.piece:
        return [bind_update(session, arrays, gradients, scalars)]
    cuts = [slice(i, i + tuning.piece) for i in range(0, gradients.size, tuning.piece)]
    return [bind_update(session, {n: a[cut] for n, a in arrays.items()}, gradients[cut], scalars) for cut in cuts]


GRADIENTS = "gradients"

BLOCK_SIZES = 8
"""Number of different sizes of blocks of rows. A step uses the smallest block that holds its rows."""

Matrices: TypeAlias = "Mapping[str, Sequence[np.ndarray]]"


class RowUpdate:
    """The update of the rows of a matrix that occur in a minibatch.

    The rows of the matrix, of its gradient and of the optimizer's state are copied to contiguous blocks, updated there
    by the graph of the optimizer, and copied back.

    Parameters
    ----------
    one : SegmentUpdate
        The update of the matrix.
    gradient : RowSparseGradient
    arrays : mapping of str to ndarray
        The parameters and the optimizer's state of the matrix.
    scalars : mapping of str to ndarray
    every : sequence of VectorUpdate, optional
        The update of all rows, for steps in which most occur.
    """

    def __init__(
        self,
        one: SegmentUpdate,
        gradient: RowSparseGradient,
        arrays: Mapping[str, np.ndarray],
        scalars: Mapping[str, np.ndarray],
        every: Sequence[VectorUpdate] = (),
    ) -> None:
        self._one, self._gradient, self._scalars, self._every = one, gradient, scalars, every
        shape, axis = gradient.values.shape, gradient.axis
        self._width = shape[1 - axis]
        self._size = min(shape[axis], max(1, update_executors.TUNING.block // (2 * self._width)))
        self._matrices = {name: _rows_first(array.reshape(shape), axis) for name, array in arrays.items()}
        self._matrices[GRADIENTS] = _rows_first(gradient.values, axis)
        self._blocks: dict[int, tuple[Matrices, VectorUpdate]] = {}

    def run(self) -> None:
        """Update the rows in place."""
        if self._gradient.is_dense:
            for update in self._every:
                update.run()
            return
        # If all rows fit into one block, duplicates need not be removed, because all copies of a row are updated alike.
        rows = self._gradient.occurring_rows(most_with_duplicates=self._size)
        step = -(-self._size // BLOCK_SIZES)
        for start in range(0, len(rows), self._size):
            part = rows[start : start + self._size]
            count = min(self._size, -(-len(part) // step) * step)
            if count not in self._blocks:
                # Make arrays for ``count`` rows, and bind the update to them.
                axis = self._gradient.axis
                formula = self._one.program.formula
                values = self._gradient.values
                shape = (count, self._width) if axis == 0 else (self._width, count)
                arrays = {name: np.zeros(shape, values.dtype) for name in self._matrices}
                flat = {name: array.ravel() for name, array in arrays.items()}
                gradients = flat.pop(GRADIENTS)
                bound: VectorUpdate
                if formula is None:
                    bound = bind_update(self._one.open_session(), flat, gradients, self._scalars)
                else:
                    bound = formula_update(formula, flat, gradients, self._scalars)
                self._blocks[count] = {name: _rows_first(array, axis) for name, array in arrays.items()}, bound
            blocks, update = self._blocks[count]
            for name, matrices in self._matrices.items():
                for matrix, block in zip(matrices, blocks[name], strict=True):
                    np.take(matrix, part, 0, block[: len(part)], "clip")  # the default mode would buffer the result
                    block[len(part) :] = 0
            update.run()
            for name in self._matrices.keys() - {GRADIENTS}:
                for matrix, block in zip(self._matrices[name], blocks[name], strict=True):
                    matrix[part] = block[: len(part)]


def _rows_first(matrix: np.ndarray, axis: int) -> list[np.ndarray]:
    """Return views of ``matrix`` with the rows on the first axis: one view, or if stored transposed one per column."""
    if matrix.shape[1 - axis] == 1:
        return [matrix.ravel()]  # elements of a vector are copied faster than rows with one element
    return [matrix] if axis == 0 else list(matrix)


# Penalty, clipping, accumulation and average on the host, as the step calls them.


class GradientStage(Protocol):
    """A stage that changes the gradients before the update."""

    def run(self, weight: float) -> float:
        """Change the gradients; return the addition to the loss. ``weight`` is the sum of the row weights."""


class WeightStage(Protocol):
    """A stage that changes the weights or their average."""

    def run(self, rates: Rates, t: int) -> None:
        """Change the weights or their average in step ``t``."""


PENALTY_BLOCK = 8192
"""Weights of a block of the penalty, which stays in the cache. OpenBLAS adds up so few with one thread."""


class HostPenalty:
    """The penalty on the penalized part of the parameters.

    Without an L1 part NumPy computes its gradient, to the bits of the graph, because a run of a session takes a tenth
    to a third of the step of a small network: 8 to 20 microseconds instead of 2 to 4. Its value, which the loss holds,
    may differ by rounding.
    """

    def __init__(self, bindings: VectorBindings, parameters: FlatParameters, settings: StepSettings) -> None:
        part, dtype = parameters.penalized, bindings.dtype
        weights, gradients = parameters.vector[part], parameters.gradient[part]
        self._strength, self._value = np.zeros((), dtype), np.zeros((), dtype)
        self._binding: Binding | None = None
        if settings.l1_ratio:
            scalars = {"strength": self._strength, PENALTY: self._value}
            self._binding = bindings.penalty(weights, gradients, **scalars)
            return
        self._squares = dtype.type(penalty_factors(settings.alpha, 0.0)[0])
        self._slope = np.zeros((), dtype)  # of a weight of one
        temporary = np.empty(min(len(weights), PENALTY_BLOCK), dtype)
        cuts = [slice(start, start + PENALTY_BLOCK) for start in range(0, len(weights), PENALTY_BLOCK)]
        self._blocks = [(w := weights[cut], gradients[cut], temporary[: len(w)]) for cut in cuts]

    def run(self, weight: float) -> float:
        """Add the penalty's gradient divided by ``weight``, the sum of the row weights; return the penalty."""
        self._strength[()] = 1.0 / weight if weight > 0 else 0.0
        if self._binding is not None:
            self._binding.run()
            return float(self._value.item())
        factor, total = self._strength[()] * self._squares, 0.0
        self._slope[()] = factor + factor
        for weights, gradients, temporary in self._blocks:
            np.multiply(weights, self._slope, temporary)
            np.add(gradients, temporary, gradients)
            total += float(np.dot(weights, weights))
        return total * float(factor)


class HostClipping:
    """The limit of the norm of all gradients."""

    def __init__(self, bindings: VectorBindings, parameters: FlatParameters) -> None:
        self._binding = bindings.clipping(parameters.gradient)

    def run(self, weight: float) -> float:
        """Clip the gradients; return 0, because the loss does not change."""
        self._binding.run()
        return 0.0


class HostAccumulation:
    """The mean of the gradients of a group of minibatches."""

    def __init__(self, bindings: VectorBindings, parameters: FlatParameters) -> None:
        self._share = np.zeros((), bindings.dtype)
        self._bindings = bindings.accumulation(parameters.gradient, self._share)

    def add(self, i: int, count: int, share: float) -> None:
        """Add the gradients of minibatch ``i`` of ``count``; the last leaves the mean of all in the gradients."""
        if count > 1:
            self._share[()] = share
            self._bindings[i == 0, i == count - 1].run()


class HostAverage:
    """The moving average of the parameters; ``optimizer_state`` counts the averaged steps."""

    def __init__(
        self, bindings: VectorBindings, parameters: FlatParameters, optimizer_state: OptimizerState, decay: float
    ) -> None:
        assert parameters.average is not None
        self._optimizer_state = optimizer_state
        self._decay = decay
        self._weight = np.zeros((), bindings.dtype)
        self._binding = bindings.average(parameters.average, parameters.vector, self._weight)

    def run(self, rates: Rates, t: int) -> None:
        """Move the average towards the parameters."""
        self._optimizer_state.averaged += 1
        self._weight[()] = step_weight(self._decay, self._optimizer_state.averaged)
        self._binding.run()


# The graphs over whole vectors.


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

    is the moving average with decay d that starts from zero, divided by 1 - dᵗ. The initial weights have no part in it.
    """
    return (1.0 - decay) / (1.0 - decay**steps)


def copy_graph(size: int, kind: ir.DataType) -> ir.Model:
    """Return the graph that copies the vector ``next_statistics`` to ``statistics``."""
    value = ir.val("next_statistics", kind, (size,))
    op = new_graph([value], kind, "copy")
    append_output(op.graph, op.Identity(value), "statistics", value)
    return ir.Model(op.graph, ir_version=8)


def penalty_graph(size: int, kind: ir.DataType, engine: str, *, absolute: bool) -> ir.Model:
    """Return the graph that adds the gradient of the penalty on ``weights`` (size,) to ``gradients``, in place.

    Its further inputs are ``strength`` and the factors :data:`SQUARES` and, if ``absolute``, :data:`ABSOLUTES`.
    """
    weights = ir.val("weights", kind, (size,))
    names = ("strength", SQUARES, ABSOLUTES)
    strength, squares, *absolutes = (ir.val(name, kind, ()) for name in (names if absolute else names[:2]))
    op = new_graph([weights, strength, squares, *absolutes], kind, "penalty")
    value = op.Mul(weighted_penalty(op, weights, squares, absolutes[0] if absolutes else None), strength)
    value.name, value.dtype, value.shape = PENALTY, kind, ir.Shape([])
    op.graph.outputs.append(value)
    model = differentiate(ir.Model(op.graph, ir_version=8), ["weights"], PENALTY, engine).model
    penalty_gradient = next(v for v in model.graph.outputs if v.name == "weights_grad")
    gradients = ir.val("gradients", kind, (size,))
    model.graph.inputs.append(gradients)
    total = GraphBuilder(model.graph, dtype=kind, prefix="penalty").Add(gradients, penalty_gradient)
    total.name, total.dtype, total.shape = "new_gradients", kind, ir.Shape([size])
    model.graph.outputs.remove(penalty_gradient)
    model.graph.outputs.append(total)
    return model

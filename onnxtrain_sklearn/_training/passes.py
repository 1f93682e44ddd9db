"""Run the forward and backward pass on the host, with sparse products and rows of embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar

import numpy as np

from .._compiler.code import BoundCode
from .._data import columns
from .._data.batches import BatchBuffers
from .._data.columns import SparseRows, add_rows
from .._model.reweighted import initial_value
from .._model.row_reads import FirstProduct, Lookup
from .._model.trainable import TrainableModel
from .._ort import devices, sessions
from .._ort.binding import Array, Binding
from .._ort.sessions import InferenceSession, shared_session
from ..exceptions import ModelError, warn
from ..optimizers import Optimizer
from ..optimizers.in_place import moves_without_gradient
from .loss_graph import LOSS, TARGET, WEIGHT, target_layout
from .parameters import FlatParameters
from .pass_rewrites import LABELED, REPEATED, LabeledShares, RowShares, in_written_shapes
from .programs import PARALLEL_WORK, PassProgram, PassSource, pass_program
from .randomness import FACTOR, UniformNumbers
from .rows_meet import where_rows_meet
from .step_parts import OptimizerState, StepParts

BACKWARD_IN_ORDER: Mapping[str, object] = {
    "enable_mem_pattern": False,
    "execution_order": "PRIORITY_BASED",
    "optimization.disable_specified_optimizers": "GemmActivationFusion;ConvActivationFusion",
}
"""Options that run the nodes in the order of the graph, so that the backward pass frees values as it goes.

By default onnxruntime computes the gradients of all weights last, and keeps their inputs until then. In priority order,
fused forward nodes would run last, so two fusions are disabled.
"""


@dataclass(frozen=True, eq=False)
class PassGraph:
    """The gradient graph for a fixed number of rows, and the host arrays that it reads."""

    source: PassSource
    program: PassProgram
    buffers: BatchBuffers
    uniform: UniformNumbers

    def bind(
        self,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
        gradients: Mapping[str, Array],
        statistics: Mapping[str, Array],
        threads: int = 1,
    ) -> Binding:
        """Bind the graph.

        ``gradients`` and ``statistics`` map names to the arrays for the gradient of each parameter and the next value
        of each running statistic. ``inputs`` may name inputs that the graph does not have; they are ignored.
        """
        session, moved = self.session(threads), self.source.model.running_statistics
        written = {**outputs, **in_written_shapes(session, {f"{name}_grad": a for name, a in gradients.items()})}
        written |= {moved[name]: array for name, array in statistics.items()}
        names = {value.name for value in session.get_inputs()}
        return Binding(session, {name: array for name, array in inputs.items() if name in names}, written)

    def bind_on_host(
        self,
        inputs: Mapping[str, np.ndarray],
        outputs: Mapping[str, np.ndarray],
        gradients: Mapping[str, np.ndarray],
        statistics: Mapping[str, np.ndarray],
        threads: int,
    ) -> Binding | BoundCode:
        """Bind the machine code of the graph if any, else its session; the arguments are those of :meth:`bind`."""
        if self.program.code is None:
            return self.bind(inputs, outputs, gradients, statistics, threads)
        moved = self.source.model.running_statistics
        written = {**outputs, **{f"{name}_grad": array for name, array in gradients.items()}}
        return BoundCode(self.program.code, inputs, written | {moved[name]: a for name, a in statistics.items()})

    def session(self, threads: int = 1) -> InferenceSession:
        """Return the session of the pass, which other fits may use too."""
        program, settings = self.program, self.source.settings
        device, options = settings.device, settings.session_options
        if program.work >= PARALLEL_WORK:  # its memory plan would waste 50 % here
            options = {"enable_mem_pattern": False, **(options or {})}
        if settings.checkpoint_activations:
            options = {**BACKWARD_IN_ORDER, **(options or {})}
        if not program.stateless:
            return sessions.create_session(program.graph, device, threads=threads, options=options)
        return shared_session(program.graph, device, threads=threads, options=options, memory=program.memory)


def pass_graph(source: PassSource, *, first: bool) -> PassGraph:
    """Return the gradient graph with buffers of its own; the trained parameters are among its inputs.

    With ``first``, for the first graph of a step, warn of settings that have no effect on it.
    """
    settings, batch, dtype = source.settings, source.batch, source.parameters.vector.dtype
    program = pass_program(source)
    uniform = UniformNumbers(program.random, settings.seed)
    if first and settings.scheduled.dropout and FACTOR not in uniform.arrays:
        warn("dropout_schedule has no effect: the graph has no Dropout in training mode.")
    if first and settings.checkpoint_activations and not program.segments:
        warn("checkpoint_activations=True has no effect: the graph has too few activations to recompute any.")
    trained = source.parameters.names
    if first and settings.lazy_rows and not (program.lookups or any(p.weight in trained for p in program.products)):
        warn(
            "lazy_rows=True has no effect: the graph has no trained matrix whose rows only Gather reads, nor "
            "one that sparse data are multiplied by."
        )
    sparse = {product.input: SparseRows(product.factors) for product in program.products}
    dense = [spec for spec in source.model.inputs if spec.name not in sparse]
    columns = {spec.name: np.zeros(buffer_shape(spec.shape, batch), spec.dtype) for spec in dense}
    layout = target_layout(settings.task, settings.n_outputs, batch, dtype, settings.positions)
    columns[TARGET] = np.zeros(*layout)
    buffers = BatchBuffers(columns, np.ones(batch, dtype), sparse)
    return PassGraph(source, program, buffers, uniform)


# The passes of a step in the host's memory.


class HostPasses:
    """The forward and backward passes of a step, one for each number of rows.

    The graph of a pass has a fixed number of rows. It reads its minibatch from static buffers and the parameters from
    views into their vector, and writes the gradients into views of another vector. Minibatches are padded to the
    size of a full one. But if rows meet, padding rows would change the results of the others, so a shorter
    minibatch has its own pass.

    Attributes
    ----------
    program : PassProgram
        The gradient graph of a full minibatch.
    tables : dict of RowGradients
        The gradients of matrices of which a minibatch reads only some rows, by name.
    """

    adds_rows: ClassVar[bool] = True
    """True if the gradients of rows that Gather reads from large matrices are summed outside the graph."""

    gives_shares: ClassVar[bool] = True
    """True if the graph reads the shares of the rows instead of their weights."""

    for_cpu: ClassVar[bool] = True
    """True if matrix products take the forms that are fastest on a CPU."""

    def __init__(self, parts: StepParts) -> None:
        self._parts, self._pads = parts, where_rows_meet(parts.model, parts.settings) is None
        graph = self._graph(parts.batch, first=True)
        self.program = graph.program
        self.tables = self._row_gradients()
        self._known = {parts.batch: host_pass(graph, self.tables)}
        self._current = self._known[parts.batch]

    def buffers(self, rows: int) -> BatchBuffers:
        """Return the buffers that the next pass reads, for a minibatch of ``rows`` rows.

        Their columns are the graph's inputs and the target (:data:`TARGET`). They have the size of a full
        minibatch, or exactly ``rows`` rows if rows meet.
        """
        size = self._parts.batch if self._pads else rows
        if size not in self._known:
            # keep at most one other size
            self._known = {n: known for n, known in self._known.items() if n == self._parts.batch}
            self._known[size] = host_pass(self._graph(size, first=False), self.tables)
        self._current = self._known[size]
        self._current.buffers.forget()
        return self._current.buffers

    def begin(self) -> None:
        """Begin a step in which no row of a matrix has occurred yet."""
        for table in self.tables.values():
            table.begin()

    def run(self, dropout: float) -> float:
        """Compute the gradients of the mean loss of the minibatch in the buffers; return the loss."""
        return self._current.run(self._parts.state, dropout)

    def _graph(self, batch: int, *, first: bool) -> PassGraph:
        parts = self._parts
        source = PassSource(
            parts.model,
            parts.settings,
            parts.parameters,
            parts.frozen,
            batch,
            sparse=parts.sparse,
            adds_rows=self.adds_rows,
            gives_shares=self.gives_shares,
            any_shape=True,
            for_cpu=self.for_cpu,
        )
        return pass_graph(source, first=first)

    def _row_gradients(self) -> dict[str, RowGradients]:
        """Return the gradients of matrices of which a minibatch reads only some rows."""
        parts, program = self._parts, self.program
        settings, parameters = parts.settings, parts.parameters
        rewritten = parts.penalizes or settings.max_grad_norm is not None or settings.accumulate > 1
        found = row_gradients(parameters, program.lookups, rewritten=rewritten)
        lazy, optimizer = settings.lazy_rows, settings.optimizer
        rests = isinstance(optimizer, Optimizer) and not (parts.penalizes or moves_without_gradient(optimizer))
        if lazy or rests:
            found |= product_gradients(parameters, program.products, rewritten=rewritten, lazy=lazy)
        return found


@dataclass(frozen=True, eq=False)
class HostPass:
    """One forward and backward pass over a fixed number of rows, and the arrays that it reads and writes.

    ``moved`` pairs each running statistic with the array that the pass writes its next value to.
    """

    buffers: BatchBuffers
    shares: RowShares
    labeled: LabeledShares | None
    gradient: Binding | BoundCode
    loss: np.ndarray
    uniform: UniformNumbers
    moved: Sequence[tuple[np.ndarray, np.ndarray]]
    products: Sequence[HostProduct]
    lookups: HostLookups

    @cached_property
    def _calls(self) -> Sequence[Callable[[], object]]:
        """The calls of a run, in order. For a small network there are two, and the time of each call counts."""
        forward = [product.forward for product in self.products]
        after = [product.backward for product in self.products]
        after += [self.lookups.write_gradients] if self.lookups.reads else []
        after += [partial(np.copyto, *pair) for pair in self.moved]
        labeled = [] if self.labeled is None else [self.labeled.update]
        return *forward, *labeled, self.gradient.run, *after

    def run(self, state: OptimizerState, dropout: float) -> float:
        """Compute the gradients of the mean loss of the minibatch in the buffers; return the loss."""
        if self.uniform.buffers:
            self.uniform.draw(state.draws, dropout)
            state.draws += 1
        if isinstance(self.gradient, BoundCode):
            self.gradient.compute_rows(self.buffers.count)
        if not (self.shares.of_ones and self.buffers.has_ones):
            self.shares.update()
        for call in self._calls:
            call()
        loss: float = self.loss.item()
        return loss


def host_pass(graph: PassGraph, tables: Mapping[str, RowGradients]) -> HostPass:
    """Return the pass, bound to buffers of its own and to views into the vectors.

    ``tables`` holds, by name, the gradients of matrices that are updated row by row: embeddings, and matrices
    multiplied by sparse data of which only some columns occur.
    """
    source, buffers, uniform = graph.source, graph.buffers, graph.uniform
    parameters, loss = source.parameters, np.zeros((), source.parameters.vector.dtype)
    moved = {name: np.zeros_like(parameters.view(name)) for name in parameters.running_statistics}
    threads = devices.available_threads() if graph.program.work >= PARALLEL_WORK else 1
    products = host_products(graph.program.products, buffers, parameters, source.model, source.frozen, tables)
    shares = RowShares(buffers.sample_weight, graph.program.repeated_shares)
    labeled = LabeledShares(buffers.columns[TARGET], shares) if graph.program.labeled_shares else None
    inputs = {**buffers.columns, **uniform.arrays, **parameters.views(), WEIGHT: shares.column, REPEATED: shares.matrix}
    inputs |= {} if labeled is None else {LABELED: labeled.matrix}
    inputs |= {product.first.name: product.product for product in products}
    lookups = host_lookups(graph.program.lookups, tables)
    outside = {product.first.weight for product in products}.union(tables)
    gradients = {name: parameters.gradient_view(name) for name in parameters.names if name not in outside}
    gradients |= {product.first.name: product.slope for product in products if product.gradient is not None}
    gradients |= {read.lookup.rows: read.slope for read in lookups.reads}
    outputs = {LOSS: loss, **{read.lookup.indices: read.indices for read in lookups.reads}}
    binding = graph.bind_on_host(inputs, outputs, gradients, moved, threads)
    statistics = [(parameters.view(name), moved[name]) for name in moved]
    return HostPass(buffers, shares, labeled, binding, loss, uniform, statistics, products, lookups)


# The part of a pass that is computed outside its session: products of sparse rows with the first matrices.


@dataclass(frozen=True, eq=False)
class HostProduct:
    """A product of sparse rows with a matrix, and the arrays that the session reads and writes in its place.

    ``gradient`` is the array for the gradient of the matrix; None if the matrix is not trained. ``table`` tracks the
    rows that occur if only those are updated, else it is None.
    """

    first: FirstProduct
    rows: SparseRows
    matrix: np.ndarray
    product: np.ndarray
    slope: np.ndarray
    gradient: np.ndarray | None
    table: RowGradients | None = None

    def forward(self) -> None:
        """Compute the product, which the session reads."""
        self.product[...] = columns.product(self.rows.rows, self.matrix, transposed=self.first.transposed)

    def backward(self) -> None:
        """Compute the gradient of the matrix from that of the product, which the session wrote."""
        rows = self.rows.rows
        if self.gradient is None:
            return
        if self.table is None:
            self.gradient.fill(0)
        else:
            self.table.clear()
            self.table.note(rows.indices, columns.occurring_columns(rows))
        columns.add_gradient(rows, self.slope, self.gradient, transposed=self.first.transposed)


def host_products(
    products: Sequence[FirstProduct],
    buffers: BatchBuffers,
    parameters: FlatParameters,
    model: TrainableModel,
    frozen: Mapping[str, np.ndarray],
    tables: Mapping[str, RowGradients],
) -> list[HostProduct]:
    """Return the products of a pass, with arrays of their own; ``tables`` are gradients of matrices by name."""
    found = []
    for first in products:
        name, trained = first.weight, first.weight in parameters.names
        if trained:
            matrix = parameters.view(name)
        else:
            matrix = np.ascontiguousarray(frozen[name] if name in frozen else initial_value(model.model, name))
        product, slope = (np.zeros((len(buffers.sample_weight), first.n_outputs), matrix.dtype) for _ in range(2))
        gradient = parameters.gradient_view(first.weight) if trained else None
        rows, table = buffers.sparse[first.input], tables.get(name)
        found.append(HostProduct(first, rows, matrix, product, slope, gradient, table))
    return found


# Gradients of matrices of which a minibatch reads only some rows, summed outside the session.
#
# Gather reads these rows, or columns of sparse data are multiplied by them. The gradient is zero in all other rows.
# Before the next pass, only the rows that were written need to be cleared.


FEW = 8
"""Clear single rows if at most 1 / FEW of the rows were written, else the whole gradient."""

SPARE = 128
"""Updating only the rows that occur pays if the matrix has at least ``SPARE // width`` rows for each index of a step.

It never pays with fewer than ``SPARE_ROWS``.
"""

SPARE_ROWS = 16
"""Rows per index of a step below which updating the whole matrix is faster, however wide its rows are."""


class RowGradients:
    """The gradient of one matrix.

    Parameters
    ----------
    gradient : ndarray of shape (n_rows, n_columns)
        A view into the vector of gradients.
    count : int
        Indices of a full minibatch; 0 if the number differs between minibatches.
    rewritten : bool
        Whether penalty, clipping or accumulation change the gradients after the pass, so that all must be cleared.
    axis : int, default=0
        1 if the matrix is stored transposed, so that its columns are the rows.
    most : int, default=None
        If a step has more indices, the whole matrix is updated. With None it never is: rows that do not occur must not
        change (``lazy_rows``), or ``count`` has decided already (embeddings).
    """

    def __init__(
        self, gradient: np.ndarray, count: int, *, rewritten: bool, axis: int = 0, most: int | None = None
    ) -> None:
        self.gradient, self.count, self._rewritten = gradient, count, rewritten
        self.axis, self.most = axis, most
        self._written: list[np.ndarray] = []
        self._named: list[np.ndarray] = []
        self._last = np.zeros(gradient.shape[axis], np.int32)
        gradient.fill(0)  # another step may have left numbers

    def begin(self) -> None:
        """Begin a step in which no row has occurred yet."""
        self._named = []

    @property
    def n_rows(self) -> int:
        """Rows of the matrix."""
        return len(self._last)

    @property
    def everywhere(self) -> bool:
        """True if so many rows occur that the whole matrix is updated."""
        return self.most is not None and sum(map(len, self._named)) > self.most

    def rows(self, repeated: int) -> np.ndarray:
        """Return the rows that occurred since :meth:`begin`, without the padding row.

        If there are at most ``repeated`` indices, duplicates are kept.
        """
        named = self._named
        places = named[0] if len(named) == 1 else np.concatenate([np.empty(0, np.intp), *named])
        if len(places) <= repeated:
            return places
        numbers = np.arange(len(places), dtype=np.int32)
        self._last[places] = numbers  # a third of the time of sorting them or of checking all rows
        found: np.ndarray = places[self._last[places] == numbers]
        return found

    def clear(self) -> None:
        """Set the gradient to zero."""
        if self._rewritten or FEW * sum(map(len, self._written)) > self.n_rows:
            self.gradient.fill(0)
        else:
            for rows in self._written:
                self.gradient[rows if self.axis == 0 else (slice(None), rows)] = 0
        self._written = []

    def note(self, places: np.ndarray, occurring: np.ndarray) -> None:
        """Record rows whose gradients the caller adds: ``places`` are written, ``occurring`` hold nonzero data."""
        named = occurring.astype(np.intp)  # indexing by other integers takes twice as long
        self._written.append(named if occurring is places else places)
        self._named.append(named)

    def add(self, places: np.ndarray, shares: np.ndarray, rows: np.ndarray) -> None:
        """Add the gradients of the rows at ``places``, times ``shares``: 0 for ``padding_idx``, else 1."""
        add_rows(places, shares, rows, self.gradient)
        self._written.append(places)
        self._named.append(places if shares.all() else places[shares > 0])


@dataclass(frozen=True, eq=False)
class HostLookup:
    """A read of rows, and the arrays that the session writes: the indices, and the gradient of each row."""

    lookup: Lookup
    indices: np.ndarray
    slope: np.ndarray

    def add_to(self, table: RowGradients) -> None:
        """Add the gradients of the rows to that of the matrix."""
        places = np.remainder(self.indices, self.lookup.shape[0])  # negative indices count from the end
        shares = np.ones(self.lookup.count, self.slope.dtype)
        if self.lookup.padding is not None:
            shares[self.indices == self.lookup.padding] = 0
        table.add(places, shares, self.slope)


@dataclass(frozen=True, eq=False)
class HostLookups:
    """All reads of a pass, and the gradients of the matrices by name."""

    reads: Sequence[HostLookup]
    tables: Mapping[str, RowGradients]

    def write_gradients(self) -> None:
        """Sum the row gradients that the session wrote into the gradients of the matrices."""
        for table in self.tables.values():
            table.clear()
        for read in self.reads:
            read.add_to(self.tables[read.lookup.weight])


def row_gradients(parameters: FlatParameters, lookups: Sequence[Lookup], *, rewritten: bool) -> dict[str, RowGradients]:
    """Return the gradients of the matrices that are read, by name."""
    found = {}
    for name in dict.fromkeys(lookup.weight for lookup in lookups):
        view, count = parameters.gradient_view(name), sum(one.count for one in lookups if one.weight == name)
        found[name] = RowGradients(view.reshape(len(view), -1), count, rewritten=rewritten)
    return found


def product_gradients(
    parameters: FlatParameters, products: Sequence[FirstProduct], *, rewritten: bool, lazy: bool
) -> dict[str, RowGradients]:
    """Return the gradients of the trained matrices that sparse rows are multiplied by, by name."""
    found = {}
    for product in products:
        if product.weight in parameters.names:
            view, axis = parameters.gradient_view(product.weight), int(product.transposed)
            least = max(SPARE_ROWS, SPARE // view.shape[1 - axis])
            most = None if lazy else view.shape[axis] // least
            found[product.weight] = RowGradients(view, 0, rewritten=rewritten, axis=axis, most=most)
    return found


def host_lookups(lookups: Sequence[Lookup], tables: Mapping[str, RowGradients]) -> HostLookups:
    """Return the reads of a pass, with arrays of their own."""
    tables, found = {lookup.weight: tables[lookup.weight] for lookup in lookups}, []
    for lookup in lookups:
        slope = np.zeros((lookup.count, lookup.width), tables[lookup.weight].gradient.dtype)
        found.append(HostLookup(lookup, np.zeros(lookup.count, np.int64), slope))
    return HostLookups(found, tables)


def buffer_shape(shape: Sequence[int | None], batch: int) -> tuple[int, ...]:
    """Return the shape of a graph input of ``shape`` for ``batch`` rows."""
    if None in shape[1:]:
        raise ModelError(f"Every axis of a graph input but the first must be fixed to train, got shape {tuple(shape)}.")
    return (batch, *(int(d) for d in shape[1:] if d is not None))

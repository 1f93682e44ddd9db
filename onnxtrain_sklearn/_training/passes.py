"""Run the forward and backward pass on the host, with sparse products and rows of embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from .._compiler.code import BoundCode
from .._data import columns
from .._data.batches import BatchBuffers
from .._data.columns import SparseRows, add_rows
from .._model.row_reads import FirstProduct, Lookup
from .._model.weights import initial_value
from .._ort import devices, sessions
from .._ort.binding import Array, Binding
from .._ort.sessions import InferenceSession, shared_session
from ..exceptions import ModelError, warn
from ..optimizers import Optimizer
from ..optimizers.in_place import moves_without_gradient
from .loss_graph import LOSS, TARGET, WEIGHT, target_layout
from .pass_rewrites import WEIGHT_MATRIX, WEIGHTS_AT_LABELS, NormalizedWeights, WeightsAtLabels, in_written_shapes
from .programs import PARALLEL_WORK, PassParts, PassProgram, pass_program
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

    parts: PassParts
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
        """Bind the inputs and outputs of the graph to arrays; return the binding.

        ``gradients`` and ``statistics`` map names to the arrays for the gradient of each parameter and the next value
        of each running statistic. ``inputs`` may name inputs that the graph does not have; they are ignored.
        """
        session = self.session(threads)
        next_names = self.parts.graph.running_statistics
        written = {**outputs, **in_written_shapes(session, {f"{name}_grad": a for name, a in gradients.items()})}
        written |= {next_names[name]: array for name, array in statistics.items()}
        names = {value.name for value in session.get_inputs()}
        return Binding(session, {name: array for name, array in inputs.items() if name in names}, written)

    def session(self, threads: int = 1) -> InferenceSession:
        """Return the session of the pass, which other fits may use too."""
        program, settings = self.program, self.parts.settings
        device, options = settings.device, settings.session_options
        if program.work >= PARALLEL_WORK:  # in large graphs, onnxruntime's memory pattern would waste 50 % of memory
            options = {"enable_mem_pattern": False, **(options or {})}
        if settings.checkpoint_activations:
            options = {**BACKWARD_IN_ORDER, **(options or {})}
        if not program.stateless:
            return sessions.create_session(program.graph, device, threads=threads, options=options)
        return shared_session(program.graph, device, threads=threads, options=options, memory=program.memory)


def pass_graph(parts: PassParts, *, first: bool) -> PassGraph:
    """Return a gradient graph with its own buffers; the trained parameters are among its inputs.

    With ``first``, for the first graph of a step, warn of settings that have no effect.
    """
    settings = parts.settings
    batch_size = parts.batch_size
    dtype = parts.parameters.vector.dtype
    program = pass_program(parts)
    uniform = UniformNumbers(program.random, settings.seed)
    if first and settings.scheduled.dropout and FACTOR not in uniform.arrays:
        warn("dropout_schedule has no effect: the graph has no Dropout in training mode.")
    if first and settings.checkpoint_activations and not program.recomputed:
        warn("checkpoint_activations=True has no effect: the graph has too few activations to recompute any.")
    trained = parts.parameters.names
    if first and settings.lazy_rows and not (program.lookups or any(p.weight in trained for p in program.products)):
        warn(
            "lazy_rows=True has no effect: the graph has no trained matrix whose rows only Gather reads, nor "
            "one that sparse data are multiplied by."
        )
    sparse = {product.input: SparseRows(product.factors) for product in program.products}
    columns = {}
    for spec in parts.graph.inputs:
        if None in spec.shape[1:]:
            raise ModelError(
                f"Every axis of a graph input but the first must be fixed to train, got shape {tuple(spec.shape)}."
            )
        if spec.name not in sparse:
            columns[spec.name] = np.zeros((batch_size, *(d for d in spec.shape[1:] if d is not None)), spec.dtype)
    layout = target_layout(settings, batch_size, dtype, settings.positions)
    columns[TARGET] = np.zeros(*layout)
    buffers = BatchBuffers(columns, np.ones(batch_size, dtype), sparse)
    return PassGraph(parts, program, buffers, uniform)


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
    row_sparse : dict of RowSparseGradient
        The gradients of matrices of which a minibatch uses only some rows, by name.
    """

    def __init__(self, parts: StepParts) -> None:
        self._parts, self._batch_size = parts, parts.batch_size
        self._pads = where_rows_meet(parts.graph, parts.settings) is None
        graph = self._graph(parts.batch_size, first=True)
        self.program = graph.program

        # Penalty, clipping and accumulation write all gradients after a pass, so all must be cleared before the next.
        settings = parts.settings
        parameters = parts.parameters
        lookups = self.program.lookups
        rewritten = settings.accumulate > 1 or not {"penalty", "clipping"}.isdisjoint(parts.stages)
        self.row_sparse: dict[str, RowSparseGradient] = {}
        for name in dict.fromkeys(lookup.weight for lookup in lookups):
            view = parameters.gradient_view(name)
            count = sum(one.count for one in lookups if one.weight == name)
            self.row_sparse[name] = RowSparseGradient(view.reshape(len(view), -1), count, rewritten=rewritten)
        lazy, optimizer = settings.lazy_rows, settings.optimizer
        # Whether an update may leave rows without gradient alone; `HostUpdates` decides it for each segment.
        may_leave_rows = (
            isinstance(optimizer, Optimizer) and "penalty" not in parts.stages and not moves_without_gradient(optimizer)
        )
        for product in self.program.products if lazy or may_leave_rows else ():
            if product.weight in parameters.names:
                view = parameters.gradient_view(product.weight)
                axis = int(product.transposed)
                least = max(LEAST_ROWS_PER_INDEX, LEAST_ELEMENTS_PER_INDEX // view.shape[1 - axis])
                most = None if lazy else view.shape[axis] // least
                gradient = RowSparseGradient(view, 0, rewritten=rewritten, axis=axis, most_indices=most)
                self.row_sparse[product.weight] = gradient

        self._known = {parts.batch_size: HostPass(graph, self.row_sparse)}
        self._selected = self._known[parts.batch_size]

    def select(self, n_rows: int) -> BatchBuffers:
        """Select the pass that :meth:`run` runs from now on, for minibatches of ``n_rows`` rows; return its buffers.

        The columns of the buffers are the graph's inputs and the target (:data:`TARGET`). They have the size of a full
        minibatch, or exactly ``n_rows`` rows if rows meet.
        """
        size = self._batch_size if self._pads else n_rows
        if size not in self._known:
            # Besides the full size, keep one other size at most, because each pass holds a session and buffers.
            self._known = {n: known for n, known in self._known.items() if n == self._batch_size}
            self._known[size] = HostPass(self._graph(size, first=False), self.row_sparse)
        self._selected = self._known[size]
        return self._selected.buffers

    def begin(self) -> None:
        """Begin a step: mark all rows of row-sparse gradients as unused."""
        for gradient in self.row_sparse.values():
            gradient.begin()

    def run(self, dropout: float) -> float:
        """Run the selected pass on the minibatch in its buffers; return the loss."""
        return self._selected.run(self._parts.optimizer_state, dropout)

    def _graph(self, batch_size: int, *, first: bool) -> PassGraph:
        parts = self._parts
        data = parts.graph, parts.settings, parts.parameters, parts.frozen, batch_size
        return pass_graph(
            PassParts(*data, sparse=parts.sparse, adds_rows=True, any_shape=True, on_host=True), first=first
        )


class HostPass:
    """One forward and backward pass over a fixed number of rows, bound to buffers of its own and views of the vectors.

    Parameters
    ----------
    graph : PassGraph
    row_sparse : mapping of str to RowSparseGradient
        By name, the gradients of matrices that are updated row by row: embeddings, and matrices multiplied by sparse
        data of which only some columns occur.
    """

    def __init__(self, graph: PassGraph, row_sparse: Mapping[str, RowSparseGradient]) -> None:
        parts, program, buffers, uniform = graph.parts, graph.program, graph.buffers, graph.uniform
        parameters = parts.parameters
        self.buffers = buffers
        self._uniform = uniform
        self._loss = np.zeros((), parameters.vector.dtype)
        self._weights = NormalizedWeights(buffers.sample_weight, program.weight_columns)
        at_labels = WeightsAtLabels(buffers.columns[TARGET], self._weights) if program.weights_at_labels else None
        products = [HostProduct(first, graph, row_sparse.get(first.weight)) for first in program.products]
        lookups = [HostLookup(lookup, row_sparse[lookup.weight]) for lookup in program.lookups]
        next_statistics = {name: np.zeros_like(parameters.view(name)) for name in parameters.running_statistics}

        inputs = {**buffers.columns, **uniform.arrays, **parameters.views()}
        inputs |= {WEIGHT: self._weights.column, WEIGHT_MATRIX: self._weights.matrix}
        inputs |= {} if at_labels is None else {WEIGHTS_AT_LABELS: at_labels.matrix}
        inputs |= {one.first.name: one.product for one in products}
        outputs = {LOSS: self._loss, **{one.lookup.indices: one.indices for one in lookups}}
        outside = {one.first.weight for one in products}.union(row_sparse)
        gradients = {name: parameters.gradient_view(name) for name in parameters.names if name not in outside}
        gradients |= {one.first.name: one.product_gradient for one in products if one.gradient is not None}
        gradients |= {one.lookup.rows: one.row_gradients for one in lookups}
        self.gradient_graph: Binding | BoundCode
        if program.code is None:
            threads = devices.available_threads() if program.work >= PARALLEL_WORK else 1
            self.gradient_graph = graph.bind(inputs, outputs, gradients, next_statistics, threads)
        else:
            next_names = parts.graph.running_statistics
            written = {**outputs, **{f"{name}_grad": array for name, array in gradients.items()}}
            written |= {next_names[name]: array for name, array in next_statistics.items()}
            self.gradient_graph = BoundCode(program.code, inputs, written)

        def add_lookups() -> None:
            for name in dict.fromkeys(one.lookup.weight for one in lookups):
                row_sparse[name].clear()
            for one in lookups:
                one.add_gradients()

        # Make a list of calls once instead of testing conditions in each step: small networks take only microseconds.
        self._calls: Sequence[Callable[[], object]] = [
            *(one.forward for one in products),
            *([] if at_labels is None else [at_labels.update]),
            self.gradient_graph.run,
            *(one.backward for one in products),
            *([add_lookups] if lookups else []),
            *(partial(np.copyto, parameters.view(name), array) for name, array in next_statistics.items()),
        ]

    def run(self, optimizer_state: OptimizerState, dropout: float) -> float:
        """Compute the gradients of the mean loss of the minibatch in the buffers; return the loss."""
        if self._uniform.buffers:
            self._uniform.draw(optimizer_state.draws, dropout)
            optimizer_state.draws += 1
        if isinstance(self.gradient_graph, BoundCode):
            self.gradient_graph.compute_rows(self.buffers.count)
        if not (self._weights.of_ones and self.buffers.has_ones):
            self._weights.update()
        for call in self._calls:
            call()
        loss: float = self._loss.item()
        return loss


# The part of a pass that is computed outside its session: products of sparse rows with matrices, and the gradients of
# matrices of which a minibatch uses only some rows.


class HostProduct:
    """A product of sparse rows with a matrix, which the session reads; the session writes the gradient of the product.

    ``gradient`` is the array for the gradient of the matrix; None if the matrix is not trained. ``row_sparse`` tracks
    the rows that occur if only those are updated.
    """

    def __init__(self, first: FirstProduct, graph: PassGraph, row_sparse: RowSparseGradient | None) -> None:
        parts, name = graph.parts, first.weight
        self.first = first
        self._rows = graph.buffers.sparse[first.input]
        self._row_sparse = row_sparse
        self.gradient: np.ndarray | None = None
        if name in parts.parameters.names:
            self._matrix = parts.parameters.view(name)
            self.gradient = parts.parameters.gradient_view(name)
        else:
            frozen = parts.frozen[name] if name in parts.frozen else initial_value(parts.graph.model, name)
            self._matrix = np.ascontiguousarray(frozen)
        shape = len(graph.buffers.sample_weight), first.n_columns
        self.product, self.product_gradient = (np.zeros(shape, self._matrix.dtype) for _ in range(2))

    def forward(self) -> None:
        """Compute the product."""
        self.product[...] = columns.product(self._rows.rows, self._matrix, transposed=self.first.transposed)

    def backward(self) -> None:
        """Compute the gradient of the matrix from that of the product."""
        rows = self._rows.rows
        if self.gradient is None:
            return
        if self._row_sparse is None:
            self.gradient.fill(0)
        else:
            self._row_sparse.clear()
            self._row_sparse.record(rows.indices, columns.occurring_columns(rows))
        columns.add_gradient(rows, self.product_gradient, self.gradient, transposed=self.first.transposed)


class HostLookup:
    """A Gather of rows from a matrix; the session writes the indices and the gradients of the rows."""

    def __init__(self, lookup: Lookup, row_sparse: RowSparseGradient) -> None:
        self.lookup, self._row_sparse = lookup, row_sparse
        self.indices = np.zeros(lookup.count, np.int64)
        self.row_gradients = np.zeros((lookup.count, lookup.width), row_sparse.values.dtype)

    def add_gradients(self) -> None:
        """Add the gradients of the rows to that of the matrix."""
        places = np.remainder(self.indices, self.lookup.shape[0])  # Gather counts negative indices from the end
        factors = np.ones(self.lookup.count, self.row_gradients.dtype)
        if self.lookup.padding is not None:
            factors[self.indices == self.lookup.padding] = 0
        self._row_sparse.add(places, factors, self.row_gradients)


CLEARED_PART = 8
"""Single rows are cleared if at most this part (1/8) of all rows was written, else the whole gradient."""

LEAST_ELEMENTS_PER_INDEX, LEAST_ROWS_PER_INDEX = 128, 16
"""Updating only the rows that occur is faster if a matrix has so many elements and rows per index of a minibatch."""


class RowSparseGradient:
    """The gradient of a matrix of which a minibatch uses only some rows: it is zero in all others.

    Gather reads the rows, or columns of sparse data are multiplied by them. Before the next pass, only the rows that
    were written need to be cleared; and an optimizer that leaves elements of zero gradient alone need update no others.

    Parameters
    ----------
    values : ndarray of shape (n_rows, n_columns)
        A view into the vector of gradients.
    n_indices : int
        Indices of a full minibatch; 0 if the number differs between minibatches.
    rewritten : bool
        Whether penalty, clipping or accumulation change the gradients after the pass, so that all must be cleared.
    axis : int, default=0
        1 if the matrix is stored transposed, so that its columns are the rows.
    most_indices : int, default=None
        Number of indices above which a step updates the whole matrix. None: always row by row, because of
        ``lazy_rows``, or because ``n_indices`` is small enough (embeddings).
    """

    def __init__(
        self, values: np.ndarray, n_indices: int, *, rewritten: bool, axis: int = 0, most_indices: int | None = None
    ) -> None:
        self.values, self.n_indices, self._rewritten = values, n_indices, rewritten
        self.axis = axis
        self.most_indices = most_indices
        self.n_rows = values.shape[axis]
        self._written: list[np.ndarray] = []
        self._occurring: list[np.ndarray] = []
        self._last = np.zeros(self.n_rows, np.int32)
        values.fill(0)  # another step may have left numbers in the vector of gradients

    def begin(self) -> None:
        """Begin a step: mark all rows as unused."""
        self._occurring = []

    @property
    def is_dense(self) -> bool:
        """True if so many rows occur that the whole matrix is updated."""
        return self.most_indices is not None and sum(map(len, self._occurring)) > self.most_indices

    def occurring_rows(self, most_with_duplicates: int) -> np.ndarray:
        """Return the rows that occurred since :meth:`begin`, without the padding row.

        If there are at most ``most_with_duplicates`` indices, duplicates are kept.
        """
        found = self._occurring
        places = found[0] if len(found) == 1 else np.concatenate([np.empty(0, np.intp), *found])
        if len(places) <= most_with_duplicates:
            return places
        numbers = np.arange(len(places), dtype=np.int32)
        self._last[places] = numbers  # finds duplicates in a third of the time of sorting, or of checking all rows
        distinct: np.ndarray = places[self._last[places] == numbers]
        return distinct

    def clear(self) -> None:
        """Set the gradient to zero."""
        if self._rewritten or CLEARED_PART * sum(map(len, self._written)) > self.n_rows:
            self.values.fill(0)
        else:
            for rows in self._written:
                self.values[rows if self.axis == 0 else (slice(None), rows)] = 0
        self._written = []

    def record(self, places: np.ndarray, occurring: np.ndarray) -> None:
        """Record rows whose gradients the caller adds: ``places`` are written, ``occurring`` hold nonzero data."""
        rows = occurring.astype(np.intp)  # indexing by other integers takes twice as long
        self._written.append(rows if occurring is places else places)
        self._occurring.append(rows)

    def add(self, places: np.ndarray, factors: np.ndarray, rows: np.ndarray) -> None:
        """Add the gradients of the rows at ``places``, times ``factors``: 0 for ``padding_idx``, else 1."""
        add_rows(places, factors, rows, self.values)
        self._written.append(places)
        self._occurring.append(places if factors.all() else places[factors > 0])

"""A forward and backward pass in the host's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from .._compiler.bound_code import BoundCode
from .._data.batches import BatchBuffers
from .._runtime import devices
from .._runtime.binding import Binding
from .dropout import UniformNumbers
from .labeled_shares import LABELED
from .loss_graph import LOSS, PARALLEL_WORK, TARGET, WEIGHT
from .pass_graph import PassGraph
from .repeated_shares import REPEATED
from .row_gradients import HostLookups, RowGradients, host_lookups
from .row_shares import LabeledShares, RowShares
from .sparse_products import HostProduct, host_products
from .step import OptimizerState


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
        """What a run calls, in its order: a small network has two calls, whose time counts."""
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

    ``tables`` are the gradients of the matrices that the graph reads by rows, and of those that sparse rows are
    multiplied by where only the columns that occur are updated.
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

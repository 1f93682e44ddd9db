"""A forward and backward pass in the host's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .._data.batches import BatchBuffers
from .._runtime import devices
from .._runtime.binding import Binding
from .dropout import UniformNumbers
from .loss_graph import LOSS, PARALLEL_WORK, WEIGHT
from .pass_graph import PassGraph
from .row_gradients import HostLookups, RowGradients, host_lookups
from .sparse_products import HostProduct, host_products
from .step import OptimizerState


@dataclass(frozen=True, eq=False)
class HostPass:
    """One forward and backward pass over a fixed number of rows, and the arrays that it reads and writes.

    ``moved`` pairs each running statistic with the array that the pass writes its next value to.
    """

    buffers: BatchBuffers
    gradient: Binding
    loss: np.ndarray
    uniform: UniformNumbers
    moved: Sequence[tuple[np.ndarray, np.ndarray]]
    products: Sequence[HostProduct]
    lookups: HostLookups

    def run(self, state: OptimizerState, dropout: float) -> float:
        """Compute the gradients of the mean loss of the minibatch in the buffers; return the loss."""
        if self.uniform.buffers:
            self.uniform.draw(state.draws, dropout)
            state.draws += 1
        for product in self.products:
            product.forward()
        self.gradient.run()
        for product in self.products:
            product.backward()
        self.lookups.write_gradients()
        for statistic, moved in self.moved:
            statistic[...] = moved
        return float(self.loss.item())


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
    inputs = {**buffers.columns, **uniform.arrays, **parameters.views(), WEIGHT: buffers.sample_weight}
    inputs |= {product.first.name: product.product for product in products}
    lookups = host_lookups(graph.program.lookups, tables)
    outside = {product.first.weight for product in products}.union(tables)
    gradients = {name: parameters.gradient_view(name) for name in parameters.names if name not in outside}
    gradients |= {product.first.name: product.slope for product in products if product.gradient is not None}
    gradients |= {read.lookup.rows: read.slope for read in lookups.reads}
    outputs = {LOSS: loss, **{read.lookup.indices: read.indices for read in lookups.reads}}
    binding = graph.bind(inputs, outputs, gradients, moved, threads)
    statistics = [(parameters.view(name), moved[name]) for name in moved]
    return HostPass(buffers, binding, loss, uniform, statistics, products, lookups)

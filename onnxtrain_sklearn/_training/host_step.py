"""The training step in the host's memory: a gradient session, then an update session, over the same flat vectors.

The gradient graph sees one fixed batch size. It reads its minibatch from static buffers and the parameters from views
into their vector, and writes the gradients into views of theirs. The update graph then rewrites the parameters in
place. It is a second session on purpose: an update inside the gradient graph would overwrite weights that the layer
below has not used yet. Everything is bound once, so a step neither allocates nor copies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np

from .._data.batches import BatchBuffers, Batches
from .._graph.trainable import TrainableModel
from .._optimizers.update_graph import moves_without_gradient
from .._runtime import errors
from ..optimizers import Optimizer
from .base_step import BaseStep, StepParts
from .compiled_pass import COMPILED
from .host_pass import HostPass, host_pass
from .host_update import HostAccumulation, HostAverage, HostPenalty, HostUpdates
from .loss_graph import LAZY, Scheduled, StepSettings, as_float32
from .parameters import FlatParameters
from .programs import PassProgram
from .row_gradients import RowGradients, product_gradients, row_gradients
from .row_update import RowChoice
from .step import OptimizerState, Rates


class HostStep(BaseStep):
    """Train on one minibatch after the other."""

    adds_rows = True
    gives_shares = True
    for_cpu = True
    updates_after_loss = True

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
            lazy = settings.sparse_updates == LAZY
            rows = RowChoice(self._tables or {}, parameters, settings.optimizer, lazy=lazy, penalized=self._penalizes)
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
        lazy, optimizer = settings.sparse_updates == LAZY, settings.optimizer
        rests = isinstance(optimizer, Optimizer) and not (self._penalizes or moves_without_gradient(optimizer))
        if lazy or rests:
            found |= product_gradients(parameters, program.products, rewritten=rewritten, lazy=lazy)
        return found

    def train(self, batches: Batches, next_rates: Callable[[], Rates]) -> Iterator[tuple[float, float]]:
        """Train on each minibatch of one pass; before its update, yield the sum of its weights and its loss."""
        if self._updates is not None:
            self._updates.prepare(batches.steps // self.settings.accumulate)
        if self._group is not None:
            yield from self._train_groups(self._group, batches, next_rates)
            return
        for weight in batches.fill(self.buffers):
            rates = next_rates()
            yield weight, self.gradients(weight, rates.dropout)
            self.update(rates)

    def _train_groups(
        self, mean: HostAccumulation, batches: Batches, next_rates: Callable[[], Rates]
    ) -> Iterator[tuple[float, float]]:
        """Take one step for each group of minibatches; before it, yield the sum of its weights and its loss."""
        minibatches, count = batches.minibatches(), self.settings.accumulate
        for start in range(0, len(minibatches), count):
            group, rates = minibatches[start : start + count], next_rates()
            weights = [batches.weight_of(rows) for rows in group]
            total, loss = sum(weights), 0.0
            self._begin()
            for i, (rows, weight) in enumerate(zip(group, weights, strict=True)):
                batches.gather(rows, self.buffers(len(rows)))
                share = weight / total if total > 0 else 0.0
                loss += share * self._current.run(self.state, rates.dropout)
                mean.add(i, len(group), share)
            loss += 0.0 if self._penalty is None else self._penalty.run(total)
            yield total, loss
            self.update(rates)

    def gradients(self, weight: float, dropout: float = 1.0) -> float:
        """Compute the gradients of the minibatch in the buffers; return its loss, the penalty included.

        The penalty is divided by ``weight``, the sum of the weights of the rows that the gradients stand for. Scheduled
        dropout ratios are multiplied by ``dropout``.
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
        if not errors.not_implemented(error):
            raise
        return as_float32(model)
    return model

"""The training step in the host's memory: a gradient session, then an update session, over the same flat vectors.

The gradient graph sees one fixed batch size. It reads its minibatch from static buffers and the parameters from views
into their vector, and writes the gradients into views of theirs. The update graph then rewrites the parameters in
place. It is a second session on purpose: an update inside the gradient graph would overwrite weights that the layer
below has not used yet. Everything is bound once, so a step neither allocates nor copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .._data.batches import BatchBuffers, Batches
from .._graph.trainable import TrainableModel
from .._optimizers.update_graph import PIECE, Coefficients
from .._runtime import devices, errors
from .._runtime.binding import Binding
from ..optimizers import Optimizer
from .base_step import BaseStep, SegmentUpdate, StepParts
from .dropout import UniformNumbers
from .loss_graph import LOSS, PARALLEL_WORK, PENALTY, WEIGHT, Scheduled, StepSettings, as_float32
from .numpy_update import NumpyUpdate, numpy_update
from .parameters import FlatParameters
from .segments import Factors
from .sparse_products import HostProduct, host_products
from .step import OptimizerState, Rates
from .vector_graphs import step_weight


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


@dataclass(frozen=True, eq=False)
class HostUpdate:
    """The updates of all segments of equal factors, and the scalars that they read."""

    coefficients: Callable[[Rates, int], Coefficients]
    scalars: Mapping[str, np.ndarray]
    bindings: list[Binding | NumpyUpdate]


class HostStep(BaseStep):
    """Train on one minibatch after the other."""

    def __init__(self, parts: StepParts) -> None:
        super().__init__(parts)
        settings, parameters = parts.settings, parts.parameters
        self._passes: dict[int, HostPass] = {}
        self.buffers(self.batch)
        self._penalty = self._penalty_binding() if self.penalized else None
        clips = settings.max_grad_norm is not None
        self._clip = self._bind_clipping(parameters.gradient, np.asarray) if clips else None
        self._total = self._accumulation_bindings() if settings.accumulate > 1 else None
        self._average = None if settings.ema_decay is None else self._average_binding()
        self._updates: list[HostUpdate] = []
        if isinstance(settings.optimizer, Optimizer):
            self._updates = self._host_updates(settings.optimizer)

    def buffers(self, rows: int) -> BatchBuffers:
        """Return the buffers that the next step reads, for a minibatch of ``rows`` rows.

        Their columns are the graph's inputs and the target (:data:`TARGET`). They hold a full minibatch, whatever
        ``rows`` is. A batch whose statistics matter is never padded: its buffers have exactly ``rows`` rows.
        """
        size = rows if self.parameters.running_statistics else self.batch
        if size not in self._passes:
            self._passes = {n: known for n, known in self._passes.items() if n == self.batch}  # one remainder
            self._passes[size] = self._pass(size)
        self._current = self._passes[size]
        return self._current.buffers

    def train(self, batches: Batches, next_rates: Callable[[], Rates]) -> Iterator[tuple[float, float]]:
        """Train on each minibatch of one pass; yield the sum of its weights and its loss before the update."""
        if self._total is not None:
            yield from self._train_groups(batches, next_rates)
            return
        for weight in batches.fill(self.buffers):
            yield weight, self.run(next_rates(), weight)

    def _train_groups(self, batches: Batches, next_rates: Callable[[], Rates]) -> Iterator[tuple[float, float]]:
        """Take one step for each group of minibatches; yield the sum of its weights and its loss."""
        minibatches, count = batches.minibatches(), self.settings.accumulate
        for start in range(0, len(minibatches), count):
            group, rates = minibatches[start : start + count], next_rates()
            weights = [batches.weight_of(rows) for rows in group]
            total, loss = sum(weights), 0.0
            for i, (rows, weight) in enumerate(zip(group, weights, strict=True)):
                batches.gather(rows, self.buffers(len(rows)))
                share = weight / total if total > 0 else 0.0
                loss += share * self._pass_gradients(rates.dropout)
                self._accumulate(i, len(group), share)
            loss += self._penalty_gradients(total)
            self._step(rates)
            yield total, loss

    def _accumulate(self, i: int, count: int, share: float) -> None:
        """Add the gradients of minibatch ``i`` of ``count``; the last leaves the mean of all in the gradients."""
        if count > 1 and self._total is not None:
            self._share[()] = share
            self._total[i == 0, i == count - 1].run()

    def run(self, rates: Rates, weight: float) -> float:
        """Train on the minibatch in the buffers, whose weights sum to ``weight``; return its loss before the update."""
        loss = self.gradients(weight, rates.dropout)
        self._step(rates)
        return loss

    def _step(self, rates: Rates) -> None:
        """Update the parameters by the gradients."""
        if self._clip is not None:
            self._clip.run()
        self.state.t += 1
        for update in self._updates:
            for name, value in update.coefficients(rates, self.state.t).items():
                update.scalars[name][()] = value
            for binding in update.bindings:
                binding.run()
        if self._average is not None:
            self.state.averaged += 1
            self._weight[()] = step_weight(self.settings.ema_decay or 0.0, self.state.averaged)
            self._average.run()

    def gradients(self, weight: float, dropout: float = 1.0) -> float:
        """Compute the gradients of the minibatch in the buffers; return its loss, the penalty included.

        The penalty is divided by ``weight``, the sum of the weights of the rows that the gradients stand for. Scheduled
        dropout ratios are multiplied by ``dropout``.
        """
        loss = self._pass_gradients(dropout)
        return loss if self._penalty is None else loss + self._penalty_gradients(weight)

    def _pass_gradients(self, dropout: float) -> float:
        """Compute the gradients of the mean loss of the minibatch in the buffers; return the loss."""
        current = self._current
        if current.uniform.buffers:
            current.uniform.draw(self.state.draws, dropout)
            self.state.draws += 1
        for product in current.products:
            product.forward()
        current.gradient.run()
        for product in current.products:
            product.backward()
        for statistic, moved in current.moved:
            statistic[...] = moved
        return float(current.loss.item())

    def _penalty_gradients(self, weight: float) -> float:
        """Add the gradients of the penalty; return its value."""
        if self._penalty is None:
            return 0.0
        self._strength[()] = 1.0 / weight if weight > 0 else 0.0
        self._penalty.run()
        return float(self._penalty_value.item())

    def synchronize(self) -> None:
        """Do nothing: the host's arrays are trained in place."""

    def _pass(self, batch: int) -> HostPass:
        """Return the forward and backward pass over ``batch`` rows, bound to buffers of its own."""
        parameters, graph = self.parameters, self._pass_graph(batch)
        buffers, uniform, loss = graph.buffers, graph.uniform, np.zeros((), parameters.vector.dtype)
        moved = {name: np.zeros_like(parameters.view(name)) for name in parameters.running_statistics}
        threads = devices.available_threads() if graph.program.work >= PARALLEL_WORK else 1
        products = host_products(graph.program.products, buffers, parameters, self._model, self._frozen)
        inputs = {**buffers.columns, **uniform.arrays, **parameters.views(), WEIGHT: buffers.sample_weight}
        inputs |= {product.first.name: product.product for product in products}
        outside = {product.first.weight for product in products}
        gradients = {name: parameters.gradient_view(name) for name in parameters.names if name not in outside}
        gradients |= {product.first.name: product.slope for product in products if product.gradient is not None}
        binding = self._bind_pass(self._pass_session(graph.program, threads), inputs, {LOSS: loss}, gradients, moved)
        statistics = [(parameters.view(name), moved[name]) for name in moved]
        return HostPass(buffers, binding, loss, uniform, statistics, products)

    def _penalty_binding(self) -> Binding:
        part, dtype = self.parameters.penalized, self.parameters.vector.dtype
        self._strength, self._penalty_value = np.zeros((), dtype), np.zeros((), dtype)
        arrays = {"strength": self._strength, PENALTY: self._penalty_value}
        vector, gradient = self.parameters.vector[part], self.parameters.gradient[part]
        return self._bind_penalty(vector, gradient, np.asarray, **arrays)

    def _accumulation_bindings(self) -> dict[tuple[bool, bool], Binding]:
        self._share = np.zeros((), self.parameters.vector.dtype)
        return self._bind_accumulation(np.zeros_like(self.parameters.gradient), self.parameters.gradient, self._share)

    def _average_binding(self) -> Binding:
        assert self.parameters.average is not None
        self._weight = np.zeros((), self.parameters.vector.dtype)
        return self._bind_average(self.parameters.average, self.parameters.vector, self._weight)

    def _host_updates(self, optimizer: Optimizer) -> list[HostUpdate]:
        """Return the updates, one for all segments of equal factors."""
        updates: dict[Factors, HostUpdate] = {}
        for one in self._segment_updates(optimizer):
            if one.factors not in updates:
                updates[one.factors] = HostUpdate(one.coefficients, self._scalars(one), [])
            update = updates[one.factors]
            update.bindings.extend(self._bound_updates(one, update.scalars))
        return list(updates.values())

    def _scalars(self, one: SegmentUpdate) -> dict[str, np.ndarray]:
        dtype = self.parameters.vector.dtype
        kinds = {n: np.int64 if isinstance(x, int) else dtype for n, x in one.coefficients(Rates(0.001), 1).items()}
        return {name: np.zeros((), kind) for name, kind in kinds.items()}

    def _bound_updates(self, one: SegmentUpdate, scalars: Mapping[str, np.ndarray]) -> list[Binding | NumpyUpdate]:
        """Return the updates of a segment: of a long one by NumPy, if it can, else by the session in pieces."""
        formula, whole, gradients = one.program.formula, one.segment.part, self.parameters.gradient
        vectors = {"parameters": self.parameters.vector}
        vectors |= {name: self.state.slots[name] for name in one.program.slots}
        if formula is not None and whole.stop - whole.start > 2 * PIECE:
            return [numpy_update(formula, {n: v[whole] for n, v in vectors.items()}, gradients[whole], scalars)]
        bound = [({n: v[cut] for n, v in vectors.items()}, gradients[cut]) for cut in pieces(one)]
        return [self._bind_update(one.session, parts, own, scalars) for parts, own in bound]


def pieces(one: SegmentUpdate) -> list[slice]:
    """Return the slices in which a segment is updated: the temporaries of a piece fit the cache."""
    start, stop = one.segment.part.start, one.segment.part.stop
    size = PIECE if one.program.elementwise and stop - start > 2 * PIECE else max(1, stop - start)
    return [slice(i, min(i + size, stop)) for i in range(start, stop, size)]


def in_trainable_type(model: TrainableModel, settings: StepSettings, names: Sequence[str]) -> TrainableModel:
    """Return ``model``, or its float32 form if the engine lacks float64 kernels for its gradients."""
    if model.dtype == np.float32:
        return model
    weights, plain = model.weights(), replace(settings, accumulate=1, ema_decay=None, scheduled=Scheduled())
    trained = FlatParameters(
        {n: weights[n] for n in names}, model.dtype, {n: weights[n] for n in model.running_statistics}
    )
    try:
        HostStep(StepParts(model, plain, trained, {}, OptimizerState(), batch=2))
    except Exception as error:
        if not errors.not_implemented(error):
            raise
        return as_float32(model)
    return model

"""The training step on a device with memory of its own.

Parameters, gradients and optimizer state live on the device. Data that fit are uploaded once, and the device gathers
each minibatch. The order of the rows, their weights and the learning rates are uploaded once per epoch. Once per epoch
the host reads the losses and the trained parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .._data.batches import BatchBuffers, Batches
from .._runtime.binding import Array, Binding, DeviceArray
from ..optimizers import Optimizer
from .base_step import BaseStep, SegmentUpdate, StepParts
from .dropout import UniformNumbers
from .gathering import DATA, ROW_NUMBERS
from .loss_graph import LOSS, PENALTY, WEIGHT, ir_type
from .step import Rates
from .vector_graphs import SHARE, STEP_WEIGHT, copy_graph, step_weight
from .vector_programs import graph_bytes

RESIDENT_LIMIT = 2**31
"""Largest data, in bytes, that are uploaded at once; larger data are uploaded by minibatch."""


@dataclass(frozen=True, eq=False)
class DevicePass:
    """One forward and backward pass over a fixed number of rows.

    The host gathers the minibatch in ``buffers``. If the device gathers it, only their size is used.
    """

    buffers: BatchBuffers
    gradient: Binding
    uniform: UniformNumbers


class Groups:
    """The minibatches of one pass in groups of ``size``, each of which makes one step.

    ``weights`` are the sums of the weights of each group, ``shares`` those of each minibatch in its group.
    """

    def __init__(self, weights: np.ndarray, size: int) -> None:
        self.size, self._last = size, len(weights) - 1
        self._starts = np.arange(0, len(weights), size)
        self.weights = np.add.reduceat(weights, self._starts)
        totals = np.repeat(self.weights, size)[: len(weights)]
        self.shares = np.divide(weights, totals, out=np.ones_like(weights), where=totals > 0)

    def position(self, i: int) -> tuple[bool, bool]:
        """Return whether minibatch ``i`` is the first and the last of its group."""
        return i % self.size == 0, (i + 1) % self.size == 0 or i == self._last

    def means(self, losses: np.ndarray) -> np.ndarray:
        """Return the weighted mean over each group."""
        means: np.ndarray = np.add.reduceat(losses * self.shares, self._starts)
        return means


class DeviceStep(BaseStep):
    """Train on the minibatches of whole epochs on a device.

    ``parameters`` and ``state`` are the host's copies. They are uploaded when new data arrive, and updated after each
    epoch.
    """

    def __init__(self, parts: StepParts, optimizer: Optimizer, memory: tuple[str, int]) -> None:
        super().__init__(parts)
        self._memory, self._updates = memory, self._segment_updates(optimizer)
        parameters = parts.parameters
        self._buffer, self._gradient = self._new(parameters.buffer), self._new(parameters.gradient)
        start = len(parameters.vector)
        self._moved = self._new(parameters.buffer[start : start + parameters.n_statistics])
        self._slots = {name: self._new(slot) for name, slot in parts.state.slots.items()}
        self._loaded: Batches | None = None
        self._data: dict[str, DeviceArray] = {}
        self._passes: dict[tuple[int, bool], DevicePass] = {}
        self._copy = self._copying() if parameters.running_statistics else None
        self._total = self._accumulation() if parts.settings.accumulate > 1 else None
        self._after = self._bindings_after_the_gradient()
        self._pass(parts.batch, resident=True)

    def train(self, batches: Batches, next_rates: Callable[[], Rates]) -> Iterator[tuple[float, float]]:
        """Train on each minibatch of one pass; then yield the sum of weights and the loss of each step."""
        if self._loaded is not batches:
            self._load(batches)
        minibatches = batches.minibatches()
        passes = [self._pass(len(rows), resident=bool(self._data)) for rows in minibatches]
        groups = Groups(np.array([batches.weight_of(rows) for rows in minibatches]), self.settings.accumulate)
        every = [next_rates() for _ in groups.weights]
        scalars, losses = self._scalars(groups.weights, every), self._new(np.zeros(len(passes), self._buffer.dtype))
        shares = self._new(groups.shares.astype(self._buffer.dtype))
        try:
            for i, (one, feeds) in enumerate(self._fed(batches, minibatches, passes)):
                step = i // groups.size
                self._run_pass(one, {**feeds, LOSS: losses.part(i, ())}, every[step].dropout)
                if self._total is not None and groups.position(i) in self._total:
                    self._total[groups.position(i)].run(**{SHARE: shares.part(i, ())})
                if groups.position(i)[1]:
                    self._run_step({name: array.part(step, ()) for name, array in scalars.items()})
        finally:
            self.synchronize()
        means = groups.means(losses.read().astype(np.float64)) + scalars[PENALTY].read()
        yield from zip(groups.weights.tolist(), means.tolist(), strict=True)

    def synchronize(self) -> None:
        """Bring the host's copies of parameters and optimizer state up to date."""
        self.parameters.buffer[...] = self._buffer.read()
        for name, slot in self._slots.items():
            self.state.slots[name][...] = slot.read()

    def forget_state(self) -> None:
        """Reset the optimizer to its state before the first step, on the device too."""
        super().forget_state()
        self._loaded = None

    def _fed(
        self, batches: Batches, minibatches: Sequence[np.ndarray], passes: Sequence[DevicePass]
    ) -> Iterator[tuple[DevicePass, dict[str, Array]]]:
        """Yield the pass of each minibatch and its inputs; the host gathers rows only if the device does not."""
        order, weights = self._order(batches, minibatches, passes)
        start = 0
        for rows, one in zip(minibatches, passes, strict=True):
            shape = one.buffers.sample_weight.shape
            feeds: dict[str, Array] = {WEIGHT: weights.part(start, shape)}
            if self._data:
                feeds |= {**self._data, ROW_NUMBERS: order.part(start, shape)}
            else:
                batches.gather(rows, one.buffers)
            yield one, feeds
            start += shape[0]

    def _run_pass(self, one: DevicePass, feeds: Mapping[str, Array], dropout: float) -> None:
        if one.uniform.buffers:
            one.uniform.draw(self.state.draws, dropout)
            self.state.draws += 1
        one.gradient.run(**feeds)
        if self._copy is not None:
            self._copy.run()

    def _run_step(self, now: Mapping[str, DeviceArray]) -> None:
        for binding, names in self._after:
            binding.run(**{name: now[key] for name, key in names.items()})
        self.state.t += 1
        self.state.averaged += self.settings.ema_decay is not None

    def _load(self, batches: Batches) -> None:
        """Upload the trained parameters, and the data if they fit."""
        self._buffer.write(self.parameters.buffer)
        for name, slot in self._slots.items():
            slot.write(self.state.slots[name])
        fits = batches.nbytes <= RESIDENT_LIMIT
        self._data = {f"{DATA}{name}": self._new(array) for name, array in batches.arrays().items()} if fits else {}
        self._loaded = batches

    def _order(
        self, batches: Batches, minibatches: Sequence[np.ndarray], passes: Sequence[DevicePass]
    ) -> tuple[DeviceArray, DeviceArray]:
        """Return the rows of all minibatches in one vector, padded as ``Batches.fill`` does, and their weights."""
        order, weights = [], []
        for rows, one in zip(minibatches, passes, strict=True):
            missing = len(one.buffers.sample_weight) - len(rows)
            order.append(np.r_[rows, np.full(missing, rows[0])])
            weights.append(np.r_[batches.weights_of(rows), np.zeros(missing)])
        dtype = self.parameters.vector.dtype
        return self._new(np.concatenate(order).astype(np.int64)), self._new(np.concatenate(weights).astype(dtype))

    def _scalars(self, weights: np.ndarray, rates: Sequence[Rates]) -> dict[str, DeviceArray]:
        """Return vectors of the scalars that the steps read or write, by name; one element per step."""
        dtype = self.parameters.vector.dtype
        arrays: dict[str, np.ndarray] = {}
        for one in {one.factors: one for one in self._updates}.values():
            steps = [one.coefficients(now, self.state.t + i + 1) for i, now in enumerate(rates)]
            kinds = {name: np.int64 if isinstance(value, int) else dtype for name, value in steps[0].items()}
            arrays |= {_scalar_name(one, n): np.array([step[n] for step in steps], kind) for n, kind in kinds.items()}
        arrays["strength"] = np.divide(1.0, weights, out=np.zeros_like(weights), where=weights > 0).astype(dtype)
        arrays[PENALTY] = np.zeros(len(rates), dtype)
        if (decay := self.settings.ema_decay) is not None:
            first = self.state.averaged + 1
            arrays[STEP_WEIGHT] = np.array([step_weight(decay, first + i) for i in range(len(rates))], dtype)
        return {name: self._new(array) for name, array in arrays.items()}

    def _pass(self, rows: int, *, resident: bool) -> DevicePass:
        """Return the pass for a minibatch of ``rows`` rows, gathered by the device or by the host."""
        size = rows if self.parameters.running_statistics else self.batch
        key = (size, resident)
        if key not in self._passes:
            self._passes = {k: known for k, known in self._passes.items() if k[0] == self.batch}
            self._passes[key] = self._new_pass(size, resident)
        return self._passes[key]

    def _new_pass(self, batch: int, resident: bool) -> DevicePass:
        parameters, graph = self.parameters, self._pass_graph(batch, resident=resident)
        buffers, uniform = graph.buffers, graph.uniform
        inputs: dict[str, Array] = {name: self._part(self._buffer, name) for name in parameters.views()}
        inputs |= {**uniform.arrays, **({} if resident else buffers.columns)}
        gradients = {name: self._part(self._gradient, name) for name in parameters.names}
        start = len(parameters.vector)
        moved = {name: self._part(self._moved, name, start) for name in parameters.running_statistics}
        binding = self._bind_pass(self._pass_session(graph.program), inputs, {}, gradients, moved)
        return DevicePass(buffers, binding, uniform)

    def _bindings_after_the_gradient(self) -> list[tuple[Binding, dict[str, str]]]:
        """Return the bindings to run after the gradient, in order.

        Each comes with its inputs and outputs that change every step, and their keys in :meth:`_scalars`.
        """
        bindings: list[tuple[Binding, dict[str, str]]] = []
        if self.penalized:
            size = (self.parameters.penalized.stop,)
            penalty = self._bind_penalty(self._buffer.part(0, size), self._gradient.part(0, size), self._new)
            bindings.append((penalty, {name: name for name in ("strength", PENALTY)}))
        if self.settings.max_grad_norm is not None:
            bindings.append((self._bind_clipping(self._gradient, self._new), {}))
        bindings.extend(self._updating(one) for one in self._updates)
        if self.parameters.average is not None:
            shape, start = self.parameters.vector.shape, len(self.parameters.buffer) - len(self.parameters.vector)
            average = self._bind_average(self._buffer.part(start, shape), self._buffer.part(0, shape))
            bindings.append((average, {STEP_WEIGHT: STEP_WEIGHT}))
        return bindings

    def _accumulation(self) -> dict[tuple[bool, bool], Binding]:
        return self._bind_accumulation(self._new(np.zeros_like(self.parameters.gradient)), self._gradient)

    def _updating(self, one: SegmentUpdate) -> tuple[Binding, dict[str, str]]:
        """Bind the update of a segment."""
        start, shape = one.segment.part.start, (one.segment.part.stop - one.segment.part.start,)
        vectors = {"parameters": self._buffer.part(start, shape)}
        vectors |= {name: self._slots[name].part(start, shape) for name in one.program.slots}
        binding = self._bind_update(one.session, vectors, self._gradient.part(start, shape), {})
        return binding, {name: _scalar_name(one, name) for name in one.coefficients(Rates(0.001), 1)}

    def _copying(self) -> Binding:
        """Bind the graph that copies the next running statistics over the current ones."""
        start, kind = len(self.parameters.vector), ir_type(self._moved.dtype)
        size = self.parameters.n_statistics
        outputs: dict[str, Array] = {"statistics": self._buffer.part(start, (size,))}
        return Binding(self._session(graph_bytes(copy_graph, size, kind)), {"moved": self._moved}, outputs)

    def _new(self, array: np.ndarray) -> DeviceArray:
        return DeviceArray(array, self._memory)

    def _part(self, flat: DeviceArray, name: str, offset: int = 0) -> DeviceArray:
        span, shape = self.parameters.span(name), self.parameters.view(name).shape
        return flat.part(span.start - offset, shape)


def _scalar_name(one: SegmentUpdate, name: str) -> str:
    """Return the key of a coefficient among the scalars of a step."""
    return f"{name} {one.factors}"

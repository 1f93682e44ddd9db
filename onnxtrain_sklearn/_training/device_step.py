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
from .base_step import BaseStep, StepParts
from .device_update import DeviceUpdate
from .device_vectors import ALIGNMENT, DeviceVectors
from .dropout import UniformNumbers
from .gathering import DATA, ROW_NUMBERS
from .loss_graph import LOSS, PENALTY, WEIGHT
from .step import Rates
from .vector_graphs import SHARE

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
        layout = parts.parameters.aligned(ALIGNMENT)
        super().__init__(parts, lambda array: DeviceArray(array, memory), layout)
        bindings, segments = self._bindings, self._segment_updates(optimizer)
        self._vectors = vectors = DeviceVectors(parts.parameters, layout, parts.state, memory)
        self._loaded: Batches | None = None
        self._data: dict[str, DeviceArray] = {}
        self._passes: dict[tuple[int, bool], DevicePass] = {}
        start, size = len(layout.vector), layout.statistics.size
        self._copy = bindings.copying(vectors.moved, vectors.buffer.part(start, (size,))) if size else None
        self._total = bindings.accumulation(vectors.gradient) if parts.settings.accumulate > 1 else None
        self._update = DeviceUpdate(parts.settings, layout, vectors, bindings, segments)
        self._pass(parts.batch, resident=True)

    def train(self, batches: Batches, next_rates: Callable[[], Rates]) -> Iterator[tuple[float, float]]:
        """Train on each minibatch of one pass; then yield the sum of weights and the loss of each step."""
        if self._loaded is not batches:
            self._load(batches)
        minibatches = batches.minibatches()
        passes = [self._pass(len(rows), resident=bool(self._data)) for rows in minibatches]
        groups = Groups(np.array([batches.weight_of(rows) for rows in minibatches]), self.settings.accumulate)
        every = [next_rates() for _ in groups.weights]
        scalars, losses = (
            self._update.scalars(groups.weights, every, self.state),
            self._vectors.new(np.zeros(len(passes), self._vectors.buffer.dtype)),
        )
        shares = self._vectors.new(groups.shares.astype(self._vectors.buffer.dtype))
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
        self._vectors.download()

    def reload(self) -> None:
        """Upload the host's copies before the next step."""
        self._loaded = None

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
                one.gradient.require_indices(one.buffers.columns)
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
        self.state.t += 1  # first: after an error the vectors count as changed
        self._update.run(now)
        self.state.averaged += self.settings.ema_decay is not None

    def _load(self, batches: Batches) -> None:
        """Upload the trained parameters, and the data if they fit."""
        self._vectors.upload()
        arrays = batches.arrays() if batches.nbytes <= RESIDENT_LIMIT else {}
        data = {f"{DATA}{name}": array for name, array in arrays.items()}
        self._pass(self.batch, resident=True).gradient.require_indices(data)
        self._data = {name: self._vectors.new(array) for name, array in data.items()}
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
        return self._vectors.new(np.concatenate(order).astype(np.int64)), self._vectors.new(
            np.concatenate(weights).astype(dtype)
        )

    def _pass(self, rows: int, *, resident: bool) -> DevicePass:
        """Return the pass for a minibatch of ``rows`` rows, gathered by the device or by the host."""
        size = self.batch if self._pads else rows
        key = (size, resident)
        if key not in self._passes:
            self._passes = {k: known for k, known in self._passes.items() if k[0] == self.batch}
            self._passes[key] = self._new_pass(size, resident)
        return self._passes[key]

    def _new_pass(self, batch: int, resident: bool) -> DevicePass:
        parameters, vectors, graph = self.parameters, self._vectors, self._pass_graph(batch, resident=resident)
        buffers, uniform = graph.buffers, graph.uniform
        inputs: dict[str, Array] = {name: vectors.parameter(name) for name in parameters.views()}
        inputs |= {**uniform.arrays, **({} if resident else buffers.columns)}
        gradients = {name: vectors.gradient_of(name) for name in parameters.names}
        moved = {name: vectors.next_of(name) for name in parameters.running_statistics}
        return DevicePass(buffers, graph.bind(inputs, {}, gradients, moved), uniform)

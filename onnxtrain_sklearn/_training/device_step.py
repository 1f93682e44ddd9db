"""The training step in the memory of a device.

Parameters, gradients and optimizer state live on the device. Data that fit are uploaded once, and the device gathers
each minibatch. The order of the rows, their weights and the learning rates are uploaded once per epoch, and the host
reads the losses and the trained parameters at its end. Data that do not fit are uploaded every ``STEPS_AT_ONCE`` steps,
and the losses are read as often; after each step if a callback follows the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

import numpy as np

from .._data.batches import BatchBuffers, Batches, Minibatch
from .._ort.binding import Array, Binding, DeviceArray
from ..optimizers import Optimizer
from .loss_graph import LOSS, WEIGHT
from .parameters import FlatParameters, state_slots
from .pass_rewrites import DATA, ROW_NUMBERS
from .passes import pass_graph
from .programs import PassParts
from .randomness import UniformNumbers
from .rows_meet import where_rows_meet
from .step import OneProcess, StepKind
from .step_parts import OptimizerState, Rates, StepParts
from .updates import PENALTY, SHARE, STEP_WEIGHT, SegmentUpdate, VectorBindings, bind_update, step_weight

RESIDENT_LIMIT = 2**31
"""Size of the data, in bytes, up to which all rows are uploaded once; of larger data, minibatches are uploaded."""

STEPS_AT_ONCE = 64
"""Number of steps whose minibatches the host gathers and uploads at a time, if the data exceed ``RESIDENT_LIMIT``."""


@dataclass(frozen=True, eq=False)
class DevicePass:
    """One forward and backward pass over a fixed number of rows.

    The host gathers the minibatch in ``buffers``. If the device gathers it, only their size is used.
    """

    engine: str
    buffers: BatchBuffers
    gradient_graph: Binding
    uniform: UniformNumbers


class Groups:
    """The minibatches of an epoch in groups of ``size``; each group makes one step (gradient accumulation).

    ``weights`` holds the sum of the row weights of each group, ``shares`` the fraction of it that each minibatch has.
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
        """Return the weighted mean of ``losses``, one per minibatch, over each group."""
        means: np.ndarray = np.add.reduceat(losses * self.shares, self._starts)
        return means


class DeviceStep(OneProcess):
    """Train on the minibatches of whole epochs on a device.

    ``parameters`` and ``optimizer_state`` are the host's copies. They are uploaded when new data arrive, and updated
    whenever losses are read.
    """

    in_host_memory: ClassVar[bool] = False

    def __init__(self, parts: StepParts) -> None:
        settings = parts.settings
        optimizer = parts.settings.optimizer
        memory = parts.settings.device.memory
        assert memory is not None
        assert isinstance(optimizer, Optimizer)
        self.settings, self.batch_size = settings, parts.batch_size
        self.parameters, self.optimizer_state = parts.parameters, parts.optimizer_state
        self.kind: StepKind | None = None
        self._parts = parts
        # Where rows meet, padding rows would change the results of the others.
        self._pads = where_rows_meet(parts.graph, settings) is None
        layout = parts.parameters.aligned(ALIGNMENT)
        bindings = VectorBindings(settings, layout, lambda array: DeviceArray(array, memory))
        segments = bindings.segment_updates(optimizer)
        self._slots = state_slots(optimizer, parts.parameters)
        parts.optimizer_state.prepare(self._slots, parts.parameters.vector.dtype)
        self._vectors = vectors = DeviceVectors(parts.parameters, layout, parts.optimizer_state, memory)
        self._loaded: Batches | None = None
        self._data: dict[str, DeviceArray] = {}
        self._passes: dict[tuple[int, bool], DevicePass] = {}
        start = len(layout.vector)
        size = layout.statistics.size
        self._copy = bindings.copying(vectors.next_statistics, vectors.buffer.part(start, (size,))) if size else None
        self._total = bindings.accumulation(vectors.gradient) if settings.accumulate > 1 else None
        self._update = DeviceUpdate(parts, layout, vectors, bindings, segments)
        first = self._new_pass(parts.batch_size, resident=True, first=True)
        self._passes[parts.batch_size, True] = first
        self.engine = first.engine

    def train(
        self,
        batches: Batches,
        next_rates: Callable[[], Rates],
        after: Callable[[float], bool] | None = None,
        skip: int = 0,
    ) -> Iterator[tuple[float, float]]:
        """Train on each minibatch of one epoch; then yield the sum of weights and the loss of each step."""
        if self._loaded is not batches:
            self._load(batches)
        minibatches = batches.epoch(skip)
        most = None if self._data else STEPS_AT_ONCE * self.settings.accumulate
        if after is not None:
            most = self.settings.accumulate
        try:
            while several := list(islice(minibatches, most)):
                for weight, loss in self._trained(several, next_rates):
                    yield weight, loss
                    if after is not None:
                        self.synchronize()
                        ended = after(loss)
                        self._vectors.upload()  # the callback may have changed the weights on the host
                        if ended:
                            return
        finally:
            self.synchronize()

    def _trained(
        self, minibatches: Sequence[Minibatch], next_rates: Callable[[], Rates]
    ) -> Iterator[tuple[float, float]]:
        """Take the steps of these minibatches; return the sum of weights and the loss of each step."""
        # Upload everything that these steps read, so that no step waits for the host.
        passes = [self._pass(len(one.rows), resident=bool(self._data)) for one in minibatches]
        groups = Groups(np.array([one.weight for one in minibatches]), self.settings.accumulate)
        every = [next_rates() for _ in groups.weights]
        dtype = self._vectors.buffer.dtype
        scalars = self._update.scalars(groups.weights, every, self.optimizer_state)
        losses, shares = self._vectors.new(np.zeros(len(passes), dtype)), self._vectors.new(groups.shares.astype(dtype))
        order, weights = self._order(minibatches, passes)

        start = 0
        for i, (minibatch, one) in enumerate(zip(minibatches, passes, strict=True)):
            step = i // groups.size
            shape = one.buffers.sample_weight.shape
            feeds: dict[str, Array] = {WEIGHT: weights.part(start, shape), LOSS: losses.part(i, ())}
            if self._data:
                feeds |= {**self._data, ROW_NUMBERS: order.part(start, shape)}
            else:  # the host gathers the rows
                minibatch.fill(one.buffers)
                one.gradient_graph.require_indices(one.buffers.columns)
            start += shape[0]
            if one.uniform.buffers:
                one.uniform.draw(self.optimizer_state.draws, every[step].dropout_factor)
                self.optimizer_state.draws += 1
            one.gradient_graph.run(**feeds)
            if self._copy is not None:
                self._copy.run()
            first, last = groups.position(i)
            if self._total is not None and (first, last) in self._total:
                self._total[first, last].run(**{SHARE: shares.part(i, ())})
            if last:
                self.optimizer_state.t += 1  # first, so that a rollback after an error takes the vectors as changed
                self._update.run({name: array.part(step, ()) for name, array in scalars.items()})
                self.optimizer_state.averaged += self.settings.ema_decay is not None
        means = groups.means(losses.read().astype(np.float64)) + scalars[PENALTY].read()
        return zip(groups.weights.tolist(), means.tolist(), strict=True)

    def synchronize(self) -> None:
        """Bring the host's copies of parameters and optimizer state up to date."""
        self._vectors.download()

    def reload(self) -> None:
        """Upload the host's copies before the next step."""
        self._loaded = None

    def forget_state(self) -> None:
        """Reset the optimizer to its state before the first step, on the device too."""
        self.optimizer_state.reset(self._slots)
        self._loaded = None

    def _load(self, batches: Batches) -> None:
        """Upload the trained parameters, and the data if they fit."""
        self._vectors.upload()
        data = {f"{DATA}{name}": array for name, array in (batches.resident(RESIDENT_LIMIT) or {}).items()}
        self._pass(self.batch_size, resident=True).gradient_graph.require_indices(data)
        self._data = {name: self._vectors.new(array) for name, array in data.items()}
        self._loaded = batches

    def _order(self, minibatches: Sequence[Minibatch], passes: Sequence[DevicePass]) -> tuple[DeviceArray, DeviceArray]:
        """Upload the row indices and the row weights of all padded minibatches, each as one vector."""
        order, weights = [], []
        for (rows, own, _, _), one in zip(minibatches, passes, strict=True):
            missing = len(one.buffers.sample_weight) - len(rows)
            order.append(np.r_[rows, np.full(missing, rows[0])])
            weights.append(np.r_[np.ones(len(rows)) if own is None else own, np.zeros(missing)])
        dtype = self.parameters.vector.dtype
        return self._vectors.new(np.concatenate(order).astype(np.int64)), self._vectors.new(
            np.concatenate(weights).astype(dtype)
        )

    def _pass(self, rows: int, *, resident: bool) -> DevicePass:
        """Return the pass for a minibatch of ``rows`` rows, gathered by the device or by the host."""
        size = self.batch_size if self._pads else rows
        key = (size, resident)
        if key not in self._passes:
            self._passes = {k: known for k, known in self._passes.items() if k[0] == self.batch_size}
            self._passes[key] = self._new_pass(size, resident=resident)
        return self._passes[key]

    def _new_pass(self, batch_size: int, *, resident: bool, first: bool = False) -> DevicePass:
        parts, parameters, vectors = self._parts, self.parameters, self._vectors
        data = parts.graph, parts.settings, parameters, parts.frozen, batch_size
        graph = pass_graph(PassParts(*data, resident=resident, sparse=parts.sparse, any_shape=True), first=first)
        buffers, uniform = graph.buffers, graph.uniform
        inputs: dict[str, Array] = {name: vectors.parameter(name) for name in parameters.views()}
        inputs |= {**uniform.arrays, **({} if resident else buffers.columns)}
        gradients = {name: vectors.gradient_of(name) for name in parameters.names}
        next_statistics = {name: vectors.next_of(name) for name in parameters.running_statistics}
        return DevicePass(graph.program.engine, buffers, graph.bind(inputs, {}, gradients, next_statistics), uniform)


# Stages that run on a device after the gradient (penalty, clipping, update, average), and the scalars that they read.


class DeviceUpdate:
    """The graphs that run after the gradient, in the order of the stages of the step.

    Parameters
    ----------
    parts : StepParts
    layout : FlatParameters
        The layout of the parameters on the device.
    vectors : DeviceVectors
    bindings : VectorBindings
    segments : sequence of SegmentUpdate
    """

    def __init__(
        self,
        parts: StepParts,
        layout: FlatParameters,
        vectors: DeviceVectors,
        bindings: VectorBindings,
        segments: Sequence[SegmentUpdate],
    ) -> None:
        self._decay = parts.settings.ema_decay
        self._segments = segments
        self._vectors = vectors
        self._dtype = layout.vector.dtype
        # Pairs of a graph and its scalars: names of inputs and outputs that change in every step, with their keys in
        # the dict that :meth:`scalars` returns.
        self._calls: list[tuple[Binding, dict[str, str]]] = []
        for stage in parts.stages:
            if stage == "penalty":
                size = (layout.penalized.stop,)
                penalty = bindings.penalty(vectors.buffer.part(0, size), vectors.gradient.part(0, size))
                self._calls.append((penalty, {name: name for name in ("strength", PENALTY)}))
            elif stage == "clipping":
                self._calls.append((bindings.clipping(vectors.gradient), {}))
            elif stage == "update":
                for one in segments:
                    part = one.segment.part
                    parameter = one.segment.parameter
                    slots = one.slots(vectors.slots)
                    start = part.start
                    shape = tuple[int, ...]([part.stop - part.start])
                    if parameter is None:
                        slots = {name: slot.part(start, shape) for name, slot in slots.items()}
                    elif one.program.elementwise:
                        slots = {name: slot.part(0, shape) for name, slot in slots.items()}
                    else:
                        shape = parameter.shape
                    arrays = {"parameters": vectors.buffer.part(start, shape), **slots}
                    binding = bind_update(one.open_session(), arrays, vectors.gradient.part(start, shape), {})
                    self._calls.append(
                        (binding, {name: _scalar_name(one, name) for name in one.scalars(Rates(0.001), 1)})
                    )
            elif stage == "average":
                shape = layout.vector.shape
                start = len(layout.buffer) - len(layout.vector)
                average = bindings.average(vectors.buffer.part(start, shape), vectors.buffer.part(0, shape))
                self._calls.append((average, {STEP_WEIGHT: STEP_WEIGHT}))

    def scalars(
        self, weights: np.ndarray, rates: Sequence[Rates], optimizer_state: OptimizerState
    ) -> dict[str, DeviceArray]:
        """Return, by name, vectors of the scalars that the next steps read or write, with one element per step.

        ``weights`` holds the sum of the row weights of each step; ``optimizer_state`` is the state before these steps.
        """
        arrays: dict[str, np.ndarray] = {}
        for one in {one.scalars_key: one for one in self._segments}.values():
            steps = [one.scalars(now, optimizer_state.t + i + 1) for i, now in enumerate(rates)]
            kinds = {name: np.int64 if isinstance(value, int) else self._dtype for name, value in steps[0].items()}
            arrays |= {_scalar_name(one, n): np.array([step[n] for step in steps], kind) for n, kind in kinds.items()}
        arrays["strength"] = np.divide(1.0, weights, out=np.zeros_like(weights), where=weights > 0).astype(self._dtype)
        arrays[PENALTY] = np.zeros(len(rates), self._dtype)
        if self._decay is not None:
            first = optimizer_state.averaged + 1
            arrays[STEP_WEIGHT] = np.array(
                [step_weight(self._decay, first + i) for i in range(len(rates))], self._dtype
            )
        return {name: self._vectors.new(array) for name, array in arrays.items()}

    def run(self, now: Mapping[str, DeviceArray]) -> None:
        """Run all stages of one step; ``now`` holds its scalars by name."""
        for binding, names in self._calls:
            binding.run(**{name: now[key] for name, key in names.items()})


def _scalar_name(one: SegmentUpdate, name: str) -> str:
    """Return the key, in the dict of a step's scalars, of the scalar ``name`` of the update of a segment."""
    return f"{name} {one.scalars_key}"


# The vectors of a step in the memory of a device.


ALIGNMENT = 64
"""Elements to whose multiples the parameters are aligned on a device: cuDNN's convolutions refuse other addresses."""


class DeviceVectors:
    """Parameters, gradients and optimizer state on a device.

    ``parameters`` and ``optimizer_state`` are the copies on the host.

    Attributes
    ----------
    layout : FlatParameters
        The layout of the parameters on the device: aligned, with zeros between them, which have no gradient.
    buffer, gradient : DeviceArray
        Like those of :class:`~.parameters.FlatParameters`, in this layout.
    next_statistics : DeviceArray
        The next running statistics.
    slots : dict of str to DeviceArray
        The optimizer's vectors.
    """

    def __init__(
        self,
        parameters: FlatParameters,
        layout: FlatParameters,
        optimizer_state: OptimizerState,
        memory: tuple[str, int],
    ) -> None:
        self.layout, self._parameters, self._optimizer_state, self._memory = layout, parameters, optimizer_state, memory
        self._start = len(layout.vector)
        self.buffer, self.gradient = self.new(layout.buffer), self.new(layout.gradient)
        self.next_statistics = self.new(layout.statistics)
        # A slot that spans all parameters has a plain identifier as its name, and their layout. A slot of a single
        # parameter has a slash in its name.
        self._vectors = {name for name in optimizer_state.slots if name.isidentifier()}
        self.slots = {name: self.new(self._laid_out(name)) for name in optimizer_state.slots}

    def new(self, array: np.ndarray) -> DeviceArray:
        """Return a copy of an array on the device."""
        return DeviceArray(array, self._memory)

    def parameter(self, name: str) -> DeviceArray:
        """Return the parameter or statistic ``name``."""
        return self._part(self.buffer, name)

    def gradient_of(self, name: str) -> DeviceArray:
        """Return the gradient of the parameter ``name``."""
        return self._part(self.gradient, name)

    def next_of(self, name: str) -> DeviceArray:
        """Return the next value of the running statistic ``name``."""
        return self._part(self.next_statistics, name, self._start)

    def _part(self, flat: DeviceArray, name: str, offset: int = 0) -> DeviceArray:
        return flat.part(self.layout.span(name).start - offset, self.layout.view(name).shape)

    def upload(self) -> None:
        """Copy the host's parameters and optimizer state to the device."""
        layout = self.layout
        for name, view in self._parameters.views().items():
            layout.view(name)[...] = view
        if layout.average is not None and self._parameters.average is not None:
            layout.average[...] = self._spread(self._parameters.average)
        self.buffer.write(layout.buffer)
        for name, slot in self.slots.items():
            slot.write(self._laid_out(name))

    def download(self) -> None:
        """Bring the host's copies up to date."""
        layout = self.layout
        layout.buffer[...] = self.buffer.read()
        for name, view in self._parameters.views().items():
            view[...] = layout.view(name)
        if layout.average is not None and self._parameters.average is not None:
            self._gather(layout.average, self._parameters.average)
        for name, slot in self.slots.items():
            if name in self._vectors:
                self._gather(slot.read(), self._optimizer_state.slots[name])
            else:
                self._optimizer_state.slots[name][...] = slot.read()

    def _laid_out(self, name: str) -> np.ndarray:
        """Return the optimizer slot ``name`` of the host, in the layout of the device."""
        slot = self._optimizer_state.slots[name]
        return self._spread(slot) if name in self._vectors else slot

    def _spread(self, vector: np.ndarray) -> np.ndarray:
        """Return a vector of the host in the layout of the device."""
        spread = np.zeros_like(self.layout.vector)
        for name in self.layout.names:
            spread[self.layout.span(name)] = vector[self._parameters.span(name)]
        return spread

    def _gather(self, spread: np.ndarray, vector: np.ndarray) -> None:
        """Copy from the layout of the device into a vector of the host."""
        for name in self.layout.names:
            vector[self._parameters.span(name)] = spread[self.layout.span(name)]

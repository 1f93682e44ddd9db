"""The training step on a device with memory of its own.

Parameters, gradients and optimizer state live there, and so do the data where they fit: they are uploaded once, and
each minibatch is gathered on the device. What changes from step to step (the order of the rows, their weights, the
learning rate) is uploaded once an epoch, and once an epoch the host reads the loss and what was trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from .. import _runtime
from .._data.batches import BatchBuffers, Batches
from .._gradient.engine import differentiate
from .._graph.builder import GraphBuilder
from .._graph.edits import initializers_to_inputs
from .._graph.protobuf import to_proto
from .._graph.trainable import TrainableModel
from .._optimizers.update_graph import clip_graph, update_graph
from .._runtime import Array, DeviceArray
from ..optimizers import Optimizer
from .dropout import UniformNumbers, expose_dropout
from .host_step import OptimizerState, prepare_slots
from .loss_graph import (
    LOSS,
    PENALTY,
    TARGET,
    WEIGHT,
    StepSettings,
    buffer_shape,
    ir_type,
    penalty_graph,
    target_layout,
    training_graph,
)
from .parameters import FlatParameters

RESIDENT_LIMIT = 2**31
"""Bytes of data that are uploaded as a whole; of larger data each minibatch is."""

DATA, ROWS = "onnxtrain/data/", "onnxtrain/rows"


@dataclass(frozen=True, eq=False)
class DevicePass:
    """One forward and backward pass over a fixed number of rows.

    ``buffers`` is where the host gathers the minibatch; where the device does, only its weights are used.
    """

    buffers: BatchBuffers
    gradient: _runtime.Binding
    uniform: UniformNumbers


class DeviceStep:
    """Run the minibatches of whole epochs on a device; parameters and attributes are those of ``TrainingStep``.

    ``parameters`` and ``state`` are the host's copies: they are uploaded when new data come, and brought up to date
    after each epoch.
    """

    def __init__(
        self,
        model: TrainableModel,
        settings: StepSettings,
        parameters: FlatParameters,
        frozen: Mapping[str, np.ndarray],
        state: OptimizerState,
        batch: int,
    ) -> None:
        assert settings.device.memory is not None
        assert isinstance(settings.optimizer, Optimizer)
        self.settings, self.parameters, self.state, self.batch = settings, parameters, state, batch
        self._model, self._frozen, self._memory = model, frozen, settings.device.memory
        self._update = update_graph(
            settings.optimizer, ir_type(parameters.vector.dtype), fused=_runtime.has_gradient_builder()
        )
        prepare_slots(state, self._update.slots, parameters.vector)
        self._buffer, self._gradient = self._new(parameters.buffer), self._new(parameters.gradient)
        self._moved = self._new(parameters.buffer[len(parameters.vector) :])
        self._slots = {name: self._new(slot) for name, slot in state.slots.items()}
        self._loaded: Batches | None = None
        self._data: dict[str, DeviceArray] = {}
        self._passes: dict[tuple[int, bool], DevicePass] = {}
        self._after = self._bindings_after_the_gradient()
        self._pass(batch, resident=True)

    def train(self, batches: Batches, next_rate: Callable[[], float]) -> Iterator[tuple[float, float]]:
        """Take a step on each minibatch of one pass; then yield the sum of weights and the loss of each step."""
        if self._loaded is not batches:
            self._load(batches)
        minibatches = batches.minibatches()
        passes = [self._pass(len(rows), resident=bool(self._data)) for rows in minibatches]
        weights = np.array([batches.weight_of(rows) for rows in minibatches])
        scalars = self._scalars(weights, [next_rate() for _ in minibatches])
        order, row_weights = self._order(batches, minibatches, passes)
        start = 0
        try:
            for i, (one, rows) in enumerate(zip(passes, minibatches, strict=True)):
                size = len(one.buffers.sample_weight)
                feeds: dict[str, Array] = {WEIGHT: row_weights.part(start, (size,))}
                if self._data:
                    feeds |= {**self._data, ROWS: order.part(start, (size,))}
                else:
                    batches.gather(rows, one.buffers)
                self._run(one, feeds, {name: array.part(i, ()) for name, array in scalars.items()})
                start += size
        finally:
            self.synchronize()
        losses = scalars[LOSS].read().astype(np.float64) + scalars[PENALTY].read()
        yield from zip(weights.tolist(), losses.tolist(), strict=True)

    def synchronize(self) -> None:
        """Bring the host's copies of parameters and optimizer state up to date."""
        self.parameters.buffer[...] = self._buffer.read()
        for name, slot in self._slots.items():
            self.state.slots[name][...] = slot.read()

    def forget_state(self) -> None:
        """Put the optimizer back to where it was before its first step."""
        self.state.t = 0
        for name, initial in self._update.slots.items():
            self.state.slots[name].fill(initial)
        self._loaded = None

    def _run(self, one: DevicePass, feeds: Mapping[str, Array], now: Mapping[str, DeviceArray]) -> None:
        if one.uniform.buffers:
            one.uniform.draw(self.state.draws)
            self.state.draws += 1
        one.gradient.run(**feeds, **{LOSS: now[LOSS]})
        for binding, names in self._after:
            binding.run(**{name: now[name] for name in names})
        self.state.t += 1

    def _load(self, batches: Batches) -> None:
        """Upload what is trained, and the data where they fit."""
        self._buffer.write(self.parameters.buffer)
        for name, slot in self._slots.items():
            slot.write(self.state.slots[name])
        fits = batches.nbytes <= RESIDENT_LIMIT
        self._data = {f"{DATA}{name}": self._new(array) for name, array in batches.arrays().items()} if fits else {}
        self._loaded = batches

    def _order(
        self, batches: Batches, minibatches: Sequence[np.ndarray], passes: Sequence[DevicePass]
    ) -> tuple[DeviceArray, DeviceArray]:
        """Return the rows of all minibatches one after the other, filled up as ``Batches.into`` does, and weights."""
        order, weights = [], []
        for rows, one in zip(minibatches, passes, strict=True):
            missing = len(one.buffers.sample_weight) - len(rows)
            order.append(np.r_[rows, np.full(missing, rows[0])])
            weights.append(np.r_[batches.weights_of(rows), np.zeros(missing)])
        dtype = self.parameters.vector.dtype
        return self._new(np.concatenate(order).astype(np.int64)), self._new(np.concatenate(weights).astype(dtype))

    def _scalars(self, weights: np.ndarray, rates: Sequence[float]) -> dict[str, DeviceArray]:
        """Return the scalars that each step reads, and those that it writes, by name."""
        dtype = self.parameters.vector.dtype
        steps = [self._update.coefficients(rate, self.state.t + i + 1) for i, rate in enumerate(rates)]
        kinds = {name: np.int64 if isinstance(value, int) else dtype for name, value in steps[0].items()}
        arrays = {name: np.array([step[name] for step in steps], kind) for name, kind in kinds.items()}
        arrays["strength"] = np.divide(1.0, weights, out=np.zeros_like(weights), where=weights > 0).astype(dtype)
        arrays |= {name: np.zeros(len(rates), dtype) for name in (LOSS, PENALTY)}
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
        parameters, settings, dtype = self.parameters, self.settings, self.parameters.vector.dtype
        graph = training_graph(self._model, settings, self._frozen, batch)
        uniform = UniformNumbers(expose_dropout(graph), settings.seed)
        columns = {spec.name: np.zeros(buffer_shape(spec.shape, batch), spec.dtype) for spec in self._model.inputs}
        columns[TARGET] = np.zeros(*target_layout(settings.task, settings.n_outputs, batch, dtype))
        gradient = differentiate(graph, parameters.names, LOSS, settings.engine)
        self.engine, model = gradient.engine, gradient.model
        initializers_to_inputs(model.graph, list(parameters.views()))
        if resident:
            gather_rows(model.graph, list(columns), batch)
        inputs: dict[str, Array] = {name: self._part(self._buffer, name) for name in parameters.views()}
        inputs |= {**uniform.buffers, **({} if resident else columns)}
        outputs: dict[str, Array] = {f"{name}_grad": self._part(self._gradient, name) for name in parameters.names}
        outputs |= {
            self._model.running_statistics[n]: self._part(self._moved, n, len(parameters.vector))
            for n in parameters.running_statistics
        }
        binding = _runtime.Binding(self._session(model), inputs, outputs)
        return DevicePass(BatchBuffers(columns, np.ones(batch, dtype)), binding, uniform)

    def _bindings_after_the_gradient(self) -> list[tuple[_runtime.Binding, list[str]]]:
        """Return what runs after the gradient, in this order, each with the scalars that it takes."""
        bindings = [self._copying()] if self.parameters.running_statistics else []
        if self.settings.alpha and self.parameters.penalized.stop:
            bindings.append(self._penalty())
        if self.settings.max_grad_norm is not None:
            bindings.append(self._clipping())
        return [*bindings, self._updating()]

    def _copying(self) -> tuple[_runtime.Binding, list[str]]:
        """The next running statistics take the place of the last ones."""
        start, kind = len(self.parameters.vector), ir_type(self._moved.dtype)
        size = len(self.parameters.buffer) - start
        value = ir.val("moved", kind, (size,))
        op = GraphBuilder(ir.Graph([value], [], nodes=[], opset_imports={"": 18}, name="copy"), prefix="copy")
        copy = op.Identity(value)
        copy.name, copy.type, copy.shape = "statistics", value.type, value.shape
        op.graph.outputs.append(copy)
        outputs: dict[str, Array] = {"statistics": self._buffer.part(start, (size,))}
        session = self._session(ir.Model(op.graph, ir_version=8))
        return _runtime.Binding(session, {"moved": self._moved}, outputs), []

    def _penalty(self) -> tuple[_runtime.Binding, list[str]]:
        size, dtype = self.parameters.penalized.stop, self.parameters.vector.dtype
        model = penalty_graph(size, dtype, self.settings)
        gradients = self._gradient.part(0, (size,))
        inputs = {"weights": self._buffer.part(0, (size,)), "gradients": gradients}
        return _runtime.Binding(self._session(model), inputs, {"new_gradients": gradients}), ["strength", PENALTY]

    def _clipping(self) -> tuple[_runtime.Binding, list[str]]:
        dtype = self.parameters.vector.dtype
        limit, norm = self._new(np.array(self.settings.max_grad_norm, dtype)), self._new(np.zeros((), dtype))
        inputs = {"gradients": self._gradient, "max_norm": limit}
        outputs = {"new_gradients": self._gradient, "norm": norm}
        return _runtime.Binding(self._session(clip_graph(ir_type(dtype))), inputs, outputs), []

    def _updating(self) -> tuple[_runtime.Binding, list[str]]:
        vectors = {"parameters": self._buffer.part(0, self.parameters.vector.shape), **self._slots}
        outputs: dict[str, Array] = {f"new_{name}": vector for name, vector in vectors.items()}
        binding = _runtime.Binding(self._session(self._update.model), {**vectors, "gradients": self._gradient}, outputs)
        return binding, list(self._update.coefficients(0.001, 1))

    def _new(self, array: np.ndarray) -> DeviceArray:
        return DeviceArray(array, self._memory)

    def _part(self, flat: DeviceArray, name: str, offset: int = 0) -> DeviceArray:
        span, shape = self.parameters.span(name), self.parameters.view(name).shape
        return flat.part(span.start - offset, shape)

    def _session(self, model: ir.Model) -> Any:
        proto, settings = to_proto(model), self.settings
        return _runtime.create_session(proto.SerializeToString(), settings.device, options=settings.session_options)


def gather_rows(graph: ir.Graph, names: Sequence[str], batch: int) -> None:
    """Let ``graph`` gather the minibatch itself: each of these inputs becomes rows of all data."""
    op = GraphBuilder(graph, prefix="onnxtrain/gather")
    rows = ir.val(ROWS, ir.DataType.INT64, (batch,))
    graph.inputs.append(rows)
    for value in [v for v in graph.inputs if v.name in names]:
        shape = ["n_samples", *list(value.shape or ())[1:]]
        data = ir.Value(name=f"{DATA}{value.name}", type=value.type, shape=ir.Shape(shape))
        graph.inputs[graph.inputs.index(value)] = data
        gathered = op.Gather(data, rows, axis=0)
        gathered.type, gathered.shape = value.type, value.shape
        ir.convenience.replace_all_uses_with(value, gathered)
    graph.sort()

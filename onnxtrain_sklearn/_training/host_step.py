"""One training step: a gradient session, then an update session, over the same flat vectors.

The gradient graph sees one fixed batch size and reads its minibatch from static buffers and the parameters from views
into their vector; it writes the gradients into views of theirs. The update graph then rewrites the parameters in
place. It is a second session on purpose: an update inside the gradient graph would overwrite weights that the layer
below has not used yet. Everything is bound once, so a step neither allocates nor copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from .. import _runtime
from .._data.batches import BatchBuffers, Batches
from .._gradient.engine import differentiate
from .._graph.edits import initializers_to_inputs
from .._graph.protobuf import to_proto
from .._graph.trainable import TrainableModel
from .._optimizers.update_graph import PIECE, clip_graph, update_graph
from ..optimizers import Optimizer
from .dropout import UniformNumbers, expose_dropout
from .loss_graph import (
    LOSS,
    PARALLEL_WORK,
    PENALTY,
    TARGET,
    WEIGHT,
    StepSettings,
    as_float32,
    buffer_shape,
    ir_type,
    penalty_graph,
    target_layout,
    training_graph,
    work,
)
from .parameters import FlatParameters, owned


@dataclass
class OptimizerState:
    """Steps taken, the optimizer's vectors by slot name, and how many times dropout masks were drawn."""

    t: int = 0
    slots: dict[str, np.ndarray] = field(default_factory=dict)
    draws: int = 0

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self.slots = {name: owned(slot) for name, slot in self.slots.items()}


@dataclass(frozen=True, eq=False)
class Pass:
    """One forward and backward pass over a fixed number of rows, and the arrays that it reads and writes.

    ``moved`` pairs each running statistic with the array that the pass writes its next value to.
    """

    buffers: BatchBuffers
    gradient: _runtime.Binding
    loss: np.ndarray
    uniform: UniformNumbers
    moved: Sequence[tuple[np.ndarray, np.ndarray]]


class TrainingStep:
    """Run minibatches.

    Parameters
    ----------
    model : TrainableModel
    settings : StepSettings
    parameters : FlatParameters
        Updated in place.
    frozen : mapping of str to ndarray
        Values of the parameters that are not trained.
    state : OptimizerState
        Updated in place; slots that the optimizer needs and that are not there are created.
    batch : int
        Rows of a full minibatch.

    Attributes
    ----------
    engine : str
        Name of the engine that differentiated the graph.
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
        self.settings, self.parameters, self.state, self.batch = settings, parameters, state, batch
        self._model, self._frozen = model, frozen
        self._passes: dict[int, Pass] = {}
        self.buffers(batch)
        self._penalty = self._penalty_binding() if settings.alpha and parameters.penalized.stop else None
        self._clip = self._clip_binding() if settings.max_grad_norm is not None else None
        self._updates: list[_runtime.Binding] = []
        self._initial_slots: Mapping[str, float] = {}
        if isinstance(settings.optimizer, Optimizer):
            self._updates = self._update_bindings(settings.optimizer)

    def buffers(self, rows: int) -> BatchBuffers:
        """Return the buffers that the next step reads, for a minibatch of ``rows`` rows.

        Their columns are the graph's inputs and the target (:data:`TARGET`). They have room for a full minibatch,
        whatever ``rows`` is; where rows meet inside the batch none may be filled up, and they are of this very size.
        """
        size = rows if self.parameters.running_statistics else self.batch
        if size not in self._passes:
            self._passes = {n: known for n, known in self._passes.items() if n == self.batch}  # and one remainder
            self._passes[size] = self._pass(size)
        self._current = self._passes[size]
        return self._current.buffers

    def train(self, batches: Batches, next_rate: Callable[[], float]) -> Iterator[tuple[float, float]]:
        """Take a step on each minibatch of one pass; yield the sum of its weights and its loss before the step."""
        for weight in batches.fill(self.buffers):
            yield weight, self.run(next_rate(), weight)

    def run(self, learning_rate: float, weight: float) -> float:
        """Take one step on the minibatch in the buffers and return its loss before the step.

        ``weight`` is the sum of the minibatch's weights.
        """
        loss = self.gradients(weight)
        if self._clip is not None:
            self._clip.run()
        self.state.t += 1
        for name, value in self._coefficients(learning_rate, self.state.t).items():
            self._scalars[name][()] = value
        for update in self._updates:
            update.run()
        return loss

    def gradients(self, weight: float) -> float:
        """Fill the vector of gradients from the minibatch in the buffers; return the loss, the penalty included.

        The penalty is divided by ``weight``, the sum of the weights of the rows that the gradients stand for.
        """
        current = self._current
        if current.uniform.buffers:
            current.uniform.draw(self.state.draws)
            self.state.draws += 1
        current.gradient.run()
        for statistic, moved in current.moved:
            statistic[...] = moved
        if self._penalty is None:
            return float(current.loss.item())
        self._strength[()] = 1.0 / weight if weight > 0 else 0.0
        self._penalty.run()
        return float(current.loss.item() + self._penalty_value.item())

    def synchronize(self) -> None:
        """Bring the host's copy of what is trained up to date: here it is the one that is trained."""

    def forget_state(self) -> None:
        """Put the optimizer back to where it was before its first step."""
        self.state.t = 0
        for name, initial in self._initial_slots.items():
            self.state.slots[name].fill(initial)

    def _pass(self, batch: int) -> Pass:
        """Return the forward and backward pass over ``batch`` rows, bound to buffers of its own."""
        parameters, settings, dtype = self.parameters, self.settings, self.parameters.vector.dtype
        graph = training_graph(self._model, settings, self._frozen, batch)
        uniform = UniformNumbers(expose_dropout(graph), settings.seed)
        columns = {spec.name: np.zeros(buffer_shape(spec.shape, batch), spec.dtype) for spec in self._model.inputs}
        columns[TARGET] = np.zeros(*target_layout(settings.task, settings.n_outputs, batch, dtype))
        buffers, loss = BatchBuffers(columns, np.ones(batch, dtype)), np.zeros((), dtype)
        moved = {name: np.zeros_like(parameters.view(name)) for name in parameters.running_statistics}
        threads = _runtime.available_threads() if work(graph.graph) >= PARALLEL_WORK else 1
        gradient = differentiate(graph, parameters.names, LOSS, settings.engine)
        self.engine, model = gradient.engine, gradient.model
        initializers_to_inputs(model.graph, list(parameters.views()))
        known = {**columns, **uniform.buffers, **parameters.views(), WEIGHT: buffers.sample_weight}
        outputs = {f"{name}_grad": parameters.gradient_view(name) for name in parameters.names} | {LOSS: loss}
        outputs |= {self._model.running_statistics[name]: array for name, array in moved.items()}
        binding = _runtime.Binding(
            self._session(model, threads), {v.name or "": known[v.name or ""] for v in model.graph.inputs}, outputs
        )
        return Pass(buffers, binding, loss, uniform, [(parameters.view(name), moved[name]) for name in moved])

    def _penalty_binding(self) -> _runtime.Binding:
        """The gradient of the penalty is added in place to the part of the gradients that it applies to."""
        part, dtype = self.parameters.penalized, self.parameters.vector.dtype
        self._strength, self._penalty_value = np.zeros((), dtype), np.zeros((), dtype)
        model = penalty_graph(part.stop, dtype, self.settings)
        gradients = self.parameters.gradient[part]
        inputs = {"weights": self.parameters.vector[part], "gradients": gradients, "strength": self._strength}
        outputs = {PENALTY: self._penalty_value, "new_gradients": gradients}
        return _runtime.Binding(self._session(model), inputs, outputs)

    def _clip_binding(self) -> _runtime.Binding:
        gradients = self.parameters.gradient
        limit = np.array(self.settings.max_grad_norm, gradients.dtype)
        inputs = {"gradients": gradients, "max_norm": limit}
        outputs = {"new_gradients": gradients, "norm": np.zeros((), gradients.dtype)}
        return _runtime.Binding(self._session(clip_graph(ir_type(gradients.dtype))), inputs, outputs)

    def _update_bindings(self, optimizer: Optimizer) -> list[_runtime.Binding]:
        vector = self.parameters.vector
        graph = update_graph(optimizer, ir_type(vector.dtype), fused=_runtime.has_gradient_builder())
        self._coefficients = graph.coefficients
        self._scalars = {
            name: np.zeros((), np.int64 if isinstance(value, int) else vector.dtype)
            for name, value in graph.coefficients(0.001, 1).items()
        }
        self._initial_slots = graph.slots
        prepare_slots(self.state, graph.slots, vector)
        session = self._session(graph.model)
        size = PIECE if graph.elementwise and len(vector) > 2 * PIECE else len(vector)
        return [self._update_binding(session, slice(i, i + size)) for i in range(0, len(vector), size)]

    def _update_binding(self, session: _runtime.Session, piece: slice) -> _runtime.Binding:
        vectors = {"parameters": self.parameters.vector[piece]}
        vectors |= {name: slot[piece] for name, slot in self.state.slots.items()}
        inputs = vectors | {"gradients": self.parameters.gradient[piece]} | self._scalars
        return _runtime.Binding(session, inputs, {f"new_{name}": vector for name, vector in vectors.items()})

    def _session(self, model: ir.Model, threads: int = 1) -> Any:
        """Small graphs get one thread: a second pool that spins would fight with the gradient session's."""
        settings = self.settings
        return _runtime.create_session(
            to_proto(model).SerializeToString(), settings.device, threads=threads, options=settings.session_options
        )


def prepare_slots(state: OptimizerState, slots: Mapping[str, float], vector: np.ndarray) -> None:
    """Give ``state`` these slots at their initial values, unless it has them already."""
    if {name: v.shape for name, v in state.slots.items()} != dict.fromkeys(slots, vector.shape):
        fresh = {name: np.full_like(vector, initial) for name, initial in slots.items()}
        vars(state).update(t=0, slots=fresh)  # at once: an interrupt finds one or the other


def in_trainable_type(model: TrainableModel, settings: StepSettings, names: Sequence[str]) -> TrainableModel:
    """Return ``model``, or its float32 form where the engine's runtime has no float64 kernels for its gradients."""
    if model.dtype == np.float32:
        return model
    weights = model.weights()
    trained = FlatParameters(
        {n: weights[n] for n in names}, model.dtype, {n: weights[n] for n in model.running_statistics}
    )
    try:
        TrainingStep(model, settings, trained, {}, OptimizerState(), batch=2)
    except Exception as error:
        if not _runtime.not_implemented(error):
            raise
        return as_float32(model)
    return model

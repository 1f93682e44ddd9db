"""One training step: a gradient session, then an update session, over the same flat vectors.

The gradient graph sees one fixed batch size and reads its minibatch from static buffers and the parameters from views
into their vector; it writes the gradients into views of theirs. The update graph then rewrites the parameters in
place. It is a second session on purpose: an update inside the gradient graph would overwrite weights that the layer
below has not used yet. Everything is bound once, so a step neither allocates nor copies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common

from . import _runtime
from ._data import Room
from ._dropout import UniformNumbers, expose_dropout
from ._gradient.engine import differentiate
from ._gradient.nodes import Dims, attribute, dims, operand
from ._graph.builder import GraphBuilder
from ._graph.model import TrainableModel, in_dtype, initializers_to_inputs, swap_initializers, to_proto, with_batch
from ._parameters import FlatParameters
from .exceptions import ModelError
from .losses import Link, Loss, Task, append_loss, append_penalty
from .optimizers import PIECE, BaseOptimizer, Optimizer, clip_graph, update_graph

PARALLEL_WORK = 4_000_000
"""Multiply-adds of one forward pass from which on more than one thread pays; below, a second core would only spin."""

TARGET, WEIGHT, LOSS = "onnxtrain/y", "onnxtrain/sample_weight", "onnxtrain/loss"


@dataclass(frozen=True)
class StepSettings:
    """What a training step is made of, beside the model and its parameters."""

    loss: Loss
    task: Task
    link: Link
    n_outputs: int
    optimizer: BaseOptimizer
    alpha: float
    l1_ratio: float
    max_grad_norm: float | None
    engine: str
    device: _runtime.Device
    session_options: Mapping[str, Any] | None
    seed: int


@dataclass
class OptimizerState:
    """Steps taken, the optimizer's vectors by slot name, and how many times dropout masks were drawn."""

    t: int = 0
    slots: dict[str, np.ndarray] = field(default_factory=dict)
    draws: int = 0


@dataclass(frozen=True, eq=False)
class Pass:
    """One forward and backward pass over a fixed number of rows, and the arrays that it reads and writes.

    ``moved`` pairs each running statistic with the array that the pass writes its next value to.
    """

    room: Room
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
        self.room(batch)
        self._penalty = self._penalty_binding() if settings.alpha and parameters.penalized.stop else None
        self._clip = self._clip_binding() if settings.max_grad_norm is not None else None
        self._updates: list[_runtime.Binding] = []
        self._initial_slots: Mapping[str, float] = {}
        if isinstance(settings.optimizer, Optimizer):
            self._updates = self._update_bindings(settings.optimizer)

    def room(self, rows: int) -> Room:
        """Return the buffers that the next step reads, for a minibatch of ``rows`` rows.

        Their columns are the graph's inputs and the target (:data:`TARGET`). They have room for a full minibatch,
        whatever ``rows`` is; where rows meet inside the batch none may be filled up, and they are of this very size.
        """
        size = rows if self.parameters.moving else self.batch
        if size not in self._passes:
            self._passes = {n: known for n, known in self._passes.items() if n == self.batch}  # and one remainder
            self._passes[size] = self._pass(size)
        self._current = self._passes[size]
        return self._current.room

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
            return current.loss.item()
        self._strength[()] = 1.0 / weight if weight > 0 else 0.0
        self._penalty.run()
        return current.loss.item() + self._penalty_value.item()

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
        columns = {spec.name: np.zeros(_fixed(spec.shape, batch), spec.dtype) for spec in self._model.inputs}
        columns[TARGET] = np.zeros(*target_layout(settings.task, settings.n_outputs, batch, dtype))
        room, loss = Room(columns, np.ones(batch, dtype)), np.zeros((), dtype)
        moved = {name: np.zeros_like(parameters.view(name)) for name in parameters.moving}
        threads = _runtime.available_threads() if _work(graph.graph) >= PARALLEL_WORK else 1
        gradient = differentiate(graph, parameters.names, LOSS, settings.engine)
        self.engine, model = gradient.engine, gradient.model
        initializers_to_inputs(model.graph, list(parameters.views()))
        known = {**columns, **uniform.buffers, **parameters.views(), WEIGHT: room.sample_weight}
        outputs = {f"{name}_grad": parameters.gradient_view(name) for name in parameters.names} | {LOSS: loss}
        outputs |= {self._model.moving[name]: array for name, array in moved.items()}
        binding = _runtime.Binding(
            self._session(model, threads), {v.name or "": known[v.name or ""] for v in model.graph.inputs}, outputs
        )
        return Pass(room, binding, loss, uniform, [(parameters.view(name), moved[name]) for name in moved])

    def _penalty_binding(self) -> _runtime.Binding:
        """The gradient of the penalty is added in place to the part of the gradients that it applies to."""
        part, dtype = self.parameters.penalized, self.parameters.vector.dtype
        self._strength, self._penalty_value = np.zeros((), dtype), np.zeros((), dtype)
        model = penalty_graph(part.stop, dtype, self.settings)
        gradients = self.parameters.gradient[part]
        inputs = {"weights": self.parameters.vector[part], "gradients": gradients, "strength": self._strength}
        outputs = {"penalty": self._penalty_value, "new_gradients": gradients}
        return _runtime.Binding(self._session(model), inputs, outputs)

    def _clip_binding(self) -> _runtime.Binding:
        gradients = self.parameters.gradient
        limit = np.array(self.settings.max_grad_norm, gradients.dtype)
        inputs = {"gradients": gradients, "max_norm": limit}
        outputs = {"new_gradients": gradients, "norm": np.zeros((), gradients.dtype)}
        return _runtime.Binding(self._session(clip_graph(_ir_type(gradients.dtype))), inputs, outputs)

    def _update_bindings(self, optimizer: Optimizer) -> list[_runtime.Binding]:
        vector = self.parameters.vector
        graph = update_graph(optimizer, _ir_type(vector.dtype), fused=_runtime.has_gradient_builder())
        self._coefficients = graph.coefficients
        self._scalars = {
            name: np.zeros((), np.int64 if isinstance(value, int) else vector.dtype)
            for name, value in graph.coefficients(0.001, 1).items()
        }
        self._initial_slots = graph.slots
        self._prepare_slots()
        session = self._session(graph.model)
        size = PIECE if graph.elementwise and len(vector) > 2 * PIECE else len(vector)
        return [self._update_binding(session, slice(i, i + size)) for i in range(0, len(vector), size)]

    def _prepare_slots(self) -> None:
        vector, known, slots = self.parameters.vector, self.state.slots, self._initial_slots
        if {name: v.shape for name, v in known.items()} != dict.fromkeys(slots, vector.shape):
            self.state.t = 0
            self.state.slots = {name: np.full_like(vector, initial) for name, initial in slots.items()}

    def _update_binding(self, session: Any, piece: slice) -> _runtime.Binding:
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


def training_graph(
    model: TrainableModel, settings: StepSettings, frozen: Mapping[str, np.ndarray], batch: int
) -> ir.Model:
    """Return the forward graph for ``batch`` rows with target and weights as inputs.

    Its outputs are the loss and the next values of running statistics.
    """
    graph_model = with_batch(model.model, batch)
    graph = graph_model.graph
    swap_initializers(graph, frozen)
    scores = next(v for v in graph.outputs if v.name == model.scores)
    op = GraphBuilder(graph, dtype=_ir_type(model.dtype), prefix="onnxtrain")
    shape, y_dtype = target_layout(settings.task, settings.n_outputs, batch, model.dtype)
    y = ir.val(TARGET, ir.DataType.from_numpy(np.dtype(y_dtype)), shape)
    sample_weight = ir.val(WEIGHT, _ir_type(model.dtype), (batch,))
    graph.inputs.extend([y, sample_weight])
    columns = _as_columns(op, scores, batch, settings.n_outputs)
    dense = _one_hot(op, y, settings.n_outputs, _ir_type(model.dtype)) if settings.task == "multiclass" else y
    loss = append_loss(op, settings.loss, scores=columns, y=dense, sample_weight=sample_weight, link=settings.link)
    loss.name, loss.dtype, loss.shape = LOSS, _ir_type(model.dtype), ir.Shape([])
    moved = [v for node in graph for v in node.outputs if v.name in set(model.moving.values())]
    graph.outputs.clear()
    graph.outputs.extend([loss, *moved])
    common.RemoveUnusedNodesPass()(graph_model)
    return graph_model


def target_layout(
    task: Task, n_outputs: int, rows: int, dtype: np.dtype[Any]
) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and type of the target of ``rows`` rows: a class index, or a number for each score."""
    if task == "multiclass":
        return (rows,), np.dtype(np.int64)
    return (rows, n_outputs), dtype


def penalty_graph(size: int, dtype: np.dtype[Any], settings: StepSettings) -> ir.Model:
    """Return the graph that adds the gradient of the penalty on ``weights`` (size,) to ``gradients``, safe in place."""
    kind = _ir_type(dtype)
    weights, strength = ir.val("weights", kind, (size,)), ir.val("strength", kind, ())
    graph = ir.Graph([weights, strength], [], nodes=[], opset_imports={"": 18}, name="penalty")
    op = GraphBuilder(graph, dtype=kind, prefix="penalty")
    value = op.Mul(append_penalty(op, weights, alpha=settings.alpha, l1_ratio=settings.l1_ratio), strength)
    value.name, value.dtype, value.shape = "penalty", kind, ir.Shape([])
    graph.outputs.append(value)
    model = differentiate(ir.Model(graph, ir_version=8), ["weights"], "penalty", settings.engine).model
    slope = next(v for v in model.graph.outputs if v.name == "weights_grad")
    gradients = ir.val("gradients", kind, (size,))
    model.graph.inputs.append(gradients)
    total = GraphBuilder(model.graph, dtype=kind, prefix="penalty").Add(gradients, slope)
    total.name, total.dtype, total.shape = "new_gradients", kind, ir.Shape([size])
    model.graph.outputs.remove(slope)
    model.graph.outputs.append(total)
    return model


def in_trainable_type(model: TrainableModel, settings: StepSettings, names: Sequence[str]) -> TrainableModel:
    """Return ``model``, or its float32 form where the engine's runtime has no float64 kernels for its gradients."""
    if model.dtype == np.float32:
        return model
    weights = model.weights()
    trained = FlatParameters({n: weights[n] for n in names}, model.dtype, {n: weights[n] for n in model.moving})
    try:
        TrainingStep(model, settings, trained, {}, OptimizerState(), batch=2)
    except Exception as error:
        if not _runtime.not_implemented(error):
            raise
        return as_float32(model)
    return model


def as_float32(model: TrainableModel) -> TrainableModel:
    """Return the float32 form of a float64 model."""
    double, single = np.dtype(np.float64), np.dtype(np.float32)
    inputs = tuple(replace(spec, dtype=single) if spec.dtype == double else spec for spec in model.inputs)
    return replace(model, model=in_dtype(model.model, ir.DataType.FLOAT), inputs=inputs, dtype=single)


def _as_columns(op: GraphBuilder, scores: ir.Value, batch: int, n_outputs: int) -> ir.Value:
    shape = op.shape(scores)
    if shape is not None and isinstance(shape[0] if shape else None, int) and shape[0] != batch:
        raise ModelError(
            f"The graph's output {scores.name!r} has {shape[0]} rows for {batch} input rows; each input row must give "
            f"one output row. Export the graph with a dynamic batch axis."
        )
    if shape == (batch, n_outputs):
        return scores
    return op.Reshape(scores, [batch, n_outputs])


def _one_hot(op: GraphBuilder, y: ir.Value, n_classes: int, dtype: ir.DataType) -> ir.Value:
    classes = np.arange(n_classes, dtype=np.int64)
    return op.Cast(op.Equal(op.Unsqueeze(y, axes=[1]), classes), to=dtype)


def _work(graph: ir.Graph) -> float:
    """Return the multiply-adds of matrix products and convolutions in one pass, infinite where shapes are unknown."""
    total = 0.0
    for node in graph:
        if node.op_type in ("Gemm", "MatMul", "Conv") and not node.domain:
            total += _product(dims(node.outputs[0])) * _contracted(node)
    return total


def _contracted(node: ir.Node) -> float:
    """Return the multiply-adds for one number of the output."""
    sizes = dims(operand(node, 1 if node.op_type == "Conv" else 0)) or [None]
    if node.op_type == "Conv":
        return _product(sizes[1:])
    return _product(sizes[:1] if node.op_type == "Gemm" and attribute(node, "transA", 0) else sizes[-1:])


def _product(sizes: Dims | None) -> float:
    """Return the product of the sizes, infinite where one is not known."""
    return math.prod(float(d) if isinstance(d, int) else math.inf for d in ([None] if sizes is None else sizes))


def _fixed(shape: Sequence[int | None], batch: int) -> tuple[int, ...]:
    if None in shape[1:]:
        raise ModelError(f"Every axis of a graph input but the first must be fixed to train, got shape {tuple(shape)}.")
    return (batch, *(int(d) for d in shape[1:] if d is not None))


def _ir_type(dtype: np.dtype[Any]) -> ir.DataType:
    return ir.DataType.from_numpy(np.dtype(dtype))

"""A whole training step as one graph of plain ONNX operators.

``step_graph`` emits it in the order of training: cut the parameters out of their vector, run the pass (``step_pass``),
join the gradients, then penalty, clipping, update and average (``step_update``), and the inputs for targets and weights
(``target_inputs``). The parameters are one vector, and so is each vector of the optimizer's state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from .._ir.edits import append_output, replace_inputs
from .._training.loss_graph import LOSS, WEIGHT, ir_type
from .._training.parameters import state_slots
from .._training.randomness import FACTOR
from ..exceptions import ModelError
from ..graph import GraphBuilder
from ..optimizers import Optimizer
from .source import (
    AVERAGE,
    PARAMETERS,
    STATISTICS,
    STEP,
    ExportSource,
    StateTensor,
    cut_members,
    joined_vector,
    members_of,
    reserve_names,
)
from .step_pass import step_pass
from .step_update import StepScalars, decays, emit_average, emit_clipping, emit_penalty, emit_update
from .target_inputs import TargetInput, emit_row_inputs


@dataclass(frozen=True, eq=False)
class StepGraph:
    """The graph of a step and the names of its inputs and outputs.

    Attributes
    ----------
    model : onnx_ir.Model
    data : tuple of str
        The inputs of the given graph.
    targets : tuple of TargetInput
        One, or one for each output that has a loss.
    weight, rate, loss : str
    random : tuple of str
        Inputs for uniform random numbers of [0, 1).
    state : tuple of StateTensor
    batch : int
        Rows of a minibatch.
    factors : mapping of str to str
        Inputs for the factors that schedules give, by :data:`DECAY_FACTOR` and :data:`DROPOUT_FACTOR`.
    """

    model: ir.Model
    data: tuple[str, ...]
    targets: tuple[TargetInput, ...]
    weight: str
    rate: str
    loss: str
    random: tuple[str, ...]
    state: tuple[StateTensor, ...]
    batch: int
    factors: Mapping[str, str] = field(default_factory=dict)

    @property
    def by_row(self) -> tuple[str, ...]:
        """The inputs that have a value for each row, but its weight."""
        return *self.data, *(name for one in self.targets for name in (one.name, one.factor) if name is not None)


DECAY_FACTOR, DROPOUT_FACTOR = "weight_decay_factor", "dropout_factor"
"""Roles of the inputs that the weight decay and the ratios of dropout are multiplied by."""


def step_graph(source: ExportSource) -> StepGraph:
    """Return the graph of a training step."""
    emission = _Emission(source)
    reserve_names(emission.op, source, [one.name for one in state_tensors(source)])
    return emission.run()


class _Emission:
    """The emission of one step graph: ``run`` reads from top to bottom, in the order of the step."""

    def __init__(self, source: ExportSource) -> None:
        parts = source.parts
        self._source, self._parts, self._settings, self._layout = source, parts, parts.settings, parts.parameters
        found = step_pass(source)
        self._model, self._random, self._drops = found.model, found.random, found.drops
        self._graph, self._kind = self._model.graph, ir_type(parts.parameters.vector.dtype)
        self._scalar = source.scalar_type
        self.op = GraphBuilder(self._graph, dtype=self._kind, prefix="step")
        self._outputs = {value.name or "": value for value in self._graph.outputs}
        self._occurs = {name: self._outputs[output] for name, output in found.occurs.items()}
        self._graph.outputs.clear()
        self._state: list[StateTensor] = []

    def run(self) -> StepGraph:
        """Emit everything after the gradient; return the graph."""
        op, layout = self.op, self._layout
        old = self._old_state()
        replace_inputs(self._graph, self._given_parameters(old))
        gradients = joined_vector(op, [self._outputs[f"{name}_grad"] for name in layout.names])
        loss, gradients = self._with_penalty(old[PARAMETERS], gradients)
        if self._settings.max_grad_norm is not None:
            gradients = emit_clipping(op, gradients, float(self._settings.max_grad_norm), self._kind, self._scalar)
        rate = self._input("learning_rate", self._kind, ())
        exact = GraphBuilder(self._graph, dtype=self._scalar, prefix="scalar")
        new_step = op.Add(old[STEP], 1)
        t = exact.Cast(new_step, to=self._scalar)
        factors = self._factors()
        decay = next((exact.Cast(v, to=self._scalar) for k, v in factors.items() if k == DECAY_FACTOR), None)
        scalars = StepScalars(exact.Cast(rate, to=self._scalar), t, self._scalar, decay)
        vectors = {one.name: old[one.name] for one in self._state if one.role in (PARAMETERS, "optimizer")}
        new = emit_update(op, self._settings, layout, vectors, gradients, scalars, self._occurs) | {STEP: new_step}
        if STATISTICS in old:
            moved = self._parts.model.running_statistics
            new[STATISTICS] = joined_vector(op, [self._outputs[moved[name]] for name in layout.running_statistics])
        if AVERAGE in old:
            new[AVERAGE] = self._average(old[AVERAGE], new[PARAMETERS], t)
        targets, weight = emit_row_inputs(op, self._source)
        graph = self._finished(loss, old, new, targets, (weight, rate.name or ""))
        return replace(graph, factors={role: value.name or "" for role, value in factors.items()})

    def _factors(self) -> dict[str, ir.Value]:
        """Return the inputs for the factors that schedules give, by role."""
        found = {}
        if self._settings.scheduled.decay and decays(self._settings, self._layout):
            found[DECAY_FACTOR] = self._input(DECAY_FACTOR, self._kind, ())
        if self._drops:
            self._renamed(FACTOR, DROPOUT_FACTOR)
            found[DROPOUT_FACTOR] = self._graph.inputs[[v.name for v in self._graph.inputs].index(DROPOUT_FACTOR)]
        return found

    def _average(self, average: ir.Value, parameters: ir.Value, t: ir.Value) -> ir.Value:
        decay, state = self._settings.ema_decay, self._parts.state
        assert decay is not None
        exact = GraphBuilder(self._graph, dtype=self._scalar, prefix="average")
        averaged = exact.Sub(t, float(state.t - state.averaged)) if state.t != state.averaged else t
        return emit_average(self.op, average, parameters, float(decay), averaged, self._scalar)

    def _old_state(self) -> dict[str, ir.Value]:
        """Add the inputs for the state, and record what they hold."""
        found = {}
        for one in state_tensors(self._source):
            shape = () if one.role == STEP else one.value.shape
            value = self._input(one.name, ir_type(one.value.dtype), shape)
            name = value.name or ""
            self._state.append(replace(one, name=name, output=self.op.taken.free(f"new_{name}")))
            found[one.name] = value
        return found

    def _given_parameters(self, old: dict[str, ir.Value]) -> dict[str, ir.Value]:
        """Return the parts of the vectors that replace the pass's inputs for parameters and statistics."""
        layout, op = self._layout, self.op
        values = dict(cut_members(op, old[PARAMETERS], members_of(layout, layout.names)))
        if STATISTICS in old:
            values |= cut_members(op, old[STATISTICS], members_of(layout, layout.running_statistics))
        return values

    def _with_penalty(self, parameters: ir.Value, gradients: ir.Value) -> tuple[ir.Value, ir.Value]:
        op, loss, size = self.op, self._outputs[LOSS], self._layout.penalized.stop
        if not (self._settings.alpha and size):
            return loss, gradients
        weight = op.ReduceSum(next(v for v in self._graph.inputs if v.name == WEIGHT), keepdims=False)
        value, slope = emit_penalty(op, self._settings, parameters, size, weight)
        return op.Add(loss, value), op.Add(gradients, slope)

    def _input(self, stem: str, kind: ir.DataType, shape: Sequence[int]) -> ir.Value:
        value = ir.val(self.op.taken.free(stem), kind, tuple(shape))
        self._graph.inputs.append(value)
        return value

    def _renamed(self, name: str, stem: str) -> str:
        value = next(v for v in self._graph.inputs if v.name == name)
        value.name = self.op.taken.free(stem)
        return value.name

    def _finished(
        self,
        loss: ir.Value,
        old: dict[str, ir.Value],
        new: dict[str, ir.Value],
        targets: tuple[TargetInput, ...],
        names: tuple[str, str],
    ) -> StepGraph:
        loss = self.op.Identity(loss)
        append_output(self._graph, loss, self.op.taken.free("loss"), self._outputs[LOSS])
        # an output of a graph is the result of a node and has one name: Identity copies inputs and values named twice
        written: set[ir.Value] = set()
        for one, key in zip(self._state, old, strict=True):
            value = new[key] if new[key].producer() and new[key] not in written else self.op.Identity(new[key])
            written.add(value)
            append_output(self._graph, value, one.output, old[key])
        random = tuple(self._renamed(name, name.rpartition("/")[2]) for name in self._random)
        self._graph.sort()
        if self._scalar != ir.DataType.DOUBLE and any(map(_is_double, self._graph)):
            raise ModelError(
                f"Graphs for the web have no float64, but this model or its optimizer, "
                f"{type(self._settings.optimizer).__name__}, computes in it: set another one, or target='any'."
            )
        data = tuple(spec.name for spec in self._parts.model.inputs)
        state = tuple(self._state)
        return StepGraph(self._model, data, targets, *names, loss.name or "", random, state, self._parts.batch)


def state_tensors(source: ExportSource) -> Iterator[StateTensor]:
    """Yield the tensors that a step changes: vectors, and the number of steps taken."""
    parts, layout, settings = source.parts, source.parts.parameters, source.parts.settings
    optimizer = settings.optimizer
    if not isinstance(optimizer, Optimizer):
        raise ModelError(
            f"{type(optimizer).__name__} takes no steps of minibatches, so it has no training graph. Set another "
            f"optimizer, such as 'adamw'."
        )
    names = members_of(layout, layout.names)
    yield StateTensor(PARAMETERS, "", PARAMETERS, layout.vector, names)
    if layout.running_statistics:
        moved = layout.statistics
        yield StateTensor(STATISTICS, "", STATISTICS, moved, members_of(layout, layout.running_statistics))
    if layout.average is not None and settings.ema_decay is not None:
        yield StateTensor(AVERAGE, "", AVERAGE, layout.average, names)
    slots = state_slots(optimizer, layout)
    fits = parts.state.fits(slots)
    for name, slot in slots.items():
        if name in (PARAMETERS, STATISTICS, AVERAGE, STEP):
            raise ModelError(f"{type(optimizer).__name__}.slots has a vector {name!r}, a name of the training graph's.")
        value = parts.state.slots[name] if fits else np.full(slot.shape, slot.fill, layout.vector.dtype)
        members = names if slot.shape == layout.vector.shape and name.isidentifier() else ()
        yield StateTensor(name, "", "optimizer", value, members, slot.fill)
    yield StateTensor(STEP, "", STEP, np.array(parts.state.t if fits else 0, np.int64))


def _is_double(node: ir.Node) -> bool:
    """Return True if a node of the step computes in float64."""
    to = node.attributes.get("to")
    double = to is not None and to.as_int() == ir.DataType.DOUBLE
    return double or any(value is not None and value.dtype == ir.DataType.DOUBLE for value in node.inputs)

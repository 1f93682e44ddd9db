"""A whole training step as one graph of plain ONNX operators.

``step_graph`` emits it in the order of training: cut the parameters out of their vector, run the pass (``step_pass``),
join the gradients, then penalty, clipping, update and average, and last the inputs for targets and weights. The
parameters are one vector, and so is each slot of the optimizer. ``emit_update`` runs the optimizer on segments of these
vectors, as training does. The scalars of the step are computed in float64 where the target has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from .._ir.edits import append_output, replace_inputs
from .._model.loss_terms import penalty_factors, weighted_penalty
from .._training.loss_graph import LOSS, TARGET, WEIGHT, ir_type, target_layout
from .._training.parameters import (
    Factors,
    FlatParameters,
    Segment,
    require_rows_apart,
    segments,
    state_name,
    state_slots,
)
from .._training.randomness import FACTOR
from .._training.step_parts import OutputLoss, StepSettings, TrainedPositions
from ..exceptions import ModelError
from ..graph import GraphBuilder
from ..optimizers import Optimizer, update_graph
from ..optimizers.in_place import emit_clipped, update_rule
from ..optimizers.scalars import emit_scalars
from .source import (
    AVERAGE,
    PARAMETERS,
    STATISTICS,
    STEP,
    ExportSource,
    OutputSource,
    StateTensor,
    cut_members,
    joined_vector,
    members_of,
    reserve_names,
)
from .step_pass import step_pass


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


Vectors = Mapping[str, ir.Value]


@dataclass(frozen=True)
class StepScalars:
    """The learning rate, the number of the step and the factor of a scheduled weight decay, of type ``kind``."""

    learning_rate: ir.Value
    t: ir.Value
    kind: ir.DataType
    decay: ir.Value | None = None


def decays(settings: StepSettings, layout: FlatParameters) -> bool:
    """Return True if any parameter has weight decay."""
    decay = getattr(settings.optimizer, "weight_decay", 0.0)
    return bool(decay) and any(settings.factors.get(name, Factors()).decay for name in layout.names)


def emit_penalty(
    op: GraphBuilder, settings: StepSettings, parameters: ir.Value, size: int, weight: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Emit the penalty on the first ``size`` parameters, divided by the weight of the rows, and its gradient."""
    squares, absolutes = penalty_factors(settings.alpha, settings.l1_ratio)
    penalized = op.Slice(parameters, starts=[0], ends=[size], axes=[0])
    strength = op.Where(op.Greater(weight, 0.0), op.Div(1.0, op.Max(weight, float(np.finfo(np.float32).tiny))), 0.0)
    value = weighted_penalty(op, penalized, squares, absolutes if settings.l1_ratio else None)
    slope = op.Mul(penalized, 2.0 * squares)
    if settings.l1_ratio:
        slope = op.Add(slope, op.Mul(op.Sign(penalized), absolutes))
    rest = op.Mul(op.Slice(parameters, starts=[size], ends=[2**31 - 1], axes=[0]), 0.0)
    return op.Mul(value, strength), op.Concat(op.Mul(slope, strength), rest, axis=0)


def emit_clipping(
    op: GraphBuilder, gradients: ir.Value, limit: float, dtype: ir.DataType, kind: ir.DataType
) -> ir.Value:
    """Emit the gradients with their norm limited, which is computed in type ``kind``."""
    return emit_clipped(GraphBuilder(op.graph, dtype=kind, prefix="clip"), gradients, limit, dtype)[0]


def emit_update(
    op: GraphBuilder,
    settings: StepSettings,
    layout: FlatParameters,
    vectors: Vectors,
    gradients: ir.Value,
    scalars: StepScalars,
    occurs: Vectors,
) -> dict[str, ir.Value]:
    """Emit the new vectors, of the parameters and the optimizer's state, by the names of ``vectors``.

    ``occurs`` holds flags of the rows or columns of matrices, by name: the others keep their values and their state.
    """
    optimizer = settings.optimizer
    assert isinstance(optimizer, Optimizer)
    parts: dict[str, list[ir.Value]] = {name: [] for name in vectors}
    for one in (found := segments(layout, settings.factors, optimizer)):
        if occurs:
            require_rows_apart(one.optimizer)
        emitted = _emit_segment(op, one, vectors, gradients, scalars, alone=len(found) == 1)
        for name, value in emitted.items():
            parts[PARAMETERS if name == PARAMETERS else state_name(name, one.parameter)].append(value)
    new = {name: op.Concat(*values, axis=0) if len(values) > 1 else values[0] for name, values in parts.items()}
    if not occurs:
        return new
    changes = _changed_elements(op, layout, occurs)
    return {name: op.Where(changes, value, vectors[name]) for name, value in new.items()}


def _changed_elements(op: GraphBuilder, layout: FlatParameters, occurs: Vectors) -> ir.Value:
    """Emit a flag for each element of the vector of parameters, True where the step changes it."""
    found = []
    for name in layout.names:
        view = layout.view(name)
        if name in occurs:
            found.append(op.Reshape(op.Expand(occurs[name], [len(view), view.size // len(view)]), [-1]))
        else:
            found.append(op.ConstantOfShape([view.size], value=ir.tensor(np.ones(1, bool))))
    return op.Concat(*found, axis=0) if len(found) > 1 else found[0]


def _emit_segment(
    op: GraphBuilder,
    one: Segment,
    vectors: Vectors,
    gradients: ir.Value,
    scalars: StepScalars,
    *,
    alone: bool,
) -> dict[str, ir.Value]:
    """Emit the update of a segment: a part of the vectors, or a parameter in its shape and its own arrays of state."""

    def cut(vector: ir.Value) -> ir.Value:
        part = vector if alone else op.Slice(vector, starts=[one.part.start], ends=[one.part.stop], axes=[0])
        return part if one.parameter is None else op.Reshape(part, list(one.parameter.shape))

    rate, own, parameter = scalars.learning_rate, one.optimizer, one.parameter
    if one.factors.rate != 1:
        rate = GraphBuilder(op.graph, dtype=scalars.kind, prefix="rate").Mul(rate, float(one.factors.rate))
    scheduled = scalars.decay is not None and bool(getattr(own, "weight_decay", 0.0))
    # built for its checks, which an invalid update fails: shapes fit, and the update follows the scheduled decay
    slots = update_graph(own, op.dtype, parameter=parameter, scheduled=scheduled).slots
    rule = update_rule(own, op.dtype, scheduled=scheduled)
    exact = GraphBuilder(op.graph, dtype=scalars.kind, prefix="scalar")
    given = [rate, scalars.t, *([scalars.decay] if scheduled and scalars.decay is not None else [])]
    k = emit_scalars(exact, f"{type(own).__name__}.scalars", rule.scalars, *given, dtype=op.dtype)
    state = {n: vectors[state_name(n, parameter)] for n in slots}
    state = {n: cut(vector) for n, vector in state.items()} if parameter is None else state
    new, new_state = rule.update(op, cut(vectors[PARAMETERS]), cut(gradients), state, k)
    return {PARAMETERS: new if parameter is None else op.Reshape(new, [-1]), **new_state}


def emit_average(
    op: GraphBuilder, average: ir.Value, parameters: ir.Value, decay: float, averaged: ir.Value, kind: ir.DataType
) -> ir.Value:
    """Emit the moving average, corrected for its start, after ``averaged`` steps, a value of type ``kind``."""
    exact = GraphBuilder(op.graph, dtype=kind, prefix="average")
    weight = exact.Div(1.0 - decay, exact.Sub(1.0, exact.Pow(decay, averaged)))
    return op.Add(average, op.Mul(op.Sub(parameters, average), op.Cast(weight, to=op.dtype)))


@dataclass(frozen=True)
class TargetInput:
    """The names of the inputs for a target and, where several are trained, for its factors of the rows' weights."""

    name: str
    factor: str | None = None


def emit_row_inputs(op: GraphBuilder, source: ExportSource) -> tuple[tuple[TargetInput, ...], str]:
    """Add the inputs for targets and for the weights of rows; return those of the targets, and the other's name."""
    if source.outputs:
        targets = _targets_of_outputs(op, source.outputs, source.parts.batch)
    else:
        targets = (TargetInput(_single_target(op, source)),)
    return targets, _weight_of_rows(op, source, targets[0].name)


def _single_target(op: GraphBuilder, source: ExportSource) -> str:
    """Return the name of the input for targets in their own units."""
    scale, kind = source.head.target_scale, source.scalar_type
    trained = _graph_input(op, TARGET)
    if scale is None:
        return _renamed_input(op, trained, "y")
    given = _row_input(op, "y", kind, _fixed_shape(trained))
    exact = GraphBuilder(op.graph, dtype=kind, prefix="target")  # float64, as on the host, unless for the web
    scaled = op.Cast(exact.Div(exact.Sub(given, scale.center), scale.scale), to=op.dtype)
    replace_inputs(op.graph, {TARGET: scaled})
    return given.name or ""


def _weight_of_rows(op: GraphBuilder, source: ExportSource, target: str) -> str:
    """Return the name of the input for the weights of the rows, which the step multiplies by those of their labels."""
    trained = _graph_input(op, WEIGHT)
    if label_weights(source) is None:
        return _renamed_input(op, trained, "sample_weight")
    given = _row_input(op, "sample_weight", op.dtype, _fixed_shape(trained))
    replace_inputs(op.graph, {WEIGHT: emit_row_weights(op, source, given, _graph_input(op, target))})
    return given.name or ""


def _targets_of_outputs(op: GraphBuilder, outputs: Sequence[OutputSource], batch: int) -> tuple[TargetInput, ...]:
    """Add an input for the target and one for the factors of each output, and join them to the trained matrix."""
    values = [_input_of_target(op, one.loss, batch) for one in outputs]
    factors = [_row_input(op, f"target_weight/{one.loss.name}", op.dtype, (batch,)) for one in outputs]
    columns = [_target_columns(op, value, one.loss.width, batch) for value, one in zip(values, outputs, strict=True)]
    matrix = op.Concat(*columns, *(op.Reshape(factor, [batch, 1]) for factor in factors), axis=1)
    replace_inputs(op.graph, {TARGET: matrix})
    return tuple(TargetInput(y.name or "", f.name) for y, f in zip(values, factors, strict=True))


def _input_of_target(op: GraphBuilder, one: OutputLoss, batch: int) -> ir.Value:
    places = None if one.positions is None else TrainedPositions(one.positions, one.places, one.label_weights)
    shape, kind = target_layout(one.task, one.n_outputs, batch, op.dtype.numpy(), places)
    return _row_input(op, f"y/{one.name}", ir.DataType.from_numpy(kind), shape)


def _target_columns(op: GraphBuilder, value: ir.Value, width: int, batch: int) -> ir.Value:
    return op.Reshape(op.Cast(value, to=op.dtype), [batch, width])


def _row_input(op: GraphBuilder, stem: str, kind: ir.DataType, shape: Sequence[int]) -> ir.Value:
    value = ir.val(op.taken.free(stem), kind, tuple(shape))
    op.graph.inputs.append(value)
    return value


def _graph_input(op: GraphBuilder, name: str) -> ir.Value:
    return next(value for value in op.graph.inputs if value.name == name)


def _renamed_input(op: GraphBuilder, value: ir.Value, stem: str) -> str:
    value.name = op.taken.free(stem)
    return value.name


def _fixed_shape(value: ir.Value) -> list[int]:
    return [int(str(size)) for size in value.shape or ()]


def label_weights(source: ExportSource) -> tuple[float, ...] | None:
    """Return the weight of each class; None where a label does not change the weight of its row."""
    positions = source.parts.settings.positions
    return source.class_weights if positions is None else positions.label_weights


def emit_row_weights(op: GraphBuilder, source: ExportSource, weight: ir.Value, y: ir.Value) -> ir.Value:
    """Emit the weights of the rows of a minibatch from the given ones (N,) and the target."""
    known, kind = label_weights(source), op.dtype.numpy()
    assert known is not None
    if source.parts.settings.positions is not None:
        own = op.Gather(np.array([*known, 0.0], kind), y)  # an ignored label has the index -1: the last, of weight 0
        return op.Mul(weight, op.ReduceMean(own, axes=[1], keepdims=False))
    if source.head.task == "multiclass":
        return op.Mul(weight, op.Gather(np.array(known, kind), y))
    second = op.Reshape(op.Greater(y, 0.5), [-1])
    return op.Mul(weight, op.Where(second, np.array(known[1], kind), np.array(known[0], kind)))


def weights_of_rows(known: list[float] | None, target: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the weights of rows that the step would train with; as ``emit_row_weights``, in NumPy."""
    if known is None:
        return weights
    indices = target.reshape(len(target), math.prod(target.shape[1:])).astype(np.int64)
    return np.asarray(weights * np.array([*known, 0.0])[indices].mean(axis=1))

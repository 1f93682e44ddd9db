"""A whole training step as one graph of plain ONNX operators.

``step_graph`` emits it in the order of training: cut the parameters out of their vector, run the pass, join the
gradients, then the stages that :data:`~.step_parts.STAGES` orders, and last the inputs for targets and weights. The
pass is the gradient graph that training itself would use. The parameters are one vector, and so is each slot of the
optimizer. ``emit_update`` runs the optimizer on segments of these vectors, as training does. The scalars of the step
are computed in float64 where the target has it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np
import onnx_ir as ir

from .._ir.edits import append_nodes, append_output, initializers_to_inputs, replace_inputs
from .._ir.protobuf import from_bytes
from .._model.loss_terms import penalty_factors, weighted_penalty
from .._model.row_reads import FirstProduct, Lookup, take_first_products
from .._training.loss_graph import LOSS, TARGET, WEIGHT, ir_type, target_layout, training_graph
from .._training.parameters import (
    Factors,
    FlatParameters,
    VectorSegment,
    require_rows_apart,
    state_name,
    state_slots,
    vector_segments,
)
from .._training.programs import PassParts, pass_program
from .._training.randomness import FACTOR
from .._training.step_parts import StepSettings, TrainedPositions
from ..exceptions import ModelError, UnsupportedOperatorError
from ..graph import GraphBuilder
from ..optimizers import Optimizer, update_graph
from ..optimizers.in_place import emit_clipped, update_rule
from ..optimizers.scalars import emit_scalars
from .exported import (
    AVERAGE,
    PARAMETERS,
    STATISTICS,
    STEP,
    ExportedOutput,
    ExportedTraining,
    StateTensor,
    cut_members,
    joined_vector,
    members_of,
    reserve_names,
)


@dataclass(frozen=True)
class TargetInput:
    """The names of the inputs for a target and, where several are trained, for its factors of the rows' weights."""

    name: str
    factor: str | None = None


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
    batch_size : int
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
    batch_size: int
    factors: Mapping[str, str] = field(default_factory=dict)

    @property
    def by_row(self) -> tuple[str, ...]:
        """The inputs that have a value for each row, but its weight."""
        return *self.data, *(name for one in self.targets for name in (one.name, one.factor) if name is not None)


DECAY_FACTOR, DROPOUT_FACTOR = "weight_decay_factor", "dropout_factor"
"""Roles of the inputs that the weight decay and the ratios of dropout are multiplied by."""


def step_graph(exported: ExportedTraining) -> StepGraph:
    """Return the graph of a training step."""
    parts = exported.parts
    layout = exported.parts.parameters
    settings = exported.parts.settings
    # The pass: loss and gradients are its outputs, to which the rest of the step is appended.
    found = _step_pass(exported)
    graph = found.model.graph
    kind = ir_type(layout.vector.dtype)
    scalar = exported.scalar_type
    op = GraphBuilder(graph, dtype=kind, prefix="step")
    outputs = {value.name or "": value for value in graph.outputs}
    occurs = {name: outputs[output] for name, output in found.occurs.items()}
    graph.outputs.clear()

    # The state becomes inputs. Parts of the vectors replace the inputs of the pass for parameters and statistics.
    tensors = list(state_tensors(exported))
    reserve_names(op, exported, [one.name for one in tensors])
    old, state = dict[str, ir.Value](), list[StateTensor]()
    for one in tensors:
        value = _add_input(op, one.name, ir_type(one.value.dtype), () if one.role == STEP else one.value.shape)
        name = value.name or ""
        state.append(replace(one, name=name, output=op.taken.free(f"new_{name}")))
        old[one.name] = value
    arrays = dict(cut_members(op, old[PARAMETERS], members_of(layout, layout.names)))
    if STATISTICS in old:
        arrays |= cut_members(op, old[STATISTICS], members_of(layout, layout.running_statistics))
    replace_inputs(graph, arrays)

    # The inputs for the scalars of the step: learning rate, and factors that schedules give.
    rate = _add_input(op, "learning_rate", kind, ())
    factors = dict[str, ir.Value]()
    decays = bool(getattr(settings.optimizer, "weight_decay", 0.0))
    decays = decays and any(settings.factors.get(name, Factors()).decay for name in layout.names)
    if settings.scheduled.decay and decays:
        factors[DECAY_FACTOR] = _add_input(op, DECAY_FACTOR, kind, ())
    if found.drops:
        factors[DROPOUT_FACTOR] = _renamed_input(op, FACTOR, DROPOUT_FACTOR)

    # The stages of the step, from the loss and the gradients of the pass on.
    gradients = joined_vector(op, [outputs[f"{name}_grad"] for name in layout.names])
    loss = outputs[LOSS]
    new = dict[str, ir.Value]()
    for stage in parts.stages:
        if stage == "penalty":
            penalty, slope = _emit_penalty(op, settings, old[PARAMETERS], layout.penalized.stop)
            loss, gradients = op.Add(loss, penalty), op.Add(gradients, slope)
        elif stage == "clipping":
            clip = GraphBuilder(graph, dtype=scalar, prefix="clip")
            gradients = emit_clipped(clip, gradients, float(settings.max_grad_norm or 0), kind)[0]
        elif stage == "update":
            new[STEP], exact = op.Add(old[STEP], 1), GraphBuilder(graph, dtype=scalar, prefix="scalar")
            t = exact.Cast(new[STEP], to=scalar)
            decay = exact.Cast(factors[DECAY_FACTOR], to=scalar) if DECAY_FACTOR in factors else None
            scalars = StepScalars(exact.Cast(rate, to=scalar), t, scalar, decay)
            vectors = {one.name: old[one.name] for one in state if one.role in (PARAMETERS, "optimizer")}
            new |= emit_update(op, settings, layout, vectors, gradients, scalars, occurs)
            if STATISTICS in old:
                next_names = parts.graph.running_statistics
                new[STATISTICS] = joined_vector(op, [outputs[next_names[name]] for name in layout.running_statistics])
        elif stage == "average":
            share = float(settings.ema_decay or 0)
            average_op = GraphBuilder(graph, dtype=scalar, prefix="average")
            # steps before averaging began do not count in the correction for its start
            before = float(parts.optimizer_state.t - parts.optimizer_state.averaged)
            averaged = average_op.Sub(t, before) if before else t
            remaining = average_op.Sub(1.0, average_op.Pow(share, averaged))
            weight = op.Cast(average_op.Div(1.0 - share, remaining), to=kind)
            new[AVERAGE] = op.Add(old[AVERAGE], op.Mul(op.Sub(new[PARAMETERS], old[AVERAGE]), weight))

    # The inputs that a loop gives: targets and weights in the user's units, and random numbers.
    targets, weight_name = _emit_row_inputs(op, exported)
    loss = op.Identity(loss)
    append_output(graph, loss, op.taken.free("loss"), outputs[LOSS])
    # an output of a graph is the result of a node and has one name: Identity copies inputs and values named twice
    written: set[ir.Value] = set()
    for one, key in zip(state, old, strict=True):
        value = new[key] if new[key].producer() and new[key] not in written else op.Identity(new[key])
        written.add(value)
        append_output(graph, value, one.output, old[key])
    random = tuple(_renamed_input(op, name, name.rpartition("/")[2]).name or "" for name in found.random)
    graph.sort()
    if scalar != ir.DataType.DOUBLE and any(map(_computes_in_double, graph)):
        raise ModelError(
            f"Graphs for the web have no float64, but this model or its optimizer, "
            f"{type(settings.optimizer).__name__}, computes in it. Change the optimizer, or take target='any'."
        )
    return StepGraph(
        model=found.model,
        data=tuple(spec.name for spec in parts.graph.inputs),
        targets=targets,
        weight=weight_name,
        rate=rate.name or "",
        loss=loss.name or "",
        random=random,
        state=tuple(state),
        batch_size=parts.batch_size,
        factors={role: value.name or "" for role, value in factors.items()},
    )


def _add_input(op: GraphBuilder, stem: str, kind: ir.DataType, shape: Sequence[int]) -> ir.Value:
    value = ir.val(op.taken.free(stem), kind, tuple(shape))
    op.graph.inputs.append(value)
    return value


def _graph_input(op: GraphBuilder, name: str) -> ir.Value:
    return next(value for value in op.graph.inputs if value.name == name)


def _renamed_input(op: GraphBuilder, name: str, stem: str) -> ir.Value:
    value = _graph_input(op, name)
    value.name = op.taken.free(stem)
    return value


def _computes_in_double(node: ir.Node) -> bool:
    to = node.attributes.get("to")
    casts = to is not None and to.as_int() == ir.DataType.DOUBLE
    return casts or any(value is not None and value.dtype == ir.DataType.DOUBLE for value in node.inputs)


# The pass: forward and backward, over all minibatches of the step.
#
# Two things differ from the pass of training. With lazy updates, which change only the rows of a matrix that occur in
# the minibatch, the graph adds up the gradients of these rows and flags them (in training, the host does so). If a step
# accumulates several minibatches, the graph repeats the pass.


@dataclass(frozen=True, eq=False)
class _StepPass:
    """The graph of a pass over the minibatches of a step.

    Attributes
    ----------
    model : onnx_ir.Model
    random : tuple of str
        Its inputs for uniform random numbers.
    drops : bool
        Whether it reads a factor that scales all dropout ratios.
    occurs : mapping of str to str
        For each matrix with lazy updates, the output that flags the rows that occur.
    """

    model: ir.Model
    random: tuple[str, ...]
    drops: bool
    occurs: Mapping[str, str]


def _step_pass(exported: ExportedTraining) -> _StepPass:
    """Return the pass over the minibatches of a step."""
    parts = exported.parts
    # The portable engine emits ONNX's own operators, which any runtime has.
    settings = replace(parts.settings, engine="portable")
    rows = parts.batch_size // exported.minibatches
    lazy = settings.lazy_rows
    program = pass_program(PassParts(parts.graph, settings, parts.parameters, parts.frozen, rows, adds_rows=lazy))
    inputs = [value.name or "" for value in program.random]
    random = tuple(name for name in inputs if name != FACTOR)
    model = from_bytes(program.graph)
    occurs = dict[str, str]()
    kind = ir_type(parts.parameters.vector.dtype)
    if lazy:
        # The first products are sought in the forward graph: in the pass, gradients of matrices read the inputs too.
        graph = training_graph(parts.graph, settings, parts.frozen, rows)
        products = take_first_products(graph, parts.sparse)
        occurs |= _return_occurring_columns(model, products, parts.parameters.names, kind)
    occurs |= _return_rows_added_up(model, program.lookups, kind)
    if exported.minibatches > 1:
        by_row = (*(spec.name for spec in parts.graph.inputs), TARGET, WEIGHT)
        next_names = parts.graph.running_statistics
        statistics = {name: next_names[name] for name in parts.parameters.running_statistics}
        model = _pass_of_group(
            model, exported.minibatches, by_row, random, statistics, flags=frozenset(occurs.values())
        )
    return _StepPass(model, random, FACTOR in inputs, occurs)


def _pass_of_group(
    model: ir.Model,
    count: int,
    by_row: Collection[str],
    random: Collection[str],
    statistics: Mapping[str, str],
    flags: Collection[str],
) -> ir.Model:
    """Return the pass over ``count`` minibatches, whose loss and gradients are means weighted by the rows.

    One pass over all rows together would be wrong, because batch normalization takes means over the rows of a single
    minibatch. The graph therefore contains the pass once for each minibatch. All copies read the same parameters; each
    reads the running statistics that the previous one returns.

    Parameters
    ----------
    model : onnx_ir.Model
        The pass over one minibatch.
    count : int
    by_row : collection of str
        Inputs whose first axis is the rows.
    random : collection of str
        Inputs for random numbers. They get one more axis, the first, because each minibatch has its own numbers.
    statistics : mapping of str to str
        Names of the outputs for the next running statistics, by the names of the inputs for the present ones.
    flags : collection of str
        The boolean outputs, which are joined by "or" over the minibatches.
    """
    single = model.graph
    graph = ir.Graph([], [], nodes=[], name="group", opset_imports=dict(single.opset_imports))
    weight = next(value for value in single.inputs if value.name == WEIGHT)
    assert weight.dtype is not None
    op = GraphBuilder(graph, dtype=weight.dtype, prefix="group")

    # The inputs of the group, and the parts of them that each minibatch reads; running statistics are not split.
    given = dict[str, ir.Value]()
    for value in single.inputs:
        sizes = _fixed_shape(value)
        if value.name in by_row:
            sizes[0] *= count
        elif value.name in random:
            sizes = [count, *sizes]
        given[value.name or ""] = ir.Value(name=value.name, type=value.type, shape=ir.Shape(sizes))
    graph.inputs.extend(given.values())
    op.taken.update([*given, *(value.name or "" for value in single.outputs), *single.initializers])
    parts: list[dict[str, ir.Value]] = [dict(given) for _ in range(count)]
    for value in single.inputs:
        name = value.name or ""
        if name in by_row:
            rows = _fixed_shape(value)[:1] * count
            pieces = op.emit("Split", given[name], split=rows, outputs=count, axis=0)
        elif name in random:
            pieces = [op.Gather(given[name], i, axis=0) for i in range(count)]
        else:
            continue
        for part, piece in zip(parts, pieces, strict=True):
            part[name] = piece

    # The share of each minibatch in the weight of all rows; zero where no row weighs anything.
    weights = [op.ReduceSum(part[WEIGHT], keepdims=False) for part in parts]
    total = op.Max(reduce(op.Add, weights), float(np.finfo(np.float32).tiny))
    shares = [op.Div(one, total) for one in weights]

    # A copy of the pass for each minibatch; all read the same initializers.
    held = {}
    for name, value in single.initializers.items():
        held[name] = ir.Value(name=name, type=value.type, shape=value.shape, const_value=value.const_value)
        graph.register_initializer(held[name])
    sums: dict[str, ir.Value] = {}
    moving = {name: given[name] for name in statistics}
    names = [value.name or "" for value in single.outputs]
    for part, share in zip(parts, shares, strict=True):
        copy, read = single.clone(), held | part | moving
        initializers_to_inputs(copy, list(held))
        results = append_nodes(op, copy, [read[value.name or ""] for value in copy.inputs])
        found = dict(zip(names, results, strict=True))
        moving = {name: found.pop(next_name) for name, next_name in statistics.items()}
        for name, value in found.items():
            own = value if name in flags else op.Mul(value, share)
            both = op.Or if name in flags else op.Add
            sums[name] = both(sums[name], own) if name in sums else own
    sums |= {next_name: moving[name] for name, next_name in statistics.items()}
    for like in single.outputs:
        append_output(graph, sums[like.name or ""], like.name or "", like)
    return ir.Model(graph, ir_version=model.ir_version)


_OCCURS = "onnxtrain/occurs"
"""Stem of the names of the outputs that flag, for each row of a matrix, whether the minibatch reads it."""


def _return_rows_added_up(model: ir.Model, lookups: Sequence[Lookup], kind: ir.DataType) -> dict[str, str]:
    """Let the pass add up the gradients of rows that it looks up, in place; return its flag outputs by matrix.

    In training the pass returns indices and a gradient for each lookup, and the host adds them up. Here the graph
    scatters them into a matrix with one more row for padding, which is cut off. A flag output has one column.
    """
    graph = model.graph
    op = GraphBuilder(model.graph, dtype=kind, prefix="rows")
    if lookups and op.opset < 16:
        raise UnsupportedOperatorError(
            f"Lazy updates of embeddings add up rows by ScatterElements, which needs opset 16 in training graphs, and "
            f"the model is in opset {op.opset}: convert it (onnx.version_converter), or set"
            f" optimizer__lazy_rows=False."
        )
    outputs = {value.name or "": value for value in graph.outputs}
    occurs = {}
    for name in dict.fromkeys(lookup.weight for lookup in lookups):
        own = [lookup for lookup in lookups if lookup.weight == name]
        n_rows, *_ = own[0].shape
        width = own[0].width
        count = sum(read.count for read in own)
        places = list[ir.Value]()
        slopes = [outputs[f"{read.rows}_grad"] for read in own]
        for read in own:
            # a negative index counts from the end; padding reads the row after the last, which is cut off below
            index = outputs[read.indices]
            place = op.Where(op.Less(index, 0), op.Add(index, n_rows), index)
            places.append(place if read.padding is None else op.Where(op.Equal(index, read.padding), n_rows, place))
        place, slope = (one[0] if len(one) == 1 else op.Concat(*one, axis=0) for one in (places, slopes))
        column = op.Unsqueeze(place, axes=[1])
        zeros = op.ConstantOfShape([n_rows + 1, width], value=ir.tensor(np.zeros(1, op.dtype.numpy())))
        added = op.ScatterElements(zeros, op.Expand(column, [count, width]), slope, axis=0, reduction="add")
        absent = op.ConstantOfShape([n_rows + 1], value=ir.tensor(np.zeros(1, bool)))
        present = op.ConstantOfShape([count], value=ir.tensor(np.ones(1, bool)))
        found = op.ScatterElements(absent, place, present, axis=0)
        added, found = (op.Slice(value, starts=[0], ends=[n_rows], axes=[0]) for value in (added, found))
        gradient = op.Reshape(added, list(own[0].shape))
        append_output(graph, gradient, f"{name}_grad", ir.val("like", kind, own[0].shape))
        occurs[name] = f"{_OCCURS}/{name}"
        append_output(
            graph, op.Reshape(found, (n_rows, 1)), occurs[name], ir.val("like", ir.DataType.BOOL, (n_rows, 1))
        )
    taken = {outputs[name] for lookup in lookups for name in (lookup.indices, f"{lookup.rows}_grad")}
    graph.outputs[:] = [value for value in graph.outputs if value not in taken]
    return occurs


def _return_occurring_columns(
    model: ir.Model, products: Sequence[FirstProduct], trained: Collection[str], kind: ir.DataType
) -> dict[str, str]:
    """Flag the columns of the inputs that are not zero in all rows, in place; return the outputs by trained matrix."""
    graph = model.graph
    op = GraphBuilder(model.graph, dtype=kind, prefix="columns")
    occurs = dict[str, str]()
    inputs = {value.name or "": value for value in graph.inputs}
    for product in products:
        if product.weight in trained:
            value, name = inputs[product.input], product.weight
            rows, columns = _fixed_shape(value)
            stored = op.Cast(op.Not(op.Equal(value, 0.0)), to=kind)
            shape = (1, columns) if product.transposed else (columns, 1)
            counts = op.MatMul(np.ones((1, rows), kind.numpy()), stored)
            found = op.Reshape(op.Greater(counts, 0.0), shape)
            occurs[name] = f"{_OCCURS}/{name}"
            append_output(graph, found, occurs[name], ir.val("like", ir.DataType.BOOL, shape))
    return occurs


# The state, the penalty and the update.


def state_tensors(exported: ExportedTraining) -> Iterator[StateTensor]:
    """Yield the tensors that a step changes: vectors, and the number of steps taken."""
    parts = exported.parts
    layout = exported.parts.parameters
    settings = exported.parts.settings
    optimizer = settings.optimizer
    if not isinstance(optimizer, Optimizer):
        raise ModelError(
            f"{type(optimizer).__name__} takes no steps of minibatches, so it has no training graph. Set another "
            f"optimizer, such as 'adamw'."
        )
    names = members_of(layout, layout.names)
    yield StateTensor(PARAMETERS, "", PARAMETERS, layout.vector, names)
    if layout.running_statistics:
        yield StateTensor(STATISTICS, "", STATISTICS, layout.statistics, members_of(layout, layout.running_statistics))
    if layout.average is not None and settings.ema_decay is not None:
        yield StateTensor(AVERAGE, "", AVERAGE, layout.average, names)
    slots = state_slots(optimizer, layout)
    fits = parts.optimizer_state.fits(slots)
    for name, slot in slots.items():
        if name in (PARAMETERS, STATISTICS, AVERAGE, STEP):
            raise ModelError(f"{type(optimizer).__name__}.slots has a vector {name!r}, a name of the training graph's.")
        value = parts.optimizer_state.slots[name] if fits else np.full(slot.shape, slot.fill, layout.vector.dtype)
        members = names if slot.shape == layout.vector.shape and name.isidentifier() else ()
        yield StateTensor(name, "", "optimizer", value, members, slot.fill)
    yield StateTensor(STEP, "", STEP, np.array(parts.optimizer_state.t if fits else 0, np.int64))


def _emit_penalty(
    op: GraphBuilder, settings: StepSettings, parameters: ir.Value, size: int
) -> tuple[ir.Value, ir.Value]:
    """Emit the penalty on the first ``size`` parameters, divided by the weight of the rows, and its gradient."""
    weight = op.ReduceSum(_graph_input(op, WEIGHT), keepdims=False)
    squares, absolutes = penalty_factors(settings.alpha, settings.l1_ratio)
    penalized = op.Slice(parameters, starts=[0], ends=[size], axes=[0])
    # A minibatch of rows that weigh nothing has no penalty; the bound keeps the branch that is not taken finite.
    strength = op.Where(op.Greater(weight, 0.0), op.Div(1.0, op.Max(weight, float(np.finfo(np.float32).tiny))), 0.0)
    value = weighted_penalty(op, penalized, squares, absolutes if settings.l1_ratio else None)
    slope = op.Mul(penalized, 2.0 * squares)
    if settings.l1_ratio:
        slope = op.Add(slope, op.Mul(op.Sign(penalized), absolutes))
    # Zeros for the parameters without a penalty, such as biases: these follow the penalized ones in the vector.
    rest = op.Mul(op.Slice(parameters, starts=[size], ends=[2**31 - 1], axes=[0]), 0.0)
    return op.Mul(value, strength), op.Concat(op.Mul(slope, strength), rest, axis=0)


Vectors = Mapping[str, ir.Value]


@dataclass(frozen=True)
class StepScalars:
    """The learning rate, the number of the step and the factor of a scheduled weight decay, of type ``kind``."""

    learning_rate: ir.Value
    t: ir.Value
    kind: ir.DataType
    decay: ir.Value | None = None


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
    for one in (found := vector_segments(layout, settings.factors, optimizer)):
        if occurs:
            require_rows_apart(one.optimizer)
        emitted = _emit_segment(op, one, vectors, gradients, scalars, alone=len(found) == 1)
        for name, value in emitted.items():
            parts[PARAMETERS if name == PARAMETERS else state_name(name, one.parameter)].append(value)
    new = {name: op.Concat(*values, axis=0) if len(values) > 1 else values[0] for name, values in parts.items()}
    if not occurs:
        return new
    # a flag for each element of the vectors, True where the step changes it
    flags = []
    for name in layout.names:
        view = layout.view(name)
        if name in occurs:
            flags.append(op.Reshape(op.Expand(occurs[name], [len(view), view.size // len(view)]), [-1]))
        else:
            flags.append(op.ConstantOfShape([view.size], value=ir.tensor(np.ones(1, bool))))
    changes = op.Concat(*flags, axis=0) if len(flags) > 1 else flags[0]
    return {name: op.Where(changes, value, vectors[name]) for name, value in new.items()}


def _emit_segment(
    op: GraphBuilder,
    one: VectorSegment,
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


# The inputs for targets and weights.


def _emit_row_inputs(op: GraphBuilder, exported: ExportedTraining) -> tuple[tuple[TargetInput, ...], str]:
    """Add the inputs for targets and for the weights of rows; return those of the targets, and the other's name.

    A loop in any language gives targets in their own units and plain weights, as the user gives them to ``fit``: the
    step scales the targets and multiplies the weights by those of the classes.
    """
    target = _graph_input(op, TARGET)
    weight = _graph_input(op, WEIGHT)
    kind = exported.scalar_type
    if exported.outputs:
        targets = _targets_of_outputs(op, exported.outputs, exported.parts.batch_size)
    elif (scale := exported.decoding.target_scale) is None:
        targets = (TargetInput(_renamed_input(op, TARGET, "y").name or ""),)
    else:
        given = _add_input(op, "y", kind, _fixed_shape(target))
        exact = GraphBuilder(op.graph, dtype=kind, prefix="target")  # float64, as on the host, unless for the web
        scaled = op.Cast(exact.Div(exact.Sub(given, scale.center), scale.scale), to=op.dtype)
        replace_inputs(op.graph, {TARGET: scaled})
        targets = (TargetInput(given.name or ""),)
    if label_weights(exported) is None:
        return targets, _renamed_input(op, WEIGHT, "sample_weight").name or ""
    given = _add_input(op, "sample_weight", op.dtype, _fixed_shape(weight))
    replace_inputs(op.graph, {WEIGHT: _emit_row_weights(op, exported, given, _graph_input(op, targets[0].name))})
    return targets, given.name or ""


def _fixed_shape(value: ir.Value) -> list[int]:
    return [int(str(size)) for size in value.shape or ()]


def _targets_of_outputs(
    op: GraphBuilder, outputs: Sequence[ExportedOutput], batch_size: int
) -> tuple[TargetInput, ...]:
    """Add inputs for the target of each output and for its factors of the rows' weights; join them to one matrix.

    The step trains on this matrix, in which class indices are numbers. Each input has the type and shape that the
    target of that output alone would have.
    """
    values = []
    for one in (output.loss for output in outputs):
        places = None if one.positions is None else TrainedPositions(one.positions, one.places, one.label_weights)
        shape, kind = target_layout(one, batch_size, op.dtype.numpy(), places)
        values.append(_add_input(op, f"y/{one.name}", ir.DataType.from_numpy(kind), shape))
    factors = [_add_input(op, f"target_weight/{one.loss.name}", op.dtype, (batch_size,)) for one in outputs]
    columns = [
        op.Reshape(op.Cast(value, to=op.dtype), [batch_size, one.loss.width])
        for value, one in zip(values, outputs, strict=True)
    ]
    matrix = op.Concat(*columns, *(op.Reshape(factor, [batch_size, 1]) for factor in factors), axis=1)
    replace_inputs(op.graph, {TARGET: matrix})
    return tuple(TargetInput(y.name or "", f.name) for y, f in zip(values, factors, strict=True))


def label_weights(exported: ExportedTraining) -> tuple[float, ...] | None:
    """Return the weight of each class; None where a label does not change the weight of its row."""
    positions = exported.parts.settings.positions
    return exported.class_weights if positions is None else positions.label_weights


def _emit_row_weights(op: GraphBuilder, exported: ExportedTraining, weight: ir.Value, y: ir.Value) -> ir.Value:
    """Emit the weights of the rows of a minibatch from the given ones (N,) and the target."""
    known, kind = label_weights(exported), op.dtype.numpy()
    assert known is not None
    if exported.parts.settings.positions is not None:
        own = op.Gather(np.array([*known, 0.0], kind), y)  # an ignored label has the index -1: the last, of weight 0
        return op.Mul(weight, op.ReduceMean(own, axes=[1], keepdims=False))
    if exported.decoding.task == "multiclass":
        return op.Mul(weight, op.Gather(np.array(known, kind), y))
    second = op.Reshape(op.Greater(y, 0.5), [-1])
    return op.Mul(weight, op.Where(second, np.array(known[1], kind), np.array(known[0], kind)))


def weights_of_rows(known: list[float] | None, target: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the weights of rows that the step would train with; as ``_emit_row_weights``, in NumPy."""
    if known is None:
        return weights
    indices = target.reshape(len(target), math.prod(target.shape[1:])).astype(np.int64)
    return np.asarray(weights * np.array([*known, 0.0])[indices].mean(axis=1))

"""Parts of the graph of a step: groups of minibatches, targets, rows that are looked up, the update.

Batch normalization takes means over the rows of one minibatch. A step that adds up the gradients of several
minibatches is therefore no pass over their rows together: the graph of the pass stands in it once for each
minibatch. All of them read the same parameters, and each reads the running statistics that the one before it returns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .._ir.edits import append_nodes, append_output, initializers_to_inputs, replace_inputs
from .._model.loss_terms import penalty_factors, weighted_penalty
from .._model.row_reads import FirstProduct, Lookup
from .._training.loss_graph import TARGET, WEIGHT, target_layout
from .._training.parameters import (
    Factors,
    FlatParameters,
    Segment,
    require_rows_apart,
    segments,
    state_name,
)
from .._training.settings import OutputLoss, StepSettings, TrainedPositions
from ..exceptions import ModelError, UnsupportedOperatorError
from ..graph import GraphBuilder
from ..optimizers import Optimizer, update_graph
from ..optimizers.in_place import emit_clipped, update_rule
from ..optimizers.scalars import emit_scalars
from .source import PARAMETERS, ExportSource, OutputSource, emit_row_weights, label_weights


@dataclass(frozen=True)
class PassRoles:
    """Names of the inputs and the outputs of a pass.

    Attributes
    ----------
    by_row : tuple of str
        The inputs that have a value for each row.
    weight : str
        The one of them that holds the weights of the rows.
    random : tuple of str
        The inputs for random numbers, which are others for each minibatch: they get one more axis, the first.
    statistics : mapping of str to str
        The outputs for the next running statistics, by the inputs for the present ones.
    flags : frozenset of str
        The outputs that hold where they hold for any minibatch.
    """

    by_row: tuple[str, ...]
    weight: str
    random: tuple[str, ...]
    statistics: Mapping[str, str]
    flags: frozenset[str] = frozenset()


def pass_of_group(model: ir.Model, roles: PassRoles, count: int) -> ir.Model:
    """Return the pass over ``count`` minibatches: the loss and the gradients are means by the weights of the rows."""
    single = model.graph
    graph = ir.Graph([], [], nodes=[], name="group", opset_imports=dict(single.opset_imports))
    op = GraphBuilder(graph, dtype=_type_of(single, roles.weight), prefix="group")
    given = {value.name or "": _group_input(value, roles, count) for value in single.inputs}
    graph.inputs.extend(given.values())
    op.taken.update([*given, *(value.name or "" for value in single.outputs), *single.initializers])
    parts = _inputs_of_minibatches(op, single, roles, given, count)
    shares = _shares(op, [part[roles.weight] for part in parts])
    held = _held_initializers(graph, single)
    sums: dict[str, ir.Value] = {}
    statistics = {name: given[name] for name in roles.statistics}
    for part, share in zip(parts, shares, strict=True):
        found = _pass_results(op, single, held, part | statistics)
        statistics = {name: found.pop(moved) for name, moved in roles.statistics.items()}
        for name, value in found.items():
            own = value if name in roles.flags else op.Mul(value, share)
            both = op.Or if name in roles.flags else op.Add
            sums[name] = both(sums[name], own) if name in sums else own
    results = sums | {moved: statistics[name] for name, moved in roles.statistics.items()}
    for like in single.outputs:
        append_output(graph, results[like.name or ""], like.name or "", like)
    return ir.Model(graph, ir_version=model.ir_version)


def _type_of(graph: ir.Graph, name: str) -> ir.DataType:
    kind = next(value.dtype for value in graph.inputs if value.name == name)
    assert kind is not None
    return kind


def _group_input(value: ir.Value, roles: PassRoles, count: int) -> ir.Value:
    """Return the input of the group that stands for an input of the pass."""
    sizes = [int(str(size)) for size in value.shape or ()]
    if value.name in roles.by_row:
        sizes[0] *= count
    elif value.name in roles.random:
        sizes = [count, *sizes]
    return ir.Value(name=value.name, type=value.type, shape=ir.Shape(sizes))


def _inputs_of_minibatches(
    op: GraphBuilder, single: ir.Graph, roles: PassRoles, given: Mapping[str, ir.Value], count: int
) -> list[dict[str, ir.Value]]:
    """Return the inputs of the pass over each minibatch, but for the running statistics."""
    parts: list[dict[str, ir.Value]] = [dict(given) for _ in range(count)]
    for value in single.inputs:
        name = value.name or ""
        if name in roles.by_row:
            rows = [int(str((value.shape or [0])[0]))] * count
            pieces = op.emit("Split", given[name], split=rows, outputs=count, axis=0)
        elif name in roles.random:
            pieces = [op.Gather(given[name], i, axis=0) for i in range(count)]
        else:
            continue
        for part, piece in zip(parts, pieces, strict=True):
            part[name] = piece
    return parts


def _shares(op: GraphBuilder, weights: Sequence[ir.Value]) -> list[ir.Value]:
    """Return the share of each minibatch in the weight of all rows; zero where no row weighs anything."""
    sums = [op.ReduceSum(weight, keepdims=False) for weight in weights]
    total = sums[0]
    for one in sums[1:]:
        total = op.Add(total, one)
    safe = op.Max(total, float(np.finfo(np.float32).tiny))
    return [op.Div(one, safe) for one in sums]


def _held_initializers(graph: ir.Graph, single: ir.Graph) -> dict[str, ir.Value]:
    """Give ``graph`` the initializers of the pass, which all minibatches read; return them by name."""
    held = {}
    for name, value in single.initializers.items():
        held[name] = ir.Value(name=name, type=value.type, shape=value.shape, const_value=value.const_value)
        graph.register_initializer(held[name])
    return held


def _pass_results(
    op: GraphBuilder, single: ir.Graph, held: dict[str, ir.Value], inputs: dict[str, ir.Value]
) -> dict[str, ir.Value]:
    """Append a copy of the pass that reads ``inputs``; return its outputs by name."""
    names, copy, given = [value.name or "" for value in single.outputs], single.clone(), held | inputs
    initializers_to_inputs(copy, list(held))
    return dict(zip(names, append_nodes(op, copy, [given[value.name or ""] for value in copy.inputs]), strict=True))


# Part of a training graph after the gradient: penalty, clipping, update, average of the parameters.


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

    ``occurs`` says of matrices, by name, which of their rows or columns change.
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
    """Emit which elements of the vector of the parameters a step changes."""
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
    # the graph alone, which proves that the update is one: that its shapes fit, and that it follows the weight decay
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
    """Emit the moving average after so many steps, ``averaged`` in type ``kind``."""
    exact = GraphBuilder(op.graph, dtype=kind, prefix="average")
    weight = exact.Div(1.0 - decay, exact.Sub(1.0, exact.Pow(decay, averaged)))
    return op.Add(average, op.Mul(op.Sub(parameters, average), op.Cast(weight, to=op.dtype)))


# The names of the tensors of the state: files of a state hold them, so they are the same whatever the model is.


def reserve_names(op: GraphBuilder, source: ExportSource, names: Collection[str]) -> None:
    """Give other names to values of the graph that have these ones; raise where data or weights have them.

    The columns of a table keep their names too: inputs of the step that are called so get another one.
    """
    columns = () if source.front is None else [value.name or "" for value in source.front.graph.inputs]
    layout, inputs = source.parts.parameters, [spec.name for spec in source.parts.model.inputs]
    given = {*columns, *layout.names, *layout.running_statistics, *(inputs if source.front is None else ())}
    if clash := sorted(given & set(names)):
        raise ModelError(
            f"The model has an input, a column or a weight {clash[0]!r}, which is the name of a tensor of the state in "
            f"training graphs: rename it."
        )
    graph = op.graph
    values = [*graph.initializers.values(), *(value for node in graph.all_nodes() for value in node.outputs)]
    for value in [value for value in values if value.name in names]:
        value.name = op.taken.numbered(value.name or "")
    op.taken.difference_update(names)
    op.taken.update(columns)


# The inputs of a step for targets and weights of the rows: one target, or one for each output, with its weights.
#
# A step on several outputs trains on one matrix, in which class indices are numbers. In the graph each target has an
# input of its own, of the type and shape that the target of that output alone would have.


@dataclass(frozen=True)
class TargetInput:
    """The input for a target; ``factor`` names that for its factors of the weights of the rows, of several targets."""

    name: str
    factor: str | None = None


def emit_row_inputs(op: GraphBuilder, source: ExportSource) -> tuple[tuple[TargetInput, ...], str]:
    """Give the step its inputs for targets and for the weights of the rows; return those and the name of the latter."""
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
    exact = GraphBuilder(op.graph, dtype=kind, prefix="target")  # in float64 as on the host where ``kind`` is that
    scaled = op.Cast(exact.Div(exact.Sub(given, scale.center), scale.scale), to=op.dtype)
    replace_inputs(op.graph, {TARGET: scaled})
    return given.name or ""


def _weight_of_rows(op: GraphBuilder, source: ExportSource, target: str) -> str:
    """Return the name of the input for the weights of the rows, which those of their labels multiply."""
    trained = _graph_input(op, WEIGHT)
    if label_weights(source) is None:
        return _renamed_input(op, trained, "sample_weight")
    given = _row_input(op, "sample_weight", op.dtype, _fixed_shape(trained))
    replace_inputs(op.graph, {WEIGHT: emit_row_weights(op, source, given, _graph_input(op, target))})
    return given.name or ""


def _targets_of_outputs(op: GraphBuilder, outputs: Sequence[OutputSource], batch: int) -> tuple[TargetInput, ...]:
    """Let the step read a target and factors for each output; return their inputs."""
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


# Gradients of matrices that a pass reads by rows, and which of their rows occur, as operators of the training graph.
#
# A pass that leaves the sums to the host returns the indices and the gradient of each row that it reads. Here the graph
# adds them up itself, in a matrix with one more row: what is read as padding goes there, and is cut off. What occurs is
# returned with the axes of the matrix, in one column, or in one row where it is stored transposed.


OCCURS = "onnxtrain/occurs"
"""Stem of the outputs that say of each row of a matrix whether an index of the minibatch names it."""


def return_rows_added_up(model: ir.Model, lookups: Sequence[Lookup], kind: ir.DataType) -> dict[str, str]:
    """Let the pass return the gradients of the matrices, in place; return the outputs for what occurs, by matrix."""
    graph, op = model.graph, GraphBuilder(model.graph, dtype=kind, prefix="rows")
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
        gradient, found = _added_rows(op, own, outputs)
        append_output(graph, gradient, f"{name}_grad", ir.val("like", kind, own[0].shape))
        occurs[name] = f"{OCCURS}/{name}"
        column = (own[0].shape[0], 1)
        append_output(graph, op.Reshape(found, column), occurs[name], ir.val("like", ir.DataType.BOOL, column))
    taken = {outputs[name] for lookup in lookups for name in (lookup.indices, f"{lookup.rows}_grad")}
    graph.outputs[:] = [value for value in graph.outputs if value not in taken]
    return occurs


def return_occurring_columns(
    model: ir.Model, products: Sequence[FirstProduct], trained: Collection[str], kind: ir.DataType
) -> dict[str, str]:
    """Let the pass say which columns of its inputs are not zero in all rows; return the outputs by trained matrix."""
    graph, op, occurs = model.graph, GraphBuilder(model.graph, dtype=kind, prefix="columns"), dict[str, str]()
    inputs = {value.name or "": value for value in graph.inputs}
    for product in products:
        if product.weight in trained:
            value, name = inputs[product.input], product.weight
            rows, columns = (int(str(size)) for size in value.shape or ())
            stored = op.Cast(op.Not(op.Equal(value, 0.0)), to=kind)
            shape = (1, columns) if product.transposed else (columns, 1)
            counts = op.MatMul(np.ones((1, rows), kind.numpy()), stored)
            found = op.Reshape(op.Greater(counts, 0.0), shape)
            occurs[name] = f"{OCCURS}/{name}"
            append_output(graph, found, occurs[name], ir.val("like", ir.DataType.BOOL, shape))
    return occurs


def _added_rows(
    op: GraphBuilder, reads: Sequence[Lookup], outputs: Mapping[str, ir.Value]
) -> tuple[ir.Value, ir.Value]:
    """Return the gradient of a matrix, and whether each of its rows occurs."""
    shape, width = reads[0].shape, reads[0].width
    places = _all_reads(op, [_named_table_rows(op, read, outputs[read.indices]) for read in reads])
    slopes = _all_reads(op, [outputs[f"{read.rows}_grad"] for read in reads])
    column = op.Unsqueeze(places, axes=[1])
    zeros = op.ConstantOfShape([shape[0] + 1, width], value=ir.tensor(np.zeros(1, op.dtype.numpy())))
    index = op.Expand(column, [sum(read.count for read in reads), width])
    added = op.ScatterElements(zeros, index, slopes, axis=0, reduction="add")
    named = op.ConstantOfShape([shape[0] + 1], value=ir.tensor(np.zeros(1, bool)))
    ones = op.ConstantOfShape([sum(read.count for read in reads)], value=ir.tensor(np.ones(1, bool)))
    occurs = op.ScatterElements(named, places, ones, axis=0)
    cut = [op.Slice(value, starts=[0], ends=[shape[0]], axes=[0]) for value in (added, occurs)]
    return op.Reshape(cut[0], list(shape)), cut[1]


def _named_table_rows(op: GraphBuilder, read: Lookup, indices: ir.Value) -> ir.Value:
    """Return the row that each index names: negative ones count from the end, and padding is one behind the last."""
    rows = read.shape[0]
    places = op.Where(op.Less(indices, 0), op.Add(indices, rows), indices)
    return places if read.padding is None else op.Where(op.Equal(indices, read.padding), rows, places)


def _all_reads(op: GraphBuilder, values: Sequence[ir.Value]) -> ir.Value:
    return values[0] if len(values) == 1 else op.Concat(*values, axis=0)

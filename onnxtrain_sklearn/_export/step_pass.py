"""The forward and backward pass of a step, over all of its minibatches.

``step_pass`` returns the gradient graph that training itself would use, with two additions. Where rows of a matrix are
updated only if they occur, the graph adds up their gradients itself and returns which ones occur. Where a step adds up
the gradients of several minibatches, ``pass_of_group`` repeats the pass for each.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from .._ir.edits import append_nodes, append_output, initializers_to_inputs
from .._ir.protobuf import from_bytes
from .._model.row_reads import FirstProduct, Lookup, take_first_products
from .._training.loss_graph import TARGET, WEIGHT, ir_type, training_graph
from .._training.programs import PassSource, pass_program
from .._training.randomness import FACTOR
from ..exceptions import UnsupportedOperatorError
from ..graph import GraphBuilder
from .source import ExportSource


@dataclass(frozen=True, eq=False)
class StepPass:
    """The graph of a pass over the minibatches of a step.

    Attributes
    ----------
    model : onnx_ir.Model
    random : tuple of str
        Its inputs for uniform random numbers.
    drops : bool
        Whether it reads a factor of dropout.
    occurs : mapping of str to str
        The outputs that say which rows of a matrix occur, by the matrices whose other rows stay as they are.
    """

    model: ir.Model
    random: tuple[str, ...]
    drops: bool
    occurs: Mapping[str, str]


def step_pass(source: ExportSource) -> StepPass:
    """Return the pass over the minibatches of a step."""
    parts = source.parts
    settings, rows = replace(parts.settings, engine="portable"), parts.batch // source.minibatches
    lazy = settings.lazy_rows
    program = pass_program(PassSource(parts.model, settings, parts.parameters, parts.frozen, rows, adds_rows=lazy))
    inputs = [value.name or "" for value in program.random]
    random, model = tuple(name for name in inputs if name != FACTOR), from_bytes(program.graph)
    occurs, kind = dict[str, str](), ir_type(parts.parameters.vector.dtype)
    if lazy:
        graph = training_graph(parts.model, settings, parts.frozen, rows)
        products = take_first_products(graph, parts.sparse)
        occurs |= return_occurring_columns(model, products, parts.parameters.names, kind)
    occurs |= return_rows_added_up(model, program.lookups, kind)
    if source.minibatches > 1:
        model = pass_of_group(model, _roles_in_pass(source, random, occurs), source.minibatches)
    return StepPass(model, random, FACTOR in inputs, occurs)


def _roles_in_pass(source: ExportSource, random: tuple[str, ...], occurs: Mapping[str, str]) -> PassRoles:
    own, layout = source.parts.model, source.parts.parameters
    by_row = (*(spec.name for spec in own.inputs), TARGET, WEIGHT)
    statistics = {name: own.running_statistics[name] for name in layout.running_statistics}
    return PassRoles(by_row, WEIGHT, random, statistics, frozenset(occurs.values()))


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
        The inputs for random numbers. Each minibatch has its own: they get one more axis, the first.
    statistics : mapping of str to str
        The outputs for the next running statistics, by the inputs for the present ones.
    flags : frozenset of str
        The boolean outputs: True for the group where they are True for any minibatch.
    """

    by_row: tuple[str, ...]
    weight: str
    random: tuple[str, ...]
    statistics: Mapping[str, str]
    flags: frozenset[str] = frozenset()


def pass_of_group(model: ir.Model, roles: PassRoles, count: int) -> ir.Model:
    """Return the pass over ``count`` minibatches, whose loss and gradients are means by the weights of the rows.

    Batch normalization takes means over the rows of one minibatch. A step that adds up the gradients of several
    minibatches is therefore no pass over their rows together: its graph stands in the group once for each minibatch.
    All copies read the same parameters, and each reads the running statistics that the one before it returns.
    """
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


OCCURS = "onnxtrain/occurs"
"""Stem of the names of the outputs that flag, for each row of a matrix, whether the minibatch reads it."""


def return_rows_added_up(model: ir.Model, lookups: Sequence[Lookup], kind: ir.DataType) -> dict[str, str]:
    """Add up the gradients of the rows of matrices in the pass itself, in place; return the flag outputs by matrix.

    The pass of training returns indices and the gradient of each row that it reads, and leaves the sums to the host.
    The graph adds them up in a matrix with one more row, which takes the rows that are read as padding and is cut off.
    The flags have the axes of the matrix: one column, or one row where it is stored transposed.
    """
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
    """Flag the columns of the inputs that are not zero in all rows, in place; return the outputs by trained matrix."""
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
    """Return the gradient of a matrix, and a flag for each of its rows, True where it occurs."""
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
    """Return the row of each index: negative indices count from the end, and padding is the row after the last."""
    rows = read.shape[0]
    places = op.Where(op.Less(indices, 0), op.Add(indices, rows), indices)
    return places if read.padding is None else op.Where(op.Equal(indices, read.padding), rows, places)


def _all_reads(op: GraphBuilder, values: Sequence[ir.Value]) -> ir.Value:
    return values[0] if len(values) == 1 else op.Concat(*values, axis=0)

"""The forward and backward pass of a step, over all of its minibatches.

``step_pass`` returns the gradient graph that training itself would use, with two additions. With lazy updates, which
change only the rows of a matrix that occur in the minibatch, the graph adds up the gradients of these rows and flags
them (in training, the host does so). If a step accumulates several minibatches, ``pass_of_group`` repeats the pass.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

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
        Whether it reads a factor that scales all dropout ratios.
    occurs : mapping of str to str
        For each matrix with lazy updates, the output that flags the rows that occur.
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
        by_row = (*(spec.name for spec in parts.model.inputs), TARGET, WEIGHT)
        moved = parts.model.running_statistics
        statistics = {name: moved[name] for name in parts.parameters.running_statistics}
        roles = PassRoles(by_row, random, statistics, frozenset(occurs.values()))
        model = pass_of_group(model, roles, source.minibatches)
    return StepPass(model, random, FACTOR in inputs, occurs)


@dataclass(frozen=True)
class PassRoles:
    """Names of the inputs and the outputs of a pass.

    Attributes
    ----------
    by_row : tuple of str
        Inputs whose first axis is the rows.
    random : tuple of str
        Inputs for random numbers. They get one more axis, the first, because each minibatch has its own numbers.
    statistics : mapping of str to str
        Names of the outputs for the next running statistics, by the names of the inputs for the present ones.
    flags : frozenset of str
        The boolean outputs, which are joined by "or" over the minibatches.
    """

    by_row: tuple[str, ...]
    random: tuple[str, ...]
    statistics: Mapping[str, str]
    flags: frozenset[str]


def pass_of_group(model: ir.Model, roles: PassRoles, count: int) -> ir.Model:
    """Return the pass over ``count`` minibatches, whose loss and gradients are means weighted by the rows.

    One pass over all rows together would be wrong, because batch normalization takes means over the rows of a single
    minibatch. The graph therefore contains the pass once for each minibatch. All copies read the same parameters; each
    reads the running statistics that the previous one returns.
    """
    single = model.graph
    graph = ir.Graph([], [], nodes=[], name="group", opset_imports=dict(single.opset_imports))
    weight = next(value for value in single.inputs if value.name == WEIGHT)
    assert weight.dtype is not None
    op = GraphBuilder(graph, dtype=weight.dtype, prefix="group")

    # The inputs of the group, and the parts of them that each minibatch reads; running statistics are not split.
    given = dict[str, ir.Value]()
    for value in single.inputs:
        sizes = [int(str(size)) for size in value.shape or ()]
        if value.name in roles.by_row:
            sizes[0] *= count
        elif value.name in roles.random:
            sizes = [count, *sizes]
        given[value.name or ""] = ir.Value(name=value.name, type=value.type, shape=ir.Shape(sizes))
    graph.inputs.extend(given.values())
    op.taken.update([*given, *(value.name or "" for value in single.outputs), *single.initializers])
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
    statistics = {name: given[name] for name in roles.statistics}
    names = [value.name or "" for value in single.outputs]
    for part, share in zip(parts, shares, strict=True):
        copy, read = single.clone(), held | part | statistics
        initializers_to_inputs(copy, list(held))
        results = append_nodes(op, copy, [read[value.name or ""] for value in copy.inputs])
        found = dict(zip(names, results, strict=True))
        statistics = {name: found.pop(moved) for name, moved in roles.statistics.items()}
        for name, value in found.items():
            own = value if name in roles.flags else op.Mul(value, share)
            both = op.Or if name in roles.flags else op.Add
            sums[name] = both(sums[name], own) if name in sums else own
    sums |= {moved: statistics[name] for name, moved in roles.statistics.items()}
    for like in single.outputs:
        append_output(graph, sums[like.name or ""], like.name or "", like)
    return ir.Model(graph, ir_version=model.ir_version)


OCCURS = "onnxtrain/occurs"
"""Stem of the names of the outputs that flag, for each row of a matrix, whether the minibatch reads it."""


def return_rows_added_up(model: ir.Model, lookups: Sequence[Lookup], kind: ir.DataType) -> dict[str, str]:
    """Let the pass add up the gradients of rows that it looks up, in place; return its flag outputs by matrix.

    In training the pass returns indices and a gradient for each lookup, and the host adds them up. Here the graph
    scatters them into a matrix with one more row for padding, which is cut off. A flag output has one column.
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
        (n_rows, *_), width, count = own[0].shape, own[0].width, sum(read.count for read in own)
        places, slopes = list[ir.Value](), [outputs[f"{read.rows}_grad"] for read in own]
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
        occurs[name] = f"{OCCURS}/{name}"
        append_output(
            graph, op.Reshape(found, (n_rows, 1)), occurs[name], ir.val("like", ir.DataType.BOOL, (n_rows, 1))
        )
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

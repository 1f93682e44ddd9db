"""Gradients of matrices that a pass reads by rows, and which of their rows occur, as operators of the training graph.

A pass that leaves the sums to the host returns the indices and the gradient of each row that it reads. Here the graph
adds them up itself, in a matrix with one more row: what is read as padding goes there, and is cut off. What occurs is
returned with the axes of the matrix, in one column, or in one row where it is stored transposed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from .._graph.builder import GraphBuilder
from .._graph.edits import append_output
from .._graph.first_products import FirstProduct
from .._graph.lookups import Lookup
from ..exceptions import UnsupportedOperatorError

OCCURS = "onnxtrain/occurs"
"""Stem of the outputs that say of each row of a matrix whether an index of the minibatch names it."""


def return_rows_added_up(model: ir.Model, lookups: Sequence[Lookup], kind: ir.DataType) -> dict[str, str]:
    """Let the pass return the gradients of the matrices, in place; return the outputs for what occurs, by matrix."""
    graph, op = model.graph, GraphBuilder(model.graph, dtype=kind, prefix="rows")
    if lookups and op.opset < 16:
        raise UnsupportedOperatorError(
            f"Lazy updates of embeddings add up rows by ScatterElements, which needs opset 16 in training graphs, and "
            f"the model is in opset {op.opset}: convert it (onnx.version_converter), or set sparse_updates='exact'."
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

"""Gathering of the minibatch inside the graph, from data that are in the memory of the device."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from .._graph.builder import GraphBuilder
from .._graph.edits import copy_type, replace_input

DATA, ROW_NUMBERS = "onnxtrain/data/", "onnxtrain/rows"


def gather_rows(graph: ir.Graph, names: Sequence[str], batch: int) -> None:
    """Let ``graph`` gather the minibatch: each of these inputs becomes a Gather of rows from all data."""
    op = GraphBuilder(graph, prefix="onnxtrain/gather")
    rows = ir.val(ROW_NUMBERS, ir.DataType.INT64, (batch,))
    graph.inputs.append(rows)
    for value in [v for v in graph.inputs if v.name in names]:
        shape = ["n_samples", *list(value.shape or ())[1:]]
        data = ir.Value(name=f"{DATA}{value.name}", type=value.type, shape=ir.Shape(shape))
        replace_input(graph, value, data, copy_type(op.Gather(data, rows, axis=0), value))
    graph.sort()

"""Scaling of sparse rows without making them dense: a scaler that keeps zeros multiplies columns by numbers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .._data.columns import Column
from .._given.comparison import run_graph
from .._runtime.devices import Device
from .run import Columns, sparse_inputs

KEEPS = frozenset({"Cast", "Identity"})
"""Operators that change no number."""


def column_factors(model: ir.Model, columns: Columns, device: Device) -> np.ndarray | None:
    """Return what a graph multiplies each column of sparse rows by; None where it computes anything else."""
    graph = model.graph
    names = [value.name or "" for value in graph.inputs]
    if len(names) != 1 or names[0] not in sparse_inputs(columns) or not _multiplies_only(graph):
        return None
    column = columns[names[0]]
    ones = Column(np.ones((1, *column.shape[1:]), column.dtype), column.dtype)
    found = run_graph(model, {names[0]: ones}, np.arange(1), device)
    return found[0] if found.shape == ones.shape and np.isfinite(found).all() else None


def _multiplies_only(graph: ir.Graph) -> bool:
    """Whether the values of the graph are its input, or that times numbers or divided by them."""
    of_data = set(graph.inputs)
    for node in graph:
        places = [i for i, value in enumerate(node.inputs) if value in of_data]
        if not places:
            continue
        allowed = {"Mul": ([0], [1]), "Div": ([0],)}.get(node.op_type, ([0],) if node.op_type in KEEPS else ())
        if node.domain or places not in allowed:
            return False
        of_data.update(node.outputs)
    return True


def multiplied(column: Column, factors: np.ndarray) -> Column:
    """Return sparse data with each column multiplied by its factor."""
    rows = column.sparse_rows(slice(None))
    numbers = (rows.data * factors[rows.indices]).astype(factors.dtype)
    return Column(type(rows)((numbers, rows.indices, rows.indptr), shape=rows.shape, copy=False), factors.dtype)


def root_mean_squares(column: Column, rows: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Return the root mean square of each column of sparse data over the weighted rows."""
    part = column.sparse_rows(rows).astype(np.float64)
    own = np.ones(len(rows)) if weights is None else weights
    return np.asarray(np.sqrt((part.multiply(part).T @ own) / own.sum()))

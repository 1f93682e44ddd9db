"""Columns that new rows take out of the range of a frozen scaler, and the weights that read them.

A column that hardly varies in the old rows has a tiny scale. Where it varies in the new rows, its scaled values are far
larger than all that the model has seen, and its weights, which training has hardly moved, spoil the scores.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import onnx_ir as ir

from .._given.comparison import run_graph
from .._graph.new_head import graph_of_features
from .._graph.queries import int_attribute, reaching
from .examples import Examples
from .run import Run, sparse_inputs
from .sparse_scaling import column_factors, root_mean_squares

OUT_OF_RANGE = 5.0
"""Root mean square of a scaled column beyond which the column is out of range.

Of old rows it is about one; for indicators of rare categories it reaches three or four with little drift.
"""

LOOKED_AT = 1000
"""Rows that tell the range of the columns; the rows come in random order."""

MIXES = frozenset({"Conv", "Gemm", "MatMul"})
"""Operators of decompositions and layers: what they compute has no unit scale."""


def damping_of(run: Run, examples: Examples, rows: np.ndarray, scalers: Collection[str]) -> np.ndarray | None:
    """Return what each trained weight is to be divided by: at least one, more behind columns out of range.

    ``scalers`` names the parameters of the transformers. None: no column is out of range.
    """
    rows, result = rows[:LOOKED_AT], np.ones(len(run.parameters.vector))
    for values, weight, transposed in _scaled_layers(run.source.model.graph, run.parameters.names, scalers):
        sizes = _sizes(run, examples, rows, values)
        if sizes is None:
            continue
        view = result[run.parameters.span(weight)].reshape(run.parameters.view(weight).shape)
        if len(sizes) == view.shape[1 if transposed else 0] and sizes.max() > OUT_OF_RANGE:
            factors = np.maximum(1.0, sizes)
            view *= factors if transposed else factors[:, None]
    return result if np.max(result) > 1 else None


def _scaled_layers(
    graph: ir.Graph, trained: Collection[str], scalers: Collection[str]
) -> Iterator[tuple[str, str, bool]]:
    """Yield the input, the weight, and whether it is transposed, of each trained layer right behind scalers."""
    for node in graph:
        if node.op_type not in ("Gemm", "MatMul") or int_attribute(node, "transA", 0):
            continue
        values, weight = node.inputs[0], node.inputs[1]
        if values is not None and weight is not None and weight.name in trained and _is_scaled(graph, values, scalers):
            yield values.name or "", weight.name or "", bool(int_attribute(node, "transB", 0))


def _is_scaled(graph: ir.Graph, values: ir.Value, scalers: Collection[str]) -> bool:
    names = reaching(values)
    mixed = any(node.op_type in MIXES and not names.isdisjoint(v.name or "" for v in node.outputs) for node in graph)
    return not mixed and not names.isdisjoint(scalers)


def _sizes(run: Run, examples: Examples, rows: np.ndarray, values: str) -> np.ndarray | None:
    """Return the root mean square of each column of an inner tensor on the rows; None for sparse rows made dense."""
    model, _ = graph_of_features(run.source.model, values)
    if sparse_inputs(examples.columns):
        return _sizes_of_sparse(run, examples, rows, model)
    found = run_graph(model, examples.columns, rows, run.device).astype(np.float64)
    weights = None if examples.weights is None else examples.weights[rows]
    squares = np.average(found.reshape(len(found), -1) ** 2, axis=0, weights=weights)
    return np.nan_to_num(np.sqrt(squares), nan=1.0, posinf=1.0)


def _sizes_of_sparse(run: Run, examples: Examples, rows: np.ndarray, model: ir.Model) -> np.ndarray | None:
    factors = column_factors(model, examples.columns, run.device)
    if factors is None:
        return None
    weights = None if examples.weights is None else examples.weights[rows]
    (name,) = (value.name or "" for value in model.graph.inputs)
    return np.asarray(np.abs(factors) * root_mean_squares(examples.columns[name], rows, weights))

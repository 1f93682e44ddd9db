"""Graphs whose data are one thing, such as the nodes and edges of one network, of different lengths.

All other modules assume inputs with a row for each sample. In such a graph, each row of the output depends on all data.
Training therefore runs another graph (:func:`bound_to_data`): the data are its constants, and its only input holds the
indices of the rows whose outputs it returns. These are rows like any others: they are weighted, shuffled, held out or
left out. Predictions run the graph itself, once, on all of the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from .._ir.edits import replace_by_initializer
from ..graph import GraphBuilder
from .batch_axis import infer_anew
from .trainable import TensorSpec, TrainableModel

ROW = "row_of_output"
"""Name of the input with the indices of rows."""


def bound_to_data(graph: TrainableModel, arrays: Mapping[str, np.ndarray]) -> TrainableModel:
    """Return ``graph`` with ``arrays`` as constants in place of its inputs, and the input ``ROW``."""
    model = graph.model.clone()
    inner = model.graph
    for value in list(inner.inputs):
        inner.inputs.remove(value)
        replace_by_initializer(inner, value, np.ascontiguousarray(arrays[value.name or ""]), value.name or "")
    infer_anew(model)
    rows = ir.Value(name=ROW, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([ir.SymbolicDim("N")]))
    inner.inputs.append(rows)
    op = GraphBuilder(inner, prefix="rows_of_output")
    for i, value in enumerate(list(inner.outputs)):
        own = op.Gather(value, rows, axis=0)
        name = value.name or ""
        value.name = op.name(f"{name}/whole")
        own.name, own.type = name, value.type
        if value.shape is not None:
            own.shape = ir.Shape([ir.SymbolicDim("N"), *value.shape[1:]])
        own.metadata_props.update(value.metadata_props)
        inner.outputs[i] = own
    inner.sort()
    return replace(graph, model=model, inputs=(TensorSpec(ROW, np.dtype(np.int64), (None,)),))

"""One graph from a raw table to predictions: preprocessing and network of each member, and the mean of the members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .._graph.builder import GraphBuilder
from .._graph.edits import append_graph
from .._graph.links import Task
from .._graph.protobuf import from_bytes
from .._graph.shapes import infer_shapes
from .._inference.averages import averaged_predictions
from .preprocessing import Preprocessing


@dataclass(frozen=True, eq=False)
class Member:
    """One trained network, and what comes before it.

    Attributes
    ----------
    preprocessing : Preprocessing
    model : bytes
        The inference graph of the network: a matrix to the predictions, or to label and probabilities.
    """

    preprocessing: Preprocessing
    model: bytes


def assembled(members: Sequence[Member], task: Task, classes: np.ndarray | None = None) -> ir.Model:
    """Return the graph that predicts from the raw table; ``classes`` are the labels of classifiers.

    Several members are averaged: their predictions, or their probabilities, which give the labels.
    """
    op = members[0].preprocessing.new_graph()
    results = [
        _append_model(op, member.model, member.preprocessing.emit(op), f"{i}." if len(members) > 1 else "")
        for i, member in enumerate(members)
    ]
    outputs = results[0] if len(members) == 1 else averaged_predictions(op, results, task, classes)
    names = ["variable"] if task == "regression" else ["label", "probabilities"]
    for name, value in zip(names, outputs, strict=True):
        value.name = op.taken.free(name)
        op.graph.outputs.append(value)
    model = ir.Model(op.graph, ir_version=8, producer_name="onnxtrain_sklearn")
    if any(value.type is None or value.shape is None for value in op.graph.outputs):
        infer_shapes(model)
    return model


def _append_model(op: GraphBuilder, model: bytes, matrix: ir.Value, prefix: str) -> list[ir.Value]:
    """Append a network under new names, its weights under ``prefix`` and their own; return its outputs."""
    graph = from_bytes(model).graph
    for domain, version in graph.opset_imports.items():
        op.graph.opset_imports.setdefault(domain, version)
    return append_graph(op, graph, [matrix], prefix)

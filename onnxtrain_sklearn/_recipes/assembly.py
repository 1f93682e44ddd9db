"""One graph from a raw table to predictions: preprocessing and network of each member, and the mean of the members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .._graph.builder import GraphBuilder
from .._graph.edits import append_nodes
from .._graph.shapes import infer_shapes
from .._inference.graph import class_constant
from .preprocessing import Preprocessing


@dataclass(frozen=True, eq=False)
class Member:
    """One trained network, and what comes before it.

    Attributes
    ----------
    preprocessing : Preprocessing
    model : onnx_ir.Model
        The inference graph of the network: a matrix to the predictions, or to label and probabilities.
    """

    preprocessing: Preprocessing
    model: ir.Model


def assembled(members: Sequence[Member], classes: np.ndarray | None) -> ir.Model:
    """Return the graph that predicts from the raw table; ``classes`` are the labels of classifiers.

    Several members are averaged: their predictions, or their probabilities, of which the largest gives the label.
    """
    op = members[0].preprocessing.new_graph()
    results = [
        _append_model(op, member.model, member.preprocessing.emit(op), f"{i}." if len(members) > 1 else "")
        for i, member in enumerate(members)
    ]
    outputs = results[0] if len(members) == 1 else _averaged(op, results, classes)
    names = ["variable"] if classes is None else ["label", "probabilities"]
    for name, value in zip(names, outputs, strict=True):
        value.name = op.taken.free(name)
        op.graph.outputs.append(value)
    model = ir.Model(op.graph, ir_version=8, producer_name="onnxtrain_sklearn")
    infer_shapes(model)
    return model


def _averaged(
    op: GraphBuilder, results: Sequence[Sequence[ir.Value]], classes: np.ndarray | None
) -> Sequence[ir.Value]:
    """Return the mean of the last outputs, and for classifiers the label with the largest mean."""
    if classes is None:
        return [_mean_around(op, [result[-1] for result in results])]
    total = results[0][-1]
    for result in results[1:]:
        total = op.Add(total, result[-1])
    mean = op.Mul(total, 1 / len(results))
    return [op.Gather(class_constant(classes), op.ArgMax(mean, axis=1, keepdims=False)), mean]


def _mean_around(op: GraphBuilder, values: Sequence[ir.Value]) -> ir.Value:
    """Return the mean, which is exact where all values are equal."""
    first, *others = values
    differences = [op.Sub(other, first) for other in others]
    total = differences[0]
    for difference in differences[1:]:
        total = op.Add(total, difference)
    return op.Add(first, op.Mul(total, 1 / len(values)))


def _append_model(op: GraphBuilder, model: ir.Model, matrix: ir.Value, prefix: str) -> list[ir.Value]:
    """Append a network under new names, its weights under ``prefix`` and their own; return its outputs."""
    graph = model.clone().graph
    weights = list(graph.initializers.values())
    graph.initializers.clear()
    for weight in weights:
        weight.name = op.taken.free(f"{prefix}{weight.name}")
        op.graph.register_initializer(weight)
    for domain, version in graph.opset_imports.items():
        op.graph.opset_imports.setdefault(domain, version)
    return append_nodes(op, graph, [matrix])

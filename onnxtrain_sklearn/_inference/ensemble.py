"""One graph of several copies of a network, whose weights differ; what it predicts is the mean of theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from .._graph.activation import as_rows
from .._graph.builder import GraphBuilder
from .._graph.edits import append_nodes
from .._graph.trainable import TrainableModel

MemberWeights = Mapping[str, np.ndarray]


def ensemble_of(model: TrainableModel, each: Sequence[MemberWeights]) -> tuple[TrainableModel, dict[str, np.ndarray]]:
    """Return a model with a member for each of these weights, and the weights of all, under the names of that model."""
    whole = model.model.clone()
    op = GraphBuilder(whole.graph, dtype=ir.DataType.from_numpy(model.dtype), prefix="ensemble", constant_nodes=True)
    scores = []
    for number in range(len(each)):
        graph = whole.graph if number == 0 else model.model.clone().graph
        own = next(value for value in graph.outputs if value.name == model.scores)
        graph.outputs[:] = [own]
        _rename_weights(op, graph, each[number], number)
        scores.append(own if number == 0 else append_nodes(op, graph, whole.graph.inputs)[0])
    whole.graph.outputs.clear()
    rows = [as_rows(op, value) for value in scores]  # of one score, (N,) or (N, 1)
    joined = op.Concat(*(op.Unsqueeze(value, axes=[1]) for value in rows), axis=1)
    whole.graph.outputs.append(joined)
    name = joined.name or ""
    named = {_member_name(weight, i): array for i, one in enumerate(each) for weight, array in one.items()}
    made = replace(
        model, model=whole, output=name, scores=name, link=None, log_output=False, paired=False, normalised=False,
        members=len(each),
    )  # fmt: skip
    return made, named


def _member_name(weight: str, number: int) -> str:
    return f"{number}.{weight}"


def _rename_weights(op: GraphBuilder, graph: ir.Graph, weights: MemberWeights, number: int) -> None:
    """Give the weights of a member names of their own, and move its constants to the graph of ``op``."""
    held = list(graph.initializers.values())
    graph.initializers.clear()
    for value in held:
        name = value.name or ""
        value.name = _member_name(name, number) if name in weights else op.taken.free(name)
        op.graph.register_initializer(value)

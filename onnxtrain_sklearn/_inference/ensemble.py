"""Average several networks, or several states of one, in one inference graph.

:func:`ensemble_of` joins the states of one network: a model with a member for each, whose predictions the inference
graph averages. :func:`averaged_predictions` averages the outputs of whole networks, for the estimators for tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from .._ir.edits import append_nodes
from .._model.activation import as_rows
from .._model.links import Task
from .._model.trainable import TrainableModel
from ..graph import GraphBuilder
from .graph import class_constant

MemberWeights = Mapping[str, np.ndarray]


def ensemble_of(graph: TrainableModel, each: Sequence[MemberWeights]) -> tuple[TrainableModel, dict[str, np.ndarray]]:
    """Return a model with one member per set of weights, and the weights of all members under its names."""
    whole = graph.model.clone()
    op = GraphBuilder(whole.graph, dtype=ir.DataType.from_numpy(graph.dtype), prefix="ensemble", constant_nodes=True)
    scores = []
    for number in range(len(each)):
        ir_graph = whole.graph if number == 0 else graph.model.clone().graph
        own = next(value for value in ir_graph.outputs if value.name == graph.scores)
        ir_graph.outputs[:] = [own]
        # The weights of each member get names of their own; constants move to the joint graph beside them.
        held = list(ir_graph.initializers.values())
        ir_graph.initializers.clear()
        for value in held:
            weight = value.name or ""
            value.name = _member_name(weight, number) if weight in each[number] else op.taken.free(weight)
            op.graph.register_initializer(value)
        scores.append(own if number == 0 else append_nodes(op, ir_graph, whole.graph.inputs)[0])
    whole.graph.outputs.clear()
    rows = [as_rows(op, value) for value in scores]  # of one score, (N,) or (N, 1)
    joined = op.Concat(*(op.Unsqueeze(value, axes=[1]) for value in rows), axis=1)
    whole.graph.outputs.append(joined)
    name = joined.name or ""
    named = {_member_name(weight, i): array for i, one in enumerate(each) for weight, array in one.items()}
    made = replace(
        graph, model=whole, output=name, scores=name, link=None, log_output=False, paired=False, link_unproven=False,
        members=len(each),
    )  # fmt: skip
    return made, named


def averaged_predictions(
    op: GraphBuilder, results: Sequence[Sequence[ir.Value]], task: Task, classes: np.ndarray | None
) -> Sequence[ir.Value]:
    """Return the mean of the last outputs, and for classifiers the labels before it.

    A row has the label of the largest mean; of several labels that are 0 or 1, those above one half are 1.
    """
    if task == "regression":
        # The mean of the differences from the first: it is exact where all predictions are equal.
        first, *others = (result[-1] for result in results)
        differences = [op.Sub(other, first) for other in others]
        total = differences[0]
        for difference in differences[1:]:
            total = op.Add(total, difference)
        return [op.Add(first, op.Mul(total, 1 / len(results)))]
    total = results[0][-1]
    for result in results[1:]:
        total = op.Add(total, result[-1])
    mean = op.Mul(total, 1 / len(results))
    if task == "multilabel":
        return [op.Cast(op.Greater(mean, 0.5), to=ir.DataType.INT64), mean]
    assert classes is not None
    return [op.Gather(class_constant(classes), op.ArgMax(mean, axis=1, keepdims=False)), mean]


def _member_name(weight: str, number: int) -> str:
    return f"{number}.{weight}"

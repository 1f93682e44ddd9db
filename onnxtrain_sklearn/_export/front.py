"""What stands before a network: the graph from the columns of a table to the matrix that is trained on.

It has no trained weights. In training graphs it computes the inputs of the network from each minibatch, so that a loop
gives the rows as they are in the table.
"""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from .._graph.builder import GraphBuilder
from .._graph.edits import append_graph, replace_inputs
from ..exceptions import ModelError
from .predict_graph import PredictGraph
from .step_graph import StepGraph


def step_behind(front: ir.Model, step: StepGraph) -> StepGraph:
    """Return the step whose data are the inputs of ``front``; the model of ``step`` is changed."""
    _put_in_front(front, step.model.graph, step.batch)
    return replace(step, data=tuple(value.name or "" for value in front.graph.inputs))


def predictions_behind(front: ir.Model, predict: PredictGraph) -> PredictGraph:
    """Return the graph that predicts from the inputs of ``front``; the model of ``predict`` is changed."""
    _put_in_front(front, predict.model.graph, "N")
    return predict


def _put_in_front(front: ir.Model, graph: ir.Graph, rows: int | str) -> None:
    """Let ``graph`` compute the inputs that have the names of the outputs of ``front``."""
    _require_equal_opsets(front, graph)
    own, op = front.clone().graph, GraphBuilder(graph, prefix="front")
    names = [value.name or "" for value in own.outputs]
    columns = [ir.Value(name=v.name, type=v.type, shape=ir.Shape([rows, *(v.shape or ())[1:]])) for v in own.inputs]
    computed = dict(zip(names, append_graph(op, own, columns, "front/"), strict=True))
    replace_inputs(graph, computed)
    taken = {value.name for value in (*graph.inputs, *graph.outputs)} | graph.initializers.keys()
    if clash := [column.name for column in columns if column.name in taken]:
        raise ModelError(
            f"The table has a column {clash[0]!r}, and the training graphs have an input or a weight of this name: "
            f"rename the column."
        )
    graph.inputs[:] = [*columns, *graph.inputs]
    graph.sort()


def _require_equal_opsets(front: ir.Model, graph: ir.Graph) -> None:
    for domain, version in front.graph.opset_imports.items():
        if graph.opset_imports.setdefault(domain, version) != version:
            raise ModelError(
                f"The steps before the network are in opset {version} of {domain or 'ai.onnx'!r}, and the network is "
                f"in {graph.opset_imports[domain]}: convert them to one (onnx.version_converter)."
            )

"""Small files: short names inside a graph, and no types of values that a runtime infers itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx
import onnx_ir as ir

from .._graph.names import Names
from .._graph.protobuf import to_proto


def compact_proto(model: ir.Model, name: str, taken: Collection[str] = ()) -> onnx.ModelProto:
    """Return ``model`` as protobuf, without the names and the types of values inside it; the model is changed.

    New names are other ones than those that are ``taken``.
    """
    graphs = list(model.graphs())
    kept = {*model.graph.inputs, *model.graph.outputs}
    names = Names([*taken, *(value.name or "" for value in kept)])
    for value in (value for graph in graphs for value in _inner_values(graph) if value not in kept):
        if value.name:  # an omitted output has none
            value.name = names.numbered("v")
    for node in model.graph.all_nodes():
        node.name = names.numbered("n")
        node.metadata_props.clear()
        node.doc_string = None
    ends = {value for graph in graphs for value in (*graph.inputs, *graph.outputs, *graph.initializers.values())}
    for value in (value for node in model.graph.all_nodes() for value in node.outputs if value not in ends):
        value.type = value.shape = None
    model.graph.name, model.producer_name, model.doc_string = name, "onnxtrain-sklearn", None
    model.metadata_props.clear()
    return to_proto(model)


def _inner_values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from list(graph.initializers.values())
    for node in graph:
        yield from node.outputs

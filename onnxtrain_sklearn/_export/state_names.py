"""The names of the tensors of the state: files of a state hold them, so they are the same whatever the model is."""

from __future__ import annotations

from collections.abc import Collection

from .._graph.builder import GraphBuilder
from ..exceptions import ModelError
from .source import ExportSource


def reserve_names(op: GraphBuilder, source: ExportSource, names: Collection[str]) -> None:
    """Give other names to values of the graph that have these ones; raise where data or weights have them.

    The columns of a table keep their names too: inputs of the step that are called so get another one.
    """
    columns = () if source.front is None else [value.name or "" for value in source.front.graph.inputs]
    layout, inputs = source.parts.parameters, [spec.name for spec in source.parts.model.inputs]
    given = {*columns, *layout.names, *layout.running_statistics, *(inputs if source.front is None else ())}
    if clash := sorted(given & set(names)):
        raise ModelError(
            f"The model has an input, a column or a weight {clash[0]!r}, which is the name of a tensor of the state in "
            f"training graphs: rename it."
        )
    graph = op.graph
    values = [*graph.initializers.values(), *(value for node in graph.all_nodes() for value in node.outputs)]
    for value in [value for value in values if value.name in names]:
        value.name = op.taken.numbered(value.name or "")
    op.taken.difference_update(names)
    op.taken.update(columns)

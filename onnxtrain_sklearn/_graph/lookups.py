"""Rows that Gather reads of matrices, taken out of a graph before it is differentiated and put back behind.

The gradient of such a matrix is zero but for the rows that are read: an engine would write all of it. Without the
Gather, the graph reads the rows from an input. Its gradient has a row for each index; whoever runs the graph adds
these rows up. The indices become an output.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from .builder import GraphBuilder
from .edits import replace_node, replace_value
from .queries import attribute, dims, fixed
from .torch_program import padding_row

LARGE = 4096
"""Elements from which on it is faster to add up the gradient outside: scattering takes 50 ns an element and more."""


@dataclass(frozen=True)
class Lookup:
    """A Gather of rows, which a graph reads from an input while it is differentiated.

    Attributes
    ----------
    weight : str
        Name of the initializer.
    shape : tuple of int
        Its shape.
    count : int
        Number of indices.
    rows, indices : str
        Names of the input for the rows, (count, width), and of the output for the indices, (count,) of int64.
    padding : int or None
        The row that is read without a gradient.
    """

    weight: str
    shape: tuple[int, ...]
    count: int
    rows: str
    indices: str
    padding: int | None

    @property
    def width(self) -> int:
        """Elements of a row."""
        return math.prod(self.shape[1:])


def take_lookups(model: ir.Model, names: Collection[str], least: int = LARGE) -> list[Lookup]:
    """Take the Gathers of the named initializers out of ``model``, in place, and return them.

    An initializer of fewer than ``least`` elements, or that anything else reads too, stays as it is.
    """
    graph = model.graph
    op = GraphBuilder(graph, prefix="lookup", constant_nodes=True)
    weights = [value for name, value in graph.initializers.items() if name in names and _is_looked_up(graph, value)]
    chosen = [value for value in weights if math.prod(dims(value) or [0]) >= least]  # type: ignore[arg-type]
    found = [_taken_rows(op, value, use.node) for value in chosen for use in list(value.uses())]
    for value in chosen:
        del graph.initializers[value.name or ""]
    if found:
        graph.sort()
    return found


def _is_looked_up(graph: ir.Graph, value: ir.Value) -> bool:
    """Whether nodes read whole rows of ``value``, as many as is known, and nothing else reads it."""
    if value.is_graph_output() or not value.uses() or not fixed(dims(value)) or not dims(value):
        return False
    return all(use.node.graph is graph and use.idx == 0 and _reads_rows(use.node) for use in value.uses())


def _reads_rows(node: ir.Node) -> bool:
    if (node.op_type, node.domain) != ("Gather", "") or node.outputs[0].is_graph_output():
        return False
    rank = len(dims(node.inputs[0]) or ())
    return attribute(node, "axis", 0) % rank == 0 and fixed(dims(node.inputs[1])) and fixed(dims(node.outputs[0]))


def _taken_rows(op: GraphBuilder, value: ir.Value, node: ir.Node) -> Lookup:
    """Replace a Gather by an input for the rows, and add an output for the indices."""
    index, shape, read = node.inputs[1], dims(value), dims(node.outputs[0])
    assert index is not None
    assert value.dtype is not None
    assert fixed(shape)
    assert fixed(read)
    count = math.prod(dims(index) or ())  # type: ignore[arg-type]
    places = op.Reshape(op.Cast(index, to=ir.DataType.INT64), [-1])
    places.dtype, places.shape = ir.DataType.INT64, ir.Shape([count])
    op.graph.outputs.append(places)
    rows = op.input("rows", value.dtype, (count, math.prod(shape[1:])))  # also of a vector, whose rows are numbers
    lookup = Lookup(value.name or "", tuple(shape), count, rows.name or "", places.name or "", padding_row(node))
    replace_node(op, node, [op.Reshape(rows, read)])
    return lookup


def put_back_lookups(model: ir.Model, lookups: Sequence[Lookup]) -> None:
    """Let ``model``, a gradient graph, read the rows itself, in place; the matrices become inputs."""
    graph = model.graph
    op = GraphBuilder(graph, prefix="lookup", constant_nodes=True)
    outputs = {value.name: value for value in graph.outputs}
    tables: dict[str, ir.Value] = {}
    for lookup in lookups:
        rows = next(value for value in graph.inputs if value.name == lookup.rows)
        if lookup.weight not in tables:
            assert rows.dtype is not None
            tables[lookup.weight] = ir.val(lookup.weight, rows.dtype, lookup.shape)
            graph.inputs.append(tables[lookup.weight])
        read = op.Gather(tables[lookup.weight], outputs[lookup.indices], axis=0)
        read = read if len(lookup.shape) == 2 else op.Reshape(read, [lookup.count, lookup.width])
        replace_value(op, rows, read)
        graph.inputs.remove(rows)
    if lookups:
        graph.sort()

"""Factors out the column in sums of two products with it: ``c a ± c b`` becomes ``c (a ± b)``.

The gradients of losses by the scores are such sums, with the weights of the rows as the column.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import product
from typing import NamedTuple

import onnx_ir as ir

from ..._graph.builder import GraphBuilder
from ..._graph.edits import copy_type, remove_unread, replace_node
from ..._graph.queries import dims, fixed


class _Term(NamedTuple):
    """The product of a column, or of its negative, with rows."""

    negative: bool
    column: ir.Value
    rows: ir.Value


def factor_out_columns(graph: ir.Graph, own: Collection[ir.Node]) -> None:
    """Rewrite the sums among the nodes ``own``, in place; shapes must be inferred before."""
    op, members = GraphBuilder(graph, prefix="gradient"), set(own)
    sums = [node for node in own if (node.domain, node.op_type) in (("", "Add"), ("", "Sub"))]
    if sum(_factor_out(op, node, members) for node in sums):
        graph.sort()
        remove_unread(graph, [node for node in own if node.graph is graph])


def _factor_out(op: GraphBuilder, node: ir.Node, own: Collection[ir.Node]) -> bool:
    """Replace a sum or difference of two products with the same column; return whether it is one."""
    first, second = (_terms(value, own, node) for value in node.inputs)
    for one, other in product(first, second):
        minus, minus_other = one.negative, other.negative != (node.op_type == "Sub")
        if one.column is other.column and not (minus and minus_other):
            rows = (other.rows, one.rows) if minus else (one.rows, other.rows)
            inner = op.Sub(*rows) if minus or minus_other else op.Add(*rows)
            replace_node(op, node, [op.Mul(copy_type(inner, node.outputs[0]), one.column)])
            return True
    return False


def _terms(value: ir.Value | None, own: Collection[ir.Node], reader: ir.Node) -> list[_Term]:
    """Return a product that only ``reader`` reads, once for each factor that is a column; none if it has no column."""
    node, size = None if value is None else value.producer(), dims(reader.outputs[0])
    if node is None or node not in own or (node.domain, node.op_type) != ("", "Mul") or not fixed(size) or not size:
        return []
    if len(node.outputs[0].uses()) != 1 or node.outputs[0].is_graph_output():
        return []
    pairs, shapes = (node.inputs, node.inputs[::-1]), (size, [*size[:-1], 1])
    found = [(column, rows) for column, rows in pairs if (dims(rows), dims(column)) == shapes]
    return [_Term(*_without_sign(column, own), rows) for column, rows in found if column is not None and rows]


def _without_sign(value: ir.Value, own: Collection[ir.Node]) -> tuple[bool, ir.Value]:
    """Return whether ``value`` is the negative of another value, and that or the value."""
    made = value.producer()
    negated = made.inputs[0] if made is not None and made in own and made.op_type == "Neg" else None
    return negated is not None, negated or value

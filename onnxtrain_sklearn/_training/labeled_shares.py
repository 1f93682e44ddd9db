"""The log loss by the shares of the rows at their labels: two nodes in place of five.

With one-hot labels y and shares s of the rows, a graph computes the loss -sum s y log p and its gradient s (p - y). A
row of the matrix d = -s y has one number, so the host takes it from a small table, in less time than the graph looks up
its label. The loss is sum d log p then, and its gradient s p + d.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from .._graph.builder import GraphBuilder
from .._graph.edits import remove_unread
from .._graph.queries import attribute, constant, kind, operand
from .cpu_products import replace_in_order
from .loss_graph import LOSS, TARGET, one_hot_table
from .repeated_shares import REPEATED, is_sum

LABELED = "onnxtrain/labeled_shares"


class _LogLoss(NamedTuple):
    """The nodes of the loss and of its gradient that read one-hot labels, and those behind them."""

    labels: ir.Node
    by_label: ir.Node
    sums: list[ir.Node]
    excess: ir.Node
    gradient: ir.Node


def take_labeled_shares(graph: ir.Graph) -> bool:
    """Let ``graph``, which reads the matrix of shares, read d in place of the labels; return whether it can."""
    inputs = {value.name: value for value in graph.inputs}
    shares, target = inputs.get(REPEATED), inputs.get(TARGET)
    nodes = None if shares is None or target is None else _log_loss(shares, target)
    if shares is None or target is None or nodes is None:
        return False
    op = GraphBuilder(graph, dtype=shares.dtype or ir.DataType.FLOAT, prefix="onnxtrain/labeled")
    labeled = ir.val(LABELED, shares.dtype, shares.shape)
    graph.inputs.append(labeled)
    by_class = op.Mul(labeled, nodes.by_label.inputs[nodes.by_label.inputs[0] is nodes.labels.outputs[0]])
    replace_in_order(op, nodes.sums[-1], [by_class, op.ReduceSum(by_class, keepdims=False)])
    weighted = op.Mul(nodes.excess.inputs[0], shares)
    replace_in_order(op, nodes.gradient, [weighted, op.Add(weighted, labeled)])
    remove_unread(graph, [nodes.labels, nodes.by_label, *nodes.sums[:-1], nodes.excess])
    graph.inputs.remove(target)
    return True


def _log_loss(shares: ir.Value, target: ir.Value) -> _LogLoss | None:
    """Return the nodes of -sum s y log p and s (p - y) if no others read one-hot labels y; None if there are others."""
    labels = next(iter(_sole_readers(target, "Gather")), None)
    if labels is None or not _looks_up_one_hot_rows(labels, target):
        return None
    readers = {kind(node): node for node in labels.outputs[0].consumers()}
    if readers.keys() != {"Mul", "Sub"} or len(labels.outputs[0].uses()) != 2:
        return None
    by_label, excess = readers["Mul"], readers["Sub"]
    sums = _sole_readers(by_label.outputs[0], "Mul", "ReduceSum", "Neg")
    gradient = _sole_readers(excess.outputs[0], "Mul")
    if not (sums and gradient and shares in sums[0].inputs and shares in gradient[0].inputs):
        return None
    whole = is_sum(sums[1], []) and sums[2].outputs[0].name == LOSS and excess.inputs[1] is labels.outputs[0]
    return _LogLoss(labels, by_label, sums, excess, gradient[0]) if whole else None


def _looks_up_one_hot_rows(node: ir.Node, labels: ir.Value) -> bool:
    """Whether a Gather reads the rows of the table of one-hot labels at the labels."""
    source = operand(node, 0)
    table = None if source is None else constant(source)
    if table is None or table.ndim != 2 or not np.array_equal(table, one_hot_table(table.shape[1]), equal_nan=True):
        return False
    return operand(node, 1) is labels and attribute(node, "axis", 0) == 0


def _sole_readers(value: ir.Value, *operators: str) -> list[ir.Node]:
    """Return the nodes of these types behind ``value``, each the only reader of what is before; [] if they differ."""
    found: list[ir.Node] = []
    for operator in operators:
        nodes = [use.node for use in value.uses()]
        if len(nodes) != 1 or value.is_graph_output() or kind(nodes[0]) != operator:
            return []
        found.append(nodes[0])
        value = found[-1].outputs[0]
    return found

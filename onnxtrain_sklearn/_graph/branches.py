"""If nodes whose condition is known: the nodes of the branch that is taken, in their place."""

from __future__ import annotations

import onnx_ir as ir

from .builder import GraphBuilder
from .edits import append_nodes, replace_node
from .integers import Integers, is_complete


def take_known_branches(graph: ir.Graph, known: Integers) -> bool:
    """Replace each If of the main graph with a condition in ``known``, in place; return whether there was one."""
    found = [node for node in graph if _is_known(node, known)]
    op = GraphBuilder(graph, prefix="branch")
    for node in found:
        condition = node.inputs[0]
        assert condition is not None
        _put_branch(op, node, taken=bool(known[condition].item()))
    if found:
        graph.sort()
    return bool(found)


def _is_known(node: ir.Node, known: Integers) -> bool:
    condition = known.get(node.inputs[0]) if node.op_type == "If" and not node.domain and node.inputs[0] else None
    return condition is not None and condition.size == 1 and is_complete(condition)


def _put_branch(op: GraphBuilder, node: ir.Node, *, taken: bool) -> None:
    body = node.attributes["then_branch" if taken else "else_branch"].as_graph()
    for value in list(body.initializers.values()):
        del body.initializers[value.name or ""]
        value.name = op.name(value.name or "constant")
        op.graph.initializers.add(value)
    replace_node(op, node, append_nodes(op, body, []))

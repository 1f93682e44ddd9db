"""States of Loops and Scans that no iteration changes."""

from __future__ import annotations

import onnx_ir as ir

from .edits import remove_states
from .queries import every_node

_LEADING = {"Loop": (2, 1), "Scan": (0, 0)}
"""Inputs of a node and of its body, and outputs of the body, before those of the states."""


def read_constant_states(graph: ir.Graph) -> None:
    """Let bodies read from outside what no iteration changes, in place: JAX's loops take their weights as states."""
    for node in every_node(graph):
        if node.op_type in _LEADING and not node.domain:
            first, done = _LEADING[node.op_type]
            remove_states(node, _constant_states(node), first, done)


def _constant_states(node: ir.Node) -> list[int]:
    """Return the numbers of the states that each iteration returns as it got them."""
    body = node.attributes["body"].as_graph()
    first, done = _LEADING[node.op_type]
    last = len(node.inputs) - node.attributes.get_int("num_scan_inputs", 0)  # a Scan may return what it goes along
    pairs = zip(list(body.inputs)[first:last], list(body.outputs)[done:], node.outputs, strict=False)
    return [i for i, (x, y, end) in enumerate(pairs) if _before_identities(y) is x and not end.is_graph_output()]


def _before_identities(value: ir.Value) -> ir.Value:
    while (node := value.producer()) is not None and node.op_type == "Identity" and not node.domain:
        assert node.inputs[0] is not None
        value = node.inputs[0]
    return value

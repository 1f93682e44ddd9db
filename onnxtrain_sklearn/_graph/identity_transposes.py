"""Transpositions that leave the axes where they are, as PyTorch's exporter writes them behind an indexing.

onnxruntime up to 1.21 joins them with the product before or behind as if they swapped two axes, without an error.
"""

from __future__ import annotations

import onnx_ir as ir

from .edits import bypass
from .queries import every_node


def remove_identity_transposes(graph: ir.Graph) -> None:
    """Remove such transpositions, in place; one whose result a graph returns becomes an Identity."""
    for node in [n for n in every_node(graph) if n.op_type == "Transpose" and not n.domain and _keeps_axes(n)]:
        source = node.inputs[0]
        if source is None or node.outputs[0].is_graph_output():
            node.op_type = "Identity"
            node.attributes.clear()
        else:
            bypass(node, source)


def _keeps_axes(node: ir.Node) -> bool:
    order = list(node.attributes["perm"].as_ints()) if "perm" in node.attributes else []
    return bool(order) and order == sorted(order)

"""The place of the gradients in a training graph, by which onnxruntime computes each of them where its operands are.

onnxruntime begins with the last node that no other reads and runs what it needs, then goes to the one before. In the
order of a backward pass it would begin with the gradient of the first layer and compute the others behind it: it would
keep the operands of all of them until then, and read them anew from memory.
"""

from __future__ import annotations

import onnx_ir as ir


def last_layer_last(graph: ir.Graph) -> None:
    """Move the nodes that no other reads to the end of the graph, in reverse order, in place.

    They compute the gradients, those of the last layer first.
    """
    ends = [node for node in graph if not any(value.uses() for value in node.outputs)]
    graph.remove(ends)
    graph.extend(reversed(ends))

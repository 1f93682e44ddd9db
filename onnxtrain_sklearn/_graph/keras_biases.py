"""Biases of recurrent layers of Keras: one for each gate, where ONNX's operators have two.

``tf2onnx`` writes the second as zeros. Both trained, their sum would move twice as far as in Keras. The zeros are
added by a node instead, and the initializer holds the bias that Keras trains.
"""

from __future__ import annotations

import onnx_ir as ir

from .builder import GraphBuilder
from .edits import swap_initializers
from .queries import int_attribute, operand
from .weights import array_of

PRODUCER = "tf2onnx"
"""The name of the producer in files of ``tf2onnx`` and of Keras' own export from TensorFlow."""


def keep_one_bias(model: ir.Model) -> None:
    """Let the recurrent layers of a model that ``tf2onnx`` wrote have one bias for each gate, in place."""
    for node in list(model.graph) if model.producer_name == PRODUCER else ():
        bias = operand(node, 3) if _has_one_bias(node) else None
        if bias is not None and bias.name in model.graph.initializers and len(bias.uses()) == 1:
            _without_zeros(model.graph, node, bias)


def _has_one_bias(node: ir.Node) -> bool:
    """Whether a node is a layer for which Keras has one bias; its GRU has two with ``reset_after=True``, the default."""
    resets_after = node.op_type == "GRU" and int_attribute(node, "linear_before_reset", 0) == 1
    return not node.domain and node.op_type in ("GRU", "LSTM", "RNN") and not resets_after


def _without_zeros(graph: ir.Graph, node: ir.Node, bias: ir.Value) -> None:
    """Store the first half of a bias whose second half is zero, and pad it."""
    array = array_of(bias)
    half = array.shape[-1] // 2
    if array.ndim != 2 or array[:, half:].any():
        return
    swap_initializers(graph, {bias.name or "": array[:, :half]})
    bias.shape = ir.Shape((len(array), half))
    op = GraphBuilder(graph, prefix="keras", dtype=bias.dtype or ir.DataType.FLOAT)
    node.replace_input_with(3, op.Pad(bias, pads=[0, 0, 0, half]))
    graph.sort()

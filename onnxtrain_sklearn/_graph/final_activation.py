"""What a graph ends in: the final activation that losses look behind, and the scores behind it."""

from __future__ import annotations

import onnx_ir as ir

from .builder import int_attribute

ACTIVATIONS = {"Softmax": "softmax", "LogSoftmax": "softmax", "Sigmoid": "sigmoid", "Exp": "exp"}
"""Final operators that losses look behind, and the link of each (a log-softmax is the logits of its own softmax)."""


def positive_class(final: ir.Value) -> ir.Value:
    """Return p where ``final`` is the two columns ``Concat(1 - p, p)`` with which exported binary classifiers end.

    1 - p may be the sigmoid of the opposite score instead, which is more exact where p is almost one.
    """
    concat = final.producer()
    if concat is None or concat.op_type != "Concat" or concat.domain or len(concat.inputs) != 2:
        return final
    if int_attribute(concat, "axis", 0) not in (1, -1):
        return final
    other, p = concat.inputs
    complement = None if other is None else other.producer()
    if p is not None and complement is not None and _opposite(complement, p.producer()):
        return p
    if p is None or complement is None or complement.op_type != "Sub" or complement.inputs[1] is not p:
        return final
    one = None if complement.inputs[0] is None else ir.convenience.get_const_tensor(complement.inputs[0])
    node = p.producer()
    is_probability = node is not None and node.op_type == "Sigmoid" and not node.domain
    return p if is_probability and one is not None and one.numpy().tolist() in (1.0, [1.0]) else final


def _opposite(complement: ir.Node, node: ir.Node | None) -> bool:
    """Whether two sigmoids are those of -s and s."""
    if complement.op_type != "Sigmoid" or complement.domain or complement.inputs[0] is None:
        return False
    negative = complement.inputs[0].producer()
    if node is None or node.op_type != "Sigmoid" or node.domain or negative is None or negative.domain:
        return False
    return negative.op_type == "Neg" and negative.inputs[0] is node.inputs[0]


def behind_activation(final: ir.Value) -> tuple[ir.Value, str]:
    """Return the scores behind a final activation, and its operator ("" where there is none)."""
    node = final.producer()
    while node is not None and node.op_type == "Identity" and not node.domain:
        assert node.inputs[0] is not None
        node = node.inputs[0].producer()
    if node is None or node.domain or node.op_type not in ACTIVATIONS or node.inputs[0] is None:
        return final, ""
    rank = None if final.shape is None else len(final.shape)
    if "oftmax" in node.op_type and not (rank == 2 and int_attribute(node, "axis", -1) in (1, -1)):
        return final, ""  # the default axis was 1 before opset 13: the last one of two as well
    return node.inputs[0], node.op_type

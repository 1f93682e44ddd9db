"""BatchNormalization that an exporter wrote as arithmetic with its stored statistics: what each constant is.

Keras' files subtract the mean, multiply by a factor and add the bias, or multiply and add alone. The names are those
that the exporter made up for what it computed in advance.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import onnx_ir as ir

from .queries import constant

ENDS = frozenset({"Cast", "Clip", "Flatten", "Identity", "Reshape", "Squeeze"})
"""Operators between the scaled predictions and the output of a graph."""


def role_in_affine(node: ir.Node, index: int, array: np.ndarray) -> Literal["mean", "scale", "bias"] | None:
    """Return what a constant, a number for each channel, does in ``(x - mean) * scale + bias``; None: not clear."""
    if node.domain or len(node.inputs) != 2 or not _is_per_channel(array):
        return None
    if node.op_type == "Mul":
        return "scale" if _is_shifted(node, array.size) else None
    if node.op_type == "Add":
        other = node.inputs[1 - index]
        product = None if other is None or _is_in_units_of_targets(node.outputs[0]) else other.producer()
        return "bias" if product is not None and _combines(product, "Mul", array.size) else None
    scales = [n for n in _users(node) if _combines(n, "Mul", array.size)] if node.op_type == "Sub" and index else []
    return "mean" if any(_is_shifted(scale, array.size) for scale in scales) else None


def _is_shifted(scale: ir.Node, size: int) -> bool:
    """Whether a bias for each channel is added to the result of a node, within the network."""
    biases = [n for n in _users(scale) if _combines(n, "Add", size)]
    return any(not _is_in_units_of_targets(n.outputs[0]) for n in biases)


def _is_in_units_of_targets(value: ir.Value) -> bool:
    """Whether a value is an output but for its shape, type and limits: a graph ends by scaling its targets back."""
    if value.is_graph_output():
        return True
    users = [node for node, _ in value.uses()]
    return len(users) == 1 and users[0].op_type in ENDS and _is_in_units_of_targets(users[0].outputs[0])


def _is_per_channel(array: np.ndarray) -> bool:
    return array.size > 1 and sum(length > 1 for length in array.shape) == 1


def _users(node: ir.Node) -> Iterator[ir.Node]:
    return (user for user, _ in node.outputs[0].uses())


def _combines(node: ir.Node, kind: str, size: int) -> bool:
    """Whether a node combines a value with a constant that has ``size`` numbers, one for each channel."""
    arrays = [constant(x) for x in node.inputs if x is not None] if node.op_type == kind and not node.domain else []
    return any(array is not None and array.size == size and _is_per_channel(array) for array in arrays)

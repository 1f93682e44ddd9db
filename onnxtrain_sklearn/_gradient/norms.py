"""Roots of values that are never negative, such as the sum of squares in a norm or a distance.

The derivative of the root is infinite at zero and that of a square is zero there; their product would be NaN. Both
engines take the subgradient zero instead, as ``torch.cdist`` and ``torch.linalg.norm`` do. The root of a value that may
be anything, such as a parameter, keeps its infinite derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import onnx_ir as ir

from .._graph.queries import constant, operand

_DEPTH = 32
"""Nodes before a root that are looked at; a norm has fewer."""

_MOVED = frozenset("Concat Expand Flatten Gather Identity Reshape Slice Squeeze Tile Transpose Unsqueeze".split())
"""Operators whose numbers are some of those that they read first (all of them: Concat)."""

_ADDED = frozenset("Add Mean ReduceMax ReduceMean ReduceMin ReduceSum Sum".split())
"""Operators whose result is flat where those of their operands are, all of which are at zero."""


def is_norm(node: ir.Node, wanted: Collection[int]) -> bool:
    """Return True for Sqrt, and Pow by 1/2 or more up to 1, of a value that cannot go below zero and is flat there.

    ``wanted`` are the positions of the operands with a gradient: an exponent that is trained may get smaller.
    """
    if node.op_type == "Pow":
        power = None if node.inputs[1] is None else constant(node.inputs[1])
        if 1 in wanted or power is None or power.size != 1 or not 0.5 <= power.item() < 1:
            return False
    elif node.op_type != "Sqrt":
        return False
    return _is_flat_at_zero(node.inputs[0], _DEPTH)


def _is_flat_at_zero(value: ir.Value | None, depth: int) -> bool:
    """Return True if a value is never negative, and its own derivative is zero wherever it is zero."""
    node = None if value is None else value.producer()
    if node is None or node.domain or not depth:
        return False
    if node.op_type in _LEAVES:
        return _LEAVES[node.op_type](node)
    if node.op_type in ("Div", "Mul"):
        first, second = node.inputs
        if node.op_type == "Mul" and (first is second or _is_positive(first)):
            return first is second or _is_flat_at_zero(second, depth - 1)
        return _is_positive(second) and _is_flat_at_zero(first, depth - 1)
    if node.op_type in _ADDED | _MOVED:
        whole = node.op_type in ("Add", "Concat", "Mean", "Sum")
        return all(_is_flat_at_zero(x, depth - 1) for x in (node.inputs if whole else node.inputs[:1]))
    return False


def _is_positive(value: ir.Value | None) -> bool:
    """Return True for one positive constant."""
    array = None if value is None else constant(value)
    return array is not None and array.size == 1 and array.item() > 0


def _is_even_power(node: ir.Node) -> bool:
    power = None if node.inputs[1] is None else constant(node.inputs[1])
    return power is not None and power.size == 1 and power.item() > 0 and power.item() % 2 == 0


def _is_bounded_by_zero(node: ir.Node) -> bool:
    bounds = [operand(node, 1)] if node.op_type == "Clip" else list(node.inputs)
    return any(x is not None and (a := constant(x)) is not None and a.size == 1 and a.item() == 0 for x in bounds)


_LEAVES: dict[str, Callable[[ir.Node], bool]] = {
    "Clip": _is_bounded_by_zero,
    "Max": _is_bounded_by_zero,
    "Pow": _is_even_power,
    "ReduceSumSquare": lambda node: True,
    "Relu": lambda node: True,
}
"""What values are computed by that are flat at zero, and when; of Relu and bounds, from the left."""

"""The derivative of Clip at its bounds: a function that clips has 1 there, ReLU6 and hardtanh have 0, as ReLU does.

Zeros at which it matters are common: BatchNormalization without a shift keeps those of a ReLU6 before it.
"""

from __future__ import annotations

import onnx_ir as ir

from .._importers.torch_program import call_of
from .._ir.queries import constant, operand

RELU6 = (0.0, 6.0)


def is_open(node: ir.Node) -> bool:
    """Return True if a Clip has no derivative at its bounds: by the PyTorch function, else by the bounds of ReLU6."""
    call = call_of(node)
    if call is not None:
        return call.function.rstrip("_") in ("hardtanh", "relu6")
    return tuple(bound_of(node, index) for index in (1, 2)) == RELU6


def bound_of(node: ir.Node, index: int) -> float | None:
    """Return a constant bound, None where there is none."""
    bound = operand(node, index)
    array = None if bound is None else constant(bound)
    return None if array is None or array.size != 1 else float(array.item())

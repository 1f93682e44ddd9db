"""Operands that do not fit, which kernels of onnxruntime 1.19 do not check: they hang or crash the process.

Strict inference does not report them. They were found by running operators with sizes and numbers that do not fit, in
child processes. Operands that are computed at run time are not checked here.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import onnx_ir as ir

from .queries import constant, dims, fixed, int_attribute, operand


def operand_error(node: ir.Node) -> str | None:
    """Return what is wrong with the operands of a node, None where nothing is known to be."""
    rule = None if node.domain else OPERAND_RULES.get(node.op_type)
    return None if rule is None else rule(node)


def _empty_kernel(node: ir.Node) -> str | None:
    return "its kernel has no elements" if 0 in (dims(operand(node, 1)) or []) else None


def _no_channels(node: ir.Node) -> str | None:
    return "its input has no channels" if 0 in (dims(operand(node, 0)) or [])[1:2] else None


def _no_steps(node: ir.Node) -> str | None:
    """The kernels abort, that of GRU also in onnxruntime 1.31; that of LSTM returns zeros."""
    axis = int_attribute(node, "layout", 0)
    return "its sequences have no steps" if 0 in (dims(operand(node, 0)) or [])[axis : axis + 1] else None


def _empty_window(node: ir.Node) -> str | None:
    return "its window has no elements" if 0 in (dims(operand(node, 2)) or []) else None


def _block_ranks_differ(node: ir.Node) -> str | None:
    image, block = (_constant_sizes(node, index) for index in (1, 2))
    if image is not None and block is not None and (not len(image) or len(image) != len(block)):
        return f"its image_shape has {len(image)} sizes and its block_shape {len(block)}"
    return None


def _indices_beyond_output(node: ir.Node) -> str | None:
    """Indices of MaxUnpool count through the whole output."""
    places, y = _constant_operand(node, 1), dims(node.outputs[0])
    if places is None or not places.size or y is None or not fixed(y):
        return None
    most = prod(y)
    inside = places.min() >= 0 and places.max() < most
    return None if inside else f"an index is beyond the {most} elements of its output"


def _indices_beyond_batch(node: ir.Node) -> str | None:
    numbers, x = _constant_operand(node, 2), dims(operand(node, 0))
    rows = x[0] if x else None
    if numbers is None or not numbers.size:
        return None
    outside = numbers.min() < 0 or (isinstance(rows, int) and numbers.max() >= rows)
    return "an index is beyond its batch" if outside else None


def _constant_sizes(node: ir.Node, index: int) -> list[int] | None:
    value = _constant_operand(node, index)
    return None if value is None else [int(n) for n in value.ravel()]


def _constant_operand(node: ir.Node, index: int) -> np.ndarray | None:
    value = operand(node, index)
    return None if value is None else constant(value)


OPERAND_RULES: dict[str, Callable[[ir.Node], str | None]] = {
    "Col2Im": _block_ranks_differ,
    "Conv": _empty_kernel,
    "ConvTranspose": _empty_kernel,
    "GRU": _no_steps,
    "LRN": _no_channels,
    "MaxUnpool": _indices_beyond_output,
    "RNN": _no_steps,
    "RoiAlign": _indices_beyond_batch,
    "STFT": _empty_window,
}

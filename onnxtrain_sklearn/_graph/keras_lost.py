"""Biases that ``tf2onnx`` leaves out of files of fresh networks: a warning.

It removes sums with zeros, which the biases of a fresh layer of Keras are. The file of a layer without a bias looks the
same. A layer counts as fresh where none in the file has a bias, or where its kernel is drawn by Keras' default.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod, sqrt

import numpy as np
import onnx_ir as ir

from ..exceptions import warn
from .exporter_names import is_tensorflow_constant
from .queries import constant

_PRODUCTS = frozenset({"Conv", "ConvTranspose", "MatMul"})
_PASSING = frozenset({"Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators between a product and the sum with its bias."""

_TELLING = 256
"""Numbers of a kernel that tell how it was drawn."""


def warn_of_lost_biases(graph: ir.Graph) -> None:
    """Warn of products without a bias that seem to be of fresh layers."""
    products = [node for node in graph if _kernel_of(node) is not None and not _is_depthwise_part(node)]
    without = [node for node in products if not _has_bias(node)]
    fresh = without if len(without) == len(products) else [node for node in without if _is_drawn_by_default(node)]
    if fresh:
        names = list(dict.fromkeys(repr(_layer(node)) for node in fresh))
        listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        warn(
            f"tf2onnx leaves out biases and shifts that are zeros, and scales that are ones, as those of a fresh "
            f"network are; they are then not trained. The file holds no bias of {listed}. If these layers of Keras "
            f"have biases, export after a step of training, or first move the weights a little: for v in "
            f"model.trainable_variables: v.assign_add(1e-6 * np.random.standard_normal(v.shape))."
        )


def _kernel_of(node: ir.Node) -> np.ndarray | None:
    value = node.inputs[1] if not node.domain and node.op_type in _PRODUCTS else None
    array = None if value is None or is_tensorflow_constant(value.name or "") else constant(value)
    return array if array is not None and array.ndim > 1 and np.issubdtype(array.dtype, np.floating) else None


def _is_depthwise_part(node: ir.Node) -> bool:
    """Whether a product is the first of a separable convolution, whose bias is behind the second."""
    return "separable" in (node.name or "") and (node.name or "").endswith("/depthwise")


def _has_bias(node: ir.Node) -> bool:
    return len(node.inputs) > 2 or any(
        user.op_type in ("Add", "Sub", "Sum") and any(x is not None and _is_array(x) for x in user.inputs)
        for user in _computing_with(node.outputs[0])
    )


def _is_array(value: ir.Value) -> bool:
    array = constant(value)
    return array is not None and array.ndim > 0


def _computing_with(value: ir.Value) -> Iterator[ir.Node]:
    """Yield the nodes that compute with a product, or with a sum of products, as recurrent cells do."""
    for node, _ in value.uses():
        sums = node.op_type == "Add" and not any(x is not None and _is_array(x) for x in node.inputs)
        yield node
        if node.op_type in _PASSING or sums:
            yield from _computing_with(node.outputs[0])


def _is_drawn_by_default(node: ir.Node) -> bool:
    """Whether a kernel is uniform within the bounds of Glorot and Bengio: training would have left them."""
    kernel = _kernel_of(node)
    if kernel is None or kernel.size < _TELLING:
        return False
    shape = kernel.shape if node.op_type == "MatMul" else (*kernel.shape[2:], *kernel.shape[1::-1])
    bound = sqrt(6 / (prod(shape[:-2]) * sum(shape[-2:])))
    most = float(np.abs(kernel).max())
    return bound * (1 - 5 / kernel.size) <= most <= bound * (1 + 1e-6)


def _layer(node: ir.Node) -> str:
    path, _, name = (node.name or "").rpartition("/")
    return path or name

"""BatchNormalization that Keras writes as arithmetic, where a file holds all of it: put together to one node.

Keras on PyTorch computes ``(x - mean) * (gamma / sqrt(variance + epsilon)) + beta``. A file whose constants are not
folded holds the four arrays, so that the node can be switched over to training. Its running variance takes variances
of populations, as in Keras, and not those that PyTorch takes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from .builder import GraphBuilder
from .edits import copy_initializer, replace_node
from .names import names_of
from .queries import constant, dims

NODES = "keras/BatchNormalization"
"""The beginning of the names of such nodes."""

MOMENTUM = 0.99
"""The default of Keras; files do not hold it."""

_SHAPES = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"})


class _Layer(NamedTuple):
    """A normalization: its input, its arrays, and where they are read."""

    x: ir.Value
    arrays: tuple[ir.Value, ...]
    epsilon: float
    axis: int


def join_normalizations(model: ir.Model) -> ir.Model:
    """Return the model with a BatchNormalization in place of each such arithmetic."""
    clone = model.clone()
    clone.meta.update(model.meta)
    found = [(node, layer) for node in clone.graph if (layer := _normalization_at(node)) is not None]
    if not found:
        return model
    taken: set[ir.Value] = set()
    for node, layer in found:
        op = GraphBuilder(clone.graph, dtype=layer.x.dtype or ir.DataType.FLOAT, prefix="keras")
        replace_node(op, node, [_emit_normalization(op, layer, taken, node.name or "")])
    clone.graph.sort()
    return clone


def _normalization_at(node: ir.Node) -> _Layer | None:
    """Return the normalization that ends in a node; None if it is none."""
    for product, beta in _both_orders(node, "Add"):
        for difference, factor in _both_orders(product.producer(), "Mul"):
            for inverse, gamma in _both_orders(factor.producer(), "Mul"):
                found = _with_statistics(difference.producer(), inverse, beta, gamma)
                if found is not None:
                    return found
    return None


def _with_statistics(node: ir.Node | None, inverse: ir.Value, beta: ir.Value, gamma: ir.Value) -> _Layer | None:
    if node is None or node.op_type != "Sub" or node.domain:
        return None
    x, mean = node.inputs
    root = _square_root_below(inverse.producer())
    for variance, number in _both_orders(None if root is None else root.producer(), "Add"):
        epsilon = constant(number)
        arrays = [None if value is None else _initializer_of(value) for value in (gamma, beta, mean, variance)]
        axis = None if mean is None else _channel_axis(mean)
        known = [array for array in arrays if array is not None]
        if x is not None and epsilon is not None and epsilon.size == 1 and axis is not None and len(known) == 4:
            same = {None if v.shape is None else tuple(v.shape) for v in known}
            return _Layer(x, tuple(known), float(epsilon.ravel()[0]), axis) if len(same) == 1 else None
    return None


def _both_orders(node: ir.Node | None, kind: str) -> list[tuple[ir.Value, ir.Value]]:
    """Return the two operands of a node of this kind, in both orders; nothing for other nodes."""
    if node is None or node.op_type != kind or node.domain:
        return []
    first, second = node.inputs
    return [] if first is None or second is None else [(first, second), (second, first)]


def _square_root_below(node: ir.Node | None) -> ir.Value | None:
    """Return x where a node computes ``1 / sqrt(x)``."""
    if node is None or node.domain or node.op_type not in ("Reciprocal", "Div"):
        return None
    one = constant(node.inputs[0]) if node.op_type == "Div" and node.inputs[0] is not None else np.ones(1)
    below = node.inputs[-1]
    root = None if below is None else below.producer()
    is_root = root is not None and root.op_type == "Sqrt" and not root.domain
    return root.inputs[0] if root is not None and is_root and one is not None and (one == 1).all() else None


def _initializer_of(value: ir.Value) -> ir.Value | None:
    """Return the initializer of one axis that a value only shapes."""
    node = value.producer()
    while node is not None and node.op_type in _SHAPES and not node.domain and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    is_array = node is None and value.is_initializer() and value.shape is not None and len(value.shape) == 1
    return value if is_array else None


def _channel_axis(mean: ir.Value) -> int | None:
    """Return the axis of the channels, by the shape in which the mean is subtracted."""
    sizes = dims(mean)
    long = [i for i, size in enumerate(sizes or []) if size != 1]
    return long[0] if sizes is not None and len(sizes) >= 2 and len(long) == 1 else None


def _emit_normalization(op: GraphBuilder, layer: _Layer, taken: set[ir.Value], name: str) -> ir.Value:
    arrays = [_array_of_its_own(op, array, taken) for array in layer.arrays]
    rank = len(layer.x.shape) if layer.x.shape is not None else layer.axis + 1
    order = [0, layer.axis, *(i for i in range(1, rank) if i != layer.axis)]
    moves = order != list(range(rank))
    x = op.Transpose(layer.x, perm=order) if moves else layer.x
    y = op.BatchNormalization(x, *arrays, epsilon=layer.epsilon, momentum=MOMENTUM)
    node = y.producer()
    assert node is not None
    node.name = op.taken.free(f"{NODES}/{name}")
    return op.Transpose(y, perm=[order.index(i) for i in range(rank)]) if moves else y


def _array_of_its_own(op: GraphBuilder, array: ir.Value, taken: set[ir.Value]) -> ir.Value:
    """Return an array that no other layer reads: exporters merge equal ones."""
    if array in taken:
        return copy_initializer(op.graph, array, names_of(op.graph).free(f"{array.name}/own"))
    taken.add(array)
    return array

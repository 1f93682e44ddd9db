"""Types and shapes of the outputs of one node, inferred from its inputs and from integers that are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx.checker
import onnx.defs
import onnx.helper
import onnx.shape_inference
import onnx_ir as ir

from .integers import Dimension, Integers, is_complete, product_of_known
from .queries import attribute, dims, graphs_in, operand


def infer_node(model: ir.Model, node: ir.Node, known: Integers) -> None:
    """Complete the types and shapes of a node's outputs, in place, as far as they can be inferred."""
    if graphs_in(node):
        return
    inputs = [v for v in node.inputs if v is not None]
    found = {} if any(v.type is None for v in inputs) else _inferred_types(model, node, inputs, known)
    for value in node.outputs:
        if value.name in found and found[value.name].HasField("tensor_type"):
            value.type = value.type or ir.serde.deserialize_type_proto_for_type(found[value.name])
            shape = ir.serde.deserialize_type_proto_for_shape(found[value.name])
            value.shape = shape if value.shape is None else value.shape
    if node.op_type in _SHAPE_INPUT and not node.domain:
        _shape_from_input(node, known)
    elif node.domain == "com.microsoft" and node.op_type in _PRODUCTS_OF_FEW_BITS:
        _shape_of_product(node)


def _inferred_types(model: ir.Model, node: ir.Node, inputs: Sequence[ir.Value], known: Integers) -> dict[str, Any]:
    """Return the types that ONNX infers for the outputs of a node, by name; none where it fails."""
    version = model.graph.opset_imports.get(node.domain, 0)
    try:
        return onnx.shape_inference.infer_node_outputs(
            onnx.defs.get_schema(node.op_type, version, node.domain),
            ir.serde.serialize_node(node),
            {v.name or "": ir.serde.serialize_value(v).type for v in inputs},
            {v.name or "": _tensor_proto(v, known[v]) for v in inputs if v in known and is_complete(known[v])},
            opset_imports=[onnx.helper.make_opsetid(d, n) for d, n in model.graph.opset_imports.items()],
        )
    except (onnx.checker.ValidationError, onnx.defs.SchemaError, onnx.shape_inference.InferenceError, ValueError):
        return {}


def _tensor_proto(value: ir.Value, array: np.ndarray) -> Any:
    assert value.dtype is not None
    return ir.serde.serialize_tensor(ir.tensor(array.astype(value.dtype.numpy()), name=value.name))


def _shape_from_input(node: ir.Node, known: Integers) -> None:
    """Set the shape of the output from an input that holds it, where names are among its sizes."""
    wanted = known.get(operand(node, _SHAPE_INPUT[node.op_type]))  # type: ignore[arg-type]
    if wanted is None or wanted.ndim != 1:
        return
    sizes: list[Dimension] | None = list(wanted)
    if node.op_type == "Reshape":
        sizes = _reshaped_sizes(dims(node.inputs[0]), wanted, attribute(node, "allowzero", 0))
    elif node.op_type == "Expand":
        sizes = _expanded_sizes(dims(node.inputs[0]), list(wanted))
    if sizes is not None:
        node.outputs[0].shape = ir.Shape(sizes)


def _shape_of_product(node: ir.Node) -> None:
    """Complete type and shape of a product with a matrix of few bits, of which ONNX knows nothing."""
    given, value, width = node.inputs[0], node.outputs[0], attribute(node, "N", None)
    sizes = dims(given)
    if given is not None and sizes and width is not None:
        value.type = given.type if value.type is None else value.type
        value.shape = ir.Shape([*sizes[:-1], int(width)]) if value.shape is None else value.shape


_PRODUCTS_OF_FEW_BITS = frozenset({"MatMulNBits", "MatMulBnb4", "MatMulFpQ4"})

_SHAPE_INPUT = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0}
"""Operators that read the shape of their output from an input: its position."""


def _reshaped_sizes(given: list[Dimension] | None, wanted: np.ndarray, allowzero: int) -> list[Dimension]:
    """Return the sizes of Reshape's output: 0 keeps a size, -1 is inferred from the others."""
    sizes = list(wanted)
    for i, size in enumerate(sizes):
        if size == 0 and not allowzero:
            sizes[i] = given[i] if given is not None and i < len(given) else None
    if -1 in sizes:
        sizes[sizes.index(-1)] = _remaining_size(given, [d for d in sizes if d != -1])
    return sizes


def _remaining_size(given: list[Dimension] | None, others: list[Dimension]) -> int | str | None:
    """Return the size for -1: that of ``given`` divided by ``others``, in which equal names cancel."""
    if given is None or None in given or None in others:
        return None
    names = Counter(d for d in given if isinstance(d, str))
    names.subtract(d for d in others if isinstance(d, str))
    if any(names.values()):
        only = [name for name, count in names.items() if count]
        numbers = product_of_known(given) == product_of_known(others)
        return only[0] if numbers and len(only) == 1 and names[only[0]] == 1 else None
    rest = product_of_known(others)
    return product_of_known(given) // rest if rest else None


def _expanded_sizes(given: list[Dimension] | None, wanted: list[Dimension]) -> list[Dimension] | None:
    if given is None:
        return None
    rank = max(len(given), len(wanted))
    pairs = zip([1] * (rank - len(given)) + given, [1] * (rank - len(wanted)) + wanted, strict=True)
    return [b if a == 1 else a if b in (1, a) or isinstance(a, int) else None for a, b in pairs]

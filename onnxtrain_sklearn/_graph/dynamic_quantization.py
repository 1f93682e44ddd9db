"""Graphs quantized dynamically, with integer products and ranges of the batch, trained through float products.

``onnxruntime.quantization.quantize_dynamic`` writes MatMulInteger between a DynamicQuantizeLinear, by the range of the
batch, and integer weights, and multiplies by both scales. Here such a product is one of floats: of the weights as a
DequantizeLinear gives them, and of the rounded activations ``x + stop(rounded - x)``, so that the gradient passes the
rounding as if it were not there. :func:`with_integer_products` turns the graph back.

The products are known by their names, which every conversion of a graph keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import onnx_ir as ir
import onnx_ir.passes.common as common

from .builder import GraphBuilder
from .edits import copy_type, remove_unread, replace_node
from .queries import constant
from .stopped import stop_gradient

DYNAMIC = "onnxtrain/dynamic_quantization"
"""Beginning of the names of the nodes that compute the range and the rounding, and of the products."""

_FLOAT_PRODUCTS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}
_INTEGER_PRODUCTS = {kind: name for name, kind in _FLOAT_PRODUCTS.items()}


class _Product(NamedTuple):
    """An integer product, and the nodes that make floats of it."""

    node: ir.Node
    rounding: ir.Node
    cast: ir.Node
    scaling: ir.Node
    scales: ir.Node
    scale: ir.Value


def is_dynamic(node: ir.Node) -> bool:
    """Whether a node belongs to a rounding by the range of the batch."""
    return (node.name or "").startswith(DYNAMIC)


def with_float_products(model: ir.Model) -> ir.Model:
    """Return the model with float products in place of integer ones; those of another form stay."""
    if not any(node.op_type in _FLOAT_PRODUCTS and not node.domain for node in model.graph):
        return model
    clone = model.clone()
    clone.meta.update(model.meta)
    found = [product for product in map(_product_at, list(clone.graph)) if product is not None]
    op = GraphBuilder(clone.graph, prefix="dynamic", constant_nodes=True)
    rounded: dict[ir.Node, ir.Value] = {}
    for product in found:
        _write_float_product(op, product, rounded)
    for node in list(clone.graph):
        _look_up_floats(op, node)
    common.RemoveUnusedNodesPass()(clone)
    clone.graph.sort()
    return clone


def with_integer_products(model: ir.Model) -> ir.Model:
    """Give a graph its integer products back, in place, where it holds integer weights."""
    op = GraphBuilder(model.graph, prefix="dynamic", constant_nodes=True)
    for node in [n for n in model.graph if is_dynamic(n) and n.op_type in _INTEGER_PRODUCTS]:
        _write_integer_product(op, node)
    common.RemoveUnusedNodesPass()(model)
    model.graph.sort()
    return model


def _product_at(node: ir.Node) -> _Product | None:
    """Return the product of ``node`` where it has the form that onnxruntime writes; else None."""
    if node.op_type not in _FLOAT_PRODUCTS or node.domain or len(node.inputs) < 3:
        return None
    x, weight, zero = node.inputs[:3]
    rounding = None if x is None else x.producer()
    cast, scaling = _only_reader(node.outputs[0]), None
    if cast is not None and cast.op_type == "Cast":
        scaling = _only_reader(cast.outputs[0])
    if rounding is None or rounding.op_type != "DynamicQuantizeLinear" or scaling is None or scaling.op_type != "Mul":
        return None
    assert cast is not None
    other = next((v for v in scaling.inputs if v is not cast.outputs[0]), None)
    scales = None if other is None else other.producer()
    if scales is None or scales.op_type != "Mul" or rounding.outputs[1] not in scales.inputs:
        return None
    scale = next((v for v in scales.inputs if v is not rounding.outputs[1]), None)
    known = scale is not None and constant(scale) is not None and weight is not None and weight.const_value is not None
    if not known or x is not rounding.outputs[0] or zero is not rounding.outputs[2]:
        return None
    assert scale is not None
    return _Product(node, rounding, cast, scaling, scales, scale)


def _only_reader(value: ir.Value) -> ir.Node | None:
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def _write_float_product(op: GraphBuilder, product: _Product, rounded: dict[ir.Node, ir.Value]) -> None:
    node, rounding = product.node, product.rounding
    if rounding not in rounded:
        rounded[rounding] = _rounded_by_range(op, rounding)
    zero = node.inputs[3] if len(node.inputs) > 3 else None
    per_column = product.scale.shape is not None and len(product.scale.shape) > 0
    axis = None if not per_column else 0 if node.op_type == "ConvInteger" else 1
    weight = op.emit("DequantizeLinear", node.inputs[1], product.scale, zero, axis=axis)[0]
    weight.type, weight.shape = ir.TensorType(ir.DataType.FLOAT), node.inputs[1].shape  # type: ignore[union-attr]
    settings = {name: attribute.value for name, attribute in node.attributes.items()}
    made = op.emit(_FLOAT_PRODUCTS[node.op_type], rounded[rounding], weight, **settings)[0]
    _name_as_dynamic(op, made)
    replace_node(op, product.scaling, [made])


def _rounded_by_range(op: GraphBuilder, rounding: ir.Node) -> ir.Value:
    """Return the numbers that the integers stand for, with the gradient of those before the rounding."""
    x, (integers, scale, zero) = rounding.inputs[0], rounding.outputs
    assert x is not None
    numbers = copy_type(op.DequantizeLinear(integers, scale, zero), x)
    for value in (integers, numbers):
        _name_as_dynamic(op, value)
    return copy_type(op.Add(x, stop_gradient(op, copy_type(op.Sub(numbers, x), x))), x)


def _name_as_dynamic(op: GraphBuilder, value: ir.Value) -> None:
    """Give the node that computes a value its name."""
    node = value.producer()
    assert node is not None
    node.name = op.taken.free(f"{DYNAMIC}/{node.op_type}")


def _look_up_floats(op: GraphBuilder, node: ir.Node) -> None:
    """Let a Gather of integer weights read floats: the rows of an embedding are dequantized behind it."""
    read = node.inputs[0] if node.op_type == "DequantizeLinear" and not node.domain and node.inputs else None
    gather = None if read is None else read.producer()
    if read is None or gather is None or gather.op_type != "Gather" or len(list(read.uses())) > 1:
        return
    table = gather.inputs[0]
    if table is None or table.const_value is None or constant(node.inputs[1]) is None:  # type: ignore[arg-type]
        return
    floats = op.emit("DequantizeLinear", table, *node.inputs[1:])[0]
    floats.type, floats.shape = ir.TensorType(ir.DataType.FLOAT), table.shape
    rows = op.Gather(floats, gather.inputs[1], axis=gather.attributes.get_int("axis", 0))
    replace_node(op, node, [rows])
    remove_unread(op.graph, [gather])


def _write_integer_product(op: GraphBuilder, node: ir.Node) -> None:
    """Replace a float product by what it was made from, unless its weights are floats."""
    held = None if node.inputs[1] is None else node.inputs[1].producer()
    rounding = next(_ranges_before(node), None)
    if held is None or held.op_type != "DequantizeLinear" or rounding is None:
        return
    integers, scale, zero = (*held.inputs, None)[:3]
    settings = {name: attribute.value for name, attribute in node.attributes.items()}
    quantized, own_scale, own_zero = rounding.outputs
    product = op.emit(_INTEGER_PRODUCTS[node.op_type], quantized, integers, own_zero, zero, **settings)[0]
    floats = op.Cast(product, to=ir.DataType.FLOAT)
    replace_node(op, node, [op.Mul(floats, op.Mul(own_scale, scale))])


def _ranges_before(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the DynamicQuantizeLinear whose numbers a product reads: ``x + stop(rounded - x)``."""
    total = None if node.inputs[0] is None else node.inputs[0].producer()
    while total is not None and total.op_type in ("Add", "Sum", "Sub", "DequantizeLinear"):
        place = 1 if total.op_type == "Add" else 0
        value = total.inputs[place]
        total = None if value is None else value.producer()
    if total is not None and total.op_type == "DynamicQuantizeLinear":
        yield total

"""Train quantized graphs through float products, with straight-through rounding, and quantize them again.

Integer products have no gradient. When a file is read, :func:`use_float_products` replaces those of dynamic
quantization, and :func:`use_fake_quantization` replaces the pairs of static quantization, QuantizeLinear and
DequantizeLinear. For prediction and export, :func:`requantized` restores the operators of the file.

``onnxruntime.quantization.quantize_dynamic`` writes a MatMulInteger of activations, which DynamicQuantizeLinear rounds
by the range of the batch, and integer weights, and multiplies the result by both scales. Here it becomes a float
product of the dequantized weights and the rounded activations, written as ``x + stop(rounded - x)``. The gradient of
this expression is that of ``x``, as if there were no rounding (straight-through).

Between reading and export, these nodes are recognized by prefixes of their names, which graph conversions keep.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common

from .._ir.edits import remove_unread, remove_unread_initializers, replace_node
from .._ir.queries import attribute, constant, dims
from .._model.precision import TYPES_OF_FILE
from .._model.weights import TRAINED_TYPES
from ..graph import GraphBuilder, copy_type, names_of, stop_gradient

DYNAMIC = "onnxtrain/dynamic_quantization"
"""Prefix of the names of dynamically quantized products, and of nodes that round activations by the batch's range."""

_FLOAT_PRODUCTS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}
_INTEGER_PRODUCTS = {kind: name for name, kind in _FLOAT_PRODUCTS.items()}


class _Product(NamedTuple):
    """An integer product, and the nodes that turn its result into floats: ``Mul(Cast(node), scales)``."""

    node: ir.Node
    rounding: ir.Node
    cast: ir.Node
    scaling: ir.Node
    scales: ir.Node
    scale: ir.Value


def is_dynamic(node: ir.Node) -> bool:
    """Return True if a node belongs to dynamic quantization, which rounds by the range of the batch."""
    return (node.name or "").startswith(DYNAMIC)


def use_float_products(model: ir.Model) -> bool:
    """Replace integer products by float products, in place; return True if there were any.

    Products in any other form than onnxruntime writes stay.
    """
    graph = model.graph
    if not any(node.op_type in _FLOAT_PRODUCTS and not node.domain for node in graph):
        return False
    found = [product for product in map(_product_at, list(graph)) if product is not None]
    op = GraphBuilder(graph, prefix="dynamic", constant_nodes=True)
    rounded: dict[ir.Node, ir.Value] = {}  # several products may read one rounding
    for product in found:
        node, rounding = product.node, product.rounding
        if rounding not in rounded:
            # Emit the rounded activations as floats, with the gradient of the activations before rounding.
            x = rounding.inputs[0]
            integers, scale, zero = rounding.outputs
            assert x is not None
            numbers = copy_type(op.DequantizeLinear(integers, scale, zero), x)
            for value in (integers, numbers):
                _name_as_dynamic(op, value)
            rest = stop_gradient(op, copy_type(op.Sub(numbers, x), x))
            rounded[rounding] = copy_type(op.Add(x, rest), x)
        zero_point = node.inputs[3] if len(node.inputs) > 3 else None
        per_column = product.scale.shape is not None and len(product.scale.shape) > 0
        axis = None if not per_column else 0 if node.op_type == "ConvInteger" else 1
        weight = op.emit("DequantizeLinear", node.inputs[1], product.scale, zero_point, axis=axis)[0]
        weight.type, weight.shape = ir.TensorType(ir.DataType.FLOAT), node.inputs[1].shape  # type: ignore[union-attr]
        settings = {name: attribute.value for name, attribute in node.attributes.items()}
        made = op.emit(_FLOAT_PRODUCTS[node.op_type], rounded[rounding], weight, **settings)[0]
        _name_as_dynamic(op, made)
        replace_node(op, product.scaling, [made])
    looked_up = [_look_up_floats(op, node) for node in list(graph)]
    common.RemoveUnusedNodesPass()(model)
    graph.sort()
    return bool(found) or any(looked_up)


def with_integer_products(model: ir.Model) -> ir.Model:
    """Restore the integer products of a graph that holds integer weights, in place; return the model."""
    op = GraphBuilder(model.graph, prefix="dynamic", constant_nodes=True)
    for node in [n for n in model.graph if is_dynamic(n) and n.op_type in _INTEGER_PRODUCTS]:
        held = None if node.inputs[1] is None else node.inputs[1].producer()
        # The activations are x + stop(rounded - x): trace them back to the DynamicQuantizeLinear.
        rounding = None if node.inputs[0] is None else node.inputs[0].producer()
        while rounding is not None and rounding.op_type in ("Add", "Sum", "Sub", "DequantizeLinear"):
            value = rounding.inputs[1 if rounding.op_type == "Add" else 0]
            rounding = None if value is None else value.producer()
        if held is None or held.op_type != "DequantizeLinear":
            continue  # the weights are floats, so the product stays one of floats
        if rounding is None or rounding.op_type != "DynamicQuantizeLinear":
            continue
        integers, scale, zero = (*held.inputs, None)[:3]
        settings = {name: attribute.value for name, attribute in node.attributes.items()}
        quantized, own_scale, own_zero = rounding.outputs
        product = op.emit(_INTEGER_PRODUCTS[node.op_type], quantized, integers, own_zero, zero, **settings)[0]
        floats = op.Cast(product, to=ir.DataType.FLOAT)
        replace_node(op, node, [op.Mul(floats, op.Mul(own_scale, scale))])
    common.RemoveUnusedNodesPass()(model)
    model.graph.sort()
    return model


def _product_at(node: ir.Node) -> _Product | None:
    """Return the product of ``node`` if it has the form that onnxruntime writes, else None."""
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


def _name_as_dynamic(op: GraphBuilder, value: ir.Value) -> None:
    """Mark the node that computes a value as part of dynamic quantization, by its name."""
    node = value.producer()
    assert node is not None
    node.name = op.taken.free(f"{DYNAMIC}/{node.op_type}")


def _look_up_floats(op: GraphBuilder, node: ir.Node) -> bool:
    """Dequantize a whole embedding table if ``node`` dequantizes the rows that a Gather reads from an integer table.

    The float table is then a weight with a gradient. Return True if the graph was changed.
    """
    read = node.inputs[0] if node.op_type == "DequantizeLinear" and not node.domain and node.inputs else None
    gather = None if read is None else read.producer()
    if read is None or gather is None or gather.op_type != "Gather" or len(list(read.uses())) > 1:
        return False
    table = gather.inputs[0]
    if table is None or table.const_value is None or constant(node.inputs[1]) is None:  # type: ignore[arg-type]
        return False
    floats = op.emit("DequantizeLinear", table, *node.inputs[1:])[0]
    floats.type = ir.TensorType(ir.DataType.FLOAT)
    floats.shape = table.shape
    rows = op.Gather(floats, gather.inputs[1], axis=gather.attributes.get_int("axis", 0))
    replace_node(op, node, [rows])
    remove_unread(op.graph, [gather])
    return True


# Static quantization: pairs of QuantizeLinear and DequantizeLinear, trained through float arithmetic that rounds.
#
# A pair computes ``scale * (clip(round(x / scale) + zero, low, high) - zero)``. :func:`use_fake_quantization` emits
# this formula in float operators, and turns integer weights into float weights that such a formula rounds. The gradient
# ignores the rounding, and is zero for clipped numbers: the straight-through estimator (Bengio et al., 2013,
# https://arxiv.org/abs/1308.3432), as in PyTorch's ``fake_quantize``.


MARK = "onnxtrain/fake_quantization"
STORED = f"{MARK}/stored"
"""Prefixes of the names of nodes: MARK of fake quantization, STORED if the file stores its operand as integers."""

_BITS = (4, 8, 16)
_RANGES: dict[ir.DataType, tuple[int, int]] = {
    **{ir.DataType[f"INT{bits}"]: (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in _BITS},
    **{ir.DataType[f"UINT{bits}"]: (0, 2**bits - 1) for bits in _BITS},
}
_BY_RANGE = {bounds: kind for kind, bounds in _RANGES.items()}
_DEFAULTS = {"saturate": 1, "block_size": 0, "output_dtype": 0, "precision": 0}


Weights: TypeAlias = dict[tuple[ir.Value, bytes, bytes], ir.Value]
"""The float weights that were made so far; the key is the integer tensor with the bytes of its scale and zero point."""


class _Grid(NamedTuple):
    """Scale and zero point, in shapes that broadcast with the integers, and the type of the integers."""

    scale: np.ndarray
    zero: np.ndarray
    kind: ir.DataType


def is_fake(node: ir.Node | None) -> bool:
    """Return True if a node rounds to quantized values."""
    return node is not None and (node.name or "").startswith(MARK)


def is_within_fakes(value: ir.Value) -> bool:
    """Return True if a value is an intermediate result of fake quantization, which the file does not have."""
    node = value.producer()
    return node is not None and is_fake(node) and node.op_type != "Mul"


def before_rounding(value: ir.Value) -> ir.Value:
    """Return the value before its rounding; the value itself if it is not rounded."""
    node = value.producer()
    while node is not None and is_fake(node) and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value


def is_part_of_fakes(value: ir.Value) -> bool:
    """Return True if a constant is a scale, a zero point or a bound that only fake quantization reads."""
    uses = list(value.uses())
    return bool(uses) and all(is_fake(node) and index > 0 for node, index in uses)


def is_held_as_integers(value: ir.Value) -> bool:
    """Return True if the file holds a weight as integers."""
    return any((node.name or "").startswith(STORED) for node, _ in value.uses())


def holds_fakes(model: ir.Model) -> bool:
    """Return True if a model holds nodes that round to quantized values."""
    return any(map(is_fake, model.graph))


def use_fake_quantization(model: ir.Model) -> bool:
    """Replace pairs of QuantizeLinear and DequantizeLinear by float arithmetic that rounds, in place.

    Return True if there were any. In models that were widened from float16 or bfloat16, the pairs stay.
    """
    rounds = any(_is_kind(node, "QuantizeLinear") or is_dynamic(node) for node in model.graph)
    if not rounds or TYPES_OF_FILE in model.meta:
        return False
    graph, weights = model.graph, Weights()
    replaced = [_replace_pair(graph, n, weights) for n in list(graph) if _is_kind(n, "DequantizeLinear")]
    remove_unread(graph, [n for n in graph if _is_kind(n, "QuantizeLinear")])
    remove_unread_initializers(graph)
    graph.sort()
    return any(replaced)


def requantized(model: ir.Model) -> ir.Model:
    """Restore the pairs of QuantizeLinear and DequantizeLinear, and the integer weights, in place; return the model.

    Weights that are inputs of the graph stay floats, and a pair rounds them. The rounding of 32-bit integers stays in
    float operators, because QuantizeLinear does not support that type.
    """
    rounding = [n for n in model.graph if is_fake(n) and n.op_type == "Round"]
    if not rounding:
        return model
    op = GraphBuilder(model.graph, prefix="quantized", constant_nodes=True)
    for node in rounding:
        division = node.inputs[0].producer() if node.inputs[0] is not None else None
        assert division is not None
        x = division.inputs[0]
        scale = _held(division.inputs[1])
        assert x is not None
        stored = (node.name or "").startswith(STORED) and not x.is_graph_input()
        # Equal roundings may have been merged since, so that several clips and scales read one rounding.
        for last in list(_readers_of(node)):
            if _is_kind(last, "Mul"):  # 32-bit integers are not clipped, so the scale follows directly
                if not x.is_graph_input():
                    _write_pair(op, last, x, _Grid(scale, np.zeros_like(scale), ir.DataType.INT32), None, stored=stored)
                continue
            clip = next(_readers_of(last))
            kind = _BY_RANGE[int(_held(clip.inputs[1])), int(_held(clip.inputs[2]))]
            for difference in list(_readers_of(clip)):
                for product in list(_readers_of(difference)):
                    second = _Grid(_held(product.inputs[1]), _held(difference.inputs[1]), kind)
                    _write_pair(op, product, x, _Grid(scale, _held(last.inputs[1]), kind), second, stored=stored)
    return with_integer_products(model)


def _is_kind(node: ir.Node | None, kind: str) -> bool:
    return node is not None and node.op_type == kind and not node.domain


def _replace_pair(graph: ir.Graph, node: ir.Node, weights: Weights) -> bool:
    """Replace a DequantizeLinear that reads constants or a QuantizeLinear; return False if it reads anything else."""
    x = node.inputs[0]
    assert x is not None
    maker, second = x.producer(), _grid_of(node, x)
    if second is None:
        return False
    if maker is None and x.const_value is not None and not x.is_graph_input():
        _emit(graph, node, _float_weight(graph, node, second, weights), second, second, stored=True)
        return True
    if maker is not None and _is_kind(maker, "QuantizeLinear") and maker.inputs[0] is not None:
        first = _grid_of(maker, x)
        if first is not None and first.kind == second.kind:
            _emit(graph, node, maker.inputs[0], first, second, stored=False)
            return True
    return False


def _grid_of(node: ir.Node, integers: ir.Value) -> _Grid | None:
    """Return the scale and zero point of a node; None if they are not constant or of unsupported types."""
    known = [constant(v) for v in node.inputs[1:] if v is not None]
    arrays = [array for array in known if array is not None]
    changed = any(name != "axis" and a.value != _DEFAULTS.get(name) for name, a in node.attributes.items())
    if changed or not arrays or len(arrays) < len(known):
        return None
    scale, zero = arrays if len(arrays) == 2 else (arrays[0], np.zeros(arrays[0].shape, np.uint8))
    kind = integers.dtype or ir.DataType.from_numpy(zero.dtype)
    if (
        kind not in {*_RANGES, ir.DataType.INT32}
        or scale.dtype not in TRAINED_TYPES.values()
        or zero.size != scale.size
    ):
        return None
    # Find the shape in which the scale (a single one, or one per index of an axis) broadcasts with the integers.
    shape = list[int]()
    if scale.size != 1:
        sizes = dims(integers) or dims(node.outputs[0])
        axis = attribute(node, "axis", 1)
        if sizes is None or scale.ndim != 1 or not -len(sizes) <= axis < len(sizes):
            return None
        shape = [scale.size if i == axis % len(sizes) else 1 for i in range(len(sizes))]
    return _Grid(scale.reshape(shape), zero.astype(scale.dtype).reshape(shape), kind)


def _float_weight(graph: ir.Graph, node: ir.Node, grid: _Grid, weights: Weights) -> ir.Value:
    """Return the float initializer for constant integers; nodes that read the same integers share it."""
    integers, taken = node.inputs[0], names_of(graph)
    assert integers is not None
    assert integers.const_value is not None
    key = integers, grid.scale.tobytes(), grid.zero.tobytes()
    if key not in weights:
        array = (integers.const_value.numpy().astype(grid.scale.dtype) - grid.zero) * grid.scale
        wanted = (integers.name or "weight").removesuffix("_quantized")
        if node.outputs[0].name == wanted and not node.outputs[0].is_graph_output():
            node.outputs[0].name = taken.free(f"{wanted}_rounded")
            taken.discard(wanted)
        weights[key] = ir.Value(name=taken.free(wanted), shape=ir.Shape(array.shape))
        weights[key].type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        weights[key].const_value = ir.tensor(array, name=weights[key].name)
        graph.register_initializer(weights[key])
    return weights[key]


def _emit(graph: ir.Graph, node: ir.Node, x: ir.Value, first: _Grid, second: _Grid, *, stored: bool) -> None:
    """Replace ``node`` by operators that round ``x`` to the grid ``first`` and scale it back by that of ``second``."""
    op = GraphBuilder(graph, dtype=ir.DataType.from_numpy(first.scale.dtype), prefix="fake", constant_nodes=True)
    before = set(graph)
    found = op.Round(op.Div(x, first.scale))
    if first.kind != ir.DataType.INT32:  # no weight reaches the bounds of int32, which are not exact in float32
        low, high = (np.array(bound, first.scale.dtype) for bound in _RANGES[first.kind])
        found = op.Sub(op.Clip(op.Add(found, first.zero), low, high), second.zero)
    # Replace the node before its name is marked, so that the result has the name that it has in the file.
    replace_node(op, node, [op.Mul(found, second.scale)])
    for made in [n for n in graph if n not in before and n.op_type != "Constant"]:
        made.name = op.taken.free(f"{STORED if stored else MARK}/{made.op_type}")


def _readers_of(node: ir.Node) -> Iterator[ir.Node]:
    return (user for user, index in node.outputs[0].uses() if index == 0)


def _held(value: ir.Value | None) -> np.ndarray:
    assert value is not None
    return np.asarray(constant(value))


def _write_pair(
    op: GraphBuilder, product: ir.Node, x: ir.Value, first: _Grid, second: _Grid | None, *, stored: bool
) -> None:
    integers = _stored_integers(op, x, first) if stored else _emit_linear(op, "QuantizeLinear", x, first)
    replace_node(op, product, [_emit_linear(op, "DequantizeLinear", integers, second or first)])


def _stored_integers(op: GraphBuilder, weight: ir.Value, grid: _Grid) -> ir.Value:
    """Return a new initializer with the float weight rounded to integers."""
    name = f"{weight.name}_quantized"
    if name in op.graph.initializers:
        return op.graph.initializers[name]
    assert weight.const_value is not None
    array = weight.const_value.numpy()
    if grid.kind == ir.DataType.INT32:
        array = np.rint(array.astype(np.float64) / grid.scale).clip(-(2**31), 2**31 - 1)
    else:
        array = (np.rint(array / grid.scale) + grid.zero).clip(*_RANGES[grid.kind])
    held = ir.Value(name=name, type=ir.TensorType(grid.kind), shape=ir.Shape(array.shape))
    held.const_value = ir.tensor(array.astype(grid.kind.numpy()), name=name)
    op.graph.register_initializer(held)
    return held


def _emit_linear(op: GraphBuilder, kind: str, x: ir.Value, grid: _Grid) -> ir.Value:
    """Emit QuantizeLinear or DequantizeLinear."""
    axes = [i for i, size in enumerate(grid.scale.shape) if size != 1]
    shape = [-1] if axes else []
    scale = grid.scale.reshape(shape)
    zero = np.broadcast_to(grid.zero, grid.scale.shape).reshape(shape)
    return op.emit(kind, x, scale, zero.astype(grid.kind.numpy()), axis=axes[0] if axes else None)[0]

"""Store the weights of a user's file as float initializers of its main graph.

Files also hold weights in Constant nodes, in the bodies of If, Loop and Scan, in float16 before a Cast, and in integers
before a DequantizeLinear. :func:`store_weights` and :func:`dequantize` move these weights, in place, without changing
the results of the graph. :func:`verdicts` then asks ``roles`` which constants are weights. :func:`narrow_weights` and
:func:`quantized_nodes` list weights and nodes that cannot be trained, for messages.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .._importers.quantization import is_dynamic, is_part_of_fakes
from .._ir.edits import bypass, replace_by_initializer
from .._ir.queries import every_node, graphs_in, node_label, reaching, reads
from ..exceptions import ModelError
from ..graph import Names
from .few_bits import is_product_of_few_bits
from .roles import QUANTIZED, Roles, Verdict
from .weights import TRAINED_TYPES, array_of


def store_weights(graph: ir.Graph) -> None:
    """Store all weights as initializers of the main graph, in place."""
    # Narrow floats that are only read through a Cast to float32 or float64 take the type of the Cast.
    for value in [*(v for g in _with_bodies(graph) for v in g.initializers.values()), *_constant_values(graph)]:
        casts = [node for node, _ in value.uses()]
        if not all(n.op_type == "Cast" and not n.domain and not n.outputs[0].is_graph_output() for n in casts):
            continue
        targets = {ir.DataType(n.attributes["to"].as_int()) for n in casts}
        tensor = tensor_of(value)
        if len(targets) != 1 or not targets <= set(TRAINED_TYPES):
            continue
        if tensor is None or not tensor.dtype.is_floating_point():
            continue
        (dtype,) = targets
        held = ir.tensor(tensor.numpy().astype(TRAINED_TYPES[dtype]), name=value.name)
        value.type, maker = ir.TensorType(dtype), value.producer()
        if maker is None:
            value.const_value = held
        else:
            maker.attributes.clear()
            maker.attributes["value"] = ir.AttrTensor("value", held)
        for node in casts:
            bypass(node, value)

    # Initializers of bodies move to the main graph, which bodies can read. Outputs of a body stay.
    for body in _with_bodies(graph)[1:]:
        for value in [v for v in body.initializers.values() if v.dtype in TRAINED_TYPES and v not in body.inputs]:
            if not value.is_graph_output():
                del body.initializers[value.name or ""]
                _store_weight(graph, value, array_of(value))

    # Constant nodes that hold weights become initializers.
    roles = Roles(graph)
    for value, array in [(v, _float_array(v)) for v in _constant_values(graph)]:
        if array is not None and array.size and roles.verdict(value, array).is_weight:
            _store_weight(graph, value, array)
            _remove_producer(value.producer())


def dequantize(model: ir.Model) -> bool:
    """Replace integer constants and their DequantizeLinear by float arrays, in place; return True if there were any.

    The floats are those that the ONNX standard defines. Some releases of onnxruntime compute with integers instead.
    """
    graph, changed = model.graph, False
    for node in every_node(graph):
        if node.op_type != "DequantizeLinear" or node.domain or is_dynamic(node):
            continue
        operands = [None if x is None else tensor_of(x) for x in node.inputs]
        blocked = "block_size" in node.attributes and node.attributes["block_size"].as_int()
        if None in operands[:2] or blocked or "output_dtype" in node.attributes or node.outputs[0].is_graph_output():
            continue
        if any(tensor is None and x is not None for x, tensor in zip(node.inputs, operands, strict=True)):
            continue
        x, scale, *zero = (tensor.numpy() for tensor in operands if tensor is not None)
        if scale.dtype not in TRAINED_TYPES.values():
            continue

        # There is one scale and zero point for all integers, or one for each index along an axis.
        axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 1
        along = -x.ndim <= axis < x.ndim and x.shape[axis] == scale.size
        if not (scale.size == 1 or along) or any(one.size != scale.size for one in zero):
            raise ModelError(
                f"{node_label(node)} is not valid: a scale of shape {scale.shape}"
                f"{f' and a zero point of shape {zero[0].shape}' if zero else ''} do not fit integers of shape "
                f"{x.shape}."
            )
        shape = [1] * x.ndim
        if scale.size != 1:
            shape[axis] = -1
        shift = zero[0].reshape(shape).astype(scale.dtype) if zero else 0

        # The floats take the name of the integers without the suffix that onnxruntime's quantization gave it.
        integers = node.inputs[0]
        assert integers is not None
        if len(integers.uses()) == 1 and graph.initializers.get(integers.name or "") is integers:
            del graph.initializers[integers.name or ""]
        name = (integers.name or "").removesuffix("_quantized")
        _store_weight(graph, node.outputs[0], (x.astype(scale.dtype) - shift) * scale.reshape(shape), name or None)
        _remove_producer(node)
        changed = True
    return changed


def verdicts(graph: ir.Graph, *scores: ir.Value) -> dict[str, Verdict]:
    """Return the verdict on each float constant that ``scores`` depend on, by name."""
    reached = set[str]().union(*map(reaching, scores))
    roles = Roles(graph)
    found = {}
    for value in (*graph.initializers.values(), *_constant_values(graph)):
        array = _float_array(value)
        if array is not None and array.size and value.name in reached and not is_part_of_fakes(value):
            found[value.name or ""] = roles.verdict(value, array)
    return found


def narrow_weights(graph: ir.Graph, scores: ir.Value) -> tuple[str, ...]:
    """Return the names of weights that ``scores`` depends on whose float type is neither float32 nor float64."""
    reached, roles = reaching(scores), Roles(graph)
    values = [v for name, v in graph.initializers.items() if name in reached and v.dtype not in TRAINED_TYPES]
    floats = [v for v in values if v.dtype is not None and v.dtype.is_floating_point()]
    return tuple(v.name or "" for v in floats if roles.verdict(v, array_of(v).astype(np.float32)).is_weight)


def quantized_nodes(graph: ir.Graph, scores: ir.Value) -> tuple[str, ...]:
    """Return the names of the nodes that ``scores`` depends on and that compute with integers instead of floats."""
    front, seen = [scores], set()
    found = {}
    while front:
        value = front.pop()
        node = value.producer()
        if node is None or node in seen:
            continue
        seen.add(node)
        front += reads(node)
        if QUANTIZED.search(node.op_type) and not is_dynamic(node):
            found[node.name or ""] = node.op_type
    return tuple(f"{kind} {name!r}" for name, kind in sorted(found.items()))


def rounded(value: ir.Value) -> bool:
    """Return True if a value computed from ``value`` is rounded to integers."""
    front, seen = [value], set()
    while front:
        for node, _ in front.pop().uses():
            if QUANTIZED.search(node.op_type) and not is_dynamic(node) and not is_product_of_few_bits(node):
                return True
            if node not in seen:
                seen.add(node)
                front += node.outputs
    return False


def tensor_of(value: ir.Value) -> ir.TensorProtocol | None:
    """Return the tensor of a constant.

    onnx_ir's own function would rename the tensor, which is shared with the user's model.
    """
    node = value.producer()
    if node is None or node.op_type != "Constant" or node.domain:
        return value.const_value
    for name, attribute in node.attributes.items():
        if name == "value":
            return attribute.as_tensor()
        if name in ("value_float", "value_floats"):
            return ir.tensor(np.asarray(attribute.value, np.float32))
    return None


def _store_weight(graph: ir.Graph, value: ir.Value, array: np.ndarray, name: str | None = None) -> None:
    """Replace ``value`` by an initializer of the main graph, with a name that is unique in the graph and its bodies."""
    own = [v for g in _with_bodies(graph) for v in (*g.inputs, *g.initializers.values())]
    made = (v for node in every_node(graph) for v in node.outputs)
    others = Names(v.name for v in (*own, *made) if v is not value and v.name)
    free = others.free(name or value.name or "weight")
    value.const_value = None  # else onnx_ir would rename the tensor, which is shared with the user's model
    if value.name == free:
        value.name = f"{free}/constant"
    replace_by_initializer(graph, value, array, free)


def _with_bodies(graph: ir.Graph) -> list[ir.Graph]:
    return [graph, *(body for node in every_node(graph) for body in graphs_in(node))]


def _constant_values(graph: ir.Graph) -> list[ir.Value]:
    """Return the outputs of Constant nodes that hold dense tensors of numbers, the only ones that onnx_ir reads."""
    nodes = [n for n in every_node(graph) if n.op_type == "Constant" and not n.domain]
    return [n.outputs[0] for n in nodes if set(n.attributes) <= {"value", "value_float", "value_floats"}]


def _float_array(value: ir.Value) -> np.ndarray | None:
    """Return the float32 or float64 array of a constant; None if it has another type."""
    tensor = tensor_of(value)
    return None if tensor is None or tensor.dtype not in TRAINED_TYPES else tensor.numpy()


def _remove_producer(node: ir.Node | None) -> None:
    assert node is not None
    assert node.graph is not None
    node.graph.remove(node, safe=True)

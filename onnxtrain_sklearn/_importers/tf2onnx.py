"""Files of ``tf2onnx``: replace operators of TensorFlow, and restore layers of Keras.

``tf2onnx`` writes operators that it cannot convert unchanged, in the default domain: no runtime loads such a file, and
ONNX's checker refuses it. :func:`without_tensorflow_operators` therefore works on protobuf, before the check. It
replaces the operators of :data:`_FORMS`, which have an exact form, and refuses the others by name.

``tf2onnx`` also merges all parameters with equal initial values into one constant. :func:`restore_layers` separates
them by the names of the nodes, which hold the path of the layer: ``model/dense_1/BiasAdd``. A constant that several
layers read becomes one parameter for each layer. But if its numbers were drawn at random, it is the weight of one layer
that is called several times, and all constants of that layer stay shared. Biases of zeros leave no trace in the file;
:func:`warn_of_lost_biases` warns of layers that seem to have lost one.

:func:`join_normalizations` turns the arithmetic that Keras exports for BatchNormalization into one node again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from math import prod, sqrt
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.defs
import onnx.helper
import onnx.shape_inference
import onnx_ir as ir

from .._ir.edits import copy_initializer, replace_node, swap_initializers
from .._ir.limits import nodes_of
from .._ir.opsets import graphs_of
from .._ir.queries import constant, dims, number_of, operand
from .._model.weights import array_of
from ..exceptions import ModelError, warn
from ..graph import GraphBuilder, Names, names_of
from .torch_program import is_tensorflow_constant

TF2ONNX = "tf2onnx"
"""The name of the producer in files of ``tf2onnx`` and of Keras' own export from TensorFlow."""


def without_tensorflow_operators(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with ONNX's operators in place of TensorFlow's; ModelError for those without an exact form."""
    if proto.producer_name != TF2ONNX:
        return proto
    left = [node for node in nodes_of(proto.graph) if _is_unknown(node)]
    refused = list(
        dict.fromkeys(
            node.op_type
            for node in left
            if node.op_type not in _FORMS or len(node.input) != _FORMS[node.op_type][0] or len(node.output) != 1
        )
    )
    if refused:
        kinds = ", ".join(f"{kind} ({_CALLS[kind]})" if kind in _CALLS else kind for kind in refused)
        where = next(node.name or node.output[0] for node in left if node.op_type == refused[0])
        raise ModelError(
            f"tf2onnx left operators of TensorFlow that it cannot convert, so that no runtime loads the file: {kinds}; "
            f"the first is {where!r}. Write them with other functions in the Keras model and export it again, or "
            f"export it with Keras on PyTorch (KERAS_BACKEND=torch)."
        )
    if not left:
        return proto
    # Collect the types and names of all bodies together, because a body may read values of the outer graphs.
    names, types = Names(), dict[str, int]()
    for graph in graphs_of(onnx.shape_inference.infer_shapes(proto).graph):
        names.update(value.name for value in (*graph.input, *graph.initializer))
        names.update(name for node in graph.node for name in node.output)
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type:
                types[value.name] = value.type.tensor_type.elem_type
        types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    result = deepcopy(proto)
    for graph in reversed(list(graphs_of(result.graph))):  # inner ones first: a node is copied with its bodies
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            if _is_unknown(node):
                # ONNX infers no type downstream of an unknown operator: pass the type on from node to node.
                known = (types[name] for name in (*node.input, *node.output) if name in types)
                types[node.output[0]] = next(known, onnx.TensorProto.FLOAT)
                writer = _Writer(node, names, types[node.output[0]])
                _FORMS[node.op_type][1](writer, *node.input)
                writer.nodes[-1].output[0], writer.nodes[-1].name = node.output[0], node.name
                nodes += writer.nodes
            else:
                nodes.append(node)
        # Copy the nodes, because clearing the repeated field invalidates them.
        kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(kept)
    return result


def _is_unknown(node: onnx.NodeProto) -> bool:
    return not node.domain and not onnx.defs.has(node.op_type)


class _Writer:
    """Emits the nodes that replace one node, with new names for intermediate values."""

    def __init__(self, node: onnx.NodeProto, names: Names, element_type: int) -> None:
        self._node, self._names, self._type = node, names, element_type
        self.nodes: list[onnx.NodeProto] = []

    def number(self, value: float) -> str:
        tensor = onnx.helper.make_tensor("value", self._type, [], [value])
        return self._emit("Constant", (), value=tensor)

    def __call__(self, operator: str, *inputs: str) -> str:
        return self._emit(operator, inputs)

    def _emit(self, operator: str, inputs: tuple[str, ...], **attributes: Any) -> str:
        name = self._names.free(f"{self._node.output[0]}/{operator}")
        self.nodes.append(onnx.helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name


def _unless_zero(op: _Writer, x: str, y: str, product: Callable[[str], str]) -> str:
    """Return ``x`` times a function of ``y``; where ``x`` is zero, the result and its gradients are zero."""
    zero = op.number(0.0)
    is_zero = op("Equal", x, zero)
    return op("Where", is_zero, zero, product(op("Where", is_zero, op.number(1.0), y)))


def _log1p(op: _Writer, x: str) -> str:
    return op("Log", op("Add", x, op.number(1.0)))


_FORMS: dict[str, tuple[int, Callable[..., str]]] = {
    "Erfc": (1, lambda op, x: op("Sub", op.number(1.0), op("Erf", x))),
    "Expm1": (1, lambda op, x: op("Sub", op("Exp", x), op.number(1.0))),
    "Log1p": (1, _log1p),
    "Xdivy": (2, lambda op, x, y: _unless_zero(op, x, y, lambda a: op("Div", x, a))),
    "Xlog1py": (2, lambda op, x, y: _unless_zero(op, x, y, lambda a: op("Mul", x, _log1p(op, a)))),
    "Xlogy": (2, lambda op, x, y: _unless_zero(op, x, y, lambda a: op("Mul", x, op("Log", a)))),
}
"""For each operator of TensorFlow: its number of inputs, and the function that emits ONNX operators."""


_CALLS = {
    "StatefulPartitionedCall": "a function that TensorFlow compiles as a whole, as Keras does for grouped convolutions",
    "PartitionedCall": "a function that TensorFlow calls as a whole",
}
"""Nodes that stand for functions of TensorFlow, for the error that refuses them."""


def restore_layers(model: ir.Model) -> bool:
    """Give each layer of a model that ``tf2onnx`` wrote parameters of its own, in place.

    Return True if a layer lacked them. Warn of layers that seem to have lost their biases.
    """
    if model.producer_name != TF2ONNX:
        return False
    separated = _separate_layers(model.graph)
    kept = [_keep_one_bias(model.graph, node) for node in list(model.graph)]
    warn_of_lost_biases(model.graph)
    return separated or any(kept)


def _separate_layers(graph: ir.Graph) -> bool:
    """Copy each constant that several layers read; return True if there was one."""
    separated = False
    values = [v for v in graph.initializers.values() if v.dtype is not None and v.dtype.is_floating_point()]
    weights = [v for v in values if v.shape is not None and len(v.shape) and not v.is_graph_output()]
    drawn = {v for v in weights if v.const_value is not None and is_drawn(array_of(v))}
    layers = _Layers()
    for value in drawn:
        layers.join(value)
    for value in (v for v in weights if v not in drawn):
        readers: dict[str, list[tuple[ir.Node, int]]] = {}
        for node, index in value.uses():
            readers.setdefault(layers.find(layer_of(node)), []).append((node, index))
        first = next(iter(readers), "")
        for layer, uses in list(readers.items())[1:]:  # the first layer keeps the constant itself
            name = value.name or ""
            own = f"{layer}{name.removeprefix(first)}" if name.startswith(f"{first}/") else f"{layer}/{name}"
            copied = copy_initializer(graph, value, names_of(graph).free(own))
            for node, index in uses:
                node.replace_input_with(index, copied)
            separated = True
    return separated


def is_drawn(array: np.ndarray) -> bool:
    """Return True if all numbers of an array differ, as after a random initialization or training."""
    return array.size > 1 and np.unique(array).size == array.size


def layer_of(node: ir.Node) -> str:
    """Return the path of the layer that a node belongs to; the name of the node if it contains no path."""
    path, _, name = (node.name or "").rpartition("/")
    return path or name


class _Layers:
    """The paths under which one layer is called, as a union of sets."""

    def __init__(self) -> None:
        self._same: dict[str, str] = {}

    def find(self, path: str) -> str:
        while path in self._same:
            path = self._same[path]
        return path

    def join(self, value: ir.Value) -> None:
        """Record that all calls that read ``value`` belong to one layer, and likewise the outer calls around them."""
        first, *others = dict.fromkeys(layer_of(node) for node, _ in value.uses()) or [""]
        for path in others:
            self._join(first, path)

    def _join(self, one: str, other: str) -> None:
        a, b = self.find(one), self.find(other)
        if a != b:
            self._same[b] = a
        (outer, _, name), (other_outer, _, other_name) = one.rpartition("/"), other.rpartition("/")
        if name == other_name and outer != other_outer:
            self._join(outer, other_outer)


def _keep_one_bias(graph: ir.Graph, node: ir.Node) -> bool:
    """Train one bias for each gate of a recurrent layer, as Keras does; the second bias of ONNX becomes constant zeros.

    If both were trained, their sum would move twice as far as in Keras. If all biases of an LSTM are zero, ``tf2onnx``
    filled them in for a layer without bias (Keras starts the bias of the forget gate at one): they are removed. Return
    True if the node changed.
    """
    if node.domain or node.op_type not in ("GRU", "LSTM", "RNN"):
        return False
    if node.op_type == "GRU" and node.attributes.get_int("linear_before_reset", 0) == 1:
        return False  # with ``reset_after=True``, the default, a GRU of Keras itself has two biases
    bias = operand(node, 3)
    if bias is None or bias.name not in graph.initializers or len(bias.uses()) > 1:
        return False
    array = array_of(bias)
    half = array.shape[-1] // 2
    if array[:, half:].any():
        return False
    if node.op_type == "LSTM" and not array.any():
        node.replace_input_with(3, None)
        return True
    swap_initializers(graph, {bias.name or "": array[:, :half]})
    bias.shape = ir.Shape((len(array), half))
    op = GraphBuilder(graph, prefix="keras", dtype=bias.dtype or ir.DataType.FLOAT)
    node.replace_input_with(3, op.Pad(bias, pads=[0, 0, 0, half]))
    graph.sort()
    return True


# BatchNormalization that Keras writes as arithmetic becomes one node again, if the file holds all its arrays.
#
# Keras on PyTorch computes ``(x - mean) * (gamma / sqrt(variance + epsilon)) + beta``. If the exporter did not fold
# constants, the file holds all four arrays, and the node can be set to training mode. Its running variance then
# averages the variance of the minibatch divided by N, as in Keras, not by N - 1, as in PyTorch.


NODES = "keras/BatchNormalization"
"""Prefix of the names of the restored BatchNormalization nodes."""

MOMENTUM = 0.99
"""Momentum of restored nodes: Keras's default, because files do not hold it."""

_SHAPES = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze"})


class _Layer(NamedTuple):
    """A batch normalization that is written as arithmetic: its input, its four arrays, and where they are read."""

    x: ir.Value
    arrays: tuple[ir.Value, ...]
    epsilon: float
    axis: int


def join_normalizations(model: ir.Model) -> bool:
    """Replace each BatchNormalization that is written as arithmetic by one node, in place; return True if any is."""
    found = [(node, layer) for node in model.graph if (layer := _normalization_at(node)) is not None]
    taken: set[ir.Value] = set()
    for node, layer in found:
        op = GraphBuilder(model.graph, dtype=layer.x.dtype or ir.DataType.FLOAT, prefix="keras")
        # Exporters merge equal arrays of several layers: copy an array that an earlier layer already uses.
        arrays = []
        for array in layer.arrays:
            name = names_of(op.graph).free(f"{array.name}/own") if array in taken else ""
            arrays.append(copy_initializer(op.graph, array, name) if name else array)
            taken.add(array)
        # BatchNormalization has its channels on axis 1; Keras has them last by default.
        rank = len(layer.x.shape) if layer.x.shape is not None else layer.axis + 1
        order = [0, layer.axis, *(i for i in range(1, rank) if i != layer.axis)]
        moves = order != list(range(rank))
        x = op.Transpose(layer.x, perm=order) if moves else layer.x
        y = op.BatchNormalization(x, *arrays, epsilon=layer.epsilon, momentum=MOMENTUM)
        y.producer().name = op.taken.free(f"{NODES}/{node.name or ''}")  # type: ignore[union-attr]
        result = op.Transpose(y, perm=[order.index(i) for i in range(rank)]) if moves else y
        replace_node(op, node, [result])
    if found:
        model.graph.sort()
    return bool(found)


def _normalization_at(node: ir.Node) -> _Layer | None:
    """Return the layer if ``node`` is the last of ``(x - mean) * (gamma * 1 / sqrt(variance + epsilon)) + beta``."""
    for product, beta in _both_orders(node, "Add"):
        for difference, factor in _both_orders(product.producer(), "Mul"):
            for inverse, gamma in _both_orders(factor.producer(), "Mul"):
                found = _with_statistics(difference.producer(), inverse, beta, gamma)
                if found is not None:
                    return found
    return None


def _with_statistics(node: ir.Node | None, inverse: ir.Value, beta: ir.Value, gamma: ir.Value) -> _Layer | None:
    """Return the layer if ``node`` computes ``x - mean`` and ``inverse`` is ``1 / sqrt(variance + epsilon)``."""
    root = _square_root_below(inverse.producer())
    if node is None or node.op_type != "Sub" or node.domain or root is None:
        return None
    x, mean = node.inputs
    # The only long axis of the mean, as it is subtracted, is the axis of the channels.
    sizes = dims(mean) or []
    long = [i for i, size in enumerate(sizes) if size != 1]
    if x is None or len(sizes) < 2 or len(long) != 1:
        return None
    for variance, number in _both_orders(root.producer(), "Add"):
        epsilon = number_of(number)
        arrays = [None if value is None else _initializer_of(value) for value in (gamma, beta, mean, variance)]
        known = [array for array in arrays if array is not None]
        if epsilon is not None and len(known) == 4:
            same = {None if v.shape is None else tuple(v.shape) for v in known}
            return _Layer(x, tuple(known), epsilon, long[0]) if len(same) == 1 else None
    return None


def _both_orders(node: ir.Node | None, kind: str) -> list[tuple[ir.Value, ir.Value]]:
    """Return the two operands of a node of this kind, in both orders; nothing for other nodes."""
    if node is None or node.op_type != kind or node.domain:
        return []
    first, second = node.inputs
    return [] if first is None or second is None else [(first, second), (second, first)]


def _square_root_below(node: ir.Node | None) -> ir.Value | None:
    """Return x if ``node`` computes ``1 / sqrt(x)``, else None."""
    if node is None or node.domain or node.op_type not in ("Reciprocal", "Div"):
        return None
    one = constant(node.inputs[0]) if node.op_type == "Div" and node.inputs[0] is not None else np.ones(1)
    below = node.inputs[-1]
    root = None if below is None else below.producer()
    is_root = root is not None and root.op_type == "Sqrt" and not root.domain
    return root.inputs[0] if root is not None and is_root and one is not None and (one == 1).all() else None


def _initializer_of(value: ir.Value) -> ir.Value | None:
    """Return the vector, an initializer, of which ``value`` is a reshaped or cast form; None if there is none."""
    node = value.producer()
    while node is not None and node.op_type in _SHAPES and not node.domain and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    is_array = node is None and value.is_initializer() and value.shape is not None and len(value.shape) == 1
    return value if is_array else None


# Lost biases: a warning of biases that ``tf2onnx`` leaves out of files of fresh networks.
#
# ``tf2onnx`` removes additions of zeros, and Keras initializes biases with zeros, so such a file looks like that of
# layers without biases. A layer counts as freshly initialized if no layer of the file has a bias, or if its kernel
# looks like a draw of Keras's default initialization.


_PRODUCTS = frozenset({"Conv", "ConvTranspose", "MatMul"})
_PASSING = frozenset({"Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators between a product and the sum with its bias."""

_TELLING = 256
"""Smallest size of a kernel whose largest number shows how the kernel was initialized."""


def warn_of_lost_biases(graph: ir.Graph) -> None:
    """Warn of layers that seem to be freshly initialized and have no bias in the file."""
    # Leave out the first product of a separable convolution: Keras adds the layer's bias to the second one.
    products = [
        node
        for node in graph
        if _kernel_of(node) is not None
        and not ("separable" in (node.name or "") and (node.name or "").endswith("/depthwise"))
    ]
    without = [node for node in products if not _has_bias(node)]
    fresh = without if len(without) == len(products) else [node for node in without if _is_drawn_by_default(node)]
    if fresh:
        names = list(dict.fromkeys(repr(layer_of(node)) for node in fresh))
        listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        warn(
            f"tf2onnx leaves out biases and shifts that are zeros, and scales that are ones, as those of a fresh "
            f"network are; they are then not trained. The file holds no bias of {listed}. If these layers of Keras "
            f"have biases, export after a step of training, or move the weights a little before: for v in "
            f"model.trainable_variables: v.assign_add(1e-6 * np.random.standard_normal(v.shape))."
        )


def _kernel_of(node: ir.Node) -> np.ndarray | None:
    value = node.inputs[1] if not node.domain and node.op_type in _PRODUCTS else None
    array = None if value is None or is_tensorflow_constant(value.name or "") else constant(value)
    return array if array is not None and array.ndim > 1 and np.issubdtype(array.dtype, np.floating) else None


def _has_bias(node: ir.Node) -> bool:
    return len(node.inputs) > 2 or any(
        user.op_type in ("Add", "Sub", "Sum") and any(x is not None and _is_array(x) for x in user.inputs)
        for user in _computing_with(node.outputs[0])
    )


def _is_array(value: ir.Value) -> bool:
    array = constant(value)
    return array is not None and array.ndim > 0


def _computing_with(value: ir.Value) -> Iterator[ir.Node]:
    """Yield the nodes that read a product, or a sum of products as in recurrent cells."""
    for node, _ in value.uses():
        sums = node.op_type == "Add" and not any(x is not None and _is_array(x) for x in node.inputs)
        yield node
        if node.op_type in _PASSING or sums:
            yield from _computing_with(node.outputs[0])


def _is_drawn_by_default(node: ir.Node) -> bool:
    """Return True if the largest number of a kernel is just within the bounds of Glorot and Bengio's uniform draw.

    Training would have moved the largest number away from the bounds.
    """
    kernel = _kernel_of(node)
    if kernel is None or kernel.size < _TELLING:
        return False
    shape = kernel.shape if node.op_type == "MatMul" else (*kernel.shape[2:], *kernel.shape[1::-1])
    bound = sqrt(6 / (prod(shape[:-2]) * sum(shape[-2:])))
    most = float(np.abs(kernel).max())
    return bound * (1 - 5 / kernel.size) <= most <= bound * (1 + 1e-6)

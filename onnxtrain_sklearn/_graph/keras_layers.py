"""Layers of Keras in the files of ``tf2onnx``: parameters that begin equal are one constant there.

Names of nodes hold the path of the layer: ``model/dense_1/BiasAdd``. A constant that several layers read is one
parameter for each, unless its numbers were drawn: then a layer is called twice, and its other constants stay shared.
Biases of zeros are dropped altogether; the file does not tell where.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .builder import GraphBuilder
from .edits import copy_initializer, swap_initializers
from .keras_lost import warn_of_lost_biases
from .names import names_of
from .queries import int_attribute, operand
from .tensorflow_operators import TF2ONNX
from .weights import array_of


def restore_layers(model: ir.Model) -> None:
    """Give each layer of a model that ``tf2onnx`` wrote parameters of its own, in place."""
    if model.producer_name == TF2ONNX:
        _separate_layers(model.graph)
        for node in list(model.graph):
            _keep_one_bias(model.graph, node)
        warn_of_lost_biases(model.graph)


def _separate_layers(graph: ir.Graph) -> None:
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
        for layer, uses in list(readers.items())[1:]:
            name = value.name or ""
            own = f"{layer}{name.removeprefix(first)}" if name.startswith(f"{first}/") else f"{layer}/{name}"
            copied = copy_initializer(graph, value, names_of(graph).free(own))
            for node, index in uses:
                node.replace_input_with(index, copied)


def is_drawn(array: np.ndarray) -> bool:
    """Whether all numbers of an array differ, as those that a random initialization or training gives."""
    return array.size > 1 and np.unique(array).size == array.size


def layer_of(node: ir.Node) -> str:
    """Return the path of the layer that a node belongs to; the name of the node where it holds none."""
    path, _, name = (node.name or "").rpartition("/")
    return path or name


class _Layers:
    """Calls that are of one layer, by their paths."""

    def __init__(self) -> None:
        self._same: dict[str, str] = {}

    def find(self, path: str) -> str:
        while path in self._same:
            path = self._same[path]
        return path

    def join(self, value: ir.Value) -> None:
        """Record that the calls that read a value are of one layer, and so are those around them."""
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


def _keep_one_bias(graph: ir.Graph, node: ir.Node) -> None:
    """Store the one bias that Keras has for each gate of a recurrent layer, and pad it with the zeros of the second.

    Both trained, their sum would move twice as far as in Keras. A bias of zeros alone was filled in for an LSTM without
    one: that of Keras begins with ones, for the forget gate.
    """
    bias = operand(node, 3) if _has_one_bias(node) else None
    if bias is None or bias.name not in graph.initializers or len(bias.uses()) > 1:
        return
    array = array_of(bias)
    half = array.shape[-1] // 2
    if array[:, half:].any():
        return
    if node.op_type == "LSTM" and not array.any():
        node.replace_input_with(3, None)
        return
    swap_initializers(graph, {bias.name or "": array[:, :half]})
    bias.shape = ir.Shape((len(array), half))
    op = GraphBuilder(graph, prefix="keras", dtype=bias.dtype or ir.DataType.FLOAT)
    node.replace_input_with(3, op.Pad(bias, pads=[0, 0, 0, half]))
    graph.sort()


def _has_one_bias(node: ir.Node) -> bool:
    """Whether Keras has one bias for a layer; its GRU has two with ``reset_after=True``, the default."""
    resets_after = node.op_type == "GRU" and int_attribute(node, "linear_before_reset", 0) == 1
    return not node.domain and node.op_type in ("GRU", "LSTM", "RNN") and not resets_after

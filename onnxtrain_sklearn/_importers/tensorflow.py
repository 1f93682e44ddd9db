"""Replace operators of TensorFlow that ``tf2onnx`` leaves in its files by ONNX's own operators.

It writes operators that it cannot convert as they are, in the default domain: no runtime loads such a file. Those with
an exact form are replaced before the file is checked. The others are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import onnx
import onnx.defs
import onnx.helper
import onnx.shape_inference

from .._ir.limits import nodes_of
from ..exceptions import ModelError
from ..graph import Names

TF2ONNX = "tf2onnx"
"""The name of the producer in files of ``tf2onnx`` and of Keras' own export from TensorFlow."""

_CALLS = {
    "StatefulPartitionedCall": "a function that TensorFlow compiles as a whole, as Keras does for grouped convolutions",
    "PartitionedCall": "a function that TensorFlow calls as a whole",
}


class _Writer:
    """Nodes in place of one node, with new names for the values between them."""

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
    """Return the product of ``x`` and a function of ``y``, zero where ``x`` is; so are the gradients there."""
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
"""Operators of TensorFlow: number of inputs, and computation."""


def without_tensorflow_operators(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with ONNX's operators in place of TensorFlow's; ModelError for those without an exact form."""
    if proto.producer_name != TF2ONNX:
        return proto
    left = [node for node in nodes_of(proto.graph) if _is_unknown(node)]
    refused = dict.fromkeys(node.op_type for node in left if not _has_form(node))
    if refused:
        raise ModelError(_left_over(left, list(refused)))
    if not left:
        return proto
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    typed = onnx.shape_inference.infer_shapes(proto).graph
    names, types = Names(_taken_names(result.graph)), dict(_element_types(typed))
    for graph in _graphs_in(result.graph):
        _rewrite(graph, names, types)
    return result


def _left_over(left: list[onnx.NodeProto], refused: list[str]) -> str:
    kinds = ", ".join(f"{kind} ({_CALLS[kind]})" if kind in _CALLS else kind for kind in refused)
    where = next(node.name or node.output[0] for node in left if node.op_type == refused[0])
    return (
        f"tf2onnx left operators of TensorFlow that it cannot convert, so that no runtime loads the file: {kinds}; "
        f"the first is {where!r}. Write them with other functions in the Keras model and export it again, or "
        f"export it with Keras on PyTorch (KERAS_BACKEND=torch)."
    )


def _is_unknown(node: onnx.NodeProto) -> bool:
    return not node.domain and not onnx.defs.has(node.op_type)


def _has_form(node: onnx.NodeProto) -> bool:
    inputs, _ = _FORMS.get(node.op_type, (-1, None))
    return len(node.input) == inputs and len(node.output) == 1


def _rewrite(graph: onnx.GraphProto, names: Names, types: dict[str, int]) -> None:
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if _is_unknown(node):
            known = (types[name] for name in (*node.input, *node.output) if name in types)
            types[node.output[0]] = next(known, onnx.TensorProto.FLOAT)
            writer = _Writer(node, names, types[node.output[0]])
            _FORMS[node.op_type][1](writer, *node.input)
            writer.nodes[-1].output[0], writer.nodes[-1].name = node.output[0], node.name
            nodes += writer.nodes
        else:
            nodes.append(node)
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)


def _graphs_in(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs of a graph, inner ones first."""
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node:
                    yield from _graphs_in(inner)
    yield graph


def _element_types(graph: onnx.GraphProto) -> Iterator[tuple[str, int]]:
    for one in _graphs_in(graph):
        for value in (*one.input, *one.output, *one.value_info):
            if value.type.tensor_type.elem_type:
                yield value.name, value.type.tensor_type.elem_type
        yield from ((tensor.name, tensor.data_type) for tensor in one.initializer)


def _taken_names(graph: onnx.GraphProto) -> Iterator[str]:
    for one in _graphs_in(graph):
        yield from (value.name for value in (*one.input, *one.initializer))
        yield from (name for node in one.node for name in node.output)

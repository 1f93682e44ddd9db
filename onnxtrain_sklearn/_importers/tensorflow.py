"""Replace operators of TensorFlow that ``tf2onnx`` leaves in its files by ONNX's own operators.

``tf2onnx`` writes operators that it cannot convert as they are, in the default domain: no runtime loads such a file,
and ONNX's checker refuses it. :func:`without_tensorflow_operators` therefore works on protobuf, before the check. It
replaces the operators of :data:`_FORMS`, which have an exact form, and refuses the others by name.
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


def without_tensorflow_operators(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with ONNX's operators in place of TensorFlow's; ModelError for those without an exact form."""
    if proto.producer_name != TF2ONNX:
        return proto
    left = [node for node in nodes_of(proto.graph) if _is_unknown(node)]
    refused = list(dict.fromkeys(node.op_type for node in left if not _has_form(node)))
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
    # Types and names are those of all bodies together: a body reads values of the graphs around it.
    names, types = Names(), dict[str, int]()
    for graph in _graphs_in(onnx.shape_inference.infer_shapes(proto).graph):
        names.update(value.name for value in (*graph.input, *graph.initializer))
        names.update(name for node in graph.node for name in node.output)
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type:
                types[value.name] = value.type.tensor_type.elem_type
        types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    for graph in _graphs_in(result.graph):
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
        kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]  # they end with their list
        del graph.node[:]
        graph.node.extend(kept)
    return result


def _is_unknown(node: onnx.NodeProto) -> bool:
    return not node.domain and not onnx.defs.has(node.op_type)


def _has_form(node: onnx.NodeProto) -> bool:
    inputs, _ = _FORMS.get(node.op_type, (-1, None))
    return len(node.input) == inputs and len(node.output) == 1


def _graphs_in(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs of a graph, inner ones first."""
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node:
                    yield from _graphs_in(inner)
    yield graph


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


_CALLS = {
    "StatefulPartitionedCall": "a function that TensorFlow compiles as a whole, as Keras does for grouped convolutions",
    "PartitionedCall": "a function that TensorFlow calls as a whole",
}
"""Nodes that stand for functions of TensorFlow, for the error that refuses them."""

"""Rewrite graphs around wrong CUDA kernels, and check indices that CUDA kernels do not check.

:func:`for_device` does both for the graph of a session. On CUDA, ``Sum``, ``Max`` and ``Min`` of three or more operands
are wrong where two of the operands are broadcast along different axes: in 96 of 241 combinations of three shapes, with
onnxruntime 1.31. Two operands at a time are right.

CUDA's kernels check no index. Beyond a table, ``Gather`` reads zeros, and the gradient of the table would be written
outside of it. So :func:`check_indices` looks at the data before they reach such a device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import numpy as np
import onnx

from .runtime_errors import beyond_table

NodeOwner: TypeAlias = "onnx.GraphProto | onnx.FunctionProto"

PAIRWISE = {"Sum": "Add", "Max": "Max", "Min": "Min"}
"""Operators of any number of operands, and their forms for two operands."""


def in_pairs(proto: onnx.ModelProto) -> bool:
    """Put operators of two operands in place of Sum, Max and Min of more, in the same order, in place.

    Return True if there were any.
    """
    graphs = [graph for outer in (proto.graph, *proto.functions) for graph in graphs_within(outer)]
    found = any(_combines_many(node) for graph in graphs for node in graph.node)
    for graph in graphs if found else ():
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            if not _combines_many(node):
                nodes.append(node)
                continue
            result, operator, inputs = node.output[0], PAIRWISE[node.op_type], list(node.input)
            names = [f"{result}/onnxtrain/{i}" for i in range(len(inputs) - 2)]
            left, outputs = [inputs[0], *names], [*names, result]
            nodes += [
                onnx.helper.make_node(operator, [a, b], [to], name=f"{node.name or result}/onnxtrain/{i}")
                for i, (a, b, to) in enumerate(zip(left, inputs[1:], outputs, strict=True))
            ]
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]  # they end with their list
        del graph.node[:]
        graph.node.extend(copies)
    return found


def graphs_within(graph: NodeOwner) -> Iterator[NodeOwner]:
    """Return the bodies of loops and branches, the innermost first, and ``graph``."""
    for node in graph.node:
        for attribute in node.attribute:
            for body in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from graphs_within(body)
    yield graph


def _combines_many(node: onnx.NodeProto) -> bool:
    return not node.domain and node.op_type in PAIRWISE and len(node.input) > 2


def for_device(model: bytes) -> tuple[bytes, dict[str, int]]:
    """Return the model with operators that a device computes right, and the sizes that bound its index inputs."""
    proto = onnx.load_model_from_string(model)
    sizes = index_sizes(proto.graph)
    return (proto.SerializeToString() if in_pairs(proto) else model), sizes


_INTEGERS = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
_SAME_VALUES = frozenset("Cast Expand Flatten Identity Reshape Squeeze Transpose Unsqueeze".split())
"""Operators that return all numbers of their first operand, in another shape, order or type."""


def index_sizes(graph: onnx.GraphProto) -> dict[str, int]:
    """Return the integer inputs that are indices as a whole, with the size of the smallest axis that they index.

    An input of which only some columns are indices, as of a table, is not included.
    """
    sizes = {  # 0 stands for a dimension that is not fixed
        value.name: [d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.value_info)
    }
    sizes |= {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    source = {i.name: i.name for i in graph.input if i.type.tensor_type.elem_type in _INTEGERS}
    found: dict[str, int] = {}
    for node in graph.node:
        if node.domain or not node.input:
            continue
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        if node.op_type in _SAME_VALUES or (node.op_type == "Gather" and axis == 0):  # rows of all data
            source |= {node.output[0]: source[node.input[0]]} if node.input[0] in source else {}
        if node.op_type in ("Gather", "GatherElements") and node.input[1] in source:
            name, shape = source[node.input[1]], sizes.get(node.input[0], [])
            if shape and shape[axis] > 0:
                found[name] = min(found.get(name, shape[axis]), shape[axis])
    return found


def check_indices(sizes: Mapping[str, int], arrays: Mapping[str, np.ndarray]) -> None:
    """Raise ModelError if an array holds an index that its table does not have."""
    for name, size in sizes.items():
        array = arrays.get(name)
        if array is not None and array.size and not -size <= int(array.min()) <= int(array.max()) < size:
            wrong = int(array.max()) if int(array.max()) >= size else int(array.min())
            raise beyond_table(f"{name.rpartition('/')[2]!r} holds other integers", wrong, size)

"""Rewrite graphs around wrong CUDA kernels, and translate the errors of sessions.

``Sum``, ``Max`` and ``Min`` of three or more operands are wrong there where two of the operands are broadcast along
different axes: in 96 of 241 combinations of three shapes, with onnxruntime 1.31. Two operands at a time are right.

No index is checked. Beyond a table ``Gather`` reads zeros, and the gradient of the table would be written outside of
it. So data are checked before they reach such a device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from .._utils.errors import NOT_ENOUGH, ran_out, reason
from ..exceptions import ModelError
from .packages import version

NodeOwner: TypeAlias = "onnx.GraphProto | onnx.FunctionProto"

PAIRWISE = {"Sum": "Add", "Max": "Max", "Min": "Min"}
"""Operators of any number of operands, and those that combine two."""


def in_pairs(proto: onnx.ModelProto) -> bool:
    """Put operators of two operands in place of Sum, Max and Min of more, in the same order; whether there were any."""
    graphs = [graph for outer in (proto.graph, *proto.functions) for graph in graphs_within(outer)]
    found = any(_combines_many(node) for graph in graphs for node in graph.node)
    for graph in graphs if found else ():
        nodes = [one for node in graph.node for one in (_pairs(node) if _combines_many(node) else [node])]
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
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


def _pairs(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return nodes of two operands each; the names between them begin with that of the result."""
    result, operator, inputs = node.output[0], PAIRWISE[node.op_type], list(node.input)
    names = [f"{result}/onnxtrain/{i}" for i in range(len(inputs) - 2)]
    left, outputs = [inputs[0], *names], [*names, result]
    return [
        onnx.helper.make_node(operator, [a, b], [to], name=f"{node.name or result}/onnxtrain/{i}")
        for i, (a, b, to) in enumerate(zip(left, inputs[1:], outputs, strict=True))
    ]


def for_device(model: bytes) -> tuple[bytes, dict[str, int]]:
    """Return the model with the operators that a device computes right, and the sizes that its indices are within."""
    proto = onnx.load_model_from_string(model)
    sizes = index_sizes(proto.graph)
    return (proto.SerializeToString() if in_pairs(proto) else model), sizes


_INTEGERS = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
_SAME_VALUES = frozenset("Cast Expand Flatten Identity Reshape Squeeze Transpose Unsqueeze".split())
"""Operators that return all numbers of their first operand, in another shape, order or type."""


def index_sizes(graph: onnx.GraphProto) -> dict[str, int]:
    """Return the integer inputs that as a whole are indices, with the size of the smallest axis that they index.

    An input of which parts are indices, such as a column of a table, is not among them.
    """
    sizes = _fixed_shapes(graph)
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


def _fixed_shapes(graph: onnx.GraphProto) -> dict[str, list[int]]:
    """Return the known shapes; a dimension that is not fixed is 0."""
    declared = {
        value.name: [d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.value_info)
    }
    return {**declared, **{tensor.name: list(tensor.dims) for tensor in graph.initializer}}


def check_indices(sizes: Mapping[str, int], arrays: Mapping[str, np.ndarray]) -> None:
    """Raise ModelError if an array holds an index that its table does not have."""
    for name, size in sizes.items():
        array = arrays.get(name)
        if array is not None and array.size and not -size <= int(array.min()) <= int(array.max()) < size:
            wrong = int(array.max()) if int(array.max()) >= size else int(array.min())
            raise beyond_table(f"{name.rpartition('/')[2]!r} holds other integers", wrong, size)


# Errors of onnxruntime as errors of this package.


_LACKING = re.compile(r"implementation for (\w+)\(\d+\) node with name '([^']*)'")
_BEYOND = re.compile(r"idx=(-?\d+) must be within the inclusive range \[-?\d+, ?(-?\d+)\]")
_OUT_OF_RANGE = ("Out of range value in index tensor", "invalid index found", "invalid indice found")
_SCARCE = (ir.DataType.BFLOAT16, ir.DataType.DOUBLE, ir.DataType.FLOAT16)
"""The floats that many operators are not implemented in."""


def not_loaded(error: Exception, model: bytes = b"") -> ModelError | MemoryError:
    """Return the error to raise for a graph, serialized in ``model``, that onnxruntime does not load."""
    if ran_out(error):
        return MemoryError(f"{NOT_ENOUGH} to load the graph of {len(model):,} bytes: {reason(error)}.")
    if not_implemented(error):
        if scarce := _scarce_type(error, model):
            return ModelError(
                f"onnxruntime {version()} lacks a kernel for the graph: {reason(error)}. The reason is the type of its "
                f"inputs, {scarce}, in which onnxruntime lacks some operators whatever the opset. Export the model in "
                f"float32, which takes data of any float type, or replace the operator."
            )
        foreign = "is not a registered function/op" in str(error)
        option = "session_options={'register_custom_ops_library': path}"
        library = f" For an operator of a library, name it: runtime=Runtime({option})."
        return ModelError(
            f"onnxruntime {version()} lacks a kernel for the graph: {reason(error)}. Export the model again with "
            f"another opset (18 is a good choice), or replace the operator.{library if foreign else ''}"
        )
    return ModelError(f"onnxruntime {version()} cannot load the graph: {reason(error)}.")


def beyond_table(why: str, index: int, size: int) -> ModelError:
    """Return the error to raise for an index that its table does not have."""
    return ModelError(
        f"The graph does not run on the data: {why}. The index {index} is beyond a table of {size} rows that it "
        f"selects from, such as the vocabulary of an embedding: indices from 0 to {size - 1} are valid. Replace the "
        f"others in X, or take the model with the larger table."
    )


def not_run(error: Exception) -> ModelError | MemoryError:
    """Return the error to raise for a graph that fails on its data."""
    if ran_out(error):
        return MemoryError(
            f"{NOT_ENOUGH} to run the graph on the data: {reason(error)}. Take fewer rows at a time (batch_size), or "
            f"runtime=Runtime(checkpoint_activations=True)."
        )
    if found := _BEYOND.search(str(error)):
        index, last = found.groups()
        return beyond_table(reason(error), int(index), int(last) + 1)
    if any(text in str(error) for text in _OUT_OF_RANGE):
        return ModelError(
            f"The graph does not run on the data: {reason(error)}. An index in X, or computed from it, is beyond the "
            f"size of what it selects from."
        )
    return ModelError(
        f"The graph does not run on the data: {reason(error)}. If the number of rows is fixed inside it (by a constant "
        f"shape in a Reshape), export it with a dynamic batch axis."
    )


def not_implemented(error: BaseException) -> bool:
    """Return True if ``error`` or its cause reports a missing kernel for an operator or type."""
    if error.__cause__ is not None and not_implemented(error.__cause__):
        return True
    messages = ("NOT_IMPLEMENTED", "is not a registered function/op")
    return type(error).__name__ in {"NotImplemented", "InvalidGraph"} or any(text in str(error) for text in messages)


def _scarce_type(error: Exception, model: bytes) -> str:
    """Return the type of the floats that the node without a kernel reads, "" if it is float32 or not known."""
    found = _LACKING.search(str(error))
    graph = onnx.load_model_from_string(model).graph if found and model else None
    if found is None or graph is None:
        return ""
    typed = (*graph.input, *graph.value_info, *graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in typed}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    nodes = [node for node in graph.node if (node.op_type, node.name) == found.groups()]
    read = [ir.DataType(types.get(name, 0)) for node in nodes for name in (*node.input, *node.output)]
    return next((dtype.name.lower().replace("double", "float64") for dtype in read if dtype in _SCARCE), "")

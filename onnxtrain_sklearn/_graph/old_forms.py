"""Forms of old files that ONNX's converter cannot read, in forms of the same opset that it can.

Before opset 7, ``broadcast=1, axis=k`` aligned the second operand with the axes of the first from ``k`` on; before
opset 9, ``spatial=0`` gave each element of a row statistics of its own. Initializers of files before IR version 4 were
inputs too, and the converter adds some that are not.
"""

from __future__ import annotations

import math
from collections import Counter

import onnx
import onnx.helper
import onnx.shape_inference
import onnx.version_converter

from .cast_types import INT64

LISTED_IR = 4
"""The first IR version in which initializers need not be inputs."""

BROADCASTING = 7
"""The first opset in which operands broadcast as in NumPy."""

RESHAPES = 5
"""The first opset in which Reshape takes the shape as an input."""

CHANGED = frozenset("Add And Div Equal Gemm Greater Less Mul Or PRelu Pow Sub Xor".split())
"""The operators that broadcast otherwise before."""

ROWS = 97
"""A size for free axes while a model is converted."""


def without_old_forms(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without these forms; the same object if it has none."""
    opset = next(o.version for o in proto.opset_import if not o.domain)
    old = opset < 11 and proto.ir_version < LISTED_IR
    broadcasts = opset < BROADCASTING and any(node.op_type in CHANGED for node in proto.graph.node)
    elementwise = opset < 9 and any(_number(node, "spatial", 1) == 0 for node in proto.graph.node)
    if not (old or broadcasts or elementwise):
        return proto
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    result.ir_version = max(result.ir_version, LISTED_IR)
    if broadcasts or elementwise:
        ranks, uses = _ranks(proto), Counter(name for node in proto.graph.node for name in node.input)
        nodes = list(result.graph.node)
        del result.graph.node[:]
        for node in nodes:
            result.graph.node.extend(_renewed(result.graph, node, ranks, uses, opset))
    return _by_fixed_rows(result) if opset < BROADCASTING else result


def _by_fixed_rows(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model in opset 7, converted as if its free axes were fixed: the converter takes no others there."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(proto)
    del fixed.graph.value_info[:]
    for value in (*fixed.graph.input, *fixed.graph.output):
        for size in value.type.tensor_type.shape.dim:
            if not size.HasField("dim_value"):
                size.dim_value = ROWS
    result = onnx.version_converter.convert_version(fixed, BROADCASTING)
    del result.graph.value_info[:]
    declared = {value.name: value for value in (*proto.graph.input, *proto.graph.output)}
    for value in (*result.graph.input, *result.graph.output):
        if value.name in declared:
            value.CopyFrom(declared[value.name])
    return result


def _renewed(
    graph: onnx.GraphProto, node: onnx.NodeProto, ranks: dict[str, int], uses: Counter[str], opset: int
) -> list[onnx.NodeProto]:
    if node.op_type == "BatchNormalization" and _number(node, "spatial", 1) == 0:
        return _over_elements(graph, node, ranks, uses, opset)
    if _number(node, "broadcast", 0):
        return _aligned(node, ranks)
    return [node]


def _aligned(node: onnx.NodeProto, ranks: dict[str, int]) -> list[onnx.NodeProto]:
    """Return a node that broadcasts as NumPy does, behind one that adds the axes which the second operand lacks."""
    if node.op_type == "Gemm" or not _has(node, "axis"):  # the last axes are aligned
        _drop(node, "broadcast")
        return [node]
    first, second = (ranks.get(name) for name in node.input[:2])
    if first is None or second is None:
        return [node]  # the converter says that it cannot read it
    axis = _number(node, "axis", 0)
    missing = first - second - (axis if axis >= 0 else axis + first)
    _drop(node, "broadcast", "axis")
    if missing <= 0:
        return [node]
    name = f"{node.output[0]}/operand"
    moved = onnx.helper.make_node(
        "Unsqueeze", [node.input[1]], [name], axes=list(range(second, second + missing)), name=f"{node.name}/operand"
    )
    node.input[1] = name
    return [moved, node]


def _over_elements(
    graph: onnx.GraphProto, node: onnx.NodeProto, ranks: dict[str, int], uses: Counter[str], opset: int
) -> list[onnx.NodeProto]:
    """Return nodes that normalize rows as vectors, each element of which has statistics of its own."""
    held = {tensor.name: tensor for tensor in graph.initializer}
    rank, own = ranks.get(node.input[0]), [held.get(name) for name in node.input[1:5]]
    shared = [i for i, tensor in enumerate(own, 1) if tensor is None or uses[tensor.name] > 1]
    if rank is None or len(node.output) > 1 or (shared and opset < RESHAPES):
        return [node]  # the converter says that it cannot read it
    _drop(node, "spatial")
    if rank == 2:
        return [node]
    declared = {value.name: value for value in graph.input}
    for tensor in (tensor for i, tensor in enumerate(own, 1) if tensor is not None and i not in shared):
        size = math.prod(tensor.dims)
        tensor.dims[:] = [size]
        if tensor.name in declared:
            kind = declared[tensor.name].type.tensor_type
            kind.shape.Clear()
            kind.shape.dim.add(dim_value=size)
    given, result = node.input[0], node.output[0]
    names = {stem: f"{result}/{stem}" for stem in ("flat", "shape", "normalized")}
    vectors = list[onnx.NodeProto]()
    for i in shared:  # computed, or read elsewhere in its own shape
        name, vector = node.input[i], f"{result}/statistic_{i}"
        size = onnx.helper.make_tensor(f"{vector}/size", INT64, [1], [-1])
        vectors.append(onnx.helper.make_node("Constant", [], [size.name], value=size))
        vectors.append(onnx.helper.make_node("Reshape", [name, size.name], [vector]))
        node.input[i] = vector
    node.input[0], node.output[0] = names["flat"], names["normalized"]
    return [
        *vectors,
        onnx.helper.make_node("Flatten", [given], [names["flat"]], axis=1),
        node,
        onnx.helper.make_node("Shape", [given], [names["shape"]]),
        onnx.helper.make_node("Reshape", [names["normalized"], names["shape"]], [result]),
    ]


def _ranks(proto: onnx.ModelProto) -> dict[str, int]:
    graph = onnx.shape_inference.infer_shapes(proto).graph
    found = {v.name: v.type.tensor_type for v in (*graph.input, *graph.value_info, *graph.output)}
    ranks = {name: len(kind.shape.dim) for name, kind in found.items() if kind.HasField("shape")}
    return ranks | {tensor.name: len(tensor.dims) for tensor in graph.initializer}


def _has(node: onnx.NodeProto, name: str) -> bool:
    return any(a.name == name for a in node.attribute)


def _number(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((int(a.i) for a in node.attribute if a.name == name), default)


def _drop(node: onnx.NodeProto, *names: str) -> None:
    kept = [a for a in node.attribute if a.name not in names]
    del node.attribute[:]
    node.attribute.extend(kept)

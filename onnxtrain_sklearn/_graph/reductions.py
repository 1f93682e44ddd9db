"""Reductions over no axes, replaced by elementwise operators when a graph is read.

With ``noop_with_empty_axes`` a reduction without axes is applied to single elements: ReduceSumSquare squares them.
onnxruntime 1.19 fails on some of these nodes and returns the input of others unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from .survival import nodes_of

ELEMENTWISE = {
    "ReduceL1": "Abs",
    "ReduceL2": "Abs",
    "ReduceLogSum": "Log",
    "ReduceSumSquare": "Mul",
    **dict.fromkeys(("ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"), "Identity"),
}
"""The elementwise operator of each reduction."""


def over_no_axes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return the nodes of a GraphProto, and of its subgraphs, that reduce over no axes."""
    candidates = [node for node in nodes_of(graph) if not node.domain and _keeps_all(node)]
    empty = {*_empty_constants(graph)} if candidates else set()
    return [node for node in candidates if node.input[1:2] in ([], [""]) or node.input[1] in empty]


def without_empty_reductions(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with elementwise operators in place of reductions over no axes."""
    if not over_no_axes(proto.graph):
        return proto
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    for node in over_no_axes(result.graph):
        apply_to_elements(node)
    return result


def apply_to_elements(node: onnx.NodeProto) -> None:
    """Turn a node that reduces over no axes into its elementwise operator."""
    node.op_type = ELEMENTWISE[node.op_type]
    del node.attribute[:]
    del node.input[1:]
    if node.op_type == "Mul":
        node.input.append(node.input[0])


def _keeps_all(node: onnx.NodeProto) -> bool:
    attributes = {a.name: a for a in node.attribute}
    given = "noop_with_empty_axes" in attributes and attributes["noop_with_empty_axes"].i
    return node.op_type in ELEMENTWISE and bool(given) and not ("axes" in attributes and attributes["axes"].ints)


def _empty_constants(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the names of initializers and constants without elements, also of subgraphs."""
    yield from (tensor.name for tensor in graph.initializer if list(tensor.dims) == [0])
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and _is_empty(attribute):
                yield from node.output
            for inner in (attribute.g, *attribute.graphs):
                yield from _empty_constants(inner)


def _is_empty(attribute: onnx.AttributeProto) -> bool:
    """Whether the only attribute of a Constant holds no elements."""
    return (attribute.name == "value" and list(attribute.t.dims) == [0]) or (
        attribute.name == "value_ints" and not attribute.ints
    )

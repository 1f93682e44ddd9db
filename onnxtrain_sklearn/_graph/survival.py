"""Graphs that end the process: ONNX's checker takes them, and what reads them next reads foreign memory.

ONNX's shape inference does so for the nodes of :data:`RULES`. Each was found by inferring every operator of opsets 13,
18 and 26 with settings out of range, in child processes; none of them is valid, and all are refused by rule.
onnxruntime does so for further ones whose operands do not fit together, such as a convolution of another rank than its
kernel. Strict inference objects to those, and to hardly a graph that is right: what it objects to is loaded in a child
process first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import onnx.shape_inference
import onnx_ir as ir

from .. import _runtime
from .._refusal import reason
from ..exceptions import ModelError
from .limits import current


def require_survivable(proto: Any) -> None:
    """Raise ModelError for the first node of a ModelProto, or of its subgraphs and functions, that is one of these."""
    for node in (node for graph in (proto.graph, *proto.functions) for node in nodes_of(graph)):
        settings = {a.name: a.i for a in node.attribute}
        for wrong in filter(None, (rule(node, settings) for rule in (_axis, *RULES.get(node.op_type, ())))):
            raise ModelError(f"Node {node.name!r} ({node.op_type}) is not valid: {wrong}.")


def require_loadable(model: ir.Model) -> None:
    """Raise ModelError where onnxruntime does not survive loading a graph; must have passed the rules."""
    proto = ir.to_proto(model)
    try:
        onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
    except Exception as error:
        if not _runtime.survives_loading(proto.SerializeToString()):
            raise ModelError(
                f"onnxruntime {_runtime.version()} does not survive loading the graph: {reason(error)}."
            ) from error


def nodes_of(graph: Any) -> Iterator[Any]:
    """Yield the nodes of a GraphProto or FunctionProto, those of its subgraphs included."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for subgraph in (attribute.g, *attribute.graphs):
                yield from nodes_of(subgraph)


def _axis(node: Any, settings: dict[str, int]) -> str | None:
    """LayerNormalization adds one to its axis, which for the largest integer overflows."""
    most, axis = current().axes, settings.get("axis", 0)
    return None if -most <= axis <= most else f"its axis is {axis}, and tensors have at most {most} axes"


def _batch_dims(node: Any, settings: dict[str, int]) -> str | None:
    count = settings.get("batch_dims", 0)
    return f"batch_dims={count} must not be negative" if count < 0 else None


def _num_outputs(node: Any, settings: dict[str, int]) -> str | None:
    count = settings.get("num_outputs", len(node.output))
    return f"num_outputs={count}, but it has {len(node.output)} outputs" if count < len(node.output) else None


RULES: dict[str, tuple[Callable[[Any, dict[str, int]], str | None], ...]] = {
    "GatherND": (_batch_dims,),
    "Split": (_num_outputs,),
}

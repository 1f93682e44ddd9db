"""The file as given, run by onnxruntime beside the graph that was read from it.

What reads, converts and rewrites files may be wrong; the file itself, in its own opset and with its own functions, is
not. Both compute the trained output for the same rows, and where they differ the first value that does so is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from .._data.columns import Column
from .._graph.files import read, without_program
from .._graph.protobuf import to_proto
from .._graph.random_nodes import DRAWING
from .._graph.reductions import without_empty_reductions
from .._graph.survival import nodes_of
from .._runtime import sessions
from .._runtime.devices import resolve_device
from ..exceptions import ModelError

LARGEST = 2**31 - 1
"""Bytes of a file that onnxruntime takes as a message."""

ROUNDED = 0.1
"""Largest difference, in parts of the largest number, where the file computes with few bits."""

_PLAIN = {"graph_optimization_level": "ORT_DISABLE_ALL"}
_FEW_BITS = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


def require_file_as_given(
    model: Any, graph: ir.Model, name: str, columns: Mapping[str, Column], rows: np.ndarray, found: np.ndarray
) -> None:
    """Raise ModelError, with the first node that differs, if the file does not compute what ``graph`` did for rows.

    ``graph`` is the inference form of what was read. A file that the installed onnxruntime does not run as it is, that
    draws random numbers, or that has inputs beside the columns is not compared.
    """
    model = without_program(model)
    if not isinstance(model, onnx.ModelProto | bytes | str) and not hasattr(model, "__fspath__"):
        return
    proto = read(model)
    if name not in {value.name for value in proto.graph.output} or proto.ByteSize() > LARGEST or _draws(proto):
        return
    proto = without_empty_reductions(proto)  # which onnxruntime takes for those over all axes, against the standard
    feeds = _feeds(proto, columns, rows)
    if feeds is None or (numbers := _run(proto, [name], feeds)) is None:
        return
    few_bits = _has_few_bits(proto)
    if not _differ(numbers[0], found, few_bits):
        return
    again = _run(proto, [name], feeds)  # an operator of another domain may draw random numbers too
    if again is None or _differ(again[0], numbers[0], few_bits):
        return
    raise ModelError(
        f"The graph that was read does not compute what onnxruntime computes of the file as given: output {name!r} "
        f"differs by up to {_distance(numbers[0], found):.2g} on rows of X.{_first(proto, graph, feeds, few_bits)} "
        f"Export the model with another opset (18 is a good choice) or without that operator, and please report it."
    )


def _draws(proto: onnx.ModelProto) -> bool:
    """Whether the file draws random numbers or normalizes by batches, which its inference form does not."""
    for graph in (proto.graph, *proto.functions):
        for node in nodes_of(graph):
            mode = any(a.name == "training_mode" and a.i for a in node.attribute)
            training = node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]
            batch = node.op_type == "BatchNormalization" and (mode or len(node.output) > 1)
            if node.op_type in DRAWING or training or batch:
                return True
    return False


def _feeds(proto: onnx.ModelProto, columns: Mapping[str, Column], rows: np.ndarray) -> dict[str, np.ndarray] | None:
    """Return the rows in the types of the file; None if it has other inputs, or as many rows as it was exported for."""
    held = {tensor.name for tensor in proto.graph.initializer}
    feeds = {}
    for value in (value for value in proto.graph.input if value.name not in held):
        kind = value.type.tensor_type
        if value.name not in columns or kind.elem_type in (onnx.TensorProto.BFLOAT16, onnx.TensorProto.STRING):
            return None
        if kind.shape.dim and kind.shape.dim[0].dim_value not in (0, len(rows)):
            return None
        feeds[value.name] = columns[value.name].rows(rows).astype(ir.DataType(kind.elem_type).numpy(), copy=False)
    return feeds


def _run(proto: onnx.ModelProto, names: Sequence[str], feeds: Mapping[str, np.ndarray]) -> list[np.ndarray] | None:
    """Return outputs on the CPU without optimization; None if onnxruntime does not run the graph."""
    try:
        session = sessions.create_session(proto.SerializeToString(), resolve_device(), options=_PLAIN)
        return sessions.run_session(session, names, feeds)
    except ModelError:
        return None


def _has_few_bits(proto: onnx.ModelProto) -> bool:
    kinds = {tensor.data_type for tensor in proto.graph.initializer}
    kinds |= {value.type.tensor_type.elem_type for value in (*proto.graph.input, *proto.graph.output)}
    quantizes = any(
        word in node.op_type for node in nodes_of(proto.graph) for word in ("Quantize", "Integer", "QLinear", "NBits")
    )
    casts = any(a.name == "to" and a.i in _FEW_BITS for node in nodes_of(proto.graph) for a in node.attribute)
    return quantizes or casts or not kinds.isdisjoint(_FEW_BITS)


def _differ(one: Any, other: Any, few_bits: bool) -> bool:
    if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)) or one.dtype.kind not in "fiub":
        return False
    if one.size != other.size:
        return True
    one, other = one.astype(np.float64).ravel(), other.astype(np.float64).ravel()
    scale = max(1.0, float(np.abs(one[np.isfinite(one)]).max(initial=0.0)))
    error = ROUNDED if few_bits else 1e-3
    return not np.allclose(one, other, rtol=error, atol=error * scale, equal_nan=True)


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    if one.size != other.size:
        return float("inf")
    return float(np.nanmax(np.abs(one.astype(np.float64).ravel() - other.astype(np.float64).ravel())))


def _first(proto: onnx.ModelProto, graph: ir.Model, feeds: Mapping[str, np.ndarray], few_bits: bool) -> str:
    """Return which node of the file is the first whose result differs, as far as names survived."""
    read_from = to_proto(graph.clone())
    known = {name for node in read_from.graph.node for name in node.output if name}
    nodes = {name: node for node in proto.graph.node for name in node.output if name in known}
    inputs = {value.name for value in read_from.graph.input}
    ours = _run(_showing(read_from, nodes), list(nodes), {n: v for n, v in feeds.items() if n in inputs})
    theirs = _run(_showing(proto, nodes), list(nodes), feeds)
    for name, a, b in zip(nodes, theirs or (), ours or (), strict=False):
        if _differ(a, b, few_bits):
            node = nodes[name]
            return f" The first node that differs is {node.name or name!r} ({node.op_type}), by its result {name!r}."
    last = proto.graph.node[-1]
    return f" No value before it shows where; the last node is {last.name or last.output[0]!r} ({last.op_type})."


def _showing(proto: onnx.ModelProto, names: Mapping[str, Any]) -> onnx.ModelProto:
    """Return the graph with further values among its outputs; onnxruntime infers their types."""
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    shown = {value.name for value in result.graph.output}
    for name in names:
        if name not in shown:
            result.graph.output.add(name=name)
    return result

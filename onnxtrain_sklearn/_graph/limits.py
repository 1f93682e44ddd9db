"""Limits of the size of a model, checked before it is processed and before its external data are read.

A file of a kilobyte can cause unbounded work: functions that call functions twice, tensors of 2**60 numbers, nested
graphs. The cost is counted on the protobuf messages; whether the model is valid is checked later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace

import onnx
import onnx_ir as ir

from .._support.memory import require_memory
from ..exceptions import ModelError, nearest
from .queries import every_node


@dataclass(frozen=True)
class ModelLimits:
    """Limits of the size of models that are read, trained or differentiated.

    A larger model raises :class:`~onnxtrain_sklearn.exceptions.ModelError` before it is read. Change the limits with
    :func:`model_limits`. Whatever they are, a model that is trained has less than 2 GiB of weights: onnx and
    onnxruntime take it as one protobuf message, which cannot be larger.

    Parameters
    ----------
    nodes : int, default=200_000
        Nodes of the graph and its subgraphs; the nodes of a local function count for each call.
    nesting : int, default=16
        Depth of nested subgraphs and of calls of local functions.
    axes : int, default=32
        Axes of a tensor.
    tensor_bytes : int, default=2**35
        Bytes of all weights and constants together, and of each value that the graph computes for one row, if its
        shape is known.
    file_bytes : int, default=2**35
        Bytes of the model's file, and of the external data that are read.
    iterations : int, default=10_000_000
        Iterations of a Loop whose number is constant.

    Examples
    --------
    >>> from onnxtrain_sklearn import ModelLimits
    >>> ModelLimits(nodes=1000).nodes
    1000
    """

    nodes: int = 200_000
    nesting: int = 16
    axes: int = 32
    tensor_bytes: int = 2**35
    file_bytes: int = 2**35
    iterations: int = 10_000_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{field.name} of ModelLimits must be an integer >= 1, got {value!r}.")


LARGEST_MESSAGE = 2**31 - 1
"""The largest size of a protobuf message, in bytes."""

_DEFAULT = ModelLimits()
_current: ContextVar[ModelLimits] = ContextVar("model_limits", default=_DEFAULT)


def current_limits() -> ModelLimits:
    """Return the limits of the current context."""
    return _current.get()


@contextmanager
def model_limits(**limits: int) -> Iterator[ModelLimits]:
    """Set limits of models within a ``with`` block.

    Parameters
    ----------
    **limits : int
        Attributes of :class:`ModelLimits`; the others keep their values. Other threads and processes, such as joblib's
        workers, are not affected.

    Yields
    ------
    ModelLimits
        The limits within the block.

    Examples
    --------
    >>> from onnxtrain_sklearn import model_limits
    >>> with model_limits(nodes=1_000_000, nesting=40) as limits:
    ...     limits.nodes, limits.axes
    (1000000, 32)
    """
    valid = [field.name for field in fields(ModelLimits)]
    for name in limits:
        if name not in valid:
            raise ValueError(f"Unknown limit {name!r}.{nearest(name, valid)}")
    token = _current.set(replace(current_limits(), **limits))
    try:
        yield current_limits()
    finally:
        _current.reset(token)


def exceeded(what: str, name: str) -> ModelError:
    """Return an error that names what is too large and how to raise the limit ``name``."""
    limit = getattr(current_limits(), name)
    return ModelError(
        f"{what}, more than the limit {name}={limit:,}. If you trust the model, raise it: "
        f"with onnxtrain_sklearn.model_limits({name}=...)."
    )


def require_within_limits(proto: onnx.ModelProto) -> None:
    """Raise ModelError for a ModelProto that exceeds the limits, or whose functions call themselves."""
    count = _Count(proto)
    count.model(proto)
    require_one_message(count.bytes, "")
    require_memory(count.bytes, "a model with weights and constants")


def require_one_message(size: int, form: str) -> None:
    """Raise ModelError if weights and constants of ``size`` bytes do not fit into one protobuf message."""
    if size > LARGEST_MESSAGE:
        raise ModelError(
            f"The weights and constants have {size:,} bytes{form}, and a protobuf message, as which onnx and "
            f"onnxruntime take a graph, holds {LARGEST_MESSAGE:,}. Split the model: compute once what its first layers "
            f"give for the data (onnx.utils.extract_model writes them to a file), and train the other layers on that."
        )


class _Count:
    """Counts nodes and bytes of protobuf messages without trusting their contents."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.limits = current_limits()
        self.functions = {(f.domain, f.name): f for f in proto.functions}
        self.costs: dict[tuple[str, str], tuple[int, int]] = {}
        self.open: list[tuple[str, str]] = []
        self.bytes = 0

    def model(self, proto: onnx.ModelProto) -> None:
        self.graph(proto.graph, 0)
        for key in self.functions:  # including those without a call
            self.function(key, 0)
        for info in proto.training_info:
            self.graph(info.initialization, 0)
            self.graph(info.algorithm, 0)

    def graph(self, graph: onnx.GraphProto, depth: int) -> tuple[int, int]:
        """Return the number of nodes of a graph and the depth of its subgraphs, as the methods below do."""
        self.tensors(graph.initializer)
        for sparse in graph.sparse_initializer:
            self.tensors([sparse.values, sparse.indices])
        return self.nodes(graph.node, depth)

    def nodes(self, nodes: Iterable[onnx.NodeProto], depth: int) -> tuple[int, int]:
        if depth > self.limits.nesting:
            raise exceeded(f"The model has graphs or functions nested {depth} deep", "nesting")
        total, height = 0, 0
        for node in nodes:
            inner = [self.attribute(a, depth) for a in node.attribute]
            if (node.domain, node.op_type) in self.functions:
                inner.append(self.function((node.domain, node.op_type), depth))
            total += 1 + sum(count for count, _ in inner)
            height = max(height, *(h for _, h in inner), 0)
            if total > self.limits.nodes:
                raise exceeded(f"The model has {total:,} nodes or more, those of functions at each call", "nodes")
        if depth + height > self.limits.nesting:
            raise exceeded(f"The model has graphs or functions nested {depth + height} deep", "nesting")
        return total, height

    def attribute(self, attribute: onnx.AttributeProto, depth: int) -> tuple[int, int]:
        if attribute.HasField("t"):
            self.tensors([attribute.t])
        self.tensors(attribute.tensors)
        graphs = [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]
        inner = [self.graph(graph, depth + 1) for graph in graphs]
        return sum(count for count, _ in inner), max((1 + height for _, height in inner), default=0)

    def function(self, key: tuple[str, str], depth: int) -> tuple[int, int]:
        if key in self.open:
            raise ModelError(f"The ONNX local functions cannot be inlined: {key[0]}::{key[1]} calls itself.")
        if key not in self.costs:
            self.open.append(key)
            count, height = self.nodes(self.functions[key].node, depth + 1)
            self.costs[key] = count, height + 1
            self.open.pop()
        return self.costs[key]

    def tensors(self, tensors: Iterable[onnx.TensorProto]) -> None:
        for tensor in tensors:
            dims = list(tensor.dims)
            if len(dims) > self.limits.axes:
                raise exceeded(f"Tensor {tensor.name!r} has {len(dims)} axes", "axes")
            if any(size < 0 for size in dims):
                raise ModelError(f"Tensor {tensor.name!r} has the shape {tuple(dims)}: a size is negative.")
            expected = math.ceil(math.prod(dims) * bytes_per_element(tensor.data_type))
            self.bytes += expected
            if self.bytes > self.limits.tensor_bytes:
                what = (
                    f"The weights and constants have {self.bytes:,} bytes up to {tensor.name!r}, of shape {tuple(dims)}"
                )
                raise exceeded(what, "tensor_bytes")
            if tensor.HasField("raw_data") and (held := len(tensor.raw_data)) != expected:
                raise ModelError(
                    f"Tensor {tensor.name!r} holds {held:,} bytes, but its shape {tuple(dims)} and type need "
                    f"{expected:,}: the model is not valid, or truncated."
                )


def bytes_per_element(kind: int) -> float:
    """Return the bytes of an element; one for strings, and for invalid types, which are reported later."""
    try:
        return float(ir.DataType(kind).itemsize)
    except (ValueError, TypeError):
        return 1.0


def require_values_within_limits(model: ir.Model) -> None:
    """Raise ModelError if the graph computes values of too many bytes or axes, or has a Loop of too many iterations."""
    for node in every_node(model.graph):
        for value in (v for v in node.outputs if v.shape is not None):
            _require_small(node, value)
        _require_few_iterations(node, current_limits().iterations)


def _require_small(node: ir.Node, value: ir.Value) -> None:
    what = f"Node {node.name!r} ({node.op_type}) computes a tensor of the shape {value.shape}"
    sizes = [d for d in value.shape or () if isinstance(d, int)]
    if len(value.shape or ()) > current_limits().axes:
        raise exceeded(what, "axes")
    if any(size < 0 for size in sizes):
        raise ModelError(f"{what}: a size is negative.")
    if math.prod(sizes) * (bytes_per_element(value.dtype) if value.dtype else 1) > current_limits().tensor_bytes:
        raise exceeded(what, "tensor_bytes")


def _require_few_iterations(node: ir.Node, most: int) -> None:
    if node.op_type != "Loop" or node.domain or not node.inputs or node.inputs[0] is None:
        return
    trips = ir.convenience.get_const_tensor(node.inputs[0])
    if trips is not None and trips.size == 1 and int(trips.numpy().ravel()[0]) > most:
        raise exceeded(f"Node {node.name!r} (Loop) has {int(trips.numpy().ravel()[0]):,} iterations", "iterations")

"""Refuse models that are too large to process, or that would crash the process.

A file of a kilobyte can cause unbounded work: functions that call functions twice, tensors of 2**60 numbers, nested
graphs. :func:`require_within_limits` counts the nodes and bytes of the protobuf message, before anything else reads it.
:func:`require_values_within_limits` checks the values that the graph computes. :class:`ModelLimits` holds the limits,
which :func:`model_limits` sets. :func:`require_survivable` refuses the nodes on which ONNX's checker or inference
crash, and :func:`require_loadable` those on which onnxruntime does. Whether the model is valid is checked elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any

import numpy as np
import onnx
import onnx.shape_inference
import onnx_ir as ir

from .._ort import packages, sessions
from .._utils.errors import reason, require_memory
from ..exceptions import ModelError, nearest
from .queries import constant, dims, every_node, fixed, never_ends, number_of, operand
from .shapes import knows_few_integers


@dataclass(frozen=True)
class ModelLimits:
    """Limits of the size of models that are read, trained or differentiated.

    A larger model raises :class:`~onnxtrain_sklearn.exceptions.ModelError` before it is read. Change the limits with
    :func:`model_limits`. Independently of them, a model of more than 2 GiB must keep its weights in a file beside it
    (external data), because onnx and onnxruntime read a graph as one protobuf message.

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
    """Return the error that ``what`` exceeds the limit ``name``, and how to raise that limit."""
    limit = getattr(current_limits(), name)
    return ModelError(
        f"{what}, more than the limit {name}={limit:,}. If you trust the model, raise it: "
        f"with onnxtrain_sklearn.model_limits({name}=...)."
    )


def require_within_limits(proto: onnx.ModelProto, *, in_place: bool = False) -> None:
    """Raise ModelError for a ModelProto that exceeds the limits, or whose functions call themselves.

    With ``in_place``, the numbers in files beside the model stay there, and do not count for a protobuf message.
    """
    count = _Count(proto)
    count.graph(proto.graph, 0)
    for key in count.functions:  # including functions that nothing calls
        count.function(key, 0)
    for info in proto.training_info:
        count.graph(info.initialization, 0)
        count.graph(info.algorithm, 0)
    held = count.bytes - count.beside if in_place else count.bytes
    require_one_message(held, "")
    require_memory(held, "a model with weights and constants")


def require_one_message(size: int, form: str) -> None:
    """Raise ModelError if weights and constants of ``size`` bytes do not fit into one protobuf message."""
    if size > LARGEST_MESSAGE:
        raise ModelError(
            f"The weights and constants have {size:,} bytes{form}, and a protobuf message, as which onnx and "
            f"onnxruntime take a graph, holds {LARGEST_MESSAGE:,}. Give an estimator the path of a file in float32, "
            f"its weights beside it (external data), with onnxruntime 1.20 or newer. Or split the model: compute once "
            f"what its first layers give for the data (onnx.utils.extract_model writes them to a file), and train the "
            f"other layers on that."
        )


class _Count:
    """Counts nodes and bytes of protobuf messages without trusting their contents.

    The methods that take a depth return the number of nodes and the height of what is nested inside.
    """

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.limits = current_limits()
        self.functions = {(f.domain, f.name): f for f in proto.functions}
        self.costs: dict[tuple[str, str], tuple[int, int]] = {}
        self.open: list[tuple[str, str]] = []
        self.bytes = self.beside = 0

    def graph(self, graph: onnx.GraphProto, depth: int) -> tuple[int, int]:
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
            self.beside += expected if tensor.data_location == onnx.TensorProto.EXTERNAL else 0
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
    """Return the bytes per element of a type; 1 for strings, and for invalid types, which the checker reports."""
    try:
        return float(ir.DataType(kind).itemsize)
    except (ValueError, TypeError):
        return 1.0


def require_values_within_limits(model: ir.Model) -> None:
    """Raise ModelError if the graph computes values of too many bytes or axes, or has a Loop of too many iterations."""
    limits = current_limits()
    for node in every_node(model.graph):
        for value in node.outputs:
            if value.shape is None:
                continue
            sizes = [d for d in value.shape if isinstance(d, int)]
            what = f"Node {node.name!r} ({node.op_type}) computes a tensor of the shape"
            if len(value.shape) > limits.axes:
                raise exceeded(f"{what} {value.shape}", "axes")
            if any(size < 0 for size in sizes):
                raise ModelError(f"{what} {value.shape}: a size is negative.")
            if math.prod(sizes) * (bytes_per_element(value.dtype) if value.dtype else 1) > limits.tensor_bytes:
                raise exceeded(f"{what} {value.shape}", "tensor_bytes")
        if node.op_type != "Loop" or node.domain:
            continue
        count, start = operand(node, 0), operand(node, 1)
        starts = start is None or bool(number_of(start))
        if count is None and starts and never_ends(node.attributes["body"].as_graph()):
            raise ModelError(
                f"Node {node.name!r} (Loop) never ends: it has no number of iterations, and its condition stays true. "
                f"Give it a number as the first input, or let the body compute the condition."
            )
        trips = int(number_of(count) or 0)
        if trips > limits.iterations:
            raise exceeded(f"Node {node.name!r} (Loop) has {trips:,} iterations", "iterations")


# Crashes on invalid graphs: ONNX's checker accepts them, and later steps read memory out of bounds.
#
# ONNX's shape inference crashes on the nodes of :data:`CRASHES`. They were found by inferring every operator of opsets
# 13, 18 and 26 with settings out of range, in child processes. None of these nodes is valid; rules refuse all of them.
# onnxruntime crashes on further nodes with operands that do not match, such as a convolution whose kernel has another
# rank than its input. Strict inference reports these nodes, but also a few valid graphs. So a graph that strict
# inference reports is loaded in a child process, and refused only if that process crashes.


def require_survivable(proto: onnx.ModelProto) -> None:
    """Raise ModelError for the first node of a ModelProto, its subgraphs or functions, that breaks a rule."""
    for node in (node for graph in (proto.graph, *proto.functions) for node in nodes_of(graph)):
        settings = {a.name: a.i for a in node.attribute}
        # LayerNormalization adds one to its axis, which overflows for the largest integer.
        most = current_limits().axes
        axis = settings.get("axis", 0)
        wrong = None if -most <= axis <= most else f"its axis is {axis}, and tensors have at most {most} axes"
        rule = CRASHES.get(node.op_type)
        if wrong := wrong or (None if rule is None else rule(node, settings)):
            raise ModelError(f"Node {node.name!r} ({node.op_type}) is not valid: {wrong}.")


def require_loadable(model: ir.Model) -> None:
    """Raise ModelError if onnxruntime crashes when it loads a graph that :func:`require_survivable` accepts."""
    for node in every_node(model.graph):
        if wrong := operand_error(node):
            raise ModelError(f"Node {node.name!r} ({node.op_type}) is not valid: {wrong}.")
    proto = ir.to_proto(model)
    try:
        onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=knows_few_integers(proto))
    except Exception as error:
        if not sessions.survives_loading(proto.SerializeToString()):
            raise ModelError(
                f"onnxruntime {packages.version()} does not survive loading the graph: {reason(error)}."
            ) from error


def require_result_loads(result: onnx.ModelProto, source: onnx.ModelProto) -> None:
    """Raise ModelError if onnxruntime loads the ModelProto ``source`` but not ``result``, its gradient graph.

    More shapes are known in a gradient graph than in the given one. So onnxruntime may refuse an invalid node that it
    accepted while the shape was unknown.
    """
    if (error := sessions.loading_error(result.SerializeToString())) is None:
        return
    if sessions.loading_error(source.SerializeToString()) is None:
        raise ModelError(
            f"onnxruntime {packages.version()} loads the graph, but not the one with its gradients, so a node "
            f"of it is not valid: {reason(error)}. Run onnx.shape_inference.infer_shapes(model, strict_mode=True, "
            "data_prop=True) to find what is wrong with it."
        ) from error


def nodes_of(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a GraphProto or FunctionProto and of its subgraphs."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for subgraph in (attribute.g, *attribute.graphs):
                yield from nodes_of(subgraph)


def _batch_dims(node: onnx.NodeProto, settings: dict[str, int]) -> str | None:
    count = settings.get("batch_dims", 0)
    return f"batch_dims={count} must not be negative" if count < 0 else None


def _num_outputs(node: onnx.NodeProto, settings: dict[str, int]) -> str | None:
    count = settings.get("num_outputs", len(node.output))
    return f"num_outputs={count}, but it has {len(node.output)} outputs" if count < len(node.output) else None


def _inconsistent_svm(node: onnx.NodeProto, settings: dict[str, int]) -> str | None:
    """Return the error if the lists of an SVM do not match: the kernel does not check their lengths."""
    lists = {a.name: list(a.ints) or list(a.floats) or list(a.strings) for a in node.attribute}
    size = {name: len(values) for name, values in lists.items()}
    counts = lists.get("vectors_per_class", [])
    if not counts:
        return None  # a linear SVM is a product, whose sizes the kernel checks
    classes = max(size.get("classlabels_ints", 0), size.get("classlabels_strings", 0))
    vectors = sum(counts)
    pairs = classes * (classes - 1) // 2
    wrong = [name for name in ("prob_a", "prob_b") if size.get(name, 0) not in (0, pairs)]
    wrong += ["vectors_per_class"] if len(counts) != classes or min(counts) < 0 or not vectors else []
    wrong += ["rho"] if size.get("rho", 0) != pairs else []
    wrong += ["coefficients"] if size.get("coefficients", 0) != vectors * (classes - 1) else []
    wrong += ["support_vectors"] if vectors and size.get("support_vectors", 0) % vectors else []
    wrong += ["prob_b"] if size.get("prob_a", 0) != size.get("prob_b", 0) else []
    return f"{wrong[0]} has {size.get(wrong[0], 0)} numbers, which does not fit the others" if wrong else None


def _too_few_labels(node: Any, settings: dict[str, int]) -> str | None:
    """Return the error if there are fewer labels than scores: the kernel reads a label for each score, unchecked."""
    size = {a.name: max(len(a.ints), len(a.floats), len(a.strings)) for a in node.attribute}
    labels = max((size.get(f"classlabels_{kind}", 0) for kind in ("ints", "strings", "int64s")), default=0)
    scores = size.get("intercepts", 0)
    return (
        f"its {labels} labels are too few, which does not fit {max(1, scores)} scores"
        if labels < max(1, scores)
        else None
    )


def _inconsistent_svm_regressor(node: onnx.NodeProto, settings: dict[str, int]) -> str | None:
    size = {a.name: len(a.floats) for a in node.attribute}
    count = settings.get("n_supports", 0)
    coefficients = size.get("coefficients", 0)
    if not count:
        return None
    wrong = count < 0 or coefficients < count or size.get("support_vectors", 0) % count
    return f"n_supports={count} does not fit its coefficients and support vectors" if wrong else None


GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}
"""Number of gates of a recurrent operator: the blocks of its weights."""

CRASHES: dict[str, Callable[[Any, dict[str, int]], str | None]] = {
    "GatherND": _batch_dims,
    "LinearClassifier": _too_few_labels,
    "SVMClassifier": _inconsistent_svm,
    "SVMRegressor": _inconsistent_svm_regressor,
    "Split": _num_outputs,
    "TreeEnsembleClassifier": _too_few_labels,
}
"""Rules of operators: each takes a NodeProto and its integer attributes, and returns what is wrong, or None."""


# Operands that do not match: kernels of onnxruntime 1.19 do not check these sizes, and hang or crash the process.
#
# Strict inference does not report them. They were found by running operators with sizes and numbers that do not match,
# in child processes. Operands that are computed at run time are not checked here.


def operand_error(node: ir.Node) -> str | None:
    """Return the known error in the operands of a node, or None."""
    rule = None if node.domain else OPERAND_RULES.get(node.op_type)
    return None if rule is None else rule(node)


def _weights_unlike_hidden_size(node: ir.Node) -> str | None:
    """Return the error if weights do not match ``hidden_size``: the kernel crashes, and inference does not check it."""

    def fits(shape: ir.Shape, wanted: Sequence[int | None]) -> bool:
        return len(shape) == len(wanted) and all(
            w is None or not isinstance(n, int) or n == w for n, w in zip(shape, wanted, strict=True)
        )

    if "hidden_size" not in node.attributes:
        return None
    hidden = node.attributes["hidden_size"].as_int()
    rows = GATES[node.op_type] * hidden
    shapes = {"W": (None, rows, None), "R": (None, rows, hidden), "B": (None, 2 * rows)}
    for value, (name, wanted) in zip(node.inputs[1:4], shapes.items(), strict=False):
        if value is not None and value.shape is not None and not fits(value.shape, wanted):
            told = ", ".join("?" if n is None else str(n) for n in wanted)
            return f"its input {name} has the shape {value.shape}, and hidden_size={hidden} needs ({told})"
    return None


def _split_without_sizes(node: ir.Node) -> str | None:
    """Return the error of a Split with neither sizes nor a number of parts, which onnxruntime may refuse."""
    version = 0 if node.graph is None else node.graph.opset_imports.get("", 0)
    given = "num_outputs" in node.attributes or (len(node.inputs) > 1 and node.inputs[1] is not None)
    if version < 18 or given:
        return None
    return "it has neither the input split nor the attribute num_outputs, one of which opset 18 demands"


def _not_empty(index: int, message: str, axes: slice = slice(None)) -> Callable[[ir.Node], str | None]:
    """Return the rule that the operand at ``index`` must not be empty along ``axes``; ``message`` is the error."""
    return lambda node: message if 0 in (dims(operand(node, index)) or [])[axes] else None


def _no_steps(node: ir.Node) -> str | None:
    """Return the error if a recurrent operator has no time steps: most kernels abort the process."""
    axis = node.attributes.get_int("layout", 0)
    return "its sequences have no steps" if 0 in (dims(operand(node, 0)) or [])[axis : axis + 1] else None


def _block_ranks_differ(node: ir.Node) -> str | None:
    image, block = (_constant_operand(node, index) for index in (1, 2))
    if image is not None and block is not None and (not image.size or image.size != block.size):
        return f"its image_shape has {image.size} sizes and its block_shape {block.size}"
    return None


def _indices_beyond_output(node: ir.Node) -> str | None:
    """Return the error if an index of MaxUnpool, which counts all elements of the output, is beyond them."""
    places = _constant_operand(node, 1)
    y = dims(node.outputs[0])
    if places is None or not places.size or y is None or not fixed(y):
        return None
    most = prod(y)
    inside = places.min() >= 0 and places.max() < most
    return None if inside else f"an index is beyond the {most} elements of its output"


def _indices_beyond_batch(node: ir.Node) -> str | None:
    numbers = _constant_operand(node, 2)
    x = dims(operand(node, 0))
    rows = x[0] if x else None
    if numbers is None or not numbers.size:
        return None
    outside = numbers.min() < 0 or (isinstance(rows, int) and numbers.max() >= rows)
    return "an index is beyond its batch" if outside else None


def _constant_operand(node: ir.Node, index: int) -> np.ndarray | None:
    value = operand(node, index)
    return None if value is None else constant(value)


OPERAND_RULES: dict[str, Callable[[ir.Node], str | None]] = {
    "Col2Im": _block_ranks_differ,
    "Conv": _not_empty(1, "its kernel has no elements"),
    "ConvTranspose": _not_empty(1, "its kernel has no elements"),
    "GRU": lambda node: _weights_unlike_hidden_size(node) or _no_steps(node),
    "LRN": _not_empty(0, "its input has no channels", slice(1, 2)),
    "LSTM": _weights_unlike_hidden_size,
    "MaxUnpool": _indices_beyond_output,
    "RNN": lambda node: _weights_unlike_hidden_size(node) or _no_steps(node),
    "RoiAlign": _indices_beyond_batch,
    "STFT": _not_empty(2, "its window has no elements"),
    "Split": _split_without_sizes,
}

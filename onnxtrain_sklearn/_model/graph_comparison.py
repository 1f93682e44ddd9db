"""Run two graphs on the same inputs and compare their outputs: a file as given, and the graph made from it.

Reading, converting and rewriting may go wrong, so the file itself, in its own opset and with its own functions, is the
reference. :func:`plain_session` runs it in onnxruntime without optimizations, on rows of the data or on
:func:`random_feeds`. :func:`compare_outputs` compares its outputs with those of the graph, and
:func:`first_difference` names the first value that differs. A file that draws random numbers (:func:`draws`) cannot be
compared; Dropout and BatchNormalization in training mode are first switched off (:func:`in_predicting_form`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.helper
import onnx_ir as ir

from .._ir.edits import without_empty_reductions
from .._ir.limits import nodes_of
from .._ort import sessions
from .._ort.devices import resolve_device
from ..exceptions import ModelError
from .modes import DRAWING

LARGEST = 2**31 - 1
"""Largest file, in bytes, that onnxruntime reads from memory: the limit of a protobuf message."""


ROUNDED = 0.1
"""Largest difference, relative to the largest number, for files that compute with few bits."""


FREE_SIZE = 3
"""Size of free axes in random inputs."""


MOST_NUMBERS = 2**20
"""Most numbers in random inputs; a graph with larger inputs is not run on them."""


_PLAIN = {"graph_optimization_level": "ORT_DISABLE_ALL"}


_FEW_BITS = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


Feeds = Mapping[str, np.ndarray]


class PlainSession:
    """A session that runs a graph on the CPU without onnxruntime's optimizations.

    The constructor raises ModelError if onnxruntime does not load the graph.
    """

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.proto = proto
        self._session = sessions.create_session(proto.SerializeToString(), resolve_device(), options=_PLAIN)

    def run(self, names: Sequence[str], feeds: Feeds) -> list[np.ndarray] | None:
        """Return the outputs ``names``, or None if the graph does not run; ignore feeds for inputs that it lacks."""
        own = {value.name for value in self.proto.graph.input}
        try:
            found = sessions.run_session(self._session, names, {n: x for n, x in feeds.items() if n in own})
        except ModelError:
            return None
        return found


def plain_session(proto: onnx.ModelProto) -> PlainSession | None:
    """Return a session for the unchanged graph of a file; None if the installed onnxruntime does not load it."""
    if proto.ByteSize() > LARGEST:
        return None
    try:
        # For an empty list of axes, onnxruntime reduces over all axes, which violates the standard.
        return PlainSession(_with_plain_ends(without_empty_reductions(proto)))
    except ModelError:
        return None


class Comparison(NamedTuple):
    """Result of a comparison: the difference, the reason why nothing could be compared, or both empty if equal."""

    different: str = ""
    reason: str = ""


def compare_outputs(
    given: PlainSession,
    names: Sequence[str],
    feeds: Feeds,
    where: str,
    found: Sequence[np.ndarray] | None,
    made: Callable[[], onnx.ModelProto],
) -> Comparison:
    """Compare outputs of a file with ``found``, the outputs of the graph made from it, up to rounding.

    ``made`` returns that graph; it is called only if outputs differ. ``where`` names the inputs in messages, such as
    "rows of X".
    """
    expected = given.run(names, feeds)
    if expected is None:
        return Comparison(reason=f"onnxruntime does not run it on {where}")
    if found is None:
        return Comparison(reason=f"the graph made from it does not run on {where}")
    few_bits = _has_few_bits(given.proto)
    pairs = list(zip(names, expected, found, strict=True))
    if not any(_differ(a, b, few_bits) for _, a, b in pairs):
        without = all(a.size and not np.isfinite(a).any() for a in expected if _is_numeric(a))
        return Comparison(reason=f"its outputs are not finite on {where}" if without else "")
    # The outputs differ. Two causes are harmless: the file draws random numbers, so that its own runs differ, or it
    # amplifies the rounding of its inputs. Allow ten times the change that slightly moved inputs cause.
    again, moved = given.run(names, feeds), given.run(names, moved_feeds(feeds))
    for (name, a, b), same, other in zip(pairs, again or expected, moved or expected, strict=True):
        if _differ(a, same, few_bits):  # operators of other domains may draw random numbers
            return Comparison(reason=f"its output {name!r} differs from run to run")
        if _differ(a, b, few_bits, noise=10 * _distance(a, other)):
            node = first_difference(given.proto, made(), feeds)
            return Comparison(f"output {name!r} differs by up to {_distance(a, b):.2g} on {where}.{node}")
    return Comparison(reason=f"its outputs change with the rounding of its inputs on {where}")


def first_difference(given: onnx.ModelProto, made: onnx.ModelProto, feeds: Feeds) -> str:
    """Return a sentence that names the first node of a file whose result differs in the graph made from it.

    Only values whose names the graph kept can be compared.
    """
    few_bits = _has_few_bits(given)
    known = {name for node in made.graph.node for name in node.output if name}
    nodes = {name: node for node in given.graph.node for name in node.output if name in known}
    shown = [plain_session(_with_outputs(one, nodes)) for one in (given, made)]
    theirs, ours = (None if one is None else one.run(list(nodes), feeds) for one in shown)
    for name, a, b in zip(nodes, theirs or (), ours or (), strict=False):
        if _differ(a, b, few_bits):
            node = nodes[name]
            return f" The first node that differs is {node.name or name!r} ({node.op_type}), by its result {name!r}."
    last = given.graph.node[-1]
    return f" No value before it shows where; the last node is {last.name or last.output[0]!r} ({last.op_type})."


def random_feeds(proto: onnx.ModelProto, trial: int) -> dict[str, np.ndarray] | None:
    """Return random inputs, positive ones in odd trials; None if the file has inputs that cannot be drawn.

    All free axes have the same size. Integers are 0 and 1, valid indices of most tables; in odd trials, all are 1.
    """
    rng = np.random.RandomState(trial)
    feeds = dict[str, np.ndarray]()
    for value in inputs_of(proto):
        kind = value.type.tensor_type
        if value.type.WhichOneof("value") != "tensor_type" or not kind.HasField("shape") or not kind.elem_type:
            return None
        dtype = ir.DataType(kind.elem_type).numpy()
        if dtype.kind not in "fiub":
            return None
        shape = [d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else FREE_SIZE for d in kind.shape.dim]
        if np.prod(shape, dtype=float) + sum(array.size for array in feeds.values()) > MOST_NUMBERS:
            return None
        numbers: np.ndarray
        if dtype.kind == "f":
            numbers = rng.uniform(0.1, 1.0, shape) if trial % 2 else rng.normal(size=shape)
        else:
            numbers = np.ones(shape) if trial % 2 else rng.randint(0, 2, shape)
        feeds[value.name] = np.asarray(numbers, dtype)
    return feeds


def moved_feeds(feeds: Feeds) -> dict[str, np.ndarray]:
    """Return floats changed by a factor of about 1e-6, to measure the effect of rounding; integers do not change."""
    rng, result = np.random.RandomState(0), dict(feeds)
    for name, array in feeds.items():
        if array.dtype.kind == "f":
            signs = rng.choice([-1e-6, 1e-6], array.shape).astype(array.dtype)
            result[name] = np.where(array == np.round(array), array, array * (1 + signs)).astype(array.dtype)
    return result


def drawn_input(value: onnx.ValueInfoProto, rows: int) -> np.ndarray:
    """Return zeros or empty strings for ``rows`` rows of an input on which the compared outputs do not depend."""
    kind = value.type.tensor_type
    sizes = [d.dim_value if d.dim_value > 0 else FREE_SIZE for d in kind.shape.dim]
    if sizes and kind.shape.dim[0].dim_value <= 0:
        sizes[0] = rows
    if kind.elem_type == onnx.TensorProto.STRING:
        return np.full(sizes, "", object)
    dtype = np.dtype(np.float32) if kind.elem_type == onnx.TensorProto.BFLOAT16 else ir.DataType(kind.elem_type).numpy()
    return np.zeros(sizes, dtype)


def inputs_of(proto: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs of a file that have no default among its initializers."""
    held = {tensor.name for tensor in proto.graph.initializer}
    return [value for value in proto.graph.input if value.name not in held]


def draws(proto: onnx.ModelProto) -> bool:
    """Return True if a file draws random numbers."""
    return _any_node(proto, lambda node: node.op_type in DRAWING or _drops(node))


def in_predicting_form(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, str]:
    """Return a file with Dropout and BatchNormalization in inference mode, and a phrase for the operators switched off.

    The phrase is empty if nothing was changed.
    """
    without = "Dropout" if _any_node(proto, _drops) else ""
    if _any_node(proto, _takes_statistics):
        without += f"{' and ' if without else ''}statistics of minibatches"
    if not without:
        return proto, ""
    result = deepcopy(proto)
    for node in (node for graph in (result.graph, *result.functions) for node in nodes_of(graph)):
        if _drops(node):
            del node.input[2:]
        elif _takes_statistics(node):
            kept = [attribute for attribute in node.attribute if attribute.name != "training_mode"]
            del node.attribute[:], node.output[1:]
            node.attribute.extend(kept)
    return result, without


def _any_node(proto: onnx.ModelProto, rule: Callable[[onnx.NodeProto], bool]) -> bool:
    return any(rule(node) for graph in (proto.graph, *proto.functions) for node in nodes_of(graph))


def _drops(node: onnx.NodeProto) -> bool:
    return node.op_type == "Dropout" and not node.domain and len(node.input) > 2 and bool(node.input[2])


def _takes_statistics(node: onnx.NodeProto) -> bool:
    mode = any(a.name == "training_mode" and a.i for a in node.attribute)
    return node.op_type == "BatchNormalization" and not node.domain and (mode or len(node.output) > 1)


def _with_plain_ends(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with float32 instead of bfloat16 inputs and outputs, because NumPy has no bfloat16."""
    inputs, outputs = (
        {value.name for value in values if value.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16}
        for values in (inputs_of(proto), proto.graph.output)
    )
    if not inputs and not outputs:
        return proto
    result = deepcopy(proto)
    graph = result.graph
    inner = {name: f"{name}/bfloat16" for name in inputs | outputs}
    for node in nodes_of(graph):
        for names in (node.input, node.output):
            names[:] = [inner.get(name, name) for name in names]
    for value in (*graph.input, *graph.output):
        if value.name in inner:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    nodes = [onnx.helper.make_node("Cast", [n], [inner[n]], to=onnx.TensorProto.BFLOAT16) for n in sorted(inputs)]
    nodes += [*graph.node]
    nodes += [onnx.helper.make_node("Cast", [inner[n]], [n], to=onnx.TensorProto.FLOAT) for n in sorted(outputs)]
    del graph.node[:]
    graph.node.extend(nodes)
    return result


def _has_few_bits(proto: onnx.ModelProto) -> bool:
    kinds = {tensor.data_type for tensor in proto.graph.initializer}
    kinds |= {value.type.tensor_type.elem_type for value in (*proto.graph.input, *proto.graph.output)}
    quantizes = any(
        word in node.op_type for node in nodes_of(proto.graph) for word in ("Quantize", "Integer", "QLinear", "NBits")
    )
    casts = any(a.name == "to" and a.i in _FEW_BITS for node in nodes_of(proto.graph) for a in node.attribute)
    return quantizes or casts or not kinds.isdisjoint(_FEW_BITS)


def _differ(one: Any, other: Any, few_bits: bool, noise: float = 0.0) -> bool:
    if not _is_numeric(one, other):
        return False
    if one.size != other.size:
        return True
    one = one.astype(np.float64).ravel()
    other = other.astype(np.float64).ravel()
    error = ROUNDED if few_bits else 1e-3
    scale = float(np.abs(one[np.isfinite(one)]).max(initial=0.0))
    return not np.allclose(one, other, rtol=error, atol=error * scale + 1e-6 + noise, equal_nan=True)


def _distance(one: Any, other: Any) -> float:
    if not _is_numeric(one, other):
        return 0.0
    if one.size != other.size:
        return float("inf")
    apart = np.abs(one.astype(np.float64).ravel() - other.astype(np.float64).ravel())
    return float(apart[np.isfinite(apart)].max(initial=0.0))


def _is_numeric(*values: Any) -> bool:
    return all(isinstance(value, np.ndarray) and value.dtype.kind in "fiub" for value in values)


def _with_outputs(proto: onnx.ModelProto, names: Mapping[str, Any]) -> onnx.ModelProto:
    """Return the graph with the values ``names`` as further outputs; onnxruntime infers their types."""
    result = deepcopy(proto)
    shown = {value.name for value in result.graph.output}
    for name in names:
        if name not in shown:
            result.graph.output.add(name=name)
    return result

"""Read a graph: operators, attributes, inputs, constants, types and shapes, and a digest of its structure.

The queries take onnx-ir's nodes, values and graphs, and change nothing. :func:`structure` identifies graphs that differ
by their weights alone: fits share what was compiled for one of them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from threading import Lock
from typing import Any, TypeAlias, TypeGuard
from weakref import WeakKeyDictionary

import numpy as np
import onnx_ir as ir
import onnx_ir.serde as serde

from .._ort.sessions import require_unchanged

Dims: TypeAlias = "list[int | str | None]"


def kind(node: ir.Node) -> str:
    """Return the operator type, with its domain in front unless it is ONNX's own."""
    return node.op_type if not node.domain else f"{node.domain}.{node.op_type}"


def is_in_file(value: ir.Value) -> bool:
    """Return True if an initializer is a weight that stays in a file beside the model."""
    return isinstance(value.const_value, ir.ExternalTensor)


def require_files_unchanged(model: ir.Model) -> None:
    """Raise ModelError if a file in which weights of the model stay has changed since it was read."""
    tensors = [value.const_value for value in model.graph.initializers.values()]
    for path in {os.fspath(tensor.path) for tensor in tensors if isinstance(tensor, ir.ExternalTensor)}:
        require_unchanged(path)


def node_label(node: ir.Node) -> str:
    """Return the name and the operator of ``node``, as the start of a sentence."""
    name = f"Node {node.name!r}" if node.name else f"The node that computes {node.outputs[0].name!r}"
    return f"{name} ({kind(node)})"


def opset(node: ir.Node) -> int:
    """Return the version of ONNX's own operators in the graph of ``node``."""
    return node.graph.opset_imports.get("", 0) if node.graph is not None else 0


def attribute(node: ir.Node, name: str, default: object) -> Any:
    """Return the value of an attribute, or ``default`` if it is left out."""
    return node.attributes[name].value if name in node.attributes else default


def operand(node: ir.Node, index: int) -> ir.Value | None:
    """Return the input at ``index``; None if it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def constant(value: ir.Value) -> np.ndarray | None:
    """Return the array of a constant; None if ``value`` is computed or an input of the graph."""
    tensor = None if value.is_graph_input() else ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy()


def number_of(value: ir.Value | None) -> float | None:
    """Return the number of a constant with a single element; None for any other value."""
    array = None if value is None else constant(value)
    return None if array is None or array.size != 1 else array.item()


def before_identities(value: ir.Value) -> ir.Value:
    """Return the value that a chain of Identity nodes passes on; the value itself if none computes it."""
    while (node := value.producer()) is not None and node.op_type == "Identity" and node.inputs[0] is not None:
        value = node.inputs[0]
    return value


def never_ends(body: ir.Graph) -> bool:
    """Return True if a Loop's condition stays true: the body returns the one that it gets, or a constant."""
    if not body.outputs:
        return False
    condition = before_identities(body.outputs[0])
    known = constant(condition)
    return condition in body.inputs[1:2] or (known is not None and bool(known.all()))


def dims(value: ir.Value | None) -> Dims | None:
    """Return the dimensions of ``value``: numbers, names that the model gives, or None for unknown ones.

    Return None if the rank is unknown.
    """
    if value is None or value.shape is None:
        return None
    sizes = [d if isinstance(d, int) else d.value for d in value.shape]
    # Names that ONNX's inference makes up, such as "unk__0", count as unknown.
    return [None if isinstance(d, str) and d.startswith("unk__") else d for d in sizes]


def fixed(sizes: Sequence[object] | None) -> TypeGuard[list[int]]:
    """Return True if every dimension is a number."""
    return sizes is not None and all(isinstance(d, int) for d in sizes)


def is_read(value: ir.Value) -> bool:
    """Return True if a node reads ``value``, or the graph returns it."""
    return bool(value.uses()) or value.is_graph_output()


def is_float(value: ir.Value) -> bool:
    """Return True if ``value`` has a floating-point type, or one that could not be inferred."""
    return value.dtype is None or value.dtype.is_floating_point()


def reaching(output: ir.Value) -> set[str]:
    """Return the names of ``output`` and of the values that it depends on through floating-point values.

    The ratio of a Dropout is not included: it has no gradient, and nothing reads it in inference.
    """
    front, seen = [output], set()
    while front:
        value = front.pop()
        if value.name and value.name not in seen and is_float(value):
            seen.add(value.name)
            node = value.producer()
            if node is not None and node.op_type == "Dropout" and not node.domain:
                front += [x for x in node.inputs[:1] if x is not None]
            else:
                front += reads(node) if node is not None else []
    return seen


def reads(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that ``node`` and its subgraphs read."""
    yield from (x for x in node.inputs if x is not None)
    for graph in graphs_in(node):
        yield from graph.outputs
        for inner in graph:
            yield from reads(inner)


def graphs_in(node: ir.Node) -> list[ir.Graph]:
    """Return the subgraphs that the attributes of ``node`` hold, without those inside them."""
    found: list[ir.Graph] = []
    # Read the dict below the attributes: this function is called often, and few nodes have subgraphs.
    for attribute in node.attributes.data.values():
        if attribute.type is ir.AttributeType.GRAPH:
            found.append(attribute.as_graph())
        elif attribute.type is ir.AttributeType.GRAPHS:
            found.extend(attribute.as_graphs())
    return found


def every_node(graph: ir.Graph) -> list[ir.Node]:
    """Return the nodes of a graph and of the subgraphs in it, each before those inside it."""
    found: list[ir.Node] = []
    for node in graph:
        found.append(node)
        for inner in graphs_in(node):
            found += every_node(inner)
    return found


def mixes_positions(graph: ir.Graph) -> bool:
    """Return True if the graph has convolutions, or attention: a product of two values computed from data."""
    for node in every_node(graph):
        factors = node.inputs[:2] if node.op_type == "MatMul" else ()
        if node.op_type in ("Conv", "ConvTranspose", "Attention") or (factors and not any(map(_is_fixed, factors))):
            return True
    return False


def _is_fixed(value: ir.Value | None) -> bool:
    """Return True if ``value`` is computed from initializers alone."""
    if value is None or value.is_initializer():
        return True
    node = value.producer()
    return node is not None and all(_is_fixed(x) for x in node.inputs)


def all_values(model: ir.Model) -> Iterator[ir.Value]:
    """Yield the values of the graph and of its subgraphs."""
    for graph in model.graphs():
        yield from (*graph.inputs, *graph.initializers.values())
        yield from (v for node in graph for v in node.outputs)


# Digest of the structure of a graph: everything but the values of its weights.
#
# It is made from ONNX's own serialization, so that nothing is left out: two models with equal digests differ by their
# weights alone.


_known: WeakKeyDictionary[ir.Model, dict[frozenset[str], bytes]] = WeakKeyDictionary()
_lock = Lock()


def structure(model: ir.Model, weights: Collection[str]) -> bytes:
    """Return the digest of ``model`` without the values of the initializers that ``weights`` names.

    The digest is cached for this object, so ``model`` must not be changed later.
    """
    names = frozenset(weights)
    with _lock:
        found = _known.setdefault(model, {})
    if names not in found:
        found[names] = _digest(_pieces(model, names))
    return found[names]


def share_structure(model: ir.Model, of: ir.Model) -> None:
    """Share the digests of ``of`` with ``model``, a clone that differs by its weights alone."""
    with _lock:
        _known[model] = _known.setdefault(of, {})


def values_digest(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return the digest of arrays by name: their types, shapes and values."""

    def pieces() -> Iterator[bytes]:
        for name, array in sorted(arrays.items()):
            yield f"{name} {array.dtype.str} {array.shape}".encode()
            yield np.ascontiguousarray(array).tobytes()

    return _digest(pieces())


def _digest(pieces: Iterable[bytes]) -> bytes:
    digest = blake2b(digest_size=32)
    for piece in pieces:
        digest.update(len(piece).to_bytes(8, "little"))  # the lengths distinguish "ab", "c" from "a", "bc"
        digest.update(piece)
    return digest.digest()


def _pieces(model: ir.Model, weights: Collection[str]) -> Iterable[bytes]:
    graph, nodes = model.graph, list(model.graph)
    imports = sorted([*model.opset_imports.items(), *graph.opset_imports.items()])
    yield " ".join(f"{domain}:{version}" for domain, version in imports).encode()
    computed = [value for node in nodes for value in node.outputs]
    values: list[Sequence[ir.Value]] = [graph.inputs, graph.outputs, computed, list(graph.initializers.values())]
    counts = (model.ir_version, *map(len, values), len(nodes), len(model.functions))
    yield " ".join(map(str, counts)).encode()
    for value in (value for part in values for value in part):
        yield _serialized(serde.serialize_value(value))
    yield from (_serialized(serde.serialize_node(node)) for node in nodes)
    yield from (_serialized(serde.serialize_function(function)) for function in model.functions.values())
    for name, value in graph.initializers.items():
        tensor = value.const_value
        if name in weights or tensor is None:
            continue
        yield f"{tensor.dtype} {list(tensor.shape)}".encode()
        if isinstance(tensor, ir.ExternalTensor):  # more than 2 GiB: take the time of the file for its content
            facts = require_unchanged(os.fspath(tensor.path))
            yield f"{tensor.path} {tensor.offset} {tensor.length} {facts}".encode()
            continue
        if tensor.dtype == ir.DataType.STRING:
            yield from (bytes(text) for text in tensor.numpy().ravel().tolist())
        else:
            yield tensor.tobytes()


def _serialized(proto: Any) -> bytes:
    return bytes(proto.SerializeToString(deterministic=True))

"""The structure of a graph as a digest: all that it consists of but the values of its weights.

Two models of equal structure, and of equal values of what is not a weight, differ by their weights alone. The digest
is of ONNX's own serialization, so that nothing is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import onnx_ir as ir
import onnx_ir.serde as serde

_known: WeakKeyDictionary[ir.Model, dict[frozenset[str], bytes]] = WeakKeyDictionary()
_lock = Lock()


def structure(model: ir.Model, weights: Collection[str]) -> bytes:
    """Return the digest of ``model`` without the values of the initializers that ``weights`` names.

    It is remembered for the object: ``model`` must not be changed later.
    """
    names = frozenset(weights)
    with _lock:
        found = _known.setdefault(model, {})
    if names not in found:
        found[names] = _digest(_pieces(model, names))
    return found[names]


def share_structure(model: ir.Model, of: ir.Model) -> None:
    """Let ``model``, an unchanged clone but for its weights, have the digests of ``of``."""
    with _lock:
        _known[model] = _known.setdefault(of, {})


def values_digest(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return the digest of arrays by name: their types, shapes and values."""
    return _digest(piece for name, array in sorted(arrays.items()) for piece in _array_pieces(name, array))


def _array_pieces(name: str, array: np.ndarray) -> Iterable[bytes]:
    yield f"{name} {array.dtype.str} {array.shape}".encode()
    yield np.ascontiguousarray(array).tobytes()


def _digest(pieces: Iterable[bytes]) -> bytes:
    digest = blake2b(digest_size=32)
    for piece in pieces:
        digest.update(len(piece).to_bytes(8, "little"))  # where one ends is part of the content
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
        if name not in weights and value.const_value is not None:
            yield from _tensor_pieces(value.const_value)


def _tensor_pieces(tensor: ir.TensorProtocol) -> Iterable[bytes]:
    """Yield the content of a tensor; of one in a file the content too, not the path."""
    yield f"{tensor.dtype} {list(tensor.shape)}".encode()
    if tensor.dtype == ir.DataType.STRING:
        yield from (bytes(text) for text in tensor.numpy().ravel().tolist())
    else:
        yield tensor.tobytes()


def _serialized(proto: Any) -> bytes:
    return bytes(proto.SerializeToString(deterministic=True))

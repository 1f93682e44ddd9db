"""Named arrays in the format of safetensors, which has readers in many languages and is a header and raw numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from ..exceptions import ModelError

_TENSOR_TYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "F16": "<f2", "U8": "|u1", "BOOL": "|b1"}
_NAMES_OF_TYPES = {np.dtype(kind): name for name, kind in _TENSOR_TYPES.items()}


def tensor_bytes(arrays: Mapping[str, np.ndarray], notes: Mapping[str, str]) -> bytes:
    """Return the file that holds ``arrays``; ``notes`` are its metadata."""
    header: dict[str, object] = {"__metadata__": dict(notes)}
    contents, start = [], 0
    for name, array in arrays.items():
        kind = array.dtype.newbyteorder("<")
        content = np.ascontiguousarray(array, kind).reshape(-1).view(np.uint8)
        offsets = [start, start + content.nbytes]
        header[name] = {"dtype": _NAMES_OF_TYPES[kind], "shape": list(array.shape), "data_offsets": offsets}
        contents.append(content.data)
        start += content.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *contents])


def tensors_of(content: bytes, what: str) -> dict[str, np.ndarray]:
    """Return the arrays of a file; raise ModelError, which begins with ``what``, if it is none."""
    try:
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        header.pop("__metadata__", None)
        data = memoryview(content)[8 + size :]
        return {name: _tensor_of_entry(entry, data) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, UnicodeDecodeError, OverflowError) as error:
        raise ModelError(f"{what} holds no tensors in the format of safetensors, or is truncated: {error}.") from error


def _tensor_of_entry(entry: Mapping[str, object], data: memoryview) -> np.ndarray:
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not (isinstance(kind, str) and kind in _TENSOR_TYPES and isinstance(shape, list) and isinstance(offsets, list)):
        raise ValueError(f"an entry of type {kind!r} is not read")
    return np.array(np.frombuffer(data[slice(*offsets)], _TENSOR_TYPES[kind]).reshape(shape))

"""Files of a training state, in the format of safetensors: named arrays, with metadata.

The format is a header and raw numbers, and has readers in many languages. ``state_bytes`` and ``read_state_file`` write
and read a state with the constants of its graph; ``tensor_bytes`` and ``tensors_of`` are the format itself. A file may
come from anywhere. Each byte of it belongs to one array, so that no file takes more memory than it is long.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .._ir.files import content_of
from .._utils.untrusted_text import json_object
from ..exceptions import ModelError
from .manifest import FORMAT, VERSION

CONSTANTS = "constants"
"""Key of the graph's constants in the manifest and in the metadata of a state file."""


class StateArrays(dict[str, np.ndarray]):
    """The arrays of a state by name, with the constants of the graph that they were trained in.

    Weights that were trained with one scale of the inputs predict something else with another: ``load_state`` compares
    the constants.

    Attributes
    ----------
    constants : dict or None
        The constants by name, as in the manifest; None: not known.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], constants: Mapping[str, Any] | None) -> None:
        super().__init__(arrays)
        self.constants = constants

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (dict(self), self.constants)


def state_bytes(state: Mapping[str, np.ndarray], constants: object = None) -> bytes:
    """Return the file that holds a state, and the constants of its graph."""
    known = {} if constants is None else {CONSTANTS: json.dumps(constants, allow_nan=False)}
    return tensor_bytes(state, {"format": FORMAT, "version": str(VERSION), **known})


def read_state_file(path: Path) -> StateArrays:
    """Return the state in a file of safetensors."""
    arrays, notes = tensors_and_notes(content_of(path, first=require_tensors), str(path))
    text = notes.get(CONSTANTS)
    return StateArrays(arrays, None if text is None else json_object(text, f"The metadata {CONSTANTS!r} of {path}"))


_TENSOR_TYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "F16": "<f2", "U8": "|u1", "BOOL": "|b1"}

_NAMES_OF_TYPES = {np.dtype(kind): name for name, kind in _TENSOR_TYPES.items()}

_NOTES = "__metadata__"

_MOST_AXES = 32

_LONGEST_HEADER = 2**25
"""Bytes of a header that are read: JSON takes many times its length of memory."""


def tensor_bytes(arrays: Mapping[str, np.ndarray], notes: Mapping[str, str]) -> bytes:
    """Return the file that holds ``arrays``; ``notes`` are its metadata."""
    header: dict[str, object] = {_NOTES: dict(notes)}
    contents, start = [], 0
    for name, array in arrays.items():
        kind = array.dtype.newbyteorder("<")
        content = np.ascontiguousarray(array, kind).reshape(-1).view(np.uint8)
        offsets = [start, start + content.nbytes]
        header[name] = {"dtype": _NAMES_OF_TYPES[kind], "shape": list(array.shape), "data_offsets": offsets}
        contents.append(content.data)
        start += content.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format aligns the arrays to 8 bytes
    return b"".join([len(text).to_bytes(8, "little"), text, *contents])


def tensors_of(content: bytes, what: str) -> dict[str, np.ndarray]:
    """Return the arrays of a file; raise ModelError, which begins with ``what``, if it is none."""
    return tensors_and_notes(content, what)[0]


def tensors_and_notes(content: bytes, what: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the arrays of a file and its metadata; raise ModelError, which begins with ``what``, if it is none."""
    start, places, notes = _parts(io.BytesIO(content), len(content), what)
    data = memoryview(content)[start:]
    arrays = dict[str, np.ndarray]()
    for place in places:
        held = data[place.start : place.end]
        if place.kind == np.bool_ and (np.frombuffer(held, np.uint8) > 1).any():
            raise _unreadable(what, f"{place.name!r} holds truth values other than 0 and 1")
        try:
            arrays[place.name] = np.array(np.frombuffer(held, place.kind).reshape(place.shape))
        except ValueError as error:  # NumPy refuses some shapes whose product is 0
            raise _unreadable(what, f"{place.name!r} has the shape {list(place.shape)}") from error
    return arrays, notes


def require_tensors(file: BinaryIO, size: int) -> None:
    """Raise ModelError unless the header of a file of ``size`` bytes accounts for each of them."""
    _parts(file, size, str(file.name))


@dataclass(frozen=True)
class _Place:
    """Name, type, shape and span of an array."""

    name: str
    kind: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    end: int


def _parts(file: BinaryIO, whole: int, what: str) -> tuple[int, list[_Place], dict[str, str]]:
    """Return the offset of the arrays, the place of each, and the metadata; only the header is read."""
    size = int.from_bytes(file.read(8), "little")
    if whole < 8 or size > whole - 8:
        raise _unreadable(what, f"its header would take {size:,} bytes, and {max(0, whole - 8):,} are there")
    if size > _LONGEST_HEADER:
        raise _unreadable(what, f"its header takes {size:,} bytes, and at most {_LONGEST_HEADER:,} are read")
    header = json_object(file.read(size), f"The header of {what}")
    notes = header.pop(_NOTES, {})
    if not isinstance(notes, dict) or not all(isinstance(note, str) for note in notes.values()):
        raise _unreadable(what, f"{_NOTES} must hold texts")
    places = [_place_of(name, entry, what) for name, entry in header.items()]
    # The arrays must follow each other from the first byte to the last: a file with gaps could hide other contents, and
    # one whose arrays overlap could take many times its length of memory.
    end = 0
    for place in sorted(places, key=lambda one: (one.start, one.end)):
        if place.start != end:
            raise _unreadable(
                what, f"{place.name!r} begins at byte {place.start:,}, and the one before ends at {end:,}"
            )
        end = place.end
    if end != whole - 8 - size:
        raise _unreadable(what, f"its tensors take {end:,} bytes, and {whole - 8 - size:,} are there")
    return 8 + size, places, notes


def _place_of(name: str, entry: object, what: str) -> _Place:
    """Return the place that the header names for an array."""
    found: dict[str, Any] = entry if isinstance(entry, dict) else {}
    kind: Any
    shape: Any
    offsets: Any
    kind, shape, offsets = (found.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not (isinstance(kind, str) and kind in _TENSOR_TYPES):
        raise _unreadable(what, f"{name!r} is of the type {kind!r}, and {', '.join(_TENSOR_TYPES)} are read")
    if not (_are_sizes(shape) and len(shape) <= _MOST_AXES and _are_sizes(offsets) and len(offsets) == 2):
        raise _unreadable(what, f"{name!r} has the shape {shape!r} and the offsets {offsets!r}"[:300])
    dtype = np.dtype(_TENSOR_TYPES[kind])
    start, end = offsets
    if end - start != math.prod(shape) * dtype.itemsize:
        raise _unreadable(
            what,
            f"{name!r} of the shape {shape} takes {math.prod(shape) * dtype.itemsize:,} bytes, not {end - start:,}",
        )
    return _Place(name, dtype, tuple(shape), start, end)


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(one) is int and 0 <= one < 2**63 for one in values)


def _unreadable(what: str, why: str) -> ModelError:
    return ModelError(f"{what} holds no tensors in the format of safetensors, or is truncated: {why}.")

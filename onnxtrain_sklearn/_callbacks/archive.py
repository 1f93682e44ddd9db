"""Files of a training's state: arrays and a text that says where they belong, with a checksum of all.

A file may be cut off, changed, or written by somebody else. What is read is checked before it is used: no file takes
more memory than it is long, and none runs code.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .._graph.files import content_of
from .._support.whole_files import whole_file
from ..exceptions import ModelError
from .base import State

ARRAY, TEXT, CHECKSUM = "array of the file", "state", "sha256"
"""The key of a dict that stands for an array, and the names of the text and of the checksum among the arrays."""


def write_state(path: Path, state: State) -> None:
    """Write a state of dicts, lists, arrays, numbers and texts; after a crash the file is whole or absent."""
    arrays: dict[str, np.ndarray] = {}
    text = json.dumps(_as_text(state, arrays))
    arrays[TEXT] = np.frombuffer(text.encode(), np.uint8)
    arrays[CHECKSUM] = np.frombuffer(_checksum(arrays), np.uint8)
    with whole_file(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def read_state(path: Path) -> State | None:
    """Return the state in a file; None if there is no file.

    Raises
    ------
    ModelError
        The file is damaged, or none of :func:`write_state`.
    """
    try:
        content = content_of(path, first=_require_archive)
    except FileNotFoundError:
        return None
    except ModelError as error:
        raise damaged(path, str(error)) from error
    arrays = _arrays_of(content, path)
    stored = arrays.pop(CHECKSUM, np.empty(0))
    if TEXT not in arrays:
        raise damaged(path, "it holds no state")
    if stored.tobytes() != _checksum(arrays):
        raise damaged(path, "its checksum is another one")
    try:
        state = _from_text(json.loads(arrays[TEXT].tobytes()), arrays)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged(path, "its text cannot be read") from error
    if not isinstance(state, dict):
        raise damaged(path, "it holds no state")
    return state


def damaged(path: Path, why: str) -> ModelError:
    """Return the error to raise for a file that cannot be gone on from."""
    return ModelError(
        f"The checkpoint {path} is damaged, or none of this training: {why.rstrip('.')}. Remove it, or set "
        f"resume=False, which replaces it."
    )


def _checksum(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return the SHA-256 of names, types, shapes and numbers."""
    hasher = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        hasher.update(f"{name}\n{array.dtype.str}\n{array.shape}\n".encode())
        hasher.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return hasher.digest()


def _require_archive(file: BinaryIO, size: int) -> None:
    if not zipfile.is_zipfile(file):
        raise ModelError(f"{file.name} is no archive of arrays.")


def _arrays_of(content: bytes, path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an archive, which together are no longer than it is."""
    found, left = dict[str, np.ndarray](), len(content)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for entry in archive.infolist():
                left -= entry.file_size
                if left < 0 or entry.compress_type != zipfile.ZIP_STORED:
                    raise damaged(path, "its parts are compressed, or overlap")
                found[entry.filename.removesuffix(".npy")] = _array_of(archive.read(entry))
    except ModelError:
        raise
    except MemoryError as error:
        raise MemoryError(f"There is not enough memory to read the checkpoint {path}.") from error
    except Exception as error:  # zipfile and NumPy raise whatever the bytes lead to
        raise damaged(path, f"{type(error).__name__}: {error}"[:300]) from error
    return found


def _array_of(content: bytes) -> np.ndarray:
    """Return the array of a file of NumPy; its header may say anything."""
    file = io.BytesIO(content)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        shape, fortran, kind = read_header[np.lib.format.read_magic(file)](file)
    except (MemoryError, RecursionError) as error:  # of Python's parser, whose text is short
        raise ValueError("a header is nested too deeply") from error
    if kind.hasobject or any(size < 0 for size in shape):
        raise ValueError("a header names objects or negative sizes")
    array = np.frombuffer(content, kind, offset=file.tell())
    return np.array(array.reshape(shape, order="F" if fortran else "C"), order="C")


def _as_text(value: object, arrays: dict[str, np.ndarray]) -> Any:
    """Return ``value`` as JSON takes it; arrays go to ``arrays``."""
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise TypeError("A checkpoint takes arrays of numbers and texts, and a callback remembers one of objects.")
        name = f"a{len(arrays)}"
        arrays[name] = value
        return {ARRAY: name}
    if isinstance(value, dict):
        return {key: _as_text(item, arrays) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_text(item, arrays) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def _from_text(value: object, arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(value, dict):
        if ARRAY in value:
            return arrays[value[ARRAY]]
        return {key: _from_text(item, arrays) for key, item in value.items()}
    return [_from_text(item, arrays) for item in value] if isinstance(value, list) else value

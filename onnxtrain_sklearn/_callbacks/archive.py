"""Files of a training's state: arrays and a text that says where they belong, written at once or not at all."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .base import State

ARRAY, TEXT = "array of the file", "state"
"""The key of a dict that stands for an array, and the name of the text among the arrays."""


def write_state(path: Path, state: State) -> None:
    """Write a state of dicts, lists, arrays, numbers and texts; after a crash the file is whole or absent."""
    arrays: dict[str, np.ndarray] = {}
    text = json.dumps(_as_text(state, arrays))
    arrays[TEXT] = np.frombuffer(text.encode(), np.uint8)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    with open(unfinished, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)
    if os.name == "posix":
        _sync_folder(path.parent)


def read_state(path: Path) -> State | None:
    """Return the state in a file; None if the file is gone, or is none of :func:`write_state`."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            state: State = _from_text(json.loads(arrays[TEXT].tobytes()), arrays)
            return state
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def _sync_folder(folder: Path) -> None:
    """Let the new name of a file last, too."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _as_text(value: object, arrays: dict[str, np.ndarray]) -> Any:
    """Return ``value`` as JSON takes it; arrays go to ``arrays``."""
    if isinstance(value, np.ndarray):
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

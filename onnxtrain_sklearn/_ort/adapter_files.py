"""Read and write adapter files of onnxruntime: named arrays that replace inputs with defaults at run time."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from ..exceptions import ModelError, RuntimeNotFoundError
from .packages import onnxruntime, version

IDENTIFIER, LARGEST = b"TORT", 2**31 - 1
"""The bytes 4 to 8 of an adapter file, and the largest size of one, which is a FlatBuffer."""


def write_adapter(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]) -> None:
    """Write ``arrays`` to an ``.onnx_adapter`` file."""
    _require_adapters("Save the adapter where a newer one is, from a pickle of the estimator, or take to_onnx().")
    values = {n: onnxruntime.OrtValue.ortvalue_from_numpy(np.asarray(a, order="C")) for n, a in arrays.items()}
    adapter = onnxruntime.AdapterFormat()
    adapter.set_adapter_version(1)
    adapter.set_model_version(1)
    adapter.set_parameters(values)
    adapter.export_adapter(os.fspath(path))


def read_adapter(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Return the arrays of an ``.onnx_adapter`` file."""
    _require_adapters("Read the adapter where a newer one is, and give its arrays as a dict.")
    what = f"{os.fspath(path)} is not an adapter file of onnxruntime"
    with open(path, "rb") as file:  # onnxruntime reads all of a file before it looks at its beginning
        if file.read(8)[4:] != IDENTIFIER or os.fstat(file.fileno()).st_size > LARGEST:
            raise ModelError(f"{what}: it does not begin like one, or is too large.")
    try:
        adapter = onnxruntime.AdapterFormat.read_adapter(os.fspath(path))  # the values lie in its memory
        found = adapter.get_parameters()
    except Exception as error:  # each release has another class for it
        raise ModelError(f"{what}: {error}") from error
    arrays = {name: value.numpy() for name, value in found.items()}  # they lie in its memory, too
    places = sorted((array.ctypes.data, array.nbytes) for array in arrays.values() if array.nbytes)
    if any(start + length > following for (start, length), (following, _) in pairwise(places)):
        raise ModelError(f"{what}: its arrays overlap.")
    return {name: np.array(array) for name, array in arrays.items()}


def _require_adapters(advice: str) -> None:
    if not hasattr(onnxruntime, "AdapterFormat"):
        raise RuntimeNotFoundError(
            f"Adapter files need onnxruntime 1.20 or newer, and {version()} is installed. {advice}"
        )

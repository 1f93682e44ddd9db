"""Adapter files of onnxruntime: named arrays that replace inputs with defaults at run time."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from ..exceptions import ModelError, RuntimeNotFoundError
from .distributions import onnxruntime, version


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
    try:
        adapter = onnxruntime.AdapterFormat.read_adapter(os.fspath(path))  # the values lie in its memory
        found = adapter.get_parameters()
    except Exception as error:  # each release has another class for it
        raise ModelError(f"{os.fspath(path)} is not an adapter file of onnxruntime: {error}") from error
    return {name: np.array(value.numpy()) for name, value in found.items()}


def _require_adapters(advice: str) -> None:
    if not hasattr(onnxruntime, "AdapterFormat"):
        raise RuntimeNotFoundError(
            f"Adapter files need onnxruntime 1.20 or newer, and {version()} is installed. {advice}"
        )

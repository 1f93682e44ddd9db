"""Adapter files of onnxruntime: named arrays that replace inputs with defaults at run time."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from ..exceptions import RuntimeNotFoundError
from .distributions import onnxruntime, version


def write_adapter(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]) -> None:
    """Write ``arrays`` to an ``.onnx_adapter`` file."""
    if not hasattr(onnxruntime, "AdapterFormat"):
        raise RuntimeNotFoundError(
            f"Adapter files need onnxruntime 1.20 or newer, and {version()} is installed. Save the adapter where a "
            f"newer one is, from a pickle of the estimator, or take to_onnx(), which merges it."
        )
    values = {n: onnxruntime.OrtValue.ortvalue_from_numpy(np.asarray(a, order="C")) for n, a in arrays.items()}
    adapter = onnxruntime.AdapterFormat()
    adapter.set_adapter_version(1)
    adapter.set_model_version(1)
    adapter.set_parameters(values)
    adapter.export_adapter(os.fspath(path))

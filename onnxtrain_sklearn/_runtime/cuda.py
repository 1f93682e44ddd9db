"""The start of CUDA: its libraries are loaded from NVIDIA's packages, and a device proves that it gives memory.

onnxruntime finds the libraries of CUDA and cuDNN on the paths of the system alone. The packages of NVIDIA, which its
extras install, lie elsewhere. Without them onnxruntime writes a line to the log and computes on the CPU.
"""

from __future__ import annotations

import contextlib
import io
from functools import cache

from ..exceptions import DeviceError
from .distributions import onnxruntime, pybind, version

ADVICE = (
    "Is there a GPU, and does nvidia-smi list it? CUDA and cuDNN must be those that onnxruntime was built for: "
    "pip install 'onnxtrain-sklearn[portable-cuda]' installs them as packages. Else use device='cpu'."
)


@cache
def load_libraries() -> str:
    """Load CUDA and cuDNN from NVIDIA's packages, or from where the system has them; return what was not found."""
    preload = getattr(onnxruntime, "preload_dlls", None)
    if preload is None:  # before 1.21: only the paths of the system count
        return ""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        preload()
    return said.getvalue().strip()


@cache
def require_cuda(index: int) -> None:
    """Raise DeviceError unless the device with this index gives memory; once in a process where it does."""
    missing = load_libraries()
    try:
        device = pybind.OrtDevice(pybind.OrtDevice.cuda(), pybind.OrtDevice.default_memory(), index)
        pybind.OrtValue.ortvalue_from_shape_and_type([1], float, device)
    except Exception as error:  # each release has another class for it
        reason = (missing or str(error)).splitlines()[0].rstrip(".")
        raise DeviceError(
            f"CUDA device {index} could not be started by onnxruntime {version()}: {reason}. {ADVICE}"
        ) from error

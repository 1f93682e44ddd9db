"""A GPU that is pretended: estimators as if fitted on it, and a start of CUDA that is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnxruntime
import pytest

from onnxtrain_sklearn._ort import devices
from onnxtrain_sklearn._ort.devices import Device

PROVIDERS = ("CUDAExecutionProvider", "CPUExecutionProvider")


def gpu(index: int | None = None) -> Device:
    name, options = ("cuda", {}) if index is None else (f"cuda:{index}", {"device_id": str(index)})
    return Device(name, PROVIDERS, (options, {}))


def install_cuda(monkeypatch: pytest.MonkeyPatch, start: Callable[[int], Any]) -> None:
    """Let onnxruntime have CUDA, which ``start`` starts."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: list(PROVIDERS))
    monkeypatch.setattr(devices, "require_cuda", start)

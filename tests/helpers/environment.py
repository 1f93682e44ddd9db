"""Facts about the installation: gradient engines, the compiler, opsets, and devices with memory of their own."""

from __future__ import annotations

import pytest

from onnxtrain_sklearn._gradient import ort_training, portable
from onnxtrain_sklearn._gradient.engine import ENGINES, available_engines
from onnxtrain_sklearn._ir.opsets import MAX_OPSET
from onnxtrain_sklearn._ort import packages, sessions
from onnxtrain_sklearn._ort.devices import OWN_MEMORY
from onnxtrain_sklearn._training.programs import can_compile
from onnxtrain_sklearn._training.step_choice import is_measured

__all__ = [
    "ENGINES",
    "LIMITS",
    "NEWEST_OPSET",
    "OWN_MEMORY",
    "RULES",
    "RUNTIME_VERSION",
    "auto_compiles",
    "available_engines",
    "can_compile",
    "each_engine",
]

LIMITS = sessions.supported_versions()
"""The newest opsets and IR version that the installed onnxruntime reads."""

NEWEST_OPSET = min(MAX_OPSET, LIMITS.opset)
"""The newest opset that both the package and the installed onnxruntime read."""

RULES = {"ort-training": ort_training.PROVEN, "portable": portable.RULES}
"""The operators that each engine differentiates."""

RUNTIME_VERSION = packages.version()

auto_compiles = is_measured
"""Return True if engine="auto" compiles long fits on this processor."""

each_engine = pytest.mark.parametrize("engine", available_engines())

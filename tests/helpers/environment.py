"""Facts about the installation: gradient engines, versions of onnxruntime, and devices with memory of their own."""

from __future__ import annotations

import pytest

from onnxtrain_sklearn._gradient.engine import ENGINES, available_engines
from onnxtrain_sklearn._ort import packages, sessions
from onnxtrain_sklearn._ort.devices import OWN_MEMORY

__all__ = ["ENGINES", "LIMITS", "OWN_MEMORY", "RUNTIME_VERSION", "available_engines", "each_engine"]

LIMITS = sessions.supported_versions()
"""The newest opsets and IR version that the installed onnxruntime reads."""

RUNTIME_VERSION = packages.version()

each_engine = pytest.mark.parametrize("engine", available_engines())

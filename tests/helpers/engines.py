"""The gradient engines that are installed."""

from __future__ import annotations

import pytest

from onnxtrain_sklearn._gradient.engine import available_engines

each_engine = pytest.mark.parametrize("engine", available_engines())

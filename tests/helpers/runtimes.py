"""What releases of onnxruntime read."""

from __future__ import annotations

import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import pytest

from onnxtrain_sklearn._ort import sessions

NEWEST = onnx.defs.onnx_opset_version()
OLDER = sessions.SupportedVersions("onnxruntime 1.19.2", opset=21, ml_opset=5, ir_version=10)
NEWER = sessions.SupportedVersions("onnxruntime 1.31.1", opset=26, ml_opset=5, ir_version=13)
INSTALLED = sessions.supported_versions()
each_runtime = pytest.mark.parametrize("limits", [OLDER, NEWER], ids=["older", "newer"])

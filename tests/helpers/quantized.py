"""Quantized files on any processor: their integers whatever their sign, and runs whose products are exact."""

from __future__ import annotations

import numpy as np
import onnxruntime
from onnx import TensorProto, numpy_helper

from onnxtrain_sklearn._ort import wrong_kernels

SATURATING = wrong_kernels.saturate()
"""Whether this processor, or what the environment says of it, needs unsigned weights."""

BYTES = TensorProto.UINT8 if SATURATING else TensorProto.INT8
"""The type in which files that are given back hold signed weights."""


def run_exactly(model, feeds):
    """Return the outputs of a file as it was given, by onnxruntime with products that do not saturate anywhere."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def run_by_default(model, feeds):
    """Return the outputs of a file by onnxruntime as its users run it."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def stored_integers(model, given=None):
    """Return the integers of a file by name; signed bytes of the given file as such, whatever the file has for them."""
    arrays = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer if t.data_type != TensorProto.FLOAT}
    for name, array in stored_integers(given).items() if given is not None else ():
        if SATURATING and array.dtype == np.int8 and name in arrays:
            assert arrays[name].dtype == np.uint8, name
            arrays[name] = (arrays[name] ^ np.uint8(128)).view(np.int8)
    return arrays

"""Sessions of onnxruntime, silent and with one thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from onnxtrain_sklearn._ort import sessions


def session(model):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def evaluate(model, **feeds):
    return session(model).run(None, feeds)


def run_in_place(model: ir.Model, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run ``model`` once; ``new_NAME`` is written over NAME, which is returned, as are the other outputs."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    bytes_ = ir.to_proto(model).SerializeToString()
    session = onnxruntime.InferenceSession(bytes_, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    buffers = {name: a.copy() for name, a in arrays.items()}
    for name, a in buffers.items():
        binding.bind_input(name, "cpu", 0, a.dtype, a.shape, a.ctypes.data)
    for output in model.graph.outputs:
        name = (output.name or "").removeprefix("new_")
        if name not in buffers:
            buffers[name] = np.zeros((), next(iter(arrays.values())).dtype)
        a = buffers[name]
        binding.bind_output(output.name, "cpu", 0, a.dtype, a.shape, a.ctypes.data)
    session.run_with_iobinding(binding)
    return buffers


def forget_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Know no library of custom operators, as in a process that was given none."""
    monkeypatch.setattr(sessions, "_known_libraries", {})


def replace_registration(monkeypatch: pytest.MonkeyPatch, register: Callable[[object, str], None]) -> None:
    """Register libraries of custom operators by ``register`` instead of onnxruntime."""
    monkeypatch.setattr(sessions, "register_library", register)

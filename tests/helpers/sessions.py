"""Sessions of onnxruntime, silent and with one thread."""

from __future__ import annotations

import onnxruntime


def session(model):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def evaluate(model, **feeds):
    return session(model).run(None, feeds)

"""Whether onnxruntime loads a graph, tried in this process or in a child."""

from __future__ import annotations

import subprocess
import sys

from ..exceptions import ModelError
from . import sessions
from .devices import resolve_device


def loading_error(model: bytes) -> ModelError | None:
    """Return the error of onnxruntime for a model that it cannot load; without optimization, which takes long."""
    try:
        sessions.create_session(model, resolve_device(), options={"graph_optimization_level": "ORT_DISABLE_ALL"})
    except ModelError as error:
        return error
    return None


CHILD_SECONDS = 60
"""Time that a graph may take to load in a child process."""

_IN_CHILD = """
import sys, onnxruntime
options = onnxruntime.SessionOptions()
options.log_severity_level, options.intra_op_num_threads, options.inter_op_num_threads = 4, 1, 1
onnxruntime.InferenceSession(sys.stdin.buffer.read(), options, providers=["CPUExecutionProvider"])
"""


def survives_loading(model: bytes) -> bool:
    """Whether a child process survives loading ``model``; an exception of onnxruntime counts as survival."""
    command = [sys.executable or "python", "-c", _IN_CHILD]
    try:
        child = subprocess.run(command, input=model, capture_output=True, timeout=CHILD_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False
    except OSError:  # this system starts no processes
        return True
    return 0 <= child.returncode < 2  # Python exits with 1 after an exception, an abort gives a signal or its code

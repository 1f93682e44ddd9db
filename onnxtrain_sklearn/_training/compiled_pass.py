"""Passes over a fixed number of rows as machine code.

A session of onnxruntime spends most of the step of a small network on calling its nodes. Code for one graph spends it
on computing, and has all sizes as constants.
"""

from __future__ import annotations

import platform
from functools import cache

import onnx_ir as ir

from .._compiler.code import GraphCode, graph_code
from .._compiler.functions import supported
from .._compiler.kernels import tile_of
from .._compiler.plan import NotCompiledError
from .._gradient.engine import available_engines
from .._runtime.devices import Device
from .._runtime.machine_code import features, is_installed
from ..exceptions import RuntimeNotFoundError, UnsupportedOperatorError

COMPILED = "compiled"
"""Name of the engine."""


def differentiating_engine(engine: str) -> str:
    """Return the engine that differentiates the graphs of another: what is compiled is the portable one's."""
    return "portable" if engine == COMPILED else engine


def can_compile() -> bool:
    """Whether llvmlite is installed, and the processor has the instructions that compiled functions are made of."""
    return is_installed() and is_supported()


def is_usable(engine: str) -> bool:
    """Whether an estimator can be trained with an engine; llvmlite is loaded for the compiled one alone."""
    return can_compile() if engine == COMPILED else engine in ("auto", *available_engines())


def require_compiler(device: Device) -> None:
    """Raise if nothing can be compiled in this environment, or for this device."""
    if device.providers != ("CPUExecutionProvider",):
        raise ValueError(f"engine='compiled' computes on the CPU, got device={device.name!r}. Set device='cpu'.")
    if not is_installed():
        raise RuntimeNotFoundError(
            "engine='compiled' needs llvmlite, which is not installed. Install the extra onnxtrain-sklearn[compiled], "
            "or use engine='auto'."
        )
    if not is_supported():
        raise RuntimeNotFoundError("engine='compiled' needs a processor with FMA. Use engine='auto'.")


@cache
def is_supported() -> bool:
    """Whether the processor has the instructions that the functions need."""
    return supported(features(), platform.machine())


def compiled_code(graph: ir.Graph, target: str) -> GraphCode:
    """Return the code of a gradient graph; only its target may be integers, which are known classes."""
    try:
        return graph_code(graph, tile_of(features()), [target])
    except NotCompiledError as error:
        raise UnsupportedOperatorError(
            f"engine='compiled' cannot run the graph: {error}. Use engine='auto' or 'portable'."
        ) from None

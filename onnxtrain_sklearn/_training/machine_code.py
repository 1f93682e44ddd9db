"""The engine that compiles passes to machine code: where it can, where it pays, and the code of a graph.

A session of onnxruntime spends most of the step of a small network on calling its nodes. Code for one graph spends it
on computing, and has all sizes as constants. With ``engine="auto"`` a graph is compiled where the steps that a fit
plans would save several times what compiling takes. This is computed, not timed: a seed gives the same bits.
"""

from __future__ import annotations

import platform
from functools import cache
from typing import NamedTuple

import onnx_ir as ir

from .._compiler.code import GraphCode, graph_code
from .._compiler.elementwise import supported
from .._compiler.kernels import tile_of
from .._compiler.plan import NotCompiledError
from .._compiler.rows import RowInputs
from .._gradient.engine import available_engines
from .._ir.control_flow import fold
from .._ort.devices import Device
from .._ort.llvm import features, is_installed
from ..exceptions import InvalidParameterError, RuntimeNotFoundError, UnsupportedOperatorError
from .loss_graph import PARALLEL_WORK

COMPILED = "compiled"
"""Name of the engine."""


NODE, ELEMENT = 5e-7, 1.2e-10
"""Seconds that a step saves for each node of the gradient graph, and for each element that it computes.

``python benchmarks/engine_families.py --compiled`` compares them with what steps save.
"""


LOADING, COMPILING, COMPILING_NODE = 0.1, 0.05, 7e-4
"""Seconds that it takes to load the compiler, to compile a graph, and each of its nodes."""


MARGIN = 3.0
"""How many times these seconds a fit is to save, as it may end before its last epoch."""


LIKELY_EPOCHS = 200
"""Epochs that count at most, unless all are planned: ``max_iter`` is often far more than a fit needs."""


class PassSize(NamedTuple):
    """Size of a pass: multiply-adds forward, nodes with their gradients, elements of all values."""

    work: float
    nodes: int
    elements: float


def pays(size: PassSize, steps: int) -> bool:
    """Return True if this many steps save ``MARGIN`` times what compiling takes, and a session would use one thread.

    The answer depends on the graph and the steps alone, not on the number of threads or on what the process compiled
    before: a seed must always give the same bits. A session runs larger graphs on all cores.
    """
    saved = steps * (NODE * size.nodes + ELEMENT * size.elements)
    return size.work < PARALLEL_WORK and saved >= MARGIN * (LOADING + COMPILING + COMPILING_NODE * size.nodes)


def auto_compiles() -> bool:
    """Return True if ``engine="auto"`` may compile a graph in this environment; loads the compiler."""
    return is_installed() and is_measured()


@cache
def is_measured() -> bool:
    """Return True if the code can run, and was measured on such processors."""
    try:
        known = {"+avx2", "+avx512vl"}.intersection(features().split(","))
        return bool(known) and platform.machine().lower() in {"x86_64", "amd64"} and is_supported()
    except (ImportError, OSError, RuntimeError):  # a broken or old llvmlite
        return False


def can_compile() -> bool:
    """Return True if llvmlite is installed and the processor has the instructions that compiled functions use."""
    return is_installed() and is_supported()


@cache
def is_supported() -> bool:
    """Return True if the processor has the instructions that the functions need."""
    return supported(features(), platform.machine())


def is_usable(engine: str) -> bool:
    """Return True if an estimator can be trained with an engine; llvmlite is loaded for the compiled one alone."""
    return can_compile() if engine == COMPILED else engine in ("auto", *available_engines())


def require_compiler(device: Device) -> None:
    """Raise if nothing can be compiled in this environment, or for this device."""
    if device.providers != ("CPUExecutionProvider",):
        raise InvalidParameterError(
            f"engine='compiled' computes on the CPU, got device={device.name!r}. Set device='cpu'."
        )
    if not is_installed():
        raise RuntimeNotFoundError(
            "engine='compiled' needs llvmlite, which is not installed. Install the extra onnxtrain-sklearn[compiled], "
            "or use engine='auto'."
        )
    if not is_supported():
        raise RuntimeNotFoundError("engine='compiled' needs a processor with FMA. Use engine='auto'.")


def differentiating_engine(engine: str) -> str:
    """Return the engine that differentiates: "compiled" runs gradient graphs of the portable engine."""
    return "portable" if engine == COMPILED else engine


def compiled_code(model: ir.Model, rows: RowInputs | None = None) -> GraphCode:
    """Return the code of a gradient graph; shapes that it computes are put into it as constants, in place."""
    try:
        return graph_code(fold(model).graph, tile_of(features()), rows)
    except NotCompiledError as error:
        raise UnsupportedOperatorError(
            f"engine='compiled' cannot run the graph: {error}. Use engine='auto' or 'portable'."
        ) from None

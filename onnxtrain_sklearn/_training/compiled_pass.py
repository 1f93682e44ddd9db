"""Passes over a fixed number of rows as machine code.

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
from .._compiler.functions import supported
from .._compiler.kernels import tile_of
from .._compiler.plan import NotCompiledError
from .._compiler.row_states import RowInputs
from .._gradient.engine import available_engines
from .._graph.folding import fold
from .._runtime.devices import Device
from .._runtime.machine_code import features, is_installed
from ..exceptions import RuntimeNotFoundError, UnsupportedOperatorError
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
    """What a pass computes: multiply-adds forward, nodes with their gradients, elements of all values."""

    work: float
    nodes: int
    elements: float


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


@cache
def is_measured() -> bool:
    """Whether the code can run, and was measured on such processors."""
    try:
        known = {"+avx2", "+avx512vl"}.intersection(features().split(","))
        return bool(known) and platform.machine().lower() in {"x86_64", "amd64"} and is_supported()
    except (ImportError, OSError, RuntimeError):  # a broken or old llvmlite
        return False


def auto_compiles() -> bool:
    """Whether ``engine="auto"`` may compile a graph in this environment; loads the compiler."""
    return is_installed() and is_measured()


def pays(size: PassSize, steps: int) -> bool:
    """Whether so many steps save more than compiling a graph takes.

    Neither threads nor what the process has compiled before count: the bits of a fit would depend on them. A session
    runs larger graphs on all cores.
    """
    saved = steps * (NODE * size.nodes + ELEMENT * size.elements)
    return size.work < PARALLEL_WORK and saved >= MARGIN * (LOADING + COMPILING + COMPILING_NODE * size.nodes)


def compiled_code(model: ir.Model, rows: RowInputs | None = None) -> GraphCode:
    """Return the code of a gradient graph; shapes that it computes are put into it as constants, in place."""
    try:
        return graph_code(fold(model).graph, tile_of(features()), rows)
    except NotCompiledError as error:
        raise UnsupportedOperatorError(
            f"engine='compiled' cannot run the graph: {error}. Use engine='auto' or 'portable'."
        ) from None

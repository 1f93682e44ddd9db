"""Updates of vectors by compiled loops, where llvmlite is installed.

A loop takes a fifth of NumPy's time, to the same bits. To load the compiler takes a tenth of a second, so a process
does that when its loops would have saved as much.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from .._runtime.binding import Binding
from .._runtime.machine_code import MachineCode, is_installed, is_loaded
from .._support.cache import Cache
from .loop_code import loop_code
from .numpy_update import Formula, NumpyUpdate, numpy_update

LOADING, COMPILING = 0.1, 0.01
"""Seconds that it takes to load the compiler, and to compile a loop."""

CALL, ELEMENT = 4e-7, 1e-10
"""Seconds that NumPy takes for one operator: for its call, and for each element."""

ELEMENT_TYPES = {"f": "float", "d": "double"}

_loops: Cache[MachineCode] = Cache(64, 2**20, lambda _: 2**12)


class Savings:
    """The time that the updates of a process would have taken less if they had been compiled."""

    def __init__(self) -> None:
        self._seconds, self.suffice = 0.0, False

    def add(self, seconds: float) -> None:
        """Add to it; it suffices when it is as much as compiling takes."""
        self._seconds += seconds
        self.suffice |= self._seconds >= (COMPILING if is_loaded() else LOADING)

    def forget(self) -> None:
        """Begin again at a time that is never reached."""
        self._seconds, self.suffice = -math.inf, False


SAVINGS = Savings()


def saved_by_compiling(update: object) -> float:
    """Return about how many seconds a compiled loop saves in each step."""
    if not (isinstance(update, NumpyUpdate) and is_installed()):
        return 0.0
    return len(update.calls) * (CALL + update.block * ELEMENT)


@dataclass(frozen=True, eq=False)
class CompiledUpdate:
    """An update in place by a compiled loop; ``run`` keeps all that the loop reads and writes."""

    run: Callable[[], object]


class _Argument(ctypes.c_void_p):
    """The argument of a loop: a pointer that keeps the arrays behind it."""

    def __init__(self, arrays: Sequence[np.ndarray], count: int) -> None:
        self._kept = np.array([count, *(array.ctypes.data for array in arrays)], np.int64), arrays
        super().__init__(self._kept[0].ctypes.data)


VectorUpdate: TypeAlias = Binding | CompiledUpdate | NumpyUpdate


def formula_update(
    formula: Formula, vectors: Mapping[str, np.ndarray], gradients: np.ndarray, scalars: Mapping[str, np.ndarray]
) -> CompiledUpdate | NumpyUpdate:
    """Return the update in place of ``vectors``, the parameters and the slots, compiled where that pays."""
    if SAVINGS.suffice and is_installed():
        try:
            return compiled_update(formula, vectors, gradients, scalars)
        except (ImportError, OSError, RuntimeError):  # a broken or old llvmlite, an unknown processor, no rights
            SAVINGS.forget()
    return numpy_update(formula, vectors, gradients, scalars)


def compiled_update(
    formula: Formula, vectors: Mapping[str, np.ndarray], gradients: np.ndarray, scalars: Mapping[str, np.ndarray]
) -> CompiledUpdate:
    """Return the update in place of ``vectors`` by a compiled loop."""
    dtype, read = gradients.dtype, {name for _, operands, _ in formula.nodes for name in operands}
    long = {**vectors, "gradients": gradients}
    short = {name: array for name, array in {**formula.constants, **scalars}.items() if name in read}
    kind = ELEMENT_TYPES[dtype.char]
    key = tuple(formula.nodes), tuple(long), tuple(short), kind
    code = _loops.get(key, lambda: MachineCode(loop_code(formula, list(long), list(short), kind)))
    arrays = *long.values(), *short.values()
    assert all(array.dtype == dtype and array.flags.c_contiguous for array in arrays)
    return CompiledUpdate(partial(code, _Argument(arrays, len(gradients))))

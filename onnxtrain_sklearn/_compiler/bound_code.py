"""The code of a graph, compiled and tied to arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import numpy as np

from .._runtime.machine_code import MachineCode
from .._support.cache import Cache
from ..exceptions import ModelError
from .code import GraphCode
from .stages import LANES

LINE_BYTES = 64
"""Bytes of a line of the processor's cache."""

_functions: Cache[MachineCode] = Cache(64, 2**26, lambda code: 2**18)


class BoundCode:
    """A function of machine code with the arrays that it reads and writes, which may be used by one thread at a time.

    Parameters
    ----------
    code : GraphCode
    inputs, outputs : mapping of str to ndarray
        Contiguous arrays of the graph's types, with as many elements as it has; further inputs are left out.
    """

    def __init__(self, code: GraphCode, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> None:
        self._call = _functions.get(code.text, lambda: MachineCode(code.text))
        scratch = np.zeros(code.scratch + LINE_BYTES // 4, np.float32)
        start = -(scratch.ctypes.data // 4) % (LINE_BYTES // 4)
        named = [(inputs[name], size) for name, size in code.inputs.items()]
        named += [(outputs[name], size) for name, size in code.outputs.items()]
        self._checks, self._status = code.checks, np.zeros(2, np.float32)
        arrays = [*(array for array, _ in named), *code.constants, scratch[start:], self._status]
        assert all(array.size == size for array, size in named)
        types = [code.types.get(name, np.float32) for name in (*code.inputs, *code.outputs)]
        types += [np.float32] * (len(arrays) - len(types))
        assert all(
            array.dtype == type_ and array.flags.c_contiguous for array, type_ in zip(arrays, types, strict=True)
        )
        self._batch = self._rows = code.batch
        self._arrays = arrays, np.array([*(array.ctypes.data for array in arrays), code.batch], np.int64)
        self._argument = ctypes.c_void_p(self._arrays[1].ctypes.data)

    def compute_rows(self, rows: int) -> None:
        """Let runs compute so many rows and 1 to ``LANES`` more, if they may; all but the former have the weight 0.

        A row of weight zero is always among them: it makes 0 of a sum that underflowed to -0, as all of them do.
        """
        if self._batch and rows != self._rows:
            self._rows = rows
            self._arrays[1][-1] = min(self._batch, (rows // LANES + 1) * LANES)

    def run(self) -> None:
        """Run the function once; other threads of Python run meanwhile.

        Raises
        ------
        ModelError
            If the data have numbers that the graph cannot compute with, such as indices outside of a table.
        """
        self._call(self._argument)
        if self._checks and self._status[0]:
            self._fail()

    def _fail(self) -> None:
        number, found = self._status.tolist()
        self._status[:] = 0.0
        reason = self._checks[int(number) - 1].format(f"{found:.0f}")
        raise ModelError(f"The graph does not run on the data: {reason}.")

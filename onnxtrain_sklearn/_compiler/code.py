"""Compile a graph to machine code, and bind it to arrays.

:func:`graph_code` translates a graph to the text of a function (:mod:`.nodes` makes stages, :mod:`.plan` places them,
:mod:`.rows` bounds them). :class:`BoundCode` compiles the text and runs it on arrays.

The function has one argument, a pointer to an array of addresses: those of the inputs, the outputs, the constants,
memory for all intermediate results, and two numbers that the first failing check writes: the check's number, and the
offending element. If a run may compute only the first rows of a minibatch, the number of rows follows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from .._ir.queries import is_read
from .._ort.llvm import MachineCode
from .._utils.cache import Cache
from ..exceptions import ModelError
from .kernels import RegisterTile
from .llvm_text import Text
from .nodes import translate
from .plan import LINE, FunctionPlan, NotCompiledError, places_of
from .rows import RowInputs, bound_rows
from .stages import ARRAY_TYPES, LARGEST_INTEGER, Conversion
from .views import LANES, View, new_view


@dataclass(frozen=True, eq=False)
class GraphCode:
    """The text of a function, and the arrays that it needs.

    Attributes
    ----------
    text : str
    inputs, outputs : mapping of str to int
        Their names, in the order of their addresses, and their numbers of elements.
    constants : sequence of ndarray
    scratch : int
        Number of float32 elements of the memory for intermediate results.
    types : mapping of str to type
        The types of inputs and outputs that are not float32.
    checks : sequence of str
        The message of each check, numbered from 1; "{}" stands for the offending element.
    batch_size : int
        The rows of a minibatch if a run may compute only the first of them, else 0.
    """

    text: str
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    constants: Sequence[np.ndarray]
    scratch: int
    types: Mapping[str, type[np.generic]] = field(default_factory=dict)
    checks: Sequence[str] = ()
    batch_size: int = 0

    @property
    def nbytes(self) -> int:
        """The bytes of the text and the constants."""
        return len(self.text) + sum(array.nbytes for array in self.constants)


def graph_code(graph: ir.Graph, tile: RegisterTile, rows: RowInputs | None = None) -> GraphCode:
    """Return the code of a graph whose inputs and outputs are float32 or integers, of known sizes.

    Parameters
    ----------
    graph : onnx_ir.Graph
    tile : RegisterTile
        The part of a product that is computed at once.
    rows : RowInputs, optional
        If given, runs may compute only the first rows of a minibatch, where the other rows have the weight zero.

    Raises
    ------
    NotCompiledError
        If a node is not among the operators that are compiled.
    """
    plan = FunctionPlan(tile)

    # Inputs; nodes read other types as float32.
    inputs = dict[str, View]()
    for value in filter(is_read, graph.inputs):
        given = inputs[value.name or ""] = new_view(plan.shape(value))
        if value.dtype is None or value.dtype not in ARRAY_TYPES:
            plan.set(value, given)
        else:
            result = new_view(given.shape)
            plan.set(value, plan.add(Conversion(given, result, value.dtype), result))

    for node in graph:
        translate(plan, node)

    # Outputs; integers are converted back and checked to be exact.
    outputs = dict[str, View]()
    for value in graph.outputs:
        if value.dtype not in ARRAY_TYPES:
            view = plan.output(value, taken=[view.buffer for view in outputs.values()])
        elif value.dtype is ir.DataType.INT64:
            reason = f"the output {value.name!r} has the integer {{}}, and those from 2**24 on are rounded"
            plan.require(plan.view(value), (1.0 - LARGEST_INTEGER, LARGEST_INTEGER), reason)
            view = new_view(plan.view(value).shape)
            plan.add(Conversion(plan.contiguous(plan.view(value)), view, value.dtype, back=True), view)
        else:
            raise NotCompiledError(f"the output {value.name!r} has the type {value.dtype}")
        outputs[value.name or ""] = view
    plan.keep(outputs.values())  # only now: later stages decide which results of earlier ones are read

    # Memory; constants of a single number are written into the instructions.
    constants = {buffer: array for buffer, array in plan.constants.items() if buffer.number is None}
    external = [*(view.buffer for view in (*inputs.values(), *outputs.values())), *constants]
    places, scratch = places_of(plan.stages, external)

    # The rows of a minibatch that a run computes, in whole registers: of a smaller one, no row can be left out.
    bound = None
    if rows is not None and rows.batch_size > LANES:
        states = {view.buffer: rows.state(name, view.shape) for name, view in inputs.items()}
        results = [view.buffer for view in outputs.values()]
        bound = bound_rows(plan.stages, states, plan.constants, results, rows.batch_size)

    # The text: the addresses that the argument holds, then the stages.
    text = Text()
    for i, buffer in enumerate(external):
        buffer.pointer = _argument(text, i)
    base = _argument(text, len(external))
    for buffer, place in places.items():
        buffer.pointer = text.address(base, place)
    if plan.checks:
        plan.status.pointer = _argument(text, len(external) + 1)
    if bound is not None:
        bound.count = _argument(text, len(external) + 2, "i64")
    for stage in plan.stages:
        stage.write(text)

    values = [*graph.inputs, *graph.outputs]
    return GraphCode(
        text.function("run", ["%argument"]),
        {name: view.size for name, view in inputs.items()},
        {name: view.size for name, view in outputs.items()},
        list(constants.values()),
        scratch,
        {v.name or "": ARRAY_TYPES[v.dtype][0] for v in values if v.dtype is not None and v.dtype in ARRAY_TYPES},
        plan.checks,
        0 if bound is None else bound.batch_size,
    )


def _argument(text: Text, index: int, kind: str = "ptr") -> str:
    """Add the address, or the integer, at an index of the argument."""
    return text.value(f"load {kind}, ptr {text.value(f'getelementptr i64, ptr %argument, i64 {index}')}")


_functions: Cache[MachineCode] = Cache(64, 2**26, lambda code: 2**18)
"""The compiled functions that all fits of a process share, each counted as 256 KiB."""


class BoundCode:
    """A function of machine code with the arrays that it reads and writes; one thread at a time may use it.

    Parameters
    ----------
    code : GraphCode
    inputs, outputs : mapping of str to ndarray
        Contiguous arrays of the graph's types and sizes; further inputs are ignored.
    """

    def __init__(self, code: GraphCode, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> None:
        self._call = _functions.get(code.text, lambda: MachineCode(code.text))
        # Intermediate results begin with a cache line; plan.places_of gives each buffer whole lines.
        scratch = np.zeros(code.scratch + LINE, np.float32)
        start = -(scratch.ctypes.data // 4) % LINE
        named = [(inputs[name], size) for name, size in code.inputs.items()]
        named += [(outputs[name], size) for name, size in code.outputs.items()]
        self._checks = code.checks
        self._status = np.zeros(2, np.float32)
        arrays = [*(array for array, _ in named), *code.constants, scratch[start:], self._status]
        assert all(array.size == size for array, size in named)
        types = [code.types.get(name, np.float32) for name in (*code.inputs, *code.outputs)]
        types += [np.float32] * (len(arrays) - len(types))
        assert all(
            array.dtype == type_ and array.flags.c_contiguous for array, type_ in zip(arrays, types, strict=True)
        )
        self._batch = self._rows = code.batch_size
        # Held here, as the addresses keep no array alive.
        self._arrays = arrays, np.array([*(array.ctypes.data for array in arrays), code.batch_size], np.int64)
        self._argument = ctypes.c_void_p(self._arrays[1].ctypes.data)

    def compute_rows(self, rows: int) -> None:
        """Compute only the first ``rows`` rows and 1 to ``LANES`` more, if the code allows it; the rest weigh zero.

        At least one row of weight zero is computed: like all of them together, it turns a sum that underflowed to -0
        into 0.
        """
        if self._batch and rows != self._rows:
            self._rows = rows
            self._arrays[1][-1] = min(self._batch, (rows // LANES + 1) * LANES)

    def run(self) -> None:
        """Run the function once, without Python's global lock.

        Raises
        ------
        ModelError
            If the data have numbers that the graph cannot compute with, such as indices outside a table.
        """
        self._call(self._argument)
        if self._checks and self._status[0]:
            number, found = self._status.tolist()
            self._status[:] = 0.0
            reason = self._checks[int(number) - 1].format(f"{found:.0f}")
            raise ModelError(f"The graph does not run on the data: {reason}.")

"""A graph as one function in LLVM's assembly language.

The function has one argument, a pointer to an array of addresses: of the inputs, of the outputs, of the constants, of
memory for everything else that is computed, and of two numbers that the first check that fails writes to: its number,
and what is wrong. Where a run may compute the first rows of a minibatch alone, their number follows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from .._graph.queries import is_read
from .kernels import RegisterTile
from .memory import places_of
from .nodes import translate
from .plan import LARGEST_INTEGER, FunctionPlan, NotCompiledError
from .row_bound import RowBound
from .row_states import RowInputs, bound_rows
from .stages import LANES
from .tables import ARRAY_TYPES, Conversion
from .text import Text
from .views import Buffer, View, new_view


@dataclass(frozen=True, eq=False)
class GraphCode:
    """A function, and what it needs.

    Attributes
    ----------
    text : str
    inputs, outputs : mapping of str to int
        Their names, in the order of their addresses, and numbers of elements.
    constants : sequence of ndarray
    scratch : int
        Numbers of float32 that the function writes beside its outputs.
    types : mapping of str to type
        The types of inputs and outputs that are not float32.
    checks : sequence of str
        What is wrong where a check fails, by its number from 1 on; "{}" stands for a number.
    batch : int
        The rows of a minibatch, if a run may compute the first of them alone, else 0.
    """

    text: str
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    constants: Sequence[np.ndarray]
    scratch: int
    types: Mapping[str, type[np.generic]] = field(default_factory=dict)
    checks: Sequence[str] = ()
    batch: int = 0

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
        What products compute at once.
    rows : RowInputs, optional
        By which runs may compute the first rows of a minibatch alone, where the others have the weight zero.

    Raises
    ------
    NotCompiledError
        If a node is not among the operators that are compiled.
    """
    plan = FunctionPlan(tile)
    inputs = {value.name or "": _input_view(plan, value) for value in graph.inputs if is_read(value)}
    for node in graph:
        translate(plan, node)
    outputs = _output_views(plan, graph.outputs)
    plan.keep(outputs.values())
    constants = {buffer: array for buffer, array in plan.constants.items() if buffer.number is None}
    external = [*(view.buffer for view in (*inputs.values(), *outputs.values())), *constants]
    places, scratch = places_of(plan.stages, external)
    bound = None if rows is None or rows.batch <= LANES else _row_bound(plan, rows, inputs, outputs)
    return GraphCode(
        _function_text(plan, external, places, bound),
        {name: view.size for name, view in inputs.items()},
        {name: view.size for name, view in outputs.items()},
        list(constants.values()),
        scratch,
        _types([*graph.inputs, *graph.outputs]),
        plan.checks,
        0 if bound is None else bound.batch,
    )


def _row_bound(
    plan: FunctionPlan, rows: RowInputs, inputs: Mapping[str, View], outputs: Mapping[str, View]
) -> RowBound | None:
    states = {view.buffer: rows.state(name, view.shape) for name, view in inputs.items()}
    return bound_rows(plan.stages, states, plan.constants, [view.buffer for view in outputs.values()], rows.batch)


def _input_view(plan: FunctionPlan, value: ir.Value) -> View:
    """Return the view of an input; what reads it reads numbers."""
    given = new_view(plan.shape(value))
    if value.dtype is None or value.dtype not in ARRAY_TYPES:
        plan.set(value, given)
        return given
    result = new_view(given.shape)
    plan.set(value, plan.add(Conversion(given, result, value.dtype), result))
    return given


def _types(values: Sequence[ir.Value]) -> dict[str, type[np.generic]]:
    """Return the types of values that are not float32."""
    return {v.name or "": ARRAY_TYPES[v.dtype][0] for v in values if v.dtype is not None and v.dtype in ARRAY_TYPES}


def _output_views(plan: FunctionPlan, values: Sequence[ir.Value]) -> dict[str, View]:
    found = dict[str, View]()
    for value in values:
        taken = [view.buffer for view in found.values()]
        found[value.name or ""] = plan.output(value, taken) if value.dtype not in ARRAY_TYPES else _whole(plan, value)
    return found


def _whole(plan: FunctionPlan, value: ir.Value) -> View:
    """Return the view of an output of integers."""
    if value.dtype is not ir.DataType.INT64:
        raise NotCompiledError(f"the output {value.name!r} has the type {value.dtype}")
    view = plan.view(value)
    reason = f"the output {value.name!r} has the integer {{}}, and those from 2**24 on are rounded"
    plan.require(view, (1.0 - LARGEST_INTEGER, LARGEST_INTEGER), reason)
    result = new_view(view.shape)
    return plan.add(Conversion(plan.contiguous(view), result, value.dtype, back=True), result)


def _function_text(
    plan: FunctionPlan, external: Sequence[Buffer], places: Mapping[Buffer, int], bound: RowBound | None
) -> str:
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
    return text.function("run", ["%argument"])


def _argument(text: Text, index: int, kind: str = "ptr") -> str:
    """Add the address at an index of the argument, or an integer."""
    return text.value(f"load {kind}, ptr {text.value(f'getelementptr i64, ptr %argument, i64 {index}')}")

"""A graph as one function in LLVM's assembly language.

The function has one argument, a pointer to an array of addresses: of the inputs, of the outputs, of the constants, and
of memory for everything else that is computed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .._graph.queries import is_read
from .kernels import RegisterTile
from .memory import places_of
from .nodes import translate
from .plan import FunctionPlan
from .text import Text
from .views import Buffer, View


@dataclass(frozen=True, eq=False)
class GraphCode:
    """A function, and what it needs.

    Attributes
    ----------
    text : str
    inputs, outputs : mapping of str to int
        Their names, in the order of their addresses, and numbers of elements.
    constants : sequence of ndarray
    integers : collection of str
        The inputs that are integers of 64 bits.
    scratch : int
        Numbers of float32 that the function writes beside its outputs.
    """

    text: str
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    constants: Sequence[np.ndarray]
    scratch: int
    integers: Collection[str] = ()

    @property
    def nbytes(self) -> int:
        """The bytes of the text and the constants."""
        return len(self.text) + sum(array.nbytes for array in self.constants)


def graph_code(graph: ir.Graph, tile: RegisterTile, integers: Collection[str] = ()) -> GraphCode:
    """Return the code of a graph whose inputs and outputs are float32, of known sizes.

    Parameters
    ----------
    graph : onnx_ir.Graph
    tile : RegisterTile
        What products compute at once.
    integers : collection of str
        Inputs that are integers, of 64 bits: below 2**24, and in the range of what reads them.

    Raises
    ------
    NotCompiledError
        If a node is not among the operators that are compiled.
    """
    plan = FunctionPlan(tile, integers)
    inputs = {value.name or "": plan.add_input(value) for value in graph.inputs if is_read(value)}
    for node in graph:
        translate(plan, node)
    outputs = _output_views(plan, graph.outputs)
    plan.keep(outputs.values())
    constants = {buffer: array for buffer, array in plan.constants.items() if buffer.number is None}
    external = [*(view.buffer for view in (*inputs.values(), *outputs.values())), *constants]
    places, scratch = places_of(plan.stages, external)
    return GraphCode(
        _function_text(plan, external, places),
        {name: view.size for name, view in inputs.items()},
        {name: view.size for name, view in outputs.items()},
        list(constants.values()),
        scratch,
        [value.name or "" for value in graph.inputs if value.dtype is ir.DataType.INT64],
    )


def _output_views(plan: FunctionPlan, values: Sequence[ir.Value]) -> dict[str, View]:
    found = dict[str, View]()
    for value in values:
        found[value.name or ""] = plan.output(value, [view.buffer for view in found.values()])
    return found


def _function_text(plan: FunctionPlan, external: Sequence[Buffer], places: Mapping[Buffer, int]) -> str:
    text = Text()
    for i, buffer in enumerate(external):
        buffer.pointer = _argument(text, i)
    base = _argument(text, len(external))
    for buffer, place in places.items():
        buffer.pointer = text.address(base, place)
    for stage in plan.stages:
        stage.write(text)
    return text.function("run", ["%argument"])


def _argument(text: Text, index: int) -> str:
    """Add the address at an index of the argument."""
    return text.value(f"load ptr, ptr {text.value(f'getelementptr i64, ptr %argument, i64 {index}')}")

"""Updates of vectors by NumPy, a block at a time.

An update graph of elementwise operators over vectors reads and writes memory more than it computes. NumPy writes each
result into memory that is in the cache already, where onnxruntime takes a new temporary for each node: AdamW takes
three quarters of the time. Short vectors save the run of a session, which takes longer than their update. The graph
stays the one definition of the update; it is interpreted here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from .._graph.queries import constant
from .._optimizers.update_graph import UpdateGraph

LEAST_ELEMENTS = 0 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32768
"""Elements above which a vector is updated by NumPy: a call of NumPy 1.26 takes twice as long as one of NumPy 2."""

BLOCK = 65536
"""Elements of a block, whose vectors and temporaries are still in the cache of a core when they are read again."""

UFUNCS: Mapping[str, Any] = {
    "Abs": np.absolute,
    "Add": np.add,
    "Div": np.divide,
    "Identity": np.positive,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Sqrt": np.sqrt,
    "Sub": np.subtract,
}
"""Operators that NumPy computes as onnxruntime does, for floats."""


@dataclass(frozen=True)
class Formula:
    """An update as a list of operators.

    Attributes
    ----------
    nodes : sequence of tuple
        Operator type, names of the operands, name of the result.
    constants : mapping of str to ndarray
    registers : mapping of str to (int or None)
        The temporary that holds each computed vector, by its name; None for a computed scalar.
    """

    nodes: Sequence[tuple[str, tuple[str, ...], str]]
    constants: Mapping[str, Any]
    registers: Mapping[str, int | None]


def formula_of(update: UpdateGraph) -> Formula | None:
    """Return the formula of an update; None if NumPy cannot run it."""
    graph = update.model.graph
    values = [value for node in graph for value in (*node.inputs, *node.outputs) if value is not None]
    floats = all(value.dtype in (None, ir.DataType.FLOAT, ir.DataType.DOUBLE) for value in values)
    if not (update.elementwise and floats and all(node.op_type in UFUNCS and not node.domain for node in graph)):
        return None
    nodes = [
        (node.op_type, tuple(x.name or "" for x in node.inputs if x), node.outputs[0].name or "") for node in graph
    ]
    constants = {name: constant(value) for name, value in graph.initializers.items()}
    outputs = {value.name or "" for value in graph.outputs}
    return Formula(nodes, constants, _registers(nodes, {"parameters", "gradients", *update.slots}, outputs))


def _registers(
    nodes: Sequence[tuple[str, tuple[str, ...], str]], vectors: set[str], outputs: set[str]
) -> dict[str, int | None]:
    """Assign the temporaries; one is free again with the last node that reads it, which may write over it."""
    last = {name: i for i, (_, operands, _) in enumerate(nodes) for name in operands}
    found: dict[str, int | None] = {}
    vectors, free, count = set(vectors), list[int](), 0
    for i, (_, operands, result) in enumerate(nodes):
        released = {found.get(name) for name in operands if last[name] == i}
        free += sorted(k for k in released if k is not None)
        if not vectors.intersection(operands):
            found[result] = None
            continue
        vectors.add(result)
        if result not in outputs:
            if not free:
                free, count = [count], count + 1
            found[result] = free.pop()
    return found


@dataclass(frozen=True, eq=False)
class NumpyUpdate:
    """The calls of an update, in their order: functions of NumPy with their operands and results, parts of arrays.

    Each computes ``block`` elements at most.

    Who runs it lets NumPy ignore floating-point errors, which takes longer than the update of a short vector: numbers
    that are not finite are found by the loop.
    """

    calls: Sequence[Callable[[], object]]
    block: int

    def run(self) -> None:
        """Update all blocks in place."""
        for call in self.calls:
            call()


def numpy_update(
    formula: Formula, vectors: Mapping[str, np.ndarray], gradients: np.ndarray, scalars: Mapping[str, np.ndarray]
) -> NumpyUpdate:
    """Return the update in place of ``vectors``, the parameters and the slots."""
    count, dtype = len(set(formula.registers.values()) - {None}), gradients.dtype
    temporaries = [np.empty(min(BLOCK, len(gradients)), dtype) for _ in range(count)]
    numbers = {name: np.zeros((), dtype) for name, place in formula.registers.items() if place is None}
    calls: list[Callable[[], object]] = []
    for start in range(0, len(gradients), BLOCK):
        part = {name: vector[start : start + BLOCK] for name, vector in {**vectors, "gradients": gradients}.items()}
        local = {n: temporaries[k][: len(part["gradients"])] for n, k in formula.registers.items() if k is not None}
        results = {f"new_{name}": part[name] for name in vectors}
        arrays: dict[str, Any] = {**formula.constants, **scalars, **numbers, **part, **local, **results}
        for op_type, operands, result in formula.nodes:
            if not start or result not in numbers:
                # a result by position takes two thirds of the time of one by name
                calls.append(partial(UFUNCS[op_type], *(arrays[name] for name in (*operands, result))))
    return NumpyUpdate(calls, min(BLOCK, len(gradients)))

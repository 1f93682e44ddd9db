"""Translate operators that select elements.

Constant indices become views, or copies of a few runs; computed ones become a :class:`.Selection`, whose indices are
checked in each run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from .._ir import queries
from .elementwise import EMIT
from .llvm_text import Join, vector_type
from .plan import FunctionPlan, NotCompiledError, first_operand, known_operand, loaded
from .reductions import MAXIMUM, MINIMUM, SUM
from .stages import LARGEST_INTEGER, Selection
from .tuning import TUNING
from .views import View, new_view


def gather(plan: FunctionPlan, node: ir.Node) -> View:
    """Return the parts of a table along an axis, at indices."""
    table, value = plan.view(first_operand(node)), node.inputs[1]
    assert value is not None
    axis, known = _selected_axis(node, table), queries.constant(value)
    if known is not None:
        places = _known_places(node, known, table.shape[axis])
        if (parts := _runs_of_indices(places)) is not None:
            return _joined_runs(plan, table, axis, parts, known.shape)
    indices = _index_view(plan, node, table, axis)
    before, after = table.shape[:axis], table.shape[axis + 1 :]
    result = new_view((*before, *indices.shape, *after))
    given = loaded(plan, table)
    at = given._replace(
        shape=result.shape,
        strides=(*given.strides[:axis], *[0] * len(indices.shape), *given.strides[axis + 1 :]),
    )
    spread = indices._replace(shape=result.shape, strides=(*[0] * len(before), *indices.strides, *[0] * len(after)))
    return plan.add(Selection(at, spread, result, table.shape[axis], given.strides[axis]), result)


def _selected_axis(node: ir.Node, table: View) -> int:
    return int(queries.attribute(node, "axis", 0)) % len(table.shape)


def _known_places(node: ir.Node, indices: np.ndarray, length: int) -> np.ndarray:
    """Return constant indices from 0 on; raise where one is outside."""
    beyond = indices[(indices < -length) | (indices >= length)]
    if beyond.size:
        raise NotCompiledError(f"{queries.describe(node)} selects the index {beyond[0]} of {length}")
    return np.asarray(np.where(indices < 0, indices + length, indices).ravel())


def _runs_of_indices(places: np.ndarray) -> list[tuple[int, int, int]] | None:
    """Return the starts, lengths and steps of runs of indices; None if there are too many to copy one by one."""
    found, i = list[tuple[int, int, int]](), 0
    while i < len(places):
        step = int(places[i + 1] - places[i]) if i + 1 < len(places) else 1
        step = step if step >= 0 else 1
        expected = places[i] + step * np.arange(len(places) - i)
        differs = np.flatnonzero(places[i:] != expected)
        count = int(differs[0]) if differs.size else len(places) - i
        found.append((int(places[i]), count, step))
        i += count
        if len(found) > TUNING.most_runs:
            return None
    return found


def _joined_runs(
    plan: FunctionPlan, table: View, axis: int, runs: Sequence[tuple[int, int, int]], shape: tuple[int, ...]
) -> View:
    """Return runs of indices side by side, a view for one run, else a copy; ``shape`` is that of the indices."""
    parts = [table.part(axis, start, count, step) for start, count, step in runs]
    if len(parts) == 1 and len(shape) < 2:
        return parts[0] if shape else parts[0].without(axis)
    result, start = new_view((*table.shape[:axis], sum(run[1] for run in runs), *table.shape[axis + 1 :])), 0
    for part in parts:
        plan.copy_into(part, result.part(axis, start, part.shape[axis]))
        start += part.shape[axis]
    shaped = result.reshaped((*table.shape[:axis], *shape, *table.shape[axis + 1 :]))
    assert shaped is not None
    return shaped


def _index_view(plan: FunctionPlan, node: ir.Node, table: View, axis: int) -> View:
    """Return the indices of a node, checked."""
    value, length = node.inputs[1], table.shape[axis]
    assert value is not None
    if length > LARGEST_INTEGER:
        raise NotCompiledError(f"{queries.describe(node)} selects among more than 2**24 elements")
    view, known = plan.view(value), queries.constant(value)
    if known is not None:
        _known_places(node, known, length)
    else:
        plan.require(
            view,
            (-length, length),
            f"{queries.describe(node)} selects the index {{}}, beyond the {length} that it selects from: indices from "
            f"0 to {length - 1} are valid. Replace the others in X, or take a model with a larger table",
        )
    return loaded(plan, view)


def _along(view: View, axis: int, shape: tuple[int, ...]) -> View:
    """Return a table with stride 0 along the axis, as a :class:`.Selection` adds the indices' steps there."""
    return view._replace(shape=shape, strides=(*view.strides[:axis], 0, *view.strides[axis + 1 :]))


def gather_elements(plan: FunctionPlan, node: ir.Node) -> View:
    """Return an element of a table for each index."""
    table = loaded(plan, plan.view(first_operand(node)))
    axis = _selected_axis(node, table)
    indices = _index_view(plan, node, table, axis)
    result = new_view(indices.shape)
    at = _along(table, axis, result.shape)
    return plan.add(Selection(at, indices, result, table.shape[axis], table.strides[axis]), result)


JOINS: Mapping[str, Join | None] = {
    "none": None,
    "add": SUM.join,
    "mul": lambda text, a, b, width: text.value(f"fmul {vector_type(width)} {a}, {b}"),
    "max": MAXIMUM.join,
    "min": MINIMUM.join,
}
"""How an element is joined with the one in its place, by the attribute "reduction" of ScatterElements."""


def scatter_elements(plan: FunctionPlan, node: ir.Node) -> View:
    """Return a copy of a table with elements written to it, or joined with those in their places, in order."""
    table, updates = plan.view(first_operand(node)), plan.view(_third(node))
    axis, join = _selected_axis(node, table), JOINS[queries.attribute(node, "reduction", "none")]
    if join is not None and first_operand(node).dtype in (ir.DataType.INT64, ir.DataType.INT32):
        raise NotCompiledError(f"{queries.describe(node)} computes with integers")
    indices, updates = _index_view(plan, node, table, axis), loaded(plan, updates)
    result = plan.copy(table)
    at = _along(result, axis, indices.shape)
    given = updates._replace(shape=indices.shape)
    return plan.add(Selection(at, indices, given, table.shape[axis], result.strides[axis], True, join), result)


def _third(node: ir.Node) -> ir.Value:
    value = node.inputs[2]
    assert value is not None
    return value


def filled(plan: FunctionPlan, node: ir.Node) -> View:
    """Return a view that repeats the number of a ConstantOfShape."""
    tensor = queries.attribute(node, "value", None)
    number = 0.0 if tensor is None else float(tensor.numpy().reshape(()))
    return plan.number(number).broadcast(plan.shape(node.outputs[0]))


def triangle(plan: FunctionPlan, node: ir.Node) -> View:
    """Return the elements of matrices on one side of a diagonal, zeros elsewhere."""
    source, number = plan.view(first_operand(node)), known_operand(node, 1)
    offset = 0 if number is None else int(number.reshape(()))
    rows, columns = (np.arange(n) for n in source.shape[-2:])
    distance = columns - rows[:, np.newaxis]
    kept = distance >= offset if queries.attribute(node, "upper", 1) else distance <= offset
    return plan.elementwise(EMIT["Where"], [plan.array(kept), source, plan.number(0.0)])


def indicators_at(plan: FunctionPlan, node: ir.Node) -> View:
    """Return OneHot: "on" at indices along a new axis, "off" elsewhere, and everywhere for indices outside."""
    indices, depth, values = plan.view(first_operand(node)), known_operand(node, 1), plan.view(_third(node))
    assert depth is not None
    rank, length = len(indices.shape) + 1, int(depth.reshape(()))
    axis = int(queries.attribute(node, "axis", -1)) % rank
    negative = plan.elementwise(EMIT["Less"], [indices, plan.number(0.0)])
    turned = plan.elementwise(EMIT["Add"], [indices, plan.number(length)])
    places = plan.elementwise(EMIT["Where"], [negative, turned, indices]).with_axis(axis)
    counted = plan.array(np.arange(length).reshape(-1, *[1] * (rank - 1 - axis)))
    chosen = plan.elementwise(EMIT["Equal"], [places, counted])
    off, on = (values.part(0, i, 1) for i in (0, 1))
    return plan.elementwise(EMIT["Where"], [chosen, on, off])


INDEXING: Mapping[str, Callable[[FunctionPlan, ir.Node], View]] = {
    "ConstantOfShape": filled,
    "Gather": gather,
    "GatherElements": gather_elements,
    "OneHot": indicators_at,
    "ScatterElements": scatter_elements,
    "Trilu": triangle,
}
"""The function that translates a node, by ONNX operator."""

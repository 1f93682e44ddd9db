"""Translate ONNX nodes: :func:`translate` adds a node to a plan by its function in :data:`TRANSLATIONS`.

A function returns a view of the operand where the node only moves elements (Transpose, Slice, Split), adds an operation
to an elementwise stage (:data:`.EMIT`), or adds a stage of its own, such as a :class:`.Selection` at computed indices.
It raises :class:`.NotCompiledError` for a setting that it does not translate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import onnx_ir as ir

from .._ir import queries
from .elementwise import EMIT, TESTS, instruction, is_nonzero
from .llvm_text import Floats, Join, Text, at_least, at_most, vector_type
from .plan import FunctionPlan, NotCompiledError, first_operand, known_operand, loaded, operand_views
from .products import ProductStage
from .reductions import MAXIMUM, MINIMUM, SUM, Joining, ReductionStage, SoftmaxStage
from .stages import LARGEST_INTEGER, Selection
from .views import View, new_view


def translate(plan: FunctionPlan, node: ir.Node) -> None:
    """Add a node to a plan; constants are looked up by the nodes that read them."""
    if node.op_type == "Constant" and not node.domain:
        return
    make = TRANSLATIONS.get(node.op_type) if not node.domain else None
    if make is None:
        raise NotCompiledError(f"{queries.node_label(node)} is none of the operators that are compiled")
    _require_integers(plan, node)
    views = make(plan, node)
    for value, view in zip(node.outputs, [views] if isinstance(views, View) else views, strict=True):
        plan.set(value, view)


def _each_element(plan: FunctionPlan, node: ir.Node) -> View:
    settings = {name: attribute.value for name, attribute in node.attributes.items()}
    emit = partial(EMIT[node.op_type], **settings) if settings else EMIT[node.op_type]
    return plan.elementwise(emit, operand_views(plan, node))


def _clip(plan: FunctionPlan, node: ir.Node) -> View:
    bounds = [queries.operand(node, i) for i in (1, 2)]  # attributes before opset 11
    numbers = [queries.attribute(node, "min", -math.inf), queries.attribute(node, "max", math.inf)]
    given = [plan.number(n) if v is None else plan.view(v) for v, n in zip(bounds, numbers, strict=True)]
    return plan.elementwise(EMIT["Clip"], [plan.view(first_operand(node)), *given])


def _power(plan: FunctionPlan, node: ir.Node) -> View:
    base, exponent = operand_views(plan, node)
    base = base.broadcast(np.broadcast_shapes(base.shape, exponent.shape))
    number = exponent.buffer.number
    if number == 0.5:
        return plan.elementwise(EMIT["Sqrt"], [base])
    if number not in (1.0, 2.0, 3.0):  # these become products
        raise NotCompiledError(f"{queries.node_label(node)} has another exponent than 0.5, 1, 2 or 3")
    return plan.elementwise(partial(instruction, "fmul"), [base] * int(number))


def _view_in_shape(plan: FunctionPlan, node: ir.Node) -> View:
    """Return the operand in the shape of the result."""
    return plan.reshaped(plan.view(first_operand(node)), plan.shape(node.outputs[0]))


def _transpose(plan: FunctionPlan, node: ir.Node) -> View:
    view = plan.view(first_operand(node))
    return view.permuted(queries.attribute(node, "perm", range(len(view.shape))[::-1]))


def _gemm(plan: FunctionPlan, node: ir.Node) -> View:
    left, right, *rest = operand_views(plan, node)
    alpha, beta = (queries.attribute(node, name, 1.0) for name in ("alpha", "beta"))
    left = left.permuted((1, 0)) if queries.attribute(node, "transA", 0) else left
    right = right.permuted((1, 0)) if queries.attribute(node, "transB", 0) else right
    result = new_view((left.shape[0], right.shape[1]))
    # A bias that lies in memory as a row is added by the product itself.
    is_row = bool(rest) and rest[0].is_contiguous and rest[0].shape in (result.shape[1:], (1, *result.shape[1:]))
    bias = rest[0] if is_row and alpha == beta == 1.0 and rest[0].buffer.number is None else None
    plan.add(ProductStage(loaded(plan, left), _right(plan, right), result, plan.tile, bias), result)
    if bias is not None or not rest:
        return _times(plan, result, alpha)
    return plan.elementwise(EMIT["Add"], [_times(plan, result, alpha), _times(plan, rest[0], beta)])


def _times(plan: FunctionPlan, view: View, factor: float) -> View:
    return view if factor == 1.0 else plan.elementwise(EMIT["Mul"], [view, plan.number(factor)])


def _right(plan: FunctionPlan, view: View) -> View:
    """Return a view that a product can read on the right: rows or columns are contiguous."""
    near = 1 in view.strides[-2:] or 1 in view.shape[-2:]
    return loaded(plan, view) if near else plan.copy(view)


def _matmul(plan: FunctionPlan, node: ir.Node) -> View:
    left, right = operand_views(plan, node)
    left, right = loaded(plan, left), _right(plan, right)
    # A vector is one row on the left, one column on the right.
    left = left if len(left.shape) > 1 else left._replace(shape=(1, *left.shape), strides=(0, *left.strides))
    right = right if len(right.shape) > 1 else right._replace(shape=(*right.shape, 1), strides=(*right.strides, 0))
    if len(right.shape) == 2 and left.is_contiguous:  # a single right matrix multiplies the rows of all left ones
        count = math.prod(left.shape[:-1])
        inner = left.shape[-1]
        strides = left.strides if len(left.shape) == 2 else (inner, 1)
        left = left._replace(shape=(count, inner), strides=strides)
        result = new_view((count, right.shape[-1]))
    else:
        stack = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        left, right = (view.broadcast((*stack, *view.shape[-2:])) for view in (left, right))
        result = new_view((*stack, left.shape[-2], right.shape[-1]))
    plan.add(ProductStage(left, right, result, plan.tile), result)
    return plan.reshaped(result, plan.shape(node.outputs[0]))


def _reduction(rule: Joining, mean: bool, plan: FunctionPlan, node: ir.Node) -> View:
    source = plan.view(first_operand(node))
    shape = plan.shape(node.outputs[0])
    axes = _reduced_axes(node, len(source.shape))
    if not axes:
        return source
    # The stage reduces one block of axes, with other axes before and after it.
    kept = [i for i in range(len(source.shape)) if i not in axes]
    split = kept.index(axes[-1] + 1) if axes[-1] + 1 in kept else len(kept)
    if axes != list(range(axes[0], axes[-1] + 1)):  # move the axes to the end, next to each other
        source = source.permuted([*kept, *axes])
        split = len(kept)
        kept, axes = list(range(len(kept))), list(range(len(kept), len(source.shape)))
    sizes = [[source.shape[i] for i in part] for part in (kept[:split], axes, kept[split:])]
    before, count, after = map(math.prod, sizes)
    result = new_view(shape)
    stage = ReductionStage(plan.contiguous(source), result, before, count, after, rule, count if mean else 1)
    return plan.add(stage, result)


def _reduced_axes(node: ir.Node, rank: int) -> list[int]:
    """Return the sorted axes of a reduction; empty if it returns its operand."""
    given = queries.operand(node, 1)
    axes = queries.attribute(node, "axes", None) if given is None else queries.constant(given)
    if given is not None and axes is None:
        raise NotCompiledError(f"{queries.node_label(node)} has axes that are computed")
    if axes is None or not len(axes):
        return [] if queries.attribute(node, "noop_with_empty_axes", 0) else list(range(rank))
    return sorted(int(axis) % rank for axis in axes)


def _softmax(logarithm: bool, plan: FunctionPlan, node: ir.Node) -> View:
    # Before opset 13 all axes from this one on are normalized: over the last axis, both meanings are the same.
    source = plan.view(first_operand(node))
    axis = queries.attribute(node, "axis", -1 if queries.opset(node) >= 13 else 1)
    if axis % len(source.shape) != len(source.shape) - 1:
        raise NotCompiledError(f"{queries.node_label(node)} is over another axis than the last")
    result = new_view(source.shape)
    return plan.add(SoftmaxStage(plan.contiguous(source), result, logarithm), result)


def _log_sum_exp(plan: FunctionPlan, node: ir.Node) -> View:
    """Return the logarithms of the sums of exponentials, which softmax computes on the way."""
    source = plan.view(first_operand(node))
    if _reduced_axes(node, len(source.shape)) != [len(source.shape) - 1]:
        raise NotCompiledError(f"{queries.node_label(node)} is over other axes than the last")
    # The stage needs a place for the differences, which nothing reads.
    given = plan.contiguous(source)
    logarithm = new_view(source.shape)
    total = new_view((*source.shape[:-1], 1))
    plan.add(SoftmaxStage(given, logarithm, True, total), total)
    return plan.reshaped(total, plan.shape(node.outputs[0]))


def _concat(plan: FunctionPlan, node: ir.Node) -> View:
    parts = operand_views(plan, node)
    result = new_view(plan.shape(node.outputs[0]))
    axis = queries.attribute(node, "axis", 0) % len(result.shape)
    start = 0
    for part in parts:
        plan.copy_into(part, result.part(axis, start, part.shape[axis]))
        start += part.shape[axis]
    return result


def _pad(plan: FunctionPlan, node: ir.Node) -> View:
    """Return the operand between constants."""
    source = plan.view(first_operand(node))
    rest = [queries.operand(node, i) for i in (1, 2, 3)]
    counts, value, axes = (None if one is None else queries.constant(one) for one in rest)
    known = (value is not None or rest[1] is None) and (axes is not None or rest[2] is None)
    constant = queries.attribute(node, "mode", "constant") == "constant"
    if counts is None or not (known and constant and np.min(counts, initial=0) >= 0):
        raise NotCompiledError(f"{queries.node_label(node)} pads otherwise than by constants")
    number = plan.number(0.0 if value is None else float(value.reshape(())))
    # Fill the whole result, then overwrite its inside.
    result = inner = plan.copy(number.broadcast(plan.shape(node.outputs[0])))
    chosen = range(len(source.shape)) if axes is None else [int(axis) % len(source.shape) for axis in axes]
    for axis, before in zip(chosen, counts[: len(counts) // 2].tolist(), strict=True):
        inner = inner.part(axis, before, source.shape[axis])
    plan.copy_into(source, inner)
    return result


def _slice(plan: FunctionPlan, node: ir.Node) -> View:
    view = plan.view(first_operand(node))
    _, *given = node.inputs
    numbers = [None if one is None else queries.constant(one) for one in given]
    if len(numbers) < 2 or any(n is None for n, one in zip(numbers, given, strict=True) if one is not None):
        raise NotCompiledError(f"{queries.node_label(node)} has bounds that are computed")
    starts, ends, axes, steps = [*numbers, None, None][:4]
    assert starts is not None
    assert ends is not None
    for i, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        axis = (i if axes is None else int(axes[i])) % len(view.shape)
        step = 1 if steps is None else int(steps[i])
        if step < 1:
            raise NotCompiledError(f"{queries.node_label(node)} has a negative step")
        first, last, _ = slice(start, end).indices(view.shape[axis])
        view = view.part(axis, first, max(-(-(last - first) // step), 0), step)
    return view


def _parts_of_view(plan: FunctionPlan, node: ir.Node) -> list[View]:
    view = plan.view(first_operand(node))
    parts = list[View]()
    axis = queries.attribute(node, "axis", 0) % len(view.shape)
    start = 0
    for output in node.outputs:
        length = plan.shape(output)[axis]
        parts.append(view.part(axis, start, length))
        start += length
    return parts


def _layer_normalization(plan: FunctionPlan, node: ir.Node) -> list[View]:
    """Return the normalized rows, and if the node has these outputs the means and reciprocal standard deviations."""
    source, scale, *bias = operand_views(plan, node)
    if queries.attribute(node, "axis", -1) % len(source.shape) != len(source.shape) - 1:
        raise NotCompiledError(f"{queries.node_label(node)} is over another axis than the last")
    # Two passes, as the variance of uncentered squares would cancel.
    mean = _row_means(plan, source)
    difference = plan.elementwise(EMIT["Sub"], [source, mean])
    variance = _row_means(plan, plan.elementwise(EMIT["Mul"], [difference, difference]))
    more = plan.elementwise(EMIT["Add"], [variance, plan.number(queries.attribute(node, "epsilon", 1e-5))])
    inverse = plan.elementwise(EMIT["Reciprocal"], [plan.elementwise(EMIT["Sqrt"], [more])])
    result = plan.elementwise(EMIT["Mul"], [plan.elementwise(EMIT["Mul"], [difference, inverse]), scale])
    result = plan.elementwise(EMIT["Add"], [result, *bias]) if bias else result
    return [result, mean, inverse][: len(node.outputs)]


def _row_means(plan: FunctionPlan, view: View) -> View:
    count = view.shape[-1]
    result = new_view((*view.shape[:-1], 1))
    stage = ReductionStage(plan.contiguous(view), result, view.size // count, count, 1, SUM, count)
    return plan.add(stage, result)


def _batch_normalization(plan: FunctionPlan, node: ir.Node) -> View:
    """Return the columns normalized by given means and variances."""
    if len(node.outputs) != 1 or queries.attribute(node, "training_mode", 0):
        raise NotCompiledError(f"{queries.node_label(node)} is in training mode")
    source, *rest = operand_views(plan, node)
    ones = [1] * (len(source.shape) - 2)
    scale, bias, mean, variance = (plan.reshaped(view, (view.size, *ones)) for view in rest)
    more = plan.elementwise(EMIT["Add"], [variance, plan.number(queries.attribute(node, "epsilon", 1e-5))])
    factor = plan.elementwise(EMIT["Div"], [scale, plan.elementwise(EMIT["Sqrt"], [more])])
    scaled = plan.elementwise(EMIT["Mul"], [plan.elementwise(EMIT["Sub"], [source, mean]), factor])
    return plan.elementwise(EMIT["Add"], [scaled, bias])


# Selections: constant indices become views, or copies of a few runs; computed ones are checked in each run.


MOST_RUNS = 6
"""Up to this many runs of consecutive constant indices are copied one by one. No benchmark sets this number: each run
is a loop of its own, so it bounds the text that is compiled."""


def _gather(plan: FunctionPlan, node: ir.Node) -> View:
    """Select parts of a table along an axis."""
    table = plan.view(first_operand(node))
    value = node.inputs[1]
    assert value is not None
    axis = _selected_axis(node, table)
    known = queries.constant(value)
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
        raise NotCompiledError(f"{queries.node_label(node)} selects the index {beyond[0]} of {length}")
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
        if len(found) > MOST_RUNS:
            return None
    return found


def _joined_runs(
    plan: FunctionPlan, table: View, axis: int, runs: Sequence[tuple[int, int, int]], shape: tuple[int, ...]
) -> View:
    """Return runs of indices side by side, a view for one run, else a copy; ``shape`` is that of the indices."""
    parts = [table.part(axis, start, count, step) for start, count, step in runs]
    if len(parts) == 1 and len(shape) < 2:
        return parts[0] if shape else parts[0].without(axis)
    result = new_view((*table.shape[:axis], sum(run[1] for run in runs), *table.shape[axis + 1 :]))
    start = 0
    for part in parts:
        plan.copy_into(part, result.part(axis, start, part.shape[axis]))
        start += part.shape[axis]
    return plan.reshaped(result, (*table.shape[:axis], *shape, *table.shape[axis + 1 :]))


def _index_view(plan: FunctionPlan, node: ir.Node, table: View, axis: int) -> View:
    """Return the indices of a node, checked."""
    value, length = node.inputs[1], table.shape[axis]
    assert value is not None
    if length > LARGEST_INTEGER:
        raise NotCompiledError(f"{queries.node_label(node)} selects among more than 2**24 elements")
    view, known = plan.view(value), queries.constant(value)
    if known is not None:
        _known_places(node, known, length)
    else:
        plan.require(
            view,
            (-length, length),
            f"{queries.node_label(node)} selects the index {{}}, beyond the {length} that it selects from: indices "
            f"from 0 to {length - 1} are valid. Replace the others in X, or take a model with a larger table",
        )
    return loaded(plan, view)


def _along(view: View, axis: int, shape: tuple[int, ...]) -> View:
    """Return a table with stride 0 along the axis, as a :class:`.Selection` adds the indices' steps there."""
    return view._replace(shape=shape, strides=(*view.strides[:axis], 0, *view.strides[axis + 1 :]))


def _gather_elements(plan: FunctionPlan, node: ir.Node) -> View:
    """Select an element of a table for each index."""
    table = loaded(plan, plan.view(first_operand(node)))
    axis = _selected_axis(node, table)
    indices = _index_view(plan, node, table, axis)
    result = new_view(indices.shape)
    at = _along(table, axis, result.shape)
    return plan.add(Selection(at, indices, result, table.shape[axis], table.strides[axis]), result)


_JOINS: Mapping[str, Join | None] = {
    "none": None,
    "add": SUM.join,
    "mul": lambda text, a, b, width: text.value(f"fmul {vector_type(width)} {a}, {b}"),
    "max": MAXIMUM.join,
    "min": MINIMUM.join,
}
"""How an element is joined with the one in its place, by the attribute "reduction" of ScatterElements."""


def _scatter_elements(plan: FunctionPlan, node: ir.Node) -> View:
    """Copy a table and write elements to it in order; a reduction joins each with the one in its place."""
    table, updates = plan.view(first_operand(node)), plan.view(_third(node))
    axis = _selected_axis(node, table)
    join = _JOINS[queries.attribute(node, "reduction", "none")]
    if join is not None and first_operand(node).dtype in (ir.DataType.INT64, ir.DataType.INT32):
        raise NotCompiledError(f"{queries.node_label(node)} computes with integers")
    indices = _index_view(plan, node, table, axis)
    updates = loaded(plan, updates)
    result = plan.copy(table)
    at = _along(result, axis, indices.shape)
    given = updates._replace(shape=indices.shape)
    return plan.add(Selection(at, indices, given, table.shape[axis], result.strides[axis], True, join), result)


def _third(node: ir.Node) -> ir.Value:
    value = node.inputs[2]
    assert value is not None
    return value


def _filled(plan: FunctionPlan, node: ir.Node) -> View:
    """Return a view that repeats the number of a ConstantOfShape."""
    tensor = queries.attribute(node, "value", None)
    number = 0.0 if tensor is None else float(tensor.numpy().reshape(()))
    return plan.number(number).broadcast(plan.shape(node.outputs[0]))


def _triangle(plan: FunctionPlan, node: ir.Node) -> View:
    """Return the elements of matrices on one side of a diagonal, zeros elsewhere."""
    source = plan.view(first_operand(node))
    number = known_operand(node, 1)
    offset = 0 if number is None else int(number.reshape(()))
    rows, columns = (np.arange(n) for n in source.shape[-2:])
    distance = columns - rows[:, np.newaxis]
    kept = distance >= offset if queries.attribute(node, "upper", 1) else distance <= offset
    return plan.elementwise(EMIT["Where"], [plan.array(kept), source, plan.number(0.0)])


def _indicators_at(plan: FunctionPlan, node: ir.Node) -> View:
    """Put "on" at the indices along a new axis, "off" elsewhere; an index outside gives "off" everywhere."""
    indices = plan.view(first_operand(node))
    depth = known_operand(node, 1)
    values = plan.view(_third(node))
    assert depth is not None
    rank = len(indices.shape) + 1
    length = int(depth.reshape(()))
    axis = int(queries.attribute(node, "axis", -1)) % rank
    negative = plan.elementwise(EMIT["Less"], [indices, plan.number(0.0)])
    turned = plan.elementwise(EMIT["Add"], [indices, plan.number(length)])
    places = plan.elementwise(EMIT["Where"], [negative, turned, indices]).with_axis(axis)
    counted = plan.array(np.arange(length).reshape(-1, *[1] * (rank - 1 - axis)))
    chosen = plan.elementwise(EMIT["Equal"], [places, counted])
    off, on = (values.part(0, i, 1) for i in (0, 1))
    return plan.elementwise(EMIT["Where"], [chosen, on, off])


# Integers, which are held as float32: exact below 2**24, rounded once from there on.
#
# Operators that move integers move rounded ones just as well. Sums and products need exact operands. Comparisons need
# only that two equal numbers are below 2**24: integers that are rounded to different numbers compare as these do.


_INTEGER_ENDS = {ir.DataType.INT64: 2.0**63, ir.DataType.INT32: 2.0**31}
"""Integer types, and the end of their ranges."""

_MOVING = frozenset(
    "Abs Cast Concat ConstantOfShape Expand Flatten Gather GatherElements Identity Max Min Neg OneHot Reshape "
    "ScatterElements Sign Slice Split Squeeze Transpose Trilu Unsqueeze Where".split()
)
"""Operators whose results for rounded integers are the rounded results."""

_EXACT = frozenset(("Add", "Mul", "Sub"))
"""Operators whose results are rounded only once if their operands are exact."""


def _require_integers(plan: FunctionPlan, node: ir.Node) -> None:
    """Raise if an operator does not compute with the integers of a node; make runs fail where it would be wrong."""
    if not any(value.dtype in _INTEGER_ENDS for value in (*_computed_operands(node), *node.outputs)):
        return
    if node.op_type in _EXACT:
        for value in _computed_operands(node):
            _require_exact_integers(plan, node, plan.view(value))
    elif node.op_type in TESTS:
        if len(_computed_operands(node)) == len(node.inputs):  # constants are exact

            def first_where_equal(text: Text, operands: Sequence[str], width: int) -> str:
                first, second = (Floats(text, width, name) for name in operands)
                return first.where("oeq", second, first, 0.0).name

            equal = plan.elementwise(first_where_equal, operand_views(plan, node))
            _require_exact_integers(plan, node, equal)
    elif node.op_type not in _MOVING:
        raise NotCompiledError(f"{queries.node_label(node)} computes with integers")


def _computed_operands(node: ir.Node) -> list[ir.Value]:
    return [value for value in node.inputs if value is not None and queries.constant(value) is None]


def _require_exact_integers(plan: FunctionPlan, node: ir.Node, view: View) -> None:
    plan.require(
        view,
        (1.0 - LARGEST_INTEGER, LARGEST_INTEGER),
        f"{queries.node_label(node)} computes with the integer {{}}. engine='compiled' does so with those below 2**24: "
        f"use engine='portable'",
    )


def _cast(plan: FunctionPlan, node: ir.Node) -> View:
    """Return the operand of a Cast in the type that it names."""
    value = first_operand(node)
    to = ir.DataType(queries.attribute(node, "to", 0))
    source, given = plan.view(value), value.dtype
    if to is ir.DataType.BOOL:
        return source if given is ir.DataType.BOOL else plan.elementwise(is_nonzero, [source])
    if to is ir.DataType.FLOAT:
        # Integers have no -0, which Neg of a held 0 gives; adding 0 makes it 0.
        return plan.elementwise(EMIT["Add"], [source, plan.number(0.0)]) if given in _INTEGER_ENDS else source
    if to not in _INTEGER_ENDS:
        raise NotCompiledError(f"{queries.node_label(node)} converts to {to.name}, which is not compiled")
    end = _INTEGER_ENDS[to]
    if given in _INTEGER_ENDS and end < _INTEGER_ENDS[given]:
        plan.require(source, (-end, end), f"{queries.node_label(node)} gets the integer {{}}, which {to} lacks")
    if given in _INTEGER_ENDS or given is ir.DataType.BOOL:
        return source

    def truncated(text: Text, operands: Sequence[str], width: int) -> str:
        """Add the integer towards zero, limited to the range of the type; its least for NaN."""
        x = Floats(text, width, operands[0])
        whole = at_least(-end, at_most(end, x.call("trunc")))
        return x.where("uno", 0.0, -end, whole).name

    return plan.elementwise(truncated, [source])


TRANSLATIONS: Mapping[str, Callable[[FunctionPlan, ir.Node], View | list[View]]] = {
    **dict.fromkeys(EMIT, _each_element),
    "BatchNormalization": _batch_normalization,
    "Cast": _cast,
    "Clip": _clip,
    "Concat": _concat,
    "ConstantOfShape": _filled,
    "Expand": lambda plan, node: plan.view(first_operand(node)).broadcast(plan.shape(node.outputs[0])),
    "Gather": _gather,
    "GatherElements": _gather_elements,
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _view_in_shape),
    "Gemm": _gemm,
    "Identity": lambda plan, node: plan.view(first_operand(node)),
    "LayerNormalization": _layer_normalization,
    "LogSoftmax": partial(_softmax, True),
    "MatMul": _matmul,
    "OneHot": _indicators_at,
    "Pad": _pad,
    "Pow": _power,
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": partial(_reduction, MAXIMUM, False),
    "ReduceMean": partial(_reduction, SUM, True),
    "ReduceMin": partial(_reduction, MINIMUM, False),
    "ReduceSum": partial(_reduction, SUM, False),
    "ScatterElements": _scatter_elements,
    "Slice": _slice,
    "Softmax": partial(_softmax, False),
    "Split": _parts_of_view,
    "Transpose": _transpose,
    "Trilu": _triangle,
}
"""The function that translates a node, by ONNX operator."""

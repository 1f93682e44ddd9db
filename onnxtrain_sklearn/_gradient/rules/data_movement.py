"""Gradient rules of operators that move elements (Transpose, Concat), also by indices (Gather, Scatter).

If an ONNX operator is the inverse (Pad for Slice, SpaceToDepth for DepthToSpace), the rule emits it. Otherwise the rule
applies the operator to the flat positions of the elements, and scatters the cotangent to the result. The gradient of a
gather scatters and adds, as indices may repeat; the gradient of a scatter gathers. Indices have no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from ..._importers.torch_program import padding_row
from ..._ir.queries import constant, dims, fixed, operand
from ..._ir.supported import ANY, Supported
from ...graph import INT64, Operand, length_along
from ..path import forbid_derivative
from ..reverse import (
    GradientRule,
    Reverse,
    Thunk,
    filled_like,
    flat_index,
    mask,
    reshape_to,
    scatter_add,
    scatter_flat,
    shape_of,
    zeros_like,
)

# Blocks: reshaping, slicing, padding, concatenation, splitting.


def _reshape_rule(r: Reverse) -> Sequence[Thunk]:
    return [lambda: reshape_to(r.op, r.g, r.x())]


def _transpose_rule(r: Reverse) -> Sequence[Thunk]:
    perm = r.attribute("perm", None)
    inverse = None if perm is None else np.argsort(perm).tolist()
    return [lambda: r.op.Transpose(r.g, perm=inverse)]


def _tile_rule(r: Reverse) -> Sequence[Thunk]:
    """Split each axis into repetitions and size, and sum over the repetitions."""
    op, rank = r.op, r.rank()
    pairs = op.Concat(op.Unsqueeze(r.x(1), axes=[1]), op.Unsqueeze(op.Shape(r.x()), axes=[1]), axis=1)
    tiles = op.Reshape(r.g, op.Reshape(pairs, [-1]))
    return [lambda: op.ReduceSum(tiles, axes=list(range(0, 2 * rank, 2)), keepdims=False) if rank else r.g]


def _concat_rule(r: Reverse) -> Sequence[Thunk]:
    op = r.op
    parts = r.node.inputs
    axis = r.attribute("axis", 0)
    shapes = [dims(part) for part in parts]
    sizes = [shape[axis] if shape else None for shape in shapes]
    starts: list[Operand]  # the start of each part, and the end of the last part
    if fixed(sizes):
        starts = [np.array([total]) for total in accumulate([0, *sizes])]
    else:
        axis = axis % r.rank(r.y)
        lengths = [length_along(op, part, axis) for part in parts if part is not None]
        starts = [np.array([0]), *accumulate(lengths, op.Add)]
    return [
        lambda i=i: r.op.Slice(r.g, starts[i], starts[i + 1], [axis])  # type: ignore[misc]
        for i in range(len(parts))
    ]


def _split_rule(r: Reverse) -> Sequence[Thunk]:
    """Concatenate the cotangents of the parts; a part on which the loss does not depend has zeros."""
    op = r.op
    cotangents = [
        zeros_like(op, part) if cotangent is None else cotangent
        for cotangent, part in zip(r.cotangents, r.node.outputs, strict=True)
    ]
    return [lambda: op.Concat(*cotangents, axis=r.attribute("axis", 0)) if len(cotangents) > 1 else cotangents[0]]


def _slice_rule(r: Reverse) -> Sequence[Thunk]:
    """Pad if bounds and sizes are constant and all steps 1; otherwise slice the positions and scatter."""
    pads = _slice_pads(r)
    if pads is not None:
        return [lambda: r.op.Pad(r.g, np.array(pads, np.int64))]
    return _scattered_back(r, *r.node.inputs[1:], repeats=False)


def _slice_pads(r: Reverse) -> list[int] | None:
    """Return the pads that undo a Slice, None if they are not constant."""
    shape = dims(r.x())
    settings = [operand(r.node, i) for i in range(1, 5)]
    arrays = [None if v is None else constant(v) for v in settings]
    if shape is None or any(a is None and v is not None for a, v in zip(arrays, settings, strict=True)):
        return None
    starts, ends, axes, steps = (None if a is None else a.tolist() for a in arrays)
    if starts is None or ends is None or set(steps or ()) - {1}:
        return None
    before, after = [0] * len(shape), [0] * len(shape)
    for start, end, axis in zip(starts, ends, axes or range(len(starts)), strict=True):
        size = shape[axis]
        if not isinstance(size, int):
            return None
        first, last, _ = slice(start, end).indices(size)
        before[axis], after[axis] = (first, size - last) if last > first else (first, size - first)
    return before + after


def _pad_rule(r: Reverse) -> Sequence[Thunk | None]:
    """Pad by the negated pads, which crops padding and restores cropped parts. Modes that repeat elements scatter."""
    op, pads = r.op, r.x(1)
    axes = [r.x(3)] if r.has(3) else []
    if r.attribute("mode", "constant") != "constant":
        return _scattered_back(r, pads, None, *axes, repeats=True)
    known = constant(pads)
    back = np.negative(known) if known is not None else op.Neg(pads)
    inner = op.Pad(r.g, back, None, *axes)

    def of_padding() -> ir.Value:
        rim = op.Sub(op.ReduceSum(r.g, keepdims=False), op.ReduceSum(inner, keepdims=False))
        return reshape_to(op, rim, r.x(2))

    return lambda: inner, None, of_padding


def _depth_to_space_rule(r: Reverse) -> Sequence[Thunk]:
    """Emit SpaceToDepth, which puts the block position before the channels, as mode DCR; mode CRD puts it last."""
    blocks = r.op.SpaceToDepth(r.g, blocksize=r.attribute("blocksize", 1))
    if r.attribute("mode", "DCR") == "DCR":
        return [lambda: blocks]
    channels = (dims(r.x()) or [None, None])[1]
    if not isinstance(channels, int):
        r.refuse("the number of its channels is not known")
    places = r.attribute("blocksize", 1) ** 2
    order = np.arange(channels).reshape(places, -1).T.ravel()
    return [lambda: r.op.Gather(blocks, order, axis=1)]


# Elements at indices.


Pick: TypeAlias = Callable[[ir.Value], ir.Value]


def _gather_rule(r: Reverse) -> Sequence[Thunk]:
    """Sum the gradients of repeated indices; the index is flattened to one axis first."""
    op, x, rank = r.op, r.x(), r.rank()
    axis = r.attribute("axis", 0) % rank
    row = padding_row(r.node)

    # If the indices are constant and consecutive, Pad undoes the Gather, many times as fast as a scatter. PyTorch
    # separates queries, keys and values by such indices.
    known = constant(r.x(1))
    length = (dims(x) or [None] * (axis + 1))[axis]
    if known is not None and known.ndim < 2 and known.size and isinstance(length, int) and row is None:
        places = known.ravel() + length * (known.ravel() < 0)
        if np.array_equal(places, places[0] + np.arange(len(places))):

            def among_zeros() -> ir.Value:
                cotangent = op.Unsqueeze(r.g, axes=[axis]) if known.ndim == 0 else r.g
                pads = np.zeros((2, rank), np.int64)
                pads[:, axis] = int(places[0]), length - 1 - int(places[-1])
                return op.Pad(cotangent, pads.ravel()) if pads.any() else cotangent

            return [among_zeros]

    before, after = np.arange(axis, dtype=np.int64), np.arange(axis + 1, rank, dtype=np.int64)
    size = op.Reshape(op.Size(r.x(1)), [1])
    shape = op.Concat(*_sizes_along(r, before), size, *_sizes_along(r, after), axis=0)
    index = op.Reshape(r.x(1), np.array([1] * axis + [-1] + [1] * (rank - axis - 1), np.int64))
    index = op.Cast(index, to=INT64)

    def gradient() -> ir.Value:
        cotangent = r.g
        if row is not None:  # ``padding_idx``: PyTorch does not train this row of an embedding
            others = op.Not(op.Equal(op.Cast(r.x(1), to=INT64), np.array(row, np.int64)))
            cotangent = op.Mul(cotangent, op.Unsqueeze(mask(op, others), axes=[-1]))
        cotangent = op.Reshape(cotangent, shape)
        return scatter_add(r, zeros_like(op, x), op.Expand(index, shape), cotangent, axis, repeats=True)

    return [gradient]


def _sizes_along(r: Reverse, axes: np.ndarray) -> list[object]:
    return [r.op.Gather(shape_of(r.op, r.x()), axes)] if len(axes) else []


def _scattered_back(r: Reverse, *rest: ir.Value | None, repeats: bool) -> Sequence[Thunk]:
    """Apply the operator to the flat positions of the elements, and scatter the cotangent to them."""
    return [lambda: scatter_flat(r, r.g, r.again(flat_index(r.op, r.x()), *rest), r.x(), repeats=repeats)]


def _scatter_rule(r: Reverse) -> Sequence[Thunk | None]:
    """Choose the rule for the reduction of a Scatter; ``pick`` gathers at the indices, which may repeat."""

    def pick(value: ir.Value) -> ir.Value:
        if r.node.op_type == "ScatterND":
            return r.op.GatherND(value, r.x(1))
        return r.op.GatherElements(value, r.x(1), axis=r.attribute("axis", 0))

    rules = {"none": _replaced, "add": _sums, "mul": _products, "max": _extremes, "min": _extremes}
    of_data, of_updates = rules[r.attribute("reduction", "none")](r, pick)
    return of_data, None, of_updates


def _scattered(r: Reverse, base: ir.Value, updates: ir.Value, reduction: str | None = None) -> ir.Value:
    """Scatter like the node, or with another reduction."""
    if reduction is None:
        return r.again(base, r.x(1), updates)
    return r.again(base, r.x(1), updates, reduction=reduction)


def _replaced(r: Reverse, pick: Pick) -> tuple[Thunk, Thunk]:
    return lambda: _scattered(r, r.g, zeros_like(r.op, r.x(2))), lambda: pick(r.g)


def _sums(r: Reverse, pick: Pick) -> tuple[Thunk, Thunk]:
    return lambda: r.g, lambda: pick(r.g)


def _products(r: Reverse, pick: Pick) -> tuple[Thunk, Thunk]:
    """Return the gradients of ``reduction="mul"``; that of the only zero is the product of the other factors."""
    op, x, updates = r.op, r.x(), r.x(2)

    def of_updates() -> ir.Value:
        zero = op.Equal(updates, 0.0)
        nonzero = forbid_derivative(op.Where(zero, 1.0, updates), op.taken)
        zeros = mask(op, zero)
        others = op.Div(pick(_scattered(r, x, nonzero)), nonzero)
        others_zero = op.Sub(pick(_scattered(r, zeros_like(op, x), zeros, reduction="add")), zeros)
        return op.Mul(pick(r.g), op.Where(op.Greater(others_zero, 0.5), 0.0, others))

    return lambda: op.Mul(r.g, _scattered(r, filled_like(op, x, 1), updates)), of_updates


def _extremes(r: Reverse, pick: Pick) -> tuple[Thunk, Thunk]:
    """Return the gradients for ``reduction="max"`` and ``"min"``; equal extremes share the gradient."""
    op = r.op
    kept, put = mask(op, op.Equal(r.x(), r.y)), mask(op, op.Equal(r.x(2), pick(r.y)))
    share = op.Div(r.g, _scattered(r, kept, put, reduction="add"))
    return lambda: op.Mul(kept, share), lambda: op.Mul(put, pick(share))


def _tensor_scatter_rule(r: Reverse) -> Sequence[Thunk | None]:
    """Pass the cotangent to the update and to the elements of the cache that the update does not overwrite.

    The update never overlaps itself: it is at most as long as the cache. A longer update, or a negative index, makes
    the operator itself fail at run time.
    """
    op, rank = r.op, r.rank()
    axis = r.attribute("axis", -2) % rank
    cache, update = (shape[axis] if (shape := dims(x)) is not None else None for x in (r.x(), r.x(1)))
    if isinstance(cache, int) and isinstance(update, int) and update > cache:
        r.refuse(f"its update of {update} steps is longer than its cache of {cache}, which the standard forbids")
    indices = [r.x(2)] if r.has(2) else []

    def of_update() -> ir.Value:
        """Read the cotangent at the positions that the update wrote."""
        shape = shape_of(op, r.x(1))
        length = op.Gather(shape_of(op, r.x()), np.array([axis]))
        steps = op.Range(np.array(0), op.Gather(shape, np.array(axis)), np.array(1))
        places = op.Reshape(steps, [-1] + [1] * (rank - axis - 1))
        if r.has(2):
            places = op.Add(places, op.Reshape(r.x(2), [-1] + [1] * (rank - 1)))
        if r.attribute("mode", "linear") == "circular":
            places = op.Mod(places, length)
        return op.GatherElements(r.g, op.Expand(places, shape), axis=axis)

    return lambda: r.again(r.g, zeros_like(op, r.x(1)), *indices), of_update, None


def _one_hot_rule(r: Reverse) -> Sequence[Thunk | None]:
    """Return the gradient of the values (off, on): the cotangent's sums over the ``off`` and the ``on`` elements."""
    op = r.op

    def of_values() -> ir.Value:
        hot = r.again(r.x(0), r.x(1), np.array([0, 1], op.dtype.numpy()))
        on, total = op.ReduceSum(op.Mul(r.g, hot), keepdims=False), op.ReduceSum(r.g, keepdims=False)
        return op.Concat(op.Reshape(op.Sub(total, on), [1]), op.Reshape(on, [1]), axis=0)

    return lambda: None, lambda: None, of_values


def _unique_rule(r: Reverse) -> Sequence[Thunk]:
    """Divide the cotangent of each unique value equally among the equal elements."""
    op, axis = r.op, r.attribute("axis", None)
    inverse, counts = (r.further_output(i, ir.DataType.INT64) for i in (2, 3))
    column = [-1] if axis is None else [-1, *[1] * (r.rank() - 1 - axis % r.rank())]
    share = op.Div(r.g, op.Reshape(op.Cast(counts, to=op.dtype), column))
    picked = op.Gather(share, inverse, axis=axis or 0)
    return [lambda: reshape_to(op, picked, r.x()) if axis is None else picked]


RULES: dict[str, GradientRule] = {
    "Compress": Supported(lambda r: _scattered_back(r, r.x(1), repeats=False), "axis", inputs=2),
    "Concat": Supported(_concat_rule, "axis", inputs=ANY),
    "DepthToSpace": Supported(_depth_to_space_rule, "blocksize mode=CRD|DCR"),
    "Expand": Supported(lambda r: [lambda: r.sum_to(r.g, 0)], inputs=2),
    "Flatten": Supported(_reshape_rule, "axis"),
    "Pad": Supported(_pad_rule, "mode=constant|edge|reflect|wrap", inputs=4),
    "Reshape": Supported(_reshape_rule, "allowzero", inputs=2),
    "ReverseSequence": Supported(lambda r: [lambda: r.again(r.g, r.x(1))], "batch_axis time_axis", inputs=2),
    "Slice": Supported(_slice_rule, inputs=5),
    "SpaceToDepth": Supported(
        lambda r: [lambda: r.op.DepthToSpace(r.g, blocksize=r.attribute("blocksize", 1))], "blocksize"
    ),
    "Split": Supported(_split_rule, "axis num_outputs split", inputs=2, outputs=ANY, cotangents=ANY),
    "Squeeze": Supported(_reshape_rule, "axes", inputs=2),
    "Tile": Supported(_tile_rule, inputs=2),
    "Transpose": Supported(_transpose_rule, "perm"),
    "Trilu": Supported(lambda r: [lambda: r.again(r.g, *r.node.inputs[1:])], "upper", inputs=2),
    "Unsqueeze": Supported(_reshape_rule, "axes", inputs=2),
    "Gather": Supported(_gather_rule, "axis", inputs=2),
    "GatherElements": Supported(
        lambda r: [lambda: scatter_add(r, zeros_like(r.op, r.x()), r.x(1), r.g, r.attribute("axis", 0), repeats=True)],
        "axis",
        inputs=2,
    ),
    "GatherND": Supported(lambda r: _scattered_back(r, r.x(1), repeats=True), "batch_dims", inputs=2),
    "OneHot": Supported(_one_hot_rule, "axis", inputs=3),
    "ScatterElements": Supported(_scatter_rule, "axis reduction=add|max|min|mul|none", inputs=3),
    "ScatterND": Supported(_scatter_rule, "reduction=add|max|min|mul|none", inputs=3),
    "TensorScatter": Supported(_tensor_scatter_rule, "axis mode=circular|linear", inputs=3),
    "TopK": Supported(
        lambda r: [
            lambda: r.op.ScatterElements(
                zeros_like(r.op, r.x()),
                r.further_output(1, ir.DataType.INT64, r.y.shape),
                r.g,
                axis=r.attribute("axis", -1),
            )
        ],
        "axis largest sorted",
        inputs=2,
        outputs=2,
    ),
    "Unique": Supported(_unique_rule, "axis sorted", outputs=4),
}

"""Gradient rules of operators that move elements: reshaping, slicing, padding, concatenation, splitting.

Where the inverse is an operator of its own (Pad for Slice, SpaceToDepth for DepthToSpace), a rule emits that. For any
other settings it applies the operator to the flat positions of the elements, and scatters the cotangent to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import onnx_ir as ir

from ..._ir.queries import constant, dims, fixed, operand
from ..._ir.supported import ANY, Supported
from ...graph import Operand
from ..context import (
    GradientRule,
    Reverse,
    Thunk,
    flat_index,
    reshape_to,
    scatter_flat,
    zeros_like,
)


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
    op, parts, axis = r.op, r.node.inputs, r.attribute("axis", 0)
    shapes = [dims(part) for part in parts]
    sizes = [shape[axis] if shape else None for shape in shapes]
    starts: list[Operand]  # of each part, and the end of the last one
    if fixed(sizes):
        starts = [np.array([total]) for total in accumulate([0, *sizes])]
    else:
        axis = axis % r.rank(r.y)
        lengths = [op.Slice(op.Shape(part), [axis], [axis + 1], [0]) for part in parts]
        starts = [np.array([0]), *accumulate(lengths, op.Add)]
    return [
        lambda i=i: r.op.Slice(r.g, starts[i], starts[i + 1], [axis])  # type: ignore[misc]
        for i in range(len(parts))
    ]


def _split_rule(r: Reverse) -> Sequence[Thunk]:
    """Parts on which the loss does not depend have a zero gradient."""
    op = r.op
    cotangents = [
        zeros_like(op, part) if cotangent is None else cotangent
        for cotangent, part in zip(r.cotangents, r.node.outputs, strict=True)
    ]
    return [lambda: op.Concat(*cotangents, axis=r.attribute("axis", 0)) if len(cotangents) > 1 else cotangents[0]]


def _slice_rule(r: Reverse) -> Sequence[Thunk]:
    """Emit a Pad if bounds and sizes are constant and all steps 1; otherwise slice the positions and scatter."""
    pads = _slice_pads(r)
    if pads is not None:
        return [lambda: r.op.Pad(r.g, np.array(pads, np.int64))]
    rest = r.node.inputs[1:]
    return [lambda: scatter_flat(r, r.g, r.again(flat_index(r.op, r.x()), *rest), r.x(), repeats=False)]


def _slice_pads(r: Reverse) -> list[int] | None:
    """Return the pads that undo a Slice, None if they are not constant."""
    shape, settings = dims(r.x()), [operand(r.node, i) for i in range(1, 5)]
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
        places = r.again(flat_index(op, r.x()), pads, None, *axes)
        return [lambda: scatter_flat(r, r.g, places, r.x(), repeats=True)]
    known = constant(pads)
    back = np.negative(known) if known is not None else op.Neg(pads)
    inner = op.Pad(r.g, back, None, *axes)

    def of_padding() -> ir.Value:
        rim = op.Sub(op.ReduceSum(r.g, keepdims=False), op.ReduceSum(inner, keepdims=False))
        return reshape_to(op, rim, r.x(2))

    return lambda: inner, None, of_padding


def _depth_to_space_rule(r: Reverse) -> Sequence[Thunk]:
    """SpaceToDepth orders channels with the block position first, like DCR; in CRD it comes last."""
    blocks = r.op.SpaceToDepth(r.g, blocksize=r.attribute("blocksize", 1))
    if r.attribute("mode", "DCR") == "DCR":
        return [lambda: blocks]
    channels = (dims(r.x()) or [None, None])[1]
    if not isinstance(channels, int):
        r.refuse("the number of its channels is not known")
    places = r.attribute("blocksize", 1) ** 2
    order = np.arange(channels).reshape(places, -1).T.ravel()
    return [lambda: r.op.Gather(blocks, order, axis=1)]


def _compress_rule(r: Reverse) -> Sequence[Thunk]:
    """Compress the positions like the values, and scatter."""
    return [lambda: scatter_flat(r, r.g, r.again(flat_index(r.op, r.x()), r.x(1)), r.x(), repeats=False)]


RULES: dict[str, GradientRule] = {
    "Compress": Supported(_compress_rule, "axis", inputs=2),
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
}

"""Gradient rules of resampling operators that are linear in their input: Resize, AffineGrid, CenterCropPad."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ...._graph.builder import Operand
from ...._graph.queries import constant, dims, operand
from ...._graph.supported import Supported
from ..context import GradientRule, Reverse, Thunk


def _resize_rule(r: Reverse) -> Sequence[Thunk]:
    """Resize multiplies each axis by a matrix, obtained by resizing the identity matrix at run time."""
    return [lambda: _resized_back(r)]


def _resized_back(r: Reverse) -> ir.Value:
    op, cotangent, rank = r.op, r.g, r.rank()
    listed = [axis % rank for axis in r.attribute("axes", range(rank))]
    for place, axis in enumerate(listed):
        if _keeps(r, place, axis):
            continue
        weights = op.Transpose(_interpolation_matrix(r, place, axis, len(listed)), perm=[1, 0])
        last = [*(i for i in range(rank) if i != axis), axis]
        moved = op.MatMul(cotangent if axis == rank - 1 else op.Transpose(cotangent, perm=last), weights)
        cotangent = moved if axis == rank - 1 else op.Transpose(moved, perm=np.argsort(last).tolist())
    return cotangent


def _crops(r: Reverse) -> bool:
    return bool(r.attribute("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize")


def _given_scales(r: Reverse) -> ir.Value | None:
    """Return the scales, None if sizes are given; in older opsets the scales are then empty."""
    return None if r.has(3) else operand(r.node, 2)


def _keeps(r: Reverse, place: int, axis: int) -> bool:
    """Whether an axis is known to be unchanged; with a scale, equal sizes do not imply it."""
    scales = _given_scales(r)
    if _crops(r):
        return False
    if scales is not None:
        factors = constant(scales)
        return factors is not None and factors[place] == 1
    before, after = dims(r.x()), dims(r.y)
    return before is not None and after is not None and before[axis] is not None and before[axis] == after[axis]


def _interpolation_matrix(r: Reverse, place: int, axis: int, count: int) -> ir.Value:
    """Return the matrix of an axis: one row per input position, one column per output position."""
    op, dtype, scales = r.op, r.x().dtype or r.op.dtype, _given_scales(r)
    size = _length(r, r.x(), axis)
    unit = op.EyeLike(op.ConstantOfShape(op.Concat(size, size, axis=0), value=ir.tensor([0], dtype=dtype)))
    roi: Operand = np.zeros(0, dtype.numpy())
    if _crops(r):
        starts, ends = (op.Slice(r.x(1), [k], [k + 1], [0]) for k in (place, count + place))
        edges = [np.array([edge], r.x(1).dtype.numpy()) for edge in (0, 1)]  # type: ignore[union-attr]
        roi = op.Concat(edges[0], starts, edges[1], ends, axis=0)
    factors: Operand = np.zeros(0, np.float32)
    if scales is not None:
        factors = op.Concat(np.ones(1, np.float32), op.Slice(scales, [place], [place + 1], [0]), axis=0)
    sizes = op.Concat(size, _length(r, r.y, axis), axis=0) if scales is None else None
    omitted: dict[str, Any] = {"axes": None, "extrapolation_value": None, "keep_aspect_ratio_policy": None}
    if r.opset >= 13 and scales is None:
        return r.again(unit, roi if _crops(r) else None, None, sizes, **omitted)
    return r.again(unit, roi, factors, *([sizes] if scales is None else []), **omitted)


def _length(r: Reverse, value: ir.Value, axis: int) -> Operand:
    """Return the size of an axis, as a vector of one element."""
    sizes = dims(value)
    known = None if sizes is None else sizes[axis]
    return np.array([known]) if isinstance(known, int) else r.op.Slice(r.op.Shape(value), [axis], [axis + 1], [0])


def _affine_grid_rule(r: Reverse) -> Sequence[Thunk]:
    """The grid is theta times the homogeneous base coordinates, computed from an identity theta."""
    op, rank = r.op, r.rank(r.y)
    n = rank - 2
    unit = np.eye(n, n + 1, dtype=op.dtype.numpy())[None]
    size = op.Concat(np.array([1]), op.Slice(r.x(1), [1], [rank], [0]), axis=0)
    places = op.Reshape(r.again(unit, size), np.array([-1, n]))
    rows = op.Reshape(r.g, np.array([0, -1, n]))
    return [lambda: op.MatMul(op.Transpose(rows, perm=[0, 2, 1]), op.Pad(places, [0, 0, 0, 1], 1.0))]


def _center_crop_pad_rule(r: Reverse) -> Sequence[Thunk]:
    """The gradient is CenterCropPad back to the input's shape: it pads what was cropped and crops what was padded."""
    axes, size = r.attribute("axes", None), r.op.Shape(r.x())
    target = size if axes is None else r.op.Gather(size, np.array(axes, np.int64) % max(r.rank(), 1))
    return [lambda: r.again(r.g, target)]


_RESIZE = """
    antialias axes cubic_coeff_a exclude_outside extrapolation_value keep_aspect_ratio_policy=stretch
    mode=cubic|linear|nearest nearest_mode=ceil|floor|round_prefer_ceil|round_prefer_floor
    coordinate_transformation_mode=align_corners|asymmetric|half_pixel|half_pixel_symmetric|pytorch_half_pixel|tf_crop_and_resize
"""

RULES: dict[str, GradientRule] = {
    "AffineGrid": Supported(_affine_grid_rule, "align_corners", inputs=2),
    "CenterCropPad": Supported(_center_crop_pad_rule, "axes", inputs=2),
    "Resize": Supported(_resize_rule, _RESIZE, inputs=4),
}

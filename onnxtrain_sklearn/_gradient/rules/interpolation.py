"""Gradient rules of interpolation: samples at coordinates, bins of regions, and resampling.

- GridSample and DeformConv sample at coordinates. Along each axis, a coordinate is interpolated from a few pixels, the
  taps (:class:`Taps`). Their weights are polynomials of the fractional part of the coordinate: a sample is the sum of
  the pixels times the products of these weights (:class:`Samples`). The cotangent of a sample is distributed to the
  pixels by the same weights, and to the coordinates by the derivatives of the polynomials.
- RoiAlign and MaxRoiPool reduce the bins of regions.
- Resize, AffineGrid and CenterCropPad are linear in their input, so their gradients are products with a matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import onnx_ir as ir

from ..._ir.queries import constant, dims, fixed, operand
from ..._ir.supported import Supported
from ...graph import INT64, Operand, length_along
from ..reverse import GradientRule, Reverse, Thunk, mask, reshape_to, scatter_add, zeros_like
from .windows import spatial_sizes

# Samples at coordinates.

TAPS: dict[str, tuple[int, list[list[float]]]] = {
    "nearest": (0, [[1.0]]),
    "linear": (0, [[1.0, 0.0], [-1.0, 1.0]]),
    "cubic": (
        -1,
        [[0.0, 1.0, 0.0, 0.0], [-0.75, 0.0, 0.75, 0.0], [1.5, -2.25, 1.5, -0.75], [-0.75, 1.25, -1.25, 0.75]],
    ),
}


"""For each mode: the offset of the first tap from the pixel at or below the coordinate, and the coefficients of the
taps' polynomials (rows are powers of the fraction, columns are taps)."""


@dataclass(frozen=True)
class Taps:
    """The taps along one axis for coordinates (images, points): pixels and their weights, (images, points, taps)."""

    index: ir.Value
    weight: ir.Value
    derivative: ir.Value


def _taps(r: Reverse, place: ir.Value, size: int, mode: str, padding: str, aligned: bool) -> Taps:
    op, (first, powers) = r.op, TAPS[mode]
    before = op.Round(place) if mode == "nearest" else op.Floor(place)
    fraction = op.Unsqueeze(op.Sub(place, before), axes=[2])
    rows = np.array(powers, op.dtype.numpy())
    index = op.Add(op.Cast(op.Unsqueeze(before, axes=[2]), to=INT64), np.arange(first, first + rows.shape[1]))
    weight = _tap_polynomial(r, fraction, rows)
    derivative = _tap_polynomial(r, fraction, rows[1:] * np.arange(1, len(rows), dtype=rows.dtype)[:, None])
    if padding == "zeros":
        inside = mask(op, op.And(op.Greater(index, -1), op.Less(index, size)))
        weight, derivative = op.Mul(weight, inside), op.Mul(derivative, inside)
    elif padding == "reflection":
        # Reflect the index at the centers of the outermost pixels if corners are aligned, else at their outer edges.
        period = 2 * (size - aligned)
        index = op.Mod(index, max(period, 1))
        index = op.Min(index, op.Sub(period - (not aligned), index))
    return Taps(op.Clip(index, np.array(0), np.array(size - 1)), weight, derivative)


def _tap_polynomial(r: Reverse, fraction: ir.Value, rows: np.ndarray) -> ir.Value:
    """Evaluate the polynomial of each tap at ``fraction`` by Horner's scheme; without rows the result is 0."""
    start: ir.Value = r.op.Mul(fraction, 0.0)
    return reduce(lambda value, row: r.op.Add(r.op.Mul(value, fraction), row), rows[::-1], start)


@dataclass(frozen=True)
class Samples:
    """Samples at points in images.

    ``pixels`` is (images, channels, pixels); samples and their cotangents are (images, channels, points).
    """

    r: Reverse
    pixels: ir.Value
    sizes: list[int]
    taps: list[Taps]

    def values(self) -> ir.Value:
        """Return the samples."""
        op = self.r.op
        return op.ReduceSum(op.Mul(self._read(), op.Unsqueeze(self._weights(), axes=[1])), axes=[3], keepdims=False)

    def to_pixels(self, g: ir.Value) -> ir.Value:
        """Return the cotangent of the pixels."""
        op = self.r.op
        spread = op.Mul(op.Unsqueeze(g, axes=[3]), op.Unsqueeze(self._weights(), axes=[1]))
        flat = op.Reshape(spread, [0, 0, -1])
        return scatter_add(self.r, zeros_like(op, self.pixels), self._index(), flat, 2, repeats=True)

    def to_coordinates(self, g: ir.Value) -> list[ir.Value]:
        """Return the cotangent of the coordinates along each axis, (images, points)."""
        op = self.r.op
        shared = op.ReduceSum(op.Mul(self._read(), op.Unsqueeze(g, axes=[3])), axes=[1], keepdims=False)
        count = range(len(self.taps))
        weights = [[t.derivative if i == j else t.weight for j, t in enumerate(self.taps)] for i in count]
        return [op.ReduceSum(op.Mul(shared, self._outer(parts)), axes=[2], keepdims=False) for parts in weights]

    def _read(self) -> ir.Value:
        """Return the pixels at the taps of all points, (images, channels, points, taps)."""
        op = self.r.op
        shape = op.Concat(np.array([0, 0]), op.Slice(op.Shape(self._weights()), [1], [3], [0]), axis=0)
        return op.Reshape(op.GatherElements(self.pixels, self._index(), axis=2), shape)

    def _weights(self) -> ir.Value:
        return self._outer([taps.weight for taps in self.taps])

    def _outer(self, parts: Sequence[ir.Value]) -> ir.Value:
        """Return the outer product of the factors of each axis, for every combination of taps."""
        op = self.r.op
        return reduce(
            lambda a, b: op.Reshape(op.Mul(op.Unsqueeze(a, axes=[3]), op.Unsqueeze(b, axes=[2])), [0, 0, -1]), parts
        )

    def _index(self) -> ir.Value:
        """Return the flat indices of the taps of all points, for each channel."""
        op = self.r.op
        index = self.taps[0].index
        for size, taps in zip(self.sizes[1:], self.taps[1:], strict=True):
            rows, columns = op.Unsqueeze(op.Mul(index, size), axes=[3]), op.Unsqueeze(taps.index, axes=[2])
            index = op.Reshape(op.Add(rows, columns), [0, 0, -1])
        index = op.Reshape(index, [0, 1, -1])
        channels = length_along(op, self.pixels, 1)
        return op.Expand(index, op.Concat(np.array([1]), channels, np.array([1]), axis=0))


def _grid_sample_rule(r: Reverse) -> Sequence[Thunk]:
    """Differentiate samples; coordinates -1 and 1 are the outermost pixels' centers, or edges if align_corners=0."""
    op = r.op
    sizes = spatial_sizes(r, r.x())
    aligned = bool(r.attribute("align_corners", 0))
    mode = r.attribute("mode", "linear").removeprefix("bi")
    grid = op.Reshape(r.x(1), [0, -1, len(sizes)])
    n = len(sizes)
    units = [(size - aligned) / 2 for size in sizes]
    places = [
        op.Add(op.Mul(op.Gather(grid, np.array(n - 1 - i), axis=2), units[i]), (size - 1) / 2)
        for i, size in enumerate(sizes)
    ]
    padding = r.attribute("padding_mode", "zeros")
    taps = [_taps(r, place, size, mode, padding, aligned) for place, size in zip(places, sizes, strict=True)]
    samples = Samples(r, op.Reshape(r.x(), [0, 0, -1]), sizes, taps)
    g = op.Reshape(r.g, [0, 0, -1])

    def of_grid() -> ir.Value:
        cotangents = [
            op.Unsqueeze(op.Mul(s, unit), axes=[2]) for s, unit in zip(samples.to_coordinates(g), units, strict=True)
        ]
        return reshape_to(op, op.Concat(*cotangents[::-1], axis=2), r.x(1))

    return lambda: reshape_to(op, samples.to_pixels(g), r.x()), lambda: None if mode == "nearest" else of_grid()


def _deform_conv_rule(r: Reverse) -> Sequence[Thunk]:
    """Differentiate a convolution of samples: each kernel element samples at its own offset, per group of channels."""
    op = r.op
    kernel = dims(r.x(1)) or []
    channels = (dims(r.x()) or [None] * 2)[1]
    out = spatial_sizes(r, r.y)
    if not isinstance(channels, int) or not fixed(kernel):
        r.refuse("the sizes of its kernel are not known")
    group, parts = r.attribute("group", 1), r.attribute("offset_group", 1)
    filters, window = kernel[0], kernel[2:]
    elements, steps = int(np.prod(window)), int(np.prod(out))

    # Make the samples: an image per batch entry and offset group, a point per kernel element and output position.
    sizes, n = spatial_sizes(r, r.x()), len(window)
    strides, dilations = (r.attribute(name, [1] * n) for name in ("strides", "dilations"))
    offsets = op.Reshape(r.x(2), [-1, elements, n, steps])
    taps = list[Taps]()
    for i, (read, step) in enumerate(zip(np.indices(window), np.indices(out), strict=True)):
        start = np.add.outer(read.ravel() * dilations[i], step.ravel() * strides[i]) - r.attribute("pads", [0] * n)[i]
        place = op.Add(op.Gather(offsets, np.array(i), axis=2), start.astype(op.dtype.numpy()))
        taps.append(_taps(r, op.Reshape(place, [0, -1]), sizes[i], "linear", "zeros", False))
    samples = Samples(r, op.Reshape(r.x(), [-1, channels // parts, int(np.prod(sizes))]), sizes, taps)

    # Differentiate the convolution of the samples, which a mask multiplies.
    factor: Operand = op.Reshape(r.x(4), [-1, 1, elements * steps]) if r.has(4) else 1.0
    g = op.Reshape(r.g, [-1, group, filters // group, steps])
    weight = op.Reshape(r.x(1), [group, filters // group, -1])
    columns = op.Reshape(
        op.Einsum(weight, g, equation="goc,ngop->ngcp"), [-1, channels // parts, elements * steps]
    )  # cotangent of the masked samples

    def of_weight() -> ir.Value:
        read = op.Reshape(op.Mul(samples.values(), factor), [-1, group, channels // group * elements, steps])
        return reshape_to(op, op.Einsum(g, read, equation="ngop,ngcp->goc"), r.x(1))

    def of_offset() -> ir.Value:
        cotangents = [op.Reshape(s, [-1, elements, 1, steps]) for s in samples.to_coordinates(op.Mul(columns, factor))]
        return reshape_to(op, op.Concat(*cotangents, axis=2), r.x(2))

    return (
        lambda: reshape_to(op, samples.to_pixels(op.Mul(columns, factor)), r.x()),
        of_weight,
        of_offset,
        lambda: op.ReduceSum(r.g, axes=[0, *range(2, r.rank())], keepdims=False),
        lambda: reshape_to(op, op.ReduceSum(op.Mul(columns, samples.values()), axes=[1], keepdims=False), r.x(4)),
    )


# Bins of regions.


@dataclass(frozen=True)
class Bins:
    """One axis of regions: the averaging ``weight`` (regions, bins, pixels), and its derivatives."""

    weight: ir.Value
    of_start: ir.Value
    of_length: ir.Value


def _bins(r: Reverse, start: ir.Value, length: ir.Value, bins: int, size: int) -> Bins:
    """Return the weights that average evenly spaced samples of each bin.

    A sample up to one pixel outside of the image is clamped to its edge; further away it is 0.
    """
    op, ratio = r.op, r.attribute("sampling_ratio", 0)
    taken = op.constant(np.array(ratio, op.dtype.numpy())) if ratio else op.Ceil(op.Div(length, float(bins)))
    number: Operand = np.array(ratio)
    if not ratio:  # without a fixed number of samples, take the largest that a bin of any region needs
        number = op.Cast(op.ReduceMax(op.Max(taken, 0.0), keepdims=False), to=INT64)
    # Positions of the samples, as fractions of a bin and then of the region: (regions, bins, samples).
    steps = op.Cast(op.Range(np.array(0), number, np.array(1)), to=op.dtype)
    fraction = op.Div(op.Add(steps, 0.5), op.Max(taken, 1.0))
    fraction = op.Div(op.Add(fraction, np.arange(bins, dtype=op.dtype.numpy())[:, None]), float(bins))
    place = op.Add(start, op.Mul(fraction, length))
    counted = op.And(op.Not(op.Less(place, -1.0)), op.Not(op.Greater(place, float(size))))
    counted = op.And(counted, op.Less(steps, taken)) if not ratio else counted
    # The weight of each pixel in a sample, by its distance, and its derivative; a clamped sample does not move.
    share = op.Unsqueeze(op.Div(mask(op, counted), op.Max(taken, 1.0)), axes=[-1])
    inside = op.Unsqueeze(op.Clip(place, op.constant(np.zeros((), op.dtype.numpy())), float(size - 1)), axes=[-1])
    apart = op.Sub(inside, np.arange(size, dtype=op.dtype.numpy()))
    weight = op.Mul(share, op.Max(op.Sub(1.0, op.Abs(apart)), 0.0))
    moves = op.And(op.Equal(inside, op.Unsqueeze(place, axes=[-1])), op.Less(op.Abs(apart), 1.0))
    derivative = op.Neg(op.Mul(op.Mul(share, mask(op, moves)), op.Sign(apart)))
    along = op.Mul(derivative, op.Unsqueeze(fraction, axes=[-1]))
    return Bins(*(op.ReduceSum(value, axes=[2], keepdims=False) for value in (weight, derivative, along)))


def _image_of_region(r: Reverse, images: ir.Value) -> ir.Value:
    """Return 1 where a region (column) belongs to an image (row), else 0."""
    op = r.op
    every = op.Range(np.array(0), op.Gather(op.Shape(r.x()), np.array(0)), np.array(1))
    return mask(op, op.Equal(op.Unsqueeze(every, axes=[1]), images))


def _max_roi_pool_rule(r: Reverse) -> Sequence[Thunk]:
    """Divide the cotangent among the equal maxima of a bin; the regions have no gradient, as they are rounded."""
    r.need_opset(12, "its gradient")
    op = r.op
    rows, columns = r.attribute("pooled_shape", [1, 1])
    height, width = spatial_sizes(r, r.x())
    images = op.Cast(op.Gather(r.x(1), np.array(0), axis=1), to=INT64)
    pixels = op.Unsqueeze(op.Gather(r.x(), images, axis=0), axes=[2, 3])
    inside = op.And(
        op.Unsqueeze(_pixels_of_bins(r, 2, rows, height), axes=[1, 3, 5]),
        op.Unsqueeze(_pixels_of_bins(r, 1, columns, width), axes=[1, 2, 4]),
    )
    hits = mask(op, op.And(inside, op.Equal(pixels, op.Unsqueeze(r.y, axes=[4, 5]))))
    share = op.Div(op.Unsqueeze(r.g, axes=[4, 5]), op.Max(op.ReduceSum(hits, axes=[4, 5], keepdims=True), 1.0))
    read = op.ReduceSum(op.Mul(hits, share), axes=[2, 3], keepdims=False)
    return lambda: op.Einsum(read, _image_of_region(r, images), equation="rchw,nr->nchw"), lambda: None


def _pixels_of_bins(r: Reverse, first: int, bins: int, size: int) -> ir.Value:
    """Return a mask (regions, bins, pixels): True if the pixel of this axis is in the bin of the region."""
    op, dtype = r.op, r.op.dtype.numpy()
    scale = r.attribute("spatial_scale", 1.0)
    ends = (op.Mul(op.Gather(r.x(1), np.array([i]), axis=1), scale) for i in (first, first + 2))
    # Round halves away from zero, as C does; ONNX's Round takes the even neighbor.
    start, end = (op.Mul(op.Sign(place), op.Floor(op.Add(op.Abs(place), 0.5))) for place in ends)
    bin_size = op.Div(op.Max(op.Add(op.Sub(end, start), 1.0), 1.0), float(bins))
    low = op.Add(op.Floor(op.Mul(bin_size, np.arange(bins, dtype=dtype))), start)
    high = op.Add(op.Ceil(op.Mul(bin_size, np.arange(1, bins + 1, dtype=dtype))), start)
    pixels = np.arange(size, dtype=dtype)
    return op.And(op.Not(op.Less(pixels, op.Unsqueeze(low, axes=[2]))), op.Less(pixels, op.Unsqueeze(high, axes=[2])))


def _roi_align_rule(r: Reverse) -> Sequence[Thunk | None]:
    """Differentiate bins, averages of samples: a region is the image times one matrix on each side."""
    op = r.op
    scale = r.attribute("spatial_scale", 1.0)
    images = r.x(2)
    if r.attribute("mode", "avg") != "avg":
        r.refuse("the samples that mode='max' compares are not the same on all runtimes")
    r.need_opset(12, "its gradient")
    shifted = r.opset >= 16 and r.attribute("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    x1, y1, x2, y2 = (op.Unsqueeze(op.Mul(op.Gather(r.x(1), np.array([i]), axis=1), scale), axes=[2]) for i in range(4))
    axes = []  # of rows and of columns
    for start, end, size, name in zip((y1, x1), (y2, x2), spatial_sizes(r, r.x()), ("height", "width"), strict=True):
        length = op.Sub(end, start) if shifted else op.Max(op.Sub(end, start), 1.0)
        axes.append(_bins(r, op.Sub(start, 0.5 * shifted), length, r.attribute(f"output_{name}", 1), size))
    rows, columns = axes

    def of_images() -> ir.Value:
        one_hot = _image_of_region(r, images)
        return op.Einsum(r.g, rows.weight, columns.weight, one_hot, equation="rcpq,rph,rqw,nr->nchw")

    def of_regions() -> ir.Value:
        read = op.Gather(r.x(), images, axis=0)
        of_rows = op.Einsum(r.g, columns.weight, read, equation="rcpq,rqw,rchw->rph")
        of_columns = op.Einsum(r.g, rows.weight, read, equation="rcpq,rph,rchw->rqw")
        starts, ends = [], []
        for cotangent, bins, start, end in ((of_columns, columns, x1, x2), (of_rows, rows, y1, y2)):
            of_start, of_length = (
                op.ReduceSum(op.Mul(cotangent, by), axes=[1, 2], keepdims=True)
                for by in (bins.of_start, bins.of_length)
            )
            if not shifted:  # lengths below 1 were raised to 1
                of_length = op.Mul(of_length, mask(op, op.Greater(op.Sub(end, start), 1.0)))
            starts.append(op.Sub(of_start, of_length))
            ends.append(of_length)
        return op.Mul(op.Squeeze(op.Concat(*starts, *ends, axis=1), axes=[2]), scale)

    return of_images, of_regions, None


# Resampling, which is linear in its input.


def _resized_back(r: Reverse) -> ir.Value:
    """Multiply each axis by the transpose of its matrix, which is made at run time by resizing an identity matrix."""
    op = r.op
    cotangent = r.g
    rank = r.rank()
    dtype = r.x().dtype or r.op.dtype
    before, after = dims(r.x()), dims(r.y)
    listed = [axis % rank for axis in r.attribute("axes", range(rank))]
    crops = r.attribute("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    scales = None if r.has(3) else operand(r.node, 2)  # where sizes are given, older opsets have empty scales
    factors = None if scales is None else constant(scales)
    for place, axis in enumerate(listed):
        # Skip axes that are known to be unchanged; with a scale, equal sizes do not imply that.
        if not crops:
            if scales is not None and factors is not None and factors[place] == 1:
                continue
            if scales is None and before and after and before[axis] is not None and before[axis] == after[axis]:
                continue

        # The matrix of the axis: one row per input position, one column per output position.
        size = _length(r, r.x(), axis)
        unit = op.EyeLike(op.ConstantOfShape(op.Concat(size, size, axis=0), value=ir.tensor([0], dtype=dtype)))
        roi: Operand = np.zeros(0, dtype.numpy())
        if crops:
            starts, ends = (op.Slice(r.x(1), [k], [k + 1], [0]) for k in (place, len(listed) + place))
            edges = [np.array([edge], r.x(1).dtype.numpy()) for edge in (0, 1)]  # type: ignore[union-attr]
            roi = op.Concat(edges[0], starts, edges[1], ends, axis=0)
        scaled: Operand = np.zeros(0, np.float32)
        if scales is not None:
            scaled = op.Concat(np.ones(1, np.float32), op.Slice(scales, [place], [place + 1], [0]), axis=0)
        sizes = op.Concat(size, _length(r, r.y, axis), axis=0) if scales is None else None
        omitted: dict[str, Any] = {"axes": None, "extrapolation_value": None, "keep_aspect_ratio_policy": None}
        if r.opset >= 13 and scales is None:
            matrix = r.again(unit, roi if crops else None, None, sizes, **omitted)
        else:
            matrix = r.again(unit, roi, scaled, *([sizes] if scales is None else []), **omitted)

        weights = op.Transpose(matrix, perm=[1, 0])
        last = [*(i for i in range(rank) if i != axis), axis]
        moved = op.MatMul(cotangent if axis == rank - 1 else op.Transpose(cotangent, perm=last), weights)
        cotangent = moved if axis == rank - 1 else op.Transpose(moved, perm=np.argsort(last).tolist())
    return cotangent


def _length(r: Reverse, value: ir.Value, axis: int) -> Operand:
    """Return the size of an axis, as a vector of one element."""
    sizes = dims(value)
    known = None if sizes is None else sizes[axis]
    return np.array([known]) if isinstance(known, int) else length_along(r.op, value, axis)


def _affine_grid_rule(r: Reverse) -> Sequence[Thunk]:
    """Differentiate the grid, which is theta times base coordinates; an AffineGrid of an identity theta gives these."""
    op, rank = r.op, r.rank(r.y)
    n = rank - 2
    unit = np.eye(n, n + 1, dtype=op.dtype.numpy())[None]
    size = op.Concat(np.array([1]), op.Slice(r.x(1), [1], [rank], [0]), axis=0)
    places = op.Reshape(r.again(unit, size), np.array([-1, n]))
    rows = op.Reshape(r.g, np.array([0, -1, n]))
    return [lambda: op.MatMul(op.Transpose(rows, perm=[0, 2, 1]), op.Pad(places, [0, 0, 0, 1], 1.0))]


def _center_crop_pad_rule(r: Reverse) -> Sequence[Thunk]:
    """Apply CenterCropPad with the input's shape to the cotangent, which undoes cropping and padding."""
    axes = r.attribute("axes", None)
    size = r.op.Shape(r.x())
    target = size if axes is None else r.op.Gather(size, np.array(axes, np.int64) % max(r.rank(), 1))
    return [lambda: r.again(r.g, target)]


_GRID = "align_corners mode=bicubic|bilinear|cubic|linear|nearest padding_mode=border|reflection|zeros"
_ALIGN = """
    coordinate_transformation_mode=half_pixel|output_half_pixel mode=avg|max output_height output_width sampling_ratio
    spatial_scale
"""
_RESIZE = """
    antialias axes cubic_coeff_a exclude_outside extrapolation_value keep_aspect_ratio_policy=stretch
    mode=cubic|linear|nearest nearest_mode=ceil|floor|round_prefer_ceil|round_prefer_floor
    coordinate_transformation_mode=align_corners|asymmetric|half_pixel|half_pixel_symmetric|pytorch_half_pixel|tf_crop_and_resize
"""


RULES: dict[str, GradientRule] = {
    "DeformConv": Supported(_deform_conv_rule, "dilations group kernel_shape offset_group pads strides", inputs=5),
    "GridSample": Supported(_grid_sample_rule, _GRID, inputs=2),
    "MaxRoiPool": Supported(_max_roi_pool_rule, "pooled_shape spatial_scale", inputs=2),
    "RoiAlign": Supported(_roi_align_rule, _ALIGN, inputs=3),
    "AffineGrid": Supported(_affine_grid_rule, "align_corners", inputs=2),
    "CenterCropPad": Supported(_center_crop_pad_rule, "axes", inputs=2),
    "Resize": Supported(lambda r: [lambda: _resized_back(r)], _RESIZE, inputs=4),
}

"""Convolutions and their gradients as few large matrix products, for layouts where these are faster.

:func:`faster_convolution`, :func:`input_cotangent` and :func:`kernel_cotangent` choose a form by the layout alone, or
return None where the operator is not slower. :class:`Tuning` holds the bounds.

onnxruntime computes a convolution image by image, each as a product of the kernel with the windows of one image. That
product is slow where an image has few positions. The gradient of the kernel, written as a convolution, is a product
with as few columns as the kernel has elements. The forms here take all images at once:

- *patches*: the elements that windows read, (channels * taps, positions of all images), multiplied with the positions
  of the output. For small images a product with a constant matrix of 0 and 1 reads the patches, and adds their
  cotangents up.
- *pixels*: the same elements with the channels last, one matrix (images * positions, channels) per tap.
- *tiles*: Winograd's algorithm for kernels of 3x3 and 3x3x3.
- *bands*: for a kernel per channel. A window's sum along the last axis is a product with a band matrix that holds the
  kernel's last axis; the windows' other axes are laid side by side.
- *whole matrices*: for a kernel per channel on small images, one matrix per channel from all pixels to all positions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ...graph import GraphBuilder
from .windows import Layout, Windows


@dataclass(frozen=True)
class Tuning:
    """Bounds between forms of equal value, inclusive on the side that the name says.

    ``python benchmarks/convolutions.py --layers`` measured them; benchmarks/convolutions.md holds the timings. After a
    change, run the command and the tests of the forms. Results do not depend on them but for rounding.
    """

    many_taps: int = 49
    """Windows with more elements would need more nodes than they save time."""

    few_channels: int = 8
    """With fewer input channels, slices of the windows cost more than their products (7x7 on 3 channels)."""

    few_positions: int = 16
    """Up to this many positions in an image, products over all images are faster than image by image."""

    many_positions: int = 1024
    """From this many positions on, flipping a kernel, or a product for each of its elements, costs little."""

    many_outputs: int = 64
    """With fewer output channels, adding patches up costs more than their product saves."""

    few_reads: int = 768
    """If it has more elements than this, the constant matrix of 0 and 1 that reads patches is slower than slices."""

    short_line: int = 16
    """Band matrices of longer lines hold too many zeros."""

    small_line: int = 8
    """Lines up to this long are sliced all at once, longer ones copied by Gather: on 8 pixels Gather takes 0.9 to 1.5
    of the time, on 14 to 16 pixels with 32 images 0.6 to 0.9."""

    few_elements: int = 320
    """A channel's whole matrix takes longer to make than it saves if it has more elements than this per image."""

    many_elements: int = 4096
    """A channel's whole matrix takes longer to make than it saves if it has more elements than this."""

    # Winograd's algorithm: python benchmarks/convolutions.py --layers

    long_line: int = 16
    """The sums are products with matrices as long as a line: on longer lines they cost more than they save."""

    few_tiles: int = 32
    """With fewer tiles in all images, reading the sums of the kernel takes longer than the saved products."""

    few_small_images: int = 8
    """With fewer images of 2x2, reading the sums of the kernel takes longer than the saved products."""

    large_kernel: int = 8192
    """With more pairs of an input and an output channel for each tile, reading the sums takes longer than the saved
    products, unless the sums are few compared with the elements of the kernel."""


TUNING = Tuning()


def faster_convolution(op: GraphBuilder, c: Layout, x: ir.Value, kernel: ir.Value) -> ir.Value | None:
    """Return the convolution as matrix products, None where the operator is not slower."""
    if _in_tiles(op, c):
        return convolution_by_tiles(op, c, x, kernel)
    if _in_whole_matrices(c):
        product = op.MatMul(_channels_first(op, c, x), _whole_matrices(op, c, kernel))
        return _images_of(op, c, product, c.steps)
    if c.by_channel and c.sizes[-1] <= TUNING.short_line and _rows(c.windows) <= TUNING.many_taps:
        return _by_bands(op, c, x, kernel)
    if c.groups > 1 or c.taps > TUNING.many_taps or c.images == 1:
        return None
    few = 2 * c.positions <= TUNING.few_positions
    if _reads_few(c):
        return _by_patches(op, c, x, kernel) if few or c.taps > 1 else None
    return _by_patches(op, c, x, kernel) if few and c.inputs * c.taps >= 1024 else None


def kernel_cotangent(op: GraphBuilder, c: Layout, x: ir.Value, g: ir.Value) -> ir.Value | None:
    """Return the gradient of the kernel as matrix products, None where a convolution is not slower."""
    if _in_tiles(op, c):
        return kernel_cotangent_by_tiles(op, c, x, g)
    if _in_whole_matrices(c):
        pixels = matrices_transposed(op, _channels_first(op, c, x))
        products = op.Reshape(op.MatMul(pixels, _channels_first(op, c, g)), [c.inputs, -1])
        return op.Reshape(op.MatMul(products, _elements_of_matrices(op, c).T.copy()), c.kernel_shape)
    if c.by_channel and c.sizes[-1] <= 2 * TUNING.short_line and _rows(c.windows) <= TUNING.many_taps:
        return _kernel_by_bands(op, c, x, g)
    if c.groups > 1 or c.taps > TUNING.many_taps or (c.taps > 1 and c.inputs < TUNING.few_channels):
        return None
    if c.taps == 1 or _reads_few(c) or c.images * c.positions <= 4 * TUNING.few_positions:
        return op.Reshape(op.Gemm(_beside_patches(op, c, g), _patches(op, c, x), transB=1), c.kernel_shape)
    return _kernel_by_pixels(op, c, x, g)


def input_cotangent(op: GraphBuilder, c: Layout, kernel: ir.Value, g: ir.Value) -> ir.Value | None:
    """Return the gradient of the input in a form that is faster than ConvTranspose, or None if there is none."""
    if _in_tiles(op, c):
        return input_cotangent_by_tiles(op, c, kernel, g)
    if _in_whole_matrices(c):
        matrices = matrices_transposed(op, _whole_matrices(op, c, kernel))
        return _images_of(op, c, op.MatMul(_channels_first(op, c, g), matrices), c.sizes)
    if c.by_channel and c.dense and c.sizes[-1] <= TUNING.short_line and _rows(c.windows) <= TUNING.many_taps:
        return _by_bands(op, _turned(c), g, _flipped(op, c, kernel))
    if c.groups > 1:
        return None
    if c.dense and (c.positions >= TUNING.many_positions or (c.taps == 1 and 2 * c.positions > TUNING.few_positions)):
        turned = _turned(c).windows
        if min(turned.begin + turned.end) < 0:
            return None
        back = _flipped(op, c, _swapped(op, kernel, len(c.sizes)))
        return op.Conv(g, back, dilations=turned.dilations, pads=turned.begin + turned.end)
    # Col2Im, which adds patches up, is of opset 18; onnxruntime 1.19 computes it correctly in two dimensions only.
    adds_up = (
        op.opset >= 18 and len(c.sizes) < 3 and c.positions <= TUNING.few_positions and c.outputs >= TUNING.many_outputs
    )
    return _input_by_patches(op, c, kernel, g) if adds_up or _reads_few(c) else None


def _in_tiles(op: GraphBuilder, c: Layout) -> bool:
    """Return True if Winograd's algorithm is faster; the more channels there are, the less its sums cost relatively.

    It is not used for float16, which cannot hold a sum of four large pixels; rounding the sums would double the error.
    """
    axes, w = len(c.sizes), c.windows
    plain = c.groups == 1 and c.dense and set(w.dilations) == {1}
    if not plain or axes < 2 or w.kernel != [3] * axes or op.dtype is ir.DataType.FLOAT16:
        return False
    line = max(*c.sizes, *c.steps)
    tiles = c.images * math.prod(-(-n // 2) for n in c.steps)
    channels = c.inputs * c.outputs
    numbers = count_numbers(c)
    if line > TUNING.long_line or line * (c.inputs + c.outputs) > channels:
        return False
    if 3 * numbers <= c.taps:
        return c.images > 1
    large = (
        tiles >= TUNING.few_small_images
        if numbers <= c.taps
        else tiles >= TUNING.few_tiles and c.positions >= TUNING.few_positions
    )
    return large and channels <= TUNING.large_kernel * tiles


def _rows(w: Windows) -> int:
    """Return the number of rows of a window: the product of its sizes along all axes but the last."""
    return int(np.prod(w.kernel[:-1]))


def _swapped(op: GraphBuilder, value: ir.Value, rank: int) -> ir.Value:
    """Return ``value`` with the first two axes, images and channels, exchanged."""
    swapped = op.Transpose(value, perm=[1, 0, *range(2, rank + 2)])
    return apart_from_products(op, swapped) if rank == 1 else swapped


def _slices(
    op: GraphBuilder, padded: ir.Value, w: Windows, steps: Sequence[int], axes: Sequence[int]
) -> list[ir.Value]:
    """Return, for each element of the windows along ``axes`` (the first spatial axes), the pixels that it reads."""
    found, n = [], len(axes)
    for tap in itertools.product(*(range(k) for k in w.kernel[:n])):
        start = [i * d for i, d in zip(tap, w.dilations, strict=False)]
        stop = [i + (m - 1) * s + 1 for i, m, s in zip(start, steps, w.strides, strict=False)]
        found.append(op.Slice(padded, start, stop, list(axes), w.strides[:n]))
    return found


def _side_by_side(op: GraphBuilder, parts: Sequence[ir.Value], axis: int) -> ir.Value:
    return op.Concat(*parts, axis=axis) if len(parts) > 1 else parts[0]


def _padded(op: GraphBuilder, value: ir.Value, begin: Sequence[int], end: Sequence[int]) -> ir.Value:
    return op.Pad(value, np.array([*begin, *end])) if any([*begin, *end]) else value


def _patches(op: GraphBuilder, c: Layout, x: ir.Value) -> ir.Value:
    """Return the elements that windows read, (channels * taps, positions of all images)."""
    w, n = c.windows, len(c.sizes)
    if _reads_few(c):
        pixels = _images_last(op, c, x)
        read = pixels if _reads_each(c) else op.MatMul(_reads(op, c), op.Reshape(pixels, [c.inputs, -1, c.images]))
        return op.Reshape(read, [c.inputs * c.taps, -1])
    padded = _padded(op, _swapped(op, x, n), [0, 0, *w.begin], [0, 0, *w.end])
    if c.taps == 1 and c.dense:
        return op.Reshape(padded, [c.inputs, -1])
    parts = _slices(op, padded, w, c.steps, range(2, n + 2))
    return op.Reshape(_side_by_side(op, parts, 1), [c.inputs * c.taps, -1])


def _reads_each(c: Layout) -> bool:
    """Return True if each position reads one pixel, and together they read all pixels in order (1x1 kernels)."""
    return c.taps == 1 and c.dense and not any(c.windows.begin + c.windows.end)


def _reads_few(c: Layout) -> bool:
    """Return True if the constant matrix that reads patches is small; then the images become the last axis."""
    return c.taps * c.positions * math.prod(c.sizes) <= TUNING.few_reads


def _reads(op: GraphBuilder, c: Layout) -> np.ndarray:
    """Return the matrix (taps * positions, pixels): 1 where a kernel element at a position reads the pixel, else 0."""
    w = c.windows
    n = len(c.sizes)
    axes = list[np.ndarray]()
    for axis in range(n):  # (elements, positions, pixels) of each axis
        elements = np.arange(w.kernel[axis])[:, None]
        positions = np.arange(c.steps[axis])
        reads = positions * w.strides[axis] - w.begin[axis] + elements * w.dilations[axis]
        axes.append(np.asarray(reads[..., None] == np.arange(c.sizes[axis])))
    whole = reduce(np.multiply.outer, axes).transpose(*range(0, 3 * n, 3), *range(1, 3 * n, 3), *range(2, 3 * n, 3))
    return np.asarray(whole.reshape(c.taps * c.positions, -1), op.dtype.numpy())


def _images_last(op: GraphBuilder, c: Layout, value: ir.Value) -> ir.Value:
    """Return images as (channels * pixels, images)."""
    return op.Transpose(op.Reshape(value, [c.images, -1]), perm=[1, 0])


def _images_first(op: GraphBuilder, c: Layout, rows: ir.Value, sizes: Sequence[int]) -> ir.Value:
    """Return ``rows``, (channels * pixels, images) in any shape, as images."""
    whole = op.Transpose(op.Reshape(rows, [-1, c.images]), perm=[1, 0])
    return op.Reshape(whole, [c.images, -1, *sizes])


def _positions_of(op: GraphBuilder, c: Layout, g: ir.Value) -> ir.Value:
    """Reshape ``g``, values of the output, to (channels, images * positions)."""
    return op.Reshape(_swapped(op, g, len(c.steps)), [c.outputs, -1])


def _beside_patches(op: GraphBuilder, c: Layout, g: ir.Value) -> ir.Value:
    """Reshape ``g``, values of the output, to (channels, positions of all images), in the order of the patches."""
    return op.Reshape(_images_last(op, c, g), [c.outputs, -1]) if _reads_few(c) else _positions_of(op, c, g)


def _images_of(op: GraphBuilder, c: Layout, rows: ir.Value, sizes: Sequence[int]) -> ir.Value:
    """Return ``rows``, (channels, images * pixels), as images."""
    return _swapped(op, op.Reshape(rows, [-1, c.images, *sizes]), len(sizes))


def _by_patches(op: GraphBuilder, c: Layout, x: ir.Value, kernel: ir.Value) -> ir.Value:
    rows = op.Gemm(op.Reshape(kernel, [c.outputs, -1]), _patches(op, c, x))
    return _images_first(op, c, rows, c.steps) if _reads_few(c) else _images_of(op, c, rows, c.steps)


def _kernel_by_pixels(op: GraphBuilder, c: Layout, x: ir.Value, g: ir.Value) -> ir.Value:
    """Multiply the cotangents with the pixels that each element of the kernel reads."""
    w, n = c.windows, len(c.sizes)
    last = op.Transpose(x, perm=[0, *range(2, n + 2), 1])
    padded = _padded(op, last, [0, *w.begin, 0], [0, *w.end, 0])
    pixels = _slices(op, padded, w, c.steps, range(1, n + 1))
    cotangents = _positions_of(op, c, g)
    if c.images * c.positions < TUNING.many_positions:
        together = op.Reshape(_side_by_side(op, pixels, n + 1), [-1, c.taps * c.inputs])
        product = op.Reshape(op.Gemm(cotangents, together), [c.outputs, c.taps, c.inputs])
        return op.Reshape(op.Transpose(product, perm=[0, 2, 1]), c.kernel_shape)
    matrices = [op.Gemm(cotangents, op.Reshape(one, [-1, c.inputs])) for one in pixels]
    return op.Reshape(
        op.Concat(*(op.Reshape(one, [c.outputs, c.inputs, 1]) for one in matrices), axis=2), c.kernel_shape
    )


def _input_by_patches(op: GraphBuilder, c: Layout, kernel: ir.Value, g: ir.Value) -> ir.Value:
    """Compute the cotangents of all patches and add them up; lines are images of height 1, for Col2Im in 2-D."""
    w = c.windows
    cotangents = _beside_patches(op, c, g)
    matrix = op.Reshape(kernel, [c.outputs, -1])
    if _reads_few(c):
        patches = op.Gemm(matrix, cotangents, transA=1)
        if not _reads_each(c):
            patches = op.MatMul(_reads(op, c).T.copy(), op.Reshape(patches, [c.inputs, -1, c.images]))
        return _images_first(op, c, patches, c.sizes)
    patches = op.Gemm(cotangents, matrix, transA=1)
    columns = op.Transpose(op.Reshape(patches, [c.images, -1, c.inputs * c.taps]), perm=[0, 2, 1])
    if _reads_each(c):
        return op.Reshape(columns, [c.images, c.inputs, *c.sizes])
    one = [1] * (2 - len(c.sizes))
    none = [0] * (2 - len(c.sizes))
    settings = {"strides": one + w.strides, "dilations": one + w.dilations, "pads": none + w.begin + none + w.end}
    image = op.Col2Im(columns, np.array(one + c.sizes), np.array(one + w.kernel), **settings)
    return op.Reshape(image, [c.images, c.inputs, *c.sizes])


def _flipped(op: GraphBuilder, c: Layout, kernel: ir.Value) -> ir.Value:
    """Reverse the spatial axes of the kernel."""
    if c.taps == 1:
        return kernel
    n, before = len(c.sizes), np.iinfo(np.int64).min
    return op.Slice(kernel, [-1] * n, [before] * n, list(range(2, n + 2)), [-1] * n)


def _turned(c: Layout) -> Layout:
    """Return the layout of the convolution that maps cotangents of the output to cotangents of the input."""
    w, axes = c.windows, range(len(c.sizes))
    begin = [w.span(i) - 1 - w.begin[i] for i in axes]
    end = [w.span(i) - 1 - w.end[i] for i in axes]
    windows = Windows(w.kernel, w.strides, w.dilations, begin, end)
    return Layout(windows, c.groups, c.images, c.outputs, c.inputs, c.steps, c.sizes)


def _in_whole_matrices(c: Layout) -> bool:
    """Return True if each channel has a kernel of its own, and a small matrix from all pixels to all positions."""
    elements = c.positions * math.prod(c.sizes)
    return (
        c.by_channel
        and c.taps <= TUNING.many_taps
        and elements <= min(TUNING.few_elements * c.images, TUNING.many_elements)
    )


def _channels_first(op: GraphBuilder, c: Layout, value: ir.Value) -> ir.Value:
    """Return images as (channels, images, pixels)."""
    return op.Reshape(_swapped(op, value, len(c.sizes)), [c.inputs, c.images, -1])


def _whole_matrices(op: GraphBuilder, c: Layout, kernel: ir.Value) -> ir.Value:
    """Return the matrix of each channel, (channels, pixels, positions)."""
    rows = op.MatMul(op.Reshape(kernel, [c.inputs, -1]), _elements_of_matrices(op, c))
    return op.Reshape(rows, [c.inputs, -1, c.positions])


def _elements_of_matrices(op: GraphBuilder, c: Layout) -> np.ndarray:
    """Return the matrix (taps, pixels * positions): 1 where a kernel element is in its channel's matrix, else 0."""
    reads = _reads(op, c).reshape(c.taps, c.positions, -1)
    return np.asarray(reads.transpose(0, 2, 1).reshape(c.taps, -1))


def _by_bands(op: GraphBuilder, c: Layout, x: ir.Value, kernel: ir.Value) -> ir.Value:
    """Return the convolution of each channel with its own kernel, by products with band matrices."""
    rows = op.Reshape(kernel, [-1, c.windows.kernel[-1]])
    bands = op.Reshape(op.MatMul(rows, _places(op, c)), [c.inputs, -1, c.steps[-1]])
    product = op.MatMul(_lines(op, c, x), bands)
    return _images_of(op, c, op.Reshape(product, [c.inputs, -1]), c.steps)


def _kernel_by_bands(op: GraphBuilder, c: Layout, x: ir.Value, g: ir.Value) -> ir.Value:
    cotangents = op.Reshape(_positions_of(op, c, g), [c.inputs, -1, c.steps[-1]])
    # The narrower operand is the transposed one, which costs less.
    products = op.MatMul(matrices_transposed(op, cotangents), _lines(op, c, x))
    bands = op.Transpose(op.Reshape(products, [c.inputs, c.steps[-1], -1, c.sizes[-1]]), perm=[0, 2, 3, 1])
    places = _places(op, c)
    return op.Reshape(op.MatMul(op.Reshape(bands, [-1, places.shape[1]]), places.T.copy()), c.kernel_shape)


def _lines(op: GraphBuilder, c: Layout, x: ir.Value) -> ir.Value:
    """Return the lines that windows read, side by side: (channels, images * lines of the output, rows * length)."""
    w, n = c.windows, len(c.sizes)
    swapped, length = _swapped(op, x, n), c.sizes[-1]
    if n == 1:
        return swapped
    padded = _padded(op, swapped, [0, 0, *w.begin[:-1], 0], [0, 0, *w.end[:-1], 0])
    if length > TUNING.small_line:
        # Indices of the padded lines of an image, in the order in which the windows read them.
        axes = range(n - 1)
        sizes = [c.sizes[i] + w.begin[i] + w.end[i] for i in axes]
        places = np.arange(math.prod(sizes)).reshape(sizes)
        for i in axes:
            reads = np.arange(c.steps[i])[:, None] * w.strides[i] + np.arange(w.kernel[i]) * w.dilations[i]
            places = places.take(reads, axis=2 * i)
        places = places.transpose(*range(0, 2 * n - 2, 2), *range(1, 2 * n - 2, 2)).ravel()
        lines = op.Gather(op.Reshape(padded, [c.inputs * c.images, -1, length]), places, axis=1)
    else:
        lines = _side_by_side(op, _slices(op, padded, w, c.steps, range(2, n + 1)), n + 1)
    return op.Reshape(lines, [c.inputs, -1, _rows(w) * length])


def _places(op: GraphBuilder, c: Layout) -> np.ndarray:
    """Return the matrix (elements, length * positions): 1 where a kernel element belongs in a band matrix, else 0."""
    w = c.windows
    length = c.sizes[-1]
    steps = c.steps[-1]
    reads = np.arange(steps) * w.strides[-1] - w.begin[-1] + np.arange(w.kernel[-1])[:, None] * w.dilations[-1]
    places: np.ndarray = (reads[:, None] == np.arange(length)[:, None]).astype(op.dtype.numpy())
    return places.reshape(w.kernel[-1], length * steps)


# Tiles: 3x3 and 3x3x3 kernels by Winograd's algorithm F(2, 3).
#
# Along one axis, two neighboring outputs read four pixels, a *tile*. They take six products, or four products of sums
# of the pixels with sums of the kernel: ``y = A'((G k) * (B' x))``. With two axes, 16 products replace 36. Each entry
# of a tile, for all tiles and summed over the channels, is one matrix product. An axis of two pixels between zeros is a
# tile that takes three products; a single pixel takes one.
#
# The sums are matrix products too, with constant matrices of 0, 1, -1 and 1/2, one for each axis. So a convolution and
# its two gradients have the same parts: :func:`_to_tiles` maps pixels and cotangents to sums, :func:`_kernel_sums` maps
# kernels, matrix products multiply them, and :func:`_from_tiles` applies the transposed sums. Equal nodes are emitted
# once, so the three passes share their sums.
#
# Lavin and Gray, "Fast algorithms for convolutional neural networks", 2016.


class Tile(NamedTuple):
    """The matrices B', G and A of a tile: sums of pixels, sums of the kernel, and the outputs of each product."""

    read: np.ndarray
    kernel: np.ndarray
    written: np.ndarray


FOUR = Tile(
    np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]]),
    np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]),
    np.array([[1, 0], [1, 1], [1, -1], [0, -1]]),
)
"""Two outputs of four pixels by four products."""

PAIR = Tile(
    np.array([[0, 1], [1, 1], [1, 0]]),
    np.array([[0, -1, 1], [0, 1, 0], [1, -1, 0]]),
    np.array([[1, 0], [1, 1], [0, 1]]),
)
"""Two outputs of two pixels between zeros by three products."""

SINGLE = Tile(np.array([[1]]), np.array([[0, 1, 0]]), np.array([[1]]))
"""The output of one pixel between zeros, which reads only the middle element of the kernel."""


def convolution_by_tiles(op: GraphBuilder, c: Layout, x: ir.Value, kernel: ir.Value) -> ir.Value:
    sums = matrices_transposed(op, _kernel_sums(op, c, kernel))
    products = op.MatMul(_to_tiles(op, x, _read_numbers(op, c), c.inputs), sums)
    return _from_tiles(op, products, _written_numbers(op, c), c.images)


def input_cotangent_by_tiles(op: GraphBuilder, c: Layout, kernel: ir.Value, g: ir.Value) -> ir.Value:
    products = op.MatMul(_to_tiles(op, g, _written_numbers(op, c), c.outputs), _kernel_sums(op, c, kernel))
    return _from_tiles(op, products, _read_numbers(op, c), c.images)


def kernel_cotangent_by_tiles(op: GraphBuilder, c: Layout, x: ir.Value, g: ir.Value) -> ir.Value:
    cotangents = matrices_transposed(op, _to_tiles(op, g, _written_numbers(op, c), c.outputs))
    products = op.MatMul(cotangents, _to_tiles(op, x, _read_numbers(op, c), c.inputs))
    matrix = _sums_of_kernels(op, c)
    return op.Reshape(op.Gemm(op.Reshape(products, [len(matrix), -1]), matrix, transA=1), c.kernel_shape)


def matrices_transposed(op: GraphBuilder, matrices: ir.Value) -> ir.Value:
    return apart_from_products(op, op.Transpose(matrices, perm=[0, 2, 1]))


def apart_from_products(op: GraphBuilder, value: ir.Value) -> ir.Value:
    """Keep Transpose apart from MatMul; onnxruntime 1.19 and 1.21 fuse them to an operator without float64."""
    return op.Neg(op.Neg(value)) if op.dtype is ir.DataType.DOUBLE else value


def _kernel_sums(op: GraphBuilder, c: Layout, kernel: ir.Value) -> ir.Value:
    """Return the sums of the kernel, of shape (numbers of a tile, output channels, input channels)."""
    sums = op.Gemm(_sums_of_kernels(op, c), op.Reshape(kernel, [-1, c.taps]), transB=1)
    return op.Reshape(sums, [-1, c.outputs, c.inputs])


def _sums_of_kernels(op: GraphBuilder, c: Layout) -> np.ndarray:
    """Return the matrix that maps a kernel to its sums; the last axis comes first, as in :func:`_to_tiles`."""
    n = len(c.sizes)
    kernels = [_tile(c, i).kernel for i in range(len(c.sizes))]
    whole = reduce(np.kron, kernels).reshape(*map(len, kernels), -1).transpose(*reversed(range(n)), n)
    return np.asarray(whole.reshape(-1, c.taps), op.dtype.numpy())


def _tile(c: Layout, axis: int) -> Tile:
    """Return the tile of an axis; one or two pixels between single zeros are a tile of their own."""
    alone = (c.windows.begin[axis], c.windows.end[axis]) == (1, 1)
    return {1: SINGLE, 2: PAIR}.get(c.sizes[axis], FOUR) if alone else FOUR


def count_numbers(c: Layout) -> int:
    """Return the number of sums in a tile, which is the number of products that a tile takes."""
    return math.prod(len(_tile(c, i).kernel) for i in range(len(c.sizes)))


def _read_numbers(op: GraphBuilder, c: Layout) -> list[np.ndarray]:
    """Return, for each axis, the matrix from pixels to the numbers of all tiles, (numbers, tiles, pixels)."""
    tiles = [_tile(c, i) for i in range(len(c.sizes))]
    starts = [-begin if tile is FOUR else 0 for tile, begin in zip(tiles, c.windows.begin, strict=True)]
    return [_repeated_tile(op, t.read, c.steps[i], c.sizes[i], starts[i]) for i, t in enumerate(tiles)]


def _written_numbers(op: GraphBuilder, c: Layout) -> list[np.ndarray]:
    """Return the matrices from outputs to the numbers of all tiles; their transposes lead from products to outputs."""
    return [_repeated_tile(op, _tile(c, i).written, steps, steps, 0) for i, steps in enumerate(c.steps)]


def _repeated_tile(op: GraphBuilder, tile: np.ndarray, steps: int, size: int, start: int) -> np.ndarray:
    """Return a matrix that repeats that of one tile every two outputs, without the columns of pixels in the padding."""
    tiles = -(-steps // 2)
    places = np.arange(tile.shape[1])
    whole = np.zeros((len(tile), tiles, size), op.dtype.numpy())
    for t in range(tiles):
        reads = start + 2 * t + places
        inside = (reads >= 0) & (reads < size)
        whole[:, t, reads[inside]] = tile[:, inside]
    return whole


def _to_tiles(op: GraphBuilder, images: ir.Value, matrices: Sequence[np.ndarray], channels: int) -> ir.Value:
    """Return the numbers of all tiles, (numbers of a tile, tiles * images, channels).

    Each product puts the last axis after the entries that earlier products made, so no sum is transposed afterwards.
    """
    value, numbers = images, 1
    for one in reversed(matrices):
        size = one.shape[2]
        matrix = one.reshape(-1, size)
        if numbers == 1:
            value = op.Gemm(matrix, op.Reshape(value, [-1, size]), transB=1)
        else:
            value = op.MatMul(matrix, matrices_transposed(op, op.Reshape(value, [numbers, -1, size])))
        numbers *= len(one)
    return op.Reshape(value, [numbers, -1, channels])


def _from_tiles(op: GraphBuilder, numbers: ir.Value, matrices: Sequence[np.ndarray], images: int) -> ir.Value:
    """Map the numbers of all tiles back to images by the transposed matrices: the transpose of :func:`_to_tiles`."""
    value = numbers
    left = math.prod(len(one) for one in matrices)
    for one in matrices:
        left //= len(one)
        matrix = one.reshape(-1, one.shape[2])
        if left == 1:
            value = op.Gemm(op.Reshape(value, [len(matrix), -1]), matrix, transA=1)
        else:
            value = op.MatMul(matrices_transposed(op, op.Reshape(value, [left, len(matrix), -1])), matrix)
    return op.Reshape(value, [images, -1, *(one.shape[2] for one in matrices)])

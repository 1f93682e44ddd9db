"""Convolutions of 3x3 windows by Winograd's algorithm, and the geometry of windows.

Two neighboring outputs of three elements each read four pixels, a *tile*. They take six products, or four products of
sums of the pixels with sums of the kernel: ``y = A'((G k) * (B' x))``. With two axes, 16 products stand for 36. The
products of one number of all tiles, summed over the channels, are one matrix product. An axis of two pixels between
zeros is a tile that takes three products, one of a single pixel takes one.

The sums are matrix products too, by constant matrices of 0, 1, -1 and 1/2, one for each axis. So a convolution and both
of its gradients are: pixels and cotangents to sums (:func:`_to_tiles`), kernels to sums, three products for each of the
numbers, and the transposed sums (:func:`_from_tiles`). Equal nodes are emitted once: all three passes share the sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ..._ir.queries import dims, fixed
from ...graph import GraphBuilder


class Tile(NamedTuple):
    """The sums of the pixels, the sums of the kernel, and what each product adds to the outputs."""

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
"""The output of one pixel between zeros, of which one element of the kernel is read."""


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
    """Return the sums of the kernel, (numbers of a tile, channels written, channels read)."""
    sums = op.Gemm(_sums_of_kernels(op, c), op.Reshape(kernel, [-1, c.taps]), transB=1)
    return op.Reshape(sums, [-1, c.outputs, c.inputs])


def _sums_of_kernels(op: GraphBuilder, c: Layout) -> np.ndarray:
    """Return the matrix from a kernel to its sums, those of the last axis first, as :func:`_to_tiles` has numbers."""
    n, kernels = len(c.sizes), [_tile(c, i).kernel for i in range(len(c.sizes))]
    whole = reduce(np.kron, kernels).reshape(*map(len, kernels), -1).transpose(*reversed(range(n)), n)
    return np.asarray(whole.reshape(-1, c.taps), op.dtype.numpy())


def _tile(c: Layout, axis: int) -> Tile:
    """Return the tiles of an axis; with one pixel or two between one zero on either side it is one tile."""
    alone = (c.windows.begin[axis], c.windows.end[axis]) == (1, 1)
    return {1: SINGLE, 2: PAIR}.get(c.sizes[axis], FOUR) if alone else FOUR


def count_numbers(c: Layout) -> int:
    """Return the numbers of a tile, which are the products that stand for those of its outputs."""
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
    """Repeat the matrix of one tile every two outputs; what lies outside of the axis, in its padding, is zero."""
    tiles, places = -(-steps // 2), np.arange(tile.shape[1])
    whole = np.zeros((len(tile), tiles, size), op.dtype.numpy())
    for t in range(tiles):
        reads = start + 2 * t + places
        inside = (reads >= 0) & (reads < size)
        whole[:, t, reads[inside]] = tile[:, inside]
    return whole


def _to_tiles(op: GraphBuilder, images: ir.Value, matrices: Sequence[np.ndarray], channels: int) -> ir.Value:
    """Return the numbers of all tiles, (numbers of a tile, tiles * images, channels).

    Each product moves the last axis behind the numbers of those before it: no sum is transposed afterwards.
    """
    value, numbers = images, 1
    for one in reversed(matrices):
        value = _sum_pixels(op, one.reshape(-1, one.shape[2]), value, numbers)
        numbers *= len(one)
    return op.Reshape(value, [numbers, -1, channels])


def _sum_pixels(op: GraphBuilder, matrix: np.ndarray, value: ir.Value, numbers: int) -> ir.Value:
    size = matrix.shape[1]
    if numbers == 1:
        return op.Gemm(matrix, op.Reshape(value, [-1, size]), transB=1)
    return op.MatMul(matrix, matrices_transposed(op, op.Reshape(value, [numbers, -1, size])))


def _from_tiles(op: GraphBuilder, numbers: ir.Value, matrices: Sequence[np.ndarray], images: int) -> ir.Value:
    """Add up what each number of a tile stands for: the transpose of :func:`_to_tiles`."""
    value, left = numbers, math.prod(len(one) for one in matrices)
    for one in matrices:
        left //= len(one)
        value = _sum_numbers(op, value, one.reshape(-1, one.shape[2]), left)
    return op.Reshape(value, [images, -1, *(one.shape[2] for one in matrices)])


def _sum_numbers(op: GraphBuilder, value: ir.Value, matrix: np.ndarray, numbers: int) -> ir.Value:
    if numbers == 1:
        return op.Gemm(op.Reshape(value, [len(matrix), -1]), matrix, transA=1)
    return op.MatMul(matrices_transposed(op, op.Reshape(value, [numbers, len(matrix), -1])), matrix)


# Sliding windows: their settings, and the layout of a convolution whose sizes are all known.


@dataclass(frozen=True)
class Windows:
    """The settings of a sliding window, one number per axis; ``begin`` and ``end`` are the padding."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    begin: list[int]
    end: list[int]

    def reach(self, axis: int) -> int:
        """Return the number of elements that a window spans."""
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1

    def covered(self, axis: int, steps: int) -> int:
        """Return the number of elements, padding included, that ``steps`` windows span."""
        return (steps - 1) * self.strides[axis] + self.reach(axis)


@dataclass(frozen=True)
class Layout:
    """The sizes of a convolution: of ``sizes`` pixels to ``steps`` positions of its windows, for each image."""

    windows: Windows
    groups: int
    images: int
    inputs: int
    outputs: int
    sizes: list[int]
    steps: list[int]

    @property
    def taps(self) -> int:
        """The number of elements that a window reads of one channel."""
        return math.prod(self.windows.kernel)

    @property
    def positions(self) -> int:
        """The number of windows in one image."""
        return math.prod(self.steps)

    @property
    def kernel_shape(self) -> list[int]:
        return [self.outputs, self.inputs // self.groups, *self.windows.kernel]

    @property
    def by_channel(self) -> bool:
        """True if each channel has one kernel of its own, as in a depthwise convolution."""
        return self.groups == self.inputs == self.outputs > 1

    @property
    def dense(self) -> bool:
        """True if windows are next to each other: no stride is greater than one."""
        return set(self.windows.strides) == {1}


def layout_of(x: ir.Value, y: ir.Value, windows: Windows, groups: int) -> Layout | None:
    """Return the layout of the convolution that maps ``x`` to ``y``; None if a size is unknown or zero."""
    sizes, steps = dims(x), dims(y)
    if not fixed(sizes) or not fixed(steps) or 0 in [*sizes, *steps]:
        return None
    return Layout(windows, groups, sizes[0], sizes[1], steps[1], sizes[2:], steps[2:])

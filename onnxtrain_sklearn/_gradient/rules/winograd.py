"""Convolutions of 3x3 and 3x3x3 kernels, and their gradients, by Winograd's algorithm F(2, 3).

Along one axis, two neighboring outputs read four pixels, a *tile*. They take six products, or four products of sums of
the pixels with sums of the kernel: ``y = A'((G k) * (B' x))``. With two axes, 16 products replace 36. Each entry of a
tile, for all tiles and summed over the channels, is one matrix product. An axis of two pixels between zeros is a tile
that takes three products; a single pixel takes one.

The sums are matrix products too, with constant matrices of 0, 1, -1 and 1/2, one for each axis. So a convolution and
its two gradients have the same parts: :func:`_to_tiles` maps pixels and cotangents to sums, :func:`_kernel_sums` maps
kernels, matrix products multiply them, and :func:`_from_tiles` applies the transposed sums. Equal nodes are emitted
once, so the three passes share their sums. :mod:`.convolution_products` decides where this form is faster.

Lavin and Gray, "Fast algorithms for convolutional neural networks", 2016.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ...graph import GraphBuilder
from .windows import Layout


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
    """Return the sums of the kernel, (numbers of a tile, channels written, channels read)."""
    sums = op.Gemm(_sums_of_kernels(op, c), op.Reshape(kernel, [-1, c.taps]), transB=1)
    return op.Reshape(sums, [-1, c.outputs, c.inputs])


def _sums_of_kernels(op: GraphBuilder, c: Layout) -> np.ndarray:
    """Return the matrix from a kernel to its sums; the last axis comes first, as in :func:`_to_tiles`."""
    n, kernels = len(c.sizes), [_tile(c, i).kernel for i in range(len(c.sizes))]
    whole = reduce(np.kron, kernels).reshape(*map(len, kernels), -1).transpose(*reversed(range(n)), n)
    return np.asarray(whole.reshape(-1, c.taps), op.dtype.numpy())


def _tile(c: Layout, axis: int) -> Tile:
    """Return the tile of an axis; one or two pixels between single zeros are a tile of their own."""
    alone = (c.windows.begin[axis], c.windows.end[axis]) == (1, 1)
    return {1: SINGLE, 2: PAIR}.get(c.sizes[axis], FOUR) if alone else FOUR


def count_numbers(c: Layout) -> int:
    """Return the number of sums in a tile; each takes one product, in place of the products of the tile's outputs."""
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
    """Repeat the matrix of one tile every two outputs; pixels in the padding, outside the axis, are left out."""
    tiles, places = -(-steps // 2), np.arange(tile.shape[1])
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
    """Add each entry of a tile to the pixels that it comes from: the transpose of :func:`_to_tiles`."""
    value, left = numbers, math.prod(len(one) for one in matrices)
    for one in matrices:
        left //= len(one)
        matrix = one.reshape(-1, one.shape[2])
        if left == 1:
            value = op.Gemm(op.Reshape(value, [len(matrix), -1]), matrix, transA=1)
        else:
            value = op.MatMul(matrices_transposed(op, op.Reshape(value, [left, len(matrix), -1])), matrix)
    return op.Reshape(value, [images, -1, *(one.shape[2] for one in matrices)])

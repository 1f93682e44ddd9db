"""Convolutions with three elements along each axis of the kernel by Winograd's algorithm F(2, 3).

Two neighboring outputs of three elements each read four pixels, a *tile*. They take six products, or four products of
sums of the pixels with sums of the kernel: ``y = A'((G k) * (B' x))``. With two axes, 16 products stand for 36. The
products of one number of all tiles, summed over the channels, are one matrix product.

The sums are matrix products too, by constant matrices of 0, 1, -1 and 1/2, one for each axis. So a convolution and both
of its gradients are: pixels and cotangents to sums (:func:`_to_tiles`), kernels to sums, three products for each of the
numbers, and the transposed sums (:func:`_from_tiles`). Equal nodes are emitted once: all three passes share the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
import onnx_ir as ir

from ...._graph.builder import GraphBuilder
from .windows import Layout

READ = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
"""The sums of the four pixels of a tile."""

KERNEL_SUMS = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
"""The sums of the three elements of a kernel."""

WRITTEN = np.array([[1, 0], [1, 1], [1, -1], [0, -1]])
"""What the four products add to the two outputs of a tile."""


def convolution_by_tiles(op: GraphBuilder, c: Layout, x: ir.Value, kernel: ir.Value) -> ir.Value:
    sums = _matrices_transposed(op, _kernel_sums(op, c, kernel))
    products = op.MatMul(_to_tiles(op, x, _read_numbers(op, c), c.inputs), sums)
    return _from_tiles(op, products, _written_numbers(op, c), c.images)


def input_cotangent_by_tiles(op: GraphBuilder, c: Layout, kernel: ir.Value, g: ir.Value) -> ir.Value:
    products = op.MatMul(_to_tiles(op, g, _written_numbers(op, c), c.outputs), _kernel_sums(op, c, kernel))
    return _from_tiles(op, products, _read_numbers(op, c), c.images)


def kernel_cotangent_by_tiles(op: GraphBuilder, c: Layout, x: ir.Value, g: ir.Value) -> ir.Value:
    cotangents = _matrices_transposed(op, _to_tiles(op, g, _written_numbers(op, c), c.outputs))
    products = op.MatMul(cotangents, _to_tiles(op, x, _read_numbers(op, c), c.inputs))
    sums = op.Reshape(products, [4 ** len(c.sizes), -1])
    return op.Reshape(op.Gemm(sums, _sums_of_kernels(op, c), transA=1), c.kernel_shape)


def _matrices_transposed(op: GraphBuilder, matrices: ir.Value) -> ir.Value:
    """Transpose each matrix; onnxruntime 1.19 and 1.21 fuse Transpose and MatMul to an operator without float64."""
    value = op.Transpose(matrices, perm=[0, 2, 1])
    return op.Neg(op.Neg(value)) if op.dtype is ir.DataType.DOUBLE else value


def _kernel_sums(op: GraphBuilder, c: Layout, kernel: ir.Value) -> ir.Value:
    """Return the sums of the kernel, (numbers of a tile, channels written, channels read)."""
    sums = op.Gemm(_sums_of_kernels(op, c), op.Reshape(kernel, [-1, c.taps]), transB=1)
    return op.Reshape(sums, [-1, c.outputs, c.inputs])


def _sums_of_kernels(op: GraphBuilder, c: Layout) -> np.ndarray:
    return reduce(np.kron, [KERNEL_SUMS] * len(c.sizes)).astype(op.dtype.numpy())


def _read_numbers(op: GraphBuilder, c: Layout) -> list[np.ndarray]:
    """Return, for each axis, the matrix from pixels to the numbers of all tiles, (numbers, tiles, pixels)."""
    return [_repeated_tile(op, READ, c.steps[i], c.sizes[i], -c.windows.begin[i]) for i in range(len(c.sizes))]


def _written_numbers(op: GraphBuilder, c: Layout) -> list[np.ndarray]:
    """Return the matrices from outputs to the numbers of all tiles; their transposes lead from products to outputs."""
    return [_repeated_tile(op, WRITTEN, steps, steps, 0) for steps in c.steps]


def _repeated_tile(op: GraphBuilder, tile: np.ndarray, steps: int, size: int, start: int) -> np.ndarray:
    """Repeat the matrix of one tile every two outputs; what lies outside of the axis, in its padding, is zero."""
    tiles, width = -(-steps // 2), tile.shape[1]
    whole = np.zeros((len(tile), tiles, size), op.dtype.numpy())
    for t in range(tiles):
        first = start + 2 * t
        inside = slice(max(first, 0), max(min(first + width, size), 0))
        whole[:, t, inside] = tile[:, inside.start - first : inside.stop - first]
    return whole


def _to_tiles(op: GraphBuilder, images: ir.Value, matrices: Sequence[np.ndarray], channels: int) -> ir.Value:
    """Return the numbers of all tiles, (numbers of a tile, tiles * images, channels)."""
    n, value = len(matrices), images
    for one in reversed(matrices):  # each product moves the last axis to the front
        value = op.Gemm(one.reshape(-1, one.shape[2]), op.Reshape(value, [-1, one.shape[2]]), transB=1)
    apart = op.Reshape(value, [*(size for one in matrices for size in one.shape[:2]), -1])
    together = op.Transpose(apart, perm=[*range(0, 2 * n, 2), *range(1, 2 * n, 2), 2 * n])
    return op.Reshape(together, [4**n, -1, channels])


def _from_tiles(op: GraphBuilder, numbers: ir.Value, matrices: Sequence[np.ndarray], images: int) -> ir.Value:
    """Add up what each number of a tile stands for: the transpose of :func:`_to_tiles`."""
    n, tiles = len(matrices), [one.shape[1] for one in matrices]
    apart = op.Reshape(numbers, [*[4] * n, *tiles, -1])
    value = op.Transpose(apart, perm=[*(axis for i in range(n) for axis in (i, n + i)), 2 * n])
    for one in matrices:
        rows = op.Reshape(value, [4 * one.shape[1], -1])
        value = op.Gemm(rows, one.reshape(-1, one.shape[2]), transA=1)
    return op.Reshape(value, [images, -1, *(one.shape[2] for one in matrices)])

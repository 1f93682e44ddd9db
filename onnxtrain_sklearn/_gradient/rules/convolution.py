"""Convolutions and pools.

A window reaches ``(kernel - 1) dilation + 1`` elements. The gradient of a convolution's input is a transposed
convolution without pads, whose result is then cut or padded to the input: onnxruntime's own pads of a transposed
convolution are wrong where those of the two ends differ, and windows may leave elements at the end unread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ..nodes import Dims, dims, fixed
from ..reverse import Reverse, Rule, Thunk, count, mask, reshape_to, scatter_flat, shape_of


@dataclass(frozen=True)
class Windows:
    """The settings of a sliding window, one number an axis; ``begin`` and ``end`` are the pads."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    begin: list[int]
    end: list[int]

    def reach(self, axis: int) -> int:
        """Return how many elements a window spans."""
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1

    def covered(self, axis: int, steps: int) -> int:
        """Return how many elements, pads included, this many windows span."""
        return (steps - 1) * self.strides[axis] + self.reach(axis)


def _windows(r: Reverse, kernel: Dims) -> Windows:
    n = len(kernel)
    if not fixed(kernel):
        r.refuse("the size of its kernel is not known")
    sizes = [int(str(k)) for k in kernel]
    strides, dilations = (list(r.attribute(name, [1] * n)) for name in ("strides", "dilations"))
    pads = list(r.attribute("pads", [0] * 2 * n))
    windows = Windows(sizes, strides, dilations, pads[:n], pads[n:])
    mode = r.attribute("auto_pad", "NOTSET")
    if mode == "VALID":
        return Windows(sizes, strides, dilations, [0] * n, [0] * n)
    return windows if mode == "NOTSET" else _same(r, windows, upper=mode == "SAME_UPPER")


def _same(r: Reverse, w: Windows, *, upper: bool) -> Windows:
    shape = (dims(r.x()) or [])[2:]
    if not fixed(shape):
        r.refuse("its auto_pad needs fixed sizes")
    totals = [max(w.covered(i, -(-int(str(size)) // w.strides[i])) - int(str(size)), 0) for i, size in enumerate(shape)]
    small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
    begin, end = (small, large) if upper else (large, small)
    return Windows(w.kernel, w.strides, w.dilations, begin, end)


def _spatial(r: Reverse, value: ir.Value) -> list[int]:
    sizes = (dims(value) or [None] * 3)[2:]
    if not fixed(sizes):
        r.refuse("the sizes of its input, but for the batch, must be fixed")
    return [int(str(size)) for size in sizes]


def _conv(r: Reverse) -> Sequence[Thunk]:
    kernel = r.attribute("kernel_shape", None) or (dims(r.x(1)) or [None] * 3)[2:]
    w = _windows(r, kernel)
    group = r.attribute("group", 1)
    return (
        lambda: _spread(r, r.g, r.x(1), w, group, _spatial(r, r.y), _spatial(r, r.x())),
        lambda: _kernel(r, r.x(), r.g, w, group),
        lambda: r.op.ReduceSum(r.g, axes=[0, *range(2, r.rank())], keepdims=False),
    )


def _spread(
    r: Reverse, g: ir.Value, kernel: ir.Value, w: Windows, group: int, steps: list[int], sizes: list[int]
) -> ir.Value:
    """Add what each window's slope gives to the elements it has read."""
    op, axes = r.op, range(len(sizes))
    rest = [sizes[i] + w.begin[i] + w.end[i] - w.covered(i, steps[i]) for i in axes]
    even = w.begin == w.end and not any(rest)
    full = op.ConvTranspose(
        g,
        kernel,
        strides=w.strides,
        dilations=w.dilations,
        group=group,
        pads=w.begin + w.end if even else None,
    )
    if even:
        return full
    cut = [sizes[i] + w.begin[i] - w.covered(i, steps[i]) for i in axes]
    return op.Pad(full, np.array([0, 0, *[-b for b in w.begin], 0, 0, *cut], np.int64))


def _kernel(r: Reverse, x: ir.Value, g: ir.Value, w: Windows, group: int) -> ir.Value:
    """Correlate input and slopes over the batch: channels take the place of rows, and strides that of dilations."""
    op, spatial = r.op, list(range(2, 2 + len(w.kernel)))
    slopes = op.Transpose(g, perm=[1, 0, *spatial])
    rows = op.Transpose(x, perm=[1, 0, *spatial]) if group == 1 else _grouped(r, x, group)
    result = op.Conv(
        rows, slopes, group=group, strides=w.dilations, dilations=w.strides, pads=w.begin + w.end, kernel_shape=None
    )
    if not _read_entirely(x, g, w):
        result = op.Slice(result, [0] * len(spatial), w.kernel, spatial)
    return op.Transpose(result, perm=[1, 0, *spatial])


def _read_entirely(x: ir.Value, g: ir.Value, w: Windows) -> bool:
    """Whether so few elements at the end are read by no window that the kernel's gradient has no surplus."""
    sizes, steps = (dims(x) or [None])[2:], (dims(g) or [None])[2:]
    if not (sizes and fixed(sizes) and fixed(steps)):
        return False
    rest = [int(str(n)) + w.begin[i] + w.end[i] - w.covered(i, int(str(steps[i]))) for i, n in enumerate(sizes)]
    return all(unread < dilation for unread, dilation in zip(rest, w.dilations, strict=True))


def _grouped(r: Reverse, x: ir.Value, group: int) -> ir.Value:
    """Return ``x`` as (channels of a group, groups times rows, ...)."""
    op, shape = r.op, dims(x) or []
    sizes = [int(str(size)) for size in shape[2:]] if fixed(shape[1:]) else r.refuse("its sizes must be fixed")
    channels, axes = int(str(shape[1])) // group, range(3, 3 + len(sizes))
    parts = op.Transpose(op.Reshape(x, [-1, group, channels, *sizes]), perm=[2, 1, 0, *axes])
    return op.Reshape(parts, [channels, -1, *sizes])


def _conv_transpose(r: Reverse) -> Sequence[Thunk]:
    """The same sums as those of a convolution, with input and output exchanged."""
    kernel = r.attribute("kernel_shape", None) or (dims(r.x(1)) or [None] * 3)[2:]
    if r.attribute("auto_pad", "NOTSET") != "NOTSET" or r.attribute("output_shape", None) is not None:
        r.refuse("auto_pad and output_shape have no gradient; give it pads")
    w, group = _windows(r, kernel), r.attribute("group", 1)
    if w.begin != w.end:
        r.refuse("pads that differ between the ends are not proven")
    settings = {"strides": w.strides, "dilations": w.dilations, "pads": w.begin + w.end, "group": group}
    return (
        lambda: r.op.Conv(r.g, r.x(1), **settings),
        lambda: _kernel(r, r.g, r.x(), w, group),
        lambda: r.op.ReduceSum(r.g, axes=[0, *range(2, r.rank())], keepdims=False),
    )


def _max_pool(r: Reverse) -> Sequence[Thunk]:
    """The kernel tells which elements were the largest; windows that overlap may name one twice."""
    if r.attribute("storage_order", 0):
        r.refuse("storage_order=1 is not covered")
    w = _windows(r, r.attribute("kernel_shape", []))
    places = r.further_output(1, ir.DataType.INT64, r.y.shape)
    overlap = any(w.reach(i) > w.strides[i] for i in range(len(w.kernel)))
    rimless = not any(w.begin + w.end) and not r.attribute("ceil_mode", 0)
    if rimless and not overlap and r.op.dtype is ir.DataType.FLOAT:  # MaxUnpool's kernels are for these
        return [lambda: _unpooled(r, places, w)]
    return [lambda: scatter_flat(r, r.g, places, r.x(), repeats=overlap)]


def _unpooled(r: Reverse, places: ir.Value, w: Windows) -> ir.Value:
    """One operator puts the slopes back, where no place is named twice."""
    shape = shape_of(r.op, r.x())
    return r.op.MaxUnpool(r.g, places, shape, kernel_shape=w.kernel, strides=w.strides)


def _average_pool(r: Reverse) -> Sequence[Thunk]:
    w = _windows(r, r.attribute("kernel_shape", []))
    sizes, steps = _spatial(r, r.x()), _spatial(r, r.y)
    return [lambda: _spread_mean(r, w, sizes, steps)]


def _spread_mean(r: Reverse, w: Windows, sizes: list[int], steps: list[int]) -> ir.Value:
    """Every channel is a row of its own, so that one kernel of ones serves all."""
    op, kind = r.op, r.op.dtype.numpy()
    padded = bool(r.attribute("count_include_pad", 0))
    share = op.Mul(r.g, (1.0 / _counts(w, sizes, steps, padded)).astype(kind))
    rows = op.Reshape(share, [-1, 1, *steps])
    spread = _spread(r, rows, op.constant(np.ones((1, 1, *w.kernel), kind)), w, 1, steps, sizes)
    return reshape_to(op, spread, r.x())


def _counts(w: Windows, sizes: list[int], steps: list[int], padded: bool) -> np.ndarray:
    """Return how many elements each window averages; what ceil_mode lets it reach beyond the pads never counts."""
    total = np.ones(())
    for i, size in enumerate(sizes):
        reads = np.arange(steps[i])[:, None] * w.strides[i] + np.arange(w.kernel[i]) * w.dilations[i] - w.begin[i]
        counted = reads < size + w.end[i] if padded else (reads >= 0) & (reads < size)
        total = np.multiply.outer(total, counted.sum(1).astype(np.float64))
    return total


def _global_average(r: Reverse) -> Sequence[Thunk]:
    op, n, m = r.op, count(r.op, r.x()), count(r.op, r.y)
    share = op.Div(r.g, n / m if isinstance(n, float) and isinstance(m, float) else op.Div(n, m))
    return [lambda: op.Expand(share, shape_of(op, r.x()))]


def _global_max(r: Reverse) -> Sequence[Thunk]:
    """Elements that are equally large share the gradient."""
    op = r.op
    hits = mask(op, op.Equal(r.x(), r.y))
    total = op.ReduceSum(hits, axes=list(range(2, r.rank())), keepdims=True)
    return [lambda: op.Mul(hits, op.Div(r.g, total))]


RULES: dict[str, Rule] = {
    "AveragePool": _average_pool,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "GlobalAveragePool": _global_average,
    "GlobalMaxPool": _global_max,
    "MaxPool": _max_pool,
}

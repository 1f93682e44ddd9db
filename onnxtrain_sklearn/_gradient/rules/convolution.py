"""Gradient rules of convolutions and pooling, for windows of any sizes, strides and paddings.

The gradient with respect to the input of a convolution is a transposed convolution without padding. Its result is
cropped or padded to the shape of the input: windows may leave elements at the end unread, or extend beyond the padding.
The gradient with respect to the kernel correlates input and cotangents. Where all sizes are known,
:mod:`.convolution_products` may replace both, and the convolution itself, by matrix products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from ..._ir.edits import replace_node
from ..._ir.queries import Dims, constant, dims, fixed, kind
from ..._ir.supported import WINDOW, Supported
from ...graph import GraphBuilder, Operand
from ..reverse import GradientRule, Reverse, Thunk, count, mask, reshape_to, scatter_flat, shape_of
from .convolution_products import faster_convolution, input_cotangent, kernel_cotangent
from .windows import Windows, layout_of, spatial_sizes, windows_of


def multiply_convolution(op: GraphBuilder, node: ir.Node) -> None:
    """Replace the Conv node by matrix products if these are faster, in place."""
    r = Reverse(op, node, (), frozenset())
    kernel = dims(r.x(1))
    if not (fixed(dims(r.x())) and fixed(kernel)):
        return
    layout = layout_of(r.x(), r.y, windows_of(r, list(kernel[2:])), r.attribute("group", 1))
    product = None if layout is None else faster_convolution(op, layout, r.x(), r.x(1))
    if layout is not None and product is not None:
        bias = op.Reshape(r.x(2), [-1, *[1] * len(layout.sizes)]) if r.has(2) else None
        replace_node(op, node, [product if bias is None else op.Add(product, bias)])


def _conv_rule(r: Reverse) -> Sequence[Thunk]:
    kernel = r.attribute("kernel_shape", None) or (dims(r.x(1)) or [None] * 3)[2:]
    w = windows_of(r, kernel)
    group = r.attribute("group", 1)

    def of_input() -> ir.Value:
        layout = layout_of(r.x(), r.y, w, group)
        faster = None if layout is None else input_cotangent(r.op, layout, r.x(1), r.g)
        if faster is None and _turns_faster(r, w, group):
            faster = _correlate_back(r, w, group)
        return _scatter_windows(r, r.g, r.x(1), w, group) if faster is None else faster

    return (
        of_input,
        lambda: _kernel_cotangent(r, r.x(), r.g, w, group),
        lambda: r.op.ReduceSum(r.g, axes=[0, *range(2, r.rank())], keepdims=False),
    )


def _turns_faster(r: Reverse, w: Windows, group: int) -> bool:
    """Return True if a convolution with reversed kernels is a faster gradient of the input than ConvTranspose.

    So it is with a kernel for each channel and windows next to each other. Times relative to ConvTranspose, for 16
    images of 24 channels, float32 and one thread (onnxruntime 1.19 and 1.32): 0.06 to 0.5 in one dimension; in two, 0.1
    to 0.4 with a constant kernel, for which onnxruntime has blocked layouts, else 0.6 to 0.9 for 3x3 with padding 1,
    and up to 1.3 for larger kernels.
    """
    sizes = dims(r.x(1))
    if sizes is None or group == 1 or sizes[:2] != [group, 1] or set(w.strides) != {1} or len(w.kernel) > 2:
        return False
    pads = _turned_padding(w)
    is_constant = 1 not in r.wanted and constant(_unreversed(r.x(1)) or r.x(1)) is not None
    small = max(w.kernel) <= 3 and max(pads) <= 1
    return min(pads) >= 0 and (len(w.kernel) == 1 or is_constant or small)


def _turned_padding(w: Windows) -> list[int]:
    """Return the padding, at the begin and the end of each axis, with which windows read the cotangents."""
    axes = range(len(w.kernel))
    return [w.span(i) - 1 - pads[i] for pads in (w.begin, w.end) for i in axes]


def _correlate_back(r: Reverse, w: Windows, group: int) -> ir.Value:
    op, n = r.op, len(w.kernel)
    kernel = _unreversed(r.x(1))
    if kernel is None:
        ends = [np.iinfo(np.int64).min] * n
        kernel = op.Slice(r.x(1), [-1] * n, ends, list(range(2, n + 2)), [-1] * n)
    return op.Conv(r.g, kernel, dilations=w.dilations, pads=_turned_padding(w), group=group)


def _unreversed(kernel: ir.Value) -> ir.Value | None:
    """Return the kernel of which ``kernel`` is the reverse, as in the gradient of a gradient; None if it is not one."""
    node = kernel.producer()
    if node is None or kind(node) != "Slice" or len(node.inputs) < 5:
        return None
    parts = [None if x is None else constant(x) for x in node.inputs[1:5]]
    n = (len(dims(node.inputs[0]) or ())) - 2
    whole = ([-1] * n, [np.iinfo(np.int64).min] * n, list(range(2, n + 2)), [-1] * n)
    same = all(part is not None and part.tolist() == wanted for part, wanted in zip(parts, whole, strict=True))
    return node.inputs[0] if same else None


def _kernel_cotangent(r: Reverse, x: ir.Value, g: ir.Value, w: Windows, group: int) -> ir.Value:
    layout = layout_of(x, g, w, group)
    faster = None if layout is None else kernel_cotangent(r.op, layout, x, g)
    return _correlate_with_cotangents(r, x, g, w, group) if faster is None else faster


def _scatter_windows(r: Reverse, g: ir.Value, kernel: ir.Value, w: Windows, group: int) -> ir.Value:
    """Add each window's cotangent, times the kernel, to the elements that the window read."""
    op, unread = r.op, _unread_sizes(r.x(), r.y, w)
    # If the padding is equal on both sides and windows read every element, ConvTranspose itself crops the result; else
    # Pad crops and pads it.
    even = w.begin == w.end and unread is not None and not any(unread)
    pads = w.begin + w.end if even else None
    full = op.ConvTranspose(g, kernel, strides=w.strides, dilations=w.dilations, group=group, pads=pads)
    if even:
        return full
    start = np.array([0, 0, *[-n for n in w.begin]])  # negative pads crop
    if unread is not None:
        return op.Pad(full, np.append(start, [0, 0, *[n - end for n, end in zip(unread, w.end, strict=True)]]))
    missing = op.Sub(_spatial_shape(op, r.x()), op.Add(_spatial_shape(op, full), np.array([-n for n in w.begin])))
    return op.Pad(full, op.Concat(np.append(start, [0, 0]), missing, axis=0))


def _unread_sizes(x: ir.Value, y: ir.Value, w: Windows) -> list[int] | None:
    """Return the number of unread elements at the end of each axis, negative if a window extends beyond it.

    None if it is unknown.
    """
    sizes, steps = (dims(x) or [])[2:], (dims(y) or [])[2:]
    if sizes and steps and fixed(sizes) and fixed(steps):
        covered = [w.covered(i, n) for i, n in enumerate(steps)]
        return [n + w.begin[i] + w.end[i] - covered[i] for i, n in enumerate(sizes)]
    return [0] * len(w.strides) if set(w.strides) == {1} else None


def _spatial_shape(op: GraphBuilder, value: ir.Value) -> Operand:
    """Return the sizes of the spatial axes, a constant if they are fixed."""
    sizes = (dims(value) or [None])[2:]
    if sizes and fixed(sizes):
        return np.array(sizes, np.int64)
    return op.Slice(op.Shape(value), [2], [np.iinfo(np.int64).max], [0])


def _shape_with_lead(op: GraphBuilder, lead: list[int], sizes: Operand) -> Operand:
    return np.append(lead, sizes) if isinstance(sizes, np.ndarray) else op.Concat(np.array(lead), sizes, axis=0)


def _correlate_with_cotangents(r: Reverse, x: ir.Value, g: ir.Value, w: Windows, group: int) -> ir.Value:
    """Correlate input and cotangents over the batch: swap channels with the batch, and strides with dilations."""
    op, spatial = r.op, list(range(2, 2 + len(w.kernel)))
    cotangents = op.Transpose(g, perm=[1, 0, *spatial])
    if group == 1:
        rows = op.Transpose(x, perm=[1, 0, *spatial])
    else:  # (channels per group, groups * batch, ...)
        channels = (dims(r.x(1)) or [None, None])[1]
        sizes = _spatial_shape(op, x)
        if not isinstance(channels, int):
            r.refuse("the number of channels of its kernel is not known")
        parts = op.Reshape(x, _shape_with_lead(op, [0, group, channels], sizes))
        parts = op.Transpose(parts, perm=[2, 1, 0, *range(3, 1 + r.rank())])
        rows = op.Reshape(parts, _shape_with_lead(op, [channels, -1], sizes))
    unread, end = _unread_sizes(x, g, w), w.end
    if unread is not None:  # leave out padding that no window reads
        end = [max(pad - max(n, 0), 0) for pad, n in zip(w.end, unread, strict=True)]
        unread = [n - pad + left for n, pad, left in zip(unread, w.end, end, strict=True)]
    # The cotangents act as the kernel: its stride is the dilation of the windows, and its dilation is their stride.
    result = op.Conv(
        rows, cotangents, group=group, strides=w.dilations, dilations=w.strides, pads=w.begin + end, kernel_shape=None
    )
    if unread is None or any(n >= dilation for n, dilation in zip(unread, w.dilations, strict=True)):
        result = op.Slice(result, [0] * len(spatial), w.kernel, spatial)  # drop positions beyond the kernel's size
    return op.Transpose(result, perm=[1, 0, *spatial])


def _conv_transpose_rule(r: Reverse) -> Sequence[Thunk]:
    """Apply the rule of Conv with input and output exchanged."""
    kernel = r.attribute("kernel_shape", None) or (dims(r.x(1)) or [None] * 3)[2:]
    w = _transposed_windows(r, kernel)
    group = r.attribute("group", 1)
    settings = {"strides": w.strides, "dilations": w.dilations, "pads": w.begin + w.end, "group": group}
    return (
        lambda: r.op.Conv(r.g, r.x(1), **settings),
        lambda: _kernel_cotangent(r, r.g, r.x(), w, group),
        lambda: r.op.ReduceSum(r.g, axes=[0, *range(2, r.rank())], keepdims=False),
    )


def _transposed_windows(r: Reverse, kernel: Dims) -> Windows:
    """Return the windows with the padding that gives the output its size; an odd element goes to the beginning.

    With ``auto_pad="SAME_UPPER"`` it goes to the end.
    """
    n = len(kernel)
    mode = r.attribute("auto_pad", "NOTSET")
    more = list(r.attribute("output_padding", [0] * n))
    if any(size >= stride for size, stride in zip(more, r.attribute("strides", [1] * n), strict=True)):
        r.refuse("the output_padding is not less than the stride, and runtimes disagree on what it means then")
    w = windows_of(r, kernel, mode if mode == "VALID" else "NOTSET")
    given = r.attribute("output_shape", None)
    if given is None and mode in ("NOTSET", "VALID"):
        return w
    steps, sizes = spatial_sizes(r, r.x()), spatial_sizes(r, r.y)
    totals = [w.covered(i, steps[i]) + more[i] - sizes[i] for i in range(n)]
    if min(totals) < 0:
        r.refuse("its output is larger than what its windows span")
    return w.with_total_padding(totals, upper=mode == "SAME_UPPER")


def _pooling_windows(r: Reverse) -> Windows:
    return windows_of(r, r.attribute("kernel_shape", []))


def _max_pool_rule(r: Reverse) -> Sequence[Thunk]:
    """Send each cotangent to its window's maximum, whose index MaxPool returns; overlapping windows may share one."""
    w = _pooling_windows(r)
    if r.attribute("storage_order", 0):
        # The node's own indices are column-major; a second MaxPool returns row-major ones.
        settings = {name: a.value for name, a in r.node.attributes.items() if name != "storage_order"}
        places = r.op.emit("MaxPool", r.x(), outputs=2, **settings)[1]
    else:
        places = r.further_output(1, ir.DataType.INT64, r.y.shape)
    overlap = any(w.span(i) > w.strides[i] for i in range(len(w.kernel)))
    padded = any(w.begin + w.end) or r.attribute("ceil_mode", 0)
    # MaxUnpool takes no repeated index, and its kernels support neither padding nor types other than float32.
    if not padded and not overlap and r.op.dtype is ir.DataType.FLOAT:
        settings = {"kernel_shape": w.kernel, "strides": w.strides}
        return [lambda: r.op.MaxUnpool(r.g, places, shape_of(r.op, r.x()), **settings)]
    return [lambda: scatter_flat(r, r.g, places, r.x(), repeats=overlap)]


def _max_unpool_rule(r: Reverse) -> Sequence[Thunk | None]:
    """Gather the cotangent at the indices, which refer to an output of the shape that the windows give."""
    w = _pooling_windows(r)
    if r.has(2):
        # The gradient of a MaxPool passes output_shape as a computed value, though all sizes but the batch are fixed.
        steps = spatial_sizes(r, r.x())
        sizes = (dims(r.y) or [None])[2:]
        if constant(r.x(2)) is not None or not fixed(sizes) or not sizes:
            sizes = r.constant(2, "its output_shape")[2:].tolist()
        if any(w.covered(i, n) - w.begin[i] - w.end[i] != sizes[i] for i, n in enumerate(steps)):
            r.refuse("with an output_shape other than that of its windows its places are not defined")
    return [lambda: r.op.Gather(r.op.Reshape(r.g, [-1]), r.x(1))]


def _average_pool_rule(r: Reverse) -> Sequence[Thunk]:
    w = _pooling_windows(r)
    padded = bool(r.attribute("count_include_pad", 0))
    if not r.attribute("ceil_mode", 0) and (padded or not any(w.begin + w.end)):
        share: Operand = 1 / float(np.prod(w.kernel))
    else:
        share = (1 / _counts(w, spatial_sizes(r, r.x()), spatial_sizes(r, r.y), padded)).astype(r.op.dtype.numpy())
    return [lambda: _spread_evenly(r, r.op.Mul(r.g, share), w)]


def _counts(w: Windows, sizes: list[int], steps: list[int], padded: bool) -> np.ndarray:
    """Return the number of elements that each window averages, without those beyond the padding (``ceil_mode``)."""
    total = np.ones(())
    for i, size in enumerate(sizes):
        reads = np.arange(steps[i])[:, None] * w.strides[i] + np.arange(w.kernel[i]) * w.dilations[i] - w.begin[i]
        counted = reads < size + w.end[i] if padded else (reads >= 0) & (reads < size)
        total = np.multiply.outer(total, counted.sum(1).astype(np.float64))
    return total


def _spread_evenly(r: Reverse, share: ir.Value, w: Windows) -> ir.Value:
    """Add ``share`` to every element of its window; channels become rows, so a single kernel of ones suffices."""
    op = r.op
    rows = op.Reshape(share, _shape_with_lead(op, [-1, 1], _spatial_shape(op, r.y)))
    ones = op.constant(np.ones((1, 1, *w.kernel), op.dtype.numpy()))
    return reshape_to(op, _scatter_windows(r, rows, ones, w, 1), r.x())


def _lp_cotangent(r: Reverse, spread: Callable[[ir.Value], ir.Value]) -> ir.Value:
    """Return ``g sign(x) (|x| / y)**(p - 1)``; where the norm is 0, the gradient is 0."""
    op, p = r.op, r.attribute("p", 2)
    if p == 1:
        return op.Mul(op.Sign(r.x()), spread(r.g))
    norm = op.Where(op.Equal(r.y, 0.0), 1.0, r.y)
    share = spread(op.Div(r.g, norm if p == 2 else op.Pow(norm, float(p - 1))))
    return op.Mul(share, r.x() if p == 2 else op.Mul(op.Sign(r.x()), op.Pow(op.Abs(r.x()), float(p - 1))))


def _col2im_rule(r: Reverse) -> Sequence[Thunk | None]:
    """Return the im2col of the cotangent: a convolution with a one-hot kernel for each element of a block."""
    op = r.op
    block = [int(size) for size in r.constant(2, "the shape of its blocks")]
    w = windows_of(r, list(block))
    elements = int(np.prod(block))
    kernel = np.eye(elements, dtype=op.dtype.numpy()).reshape(elements, 1, *block)
    image = op.Reshape(r.g, op.Concat(np.array([-1, 1]), r.x(1), axis=0))
    blocks = op.Conv(image, kernel, strides=w.strides, dilations=w.dilations, pads=w.begin + w.end)
    return [lambda: reshape_to(op, blocks, r.x())]


def _global_average_rule(r: Reverse) -> Sequence[Thunk]:
    op, n, m = r.op, count(r.op, r.x()), count(r.op, r.y)
    share = op.Div(r.g, n / m if isinstance(n, float) and isinstance(m, float) else op.Div(n, m))
    return [lambda: op.Expand(share, shape_of(op, r.x()))]


def _global_max_rule(r: Reverse) -> Sequence[Thunk]:
    """Divide the cotangent equally among equal maxima."""
    op = r.op
    hits = mask(op, op.Equal(r.x(), r.y))
    total = op.ReduceSum(hits, axes=list(range(2, r.rank())), keepdims=True)
    return [lambda: op.Mul(hits, op.Div(r.g, total))]


RULES: dict[str, GradientRule] = {
    "AveragePool": Supported(_average_pool_rule, f"ceil_mode count_include_pad {WINDOW}"),
    "Col2Im": Supported(_col2im_rule, "dilations pads strides", inputs=3),
    "Conv": Supported(_conv_rule, f"group {WINDOW}", inputs=3),
    "ConvTranspose": Supported(_conv_transpose_rule, f"group output_padding output_shape {WINDOW}", inputs=3),
    "GlobalAveragePool": Supported(_global_average_rule),
    "GlobalLpPool": Supported(lambda r: [lambda: _lp_cotangent(r, lambda share: share)], "p"),
    "GlobalMaxPool": Supported(_global_max_rule),
    "LpPool": Supported(
        lambda r: [lambda: _lp_cotangent(r, lambda share: _spread_evenly(r, share, _pooling_windows(r)))],
        f"ceil_mode p {WINDOW}",
    ),
    "MaxPool": Supported(_max_pool_rule, f"ceil_mode storage_order {WINDOW}", outputs=2),
    "MaxUnpool": Supported(_max_unpool_rule, "kernel_shape pads strides", inputs=3),
}

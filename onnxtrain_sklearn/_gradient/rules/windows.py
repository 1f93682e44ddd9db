"""Sliding windows of convolutions and pooling: their settings, and the layout of a convolution of known sizes.

A window spans ``(kernel - 1) dilation + 1`` elements along an axis. :func:`windows_of` reads the settings of a node and
resolves ``auto_pad`` to explicit padding. :class:`Layout` adds the sizes of the operands; the faster forms of a
convolution are chosen by it alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ..._ir.queries import Dims, dims, fixed
from ..reverse import Reverse


@dataclass(frozen=True)
class Windows:
    """The settings of a sliding window, one number per axis; ``begin`` and ``end`` are the padding."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    begin: list[int]
    end: list[int]

    def span(self, axis: int) -> int:
        """Return the number of elements that a window spans."""
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1

    def covered(self, axis: int, steps: int) -> int:
        """Return the number of elements, padding included, that ``steps`` windows span."""
        return (steps - 1) * self.strides[axis] + self.span(axis)

    def padded_to_same(self, sizes: Sequence[int], *, upper: bool) -> Windows:
        """Return the windows with the least padding for ``ceil(size / stride)`` outputs per axis (auto_pad SAME)."""
        steps = [-(-size // stride) for size, stride in zip(sizes, self.strides, strict=True)]
        totals = [max(self.covered(i, steps[i]) - size, 0) for i, size in enumerate(sizes)]
        return self.with_total_padding(totals, upper=upper)

    def with_total_padding(self, totals: list[int], *, upper: bool) -> Windows:
        """Return the windows with this total padding; an odd element goes to the end (``upper``) or to the start."""
        small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
        begin, end = (small, large) if upper else (large, small)
        return Windows(self.kernel, self.strides, self.dilations, begin, end)


def windows_of(r: Reverse, kernel: Dims, mode: str | None = None) -> Windows:
    """Return the windows of a node with this kernel size; ``mode`` replaces its ``auto_pad``."""
    n = len(kernel)
    if not fixed(kernel):
        r.refuse("the size of its kernel is not known")
    sizes = list(kernel)
    strides, dilations = (list(r.attribute(name, [1] * n)) for name in ("strides", "dilations"))
    pads = list(r.attribute("pads", [0] * 2 * n))
    mode = mode or r.attribute("auto_pad", "NOTSET")
    if mode == "VALID":
        return Windows(sizes, strides, dilations, [0] * n, [0] * n)
    windows = Windows(sizes, strides, dilations, pads[:n], pads[n:])
    if mode == "NOTSET":
        return windows
    shape: Dims = (dims(r.x()) or [None] * (2 + n))[2:]
    if not fixed(shape):
        r.refuse("its auto_pad needs fixed sizes")
    return windows.padded_to_same(shape, upper=mode == "SAME_UPPER")


def spatial_sizes(r: Reverse, value: ir.Value) -> list[int]:
    """Return the fixed sizes of the spatial axes; refuse if they are unknown."""
    sizes = (dims(value) or [None] * 3)[2:]
    if not fixed(sizes):
        r.refuse("the sizes of its input, but for the batch, must be fixed")
    return list(sizes)


@dataclass(frozen=True)
class Layout:
    """The sizes of a convolution.

    Attributes
    ----------
    windows : Windows
    groups, images, inputs, outputs : int
        Numbers of groups, of images in the batch, and of input and output channels.
    sizes, steps : list of int
        Pixels of an image, and positions of the windows, along each axis.
    """

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

"""Sliding windows: their settings, and the layout of a convolution whose sizes are all known."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx_ir as ir

from ...._graph.queries import dims, fixed


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
        """Whether each channel has one kernel of its own, as in a depthwise convolution."""
        return self.groups == self.inputs == self.outputs > 1

    @property
    def dense(self) -> bool:
        """Whether windows are next to each other: no stride is greater than one."""
        return set(self.windows.strides) == {1}


def layout_of(x: ir.Value, y: ir.Value, windows: Windows, groups: int) -> Layout | None:
    """Return the layout of the convolution that maps ``x`` to ``y``; None if a size is unknown or zero."""
    sizes, steps = dims(x), dims(y)
    if not fixed(sizes) or not fixed(steps) or 0 in [*sizes, *steps]:
        return None
    return Layout(windows, groups, sizes[0], sizes[1], steps[1], sizes[2:], steps[2:])

"""Values of a graph as views into memory: shapes and strides instead of copies.

A :class:`Buffer` is memory of the compiled function, a :class:`View` names some of its elements. Transposes, slices,
broadcasts and most reshapes of a graph only make another view; no instruction is written for them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

Shape = tuple[int, ...]


@dataclass(eq=False)
class Buffer:
    """Memory for some float32 numbers.

    Attributes
    ----------
    size : int
        How many.
    pointer : str
        The LLVM value with its address, once the function's text has it.
    number : float or None
        The number, if this is a constant of a single one: it is written into instructions, and never read from memory.
    """

    size: int
    pointer: str = ""
    number: float | None = None


class View(NamedTuple):
    """Some elements of a buffer: the one with indices ``i`` is at ``offset`` plus the sum of ``i * strides``."""

    buffer: Buffer
    shape: Shape
    strides: Shape
    offset: int = 0

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """True if the elements follow each other in the order of their indices."""
        usual = strides_of(self.shape)
        return all(a == b or n == 1 for a, b, n in zip(self.strides, usual, self.shape, strict=True))

    def broadcast(self, shape: Shape) -> View:
        """Return the view with axes repeated, as ONNX broadcasts operands."""
        more = len(shape) - len(self.shape)
        own = zip(self.strides, self.shape, strict=True)
        return self._replace(shape=shape, strides=(*[0] * more, *(0 if n == 1 else step for step, n in own)))

    def permuted(self, order: Sequence[int]) -> View:
        """Return the view with its axes in another order."""
        return self._replace(shape=tuple(self.shape[i] for i in order), strides=tuple(self.strides[i] for i in order))

    def part(self, axis: int, start: int, length: int, step: int = 1) -> View:
        """Return ``length`` indices of an axis from ``start`` on, one in every ``step``."""
        shape = (*self.shape[:axis], length, *self.shape[axis + 1 :])
        strides = (*self.strides[:axis], step * self.strides[axis], *self.strides[axis + 1 :])
        return self._replace(shape=shape, strides=strides, offset=self.offset + start * self.strides[axis])

    def with_axis(self, axis: int) -> View:
        """Return the view with one more axis, of size 1."""
        shape, strides = ((*one[:axis], n, *one[axis:]) for one, n in ((self.shape, 1), (self.strides, 0)))
        return self._replace(shape=shape, strides=strides)

    def without(self, axis: int) -> View:
        """Return the view without an axis of size 1."""
        shape, strides = ((*one[:axis], *one[axis + 1 :]) for one in (self.shape, self.strides))
        return self._replace(shape=shape, strides=strides)

    def without_repeats(self) -> View:
        """Return a view of each element once, without the axes of stride 0."""
        kept = [i for i, (n, step) in enumerate(zip(self.shape, self.strides, strict=True)) if n > 1 and step]
        once = self._replace(shape=tuple(self.shape[i] for i in kept), strides=tuple(self.strides[i] for i in kept))
        shape, (strides,) = merged_axes(once.shape, [once.strides])
        return once._replace(shape=shape, strides=strides)

    def reshaped(self, shape: Shape) -> View | None:
        """Return the same elements in another shape; None if that takes a copy."""
        return self._replace(shape=shape, strides=strides_of(shape)) if self.is_contiguous else None


def strides_of(shape: Shape) -> Shape:
    """Return the strides of contiguous elements."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def new_view(shape: Shape) -> View:
    """Return a view of a whole new buffer."""
    return View(Buffer(math.prod(shape)), shape, strides_of(shape))


def merged_axes(shape: Shape, strides: Sequence[Shape]) -> tuple[Shape, list[Shape]]:
    """Merge axes that all operands traverse as one; return the shape of the rest and the strides of each operand.

    Fewer axes mean fewer nested loops, and longer innermost ones.
    """
    axes: list[tuple[int, Shape]] = []
    for i, n in enumerate(shape):
        steps = tuple(one[i] for one in strides)
        if n == 1:
            continue
        if axes and all(outer == inner * n for outer, inner in zip(axes[-1][1], steps, strict=True)):
            axes[-1] = axes[-1][0] * n, steps
        else:
            axes.append((n, steps))
    return tuple(n for n, _ in axes), [tuple(steps[k] for _, steps in axes) for k in range(len(strides))]

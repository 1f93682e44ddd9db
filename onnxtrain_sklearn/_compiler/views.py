"""Values of a graph as views into memory, and the parts of the loops over them.

A :class:`Buffer` is memory of the compiled function, a :class:`View` names some of its elements by shape and strides.
Transposes, slices, broadcasts and most reshapes of a graph only make another view; no instruction is written for them.
Stages loop over views: in vectors along an axis (:func:`chunks`), at a :class:`Placement` for each level of nesting, up
to a :class:`RowBound`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .llvm_text import Index, Text, literal

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


# Loops over views.

LANES = 16
"""Numbers that an instruction computes: one register of AVX-512, two of AVX2, four of NEON."""


def chunks(length: int, width: int) -> list[tuple[int, int, int]]:
    """Cut an axis into vectors of ``width`` and a narrower rest: first index, number of vectors, width of each."""
    whole, rest = divmod(length, width)
    parts = [(0, whole, width)] if whole else []
    return parts + ([(whole * width, 1, rest)] if rest else [])


class Placement(NamedTuple):
    """Position in a view within nested loops: where it starts, and its strides along the axes without a loop yet."""

    start: Index
    steps: Shape

    @property
    def step(self) -> int:
        """The step along the last axis."""
        return self.steps[-1] if self.steps else 0

    def inner(self, text: Text, index: Index) -> Placement:
        """Return the position at an index of the first axis."""
        return Placement(text.add(self.start, text.multiply(index, self.steps[0])), self.steps[1:])

    def at(self, text: Text, index: Index) -> Index:
        """Add the position at an index of the last axis."""
        return text.add(self.start, text.multiply(index, self.step))


@dataclass(eq=False)
class RowBound:
    """The number of rows that a run computes, counted from the first, as a value of the compiled function.

    Attributes
    ----------
    batch_size : int
        All rows.
    count : str
        The LLVM value, once the text has it: all rows, or a multiple of ``LANES``, so that no register is cut.
    """

    batch_size: int
    count: str = ""

    def of(self, text: Text, total: int) -> Index:
        """Add the number of indices, of ``total``, that belong to the rows; each row has as many."""
        return text.multiply(self.count, total // self.batch_size)

    def of_vectors(self, text: Text, total: int, width: int) -> Index:
        """Add how many of ``total`` elements belong to the rows and fill vectors of ``width``, a power of 2."""
        return text.value(f"and i64 {self.of(text, total)}, -{width}")

    def last(self, text: Text, value: str, otherwise: float) -> str:
        """Add a number of the last rows, or ``otherwise`` if they are not computed."""
        whole = text.value(f"icmp eq i64 {self.count}, {self.batch_size}")
        return text.value(f"select i1 {whole}, float {value}, float {literal(otherwise, 1)}")


def stop_of(bound: RowBound | None, text: Text, total: int) -> Index:
    """Return the end of a loop over ``total`` indices: if it is bounded, after the rows that are computed."""
    return total if bound is None else bound.of(text, total)


def clamped(text: Text, index: Index, low: int, high: int) -> Index:
    """Add an index clamped to the range from ``low`` to ``high``."""
    for name, limit in (("smax", low), ("smin", high)):
        text.declare(f"declare i64 @llvm.{name}.i64(i64, i64)")
        index = text.value(f"call i64 @llvm.{name}.i64(i64 {index}, i64 {limit})")
    return index

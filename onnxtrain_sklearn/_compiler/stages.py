"""Stages of a compiled function: loops over strided views, and the bound on their rows.

A stage reads and writes views. Elementwise operators over the same shape share one stage: what only they read stays in
registers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from .elementwise import EmitElements
from .llvm_text import Index, Text, literal

LANES = 16
"""Numbers that an instruction computes: one register of AVX-512, two of AVX2, four of NEON."""


class Stage(Protocol):
    """Loops that read some views and write others."""

    def read(self) -> Sequence[View]:
        """Return the views that it reads."""
        ...

    def written(self) -> Sequence[View]:
        """Return the views that it writes."""
        ...

    def write(self, text: Text) -> None:
        """Add the loops to a text."""
        ...


Operation: TypeAlias = "tuple[EmitElements, Sequence[View], View]"


@dataclass(eq=False)
class Elementwise:
    """Operations over one shape, each on its operands and with its result, all of that shape.

    ``kept`` are the results that are read elsewhere. ``bound``: the rows of the first axis that are computed.
    """

    shape: Shape
    operations: list[Operation] = field(default_factory=list)
    kept: set[View] = field(default_factory=set)
    bound: RowBound | None = None

    def results(self) -> set[View]:
        """Return what it computes."""
        return {result for _, _, result in self.operations}

    def read(self) -> Sequence[View]:
        computed = self.results()
        every = (view for _, operands, _ in self.operations for view in operands)
        return list(dict.fromkeys(view for view in every if view not in computed))

    def written(self) -> Sequence[View]:
        return [result for _, _, result in self.operations if result in self.kept]

    def write(self, text: Text) -> None:
        views = [view for view in (*self.read(), *self.written()) if view.buffer.number is None]
        shape, strides = merged_axes(self.shape, [view.strides for view in views])
        places = {view: Placement(view.offset, steps) for view, steps in zip(views, strides, strict=True)}
        self._nest(text, shape, places, self.bound)

    def _nest(self, text: Text, shape: Shape, places: Mapping[View, Placement], bound: RowBound | None = None) -> None:
        """Add a loop for each axis but the last."""
        if len(shape) <= 1:
            self._along(text, shape[0] if shape else 1, places, bound)
            return
        with text.loop(stop_of(bound, text, shape[0])) as loop:
            self._nest(text, shape[1:], {view: place.inner(text, loop.index) for view, place in places.items()})

    def _along(self, text: Text, length: int, places: Mapping[View, Placement], bound: RowBound | None) -> None:
        """Add the loop along the last axis: vectors where elements are neighbors, then the rest as a narrower one.

        What is computed beyond the bound is read nowhere.
        """
        vectors = all(place.step in (0, 1) for place in places.values())
        width = LANES if vectors else 1
        single = {
            v: text.load(v.buffer.pointer, p.start) for v, p in places.items() if p.step == 0 and v not in self.kept
        }
        for start, count, lanes in chunks(length, width):
            if count == 1:
                self._compute(text, lanes, start, places, single)
                continue
            stop = count * lanes if bound is None else bound.of_vectors(text, length, lanes)
            with text.loop(stop, lanes) as loop:
                self._compute(text, lanes, loop.index, places, single)

    def _compute(
        self, text: Text, width: int, index: Index, places: Mapping[View, Placement], single: Mapping[View, str]
    ) -> None:
        """Add all operations on ``width`` elements from an index on."""
        values = {view: text.repeat(name, width) for view, name in single.items()}
        for emit, operands, result in self.operations:
            given = [self._operand(text, width, index, places, values, view) for view in operands]
            values[result] = emit(text, given, width)
            if result in self.kept:
                text.store(values[result], result.buffer.pointer, places[result].at(text, index), width)

    def _operand(
        self,
        text: Text,
        width: int,
        index: Index,
        places: Mapping[View, Placement],
        values: dict[View, str],
        view: View,
    ) -> str:
        if view.buffer.number is not None:
            return literal(view.buffer.number, width)
        if view not in values:
            values[view] = text.load(view.buffer.pointer, places[view].at(text, index), width)
        return values[view]


def chunks(length: int, width: int) -> list[tuple[int, int, int]]:
    """Return parts of an axis: first index, number of vectors, numbers of a vector."""
    whole, rest = divmod(length, width)
    parts = [(0, whole, width)] if whole else []
    return parts + ([(whole * width, 1, rest)] if rest else [])


class Placement(NamedTuple):
    """Start of a view, and its steps along the axes that are left."""

    start: Index
    steps: Shape

    @property
    def step(self) -> int:
        """The step along the last axis."""
        return self.steps[-1] if self.steps else 0

    def inner(self, text: Text, index: Index) -> Placement:
        """Return the place at an index of the first axis."""
        return Placement(text.add(self.start, text.multiply(index, self.steps[0])), self.steps[1:])

    def at(self, text: Text, index: Index) -> Index:
        """Return the place at an index of the last axis."""
        return text.add(self.start, text.multiply(index, self.step))


# Values of a graph as views into memory: shapes and strides in place of copies.


Shape = tuple[int, ...]


@dataclass(eq=False)
class Buffer:
    """The memory of so many numbers of float32.

    Attributes
    ----------
    size : int
    pointer : str
        The value of the text that has its address, once that is written.
    number : float or None
        The one number that a constant consists of.
    """

    size: int
    pointer: str = ""
    number: float | None = None


class View(NamedTuple):
    """Some elements of a buffer: element ``i`` is at ``offset`` plus the sum of ``i * strides``."""

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
        """Return ``length`` indices of an axis, neighbors or every so many."""
        shape = (*self.shape[:axis], length, *self.shape[axis + 1 :])
        strides = (*self.strides[:axis], step * self.strides[axis], *self.strides[axis + 1 :])
        return self._replace(shape=shape, strides=strides, offset=self.offset + start * self.strides[axis])

    def with_axis(self, axis: int) -> View:
        """Return the view with one more axis, of one index."""
        shape, strides = ((*one[:axis], n, *one[axis:]) for one, n in ((self.shape, 1), (self.strides, 0)))
        return self._replace(shape=shape, strides=strides)

    def without(self, axis: int) -> View:
        """Return the view without an axis of one index."""
        shape, strides = ((*one[:axis], *one[axis + 1 :]) for one in (self.shape, self.strides))
        return self._replace(shape=shape, strides=strides)

    def without_repeats(self) -> View:
        """Return the view with every element once: without axes along which none changes."""
        kept = [i for i, (n, step) in enumerate(zip(self.shape, self.strides, strict=True)) if n > 1 and step]
        once = self._replace(shape=tuple(self.shape[i] for i in kept), strides=tuple(self.strides[i] for i in kept))
        shape, (strides,) = merged_axes(once.shape, [once.strides])
        return once._replace(shape=shape, strides=strides)

    def reshaped(self, shape: Shape) -> View | None:
        """Return the same elements with another shape; None where that takes a copy."""
        return self._replace(shape=shape, strides=strides_of(shape)) if self.is_contiguous else None


def strides_of(shape: Shape) -> Shape:
    """Return the strides of elements that follow each other."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def new_view(shape: Shape) -> View:
    """Return a view of a whole new buffer."""
    return View(Buffer(math.prod(shape)), shape, strides_of(shape))


def merged_axes(shape: Shape, strides: Sequence[Shape]) -> tuple[Shape, list[Shape]]:
    """Return the fewest axes by which operands of one shape can be read, and their strides along these."""
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


# Number of rows of a minibatch that a run computes.


@dataclass(eq=False)
class RowBound:
    """The rows of a minibatch, and the value of a function that tells how many of the first of them it computes.

    Attributes
    ----------
    batch : int
        All rows.
    count : str
        The value, once the text has it: all rows, or a multiple of ``LANES``, so that no register is cut.
    """

    batch: int
    count: str = ""

    def of(self, text: Text, total: int) -> Index:
        """Add how many of ``total`` indices belong to the rows; an equal number belongs to each."""
        return text.multiply(self.count, total // self.batch)

    def of_vectors(self, text: Text, total: int, width: int) -> Index:
        """Add how many of ``total`` elements belong to the rows, without those that fill no vector, a power of two."""
        return text.value(f"and i64 {self.of(text, total)}, -{width}")

    def last(self, text: Text, value: str, otherwise: float) -> str:
        """Add a number that belongs to the last rows, or another one where they are not computed."""
        whole = text.value(f"icmp eq i64 {self.count}, {self.batch}")
        return text.value(f"select i1 {whole}, float {value}, float {literal(otherwise, 1)}")


def stop_of(bound: RowBound | None, text: Text, total: int) -> Index:
    """Return where a loop over ``total`` indices ends: behind those of the rows that are computed, if it is bounded."""
    return total if bound is None else bound.of(text, total)


def clamped(text: Text, index: Index, low: int, high: int) -> Index:
    """Add an index, at least ``low`` and at most ``high``."""
    for name, limit in (("smax", low), ("smin", high)):
        text.declare(f"declare i64 @llvm.{name}.i64(i64, i64)")
        index = text.value(f"call i64 @llvm.{name}.i64(i64 {index}, i64 {limit})")
    return index

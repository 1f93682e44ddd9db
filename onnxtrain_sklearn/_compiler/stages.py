"""Stages of a function: loops that are written one after the other.

A stage reads and writes views. Elementwise operators over the same shape share one stage: what only they read stays in
registers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from .elementwise import EmitElements
from .row_bound import RowBound, stop_of
from .text import Index, Text, literal
from .views import Shape, View, merged_axes

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
    """Where a view begins, and its steps along the axes that are left."""

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

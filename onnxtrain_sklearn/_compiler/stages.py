"""Stages of a compiled function: loops that read some views and write others.

:class:`Stage` is their interface. Here are the elementwise stage, which fuses operators over the same shape, the
conversions from and to other types, the checks of numbers, and the selection of elements at computed indices. Products
and reductions have modules of their own.

Integers and truth values are float32 like all other numbers. An integer from 2**24 on is rounded once: as an index it
stays beyond every table, and operators that compute with it check it first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeAlias

import numpy as np
import onnx_ir as ir

from .elementwise import EmitElements
from .llvm_text import Index, Join, Text, literal, vector_type
from .reductions import MAXIMUM, joined
from .views import LANES, Buffer, Placement, RowBound, Shape, View, chunks, merged_axes, stop_of

LARGEST_INTEGER = 2**24
"""Float32 holds every integer below it."""

ARRAY_TYPES: dict[ir.DataType, tuple[type[np.generic], str, int]] = {
    ir.DataType.INT64: (np.int64, "i64", 8),
    ir.DataType.INT32: (np.int32, "i32", 4),
    ir.DataType.BOOL: (np.bool_, "i8", 1),
}
"""Types of arrays that are not float32: NumPy's, LLVM's, and the bytes of an element."""


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
    """Operations on each element, over views of one shape.

    Attributes
    ----------
    operations : list
        Each with its operands and its result. A result that only later operations read stays in registers.
    kept : set of View
        The results that other stages read, which are written to memory.
    bound : RowBound or None
        The rows of the first axis that are computed.
    """

    shape: Shape
    operations: list[Operation] = field(default_factory=list)
    kept: set[View] = field(default_factory=set)
    bound: RowBound | None = None

    def results(self) -> set[View]:
        """Return the views of all results."""
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
        """Add the loop along the last axis: full vectors if elements are neighbors, then the rest as a narrower one.

        The rest is computed even beyond the bound, where nothing reads it.
        """
        vectors = all(place.step in (0, 1) for place in places.values())
        width = LANES if vectors else 1
        # Operands that do not change along the axis are loaded once, before the loop.
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
            for view in operands:
                if view.buffer.number is not None:
                    values[view] = literal(view.buffer.number, width)
                elif view not in values:
                    values[view] = text.load(view.buffer.pointer, places[view].at(text, index), width)
            values[result] = emit(text, [values[view] for view in operands], width)
            if result in self.kept:
                text.store(values[result], result.buffer.pointer, places[result].at(text, index), width)


@dataclass(eq=False)
class Conversion:
    """Integers or truth values to float32, rounded, or ``back`` from float32; both views are contiguous."""

    source: View
    result: View
    kind: ir.DataType
    back: bool = False

    def read(self) -> Sequence[View]:
        return [self.source]

    def written(self) -> Sequence[View]:
        return [self.result]

    def write(self, text: Text) -> None:
        _, type_, size = ARRAY_TYPES[self.kind]
        with text.loop(self.result.size) as loop:
            stored = self.result if self.back else self.source
            place = text.value(f"getelementptr {type_}, ptr {stored.buffer.pointer}, i64 {loop.index}")
            if self.back:
                number = text.load(self.source.buffer.pointer, text.add(loop.index, self.source.offset))
                text.lines.append(f"  store {type_} {_integer(text, number)}, ptr {place}, align {size}")
                return
            integer = text.value(f"load {type_}, ptr {place}, align {size}")
            # Also of truth values: a true one is stored as 1 in 8 bits, which is positive.
            text.store(text.value(f"sitofp {type_} {integer} to float"), self.result.buffer.pointer, loop.index)


@dataclass(eq=False)
class RangeCheck:
    """A check that each element of a contiguous view is at least ``low``, and below ``high``.

    The first check of a run that fails writes its number to ``status``, followed by an element that is not in the
    range.
    """

    source: View
    low: float
    high: float
    number: int
    status: Buffer

    NONE: ClassVar = -np.inf  # the elements in the range: a maximum ignores it

    def read(self) -> Sequence[View]:
        return [self.source]

    def written(self) -> Sequence[View]:
        return []

    def write(self, text: Text) -> None:
        worst = literal(self.NONE, 1)
        for first, count, width in chunks(self.source.size, LANES):
            with text.loop(count * width, width, [(vector_type(width), literal(self.NONE, width))]) as loop:
                place = text.add(loop.index, self.source.offset + first)
                value = text.load(self.source.buffer.pointer, place, width)
                loop.following = [MAXIMUM.join(text, loop.carried[0], self._outside(text, value, width), width)]
            worst = MAXIMUM.join(text, worst, joined(text, loop.following[0], width, MAXIMUM), 1)
        self._report(text, worst)

    def _outside(self, text: Text, value: str, width: int) -> str:
        """Add the elements that are not in the range, and NONE in place of the others; NaN is in no range."""
        type_ = vector_type(width)
        truths = "i1" if width == 1 else f"<{width} x i1>"
        tests = [
            text.value(f"fcmp {test} {type_} {value}, {literal(bound, width)}")
            for test, bound in (("oge", self.low), ("olt", self.high))
        ]
        inside = text.value(f"and {truths} {tests[0]}, {tests[1]}")
        finite = text.call("maximum", [value, literal(float(np.finfo(np.float32).min), width)], width)
        return text.value(f"select {truths} {inside}, {type_} {literal(self.NONE, width)}, {type_} {finite}")

    def _report(self, text: Text, worst: str) -> None:
        before = [text.load(self.status.pointer, i) for i in range(2)]
        failed = text.value(f"fcmp une float {worst}, {literal(self.NONE, 1)}")
        is_first = text.value(f"fcmp oeq float {before[0]}, {literal(0.0, 1)}")
        writes = text.value(f"and i1 {failed}, {is_first}")
        for i, (new, old) in enumerate(zip((literal(self.number, 1), worst), before, strict=True)):
            text.store(text.value(f"select i1 {writes}, float {new}, float {old}"), self.status.pointer, i)


@dataclass(eq=False)
class Selection:
    """Elements of a table at indices along an axis: read from it, or written to it one by one, in order.

    Attributes
    ----------
    table, indices, elements : View
        They have one shape; the table has the stride 0 along the axis. Negative indices count from the end. Indices
        outside the table select its first element, so that no foreign memory is touched: a check reports them after
        the run.
    length, step : int
        Length and stride of the axis.
    scatters : bool
        True if the table is written.
    join : callable or None
        Joins an element with the one in the table; None: it replaces that.
    """

    table: View
    indices: View
    elements: View
    length: int
    step: int
    scatters: bool = False
    join: Join | None = None

    def read(self) -> Sequence[View]:
        return [self.table, self.indices, *([self.elements] if self.scatters else [])]

    def written(self) -> Sequence[View]:
        return [self.table if self.scatters else self.elements]

    def write(self, text: Text) -> None:
        views = self.table, self.indices, self.elements
        shape, strides = merged_axes(self.table.shape, [view.strides for view in views])
        self._nest(text, shape, [Placement(view.offset, steps) for view, steps in zip(views, strides, strict=True)])

    def _nest(self, text: Text, shape: Shape, places: Sequence[Placement]) -> None:
        """Add a loop for each axis but the last."""
        if len(shape) > 1:
            with text.loop(shape[0]) as loop:
                self._nest(text, shape[1:], [place.inner(text, loop.index) for place in places])
            return
        table, indices, elements = places
        # Neighbors move in vectors if one index selects all of them.
        width = LANES if (table.step, indices.step, elements.step) == (1, 0, 1) else 1
        # If one index selects a whole row, it is read once, and the row moves in vectors.
        at_row = None if indices.step else self._start(text, table.start, indices.start)
        for first, count, lanes in chunks(shape[0] if shape else 1, width):
            with text.loop(count * lanes, lanes) as loop:
                index = text.add(loop.index, first)
                start = self._start(text, table.start, indices.at(text, index)) if at_row is None else at_row
                at = text.add(start, text.multiply(index, table.step))
                place = elements.at(text, index)
                in_table, in_elements = self.table.buffer.pointer, self.elements.buffer.pointer
                if not self.scatters:
                    text.store(text.load(in_table, at, lanes), in_elements, place, lanes)
                    continue
                value = text.load(in_elements, place, lanes)
                value = self.join(text, text.load(in_table, at, lanes), value, lanes) if self.join else value
                text.store(value, in_table, at, lanes)

    def _start(self, text: Text, start: Index, place: Index) -> Index:
        """Add where the selected row starts, never one outside the table."""
        row = _integer(text, text.load(self.indices.buffer.pointer, place))
        before = text.value(f"icmp slt i64 {row}, 0")
        turned = text.value(f"add i64 {row}, {self.length}")
        row = text.value(f"select i1 {before}, i64 {turned}, i64 {row}")
        inside = text.value(f"icmp ult i64 {row}, {self.length}")
        row = text.value(f"select i1 {inside}, i64 {row}, i64 0")
        return text.add(start, text.multiply(row, self.step))


def _integer(text: Text, number: str) -> str:
    """Add a number as an integer; the nearest one of 64 bits where there is none, 0 for NaN."""
    text.declare("declare i64 @llvm.fptosi.sat.i64.f32(float)")
    return text.value(f"call i64 @llvm.fptosi.sat.i64.f32(float {number})")

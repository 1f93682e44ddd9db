"""Other types as numbers, checks of numbers, and elements at computed indices.

Integers and truth values are float32 like all other numbers. An integer from 2**24 on is rounded once: as an index it
stays beyond every table, and what computes with it is to check it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from .lanes import Join
from .reductions import MAXIMUM, joined
from .stages import LANES, Placement, chunks
from .text import Index, Text, literal, vector_type
from .views import Buffer, Shape, View, merged_axes

ARRAY_TYPES: dict[ir.DataType, tuple[type[np.generic], str, int]] = {
    ir.DataType.INT64: (np.int64, "i64", 8),
    ir.DataType.INT32: (np.int32, "i32", 4),
    ir.DataType.BOOL: (np.bool_, "i8", 1),
}
"""Types of arrays that are not float32: NumPy's, LLVM's, and the bytes of an element."""


@dataclass(eq=False)
class Conversion:
    """Integers or truth values as float32, rounded, or integers of 64 bits from float32; both views are contiguous."""

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
            text.store(text.value(f"sitofp {type_} {integer} to float"), self.result.buffer.pointer, loop.index)


@dataclass(eq=False)
class RangeCheck:
    """A test of all elements of a contiguous view: at least ``low``, and below ``high``.

    The first check of a run that fails writes its number to ``status``, then a number that is not in the range.
    """

    source: View
    low: float
    high: float
    number: int
    status: Buffer

    NONE: ClassVar = -np.inf

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
        """Add the numbers that are not in the range, NONE for the others; NaN is in no range."""
        type_, truths = vector_type(width), "i1" if width == 1 else f"<{width} x i1>"
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
    """Elements at indices along an axis of a table, read from it or joined with what it has there, one by one in order.

    Attributes
    ----------
    table, indices, elements : View
        Of one shape; the table has the stride 0 along the axis. Indices count from the end where they are negative;
        those outside the table select its first element.
    length, step : int
        Of the axis.
    scatters : bool
        Whether the table is written.
    join : callable or None
        What joins an element with the one in the table; None: it takes its place.
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
        width = LANES if (table.step, indices.step, elements.step) == (1, 0, 1) else 1
        at_row = None if indices.step else self._start(text, table.start, indices.start)
        for first, count, lanes in chunks(shape[0] if shape else 1, width):
            with text.loop(count * lanes, lanes) as loop:
                index = text.add(loop.index, first)
                start = self._start(text, table.start, indices.at(text, index)) if at_row is None else at_row
                at = text.add(start, text.multiply(index, table.step))
                self._move(text, at, elements.at(text, index), lanes)

    def _start(self, text: Text, start: Index, place: Index) -> Index:
        """Add where the chosen row starts, never one outside the table."""
        row = _integer(text, text.load(self.indices.buffer.pointer, place))
        before = text.value(f"icmp slt i64 {row}, 0")
        turned = text.value(f"add i64 {row}, {self.length}")
        row = text.value(f"select i1 {before}, i64 {turned}, i64 {row}")
        inside = text.value(f"icmp ult i64 {row}, {self.length}")
        row = text.value(f"select i1 {inside}, i64 {row}, i64 0")
        return text.add(start, text.multiply(row, self.step))

    def _move(self, text: Text, at: Index, place: Index, lanes: int) -> None:
        table, elements = self.table.buffer.pointer, self.elements.buffer.pointer
        if not self.scatters:
            text.store(text.load(table, at, lanes), elements, place, lanes)
            return
        value = text.load(elements, place, lanes)
        text.store(self.join(text, text.load(table, at, lanes), value, lanes) if self.join else value, table, at, lanes)


def _integer(text: Text, number: str) -> str:
    """Add a number as an integer; the nearest one of 64 bits where there is none, 0 for NaN."""
    text.declare("declare i64 @llvm.fptosi.sat.i64.f32(float)")
    return text.value(f"call i64 @llvm.fptosi.sat.i64.f32(float {number})")

"""Integers as numbers, and the rows of tables that they choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .stages import LANES, chunks
from .text import Text
from .views import View


@dataclass(eq=False)
class Conversion:
    """Integers of 64 bits as float32, exact below 2**24; both views are contiguous."""

    source: View
    result: View

    def read(self) -> Sequence[View]:
        return [self.source]

    def written(self) -> Sequence[View]:
        return [self.result]

    def write(self, text: Text) -> None:
        with text.loop(self.result.size) as loop:
            place = text.value(f"getelementptr i64, ptr {self.source.buffer.pointer}, i64 {loop.index}")
            integer = text.value(f"load i64, ptr {place}, align 8")
            text.store(text.value(f"sitofp i64 {integer} to float"), self.result.buffer.pointer, loop.index)


@dataclass(eq=False)
class TableRows:
    """The rows of a table at indices, which count from the end where they are negative; all views are contiguous."""

    table: View
    indices: View
    result: View

    def read(self) -> Sequence[View]:
        return [self.table, self.indices]

    def written(self) -> Sequence[View]:
        return [self.result]

    def write(self, text: Text) -> None:
        length = self.table.size // self.table.shape[0]
        with text.loop(self.indices.size) as rows:
            index = text.load(self.indices.buffer.pointer, text.add(rows.index, self.indices.offset))
            start = text.add(text.multiply(self._row(text, index), length), self.table.offset)
            into = text.multiply(rows.index, length)
            for first, count, width in chunks(length, LANES):
                with text.loop(count * width, width) as loop:
                    column = text.add(loop.index, first)
                    value = text.load(self.table.buffer.pointer, text.add(start, column), width)
                    text.store(value, self.result.buffer.pointer, text.add(into, column), width)

    def _row(self, text: Text, index: str) -> str:
        """Add the row, never one outside the table."""
        rows = self.table.shape[0]
        row = text.value(f"fptosi float {index} to i64")
        before = text.value(f"icmp slt i64 {row}, 0")
        turned = text.value(f"add i64 {row}, {rows}")
        row = text.value(f"select i1 {before}, i64 {turned}, i64 {row}")
        inside = text.value(f"icmp ult i64 {row}, {rows}")
        return text.value(f"select i1 {inside}, i64 {row}, i64 0")

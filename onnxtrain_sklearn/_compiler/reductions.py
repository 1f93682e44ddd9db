"""Reductions over axes, and softmax over the last axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .functions import exp, log
from .stages import LANES, chunks
from .text import Index, Text, integers, literal, vector_type
from .views import View


class Joining(NamedTuple):
    """How a reduction joins two numbers: an instruction or a function of LLVM, and what changes nothing."""

    join: Callable[[Text, str, str, int], str]
    neutral: float


def _sum(text: Text, a: str, b: str, width: int) -> str:
    return text.value(f"fadd {vector_type(width)} {a}, {b}")


def _maximum(text: Text, a: str, b: str, width: int) -> str:
    return text.call("maximum", [a, b], width)


def _minimum(text: Text, a: str, b: str, width: int) -> str:
    return text.call("minimum", [a, b], width)


SUM, MAXIMUM, MINIMUM = Joining(_sum, 0.0), Joining(_maximum, -np.inf), Joining(_minimum, np.inf)


def joined(text: Text, value: str, width: int, rule: Joining) -> str:
    """Add what all elements of a vector are joined to, half with half."""
    lanes = 1 << (width - 1).bit_length()
    value = _shuffled(text, value, literal(rule.neutral, width), width, range(lanes)) if lanes != width else value
    while lanes > 1:
        lanes //= 2
        low, high = (_shuffled(text, value, "poison", 2 * lanes, range(i, i + lanes)) for i in (0, lanes))
        value = rule.join(text, low, high, lanes)
    return value


def _shuffled(text: Text, value: str, other: str, width: int, places: Sequence[int]) -> str:
    """Add the elements at some places of a vector, and of one behind it; a single one as a number."""
    if len(places) == 1:
        return text.value(f"extractelement {vector_type(width)} {value}, i64 {places[0]}")
    mask = ", ".join(f"i32 {i}" for i in places)
    return text.value(
        f"shufflevector {vector_type(width)} {value}, {vector_type(width)} {other}, {integers(len(places))} <{mask}>"
    )


def joined_row(text: Text, array: str, start: Index, length: int, rule: Joining) -> str:
    """Add what neighboring elements are joined to."""
    total = literal(rule.neutral, 1)
    for first, count, width in chunks(length, LANES):
        begin = text.add(start, first)
        with text.loop(count * width, width, [(vector_type(width), literal(rule.neutral, width))]) as loop:
            value = text.load(array, text.add(begin, loop.index), width)
            loop.following = [rule.join(text, loop.carried[0], value, width)]
        total = rule.join(text, total, joined(text, loop.following[0], width, rule), 1)
    return total


@dataclass(eq=False)
class ReductionStage:
    """A reduction of ``count`` indices between axes of ``before`` and ``after`` elements; both views are contiguous."""

    source: View
    result: View
    before: int
    count: int
    after: int
    rule: Joining
    divisor: int = 1

    def read(self) -> Sequence[View]:
        return [self.source]

    def written(self) -> Sequence[View]:
        return [self.result]

    def write(self, text: Text) -> None:
        with text.loop(self.before) as loop:
            if self.after == 1:
                self._along(text, loop.index)
            else:
                self._across(text, loop.index)

    def _along(self, text: Text, row: Index) -> None:
        """Add the reduction of neighboring elements."""
        start = text.add(self.source.offset, text.multiply(row, self.count))
        total = joined_row(text, self.source.buffer.pointer, start, self.count, self.rule)
        self._store(text, total, row, 1)

    def _across(self, text: Text, block: Index) -> None:
        """Add the reduction of rows, for some columns at a time."""
        start = text.add(self.source.offset, text.multiply(block, self.count * self.after))
        for first, count, width in chunks(self.after, LANES):
            with text.loop(count * width, width) as columns:
                column = text.add(columns.index, first)
                begin = text.add(start, column)
                with text.loop(self.count, 1, [(vector_type(width), literal(self.rule.neutral, width))]) as rows:
                    place = text.add(begin, text.multiply(rows.index, self.after))
                    value = text.load(self.source.buffer.pointer, place, width)
                    rows.following = [self.rule.join(text, rows.carried[0], value, width)]
                self._store(text, rows.following[0], text.add(text.multiply(block, self.after), column), width)

    def _store(self, text: Text, value: str, place: Index, width: int) -> None:
        if self.divisor != 1:
            value = text.value(f"fdiv {vector_type(width)} {value}, {literal(self.divisor, width)}")
        text.store(value, self.result.buffer.pointer, text.add(self.result.offset, place), width)


@dataclass(eq=False)
class SoftmaxStage:
    """Softmax over the last axis, or its logarithm; all views are contiguous.

    ``total``: where the logarithms of the sums of exponentials are written, None: nowhere.
    """

    source: View
    result: View
    logarithm: bool
    total: View | None = None

    def read(self) -> Sequence[View]:
        return [self.source]

    def written(self) -> Sequence[View]:
        return [self.result, *([] if self.total is None else [self.total])]

    def write(self, text: Text) -> None:
        count = self.source.shape[-1]
        with text.loop(self.source.size // count) as rows:
            row = text.multiply(rows.index, count)
            source, result = text.add(self.source.offset, row), text.add(self.result.offset, row)
            greatest = self._greatest(text, source)
            total = self._differences(text, source, result, greatest)
            if self.total is None:
                self._scaled(text, result, total)
            else:
                logarithm = text.value(f"fadd float {log(text, total, 1)}, {greatest}")
                text.store(logarithm, self.total.buffer.pointer, rows.index)

    def _greatest(self, text: Text, start: Index) -> str:
        return joined_row(text, self.source.buffer.pointer, start, self.source.shape[-1], MAXIMUM)

    def _differences(self, text: Text, source: Index, result: Index, greatest: str) -> str:
        """Write what the result is computed from; return the sum of the exponentials."""
        total = literal(0.0, 1)
        for first, count, width in chunks(self.source.shape[-1], LANES):
            most = text.repeat(greatest, width)
            with text.loop(count * width, width, [(vector_type(width), literal(0.0, width))]) as loop:
                column = text.add(first, loop.index)
                value = text.load(self.source.buffer.pointer, text.add(source, column), width)
                less = text.value(f"fsub {vector_type(width)} {value}, {most}")
                power = exp(text, less, width)
                written = less if self.logarithm else power
                text.store(written, self.result.buffer.pointer, text.add(result, column), width)
                loop.following = [_sum(text, loop.carried[0], power, width)]
            total = _sum(text, total, joined(text, loop.following[0], width, SUM), 1)
        return total

    def _scaled(self, text: Text, result: Index, total: str) -> None:
        """Take the logarithm of the sum from each element, or divide each by the sum."""
        single, name = (log(text, total, 1), "fsub") if self.logarithm else (total, "fdiv")
        for first, count, width in chunks(self.source.shape[-1], LANES):
            each = text.repeat(single, width)
            with text.loop(count * width, width) as loop:
                place = text.add(result, text.add(first, loop.index))
                value = text.load(self.result.buffer.pointer, place, width)
                text.store(
                    text.value(f"{name} {vector_type(width)} {value}, {each}"), self.result.buffer.pointer, place, width
                )

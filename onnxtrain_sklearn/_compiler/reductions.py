"""Reductions over axes, and softmax over the last axis, as stages of a compiled function.

Numbers are joined lane by lane, in blocks of at most :data:`SUMMANDS`, and the sums of blocks are added up in turn, so
that errors stay small. With a bound on the rows (:class:`.RowBound`), the same blocks end early: zeros that are left
out change no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .elementwise import exp, log
from .llvm_text import Index, Join, Text, joined_halves, literal, shuffled, summed, vector_type
from .views import LANES, RowBound, View, chunks, clamped, stop_of

SUMMANDS = 256
"""Most numbers that are added up in order."""


class Joining(NamedTuple):
    """The operation that joins two numbers of a reduction, and its neutral number."""

    join: Join
    neutral: float


SUM = Joining(summed, 0.0)
MAXIMUM = Joining(lambda text, a, b, width: text.call("maximum", [a, b], width), -np.inf)
MINIMUM = Joining(lambda text, a, b, width: text.call("minimum", [a, b], width), np.inf)


def joined(text: Text, value: str, width: int, rule: Joining) -> str:
    """Join all elements of a vector, half with half."""
    # A rest of another width is filled up with neutral numbers, so that it has halves down to a single lane.
    lanes = 1 << (width - 1).bit_length()
    value = shuffled(text, (value, literal(rule.neutral, width)), width, range(lanes)) if lanes != width else value
    while lanes > 1:
        value = joined_halves(text, (value, "poison"), lanes, lanes, lanes, rule.join)
        lanes = lanes // 2
    return value


def joined_row(
    text: Text, length: int, rule: Joining, part: Callable[[Index, int], str], bound: RowBound | None = None
) -> str:
    """Join the elements of a row; ``part(index, width)`` adds ``width`` of them from an index on.

    With a bound, the elements belong to the rows of a minibatch.
    """
    total = literal(rule.neutral, 1)
    for first, count, width in chunks(length, LANES):

        def vector(index: Index, first: int = first, width: int = width) -> str:
            return part(text.add(text.multiply(index, width), first), width)

        if bound is not None and not first:
            stop = text.value(f"udiv i64 {bound.of(text, length)}, {width}")
            found = joined(text, joined_up_to(text, stop, count, width, rule, vector), width, rule)
        else:
            found = joined(text, joined_in_blocks(text, count, width, rule, vector), width, rule)
            # The rest that fills no vector belongs to the last rows.
            found = found if bound is None else bound.last(text, found, rule.neutral)
        total = rule.join(text, total, found, 1)
    return total


def joined_in_blocks(text: Text, count: int, width: int, rule: Joining, value: Callable[[Index], str]) -> str:
    """Join ``count`` vectors, block by block; ``value(index)`` adds the vector of an index."""
    size = 1  # of a block: so that there are at most SUMMANDS
    while size * SUMMANDS < count:
        size *= SUMMANDS
    whole, rest = divmod(count, size)
    with text.loop(whole, 1, [(vector_type(width), literal(rule.neutral, width))]) as loop:
        start = text.multiply(loop.index, size)
        block = (
            value(start) if size == 1 else joined_in_blocks(text, size, width, rule, _counted_from(text, start, value))
        )
        loop.following = [rule.join(text, loop.carried[0], block, width)]
    if not rest:
        return loop.following[0]
    last = joined_in_blocks(text, rest, width, rule, _counted_from(text, whole * size, value))
    return rule.join(text, loop.following[0], last, width)


def joined_up_to(text: Text, stop: Index, count: int, width: int, rule: Joining, value: Callable[[Index], str]) -> str:
    """Join the first ``stop`` of ``count`` vectors, in the blocks of ``joined_in_blocks``.

    There are at most ``SUMMANDS`` blocks.
    """
    size = 1 if count <= SUMMANDS else SUMMANDS
    blocks = stop if size == 1 else text.value(f"udiv i64 {text.add(stop, size - 1)}, {size}")
    with text.loop(blocks, 1, [(vector_type(width), literal(rule.neutral, width))]) as loop:
        start = text.multiply(loop.index, size)
        if size == 1:
            part = value(start)
        else:
            end = clamped(text, text.value(f"sub i64 {stop}, {start}"), 1, size)
            part = joined_up_to(text, end, size, width, rule, _counted_from(text, start, value))
        loop.following = [rule.join(text, loop.carried[0], part, width)]
    return loop.following[0]


def _counted_from(text: Text, start: Index, value: Callable[[Index], str]) -> Callable[[Index], str]:
    return lambda index: value(text.add(start, index))


def _read_row(text: Text, array: str, start: Index) -> Callable[[Index, int], str]:
    """Return a function that loads neighboring elements of an array."""
    return lambda index, width: text.load(array, text.add(start, index), width)


@dataclass(eq=False)
class ReductionStage:
    """A reduction of ``count`` indices between axes of ``before`` and ``after`` elements; both views are contiguous.

    ``bound`` are the rows of a minibatch that are computed; if ``before`` is 1, they are what is reduced.
    """

    source: View
    result: View
    before: int
    count: int
    after: int
    rule: Joining
    divisor: int = 1
    bound: RowBound | None = None

    def read(self) -> Sequence[View]:
        return [self.source]

    def written(self) -> Sequence[View]:
        return [self.result]

    def write(self, text: Text) -> None:
        # A bound on the rows ends this loop, or if there is one block the reduction itself.
        with text.loop(self.before if self.before == 1 else stop_of(self.bound, text, self.before)) as loop:
            if self.after == 1:
                self._along(text, loop.index)
            else:
                self._across(text, loop.index)

    def _along(self, text: Text, row: Index) -> None:
        """Add the reduction of neighboring elements."""
        start = text.add(self.source.offset, text.multiply(row, self.count))
        read = _read_row(text, self.source.buffer.pointer, start)
        total = joined_row(text, self.count, self.rule, read, self.bound if self.before == 1 else None)
        self._store(text, total, row, 1)

    def _across(self, text: Text, block: Index) -> None:
        """Add the reduction of rows, for some columns at a time."""
        start = text.add(self.source.offset, text.multiply(block, self.count * self.after))
        bound = self.bound if self.before == 1 else None
        for first, count, width in chunks(self.after, LANES):
            with text.loop(count * width, width) as columns:
                column = text.add(columns.index, first)
                begin = text.add(start, column)

                def row(index: Index, begin: Index = begin, width: int = width) -> str:
                    place = text.add(begin, text.multiply(index, self.after))
                    return text.load(self.source.buffer.pointer, place, width)

                if bound is None:
                    total = joined_in_blocks(text, self.count, width, self.rule, row)
                else:
                    total = joined_up_to(text, bound.of(text, self.count), self.count, width, self.rule, row)
                self._store(text, total, text.add(text.multiply(block, self.after), column), width)

    def _store(self, text: Text, value: str, place: Index, width: int) -> None:
        if self.divisor != 1:
            value = text.value(f"fdiv {vector_type(width)} {value}, {literal(self.divisor, width)}")
        text.store(value, self.result.buffer.pointer, text.add(self.result.offset, place), width)


@dataclass(eq=False)
class SoftmaxStage:
    """Softmax over the last axis, or its logarithm; all views are contiguous.

    With ``total``, the logarithms of the sums of exponentials are written there, and the result is not finished.
    ``bound`` are the rows of a minibatch that are computed.
    """

    source: View
    result: View
    logarithm: bool
    total: View | None = None
    bound: RowBound | None = None

    def read(self) -> Sequence[View]:
        return [self.source]

    def written(self) -> Sequence[View]:
        return [self.result, *([] if self.total is None else [self.total])]

    def write(self, text: Text) -> None:
        count = self.source.shape[-1]
        with text.loop(stop_of(self.bound, text, self.source.size // count)) as rows:
            row = text.multiply(rows.index, count)
            source, result = text.add(self.source.offset, row), text.add(self.result.offset, row)
            read = _read_row(text, self.source.buffer.pointer, source)
            greatest = joined_row(text, count, MAXIMUM, read)  # subtracted, so that no exponential overflows
            total = self._write_exponentials(text, source, result, greatest)
            if self.total is None:
                self._scaled(text, result, total)
            else:
                logarithm = text.value(f"fadd float {log(text, total, 1)}, {greatest}")
                text.store(logarithm, self.total.buffer.pointer, rows.index)

    def _write_exponentials(self, text: Text, source: Index, result: Index, greatest: str) -> str:
        """Write the exponentials, or for the logarithm their arguments; return the sum of the exponentials."""

        def exponential(index: Index, width: int) -> str:
            value = text.load(self.source.buffer.pointer, text.add(source, index), width)
            less = text.value(f"fsub {vector_type(width)} {value}, {text.repeat(greatest, width)}")
            power = exp(text, less, width)
            written = less if self.logarithm else power
            text.store(written, self.result.buffer.pointer, text.add(result, index), width)
            return power

        return joined_row(text, self.source.shape[-1], SUM, exponential)

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

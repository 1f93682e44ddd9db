"""Parts of the loops that stages write: vectors along an axis, positions in views, and the bound on rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .llvm_text import Index, Text, literal
from .views import Shape

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
    batch : int
        All rows.
    count : str
        The LLVM value, once the text has it: all rows, or a multiple of ``LANES``, so that no register is cut.
    """

    batch: int
    count: str = ""

    def of(self, text: Text, total: int) -> Index:
        """Add the number of indices, of ``total``, that belong to the rows; each row has as many."""
        return text.multiply(self.count, total // self.batch)

    def of_vectors(self, text: Text, total: int, width: int) -> Index:
        """Add how many of ``total`` elements belong to the rows and fill vectors of ``width``, a power of 2."""
        return text.value(f"and i64 {self.of(text, total)}, -{width}")

    def last(self, text: Text, value: str, otherwise: float) -> str:
        """Add a number of the last rows, or ``otherwise`` if they are not computed."""
        whole = text.value(f"icmp eq i64 {self.count}, {self.batch}")
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

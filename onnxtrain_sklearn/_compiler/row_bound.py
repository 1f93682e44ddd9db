"""How many rows of a minibatch a run computes."""

from __future__ import annotations

from dataclasses import dataclass

from .text import Index, Text, literal


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

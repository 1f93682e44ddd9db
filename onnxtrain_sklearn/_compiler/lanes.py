"""Lanes of registers: chosen ones as a register, and the numbers of a register joined to one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from .text import Text, integers, vector_type

Join: TypeAlias = Callable[[Text, str, str, int], str]
"""Adds what two values are joined to, lane by lane: called with a text, their names, and how many lanes they have."""


def summed(text: Text, a: str, b: str, width: int) -> str:
    """Add the sum of two values."""
    return text.value(f"fadd {vector_type(width)} {a}, {b}")


def shuffled(text: Text, pair: tuple[str, str], width: int, places: Sequence[int]) -> str:
    """Add the lanes at some places of two values that stand one behind the other; a single one as a number.

    Parameters
    ----------
    text : Text
    pair : tuple of str
        The second is not read for a single place, which is one of the first.
    width : int
        Lanes of each.
    places : sequence of int
    """
    own = vector_type(width)
    if len(places) == 1:
        return pair[0] if width == 1 else text.value(f"extractelement {own} {pair[0]}, i64 {places[0]}")
    numbers = ", ".join(f"i32 {i}" for i in places)
    return text.value(f"shufflevector {own} {pair[0]}, {own} {pair[1]}, {integers(len(places))} <{numbers}>")


def joined_halves(text: Text, pair: tuple[str, str], width: int, size: int, total: int, join: Join) -> str:
    """Join the halves of each group of ``size`` lanes, of which the first ``total`` lanes of two values consist."""
    starts = range(0, total, size)
    low, high = (
        shuffled(text, pair, width, [start + i for start in starts for i in range(half, half + size // 2)])
        for half in (0, size // 2)
    )
    return join(text, low, high, total // 2)

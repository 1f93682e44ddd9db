"""Formulas of floating-point numbers that write their instructions.

An operator of :class:`Floats` adds one instruction, for one number or for a vector. Every operation rounds as IEEE 754
says, so that a number has the same result alone and within a vector of any width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from .text import Text, integers, literal, vector_type

Term: TypeAlias = "Floats | float"


@dataclass(frozen=True, eq=False)
class Floats:
    """A number, or a vector of ``width`` of them.

    Attributes
    ----------
    text : Text
        The function that gets the instructions.
    width : int
    name : str
        The value's name, or a constant.
    element : str
        "float", or "double" for float64.
    """

    text: Text
    width: int
    name: str
    element: str = "float"

    def of(self, value: Term) -> str:
        """Return the operand that stands for a value: a number is repeated for the width."""
        if isinstance(value, Floats):
            return value.name
        return literal(value, self.width) if self.element == "float" else _double(value, self.width)

    def like(self, name: str) -> Floats:
        """Return the value of this name, of the same type."""
        return Floats(self.text, self.width, name, self.element)

    def call(self, function: str, *others: Term) -> Floats:
        """Call one of LLVM's functions with this value first."""
        operands = [self.name, *map(self.of, others)]
        return self.like(self.text.call(function, operands, self.width, self.element))

    def __add__(self, other: Term) -> Floats:
        return self._binary("fadd", self, other)

    def __sub__(self, other: Term) -> Floats:
        return self._binary("fsub", self, other)

    def __rsub__(self, other: float) -> Floats:
        return self._binary("fsub", other, self)

    def __mul__(self, other: Term) -> Floats:
        return self._binary("fmul", self, other)

    def __truediv__(self, other: Term) -> Floats:
        return self._binary("fdiv", self, other)

    def __rtruediv__(self, other: float) -> Floats:
        return self._binary("fdiv", other, self)

    def __neg__(self) -> Floats:
        return self.like(self.text.value(f"fneg {_type(self)} {self.name}"))

    def __abs__(self) -> Floats:
        return self.call("fabs")

    def times_plus(self, factor: Term, summand: Term) -> Floats:
        """Return ``self * factor + summand``, rounded once."""
        return self.call("fma", factor, summand)

    def where(self, predicate: str, bound: Term, then: Term, otherwise: Term) -> Floats:
        """Choose ``then`` where this value compares so, such as "olt" for less; NaN compares with nothing."""
        type_ = _type(self)
        mask = self.text.value(f"fcmp {predicate} {type_} {self.name}, {self.of(bound)}")
        truth = "i1" if self.width == 1 else f"<{self.width} x i1>"
        chosen = f"{type_} {self.of(then)}, {type_} {self.of(otherwise)}"
        return self.like(self.text.value(f"select {truth} {mask}, {chosen}"))

    def bits(self) -> Words:
        """Return the bits of the numbers, the last 32 ones of float64."""
        single, words = self.element == "float", integers(self.width)
        whole = words if single else vector_type(self.width, "i64")
        name = self.text.value(f"bitcast {_type(self)} {self.name} to {whole}")
        last = name if single else self.text.value(f"trunc {whole} {name} to {words}")
        return Words(self.text, self.width, last)

    def _binary(self, instruction: str, a: Term, b: Term) -> Floats:
        return self.like(self.text.value(f"{instruction} {_type(self)} {self.of(a)}, {self.of(b)}"))


def in_precision(x: Floats, element: str) -> Floats:
    """Return the numbers as float64 for "double", rounded to float32 for "float"."""
    change = "fpext" if element == "double" else "fptrunc"
    name = x.text.value(f"{change} {_type(x)} {x.name} to {vector_type(x.width, element)}")
    return Floats(x.text, x.width, name, element)


def _type(x: Floats) -> str:
    return vector_type(x.width, x.element)


def _double(number: float, width: int) -> str:
    bits = f"0x{np.float64(number).view(np.uint64):016X}"
    return bits if width == 1 else f"splat (double {bits})"


def at_least(bound: float, x: Floats) -> Floats:
    """Return the larger of the two; NaN stays."""
    return x.where("olt", bound, bound, x)


def at_most(bound: float, x: Floats) -> Floats:
    """Return the smaller of the two; NaN stays."""
    return x.where("ogt", bound, bound, x)


def polynomial(coefficients: Sequence[float], x: Floats) -> Floats:
    """Return a polynomial by Horner's rule; the first coefficient is the constant one."""
    *lower, before, last = coefficients
    result = x.times_plus(last, before)
    for coefficient in reversed(lower):
        result = result.times_plus(x, coefficient)
    return result


@dataclass(frozen=True, eq=False)
class Words:
    """An integer of 32 bits, or a vector of them; overflows wrap around."""

    text: Text
    width: int
    name: str

    def like(self, name: str) -> Words:
        """Return the value of this name, of the same width."""
        return Words(self.text, self.width, name)

    def __add__(self, other: Words | int) -> Words:
        return self._binary("add", other)

    def __sub__(self, other: Words | int) -> Words:
        return self._binary("sub", other)

    def __neg__(self) -> Words:
        return self.like(self.text.value(f"sub {integers(self.width)} zeroinitializer, {self.name}"))

    def __and__(self, other: Words | int) -> Words:
        return self._binary("and", other)

    def __lshift__(self, places: int) -> Words:
        return self._binary("shl", places)

    def __rshift__(self, places: int) -> Words:
        return self._binary("ashr", places)

    def numbers(self) -> Floats:
        """Return the numbers that have these bits."""
        return self._converted("bitcast")

    def as_numbers(self) -> Floats:
        """Return the numbers that are equal to these integers."""
        return self._converted("sitofp")

    def _converted(self, instruction: str) -> Floats:
        change = f"{instruction} {integers(self.width)} {self.name} to {vector_type(self.width)}"
        return Floats(self.text, self.width, self.text.value(change))

    def _binary(self, instruction: str, other: Words | int) -> Words:
        repeated = f"{other}" if self.width == 1 else f"splat (i32 {other})"
        operand = other.name if isinstance(other, Words) else repeated
        return self.like(self.text.value(f"{instruction} {integers(self.width)} {self.name}, {operand}"))

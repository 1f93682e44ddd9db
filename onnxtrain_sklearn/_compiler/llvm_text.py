"""Write LLVM instructions: the text of a function, formulas of numbers, and lanes of vectors.

:class:`Text` holds the lines of a function; its methods add instructions and return the names of their results, which
are numbered, as blocks are. :class:`Floats` and :class:`Words` overload operators, so that a formula writes its
instructions. Numbers are float32, alone or in vectors; indices are integers of 64 bits. No instruction allows LLVM to
contract or to reorder, so results do not depend on its optimizations. The language is described at
https://llvm.org/docs/LangRef.html.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

Index: TypeAlias = "str | int"
"""An integer: the name of a value, or a number."""


def vector_type(width: int, element: str = "float") -> str:
    """Return the type of a vector of ``width`` numbers, or of a number for a width of one."""
    return element if width == 1 else f"<{width} x {element}>"


def integers(width: int) -> str:
    """Return the type of ``width`` integers of 32 bits."""
    return "i32" if width == 1 else f"<{width} x i32>"


def literal(number: float, width: int) -> str:
    """Return a float32 number, or a vector of copies of it, as an operand."""
    # LLVM reads the bits of a float64 also for a float32: no decimal digits, which might round otherwise.
    bits = f"0x{np.float64(np.float32(number)).view(np.uint64):016X}"
    return bits if width == 1 else f"splat (float {bits})"


@dataclass(eq=False)
class Loop:
    """A loop while its body is written, which reads ``index`` and ``carried`` and sets ``following``.

    Attributes
    ----------
    index : str
        The counter.
    carried : sequence of str
        Values that pass from one iteration to the next.
    following : sequence of str
        Their values in the next iteration; after the loop, their last values.
    """

    index: str
    carried: Sequence[str]
    following: Sequence[str] = field(default_factory=list)


class Text:
    """The lines of a function."""

    def __init__(self) -> None:
        self.lines = list[str]()
        self._count = 0
        self._block = "entry"
        self._declared = dict[str, None]()

    def function(self, name: str, arguments: Sequence[str]) -> str:
        """Return the whole text: declarations, and the function with the lines so far.

        Parameters
        ----------
        name : str
        arguments : sequence of str
            Names of pointers, with their percent signs.
        """
        head = f"define void @{name}({', '.join(f'ptr noalias {one}' for one in arguments)}) {{"
        return "\n".join([*self._declared, head, "entry:", *self.lines, "  ret void", "}", ""])

    def value(self, expression: str) -> str:
        """Add a value; return its name."""
        self._count += 1
        self.lines.append(f"  %v{self._count} = {expression}")
        return f"%v{self._count}"

    def add(self, a: Index, b: Index) -> Index:
        """Add the sum of two indices."""
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        return self.value(f"add i64 {a}, {b}") if a != 0 and b != 0 else (a or b)

    def multiply(self, a: Index, b: Index) -> Index:
        """Add the product of two indices."""
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if 0 in (a, b):
            return 0
        return self.value(f"mul i64 {a}, {b}") if 1 not in (a, b) else (b if a == 1 else a)

    def address(self, array: str, offset: Index) -> str:
        """Add the address of an element of an array of float32."""
        return self.value(f"getelementptr float, ptr {array}, i64 {offset}") if offset != 0 else array

    def load(self, array: str, offset: Index, width: int = 1) -> str:
        """Add ``width`` neighboring elements of an array."""
        # A view may start at any element, so nothing more than the alignment of an element is promised.
        return self.value(f"load {vector_type(width)}, ptr {self.address(array, offset)}, align 4")

    def store(self, value: str, array: str, offset: Index, width: int = 1) -> None:
        """Write ``width`` neighboring elements of an array."""
        self.lines.append(f"  store {vector_type(width)} {value}, ptr {self.address(array, offset)}, align 4")

    def repeat(self, value: str, width: int) -> str:
        """Add a vector of equal numbers."""
        if width == 1:
            return value
        type_ = vector_type(width)
        zeros = f"{integers(width)} zeroinitializer"
        first = self.value(f"insertelement {type_} poison, float {value}, i64 0")
        return self.value(f"shufflevector {type_} {first}, {type_} poison, {zeros}")

    def call(self, name: str, operands: Sequence[str], width: int, element: str = "float") -> str:
        """Add the result of one of LLVM's functions, such as "fma", for each element: of float32, or of "double"."""
        type_ = vector_type(width, element)
        bits = "f32" if element == "float" else "f64"
        own = f"@llvm.{name}.{bits if width == 1 else f'v{width}{bits}'}"
        self.declare(f"declare {type_} {own}({', '.join([type_] * len(operands))})")
        return self.value(f"call {type_} {own}({', '.join(f'{type_} {one}' for one in operands)})")

    def declare(self, line: str) -> None:
        """Declare a function, once."""
        self._declared[line] = None

    def define(self, name: str, arguments: Sequence[str], body: Text) -> None:
        """Define a function of the module, once; ``arguments`` are their types and names."""
        self._declared.update(body._declared)
        head = f"define internal void @{name}({', '.join(arguments)}) {{"
        self.declare("\n".join([head, "entry:", *body.lines, "  ret void", "}"]))

    def execute(self, name: str, operands: Sequence[str]) -> None:
        """Call a function that returns nothing; ``operands`` are their types and names."""
        self.lines.append(f"  call void @{name}({', '.join(operands)})")

    @contextmanager
    def loop(self, stop: Index, step: int = 1, carried: Sequence[tuple[str, str]] = ()) -> Iterator[Loop]:
        """Write a loop from 0 to ``stop``, which is not 0; ``carried`` holds the types and first values."""
        self._count += 1
        before = self._block
        label = f"b{self._count}"
        after = f"e{self._count}"
        loop = Loop(f"%{label}_i", [f"%{label}_{i}" for i in range(len(carried))])
        self.lines += [f"  br label %{label}", f"{label}:"]
        self._block, place = label, len(self.lines)
        yield loop
        # The body runs before the first test, so ``stop`` must not be 0. The phi nodes stand first in the block, but
        # name values of its end: insert them now.
        following = self.value(f"add i64 {loop.index}, {step}")
        more = self.value(f"icmp slt i64 {following}, {stop}")
        first = [("i64", "0"), *carried]
        each = zip(first, (loop.index, *loop.carried), (following, *loop.following), strict=True)
        self.lines[place:place] = [
            f"  {name} = phi {type_} [{start}, %{before}], [{next_}, %{self._block}]"
            for (type_, start), name, next_ in each
        ]
        self.lines += [f"  br i1 {more}, label %{label}, label %{after}", f"{after}:"]
        self._block = after


# Formulas that write their instructions.
#
# An operator of :class:`Floats` adds one instruction, for a number or for a vector. Every operation rounds as IEEE 754
# says, so a number has the same result alone and in a vector of any width.


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
        """Return a value as an operand; a Python number is repeated for the width."""
        if isinstance(value, Floats):
            return value.name
        if self.element == "float":
            return literal(value, self.width)
        bits = f"0x{np.float64(value).view(np.uint64):016X}"
        return bits if self.width == 1 else f"splat (double {bits})"

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
        """Choose ``then`` where this value compares so with the bound ("olt": less, and neither is NaN)."""
        type_ = _type(self)
        mask = self.text.value(f"fcmp {predicate} {type_} {self.name}, {self.of(bound)}")
        truth = "i1" if self.width == 1 else f"<{self.width} x i1>"
        chosen = f"{type_} {self.of(then)}, {type_} {self.of(otherwise)}"
        return self.like(self.text.value(f"select {truth} {mask}, {chosen}"))

    def bits(self) -> Words:
        """Return the bits of the numbers; of float64, the last 32."""
        single = self.element == "float"
        words = integers(self.width)
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


def at_least(bound: float, x: Floats) -> Floats:
    """Return the larger of the two; NaN stays."""
    return x.where("olt", bound, bound, x)


def at_most(bound: float, x: Floats) -> Floats:
    """Return the smaller of the two; NaN stays."""
    return x.where("ogt", bound, bound, x)


def polynomial(coefficients: Sequence[float], x: Floats) -> Floats:
    """Return a polynomial by Horner's rule, from the coefficients in ascending order."""
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


# Lanes of registers.


Join: TypeAlias = Callable[[Text, str, str, int], str]
"""Joins two values lane by lane: called with a text, their names, and their number of lanes."""


def summed(text: Text, a: str, b: str, width: int) -> str:
    """Add the sum of two values."""
    return text.value(f"fadd {vector_type(width)} {a}, {b}")


def shuffled(text: Text, pair: tuple[str, str], width: int, places: Sequence[int]) -> str:
    """Add a vector of the lanes at ``places`` of two concatenated values, or a number for a single place.

    Parameters
    ----------
    text : Text
    pair : tuple of str
        For a single place, only the first is read.
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
    """Join the halves of each group of ``size`` lanes, among the first ``total`` lanes of two concatenated values."""
    starts = range(0, total, size)
    low, high = (
        shuffled(text, pair, width, [start + i for start in starts for i in range(half, half + size // 2)])
        for half in (0, size // 2)
    )
    return join(text, low, high, total // 2)

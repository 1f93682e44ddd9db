"""Functions in LLVM's assembly language, written line by line.

Every value has a number for its name, every block too. Numbers are float32, alone or as vectors; indices are integers
of 64 bits. No instruction allows LLVM to contract or to reorder, so that results do not depend on what it finds. The
reference of the language is https://llvm.org/docs/LangRef.html.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

Index: TypeAlias = "str | int"
"""An integer: the name of a value, or a number."""


def vector_type(width: int, element: str = "float") -> str:
    """Return the type of a vector of so many numbers; of one number for a width of one."""
    return element if width == 1 else f"<{width} x {element}>"


def integers(width: int) -> str:
    """Return the type of as many integers of 32 bits."""
    return "i32" if width == 1 else f"<{width} x i32>"


def literal(number: float, width: int) -> str:
    """Return a number of float32, or a vector of equal ones, as an operand."""
    bits = f"0x{np.float64(np.float32(number)).view(np.uint64):016X}"
    return bits if width == 1 else f"splat (float {bits})"


@dataclass(eq=False)
class Loop:
    """A loop while it is written: ``index`` and ``carried`` may be read in it; ``following`` is set in it.

    Attributes
    ----------
    index : str
        The integer that the loop counts with.
    carried : sequence of str
        Values that pass from one iteration to the next.
    following : sequence of str
        What the next iteration has in their place. After the loop: their last values.
    """

    index: str
    carried: Sequence[str]
    following: Sequence[str] = field(default_factory=list)


class Text:
    """The lines of a function."""

    def __init__(self) -> None:
        self.lines, self._count, self._block = list[str](), 0, "entry"
        self._declared = dict[str, None]()

    def function(self, name: str, arguments: Sequence[str]) -> str:
        """Return the whole text: what is declared, and the function with the lines so far.

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
        return self.value(f"load {vector_type(width)}, ptr {self.address(array, offset)}, align 4")

    def store(self, value: str, array: str, offset: Index, width: int = 1) -> None:
        """Write ``width`` neighboring elements of an array."""
        self.lines.append(f"  store {vector_type(width)} {value}, ptr {self.address(array, offset)}, align 4")

    def repeat(self, value: str, width: int) -> str:
        """Add a vector of equal numbers."""
        if width == 1:
            return value
        type_, zeros = vector_type(width), f"{integers(width)} zeroinitializer"
        first = self.value(f"insertelement {type_} poison, float {value}, i64 0")
        return self.value(f"shufflevector {type_} {first}, {type_} poison, {zeros}")

    def call(self, name: str, operands: Sequence[str], width: int, element: str = "float") -> str:
        """Add the result of one of LLVM's functions, such as "fma", for each element: of float32, or of "double"."""
        type_, bits = vector_type(width, element), "f32" if element == "float" else "f64"
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
        """Write a loop from 0 to ``stop``, which is not 0; ``carried`` are the types and first values."""
        before, label, after = self._block, *self._labels()
        loop = Loop(f"%{label}_i", [f"%{label}_{i}" for i in range(len(carried))])
        self.lines += [f"  br label %{label}", f"{label}:"]
        self._block, place = label, len(self.lines)
        yield loop
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

    def _labels(self) -> tuple[str, str]:
        self._count += 1
        return f"b{self._count}", f"e{self._count}"

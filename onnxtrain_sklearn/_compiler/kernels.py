"""Functions that matrix products call, in LLVM's assembly language.

:class:`Panel` and :class:`Dots` compute tiles of a result, :class:`Copy` and :class:`Transposition` bring an operand
into the form that these read. Each function is defined once in a module. Sizes and strides, counted in elements, are
arguments, so all products share them: however many layers a network has, it costs a handful of functions to compile.

A call adds to an element of a result one chain of fused multiplications and additions in the order of the inner
dimension, or one chain for each lane and a fixed tree that adds the lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from .llvm_text import Index, Text, integers, joined_halves, shuffled, summed, vector_type


class RegisterTile(NamedTuple):
    """The part of a result that a processor computes at once, in registers.

    Attributes
    ----------
    lanes : int
        Numbers in a register.
    registers : int
        Registers that hold sums.
    vectors : int
        Registers for a row of the tile.
    masked : bool
        True if the processor can read and write only the first lanes of a register.
    """

    lanes: int
    registers: int
    vectors: int
    masked: bool

    def rows(self, vectors: int) -> int:
        """Return the rows of a tile with ``vectors`` registers for a row."""
        return min(8, max(1, self.registers // vectors))


def tile_of(features: str) -> RegisterTile:
    """Return the tile for a processor by its features, such as ``"+avx2,-avx512f"``."""
    for feature, tile in TILES.items():
        if feature in features.split(","):
            return tile
    return RegisterTile(4, 8, 2, False)


# Sixteen sums hide the latency of two units; more rows would only make the text longer.
TILES = {
    "+avx512vl": RegisterTile(16, 16, 4, True),
    "+avx2": RegisterTile(8, 12, 2, True),
    "+neon": RegisterTile(4, 16, 4, False),
}


# Rows are read and written register by register; the last register of a row may be partial.


class Masked(NamedTuple):
    """A part of a row in a register: its lanes, and the mask of the lanes that exist; empty: all exist."""

    lanes: int
    mask: str = ""


def load_part(text: Text, array: str, offset: Index, part: Masked) -> str:
    """Add neighboring elements of an array; lanes outside the mask are 0 and are not read."""
    if not part.mask:
        return text.load(array, offset, part.lanes)
    whole = vector_type(part.lanes)
    bits = f"<{part.lanes} x i1>"
    name = f"v{part.lanes}f32.p0"
    text.declare(f"declare {whole} @llvm.masked.load.{name}(ptr, i32, {bits}, {whole})")
    operands = f"ptr {text.address(array, offset)}, i32 4, {bits} {part.mask}, {whole} zeroinitializer"
    return text.value(f"call {whole} @llvm.masked.load.{name}({operands})")


def store_part(text: Text, value: str, array: str, offset: Index, part: Masked) -> None:
    """Write neighboring elements of an array; lanes outside the mask are not written."""
    if not part.mask:
        return text.store(value, array, offset, part.lanes)
    whole = vector_type(part.lanes)
    bits = f"<{part.lanes} x i1>"
    name = f"v{part.lanes}f32.p0"
    text.declare(f"declare void @llvm.masked.store.{name}({whole}, ptr, i32, {bits})")
    operands = f"{whole} {value}, ptr {text.address(array, offset)}, i32 4, {bits} {part.mask}"
    text.execute(f"llvm.masked.store.{name}", [operands])


def first_lanes(text: Text, lanes: int, count: str) -> str:
    """Add the mask of the first ``count`` lanes."""
    short = text.value(f"trunc i64 {count} to i32")
    first = text.value(f"insertelement {integers(lanes)} poison, i32 {short}, i64 0")
    zeros = f"{integers(lanes)} poison, {integers(lanes)} zeroinitializer"
    repeated = text.value(f"shufflevector {integers(lanes)} {first}, {zeros}")
    numbers = ", ".join(f"i32 {i}" for i in range(lanes))
    return text.value(f"icmp ult {integers(lanes)} <{numbers}>, {repeated}")


@dataclass(frozen=True)
class Panel:
    """A function that computes some columns of a result, tile by tile from the top.

    Attributes
    ----------
    rows : int
        Rows of a tile.
    widths : tuple of int
        Lanes of the registers for a row of the tile.
    masked : bool
        True if the last register of a row is partial; the argument ``last`` is the number of its columns.
    further : bool
        True for all blocks of the inner dimension but the first: the sums begin at zero and are added to ``s`` at the
        end, instead of beginning with ``s``. Sums of blocks have smaller errors than one long sum.
    """

    rows: int
    widths: tuple[int, ...]
    masked: bool
    further: bool = False

    ARGUMENTS: ClassVar = (
        *("ptr %a", "i64 %a_row", "i64 %a_column", "ptr %b", "i64 %b_row", "ptr %s", "i64 %s_row", "ptr %c"),
        *("i64 %c_row", "i64 %k", "i64 %tiles", "i64 %last"),
    )

    def define(self, text: Text) -> str:
        """Define the function; return its name."""
        # The name tells all attributes, so products that need the same function share it.
        ends = "_masked" * self.masked + "_further" * self.further
        name = f"panel_{self.rows}_{'_'.join(map(str, self.widths))}{ends}"
        text.define(name, self.ARGUMENTS, self._body())
        return name

    def _body(self) -> Text:
        text = Text()
        parts = _parts_of_row(text, self.widths, self.masked)
        a, s, c = (_multiples(text, stride, self.rows + 1) for stride in ("%a_row", "%s_row", "%c_row"))
        # Pointers, not offsets, go from tile to tile: into the left matrix, the start of the sums, and the result.
        with text.loop("%tiles", carried=[("ptr", "%a"), ("ptr", "%s"), ("ptr", "%c")]) as tiles:
            at_a, at_s, at_c = tiles.carried
            places = _elements_of_rows(text, s, parts)
            first = [] if self.further else [load_part(text, at_s, row, part) for row, part in places]
            sums = self._sums(text, at_a, a, first or ["zeroinitializer"] * len(places), parts)
            if self.further:
                sums = [_plus(text, one, at_s, *place) for one, place in zip(sums, places, strict=True)]
            for value, (row, part) in zip(sums, _elements_of_rows(text, c, parts), strict=True):
                store_part(text, value, at_c, row, part)
            tiles.following = [text.address(at, rows[-1]) for at, rows in ((at_a, a), (at_s, s), (at_c, c))]
        return text

    def _sums(self, text: Text, a: str, rows: Sequence[Index], first: list[str], parts: list[Masked]) -> Sequence[str]:
        kinds = [vector_type(part.lanes) for part in parts] * self.rows
        carried = [("ptr", a), ("ptr", "%b"), *zip(kinds, first, strict=True)]
        with text.loop("%k", carried=carried) as loop:
            at_a, at_b, *sums = loop.carried
            # A row of the right matrix is in registers; each number of the left column multiplies all of it.
            b = [load_part(text, at_b, place, part) for place, part in _offsets_of_parts(parts)]
            following = list[str]()
            for row in rows[: self.rows]:
                one = text.load(at_a, row)
                for other, part in zip(b, parts, strict=True):
                    operands = [text.repeat(one, part.lanes), other, sums[len(following)]]
                    following.append(text.call("fma", operands, part.lanes))
            loop.following = [text.address(at_a, "%a_column"), text.address(at_b, "%b_row"), *following]
        return loop.following[2:]


def _parts_of_row(text: Text, widths: Sequence[int], masked: bool) -> list[Masked]:
    """Return the registers for a row; the last one may be partial."""
    mask = first_lanes(text, widths[-1], "%last") if masked else ""
    return [*(Masked(width) for width in widths[:-1]), Masked(widths[-1], mask)]


def _plus(text: Text, value: str, array: str, offset: Index, part: Masked) -> str:
    """Add the sum of a register and neighboring elements of an array."""
    return summed(text, value, load_part(text, array, offset, part), part.lanes)


def _multiples(text: Text, stride: str, count: int) -> list[Index]:
    """Add the first multiples of a stride, from 0."""
    return [text.multiply(i, stride) for i in range(count)]


def _offsets_of_parts(parts: Sequence[Masked]) -> list[tuple[int, Masked]]:
    """Return where the parts of a row begin."""
    return [(sum(one.lanes for one in parts[:i]), part) for i, part in enumerate(parts)]


def _elements_of_rows(text: Text, rows: Sequence[Index], parts: Sequence[Masked]) -> list[tuple[Index, Masked]]:
    """Return the parts of all rows of a tile; ``rows`` also has the start of the next tile."""
    return [(text.add(row, place), part) for row in rows[:-1] for place, part in _offsets_of_parts(parts)]


@dataclass(frozen=True)
class Dots:
    """A function that computes some columns of a result from rows and columns that are contiguous.

    Attributes
    ----------
    rows, columns : int
        Size of a tile; the rows are a power of two.
    lanes : int
    whole : bool
        True if rows are longer than a register; the argument ``k`` is where their last register begins.
    masked : bool
        True if the last register of a row is partial; the argument ``last`` is the number of its elements.
    """

    rows: int
    columns: int
    lanes: int
    whole: bool
    masked: bool

    ARGUMENTS: ClassVar = (
        *("ptr %a", "i64 %a_row", "ptr %b", "i64 %b_column", "ptr %s", "i64 %s_row", "ptr %c"),
        *("i64 %c_row", "i64 %k", "i64 %tiles", "i64 %last"),
    )

    def define(self, text: Text) -> str:
        """Define the function; return its name."""
        ends = "_whole" * self.whole + "_masked" * self.masked
        name = f"dots_{self.rows}_{self.columns}_{self.lanes}{ends}"
        text.define(name, self.ARGUMENTS, self._body())
        return name

    def _body(self) -> Text:
        text = Text()
        part = Masked(self.lanes, first_lanes(text, self.lanes, "%last") if self.masked else "")
        a, s, c = (_multiples(text, stride, self.rows + 1) for stride in ("%a_row", "%s_row", "%c_row"))
        b = _multiples(text, "%b_column", self.columns)
        with text.loop("%tiles", carried=[("ptr", "%a"), ("ptr", "%s"), ("ptr", "%c")]) as tiles:
            at_a, at_s, at_c = tiles.carried
            sums = ["zeroinitializer"] * (self.rows * self.columns)
            if self.whole:  # all full registers of the rows, then the last one
                sums = self._products(text, at_a, (a, b), sums)
            end_a, end_b = (text.address(at, "%k") if self.whole else at for at in (at_a, "%b"))
            sums = self._add(text, [end_a, end_b], (a, b), sums, part)
            for column in range(self.columns):
                totals = self._totals(text, sums[column :: self.columns])
                for total, *rows in zip(totals, s[:-1], c[:-1], strict=True):
                    at, into = (text.add(row, column) for row in rows)
                    text.store(_plus(text, total, at_s, at, Masked(1)), at_c, into)
            tiles.following = [text.address(at, rows[-1]) for at, rows in ((at_a, a), (at_s, s), (at_c, c))]
        return text

    def _products(self, text: Text, a: str, places: tuple[list[Index], list[Index]], first: list[str]) -> list[str]:
        carried = [("ptr", a), ("ptr", "%b"), *((vector_type(self.lanes), one) for one in first)]
        with text.loop("%k", self.lanes, carried) as loop:
            sums = self._add(text, loop.carried[:2], places, loop.carried[2:], Masked(self.lanes))
            loop.following = [*(text.address(at, self.lanes) for at in loop.carried[:2]), *sums]
        return list(loop.following[2:])

    def _add(
        self, text: Text, at: Sequence[str], places: tuple[list[Index], list[Index]], sums: Sequence[str], part: Masked
    ) -> list[str]:
        """Add the products of a register of each row and of each column to the sums."""
        rows = [load_part(text, at[0], place, part) for place in places[0][: self.rows]]
        columns = [load_part(text, at[1], place, part) for place in places[1]]
        pairs = [(row, column) for row in rows for column in columns]
        return [text.call("fma", [*pair, one], self.lanes) for pair, one in zip(pairs, sums, strict=True)]

    def _totals(self, text: Text, sums: list[str]) -> list[str]:
        """Add up the lanes of each register, for several registers at once as long as their halves fill one."""
        size = self.lanes
        # The tree of sums depends on the lanes alone: an element has the same bits in a tile of any number of rows.
        while len(sums) > 1:
            pairs = zip(sums[::2], sums[1::2], strict=True)
            sums = [joined_halves(text, pair, self.lanes, size, 2 * self.lanes, summed) for pair in pairs]
            size //= 2
        while size > 1:
            lanes = self.rows * size
            sums = [joined_halves(text, (sums[0], "poison"), lanes, size, lanes, summed)]
            size = size // 2
        return [shuffled(text, (sums[0], "poison"), self.rows, [i]) for i in range(self.rows)]


@dataclass(frozen=True)
class Copy:
    """A function that copies some columns of a matrix; attributes as for :class:`Panel`."""

    widths: tuple[int, ...]
    masked: bool

    ARGUMENTS: ClassVar = ("ptr %a", "i64 %a_row", "ptr %c", "i64 %c_row", "i64 %rows", "i64 %last")

    def define(self, text: Text) -> str:
        """Define the function; return its name."""
        name = f"copy_{'_'.join(map(str, self.widths))}{'_masked' * self.masked}"
        text.define(name, self.ARGUMENTS, self._body())
        return name

    def _body(self) -> Text:
        text = Text()
        places = _offsets_of_parts(_parts_of_row(text, self.widths, self.masked))
        with text.loop("%rows", carried=[("ptr", "%a"), ("ptr", "%c")]) as loop:
            at_a, at_c = loop.carried
            for place, part in places:
                store_part(text, load_part(text, at_a, place, part), at_c, place, part)
            loop.following = [text.address(at_a, "%a_row"), text.address(at_c, "%c_row")]
        return text


@dataclass(frozen=True)
class Transposition:
    """A function that transposes a matrix block by block; the last blocks overlap the ones before.

    Attributes
    ----------
    size : int
        Rows and columns of a block; the matrix has at least as many.
    """

    size: int

    ARGUMENTS: ClassVar = ("ptr %a", "i64 %a_row", "ptr %c", "i64 %c_row", "i64 %rows", "i64 %columns")

    def define(self, text: Text) -> str:
        """Define the function; return its name."""
        text.define(f"transpose_{self.size}", self.ARGUMENTS, self._body())
        return f"transpose_{self.size}"

    def _body(self) -> Text:
        text = Text()
        a, c = (_multiples(text, stride, self.size) for stride in ("%a_row", "%c_row"))
        with text.loop("%rows", self.size) as rows:
            row = self._start(text, rows.index, "%rows")
            from_row, to_column = text.address("%a", text.multiply(row, "%a_row")), text.address("%c", row)
            with text.loop("%columns", self.size) as columns:
                column = self._start(text, columns.index, "%columns")
                at_a, at_c = text.address(from_row, column), text.address(to_column, text.multiply(column, "%c_row"))
                values = [text.load(at_a, one, self.size) for one in a]
                for value, one in zip(self._transposed(text, values), c, strict=True):
                    text.store(value, at_c, one, self.size)
        return text

    def _start(self, text: Text, index: str, stop: str) -> str:
        """Add where a block starts, so that it ends with the matrix."""
        if self.size == 1:
            return index
        last = text.value(f"sub i64 {stop}, {self.size}")
        text.declare("declare i64 @llvm.smin.i64(i64, i64)")
        return text.value(f"call i64 @llvm.smin.i64(i64 {index}, i64 {last})")

    def _transposed(self, text: Text, values: list[str]) -> list[str]:
        """Interleave the first half of the vectors with the second, until the rows are columns."""
        size = self.size
        for _ in range(size.bit_length() - 1):
            pairs = zip(values[: size // 2], values[size // 2 :], strict=True)
            values = [
                shuffled(text, pair, size, [i for j in range(start, start + size // 2) for i in (j, j + size)])
                for pair in pairs
                for start in (0, size // 2)
            ]
        return values

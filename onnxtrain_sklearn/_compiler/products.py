"""Matrix products as stages of a compiled function.

:class:`ProductStage` is the stage, :func:`add_product` writes one product, by calls of the functions in
:mod:`.kernels`.

The left matrix is read where it is, number by number. The right one is read along its rows; one with other strides is
transposed first. There are three forms: panels of columns (the usual one), the transposed product if it leaves fewer
lanes idle, and dots, rows and columns multiplied lane by lane, if the result has few columns. A long inner dimension is
cut into blocks whose sums are added up, which keeps errors small. Nothing outside the arrays is touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from .kernels import Copy, Dots, Panel, RegisterTile, Transposition
from .llvm_text import Index, Text
from .views import Buffer, RowBound, Shape, View, clamped, merged_axes

SQUARE = 4
"""Rows and columns of the blocks in which a matrix is transposed."""

DEPTH = 256
"""Most products that are added up in order: longer sums have larger errors. A panel of as many rows stays in the
second-level cache."""


@dataclass(frozen=True)
class Tuning:
    """Bounds between forms of a product, measured by ``python benchmarks/products.py``: run it after a change.

    A form decides the order in which numbers are added, and so the last bits of a result.
    """

    few_columns: int = 3
    """Up to this many columns of a result, the lanes of a register are for the inner dimension."""

    worth_transposing: float = 0.2
    """The transposed product is computed if it leaves this share fewer lanes idle."""

    far: int = 512
    """The right matrix is copied if its rows are this far apart, as they are then slow to read,"""

    far_rows: int = 128
    """and it has this many rows,"""

    many_rows: int = 48
    """and the left matrix has this many rows, which all read the copy."""


TUNING = Tuning()


@dataclass(eq=False)
class ProductStage:
    """The product of matrices, or of stacks of them: the axes before the last two count matrices, multiplied in pairs.

    Attributes
    ----------
    left, right, result : View
        The result is contiguous.
    bias : View or None
        A row that is added to each row of the result.
    tile : RegisterTile
    scratch : Buffer
        Memory for intermediate results.
    bound : RowBound or None
        The rows of the result that are computed, or with ``over_rows`` the rows that are summed up.
    """

    left: View
    right: View
    result: View
    tile: RegisterTile
    bias: View | None = None
    bound: RowBound | None = None
    over_rows: bool = False

    def __post_init__(self) -> None:
        (m, k), n = self.left.shape[-2:], self.result.shape[-1]
        self._sizes = m, k, n
        # Sizes and strides alone choose the form and its memory, before any array has a name.
        left, right = (Matrix("", *view.strides[-2:]) for view in (self.left, self.right))
        self.scratch = Buffer(scratch_elements(self.tile, self._sizes, left, right, self.bias is not None))

    @property
    def sums_in_order(self) -> bool:
        """True if an element of the result is one sum, added up in order from zero: zeros at its end change no bit."""
        left, right = (Matrix("", *view.strides[-2:]) for view in (self.left, self.right))
        return self._sizes[1] <= DEPTH and self.bias is None and not has_dots(self.tile, self._sizes, left, right)

    def read(self) -> Sequence[View]:
        return [self.left, self.right, *([] if self.bias is None else [self.bias])]

    def written(self) -> Sequence[View]:
        return [self.result]

    def write(self, text: Text) -> None:
        views = self.left, self.right, self.result
        stack, strides = merged_axes(self.result.shape[:-2], [view.strides[:-2] for view in views])
        self._nest(text, stack, strides, [view.offset for view in views])

    def _nest(self, text: Text, stack: Shape, strides: Sequence[Shape], starts: Sequence[Index]) -> None:
        if stack:
            with text.loop(stack[0]) as loop:
                inner = [
                    text.add(start, text.multiply(loop.index, s[0])) for start, s in zip(starts, strides, strict=True)
                ]
                self._nest(text, stack[1:], [steps[1:] for steps in strides], inner)
            return
        left, right, result = (
            text.address(view.buffer.pointer, start)
            for view, start in zip((self.left, self.right, self.result), starts, strict=True)
        )
        bias = None if self.bias is None else text.address(self.bias.buffer.pointer, self.bias.offset)
        matrices = Matrix(left, *self.left.strides[-2:]), Matrix(right, *self.right.strides[-2:])
        (m, k, _), used = self._sizes, None
        if self.bound is not None:
            used = Used(m, self.bound.of(text, k)) if self.over_rows else Used(self.bound.of(text, m), k)
        add_product(text, self.tile, self._sizes, *matrices, result, self.scratch.pointer, bias, used)


class Matrix(NamedTuple):
    """A matrix in an array: the element of a row and a column stands at ``row * i + column * j``.

    Attributes
    ----------
    array : str
        Name of the pointer.
    row, column : int
        Strides, in elements.
    """

    array: str
    row: int
    column: int

    @property
    def transposed(self) -> Matrix:
        """The same elements, with rows for columns."""
        return Matrix(self.array, self.column, self.row)


class ProductSizes(NamedTuple):
    """Sizes of a product: rows of the left matrix, its columns, and columns of the right one."""

    rows: int
    inner: int
    columns: int


class Used(NamedTuple):
    """The part of a product that is computed: at least the first ``rows``, as sums of the first ``inner`` products.

    An ``inner`` that is not constant is at most ``DEPTH``, and not computed with dots.
    """

    rows: Index
    inner: Index


class _Form(Enum):
    """The form in which a product is computed.

    PANELS: columns of the result, register by register. SWAPPED: the transposed product, of the transposed matrices in
    the other order, in panels. DOTS: the lanes of a register are for the inner dimension.
    """

    PANELS, SWAPPED, DOTS = range(3)


def scratch_elements(
    tile: RegisterTile, sizes: tuple[int, int, int], left: Matrix, right: Matrix, bias: bool = False
) -> int:
    """Return the number of elements of the array for intermediate results."""
    (m, k, n), left, right = _with_unit_strides(ProductSizes(*sizes), left, right)
    form = _form(ProductSizes(m, k, n), left, right, bias, tile)
    if form is _Form.SWAPPED:
        return m * n if n > 1 else 0
    if form is _Form.DOTS:
        return k * n if right.row != 1 else 0
    width = tile.lanes * min(tile.vectors, -(-n // tile.lanes))
    return min(k, DEPTH) * width if _is_packed(ProductSizes(m, k, n), right) else 0


def has_dots(tile: RegisterTile, sizes: tuple[int, int, int], left: Matrix, right: Matrix) -> bool:
    """Return True if the lanes of a register are for the inner dimension of a product without a bias."""
    return _form(*_with_unit_strides(ProductSizes(*sizes), left, right), False, tile) is _Form.DOTS


def add_product(
    text: Text,
    tile: RegisterTile,
    sizes: tuple[int, int, int],
    left: Matrix,
    right: Matrix,
    result: str,
    scratch: str,
    bias: str | None = None,
    used: Used | None = None,
) -> None:
    """Write the product of two matrices into a contiguous array.

    Parameters
    ----------
    text : Text
    tile : RegisterTile
        The tile that the processor computes at once.
    sizes : tuple of int
        Rows of the left matrix, its columns, and columns of the right one; none is 0.
    left, right : Matrix
    result : str
        Name of a pointer to an array that overlaps no other.
    scratch : str
        Name of a pointer to as many elements as ``scratch_elements`` returns.
    bias : str, optional
        Name of a pointer to the vector that is added to each row.
    used : Used, optional
        By default all is computed.
    """
    _ProductWriter(text, ProductSizes(*sizes), tile, used).add(left, right, result, scratch, bias)


def _with_unit_strides(sizes: ProductSizes, left: Matrix, right: Matrix) -> tuple[ProductSizes, Matrix, Matrix]:
    """Return the matrices with strides of 1 along sizes of 1, along which no loop steps."""
    left = left._replace(column=1) if sizes.inner == 1 else left
    left = left._replace(row=1) if sizes.rows == 1 else left
    right = right._replace(column=1) if sizes.columns == 1 else right
    return sizes, left, right._replace(row=1) if sizes.inner == 1 and right.column != 1 else right


def _form(sizes: ProductSizes, left: Matrix, right: Matrix, bias: bool, tile: RegisterTile) -> _Form:
    # Dots read the rest of a row by a mask. The transposed product has the left matrix on the right, where its columns
    # must be contiguous.
    contiguous = left.column == 1 and tile.masked and sizes.inner > 1
    if sizes.columns <= TUNING.few_columns < sizes.rows and contiguous:
        return _Form.DOTS
    narrower = _waste(sizes.columns, tile) > _waste(sizes.rows, tile) + TUNING.worth_transposing
    return _Form.SWAPPED if not bias and left.row == 1 and narrower else _Form.PANELS


def _waste(columns: int, tile: RegisterTile) -> float:
    """Return the number of idle lanes for each lane that computes something."""
    last = columns % tile.lanes
    return (columns - last + sum(_last_widths(last, tile))) / columns - 1


def _is_packed(sizes: ProductSizes, right: Matrix) -> bool:
    """Return True if panels of the right matrix are copied: to get rows, or as rows far apart are slow to read."""
    return right.column != 1 or (
        right.row >= TUNING.far and sizes.inner >= TUNING.far_rows and sizes.rows >= TUNING.many_rows
    )


class _Groups(NamedTuple):
    """Parts of equal size: how many, their size, and where the first begins."""

    parts: int
    size: int
    start: int


def _even(total: int, most: int) -> Iterator[_Groups]:
    """Cut a size into the fewest parts of at most ``most``; they differ by at most one."""
    parts = -(-total // most)
    size, longer = divmod(total, parts)
    if longer:
        yield _Groups(longer, size + 1, 0)
    yield _Groups(parts - longer, size, longer * (size + 1))


def _tiles(total: int, most: int) -> Iterator[_Groups]:
    """Cut rows into tiles, of a single size if one above ``most / 2`` divides them: a size is a function to compile."""
    for size in range(most, most // 2, -1):
        if total % size == 0:
            return iter([_Groups(total // size, size, 0)])
    return _even(total, most)


def _panels(columns: int, tile: RegisterTile) -> Iterator[tuple[_Groups, tuple[int, ...], int]]:
    """Cut columns into panels: their places, the lanes of their registers, and the columns in a partial last one."""
    last = columns % tile.lanes
    groups = list(_even(-(-columns // tile.lanes), tile.vectors))
    for group in groups:
        count = group.parts - (last > 0 and group is groups[-1])
        widths = (tile.lanes,) * group.size
        if count:
            yield _Groups(count, group.size * tile.lanes, group.start * tile.lanes), widths, 0
    if last:  # the last panel ends with a partial register
        start = (group.start + count * group.size) * tile.lanes
        yield _Groups(1, columns - start, start), (*widths[1:], *_last_widths(last, tile)), last


def _last_widths(last: int, tile: RegisterTile) -> tuple[int, ...]:
    """Return the lanes of the registers for the last columns: one with a mask, or powers of two."""
    if tile.masked and last:
        return (tile.lanes // 2 if 2 * last <= tile.lanes else tile.lanes,)
    return tuple(1 << bit for bit in reversed(range(last.bit_length())) if last >> bit & 1)


def _blocks(total: int, most: int) -> Iterator[_Groups]:
    """Cut a size into even blocks, of which the first stands alone."""
    for group in _even(total, most):
        if group.start:
            yield group
        else:  # it begins with the bias or with zeros, the others with the result so far
            yield group._replace(parts=1)
            if group.parts > 1:
                yield _Groups(group.parts - 1, group.size, group.size)


class _ProductWriter:
    """The parts of a product, as they are written."""

    def __init__(self, text: Text, sizes: ProductSizes, tile: RegisterTile, used: Used | None = None) -> None:
        self._text, self._sizes, self._tile = text, sizes, tile
        self._used = used or Used(sizes.rows, sizes.inner)

    def add(self, left: Matrix, right: Matrix, result: str, scratch: str, bias: str | None) -> None:
        """Write all of it."""
        sizes, left, right = _with_unit_strides(self._sizes, left, right)
        form = _form(sizes, left, right, bias is not None, self._tile)
        start = Matrix(bias, 0, 1) if bias else Matrix(self._zeros(), 0, 0)
        if form is _Form.DOTS:
            self._add_dots(left, self._columns(right, scratch), Matrix(result, sizes.columns, 1), start)
        elif form is _Form.SWAPPED:
            m, k, n = self._sizes
            other = _ProductWriter(self._text, ProductSizes(n, k, m), self._tile, Used(n, self._used.inner))
            zeros = Matrix(self._zeros(), 0, 0)
            into = result if n == 1 else scratch
            other._add_panels(right.transposed, left.transposed, Matrix(into, m, 1), zeros, None)
            if n > 1:
                self._transpose(Matrix(scratch, m, 1), Matrix(result, n, 1), n, m)
        else:
            between = scratch if _is_packed(sizes, right) else None
            self._add_panels(left, right, Matrix(result, sizes.columns, 1), start, between)

    def _zeros(self) -> str:
        """Return an array of zeros."""
        count = self._tile.lanes * self._tile.vectors
        self._text.declare(f"@zeros = internal constant [{count} x float] zeroinitializer, align 64")
        return "@zeros"

    def _at(self, matrix: Matrix, row: Index, column: Index) -> Matrix:
        """Return the part of a matrix from an element on."""
        text = self._text
        offset = text.add(text.multiply(row, matrix.row), text.multiply(column, matrix.column))
        return matrix._replace(array=text.address(matrix.array, offset))

    def _steps(self, group: _Groups) -> Iterator[Index]:
        """Write a loop over parts where there are several; yield where one begins."""
        if group.parts == 1:
            yield group.start
            return
        with self._text.loop(group.parts) as loop:
            yield self._text.add(self._text.multiply(loop.index, group.size), group.start)

    def _add_panels(self, left: Matrix, right: Matrix, result: Matrix, start: Matrix, scratch: str | None) -> None:
        """Write the result panel by panel: all of them for a block of the inner dimension, then for the next."""
        for block in _blocks(self._sizes.inner, DEPTH):
            for position in self._steps(block):
                a, b = self._at(left, 0, position), self._at(right, position, 0)
                # The first block begins with the bias or zeros, the others are added to the result.
                further = block.start > 0
                first = result if further else start
                for group, widths, last in _panels(self._sizes.columns, self._tile):
                    for column in self._steps(group):
                        strip = self._at(b, 0, column)
                        if scratch:
                            strip = self._packed(strip, ProductSizes(0, block.size, group.size), scratch, widths, last)
                        into = self._at(result, 0, column), self._at(first, 0, column)
                        kernel = Panel(0, widths, last > 0 and self._tile.masked, further)
                        # Rows that are left out are zeros at the end of the sums.
                        inner = block.size if self._used.inner == self._sizes.inner else self._used.inner
                        self._add_panel(kernel, a, strip, *into, inner, last)

    def _add_panel(
        self, kernel: Panel, left: Matrix, right: Matrix, result: Matrix, start: Matrix, inner: Index, last: int
    ) -> None:
        for rows in _tiles(self._sizes.rows, self._tile.rows(len(kernel.widths))):
            name = replace(kernel, rows=rows.size).define(self._text)
            a, s, c = (self._at(one, rows.start, 0) for one in (left, start, result))
            operands = [f"ptr {a.array}", *_integers(a.row, a.column), f"ptr {right.array}", *_integers(right.row)]
            operands += [f"ptr {s.array}", *_integers(s.row), f"ptr {c.array}"]
            self._text.execute(name, [*operands, *_integers(c.row, inner, self._tiles_used(rows), last)])

    def _tiles_used(self, rows: _Groups) -> Index:
        """Add the number of tiles that are computed: at least one, as nothing reads what it writes beyond the rows."""
        text, used = self._text, self._used.rows
        if used == self._sizes.rows or rows.parts == 1:
            return rows.parts
        beyond = text.value(f"add i64 {used}, {rows.size - 1 - rows.start}")
        return clamped(text, text.value(f"sdiv i64 {beyond}, {rows.size}"), 1, rows.parts)

    def _packed(self, right: Matrix, sizes: ProductSizes, scratch: str, widths: tuple[int, ...], last: int) -> Matrix:
        """Copy a part of the right matrix to contiguous rows."""
        _, rows, columns = sizes
        into = Matrix(scratch, sum(widths), 1)
        if right.column == 1:
            name = Copy(widths, last > 0 and self._tile.masked).define(self._text)
            numbers = _integers(into.row, rows, last)
            self._text.execute(name, [f"ptr {right.array}", *_integers(right.row), f"ptr {scratch}", *numbers])
        else:
            self._transpose(right.transposed, into, columns, rows)
        return into

    def _columns(self, right: Matrix, scratch: str) -> Matrix:
        """Return the right matrix with contiguous columns."""
        _, k, n = self._sizes
        if right.row == 1:
            return right
        self._transpose(right, Matrix(scratch, k, 1), k, n)
        return Matrix(scratch, 1, k)

    def _transpose(self, source: Matrix, into: Matrix, rows: int, columns: int) -> None:
        name = Transposition(SQUARE if min(rows, columns) >= SQUARE else 1).define(self._text)
        numbers = _integers(into.row, rows, columns)
        self._text.execute(name, [f"ptr {source.array}", *_integers(source.row), f"ptr {into.array}", *numbers])

    def _add_dots(self, left: Matrix, right: Matrix, result: Matrix, start: Matrix) -> None:
        """Write the result for a block of the inner dimension, then add the others; only the last may be shorter."""
        (m, inner, n), lanes = self._sizes, self._tile.lanes
        size = DEPTH * lanes
        whole, rest = divmod(inner, size)
        blocks = [_Groups(1, min(inner, size), 0)]
        blocks += [_Groups(whole - 1, size, size)] if whole > 1 else []
        blocks += [_Groups(1, rest, whole * size)] if whole and rest else []
        for block in blocks:
            for position in self._steps(block):
                a, b = self._at(left, 0, position), self._at(right, position, 0)
                first = result if block.start else start
                last, row = block.size % lanes, 0
                end = block.size - (last or lanes)
                for rows in (8 // (1 + (n > 1)), 4, 2, 1):  # powers of two, with at most 12 sums in registers
                    if count := (m - row) // rows:
                        name = Dots(rows, n, lanes, end > 0, last > 0).define(self._text)
                        at, s, c = (self._at(one, row, 0) for one in (a, first, result))
                        operands = [f"ptr {at.array}", *_integers(at.row), f"ptr {b.array}", *_integers(b.column)]
                        operands += [f"ptr {s.array}", *_integers(s.row), f"ptr {c.array}"]
                        tiles = self._tiles_used(_Groups(count, rows, row))
                        self._text.execute(name, [*operands, *_integers(n, end, tiles, last)])
                        row += count * rows


def _integers(*numbers: Index) -> list[str]:
    return [f"i64 {number}" for number in numbers]

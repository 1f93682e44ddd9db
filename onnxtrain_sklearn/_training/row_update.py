"""Updates of some rows of a matrix: those that occur in a minibatch, a block of them at a time.

The rows of the matrix, of its gradient and of the optimizer's vectors are copied to blocks, updated there by the graph
of the optimizer, and copied back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeAlias

import numpy as np

from ..optimizers import Optimizer
from .compiled_update import VectorUpdate, formula_update
from .numpy_update import BLOCK
from .parameters import FlatParameters
from .row_gradients import RowGradients
from .segments import Segment, require_rows_apart
from .vector_bindings import SegmentUpdate, bind_update

GRADIENTS = "gradients"

BLOCK_SIZES = 8
"""Sizes that blocks have: the smallest that holds the rows of a step is updated."""

Matrices: TypeAlias = "Mapping[str, Sequence[np.ndarray]]"


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Copies of some rows of the parameters, the optimizer's vectors and the gradients, and their update in place."""

    arrays: Matrices
    update: VectorUpdate

    def run(self, matrices: Matrices, rows: np.ndarray) -> None:
        """Update these rows of the matrices."""
        for name, parts in matrices.items():
            for matrix, block in zip(parts, self.arrays[name], strict=True):
                np.take(matrix, rows, 0, block[: len(rows)], "clip")  # which does not buffer the result
                block[len(rows) :] = 0
        self.update.run()
        for name in matrices.keys() - {GRADIENTS}:
            for matrix, block in zip(matrices[name], self.arrays[name], strict=True):
                matrix[rows] = block[: len(rows)]


@dataclass(frozen=True, eq=False)
class RowUpdate:
    """The update of the rows of a matrix that occur.

    Attributes
    ----------
    table : RowGradients
    matrices : mapping of str to sequence of ndarray
        The parameters, the optimizer's vectors and the gradients, views of shape (n_rows, n_columns); of a matrix that
        is stored transposed, its rows.
    size : int
        Rows that are updated together at most.
    block_of : callable
        Returns a block of so many rows.
    whole : sequence of VectorUpdate
        The update of all rows, for steps in which all are taken to occur.
    """

    table: RowGradients
    matrices: Matrices
    size: int
    block_of: Callable[[int], RowBlock]
    whole: Sequence[VectorUpdate] = ()

    def run(self) -> None:
        """Update the rows in place."""
        if self.table.everywhere:
            for update in self.whole:
                update.run()
            return
        rows = self.table.rows(repeated=self.size)  # in one block, equal rows are updated alike
        for start in range(0, len(rows), self.size):
            part = rows[start : start + self.size]
            self.block_of(self._rounded(len(part))).run(self.matrices, part)

    def _rounded(self, count: int) -> int:
        step = -(-self.size // BLOCK_SIZES)
        return min(self.size, -(-count // step) * step)


def row_update(
    one: SegmentUpdate,
    table: RowGradients,
    vectors: Mapping[str, np.ndarray],
    scalars: Mapping[str, np.ndarray],
    whole: Sequence[VectorUpdate] = (),
) -> RowUpdate:
    """Return the update of the rows of the matrix that the segment holds."""
    shape, axis, part = table.gradient.shape, table.axis, one.segment.part
    matrices = {name: _by_row(vector[part].reshape(shape), axis) for name, vector in vectors.items()}
    matrices[GRADIENTS] = _by_row(table.gradient, axis)
    n_rows, width = shape[axis], shape[1 - axis]
    size = min(n_rows, max(1, BLOCK // (2 * width)))

    @cache
    def block_of(count: int) -> RowBlock:
        dtype, layout = table.gradient.dtype, (count, width)[:: 1 - 2 * axis]
        return _row_block(one, {name: np.zeros(layout, dtype) for name in matrices}, axis, scalars)

    return RowUpdate(table, matrices, size, block_of, whole)


def _row_block(
    one: SegmentUpdate, arrays: Mapping[str, np.ndarray], axis: int, scalars: Mapping[str, np.ndarray]
) -> RowBlock:
    flat, formula = {name: array.ravel() for name, array in arrays.items()}, one.program.formula
    gradients, blocks = flat.pop(GRADIENTS), {name: _by_row(array, axis) for name, array in arrays.items()}
    if formula is None:
        return RowBlock(blocks, bind_update(one.open_session(), flat, gradients, scalars))
    return RowBlock(blocks, formula_update(formula, flat, gradients, scalars))


def _by_row(matrix: np.ndarray, axis: int) -> list[np.ndarray]:
    """Return views whose first axis is that of the rows."""
    if matrix.shape[1 - axis] == 1:
        return [matrix.ravel()]  # numbers are copied faster than rows of one number
    return [matrix] if axis == 0 else list(matrix)


@dataclass(frozen=True, eq=False)
class RowChoice:
    """The choice of what is updated by rows.

    ``lazy``: all matrices that are read by rows, else those whose other rows stay as they are and are most of them.
    ``penalized``: the penalty moves all rows.
    """

    tables: Mapping[str, RowGradients]
    parameters: FlatParameters
    optimizer: Optimizer
    lazy: bool
    penalized: bool

    def parts(self, one: SegmentUpdate) -> list[tuple[SegmentUpdate, RowGradients | None]]:
        """Divide a segment into the matrices that are updated by rows and what is between them."""
        whole, start = one.segment.part, one.segment.part.start
        found: list[tuple[SegmentUpdate, RowGradients | None]] = []
        for span, table in self._tables_in(one):
            found += [(_of(one, slice(start, span.start)), None), (_of(one, span), table)]
            start = span.stop
        found.append((_of(one, slice(start, whole.stop)), None))
        return [(part, table) for part, table in found if part.segment.part.start < part.segment.part.stop]

    def _tables_in(self, one: SegmentUpdate) -> list[tuple[slice, RowGradients]]:
        spans = {name: self.parameters.span(name) for name in self.parameters.names if name in self.tables}
        whole, by_rows = one.segment.part, self._by_rows
        inner = {name: span for name, span in spans.items() if whole.start <= span.start and span.stop <= whole.stop}
        return [(span, self.tables[name]) for name, span in inner.items() if by_rows(one, self.tables[name])]

    def _by_rows(self, one: SegmentUpdate, table: RowGradients) -> bool:
        if self.lazy:
            require_rows_apart(self.optimizer, elementwise=one.program.elementwise)
            return True
        rests = one.program.elementwise and not (one.program.moves_without_gradient or self.penalized)
        return rests and 2 * table.count <= table.n_rows


def _of(one: SegmentUpdate, part: slice) -> SegmentUpdate:
    return one if part == one.segment.part else replace(one, segment=Segment(part, one.factors))

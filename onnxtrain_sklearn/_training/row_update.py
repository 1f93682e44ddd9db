"""Updates of some rows of a matrix: those that occur in a minibatch, a block of them at a time.

The rows of the matrix, of its gradient and of the optimizer's vectors are copied to blocks, updated there by the graph
of the optimizer, and copied back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .._runtime.binding import Binding
from ..optimizers import Optimizer
from .numpy_update import BLOCK, NumpyUpdate, numpy_update
from .parameters import FlatParameters
from .row_gradients import RowGradients
from .segments import Segment, require_rows_apart
from .vector_bindings import SegmentUpdate, bind_update

GRADIENTS = "gradients"


@dataclass(frozen=True, eq=False)
class RowUpdate:
    """The update of the rows of a matrix that occur.

    Attributes
    ----------
    table : RowGradients
    matrices : mapping of str to sequence of ndarray
        The parameters, the optimizer's vectors and the gradients, views of shape (n_rows, n_columns); of a matrix that
        is stored transposed, its rows.
    blocks : mapping of str to sequence of ndarray
        Arrays of the same names, of so many rows as are updated together.
    update : Binding or NumpyUpdate
        The update of the blocks in place.
    whole : sequence of Binding or NumpyUpdate
        The update of all rows, for steps in which all are taken to occur.
    """

    table: RowGradients
    matrices: Mapping[str, Sequence[np.ndarray]]
    blocks: Mapping[str, Sequence[np.ndarray]]
    update: Binding | NumpyUpdate
    whole: Sequence[Binding | NumpyUpdate] = ()

    def run(self) -> None:
        """Update the rows in place."""
        if self.table.everywhere:
            for update in self.whole:
                update.run()
            return
        rows, size = self.table.rows(), len(self.blocks["gradients"][0])
        for start in range(0, len(rows), size):
            self._update(rows[start : start + size])

    def _update(self, rows: np.ndarray) -> None:
        for name, matrices in self.matrices.items():
            for matrix, block in zip(matrices, self.blocks[name], strict=True):
                np.take(matrix, rows, 0, block[: len(rows)], "clip")  # which does not buffer the result
                block[len(rows) :] = 0
        self.update.run()
        for name in self.matrices.keys() - {GRADIENTS}:
            for matrix, block in zip(self.matrices[name], self.blocks[name], strict=True):
                matrix[rows] = block[: len(rows)]


def row_update(
    one: SegmentUpdate,
    table: RowGradients,
    vectors: Mapping[str, np.ndarray],
    scalars: Mapping[str, np.ndarray],
    whole: Sequence[Binding | NumpyUpdate] = (),
) -> RowUpdate:
    """Return the update of the rows of the matrix that the segment holds."""
    shape, axis, part = table.gradient.shape, table.axis, one.segment.part
    matrices = {name: _by_row(vector[part].reshape(shape), axis) for name, vector in vectors.items()}
    matrices[GRADIENTS] = _by_row(table.gradient, axis)
    n_rows, width = shape[axis], shape[1 - axis]
    size = min(n_rows, max(1, BLOCK // (2 * width)))
    arrays = {name: np.zeros((size, width)[:: 1 - 2 * axis], table.gradient.dtype) for name in matrices}
    blocks = {name: _by_row(array, axis) for name, array in arrays.items()}
    flat = {name: array.ravel() for name, array in arrays.items()}
    gradients, formula = flat.pop(GRADIENTS), one.program.formula
    if formula is None:
        return RowUpdate(table, matrices, blocks, bind_update(one.open_session(), flat, gradients, scalars), whole)
    return RowUpdate(table, matrices, blocks, numpy_update(formula, flat, gradients, scalars), whole)


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

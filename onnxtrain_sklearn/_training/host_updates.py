"""Apply penalty, accumulation, optimizer update and weight average on the host, to all rows or to some."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np

from .._utils.typing import DType
from . import formula_updates
from .formula_updates import SAVINGS, VectorUpdate, formula_update, saved_by_compiling
from .loss_graph import PENALTY
from .parameters import FlatParameters, require_rows_apart
from .passes import RowGradients
from .step_interface import OptimizerState, Rates
from .update_bindings import SegmentUpdate, VectorBindings, bind_update, step_weight


class HostPenalty:
    """The penalty on the penalized part of the parameters."""

    def __init__(self, bindings: VectorBindings, parameters: FlatParameters) -> None:
        part = parameters.penalized
        self._strength, self._value = np.zeros((), bindings.dtype), np.zeros((), bindings.dtype)
        scalars = {"strength": self._strength, PENALTY: self._value}
        self._binding = bindings.penalty(parameters.vector[part], parameters.gradient[part], **scalars)

    def run(self, weight: float) -> float:
        """Add its gradients, divided by the sum ``weight`` of the weights of the rows; return its value."""
        self._strength[()] = 1.0 / weight if weight > 0 else 0.0
        self._binding.run()
        return float(self._value.item())


class HostAccumulation:
    """The mean of the gradients of a group of minibatches."""

    def __init__(self, bindings: VectorBindings, parameters: FlatParameters) -> None:
        self._share = np.zeros((), bindings.dtype)
        self._bindings = bindings.accumulation(parameters.gradient, self._share)

    def add(self, i: int, count: int, share: float) -> None:
        """Add the gradients of minibatch ``i`` of ``count``; the last leaves the mean of all in the gradients."""
        if count > 1:
            self._share[()] = share
            self._bindings[i == 0, i == count - 1].run()


class HostAverage:
    """The moving average of the parameters, of which ``state`` counts the steps."""

    def __init__(
        self, bindings: VectorBindings, parameters: FlatParameters, state: OptimizerState, decay: float
    ) -> None:
        assert parameters.average is not None
        self._state, self._decay, self._weight = state, decay, np.zeros((), bindings.dtype)
        self._binding = bindings.average(parameters.average, parameters.vector, self._weight)

    def run(self) -> None:
        """Move the average towards the parameters."""
        self._state.averaged += 1
        self._weight[()] = step_weight(self._decay, self._state.averaged)
        self._binding.run()


@dataclass(frozen=True, eq=False)
class HostUpdate:
    """The updates of all segments of equal factors, and the scalars that they read."""

    scalars_of: Callable[[Rates, int], Mapping[str, Any]]
    scalars: Mapping[str, np.ndarray]
    bindings: list[VectorUpdate | RowUpdate]

    def run(self, rates: Rates, t: int) -> None:
        """Take step ``t``."""
        for name, value in self.scalars_of(rates, t).items():
            self.scalars[name][()] = value
        for binding in self.bindings:
            binding.run()


class HostUpdates:
    """The update of all parameters and slots, compiled once that pays; its steps are the same to the bit.

    Parameters
    ----------
    segments, parameters, slots, choice
        As :func:`host_updates` takes them.

    Attributes
    ----------
    updates : list of HostUpdate
    """

    def __init__(
        self,
        segments: list[SegmentUpdate],
        parameters: FlatParameters,
        slots: Mapping[str, np.ndarray],
        choice: RowChoice,
    ) -> None:
        self._make = partial(host_updates, segments, parameters, slots, choice)
        self.updates = self._make()
        self._saved = sum(saved_by_compiling(one) for update in self.updates for one in update.bindings)

    def prepare(self, steps: int) -> None:
        """Prepare for so many steps."""
        if self._saved:
            SAVINGS.add(steps * self._saved)
            if SAVINGS.suffice:
                self.updates, self._saved = self._make(), 0.0

    def run(self, rates: Rates, t: int) -> None:
        """Take step ``t``."""
        for update in self.updates:
            update.run(rates, t)


def host_updates(
    segments: list[SegmentUpdate], parameters: FlatParameters, slots: Mapping[str, np.ndarray], choice: RowChoice
) -> list[HostUpdate]:
    """Return the updates of the parameters and the slots, one for all segments whose scalars are the same."""
    updates: dict[object, HostUpdate] = {}
    for one in segments:
        if one.scalars_key not in updates:
            updates[one.scalars_key] = HostUpdate(one.scalars, _scalars(one, parameters.vector.dtype), [])
        update = updates[one.scalars_key]
        for part, table in choice.parts(one):
            arrays, gradients = part.host_arrays(parameters.vector, parameters.gradient, slots)
            if table is None:
                update.bindings.extend(_bound(part, arrays, gradients, update.scalars))
            else:
                whole = () if table.most is None else _bound(part, arrays, gradients, update.scalars)
                update.bindings.append(row_update(part, table, arrays, update.scalars, whole))
    return list(updates.values())


def _scalars(one: SegmentUpdate, dtype: DType) -> dict[str, np.ndarray]:
    kinds = {n: np.int64 if isinstance(x, int) else dtype for n, x in one.scalars(Rates(0.001), 1).items()}
    return {name: np.zeros((), kind) for name, kind in kinds.items()}


def _bound(
    one: SegmentUpdate, arrays: Mapping[str, np.ndarray], gradients: np.ndarray, scalars: Mapping[str, np.ndarray]
) -> list[VectorUpdate]:
    """Return the updates of a segment: by its formula if it has one and that pays, else by the session in pieces."""
    formula, tuning = one.program.formula, formula_updates.TUNING
    if formula is not None and gradients.size > tuning.least_elements:
        return [formula_update(formula, arrays, gradients, scalars)]
    session = one.open_session()
    if not one.program.elementwise or gradients.size <= 2 * tuning.piece:
        return [bind_update(session, arrays, gradients, scalars)]
    cuts = [slice(i, i + tuning.piece) for i in range(0, gradients.size, tuning.piece)]
    return [bind_update(session, {n: a[cut] for n, a in arrays.items()}, gradients[cut], scalars) for cut in cuts]


# Updates of some rows of a matrix: those that occur in a minibatch, a block of them at a time.
#
# The rows of the matrix, of its gradient and of the optimizer's vectors are copied to blocks, updated there by the
# graph of the optimizer, and copied back.


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
    arrays: Mapping[str, np.ndarray],
    scalars: Mapping[str, np.ndarray],
    whole: Sequence[VectorUpdate] = (),
) -> RowUpdate:
    """Return the update of the rows of the matrix that the segment holds."""
    shape, axis = table.gradient.shape, table.axis
    matrices = {name: _by_row(array.reshape(shape), axis) for name, array in arrays.items()}
    matrices[GRADIENTS] = _by_row(table.gradient, axis)
    n_rows, width = shape[axis], shape[1 - axis]
    size = min(n_rows, max(1, formula_updates.TUNING.block // (2 * width)))

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

    ``lazy``: every matrix that is read by rows; otherwise only those whose unread rows do not move and are the most.
    ``penalized``: the penalty moves all rows.
    """

    tables: Mapping[str, RowGradients]
    parameters: FlatParameters
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
            require_rows_apart(one.segment.optimizer)
            return True
        rests = one.program.elementwise and not (one.program.moves_without_gradient or self.penalized)
        return rests and 2 * table.count <= table.n_rows


def _of(one: SegmentUpdate, part: slice) -> SegmentUpdate:
    return one if part == one.segment.part else replace(one, segment=replace(one.segment, part=part))

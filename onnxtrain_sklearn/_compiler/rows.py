"""Prove that a function may compute only the first rows of a minibatch, if the other rows have weight zero.

:func:`bound_rows` follows the states of rows (:class:`RowState`) through all stages. If the proof fails for one stage,
none is bounded. Row i of a value must depend on row i of the inputs only, and sums over rows may leave out only zeros:
products with the weights, in rows whose weight is zero.

The results then have the same bits, as long as all numbers in the rows left out are finite: zero times infinity is NaN.
Padding repeats rows of the data that are computed. It does not repeat random numbers, or parameters that have numbers
for each row: if only the rows left out overflow by these, the loss is finite where that of all rows would be NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .elementwise import EMIT, EmitElements, instruction, unchanged
from .products import ProductStage
from .reductions import SUM, SUMMANDS, ReductionStage, SoftmaxStage
from .stages import Conversion, Elementwise, RangeCheck, Selection, Stage
from .views import LANES, Buffer, RowBound, Shape, View


class RowInputs(NamedTuple):
    """The number of rows of a minibatch, and the names of inputs by their relation to it.

    ``data`` have a row for each row of the minibatch. So do ``weights``, which are zero in the rows that may be left
    out. ``others`` do not depend on the minibatch.
    """

    batch_size: int
    data: Collection[str]
    weights: Collection[str]
    others: Collection[str]

    def state(self, name: str, shape: Shape) -> RowState | None:
        """Return the state of an input, None if it is not known."""
        if name in self.others:
            return RowState.FIXED
        if shape[:1] != (self.batch_size,):
            return None
        return RowState.VANISHING if name in self.weights else RowState.ROWS if name in self.data else None


class RowState(Enum):
    """How the elements of a buffer depend on the minibatch.

    NOTHING: they are zero. FIXED: they do not depend on it. The other states are of elements that belong to rows.
    ROWS: they depend on the data of their row. VANISHING: they also depend on the weight of their row, and are zero
    where it is zero. WEIGHTED: they depend on the weight in another way.
    """

    NOTHING, FIXED, ROWS, VANISHING, WEIGHTED = range(5)

    @property
    def is_zero(self) -> bool:
        """True if elements of rows with the weight zero are zero."""
        return self in (RowState.NOTHING, RowState.VANISHING)

    @property
    def has_rows(self) -> bool:
        return self not in (RowState.NOTHING, RowState.FIXED)


class RowsMeetError(Exception):
    """A stage is not proven to compute each row by itself."""


def bound_rows(
    stages: Sequence[Stage],
    inputs: Mapping[Buffer, RowState | None],
    constants: Mapping[Buffer, np.ndarray],
    outputs: Collection[Buffer],
    batch_size: int,
) -> RowBound | None:
    """Bound the stages by the rows that a run computes; return None if they must compute all."""
    states = _RowStates({buffer: state for buffer, state in inputs.items() if state is not None}, constants, batch_size)
    try:
        for stage in stages:
            states.add(stage)
        # An output with rows would lack those left out; one without a known state may have rows.
        if any(states.states.get(buffer, RowState.ROWS).has_rows for buffer in outputs):
            return None
    except RowsMeetError:
        return None
    bound = RowBound(batch_size)
    for one in states.bounded:
        one.bound = bound
    return bound


class _RowStates:
    """The states of buffers, stage by stage.

    ``whole`` are the buffers with valid numbers in all rows, whether computed or not: integers are converted, checked
    and used as indices in all rows.
    """

    def __init__(
        self, inputs: Mapping[Buffer, RowState], constants: Mapping[Buffer, np.ndarray], batch_size: int
    ) -> None:
        # A constant of zeros keeps products with it at zero, whatever the row.
        numbers = {buffer: RowState.FIXED if array.any() else RowState.NOTHING for buffer, array in constants.items()}
        self.states: dict[Buffer, RowState] = {**inputs, **numbers}
        self.whole = set(inputs)
        self.batch_size = batch_size
        self.bounded = list[Any]()

    def add(self, stage: Stage) -> None:
        if type(stage) not in RULES:
            raise RowsMeetError
        RULES[type(stage)](self, stage)

    def of(self, view: View) -> RowState:
        if view.buffer not in self.states:
            raise RowsMeetError
        return self.states[view.buffer]

    def write(self, view: View, state: RowState) -> None:
        """Record the state of elements; other elements of their buffer may have been written before."""
        if state.has_rows:
            self.require_rows(view)
        old = self.states.get(view.buffer, state)
        self.states[view.buffer] = _state_of_sum([old, state])

    def require_rows(self, *views: View) -> None:
        """Raise unless each index of the first axis lies within one row of the view's buffer."""
        if not all(self.of_rows(view) for view in views):
            raise RowsMeetError

    def of_rows(self, view: View) -> bool:
        if not view.shape or view.shape[0] % self.batch_size or view.buffer.size % self.batch_size:
            return False
        # The indices of a row span exactly its elements in the buffer, and none reaches into the next row.
        width = view.buffer.size // self.batch_size
        step = view.strides[0]
        span = view.offset + sum((n - 1) * s for n, s in zip(view.shape[1:], view.strides[1:], strict=True))
        return step * (view.shape[0] // self.batch_size) == width and span < step

    def elements(self, stage: Elementwise) -> None:
        read = [view for view in stage.read() if self.of(view).has_rows]
        self.require_rows(*read)
        for emit, operands, result in stage.operations:
            state = _state_of_result(emit, [self.of(view) for view in operands])
            self.write(result, _in_rows(state) if read else state)
        if read:
            self.bounded.append(stage)

    def product(self, stage: ProductStage) -> None:
        left, right = self.of(stage.left), self.of(stage.right)
        bias = RowState.NOTHING if stage.bias is None else self.of(stage.bias)
        # Three products are proven: of numbers without rows, of rows with a fixed matrix, and a sum over the rows.
        if not (left.has_rows or right.has_rows or bias.has_rows):
            self.write(stage.result, RowState.FIXED)
        elif len(stage.result.shape) > 2 or bias.has_rows:
            raise RowsMeetError
        elif not right.has_rows and self.of_rows(stage.left):
            self.bounded.append(stage)
            self.write(stage.result, left if stage.bias is None else _state_of_others([left]))
        else:
            turned = stage.left.permuted((1, 0))
            self.require_rows(*(v for v, state in ((turned, left), (stage.right, right)) if state.has_rows))
            if _state_of_product([left, right]) is not RowState.VANISHING or not stage.sums_in_order:
                raise RowsMeetError
            self.bounded.append(stage)
            stage.over_rows = True
            self.write(stage.result, RowState.FIXED)

    def reduction(self, stage: ReductionStage) -> None:
        state = self.of(stage.source)
        if not state.has_rows:
            self.write(stage.result, RowState.FIXED)
            return
        self.require_rows(stage.source)
        self.bounded.append(stage)
        if stage.before % self.batch_size == 0:
            self.write(stage.result, state if stage.rule is SUM else _state_of_others([state]))
            return
        # A sum over the rows: joined_up_to cuts it into at most SUMMANDS blocks of SUMMANDS.
        few = (stage.count // LANES if stage.after == 1 else stage.count) <= SUMMANDS**2
        if stage.before > 1 or state is not RowState.VANISHING or stage.rule is not SUM or not few:
            raise RowsMeetError
        self.write(stage.result, RowState.FIXED)

    def softmax(self, stage: SoftmaxStage) -> None:
        state = self.of(stage.source)
        if state.has_rows:
            self.require_rows(stage.source)
            if len(stage.source.shape) < 2:
                raise RowsMeetError
            self.bounded.append(stage)
        for view in stage.written():
            self.write(view, _state_of_others([state]))

    def conversion(self, stage: Conversion) -> None:
        """Convert all rows, as nothing bounds this stage; integers of an input are valid in all rows."""
        if stage.back and self.of(stage.source).has_rows:
            raise RowsMeetError
        self.write(stage.result, self.of(stage.source))
        if stage.source.buffer in self.whole:
            self.whole.add(stage.result.buffer)

    def check(self, stage: RangeCheck) -> None:
        """Refuse to check rows that are not computed: the check would read stale memory."""
        if self.of(stage.source).has_rows and stage.source.buffer not in self.whole:
            raise RowsMeetError

    def selection(self, stage: Selection) -> None:
        """Select in all rows, as nothing bounds this stage; indices must therefore be valid in all rows."""
        table, indices = self.of(stage.table), self.of(stage.indices)
        valid = not indices.has_rows or (indices is RowState.ROWS and stage.indices.buffer in self.whole)
        if stage.scatters or not valid:
            raise RowsMeetError
        self.require_rows(*(v for v, state in ((stage.table, table), (stage.indices, indices)) if state.has_rows))
        self.write(stage.elements, table if table.has_rows else _state_of_others([indices]))


def _state_of_result(emit: EmitElements, states: Sequence[RowState]) -> RowState:
    """Return the state of the result of an operation on elements of these states."""
    # A divisor that depends on the weights may be zero where they are: 0 / 0 is NaN.
    if _is_instruction(emit, "fmul") or (
        _is_instruction(emit, "fdiv") and states[1] in (RowState.FIXED, RowState.ROWS)
    ):
        return _state_of_product(states)
    if emit is EMIT["Where"] and _state_of_others(states[:1]) is not RowState.WEIGHTED:
        return _state_of_sum(states[1:]) if all(state.is_zero for state in states[1:]) else _state_of_others(states)
    is_sum = _is_instruction(emit, "fadd") or _is_instruction(emit, "fsub")
    return _state_of_sum(states) if is_sum or emit in (unchanged, EMIT["Neg"]) else _state_of_others(states)


def _is_instruction(emit: EmitElements, name: str) -> bool:
    return isinstance(emit, partial) and emit.func is instruction and emit.args == (name,)


def _state_of_product(states: Sequence[RowState]) -> RowState:
    """Return the state of a product; a WEIGHTED factor may be infinite where the weight is zero."""
    if RowState.WEIGHTED in states or not any(state.is_zero for state in states):
        return _state_of_others(states)
    return _in_rows(RowState.NOTHING) if any(state.has_rows for state in states) else RowState.NOTHING


def _state_of_sum(states: Sequence[RowState]) -> RowState:
    return _state_of_product(states) if all(state.is_zero for state in states) else _state_of_others(states)


def _state_of_others(states: Sequence[RowState]) -> RowState:
    """Return the state of a result that is not known to be zero."""
    if RowState.VANISHING in states or RowState.WEIGHTED in states:
        return RowState.WEIGHTED
    return RowState.ROWS if RowState.ROWS in states else RowState.FIXED


def _in_rows(state: RowState) -> RowState:
    """Return the state of elements that a bounded stage computes, row by row."""
    return {RowState.FIXED: RowState.ROWS, RowState.NOTHING: RowState.VANISHING}.get(state, state)


RULES: Mapping[type, Callable[[_RowStates, Any], None]] = {
    Conversion: _RowStates.conversion,
    Elementwise: _RowStates.elements,
    ProductStage: _RowStates.product,
    RangeCheck: _RowStates.check,
    ReductionStage: _RowStates.reduction,
    Selection: _RowStates.selection,
    SoftmaxStage: _RowStates.softmax,
}

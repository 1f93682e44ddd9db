"""What the host does with the gradients of a pass: penalty, mean over a group, update, average of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from .._optimizers.update_graph import PIECE, Coefficients
from .._support.typing import DType
from .compiled_update import SAVINGS, VectorUpdate, formula_update, saved_by_compiling
from .loss_graph import PENALTY
from .numpy_update import LEAST_ELEMENTS
from .parameters import FlatParameters
from .row_update import RowChoice, RowUpdate, row_update
from .segments import Factors
from .step import OptimizerState, Rates
from .vector_bindings import SegmentUpdate, VectorBindings, bind_update
from .vector_graphs import step_weight


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

    coefficients: Callable[[Rates, int], Coefficients]
    scalars: Mapping[str, np.ndarray]
    bindings: list[VectorUpdate | RowUpdate]

    def run(self, rates: Rates, t: int) -> None:
        """Take step ``t``."""
        for name, value in self.coefficients(rates, t).items():
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
    """Return the updates of the parameters and the slots, one for all segments of equal factors."""
    updates: dict[Factors, HostUpdate] = {}
    for one in segments:
        if one.factors not in updates:
            updates[one.factors] = HostUpdate(one.coefficients, _scalars(one, parameters.vector.dtype), [])
        update = updates[one.factors]
        vectors = {"parameters": parameters.vector, **{name: slots[name] for name in one.program.slots}}
        for part, table in choice.parts(one):
            if table is None:
                update.bindings.extend(_bound(part, vectors, parameters.gradient, update.scalars))
            else:
                whole = () if table.most is None else _bound(part, vectors, parameters.gradient, update.scalars)
                update.bindings.append(row_update(part, table, vectors, update.scalars, whole))
    return list(updates.values())


def _scalars(one: SegmentUpdate, dtype: DType) -> dict[str, np.ndarray]:
    kinds = {n: np.int64 if isinstance(x, int) else dtype for n, x in one.coefficients(Rates(0.001), 1).items()}
    return {name: np.zeros((), kind) for name, kind in kinds.items()}


def _bound(
    one: SegmentUpdate, vectors: Mapping[str, np.ndarray], gradients: np.ndarray, scalars: Mapping[str, np.ndarray]
) -> list[VectorUpdate]:
    """Return the updates of a segment: by its formula if it has one and that pays, else by the session in pieces."""
    formula, whole = one.program.formula, one.segment.part
    if formula is not None and whole.stop - whole.start > LEAST_ELEMENTS:
        return [formula_update(formula, {n: v[whole] for n, v in vectors.items()}, gradients[whole], scalars)]
    session, bound = one.open_session(), list[VectorUpdate]()
    for cut in _piece_slices(one):
        bound.append(bind_update(session, {n: v[cut] for n, v in vectors.items()}, gradients[cut], scalars))
    return bound


def _piece_slices(one: SegmentUpdate) -> list[slice]:
    """Return the slices in which a segment is updated: the temporaries of a piece fit the cache."""
    start, stop = one.segment.part.start, one.segment.part.stop
    size = PIECE if one.program.elementwise and stop - start > 2 * PIECE else max(1, stop - start)
    return [slice(i, min(i + size, stop)) for i in range(start, stop, size)]

"""What a device does after the gradient of a step: penalty, clipping, updates, average, with their scalars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .._runtime.binding import Binding, DeviceArray
from .device_vectors import DeviceVectors
from .loss_graph import PENALTY, StepSettings
from .parameters import FlatParameters
from .step import OptimizerState, Rates
from .vector_bindings import SegmentUpdate, VectorBindings, bind_update
from .vector_graphs import STEP_WEIGHT, step_weight


class DeviceUpdate:
    """The graphs that run after the gradient, in order.

    Parameters
    ----------
    settings : StepSettings
    parameters : FlatParameters
        Their layout on the device.
    vectors : DeviceVectors
    bindings : VectorBindings
    segments : sequence of SegmentUpdate
    """

    def __init__(
        self,
        settings: StepSettings,
        parameters: FlatParameters,
        vectors: DeviceVectors,
        bindings: VectorBindings,
        segments: Sequence[SegmentUpdate],
    ) -> None:
        self._decay, self._segments, self._vectors, self._bindings = settings.ema_decay, segments, vectors, bindings
        self._dtype = parameters.vector.dtype
        self._calls: list[tuple[Binding, dict[str, str]]] = []  # with what changes every step, and its keys in scalars
        if settings.alpha and parameters.penalized.stop:
            size = (parameters.penalized.stop,)
            penalty = bindings.penalty(vectors.buffer.part(0, size), vectors.gradient.part(0, size))
            self._calls.append((penalty, {name: name for name in ("strength", PENALTY)}))
        if settings.max_grad_norm is not None:
            self._calls.append((bindings.clipping(vectors.gradient), {}))
        self._calls.extend(self._updating(one) for one in segments)
        if parameters.average is not None:
            shape, start = parameters.vector.shape, len(parameters.buffer) - len(parameters.vector)
            average = bindings.average(vectors.buffer.part(start, shape), vectors.buffer.part(0, shape))
            self._calls.append((average, {STEP_WEIGHT: STEP_WEIGHT}))

    def _updating(self, one: SegmentUpdate) -> tuple[Binding, dict[str, str]]:
        """Bind the update of a segment."""
        vectors, part = self._vectors, one.segment.part
        start, shape = part.start, (part.stop - part.start,)
        arrays = {"parameters": vectors.buffer.part(start, shape)}
        arrays |= {name: vectors.slots[name].part(start, shape) for name in one.program.slots}
        binding = bind_update(one.open_session(), arrays, vectors.gradient.part(start, shape), {})
        return binding, {name: _scalar_name(one, name) for name in one.coefficients(Rates(0.001), 1)}

    def scalars(self, weights: np.ndarray, rates: Sequence[Rates], state: OptimizerState) -> dict[str, DeviceArray]:
        """Return vectors of the scalars that the next steps read or write, by name; one element per step.

        ``weights`` are the sums of the weights of their rows, and ``state`` is that before them.
        """
        arrays: dict[str, np.ndarray] = {}
        for one in {one.factors: one for one in self._segments}.values():
            steps = [one.coefficients(now, state.t + i + 1) for i, now in enumerate(rates)]
            kinds = {name: np.int64 if isinstance(value, int) else self._dtype for name, value in steps[0].items()}
            arrays |= {_scalar_name(one, n): np.array([step[n] for step in steps], kind) for n, kind in kinds.items()}
        arrays["strength"] = np.divide(1.0, weights, out=np.zeros_like(weights), where=weights > 0).astype(self._dtype)
        arrays[PENALTY] = np.zeros(len(rates), self._dtype)
        if self._decay is not None:
            first = state.averaged + 1
            arrays[STEP_WEIGHT] = np.array(
                [step_weight(self._decay, first + i) for i in range(len(rates))], self._dtype
            )
        return {name: self._vectors.new(array) for name, array in arrays.items()}

    def run(self, now: Mapping[str, DeviceArray]) -> None:
        """Take the step whose scalars are ``now``."""
        for binding, names in self._calls:
            binding.run(**{name: now[key] for name, key in names.items()})


def _scalar_name(one: SegmentUpdate, name: str) -> str:
    """Return the key of a coefficient among the scalars of a step."""
    return f"{name} {one.factors}"

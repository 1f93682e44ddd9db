"""The vectors of a step in the memory of a device."""

from __future__ import annotations

import numpy as np

from .._runtime.binding import DeviceArray
from .parameters import FlatParameters
from .step import OptimizerState


class DeviceVectors:
    """Parameters, gradients and optimizer state on a device; ``parameters`` and ``state`` are the host's copies.

    Attributes
    ----------
    buffer, gradient : DeviceArray
        Like those of :class:`~.parameters.FlatParameters`.
    moved : DeviceArray
        The next running statistics.
    slots : dict of str to DeviceArray
        The optimizer's vectors.
    """

    def __init__(self, parameters: FlatParameters, state: OptimizerState, memory: tuple[str, int]) -> None:
        self._parameters, self._state, self._memory = parameters, state, memory
        self._start = len(parameters.vector)
        self.buffer, self.gradient = self.new(parameters.buffer), self.new(parameters.gradient)
        self.moved = self.new(parameters.statistics)
        self.slots = {name: self.new(slot) for name, slot in state.slots.items()}

    def new(self, array: np.ndarray) -> DeviceArray:
        """Return a copy of an array on the device."""
        return DeviceArray(array, self._memory)

    def parameter(self, name: str) -> DeviceArray:
        """Return the parameter or statistic ``name``."""
        return self._part(self.buffer, name)

    def gradient_of(self, name: str) -> DeviceArray:
        """Return the gradient of the parameter ``name``."""
        return self._part(self.gradient, name)

    def next_of(self, name: str) -> DeviceArray:
        """Return the next value of the running statistic ``name``."""
        return self._part(self.moved, name, self._start)

    def _part(self, flat: DeviceArray, name: str, offset: int = 0) -> DeviceArray:
        span, shape = self._parameters.span(name), self._parameters.view(name).shape
        return flat.part(span.start - offset, shape)

    def upload(self) -> None:
        """Copy the host's parameters and optimizer state to the device."""
        self.buffer.write(self._parameters.buffer)
        for name, slot in self.slots.items():
            slot.write(self._state.slots[name])

    def download(self) -> None:
        """Bring the host's copies up to date."""
        self._parameters.buffer[...] = self.buffer.read()
        for name, slot in self.slots.items():
            self._state.slots[name][...] = slot.read()

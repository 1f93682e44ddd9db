"""The vectors of a step in the memory of a device."""

from __future__ import annotations

import numpy as np

from .._runtime.binding import DeviceArray
from .parameters import FlatParameters
from .step import OptimizerState

ALIGNMENT = 64
"""Elements of which each parameter begins at a multiple on a device: convolutions of cuDNN refuse other addresses."""


class DeviceVectors:
    """Parameters, gradients and optimizer state on a device; ``parameters`` and ``state`` are the host's copies.

    Attributes
    ----------
    layout : FlatParameters
        Where the parameters lie on the device. It has zeros between them, which have no gradient.
    buffer, gradient : DeviceArray
        Like those of :class:`~.parameters.FlatParameters`, in this layout.
    moved : DeviceArray
        The next running statistics.
    slots : dict of str to DeviceArray
        The optimizer's vectors.
    """

    def __init__(
        self, parameters: FlatParameters, layout: FlatParameters, state: OptimizerState, memory: tuple[str, int]
    ) -> None:
        self.layout, self._parameters, self._state, self._memory = layout, parameters, state, memory
        self._start = len(layout.vector)
        self.buffer, self.gradient = self.new(layout.buffer), self.new(layout.gradient)
        self.moved = self.new(layout.statistics)
        self.slots = {name: self.new(self._spread(slot)) for name, slot in state.slots.items()}

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
        return flat.part(self.layout.span(name).start - offset, self.layout.view(name).shape)

    def upload(self) -> None:
        """Copy the host's parameters and optimizer state to the device."""
        layout = self.layout
        for name, view in self._parameters.views().items():
            layout.view(name)[...] = view
        if layout.average is not None and self._parameters.average is not None:
            layout.average[...] = self._spread(self._parameters.average)
        self.buffer.write(layout.buffer)
        for name, slot in self.slots.items():
            slot.write(self._spread(self._state.slots[name]))

    def download(self) -> None:
        """Bring the host's copies up to date."""
        layout = self.layout
        layout.buffer[...] = self.buffer.read()
        for name, view in self._parameters.views().items():
            view[...] = layout.view(name)
        if layout.average is not None and self._parameters.average is not None:
            self._gather(layout.average, self._parameters.average)
        for name, slot in self.slots.items():
            self._gather(slot.read(), self._state.slots[name])

    def _spread(self, vector: np.ndarray) -> np.ndarray:
        """Return a vector of the host in the layout of the device."""
        spread = np.zeros_like(self.layout.vector)
        for name in self.layout.names:
            spread[self.layout.span(name)] = vector[self._parameters.span(name)]
        return spread

    def _gather(self, spread: np.ndarray, vector: np.ndarray) -> None:
        """Copy from the layout of the device into a vector of the host."""
        for name in self.layout.names:
            vector[self._parameters.span(name)] = spread[self.layout.span(name)]

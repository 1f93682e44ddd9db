"""The random numbers of a training by themselves, as its seed draws them."""

from __future__ import annotations

import numpy as np

from onnxtrain_sklearn._training.randomness import STEM, UniformNumbers


class Draws:
    """Uniform numbers of some shapes, as the nodes of a graph in this order get them at each draw."""

    def __init__(self, seed: int, *shapes: tuple[int, ...]) -> None:
        self._numbers = UniformNumbers([], seed)
        self._numbers.buffers = {f"{STEM}_{i}": np.zeros(shape, np.float32) for i, shape in enumerate(shapes)}

    def at(self, draw: int) -> list[np.ndarray]:
        self._numbers.draw(draw)
        return list(self._numbers.buffers.values())

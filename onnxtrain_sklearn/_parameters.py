"""All trained parameters in one flat vector, their gradients in a second.

A parameter is a view into the vectors: sessions read and write the views, optimizers work on the whole. Parameters of
rank two and more come first, so that what a penalty applies to is one slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from .exceptions import nearest


class FlatParameters:
    """Named arrays that share one vector.

    Parameters
    ----------
    weights : mapping of str to ndarray
        Initial values; they are copied.
    dtype : numpy.dtype
        Type of the vectors.

    Attributes
    ----------
    vector, gradient : ndarray of shape (P,)
    names : tuple of str
        In the order of the vector.
    penalized : slice
        The part of the vectors that holds parameters of rank >= 2.
    """

    def __init__(self, weights: Mapping[str, np.ndarray], dtype: np.dtype[Any]) -> None:
        self.names = tuple(sorted(weights, key=lambda name: weights[name].ndim < 2))
        self._shapes = {name: weights[name].shape for name in self.names}
        sizes = [weights[name].size for name in self.names]
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(int)
        self._spans = {name: slice(a, b) for name, a, b in zip(self.names, starts, starts[1:], strict=False)}
        self.vector = np.empty(int(starts[-1]), dtype)
        self.gradient = np.zeros_like(self.vector)
        self.penalized = slice(0, int(sum(weights[n].size for n in self.names if weights[n].ndim >= 2)))
        for name in self.names:
            self.view(name)[...] = weights[name]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "gradient": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, gradient=np.zeros_like(state["vector"]))

    def view(self, name: str) -> np.ndarray:
        """Return the parameter ``name`` as a view into the vector."""
        return self.vector[self._spans[name]].reshape(self._shapes[name])

    def gradient_view(self, name: str) -> np.ndarray:
        """Return the gradient of ``name`` as a view into the vector of gradients."""
        return self.gradient[self._spans[name]].reshape(self._shapes[name])

    def weights(self) -> dict[str, np.ndarray]:
        """Return a copy of every parameter by name."""
        return {name: self.view(name).copy() for name in self.names}


def select_trainable(
    weights: Mapping[str, np.ndarray], trainable: str | Sequence[str] | Callable[[str, np.ndarray], bool]
) -> list[str]:
    """Return the names that ``trainable`` selects: "all", names, glob patterns, or a predicate of name and array."""
    if callable(trainable):
        chosen = [name for name, array in weights.items() if trainable(name, array.copy())]
        if not chosen:
            raise ValueError(f"trainable selects no parameter: the function returned False for {', '.join(weights)}.")
        return chosen
    if isinstance(trainable, str) and trainable == "all":
        return list(weights)
    if not isinstance(trainable, str | Iterable):
        raise TypeError(f"trainable must be 'all', names or glob patterns, or a function, got {trainable!r}.")
    patterns: list[Any] = [trainable] if isinstance(trainable, str) else list(trainable)
    for pattern in patterns:
        if not isinstance(pattern, str):
            kind = type(pattern).__name__
            raise TypeError(f"trainable must hold names or glob patterns, got {pattern!r} of type {kind}.")
        if not any(_matches(name, pattern) for name in weights):
            raise ValueError(f"trainable={pattern!r} matches no parameter of the graph.{nearest(pattern, weights)}")
    chosen = [name for name in weights if any(_matches(name, pattern) for pattern in patterns)]
    if not chosen:
        raise ValueError("trainable is an empty list: name at least one parameter, or 'all'.")
    return chosen


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)

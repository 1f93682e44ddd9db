"""All trained parameters in one flat vector, their gradients in a second.

A parameter is a view into the vectors: sessions read and write the views, optimizers the whole vectors. Parameters of
rank two and more come first, so that the penalized ones are one slice. Running statistics, which training updates
without a gradient, follow the parameters, so that a single copy holds everything that training changes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Any, TypeAlias, cast

import numpy as np

from .._support.typing import DType
from ..exceptions import nearest


def owned(array: np.ndarray) -> np.ndarray:
    """Return ``array``, or a copy if it must not be bound and trained in place.

    An unpickled array may be mapped from a file (``mmap_mode``, the workers of joblib), read-only or not: a session
    that writes to it would crash the process or change the file.
    """
    if type(array) is np.ndarray and array.flags.owndata and array.flags.carray:
        return array
    return np.array(array, order="C", subok=False)


class FlatParameters:
    """Named arrays that share one vector.

    Parameters
    ----------
    weights : mapping of str to ndarray
        Initial values; they are copied.
    dtype : numpy.dtype
        Type of the vectors.
    running_statistics : mapping of str to ndarray, optional
        Initial values of the running statistics.
    groups : mapping of str to tuple of float, optional
        Parameters of equal groups are neighbors, those that are not named come first.
    averages : bool, default=False
        Whether there is a moving average of the parameters, which predicts in their place.

    Attributes
    ----------
    buffer : ndarray of shape (P + M,) or (P + M + P,)
        The parameters, followed by the running statistics and by the average of the parameters.
    average : ndarray of shape (P,) or None
        The average of the parameters, a view into ``buffer``.
    vector, gradient : ndarray of shape (P,)
        The parameters, a view into ``buffer``, and their gradients.
    names : tuple of str
        The parameters, in the order of the vector.
    running_statistics : tuple of str
        The running statistics.
    penalized : slice
        The part of the vectors that holds parameters of rank >= 2.
    """

    averages: bool = False  # of pickles that have no such attribute

    def __init__(
        self,
        weights: Mapping[str, np.ndarray],
        dtype: DType,
        running_statistics: Mapping[str, np.ndarray] | None = None,
        groups: Mapping[str, tuple[float, ...]] | None = None,
        *,
        averages: bool = False,
    ) -> None:
        every, group = {**weights, **(running_statistics or {})}, groups or {}
        self.names = tuple(sorted(weights, key=lambda name: (weights[name].ndim < 2, group.get(name, ()))))
        self.running_statistics = tuple(running_statistics or ())
        order = self.names + self.running_statistics
        self._shapes = {name: every[name].shape for name in order}
        ends = list(accumulate((every[name].size for name in order), initial=0))
        self._spans = {name: slice(a, b) for name, a, b in zip(order, ends, ends[1:], strict=False)}
        self.buffer: np.ndarray = np.empty(ends[-1], dtype)
        self.penalized = slice(0, int(sum(weights[n].size for n in self.names if weights[n].ndim >= 2)))
        self._divide(ends[len(self.names)])
        for name in order:
            self.view(name)[...] = every[name]
        if averages:
            self._set_averages(averages)

    def _divide(self, size: int) -> None:
        self.vector = self.buffer[:size]
        self.gradient = np.zeros(size, self.vector.dtype)  # takes no memory until a pass writes it
        self.average = self.buffer[-size:] if self.averages else None

    def _set_averages(self, averages: bool) -> None:
        end = len(self.vector) + len(self.statistics)
        parts = [self.buffer[:end], self.vector] if averages else [self.buffer[:end]]
        size, self.averages, self.buffer = len(self.vector), averages, np.concatenate(parts)
        self._divide(size)

    @property
    def statistics(self) -> np.ndarray:
        """The running statistics, a view into ``buffer``."""
        start = len(self.vector)
        return self.buffer[start : self._spans[self.running_statistics[-1]].stop if self.running_statistics else start]

    def aligned(self, elements: int) -> FlatParameters:
        """Return parameters and statistics that each begin at a multiple of ``elements``, with zeros in between."""
        twin, order = copy.copy(self), self.names + self.running_statistics
        sizes = {name: self._spans[name].stop - self._spans[name].start for name in order}
        starts = list(accumulate((-(-sizes[name] // elements) * elements for name in order), initial=0))
        twin._spans = {name: slice(a, a + sizes[name]) for name, a in zip(order, starts, strict=False)}
        penalized = [twin._spans[name].stop for name in self.names if len(self._shapes[name]) >= 2]
        twin.penalized, twin.averages = slice(0, max(penalized, default=0)), False
        twin.buffer = np.zeros(starts[-1], self.buffer.dtype)
        twin._divide(starts[len(self.names)])
        return twin.with_averages(self.averages)

    def with_averages(self, averages: bool) -> FlatParameters:
        """Return a copy with a moving average that starts from the parameters, or without one."""
        twin = copy.copy(self)
        twin._set_averages(averages)
        return twin

    def with_buffer(self, buffer: np.ndarray) -> FlatParameters:
        """Return parameters whose numbers are those of another buffer of the same layout."""
        twin = copy.copy(self)
        twin.buffer = buffer
        twin._divide(len(self.vector))
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "vector": len(self.vector), "gradient": None, "average": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self.buffer = owned(self.buffer)
        self._divide(cast("int", state["vector"]))

    def span(self, name: str) -> slice:
        """Return the slice of ``buffer`` that holds the parameter or statistic ``name``."""
        return self._spans[name]

    def view(self, name: str) -> np.ndarray:
        """Return the parameter or statistic ``name`` as a view."""
        return self.buffer[self._spans[name]].reshape(self._shapes[name])

    def gradient_view(self, name: str) -> np.ndarray:
        """Return the gradient of ``name`` as a view into the vector of gradients."""
        return self.gradient[self._spans[name]].reshape(self._shapes[name])

    def views(self) -> dict[str, np.ndarray]:
        """Return every parameter and statistic by name, as a view."""
        return {name: self.view(name) for name in self.names + self.running_statistics}

    def prediction_views(self) -> dict[str, np.ndarray]:
        """Return every parameter and statistic that predictions use, as a view: the average of the parameters if any.

        Running statistics have no average: those of the last minibatch are used, as by ``torch.optim.swa_utils``.
        """
        views = self.views()
        if self.average is not None:
            views |= {name: self.average[self._spans[name]].reshape(self._shapes[name]) for name in self.names}
        return views

    def weights(self) -> dict[str, np.ndarray]:
        """Return a copy of every parameter and statistic by name, as they are trained."""
        return {name: view.copy() for name, view in self.views().items()}


Trainable: TypeAlias = "str | Sequence[str] | Callable[[str, np.ndarray], bool]"


def select_trainable(weights: Mapping[str, np.ndarray], trainable: Trainable) -> list[str]:
    """Return the names that ``trainable`` selects: "all", names, glob patterns, or a predicate of name and array."""
    if callable(trainable) and not isinstance(trainable, type):
        chosen = [name for name, array in weights.items() if trainable(name, array.copy())]
        if not chosen:
            raise ValueError(f"trainable selects no parameter: the function returned False for {', '.join(weights)}.")
        return chosen
    if isinstance(trainable, str) and trainable == "all":
        return list(weights)
    if isinstance(trainable, type) or not isinstance(trainable, str | Iterable):
        raise TypeError(f"trainable must be 'all', names or glob patterns, or a function, got {trainable!r}.")
    patterns: list[Any] = [trainable] if isinstance(trainable, str) else list(trainable)
    for pattern in patterns:
        if not isinstance(pattern, str):
            kind = type(pattern).__name__
            raise TypeError(f"trainable must hold names or glob patterns, got {pattern!r} of type {kind}.")
        if not any(matches(name, pattern) for name in weights):
            raise ValueError(f"trainable={pattern!r} matches no parameter of the graph.{nearest(pattern, weights)}")
    chosen = [name for name in weights if any(matches(name, pattern) for pattern in patterns)]
    if not chosen:
        raise ValueError("trainable is an empty list: name at least one parameter, or 'all'.")
    return chosen


def matches(name: str, pattern: str) -> bool:
    """Whether a parameter has this name, or one that the glob pattern matches; ``.T`` marks a transposed matrix."""
    return name == pattern or fnmatchcase(name, pattern) or fnmatchcase(name.removesuffix(".T"), pattern)

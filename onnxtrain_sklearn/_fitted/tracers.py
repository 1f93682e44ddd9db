"""Tracers: a copy of a fitted model whose numbers are all different, converted in the same way.

They tell which attribute a parameter comes from where a converter of another package made it and the model's own
numbers are ambiguous: a scale of ones equals its reciprocal, an identity matrix its transpose. The copy is never run.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir
from sklearn.base import BaseEstimator

from .._support.typing import Estimator
from .traversal import Path, assign, follow, walk

FITTED_SETTINGS = frozenset({"coef0"})
"""Constructor arguments that are numbers of the fitted model."""


def fitted_numbers(owner: object) -> Iterator[tuple[Path, np.ndarray]]:
    """Yield the fitted numbers of an estimator with their attributes, those of the estimators that it wraps too."""
    yield from own_numbers(owner)
    for name, value in vars(owner).items():
        if isinstance(value, BaseEstimator) and _is_fitted_name(name):
            yield from (((name, *path), array) for path, array in fitted_numbers(value))


def own_numbers(owner: object) -> Iterator[tuple[Path, np.ndarray]]:
    """Yield the fitted numbers of an estimator with their attributes."""
    for name, value in vars(owner).items():
        if not _is_fitted_name(name):
            continue
        if isinstance(value, np.ndarray | float | np.floating):
            array = np.asarray(value)
            if array.dtype.kind == "f" and array.size:
                yield (name,), array
        elif isinstance(value, list | tuple):
            for i, inner in enumerate(value):
                if isinstance(inner, np.ndarray) and inner.dtype.kind == "f" and inner.size:
                    yield (name, i), inner


def _is_fitted_name(name: str) -> bool:
    return name.endswith("_") or name.startswith("_") or name in FITTED_SETTINGS


class Tracer:
    """The graph of a copy whose numbers are all different, converted on first use.

    Parameters
    ----------
    root : estimator
        The fitted model, which is left as it is.
    structure : object
        The structure that the copy's graph must have, so that its parameters correspond to those of the model's graph.
    convert : callable
        ``convert(estimator)`` returns a graph whose parameters are not renamed yet, and its structure.
    """

    def __init__(
        self, root: Estimator, structure: object, convert: Callable[[Estimator], tuple[ir.Model, object]]
    ) -> None:
        self._root, self._structure, self._convert = root, structure, convert

    def array(self, name: str) -> np.ndarray | None:
        """Return the parameter ``name`` of the copy's graph; None where the copy has another graph."""
        value = None if self._graph is None else self._graph.initializers.get(name)
        return None if value is None or value.const_value is None else value.const_value.numpy()

    def part(self, path: Path) -> Any:
        """Return the estimator of the copy that ``path`` leads to."""
        return follow(self._copy, path)

    @cached_property
    def _copy(self) -> Any:
        other, rng = copy.deepcopy(self._root), np.random.RandomState(0)
        for _, part in list(walk(other)):
            for path, array in list(own_numbers(part)):
                assign(part, path, rng.uniform(0.2, 0.8, array.shape))
        return other

    @cached_property
    def _graph(self) -> ir.Graph | None:
        try:
            model, structure = self._convert(self._copy)
        except Exception:  # a converter may need numbers that belong together
            return None
        return model.graph if structure == self._structure else None

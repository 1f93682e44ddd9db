"""Factors of the learning rate and of the weight decay by parameter: segments of the flat vector.

A segment is a run of neighboring parameters of equal factors. Each is updated on its own, by scalar coefficients: that
holds for any optimizer and for fused kernels, and it is faster than a product with a vector of factors.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from ..exceptions import ModelError
from ..optimizers import Optimizer
from .parameters import FlatParameters


class Factors(NamedTuple):
    """What the learning rate and the weight decay of a parameter are multiplied with."""

    rate: float = 1.0
    decay: float = 1.0


NO_FACTORS: Mapping[str, Factors] = {}


@dataclass(frozen=True)
class Segment:
    """A slice of the vector of parameters, and the factors of all parameters in it."""

    part: slice
    factors: Factors


def segments(parameters: FlatParameters, factors: Mapping[str, Factors]) -> list[Segment]:
    """Return the segments of the vector; parameters that ``factors`` does not name have factors of one."""
    groups: Iterable[tuple[Factors, Iterable[str]]] = [(Factors(), parameters.names)]
    if factors:
        groups = groupby(parameters.names, lambda name: factors.get(name, Factors()))
    found = []
    for value, names in groups:
        spans = [parameters.span(name) for name in names]
        found.append(Segment(slice(spans[0].start, spans[-1].stop), value))
    return found


def with_decay_factor(optimizer: Optimizer, factor: float) -> Optimizer:
    """Return the optimizer with its weight decay multiplied by ``factor``; one without weight decay is unchanged."""
    decay = getattr(optimizer, "weight_decay", 0.0)
    if factor == 1 or not decay:
        return optimizer
    twin = copy.copy(optimizer)
    vars(twin)["weight_decay"] = float(decay) * factor
    return twin


def require_elementwise(optimizer: Optimizer, *, elementwise: bool) -> None:
    """Raise unless the update of an element depends on that element alone."""
    if not elementwise:
        raise ModelError(
            f"{type(optimizer).__name__}.update combines elements of the vector, so parameters cannot be updated with "
            f"different learning_rate_factors or weight_decay_factors. Take one factor for all parameters."
        )


def require_rows_apart(optimizer: Optimizer, *, elementwise: bool) -> None:
    """Raise unless single rows of a matrix can be updated."""
    if not elementwise:
        raise ModelError(
            f"{type(optimizer).__name__}.update combines elements of the vector, so single rows cannot be updated. "
            f"Set sparse_updates='exact'."
        )

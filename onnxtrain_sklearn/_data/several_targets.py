"""The targets of several outputs as columns of one matrix, and the weights of the rows for each output.

:func:`joined_targets` joins the targets of the outputs. A row without a label for an output has weight zero for it;
:func:`spread` fills the columns of such rows with values that every loss accepts and that have no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .targets import IGNORED, Targets


@dataclass(frozen=True, eq=False)
class SeveralTargets(Targets):
    """The targets of several outputs, joined in one matrix of numbers.

    Attributes
    ----------
    names : tuple of str
        The outputs.
    parts : tuple of Targets
        The targets of each output.
    weights : tuple of ndarray or None
        The weights of the rows for each output; None if all are one.
    has_factors : bool
        True if the outputs weigh rows differently: after the targets, ``values`` then holds a factor for each output.
    """

    names: tuple[str, ...] = ()
    parts: tuple[Targets, ...] = ()
    weights: tuple[np.ndarray | None, ...] = ()
    has_factors: bool = False

    def take(self, rows: np.ndarray) -> SeveralTargets:
        """Return the targets of some rows."""
        parts = tuple(part.take(rows) for part in self.parts)
        weights = tuple(None if own is None else own[rows] for own in self.weights)
        return replace(self, values=self.values[rows], parts=parts, weights=weights)

    def with_factors(self, rows: np.ndarray) -> SeveralTargets:
        """Return the targets with the factors of the outputs, each of mean one over ``rows``."""
        if not self.has_factors:
            return self
        factors = [
            _factors_of_rows(w, rows, name, len(self.values)) for w, name in zip(self.weights, self.names, strict=True)
        ]
        values = np.column_stack([self.values, *factors])
        return replace(self, values=values, n_outputs=values.shape[1])


def _factors_of_rows(weights: np.ndarray | None, rows: np.ndarray, name: str, count: int) -> np.ndarray:
    """Return the weights of one output for all ``count`` rows, divided by their mean over ``rows``."""
    if weights is None:
        return np.ones(count)
    mean = float(weights[rows].mean())
    if not weights.any():  # a pass over rows without a label of the output
        return weights
    if not mean > 0:
        raise ValueError(f"Output {name!r}: none of the rows to train on has a positive weight.")
    return np.asarray(weights / mean)


def joined_targets(
    names: Sequence[str], parts: Sequence[Targets], weights: Sequence[np.ndarray | None]
) -> tuple[SeveralTargets, np.ndarray | None]:
    """Return the targets of several outputs as one, and the weights of the rows.

    If all outputs have the same weights, these are returned; else ones where a row counts for any output, else zeros.
    """
    values = np.concatenate([np.reshape(part.values, (len(part.values), -1)) for part in parts], axis=1)
    alike = all(_equal(own, weights[0]) for own in weights[1:])
    joined = SeveralTargets(
        values,
        "regression",
        values.shape[1],
        names=tuple(names),
        parts=tuple(parts),
        weights=tuple(weights),
        has_factors=not alike,
    )
    if alike:
        return joined, weights[0]
    counts = np.any([np.ones(len(values), bool) if own is None else own > 0 for own in weights], axis=0)
    if not counts.any():
        raise ValueError("The sum of sample_weight is zero for every output: at least one row must have a weight.")
    return joined, None if counts.all() else counts.astype(np.float64)


def _equal(first: np.ndarray | None, second: np.ndarray | None) -> bool:
    if first is None or second is None:
        return first is second
    return np.array_equal(first, second)


def spread(targets: Targets, weights: np.ndarray | None, rows: np.ndarray, count: int) -> tuple[Targets, np.ndarray]:
    """Return the targets of ``rows`` among ``count`` rows, and the weights, which are zero for the other rows.

    The other rows get a target that every loss accepts: a positive number, or the first class.
    """
    filler = IGNORED if targets.has_positions else int(targets.task == "regression")
    values = np.full((count, *targets.values.shape[1:]), filler, targets.values.dtype)
    values[rows] = targets.values
    every = np.zeros(count)
    every[rows] = 1.0 if weights is None else weights
    counts = targets.counts
    if counts is not None:
        counts = np.ones((count, *counts.shape[1:]), bool)
        counts[rows] = targets.counts
    return replace(targets, values=values, counts=counts), every

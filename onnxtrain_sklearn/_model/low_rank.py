"""Low-rank changes of matrices: the factors of each matrix, and the matrices with the changes merged into them.

A matrix W becomes W + scale · L R, where L has as many rows as W and R as many columns. The module
``adapters`` inserts the factors into a graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LowRank:
    """The change of one matrix, and the names of its parts in the graph.

    Attributes
    ----------
    matrix : str
        The initializer that stays as it is.
    left, right : str
        Names of the factors L and R. Of a convolution they are kernels: (out, r, 1, ...) and (r, in, k, ...).
    scale : float
        Factor of the change, alpha / rank.
    first : str
        The factor that the input is multiplied by. It begins random and the other at zero.
    sums : tuple of str
        The nodes that add the change.
    """

    matrix: str
    left: str
    right: str
    scale: float
    first: str
    sums: tuple[str, ...]

    @property
    def factors(self) -> tuple[str, str]:
        """The names of both factors, the first one first."""
        return (self.left, self.right) if self.first == self.left else (self.right, self.left)


def factors_of_matrices(changes: Sequence[LowRank]) -> set[str]:
    """Return the names of all factors."""
    return {name for one in changes for name in one.factors}


def merged(weights: Mapping[str, np.ndarray], changes: Sequence[LowRank]) -> dict[str, np.ndarray]:
    """Return the weights with the factors merged into their matrices: computed in float64 and rounded once."""
    factors = factors_of_matrices(changes)
    result = {name: array for name, array in weights.items() if name not in factors}
    for one in changes:
        given, left, right = (np.asarray(weights[name], np.float64) for name in (one.matrix, one.left, one.right))
        change = left.reshape(len(left), -1) @ right.reshape(len(right), -1)
        result[one.matrix] = (given + one.scale * change.reshape(given.shape)).astype(weights[one.matrix].dtype)
    return result

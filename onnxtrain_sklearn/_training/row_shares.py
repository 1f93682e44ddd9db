"""The weights of the rows of a minibatch divided by their sum, as the host gives them to the graph."""

from __future__ import annotations

import numpy as np

from .._graph.loss_terms import LEAST_TOTAL
from .loss_graph import one_hot_table

KEPT_SHARES = 2
"""Shares that are kept: without weights those of a full minibatch and of the last one, which is padded, alternate."""


class RowShares:
    """The shares of the rows; those of most minibatches are equal.

    They are a column, and a matrix of so many equal columns.

    Attributes
    ----------
    column, matrix : ndarray
    equal : float or None
        The share of each row; None where they differ.
    of_ones : bool
        Whether all weights were one.
    """

    def __init__(self, weights: np.ndarray, columns: int = 0) -> None:
        self._weights, self._known = weights, b""
        self._kept: dict[bytes, tuple[np.ndarray, float | None, bool]] = {}
        self.column = np.zeros((len(weights), 1), weights.dtype)
        self.matrix = np.zeros((len(weights), columns), weights.dtype)
        self.equal: float | None = None
        self.of_ones = False

    def update(self) -> None:
        """Compute the shares if the weights have changed."""
        content = self._weights.tobytes()
        if content == self._known:
            return
        if content in self._kept:
            self.column[...], self.equal, self.of_ones = self._kept[content]
        else:
            self._compute(content)
        self.matrix[...], self._known = self.column, content

    def _compute(self, content: bytes) -> None:
        np.divide(self._weights[:, None], max(self._weights.sum(), LEAST_TOTAL), self.column)
        are_equal = content == content[: self._weights.itemsize] * len(self._weights)
        self.equal = float(self.column[0, 0]) if are_equal else None
        self.of_ones = are_equal and bool(self._weights[0] == 1)
        if len(self._kept) < KEPT_SHARES:
            self._kept[content] = self.column.copy(), self.equal, self.of_ones


class LabeledShares:
    """A matrix with the negative share of each row at its label, and zeros elsewhere; NaN for a label that is no class.

    Parameters
    ----------
    labels : ndarray of int of shape (n_rows,)
        Those of the minibatch in the buffers.
    shares : RowShares
        They are up to date.
    """

    def __init__(self, labels: np.ndarray, shares: RowShares) -> None:
        self._labels, self._shares = labels, shares
        self.matrix = np.zeros_like(shares.matrix)
        self._rows = one_hot_table(self.matrix.shape[1]).astype(self.matrix.dtype)
        self._scale, self._table = 1.0, -self._rows

    def update(self) -> None:
        """Compute the matrix for the labels in the buffers."""
        equal = self._shares.equal
        scale = 1.0 if equal is None else equal
        if scale != self._scale:
            self._scale, self._table = scale, self._rows * -scale
        self._table.take(self._labels, 0, self.matrix, "wrap")  # as Gather counts, and without a buffer of the result
        if equal is None:
            np.multiply(self.matrix, self._shares.matrix, self.matrix)

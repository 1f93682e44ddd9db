"""The loss of weighted rows and its gradient, for searches on a few rows with one set of buffers.

The rows stay in the buffers; what changes are their weights. A fold of a cross-validation is a vector of weights.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .._data.batches import Batches
from .loss_graph import TARGET
from .parameters import FlatParameters
from .step import GradientStep

SAMPLED_ROWS = 64
"""Number of rows whose gradients are squared."""


class RowObjective:
    """The mean loss of weighted rows.

    Attributes
    ----------
    rows : ndarray of int
        The rows, in the order of the weights of a call.
    weights : ndarray of shape (n_rows,)
        The weights that the rows have in the data.
    """

    def __init__(self, step: GradientStep, batches: Batches) -> None:
        self._step, self._batches = step, batches
        self._pieces = batches.minibatches()
        self._loaded: np.ndarray | None = None
        ends = np.cumsum([0, *map(len, self._pieces)]).tolist()
        self._parts = [slice(*ends[i : i + 2]) for i in range(len(self._pieces))]
        self.rows = np.concatenate(self._pieces)
        self.weights = batches.weights_of(self.rows)

    @property
    def parameters(self) -> FlatParameters:
        """The parameters; a call leaves its vector in them."""
        return self._step.parameters

    def digest(self, update: Callable[[bytes], object], size: int) -> None:
        """Call ``update`` with the rows and their weights, ``size`` rows at a time."""
        self._batches.digest(update, size)

    def first(self) -> np.ndarray:
        """Return the weights with those of the first rows only, which are in the buffers at once."""
        return np.where(np.arange(len(self.rows)) < len(self._pieces[0]), self.weights, 0.0)

    def targets(self) -> np.ndarray:
        """Return one target of each row: the first of those that differ between rows, as a corner of a map may not."""
        first = self._targets_of(self._pieces[0])[0].copy()
        differ = ((self._targets_of(piece) != first).any(axis=0) for piece in self._pieces)
        column = next((int(np.argmax(some)) for some in differ if some.any()), 0)
        return np.concatenate([self._targets_of(piece)[:, column].copy() for piece in self._pieces])

    def __call__(self, vector: np.ndarray, weights: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the mean loss of the weighted rows and its gradient, in float64."""
        self.parameters.vector[...] = vector
        loss, gradient = 0.0, np.zeros(len(vector))
        sizes = [float(weights[part].sum()) for part in self._parts]
        total = sum(sizes)
        for piece, part, size in zip(self._pieces, self._parts, sizes, strict=True):
            if size:
                self._load(piece)
                share = size / total
                loss += share * self._weighted(weights[part], total)
                gradient += np.multiply(self.parameters.gradient, share, dtype=np.float64)
        return loss, gradient

    def loss(self, vector: np.ndarray, weights: np.ndarray) -> float:
        """Return the mean loss of the weighted rows."""
        return self(vector, weights)[0]

    def squared_gradients(self, vector: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
        """Return the mean square of the gradients of single rows, their targets shuffled.

        With the targets as they are, the square would be largest where the model errs. Shuffled, it tells how much a
        parameter changes the predictions.
        """
        self.parameters.vector[...] = vector
        chosen = rng.permutation(np.arange(len(self._pieces[0])))[:SAMPLED_ROWS]
        targets = self._load(self._pieces[0])
        targets[chosen] = targets[rng.permutation(chosen)]
        squares = np.zeros(len(vector))
        for i in chosen:
            self._weighted(np.eye(1, len(self._pieces[0]), i)[0], 1.0)
            squares += self.parameters.gradient.astype(np.float64) ** 2
        self._loaded = None
        return squares / len(chosen)

    def _targets_of(self, piece: np.ndarray) -> np.ndarray:
        """Return the targets of the rows, a line for each; the next call may write over them."""
        return self._load(piece)[: len(piece)].reshape(len(piece), -1)

    def _load(self, piece: np.ndarray) -> np.ndarray:
        """Gather the rows into the buffers; return the buffer of the targets."""
        buffers = self._step.buffers(len(piece))
        if self._loaded is not piece:
            self._batches.gather(piece, buffers)
            self._loaded = piece
        return buffers.columns[TARGET]

    def _weighted(self, weights: np.ndarray, total: float) -> float:
        """Compute the gradients of the loaded rows; return their loss."""
        buffer = self._step.buffers(len(weights)).sample_weight
        buffer[: len(weights)], buffer[len(weights) :] = weights, 0.0
        return self._step.gradients(total)

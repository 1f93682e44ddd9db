"""The objective of fine-tuning: the loss of weighted rows, and the recalibration of outputs.

The rows stay in the buffers, and only their weights change. A fold of a cross-validation is a vector of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.optimize

from .._data.batches import Batches, Minibatch
from .._training.loss_graph import TARGET
from .._training.parameters import FlatParameters
from .._training.step import HostStep

SAMPLED_ROWS = 64
"""Number of rows from which the mean square of the gradients is estimated."""


class RowObjective:
    """The mean loss of weighted rows.

    Attributes
    ----------
    rows : ndarray of int
        The rows, in the order of the ``weights`` argument of the methods.
    weights : ndarray of shape (n_rows,)
        The weights of the rows in the data: sample and class weights.
    """

    def __init__(self, step: HostStep, batches: Batches) -> None:
        self._step, self._batches = step, batches
        self._pieces = list(batches.epoch())
        self._loaded: Minibatch | None = None
        ends = np.cumsum([0, *(len(piece.rows) for piece in self._pieces)]).tolist()
        self._parts = [slice(*ends[i : i + 2]) for i in range(len(self._pieces))]
        self.rows = np.concatenate([piece.rows for piece in self._pieces])
        own = [np.ones(len(one.rows)) if one.weights is None else one.weights for one in self._pieces]
        self.weights = np.concatenate(own)

    @property
    def parameters(self) -> FlatParameters:
        """The parameters; each evaluation sets them to its ``vector``."""
        return self._step.parameters

    def digest(self, update: Callable[[bytes], object], size: int) -> None:
        """Call ``update`` with the rows and their weights, ``size`` rows at a time."""
        self._batches.digest(update, size)

    def first(self) -> np.ndarray:
        """Return a copy of ``weights`` that is zero except for the first rows, which fit into the buffers together."""
        return np.where(np.arange(len(self.rows)) < len(self._pieces[0].rows), self.weights, 0.0)

    def targets(self) -> np.ndarray:
        """Return one target per row: of several, the first that differs between rows (a corner of an image may not)."""
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
        """Return the mean square of the gradients of single rows, with shuffled targets, for each parameter.

        With the true targets, the squares would be largest where the model errs. With shuffled targets, they measure
        how much a parameter changes the predictions.
        """
        self.parameters.vector[...] = vector
        chosen = rng.permutation(np.arange(len(self._pieces[0].rows)))[:SAMPLED_ROWS]
        targets = self._load(self._pieces[0])
        kept = targets[chosen].copy()
        targets[chosen] = targets[rng.permutation(chosen)]
        squares = np.zeros(len(vector))
        for i in chosen:
            self._weighted(np.eye(1, len(self._pieces[0].rows), i)[0], 1.0)
            squares += self.parameters.gradient.astype(np.float64) ** 2
        targets[chosen] = kept  # restore the targets, because later calls use the rows in the buffers
        return squares / len(chosen)

    def _targets_of(self, piece: Minibatch) -> np.ndarray:
        """Return the targets of the minibatch, (rows, targets); the next call may overwrite the array."""
        count = len(piece.rows)
        return self._load(piece)[:count].reshape(count, -1)

    def _load(self, piece: Minibatch) -> np.ndarray:
        """Gather the rows into the buffers; return the buffer of the targets."""
        buffers = self._step.select(len(piece.rows))
        if self._loaded is not piece:
            piece.fill(buffers)
            self._loaded = piece
        return buffers.columns[TARGET]

    def _weighted(self, weights: np.ndarray, total: float) -> float:
        """Compute the gradients of the loaded rows; return their loss."""
        buffer = self._step.select(len(weights)).sample_weight
        buffer[: len(weights)], buffer[len(weights) :] = weights, 0.0
        return self._step.compute_gradients(total)


# Recalibration: scaling and shifting the scores of a model by changing some of its weights.
#
# The weights that scale or shift the scores are found by trial, for any form of the graph: change a parameter, and
# compare the scores of some rows.


Scores = Callable[[], np.ndarray]
"""Returns the scores of some rows by the current parameters."""


@dataclass(frozen=True)
class InnerScores:
    """Values that a fixed function at the end of the graph reads, used as scores, and the weights upstream of them."""

    scores: Scores
    names: tuple[str, ...]


MOST_NAMES = 64
"""In models with more parameters than this, no parameters that scale or shift the scores are searched."""


@dataclass(frozen=True, eq=False)
class OutputWeights:
    """The weights that scale and shift the scores.

    Attributes
    ----------
    scaled : ndarray of bool
        Mask of the weights that scale the scores: multiplying them by a number multiplies the scores by it, up to a
        shift. It is False throughout if there are no such weights.
    shifts : ndarray of int, of shape (n_columns, n_weights)
        For each column of the scores, the positions of the weights that are added to it; no columns if there are none.
    size : float
        Root mean square of the scores.
    effect : float
        The change of the scores per unit of change of the shifting weights.
    """

    scaled: np.ndarray
    shifts: np.ndarray
    size: float
    effect: float = 1.0

    @property
    def linear(self) -> bool:
        """True if all weights together scale the scores, as they do in linear models and sums of trees."""
        return bool(len(self.shifts) and self.scaled.all())

    def shifted(self, vector: np.ndarray, by: np.ndarray) -> np.ndarray:
        """Return a copy of the weights ``vector`` that adds the numbers ``by`` to the columns of the scores."""
        result: np.ndarray = vector.copy()
        for places, number in zip(self.shifts, by, strict=True):
            result[places] += number / self.effect
        return result

    def shift_gradient(self, gradient: np.ndarray) -> np.ndarray:
        """Return the gradient with respect to the numbers added to the columns, given that of the weights."""
        return np.asarray(gradient[self.shifts].sum(axis=1) / self.effect)


def no_output_weights(size: int) -> OutputWeights:
    """Return the OutputWeights of a model with ``size`` weights whose output is not recalibrated."""
    return OutputWeights(np.zeros(size, bool), np.empty((0, 1), int), 1.0)


def output_weights(parameters: FlatParameters, scores: Scores, among: Sequence[str] | None = None) -> OutputWeights:
    """Return the weights that scale and shift the scores, among all parameters or those of these names."""
    before = _columns(scores)
    size = np.abs(before).max(initial=0.0)
    columns = before.shape[1]
    names = parameters.names if among is None else tuple(among)
    names = names if len(names) <= MOST_NAMES else ()

    # Find the shift: a parameter such that adding numbers to it adds a multiple of them to the scores. First try those
    # with one number per column of the scores; for a single column also longer ones, such as leaves of trees.
    own = [name for name in reversed(names) if len(parameters.vector[parameters.span(name)]) == columns]
    shifting, effect = None, 1.0
    for name in (*own, *(name for name in reversed(names) if name not in own)):
        span = parameters.span(name)
        if columns not in (1, span.stop - span.start):
            continue
        steps = size * (0.5 + np.arange(columns) / columns) + 1.0
        added = _after(parameters, parameters.vector[span] + steps, span, scores) - before
        factor = float(added[0, 0] / steps[0])
        near = 1e-3 * abs(factor) * steps[0]
        if factor and np.isfinite(added).all() and np.allclose(added, factor * steps, rtol=1e-3, atol=near):
            shifting, effect = name, factor
            break

    # Find the scale: parameters whose multiplication by 1.5 multiplies the scores by 1.5, up to a shift.
    bias = () if shifting is None else (shifting,)
    sets = [names, *((name, *bias) for name in names if name not in bias)]
    if not before.any() or np.ptp(before, axis=0).max() == 0:
        sets = []  # constant scores do not show a scale
    scaled = np.zeros(len(parameters.vector), bool)
    for scaling in filter(None, sets):
        vector = parameters.vector.copy()
        for name in scaling:
            vector[parameters.span(name)] *= 1.5
        difference = _after(parameters, vector, slice(None), scores) - 1.5 * before
        if not np.isfinite(difference).all():
            continue
        difference -= difference.mean(axis=0) if bias else 0.0
        if np.allclose(difference, 0.0, atol=1e-3 * size):
            for name in scaling:
                scaled[parameters.span(name)] = True
            break

    shifts = np.empty((0, 1), int)
    if shifting is not None:
        shifts = np.arange(len(scaled))[parameters.span(shifting)].reshape(columns, -1)
    return OutputWeights(scaled, shifts, float(np.sqrt(np.mean(before**2))) or 1.0, effect)


def _columns(scores: Scores) -> np.ndarray:
    found = scores()
    return np.asarray(found, np.float64).reshape(len(found), -1)


def _after(parameters: FlatParameters, values: np.ndarray, span: slice, scores: Scores) -> np.ndarray:
    """Return the scores with ``values`` in place of the parameters in ``span``, which are restored afterwards."""
    kept = parameters.vector.copy()
    try:
        parameters.vector[span] = values
        return _columns(scores)
    finally:
        parameters.vector[...] = kept


def anchors(
    objective: RowObjective, old: np.ndarray, output: OutputWeights, weights: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the anchors by name: the old weights, and those with an output recalibrated on the weighted rows."""
    found = {"old": old}
    if len(output.shifts):
        found["shifted"] = _fitted(objective, old, output, weights, scales=False)
    if output.scaled.any():
        found["rescaled"] = _fitted(objective, old, output, weights, scales=True)
    if output.linear:
        zero = np.where(output.scaled, 0.0, old)
        found["zero"] = _fitted(objective, zero, output, weights, scales=False)
    return found


def _fitted(
    objective: RowObjective, start: np.ndarray, output: OutputWeights, weights: np.ndarray, *, scales: bool
) -> np.ndarray:
    """Return ``start`` with the shift of the scores, or with ``scales`` the shift and scale, that minimize the loss."""
    factor = np.where(output.scaled, start, 0.0) / output.size

    def moved(z: np.ndarray) -> np.ndarray:
        return output.shifted(start + z[0] * factor if scales else start, z[1:])

    def loss(z: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = finite(*objective(moved(z), weights), highest)
        return value, np.concatenate([[gradient @ factor if scales else 0.0], output.shift_gradient(gradient)])

    zero = np.zeros(1 + len(output.shifts))
    highest = OUT_OF_DOMAIN * (1 + abs(objective(start, weights)[0]))
    end = scipy.optimize.minimize(loss, zero, jac=True, method="L-BFGS-B", options={"maxiter": 50})
    return start if not np.isfinite(end.fun) else moved(np.asarray(end.x))


OUT_OF_DOMAIN = 1e6
"""This multiple of the loss at the start replaces a loss that is not finite, so that the line search backtracks."""


def finite(loss: float, gradient: np.ndarray, highest: float) -> tuple[float, np.ndarray]:
    """Return a loss and its gradient; where they are not finite (a transform is undefined), ``highest`` and zeros."""
    if np.isfinite(loss) and np.isfinite(gradient).all():
        return loss, gradient
    return highest, np.zeros_like(gradient)

"""Recalibration of the output of a model by its own weights: scaling and shifting the scores.

Which weights scale the scores, and which shift them, is found by trying: whatever the form of the graph, the scores on
some rows tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.optimize

from .parameters import FlatParameters
from .row_objective import RowObjective

Scores = Callable[[], np.ndarray]
"""Returns the scores of some rows by the current parameters."""

MOST_NAMES = 64
"""Number of parameters beyond which those with the output's scale and shift are not looked for."""


@dataclass(frozen=True, eq=False)
class OutputWeights:
    """The weights that scale and shift the scores.

    Attributes
    ----------
    scaled : ndarray of bool
        Multiplying these weights by a number multiplies the scores by it; no weight, if there are no such weights.
    shifts : ndarray of int
        Places of the weights that are added to the scores, one for each column; empty if there are none.
    size : float
        Root mean square of the scores.
    """

    scaled: np.ndarray
    shifts: np.ndarray
    size: float

    @property
    def linear(self) -> bool:
        """Whether all weights together scale the scores, as they do in linear models and sums of trees."""
        return bool(len(self.shifts) and self.scaled.all())


def output_weights(parameters: FlatParameters, scores: Scores) -> OutputWeights:
    """Return the weights that scale and shift the scores."""
    before = _columns(scores)
    names = parameters.names if len(parameters.names) <= MOST_NAMES else ()
    shifting = next((name for name in reversed(names) if _shifts(parameters, name, scores, before)), None)
    bias = () if shifting is None else (shifting,)
    sets = [names, *((name, *bias) for name in names if name not in bias)]
    scaling = next((one for one in sets if one and _scales(parameters, one, scores, before)), ())
    scaled = np.zeros(len(parameters.vector), bool)
    for name in scaling:
        scaled[parameters.span(name)] = True
    places = np.arange(len(scaled))[parameters.span(shifting)] if shifting is not None else np.empty(0, int)
    return OutputWeights(scaled, places, float(np.sqrt(np.mean(before**2))) or 1.0)


def _columns(scores: Scores) -> np.ndarray:
    found = scores()
    return np.asarray(found, np.float64).reshape(len(found), -1)


def _shifts(parameters: FlatParameters, name: str, scores: Scores, before: np.ndarray) -> bool:
    """Whether adding numbers to a parameter adds them, times a constant, to the columns of the scores."""
    span = parameters.span(name)
    if span.stop - span.start != before.shape[1]:
        return False
    steps = np.abs(before).max() * (0.5 + np.arange(before.shape[1]) / before.shape[1]) + 1.0
    added = _after(parameters, parameters.vector[span] + steps, span, scores) - before
    factor = float(added[0, 0] / steps[0])
    return bool(factor and np.allclose(added, factor * steps, rtol=1e-3, atol=1e-3 * abs(factor) * steps[0]))


def _scales(parameters: FlatParameters, names: Sequence[str], scores: Scores, before: np.ndarray) -> bool:
    """Whether multiplying these parameters by 1.5 multiplies the scores by 1.5."""
    vector = parameters.vector.copy()
    for name in names:
        vector[parameters.span(name)] *= 1.5
    after, largest = _after(parameters, vector, slice(None), scores), np.abs(before).max()
    return bool(largest > 0 and np.allclose(after, 1.5 * before, rtol=1e-3, atol=1e-3 * largest))


def _after(parameters: FlatParameters, values: np.ndarray, span: slice, scores: Scores) -> np.ndarray:
    """Return the scores after the parameters in ``span`` have been replaced for a moment."""
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
    """Return ``start`` with the shift of the scores, or with shift and scale, of the least loss."""
    factor = np.where(output.scaled, start, 0.0) / output.size

    def moved(z: np.ndarray) -> np.ndarray:
        vector: np.ndarray = start + z[0] * factor if scales else start.copy()
        vector[output.shifts] += z[1:]
        return vector

    def loss(z: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = objective(moved(z), weights)
        return value, np.concatenate([[gradient @ factor if scales else 0.0], gradient[output.shifts]])

    zero = np.zeros(1 + len(output.shifts))
    end = scipy.optimize.minimize(loss, zero, jac=True, method="L-BFGS-B", options={"maxiter": 50})
    return start if not np.isfinite(end.fun) else moved(np.asarray(end.x))

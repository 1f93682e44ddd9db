"""Searches for fine-tuned weights: with a pull towards an anchor, or with old rows, of decreasing strength."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import scipy.optimize

from ..finetuning import FineTuner
from .recalibration import OutputWeights, anchors
from .row_objective import RowObjective

OLD, DAMPED, ZERO, OLD_ROWS = "old", "damped", "zero", "old rows"
"""Names of searches: the anchors of these names, and the search with old rows."""


class Paths:
    """Searches from the anchors.

    Parameters
    ----------
    tuner : FineTuner
    objective : RowObjective
    old : ndarray of shape (P,)
        The old weights.
    output : OutputWeights
    metric : ndarray of shape (P,)
        What a unit of each weight counts in the pull.
    old_rows : RowObjective or None
        The loss of old rows.
    damping : ndarray of shape (P,) or None
        What each weight is divided by in the damped anchors; None: there are none.
    """

    base = OLD

    def __init__(
        self,
        tuner: FineTuner,
        objective: RowObjective,
        old: np.ndarray,
        output: OutputWeights,
        metric: np.ndarray,
        old_rows: RowObjective | None = None,
        damping: np.ndarray | None = None,
    ) -> None:
        self.tuner, self.objective, self.old, self.output, self._metric = tuner, objective, old, output, metric
        self._old_rows = old_rows
        self._damped = None if damping is None else old / damping

    def anchors(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Return the start of each search for the weighted rows."""
        found = anchors(self.objective, self.old, self.output, weights)
        if self._damped is not None:
            damped = anchors(self.objective, self._damped, self.output, weights)
            found |= {
                DAMPED if name == OLD else f"{DAMPED}, {name}": own for name, own in damped.items() if name != ZERO
            }
        if self._old_rows is not None:
            found[OLD_ROWS] = self.old if self._damped is None else self._damped
        return found

    def strengths(self, name: str) -> Sequence[float]:
        """Return the strengths of a search, the strongest first."""
        return self.tuner.old_weights if name == OLD_ROWS else self.tuner.strengths

    def along(
        self, name: str, anchor: np.ndarray, weights: np.ndarray, strengths: Sequence[float], *, whole: bool = True
    ) -> Iterator[tuple[float, np.ndarray]]:
        """Yield the anchor, and the minimum for each strength; each search starts from the last one's end.

        With old rows there is no anchor; ``whole`` says whether all of them count, or the first ones.
        """
        vector, with_old = anchor, name == OLD_ROWS
        unit = 1.0 if with_old else self._unit(anchor, weights)
        if not with_old:
            yield np.inf, anchor
        for strength in strengths:
            pull, share = (0.0, strength) if with_old else (strength * unit, 0.0)
            vector = self._minimum(vector, anchor, pull, weights, share, whole=whole)
            yield strength, vector

    def refitted(
        self, name: str, strength: float, anchor: np.ndarray, start: np.ndarray, fraction: float
    ) -> np.ndarray:
        """Return the result of a search on all rows, from that on ``fraction`` of them.

        A strength that is chosen counts as in a sum over rows: the less, the more rows there are. One that is set is
        kept.
        """
        weights = self.objective.weights
        if np.isinf(strength):
            return self.anchors(weights)[name]
        strength *= fraction if len(self.strengths(name)) > 1 else 1.0
        if name == OLD_ROWS:
            return self._minimum(start, start, 0.0, weights, strength)
        return self._minimum(start, anchor, strength * self._unit(anchor, weights), weights)

    def _unit(self, anchor: np.ndarray, weights: np.ndarray) -> float:
        """Return the pull with which the first step lowers the loss by 0.3 %."""
        loss, gradient = self.objective(anchor, weights)
        decrease = 0.5 * float((gradient**2 / self._metric).sum())
        return decrease / (0.003 * abs(loss)) if decrease > 0 and loss else 1.0

    def _minimum(
        self,
        start: np.ndarray,
        anchor: np.ndarray,
        pull: float,
        weights: np.ndarray,
        share: float = 0.0,
        *,
        whole: bool = True,
    ) -> np.ndarray:
        """Return the weights of the least loss, the pull included; the search is in units of the metric."""
        scale = 1 / np.sqrt(self._metric)

        def loss(u: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = self._loss(anchor + scale * u, weights, share, whole=whole)
            return value + 0.5 * pull * float(u @ u), scale * gradient + pull * u

        begin = np.divide(start - anchor, scale, out=np.zeros_like(scale), where=scale > 0)
        size = max(abs(loss(begin)[0]), 1e-300)  # SciPy's tolerances are absolute for losses below one

        def in_size(u: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = loss(u)
            gradient /= size
            return value / size, gradient

        most = max(1, self.tuner.max_iter // 2) if share else self.tuner.max_iter  # old rows cost time
        end = scipy.optimize.minimize(
            in_size,
            begin,
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": most, "ftol": 1e-5, "gtol": 1e-9},
        )
        return np.asarray(anchor + scale * end.x) if np.isfinite(end.fun) else start

    def _loss(self, vector: np.ndarray, weights: np.ndarray, share: float, *, whole: bool) -> tuple[float, np.ndarray]:
        """Return the loss of the new rows, and of the old ones as ``share`` of their weight, with its gradient."""
        loss, gradient = self.objective(vector, weights)
        if self._old_rows is None or not share:
            return loss, gradient
        old_loss, old_gradient = self._old_rows(vector, self._old_rows.weights if whole else self._old_rows.first())
        return (loss + share * old_loss) / (1 + share), (gradient + share * old_gradient) / (1 + share)


def metric(
    objective: RowObjective, vector: np.ndarray, rng: np.random.RandomState, damping: np.ndarray | None = None
) -> np.ndarray:
    """Return what a unit of each weight counts in the pull: the mean square of the gradients of its parameter.

    Weights in far smaller units than the others of their parameter, whose gradients are far larger, count as much
    more: columns of data are not always scaled. With ``damping``, all is in units of the damped weights.
    """
    units = 1.0 if damping is None else damping
    squares, result = objective.squared_gradients(vector / units, rng) / units**2, np.empty(len(vector))
    parameters = objective.parameters
    for name in parameters.names:
        own = squares[parameters.span(name)]
        moved = own[own > 0]
        typical = float(np.median(moved)) if len(moved) else 1.0
        result[parameters.span(name)] = own.mean() * np.maximum(1.0, own / (100 * typical)) if len(moved) else np.nan
    return units**2 * np.nan_to_num(result, nan=float(np.nanmax(result)) if np.isfinite(result).any() else 1.0)

"""Fine-tuning: searches on all new rows with a pull towards an anchor, chosen by cross-validation on these rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.optimize

from .._data.batches import Batches
from ..exceptions import warn
from ..finetuning import FineTuner
from .history import History
from .loop import Trainer, TrainerSettings
from .recalibration import OutputWeights, Scores, anchors, no_output_weights, output_weights
from .row_objective import RowObjective
from .step import GradientStep

CROSS_VALIDATED_ROWS, CROSS_VALIDATED_WORK = 1000, 20_000_000
"""Most rows that take part in the cross-validation, and most rows times parameters; others are trained on only."""

ENOUGH_FOR_ONE_SPLIT = 5
"""Number of all rows for each row of the cross-validation from which these are held out once, not fold by fold."""

GROUPS = 10
"""Number of groups of held-out rows; the standard error of a loss is estimated from theirs."""

SHARPNESS = 4.0
"""Exponent of the weight of a candidate for each standard error that its loss is above the least one."""

LEAST_WEIGHT = 0.01

PATIENCE = 2
"""Strengths in a row without a lower held-out loss after which weaker ones are not tried."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """An anchor with a strength of the pull, infinite for the anchor itself, and the losses of held-out rows."""

    anchor: str
    strength: float
    losses: np.ndarray


class FineTuningTrainer(Trainer):
    """Fine-tune the parameters of ``step``; the other parameters are those of :class:`~.loop.Trainer`.

    Parameters
    ----------
    tuner : FineTuner
    scores : callable () -> ndarray
        Scores of some rows by the current parameters.
    rng : numpy.random.RandomState
        Draws the folds.
    """

    def __init__(
        self,
        tuner: FineTuner,
        scores: Scores,
        rng: np.random.RandomState,
        settings: TrainerSettings,
        step: GradientStep,
        batches: Batches,
        history: History,
        validate: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(settings, step, batches, history, validate)
        self._tuner, self._scores, self._rng = tuner, scores, rng
        self._objective = RowObjective(step, batches)

    def _train(self) -> bool:
        """Choose among the candidates; the history holds the loss before and after."""
        objective, old = self._objective, self._vector.astype(np.float64)
        before = objective.loss(old, objective.weights)
        if self._record(before):
            return True
        vector = self._tuned(old)
        loss = objective.loss(vector, objective.weights)
        if not (np.isfinite(loss) and np.isfinite(vector).all()):
            self._diverge()
        self._history.last_finite = self._last = self._buffer.copy()
        self._record(loss)
        return True

    def _tuned(self, old: np.ndarray) -> np.ndarray:
        objective, targets = self._objective, self._objective.targets()
        if len(np.unique(targets)) < 2 and self._validate is None:
            warn(
                "Fine-tuning leaves the model as it is: y holds a single value, on which no choice can be validated.",
                UserWarning,
            )
            return old
        output = self._output()
        paths = Paths(self._tuner, objective, old, output, metric(objective, old, self._rng))
        if self._validate is not None:
            return self._best_scored(paths, self._validate)
        folds = self._folds(targets)
        return paths.mean(*cross_validated(paths, folds))

    def _output(self) -> OutputWeights:
        if self._tuner.recalibrate:
            return output_weights(self._objective.parameters, self._scores)
        return no_output_weights(len(self._vector))

    def _best_scored(self, paths: Paths, validate: Callable[[], float]) -> np.ndarray:
        """Return the candidate with the best score on the validation data; the first of equal ones."""
        best, best_score = paths.old, -np.inf
        for anchor in paths.anchors(self._objective.weights).values():
            for _, vector in paths.along(anchor, self._objective.weights):
                self._vector[...] = vector
                score = validate()
                if score > best_score:
                    best, best_score = vector, score
        return best

    def _folds(self, targets: np.ndarray) -> np.ndarray:
        """Return the fold of each row, -1 for those that are always trained on; targets are spread evenly."""
        n_rows, size = len(targets), max(1, len(self._vector))
        most = int(np.clip(CROSS_VALIDATED_WORK / size, 200, CROSS_VALIDATED_ROWS))
        order = self._rng.permutation(n_rows)[:most]
        order = order[np.argsort(targets[order], kind="stable")]
        folds = np.full(n_rows, -1)
        once = ENOUGH_FOR_ONE_SPLIT * len(order) <= n_rows
        folds[order] = 0 if once else np.arange(len(order)) % min(self._tuner.cv, len(order))
        return folds


class Paths:
    """Searches from the anchors, with pulls of decreasing strength.

    Parameters
    ----------
    tuner : FineTuner
    objective : RowObjective
    old : ndarray of shape (P,)
        The old weights.
    output : OutputWeights
    metric : ndarray of shape (P,)
        What a unit of each weight counts in the pull.
    """

    def __init__(
        self, tuner: FineTuner, objective: RowObjective, old: np.ndarray, output: OutputWeights, metric: np.ndarray
    ) -> None:
        self.tuner, self.objective, self.old, self.output, self._metric = tuner, objective, old, output, metric

    def anchors(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Return the anchors for the weighted rows."""
        return anchors(self.objective, self.old, self.output, weights)

    def along(
        self, anchor: np.ndarray, weights: np.ndarray, strengths: Sequence[float] | None = None
    ) -> Iterator[tuple[float, np.ndarray]]:
        """Yield the anchor, and the minimum for each strength; each search starts from the last one's end."""
        yield np.inf, anchor
        vector, unit = anchor, self._unit(anchor, weights)
        for strength in self.tuner.strengths if strengths is None else strengths:
            vector = self._minimum(vector, anchor, strength * unit, weights)
            yield strength, vector

    def _unit(self, anchor: np.ndarray, weights: np.ndarray) -> float:
        """Return the pull with which the first step lowers the loss by 0.3 %."""
        loss, gradient = self.objective(anchor, weights)
        decrease = 0.5 * float((gradient**2 / self._metric).sum())
        return decrease / (0.003 * abs(loss)) if decrease > 0 and loss else 1.0

    def _minimum(self, start: np.ndarray, anchor: np.ndarray, pull: float, weights: np.ndarray) -> np.ndarray:
        """Return the weights of the least loss, the pull included; the search is in units of the metric."""
        scale = 1 / np.sqrt(self._metric)

        def loss(u: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = self.objective(anchor + scale * u, weights)
            return value + 0.5 * pull * float(u @ u), scale * gradient + pull * u

        begin = (start - anchor) / scale
        size = max(abs(loss(begin)[0]), 1e-300)  # SciPy's tolerances are absolute for losses below one
        end = scipy.optimize.minimize(
            lambda u: tuple(part / size for part in loss(u)),
            begin,
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": self.tuner.max_iter, "ftol": 1e-5, "gtol": 1e-9},
        )
        return anchor + scale * end.x if np.isfinite(end.fun) else start

    def mean(self, candidates: Sequence[Candidate], shares: np.ndarray) -> np.ndarray:
        """Return the mean of the candidates, trained on all rows, weighted by their shares."""
        weights, result = self.objective.weights, np.zeros(len(self.old))
        points: Mapping[str, np.ndarray] = self.anchors(weights)
        for name, anchor in points.items():
            own = {c.strength: s for c, s in zip(candidates, shares, strict=True) if c.anchor == name and s}
            if own:
                weakest = min(own)
                tried = [s for s in self.tuner.strengths if s >= weakest]
                result += sum(own.get(s, 0.0) * v for s, v in self.along(anchor, weights, tried) if s in own)
        return result


def metric(objective: RowObjective, vector: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
    """Return what a unit of each weight counts in the pull: the mean square of the gradients of its parameter.

    Weights in far smaller units than the others of their parameter, whose gradients are far larger, count as much
    more: columns of data are not always scaled.
    """
    squares, result = objective.squared_gradients(vector, rng), np.empty(len(vector))
    parameters = objective.parameters
    for name in parameters.names:
        own = squares[parameters.span(name)]
        moved = own[own > 0]
        typical = float(np.median(moved)) if len(moved) else 1.0
        result[parameters.span(name)] = own.mean() * np.maximum(1.0, own / (100 * typical)) if len(moved) else np.nan
    return np.nan_to_num(result, nan=float(np.nanmax(result)) if np.isfinite(result).any() else 1.0)


def cross_validated(paths: Paths, folds: np.ndarray) -> tuple[list[Candidate], np.ndarray]:
    """Return the candidates with the losses of held-out rows, and the share of each in the mean.

    Of the old weights and those with a recalibrated output, the worst anchor itself is a candidate, not its path.
    """
    objective = paths.objective
    fitted_on = [np.where(folds == fold, 0.0, objective.weights) for fold in range(folds.max() + 1)]
    held_out = list(_groups(folds))
    sizes = np.array([objective.weights[rows].sum() for _, rows in held_out])
    points = [paths.anchors(weights) for weights in fitted_on]
    at = {name: _held_out_losses(objective, [own[name] for own in points], held_out) for name in points[0]}
    recalibrated = sorted((name for name in at if name != "zero"), key=lambda name: float(at[name] @ sizes))
    candidates = [Candidate(name, np.inf, at[name]) for name in recalibrated[2:]]
    for name in [*recalibrated[:2], *(name for name in at if name == "zero")]:
        walks = [paths.along(own[name], weights) for own, weights in zip(points, fitted_on, strict=True)]
        candidates += _judged(objective, name, walks, held_out, sizes)
    return candidates, shares(candidates, sizes, linear=paths.output.linear)


def _judged(
    objective: RowObjective,
    name: str,
    walks: Sequence[Iterator[tuple[float, np.ndarray]]],
    held_out: Sequence[tuple[int, np.ndarray]],
    sizes: np.ndarray,
) -> list[Candidate]:
    """Return the candidates of an anchor, the strongest pull first, until the losses of held-out rows rise."""
    found: list[Candidate] = []
    for steps in zip(*walks, strict=True):
        losses = _held_out_losses(objective, [vector for _, vector in steps], held_out)
        found.append(Candidate(name, steps[0][0], losses))
        totals = [one.losses @ sizes for one in found]
        if len(totals) - 1 - int(np.argmin(totals)) >= PATIENCE:
            break
    return found


def _held_out_losses(
    objective: RowObjective, vectors: Sequence[np.ndarray], held_out: Sequence[tuple[int, np.ndarray]]
) -> np.ndarray:
    """Return the loss of each group of rows by the weights, a vector for each fold, that were fitted without them."""

    def loss(fold: int, rows: np.ndarray) -> float:
        weights = np.zeros(len(objective.rows))
        weights[rows] = objective.weights[rows]
        return objective.loss(vectors[fold], weights)

    return np.array([loss(fold, rows) for fold, rows in held_out])


def _groups(folds: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield groups of rows of one fold each."""
    n_folds = int(folds.max()) + 1
    for fold in range(n_folds):
        rows = np.flatnonzero(folds == fold)
        for part in np.array_split(rows, min(len(rows), max(1, GROUPS // n_folds))):
            yield fold, part


def shares(candidates: Sequence[Candidate], sizes: np.ndarray, *, linear: bool) -> np.ndarray:
    """Return the share of each candidate, by how many standard errors its loss is above the least one.

    Unless the scores are linear in the weights, only candidates of one anchor are averaged.
    """
    weights = sizes / sizes.sum()
    losses = np.array([one.losses for one in candidates])
    losses = np.where(np.isfinite(losses), losses, np.finfo(float).max / 1e10)
    best = int(np.argmin(losses @ weights))
    above = losses - losses[best]
    mean = above @ weights
    error = np.sqrt(((weights * (above - mean[:, None])) ** 2).sum(axis=1))
    z = np.divide(mean, error, out=np.where(mean > 0, np.inf, 0.0), where=error > 0)
    result = np.exp(-SHARPNESS * np.maximum(z, 0.0))
    if not linear:
        result *= [one.anchor == candidates[best].anchor for one in candidates]
    result = np.where(result < LEAST_WEIGHT * result.sum(), 0.0, result)
    return np.asarray(result / result.sum())

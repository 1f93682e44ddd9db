"""Candidates of fine-tuning: their losses on rows held out in turn, and the choice among them.

The old model is a candidate. It stays where nothing else is better by more than the noise of the comparison.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .folds import UNUSED
from .row_objective import RowObjective
from .tuning_paths import OLD, OLD_ROWS, ZERO, Paths

GROUPS = 10
"""Number of groups of held-out rows; the standard error of a loss is estimated from theirs."""

SHARPNESS = 2.0
"""Exponent of the weight of a candidate for each standard error that its loss is above the least one."""

LEAST_WEIGHT = 0.05
"""Least share of a candidate in the mean; each one has to be fitted again on all rows."""

PATIENCE = 2
"""Strengths in a row without a lower held-out loss after which weaker ones are not tried."""

KEPT_NUMBERS = 50_000_000
"""Most numbers of all fitted weights that are kept to judge a mean of candidates; of more, the best one is taken."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A search and the strength of its pull, infinite for the anchor itself, or the weight of the old rows.

    Attributes
    ----------
    anchor : str
    strength : float
    losses : ndarray of shape (n_groups,)
        The losses of held-out rows.
    vectors : list of ndarray
        The weights that were fitted without each fold.
    """

    anchor: str
    strength: float
    losses: np.ndarray
    vectors: Sequence[np.ndarray] = ()


@dataclass(frozen=True, eq=False)
class Choice:
    """The candidates, and the share of each in the result.

    Attributes
    ----------
    candidates : list of Candidate
    sizes : ndarray of shape (n_groups,)
        The weight of each group of held-out rows.
    shares : ndarray of shape (n_candidates,)
    base : str
        Name of the search whose start the others are compared with.
    """

    candidates: Sequence[Candidate]
    sizes: np.ndarray
    shares: np.ndarray
    base: str = OLD

    @property
    def strength(self) -> float:
        """The strength of the candidate with the least loss."""
        losses = np.nan_to_num([one.losses @ self.sizes for one in self.candidates], nan=np.inf)
        return self.candidates[int(np.argmin(losses))].strength

    def report(self) -> dict[str, np.ndarray]:
        """Return the columns of the attribute ``fine_tuning_``."""
        old = next(one for one in self.candidates if one.anchor == self.base and np.isinf(one.strength))
        gains = [gain(old.losses, one.losses, self.sizes) for one in self.candidates]
        weights = self.sizes / self.sizes.sum()
        return {
            "candidate": np.array([one.anchor for one in self.candidates]),
            "strength": np.array([one.strength for one in self.candidates]),
            "loss": np.array([one.losses @ weights for one in self.candidates]),
            "gain": np.array([mean for mean, _ in gains]),
            "standard_error": np.array([error for _, error in gains]),
            "share": self.shares,
        }


def cross_validated(paths: Paths, folds: np.ndarray) -> Choice:
    """Return the choice among the candidates by the losses of held-out rows.

    Of the old weights and those with a recalibrated output, the worst anchor itself is a candidate, not its path.
    """
    objective = paths.objective
    used = np.where(folds == UNUSED, 0.0, objective.weights)
    fitted_on = [np.where(folds == fold, 0.0, used) for fold in range(folds.max() + 1)]
    held_out = HeldOut(objective, folds)
    points = [paths.anchors(weights) for weights in fitted_on]
    at = {name: held_out.losses([own[name] for own in points]) for name in points[0]}
    others = [name for name in at if name in (ZERO, OLD_ROWS)]
    recalibrated = sorted((name for name in at if name not in others), key=lambda name: held_out.mean(at[name]))
    candidates = [Candidate(name, np.inf, at[name], [own[name] for own in points]) for name in recalibrated[2:]]
    for name in [*recalibrated[:2], *others]:
        starts = [own[name] for own in points]
        candidates += _judged(paths, name, starts, fitted_on, held_out)
    return chosen(candidates, held_out, paths.base, linear=paths.output.linear, margin=float(paths.tuner.margin))


class HeldOut:
    """The rows that are held out in turn, in groups of one fold each.

    Parameters
    ----------
    objective : RowObjective
    folds : ndarray of shape (n_rows,)
        The fold of each row, or :data:`~.folds.TRAINED` or :data:`~.folds.UNUSED`.

    Attributes
    ----------
    averages : bool
        Whether candidates are averaged: not where each has to be fitted again on many more rows.
    """

    def __init__(self, objective: RowObjective, folds: np.ndarray) -> None:
        self._objective, self._groups = objective, list(_groups(folds))
        self.averages = bool((folds != UNUSED).all())
        self.sizes = np.array([objective.weights[rows].sum() for _, rows in self._groups])

    def losses(self, vectors: Sequence[np.ndarray]) -> np.ndarray:
        """Return the loss of each group by the weights, a vector for each fold, that were fitted without it."""

        def loss(fold: int, rows: np.ndarray) -> float:
            weights = np.zeros(len(self._objective.rows))
            weights[rows] = self._objective.weights[rows]
            return self._objective.loss(vectors[fold], weights)

        return np.array([loss(fold, rows) for fold, rows in self._groups])

    def mean(self, losses: np.ndarray) -> float:
        """Return the mean loss of all held-out rows."""
        return float(losses @ self.sizes / self.sizes.sum())


def _judged(
    paths: Paths, name: str, starts: Sequence[np.ndarray], fitted_on: Sequence[np.ndarray], held_out: HeldOut
) -> list[Candidate]:
    """Return the candidates of a search, the strongest pull first, until the losses of held-out rows rise."""
    strengths, found = paths.strengths(name), list[Candidate]()
    walks = [
        paths.along(name, start, weights, strengths, whole=False)
        for start, weights in zip(starts, fitted_on, strict=True)
    ]
    for steps in zip(*walks, strict=True):
        vectors = [vector for _, vector in steps]
        found.append(Candidate(name, steps[0][0], held_out.losses(vectors), vectors))
        means = [held_out.mean(one.losses) for one in found]
        if len(means) - 1 - int(np.argmin(means)) >= PATIENCE:
            break
    return found


def _groups(folds: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield groups of rows of one fold each."""
    n_folds = int(folds.max()) + 1
    for fold in range(n_folds):
        rows = np.flatnonzero(folds == fold)
        for part in np.array_split(rows, min(len(rows), max(1, GROUPS // n_folds))):
            yield fold, part


def chosen(
    candidates: Sequence[Candidate], held_out: HeldOut, base: str = OLD, *, linear: bool, margin: float
) -> Choice:
    """Return the mean of the best candidates, or else the best recalibration, or else the old model.

    The first of them is taken that is better than the old model, the start of the search ``base``, by more than
    ``margin`` standard errors.
    """
    sizes = held_out.sizes
    is_old = np.array([one.anchor == base and np.isinf(one.strength) for one in candidates])
    old = candidates[int(np.argmax(is_old))]
    mixed = shares(candidates, sizes, linear=linear)
    if not held_out.averages or sum(vector.size for one in candidates for vector in one.vectors) > KEPT_NUMBERS:
        mixed = _only(int(np.argmax(mixed)), len(candidates))
    for option in (mixed, _best_recalibration(candidates, held_out)):
        mean, error = gain(old.losses, _losses_of(option, candidates, held_out), sizes)
        if mean > margin * error:
            return Choice(candidates, sizes, option, base)
    return Choice(candidates, sizes, is_old.astype(float), base)


def _only(place: int, size: int) -> np.ndarray:
    return np.asarray(np.eye(1, size, place)[0])


def _best_recalibration(candidates: Sequence[Candidate], held_out: HeldOut) -> np.ndarray:
    """Return the shares by which the best anchor with trained output weights alone is taken."""
    losses = [
        held_out.mean(one.losses) if np.isinf(one.strength) and one.anchor != ZERO else np.inf for one in candidates
    ]
    return _only(int(np.argmin(losses)), len(candidates))


def _losses_of(option: np.ndarray, candidates: Sequence[Candidate], held_out: HeldOut) -> np.ndarray:
    """Return the losses of held-out rows by the mean of the candidates."""
    taken = [(share, one) for share, one in zip(option, candidates, strict=True) if share]
    if len(taken) == 1:
        return taken[0][1].losses
    folds = range(len(taken[0][1].vectors))
    return held_out.losses([np.sum([s * one.vectors[fold] for s, one in taken], axis=0) for fold in folds])


def gain(old: np.ndarray, losses: np.ndarray, sizes: np.ndarray) -> tuple[float, float]:
    """Return how far losses are below those of the old model, with the standard error of this difference."""
    weights = sizes / sizes.sum()
    with np.errstate(invalid="ignore"):
        below = old - losses
    if not np.isfinite(below).all():
        return -np.inf, 0.0
    mean = float(below @ weights)
    return mean, float(np.sqrt(((weights * (below - mean)) ** 2).sum()))


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

"""Search how far to fine-tune: candidates, folds, and paths of weights between old and new.

A *search* starts from an *anchor*, such as the old weights. It minimizes the loss on some of the rows plus a *pull*, a
penalty on the distance from the anchor. A *candidate* is the result for one strength of the pull. :class:`Paths` runs
the searches. :func:`cross_validated` runs them for each fold, compares the losses on the held-out rows, and returns a
:class:`Choice`. The old model is a candidate, too: it stays unless another one is better by more than the noise of the
comparison.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.optimize

from ..finetuning import FineTuner
from .objective import OUT_OF_DOMAIN, OutputWeights, RowObjective, anchors, finite

OLD, DAMPED, ZERO, OLD_ROWS = "old", "damped", "zero", "old rows"
"""Names of searches and their anchors. The search with old rows has no pull: the old rows keep it near the anchor."""


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
        The factor of each weight's squared distance in the pull.
    old_rows : RowObjective or None
        The loss of old rows.
    damping : ndarray of shape (P,) or None
        The divisor of each weight in damped anchors; None if there are no such anchors.
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
        """Return the anchor of each search by name, given the weights of the rows."""
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
        """Return the strengths of the pull that a search tries, in descending order."""
        return self.tuner.old_weights if name == OLD_ROWS else self.tuner.strengths

    def along(
        self, name: str, anchor: np.ndarray, weights: np.ndarray, strengths: Sequence[float], *, whole: bool = True
    ) -> Iterator[tuple[float, np.ndarray]]:
        """Yield pairs of strength and weights: the anchor, then the minimum for each strength.

        Each minimization starts from the result of the previous one. The search with old rows has no pull, and its
        strengths are the weights of the old rows; it uses all of them if ``whole``, else the first ones.
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
        """Return the result of a search on all rows, starting from ``start``, its result on ``fraction`` of the rows.

        A strength that was chosen is multiplied by ``fraction``: relative to the loss, the pull gets weaker with more
        rows. A strength that the user set stays.
        """
        weights = self.objective.weights
        if np.isinf(strength):
            return self.anchors(weights)[name]
        strength *= fraction if len(self.strengths(name)) > 1 else 1.0
        if name == OLD_ROWS:
            return self._minimum(start, start, 0.0, weights, strength)
        return self._minimum(start, anchor, strength * self._unit(anchor, weights), weights)

    def _unit(self, anchor: np.ndarray, weights: np.ndarray) -> float:
        """Return the unit of strengths: the pull with which the first step lowers the loss by 0.3 %."""
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
        """Return the parameters that minimize the loss plus the pull, of rows that count by ``weights``.

        The search scales the parameters by the metric.
        """
        scale = 1 / np.sqrt(self._metric)
        highest = sys.float_info.max / OUT_OF_DOMAIN

        def loss(u: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = finite(*self._loss(anchor + scale * u, weights, share, whole=whole), highest)
            return value + 0.5 * pull * float(u @ u), scale * gradient + pull * u

        begin = np.divide(start - anchor, scale, out=np.zeros_like(scale), where=scale > 0)
        size = max(abs(loss(begin)[0]), 1e-300)  # divide by the loss, as SciPy's tolerances are absolute below one
        highest = OUT_OF_DOMAIN * (1 + size)

        def in_size(u: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = loss(u)
            gradient /= size
            return value / size, gradient

        most = max(1, self.tuner.max_iter // 2) if share else self.tuner.max_iter  # fewer, as old rows cost time
        end = scipy.optimize.minimize(
            in_size,
            begin,
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": most, "ftol": 1e-5, "gtol": 1e-9},
        )
        return np.asarray(anchor + scale * end.x) if np.isfinite(end.fun) else start

    def _loss(self, vector: np.ndarray, weights: np.ndarray, share: float, *, whole: bool) -> tuple[float, np.ndarray]:
        """Return the mean of the losses of new rows (weight 1) and of old rows (weight ``share``), and its gradient."""
        loss, gradient = self.objective(vector, weights)
        if self._old_rows is None or not share:
            return loss, gradient
        old_loss, old_gradient = self._old_rows(vector, self._old_rows.weights if whole else self._old_rows.first())
        return (loss + share * old_loss) / (1 + share), (gradient + share * old_gradient) / (1 + share)


def metric(
    objective: RowObjective, vector: np.ndarray, rng: np.random.RandomState, damping: np.ndarray | None = None
) -> np.ndarray:
    """Return the factor of each weight in the pull: the mean square of the gradients of its parameter.

    A weight whose gradients are far larger than those of the same parameter's other weights gets a larger factor: the
    columns of the data may have different scales. With ``damping``, everything is in units of the damped weights.
    """
    units = 1.0 if damping is None else damping
    squares = objective.squared_gradients(vector / units, rng) / units**2
    result = np.empty(len(vector))
    parameters = objective.parameters
    for name in parameters.names:
        own = squares[parameters.span(name)]
        moved = own[own > 0]
        typical = float(np.median(moved)) if len(moved) else 1.0
        result[parameters.span(name)] = own.mean() * np.maximum(1.0, own / (100 * typical)) if len(moved) else np.nan
    return units**2 * np.nan_to_num(result, nan=float(np.nanmax(result)) if np.isfinite(result).any() else 1.0)


# Candidates of fine-tuning: their losses on rows held out in turn, and the choice among them.
#
# The old model is a candidate. It stays where nothing else is better by more than the noise of the comparison.


GROUPS = 10
"""Number of groups of held-out rows; the standard error of a loss is estimated from the losses of the groups."""

SHARPNESS = 2.0
"""Rate at which a candidate's share in the mean decays, per standard error of its loss above the smallest loss."""

LEAST_WEIGHT = 0.05
"""Smallest share of a candidate in the mean; smaller ones are dropped, as each candidate has to be fitted again."""

PATIENCE = 2
"""Number of consecutive strengths without a lower held-out loss after which weaker pulls are not tried."""

KEPT_NUMBERS = 50_000_000
"""If all fitted weights together hold more numbers than this, the best candidate is taken instead of a mean."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A search, and the strength of its pull (infinite for the anchor itself) or the weight of the old rows.

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

    The paths from the best two of the old and the recalibrated weights are searched; the others are only candidates.
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
        # Begin with the strongest pull, and weaken it until the losses of held-out rows rise.
        strengths = paths.strengths(name)
        found = list[Candidate]()
        starts = [own[name] for own in points]
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
        candidates += found
    return chosen(candidates, held_out, paths.base, linear=paths.output.linear, margin=float(paths.tuner.margin))


class HeldOut:
    """The rows that are held out in turn, in groups of one fold each.

    Parameters
    ----------
    objective : RowObjective
    folds : ndarray of shape (n_rows,)
        The fold of each row, or :data:`TRAINED` or :data:`UNUSED`.

    Attributes
    ----------
    averages : bool
        Whether candidates are averaged; they are not if each has to be fitted again on many more rows.
    """

    def __init__(self, objective: RowObjective, folds: np.ndarray) -> None:
        self._objective = objective
        self._groups = list(_groups(folds))
        self.averages = bool((folds != UNUSED).all())
        self.sizes = np.array([objective.weights[rows].sum() for _, rows in self._groups])

    def losses(self, vectors: Sequence[np.ndarray]) -> np.ndarray:
        """Return the loss of each group; ``vectors`` holds, for each fold, the weights fitted without that fold."""

        def loss(fold: int, rows: np.ndarray) -> float:
            weights = np.zeros(len(self._objective.rows))
            weights[rows] = self._objective.weights[rows]
            return self._objective.loss(vectors[fold], weights)

        return np.array([loss(fold, rows) for fold, rows in self._groups])

    def mean(self, losses: np.ndarray) -> float:
        """Return the mean loss of all held-out rows."""
        return float(losses @ self.sizes / self.sizes.sum())


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
    """Choose the mean of the best candidates, or else the best recalibration, or else the old model.

    The first of these that is better than the old model (the start of the search ``base``) by more than ``margin``
    standard errors is chosen.
    """
    sizes = held_out.sizes
    is_old = np.array([one.anchor == base and np.isinf(one.strength) for one in candidates])
    old = candidates[int(np.argmax(is_old))]
    alone = np.eye(len(candidates))
    mixed = shares(candidates, sizes, linear=linear)
    if not held_out.averages or sum(vector.size for one in candidates for vector in one.vectors) > KEPT_NUMBERS:
        mixed = alone[int(np.argmax(mixed))]
    # A recalibration is an anchor itself: only its output weights were trained.
    recalibrated = [
        held_out.mean(one.losses) if np.isinf(one.strength) and one.anchor != ZERO else np.inf for one in candidates
    ]
    for option in (mixed, alone[int(np.argmin(recalibrated))]):
        taken = [(share, one) for share, one in zip(option, candidates, strict=True) if share]
        if len(taken) == 1:
            losses = taken[0][1].losses
        else:
            folds = range(len(taken[0][1].vectors))
            losses = held_out.losses([np.sum([s * one.vectors[fold] for s, one in taken], axis=0) for fold in folds])
        mean, error = gain(old.losses, losses, sizes)
        if mean > margin * error:
            return Choice(candidates, sizes, option, base)
    return Choice(candidates, sizes, is_old.astype(float), base)


def gain(old: np.ndarray, losses: np.ndarray, sizes: np.ndarray) -> tuple[float, float]:
    """Return the mean difference between the old model's losses and ``losses``, and its standard error."""
    weights = sizes / sizes.sum()
    with np.errstate(invalid="ignore"):
        below = old - losses
    if not np.isfinite(below).all():
        return -np.inf, 0.0
    mean = float(below @ weights)
    return mean, float(np.sqrt(((weights * (below - mean)) ** 2).sum()))


def shares(candidates: Sequence[Candidate], sizes: np.ndarray, *, linear: bool) -> np.ndarray:
    """Return each candidate's share in the mean, by the standard errors of its loss above the smallest loss.

    Unless the scores are linear in the weights, only candidates of the same anchor are averaged.
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


# Folds: the rows that are held out in each fold, the rows that are only trained on, and the rows that are not used.


TRAINED, UNUSED = -1, -2
"""Values in place of a fold: for rows that all folds train on, and for rows that the choice does not use."""

CROSS_VALIDATED_ROWS, CROSS_VALIDATED_WORK = 1000, 20_000_000
"""Limits of the cross-validation: the number of rows, and rows times parameters. Other rows are only trained on."""

ENOUGH_FOR_ONE_SPLIT = 3
"""If there are this many times more rows than the limit, there is a single split instead of cross-validation."""

ROWS_OF_CHOICE = 5
"""With a single split, rows that the choice uses per held-out row; the candidates are trained on the others."""


def folds_of(targets: np.ndarray, n_weights: int, cv: int, rng: np.random.RandomState) -> np.ndarray:
    """Return the fold of each row, with the targets spread evenly over the folds; rows must be in random order."""
    n_rows = len(targets)
    most = int(np.clip(CROSS_VALIDATED_WORK / max(1, n_weights), 200, CROSS_VALIDATED_ROWS))
    if most * ENOUGH_FOR_ONE_SPLIT <= n_rows:  # use the first rows, which lie in few pieces of the data
        folds = np.full(n_rows, UNUSED)
        folds[: most * ROWS_OF_CHOICE], folds[:most] = TRAINED, 0
        return folds
    order = rng.permutation(n_rows)[:most]
    order = order[np.argsort(targets[order], kind="stable")]
    folds = np.full(n_rows, TRAINED)
    folds[order] = np.arange(len(order)) % min(cv, len(order))
    return folds


def fraction_used(folds: np.ndarray) -> float:
    """Return the fraction of all rows on which the candidates are trained, for a single split instead of folds."""
    return float(np.mean(folds == TRAINED))

"""Fine-tune a model in one call: search from the anchors, choose by cross-validation, set the chosen weights.

:class:`FineTuningTrainer` replaces the trainer of minibatches. It minimizes the loss of weighted rows (``objective``)
along paths of weights, and chooses among them (``search``). A new head is fitted first, alone, on the unchanged
features (:class:`HeadPaths`); then all weights are tuned with a pull towards the result (:class:`WholePaths`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .._data.batches import Batches
from .._training.history import History
from .._training.step import HostStep
from .._training.trainer import Trainer, TrainerSettings
from ..exceptions import warn
from ..finetuning import FineTuner
from .objective import InnerScores, OutputWeights, RowObjective, Scores, anchors, no_output_weights, output_weights
from .search import UNUSED, Choice, Paths, cross_validated, folds_of, fraction_used, metric


@dataclass(frozen=True, eq=False)
class Tuning:
    """Parts of fine-tuning besides the step and its rows.

    Attributes
    ----------
    tuner : FineTuner
    scores : callable () -> ndarray
        Scores of some rows by the current parameters.
    rng : numpy.random.RandomState
        The generator that draws the folds.
    old_rows : RowObjective or None
        The loss of old rows, by a step that shares the parameters.
    head : tuple of str
        The weights of a new head.
    damping : ndarray of shape (P,) or None
        The divisor of each weight in damped anchors.
    inner : InnerScores or None
        The values that a fixed function at the end of the graph reads. They are recalibrated if the scores cannot be.
    """

    tuner: FineTuner
    scores: Scores
    rng: np.random.RandomState
    old_rows: RowObjective | None = None
    head: tuple[str, ...] = ()
    damping: np.ndarray | None = None
    inner: InnerScores | None = None

    def digest(self, update: Callable[[bytes], object], size: int) -> None:
        """Call ``update`` with the old rows, ``size`` rows at a time, and the damping, which depends on the columns."""
        if self.old_rows is not None:
            self.old_rows.digest(update, size)
        if self.damping is not None:
            update(self.damping.tobytes())


@dataclass(frozen=True, eq=False)
class TuningResult:
    """The result: the weights, the strength of the best candidate, and the report on all candidates."""

    vector: np.ndarray
    strength: float
    report: dict[str, np.ndarray]


class FineTuningTrainer(Trainer):
    """Fine-tune the parameters of ``step``; the other arguments are those of :class:`~.trainer.Trainer`."""

    is_resumable = False

    def __init__(
        self,
        tuning: Tuning,
        settings: TrainerSettings,
        step: HostStep,
        batches: Batches,
        history: History,
        validate: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(settings, step, batches, history, validate)
        self.data = (batches, tuning)
        self._tuning, self._tuner, self._rng = tuning, tuning.tuner, tuning.rng
        self._objective = RowObjective(step, batches)

    def _train(self) -> bool:
        """Choose among the candidates; the history holds the loss before and after."""
        if self._step_hook is not None:
            raise ValueError(
                "A callback follows the steps of the optimizer (after_step, or every_steps of Checkpoint), and "
                "fine-tuning takes none. Leave the callback out, or set finetune=None."
            )
        self._kept.copy_first()
        objective = self._objective
        old = self._vector.astype(np.float64)
        before = objective.loss(old, objective.weights)
        if self._record(before, self.batches.n_rows):
            return self._conclude(True)
        found, vector = self._searched(old), old
        if found is not None:
            vector = found.vector
            self.history.change(fine_tuning=found.report)
        loss = objective.loss(vector, objective.weights)
        if not (np.isfinite(loss) and np.isfinite(vector).all()):
            self._diverge()
        self._kept.keep_current()
        self._record(loss, self.batches.n_rows)
        return self._conclude(True)

    def _searched(self, old: np.ndarray) -> TuningResult | None:
        """Return the chosen weights; None if all targets are equal, so that no choice can be validated."""
        tuning, tuner, objective, rng = self._tuning, self._tuner, self._objective, self._rng
        targets = objective.targets()
        if len(np.unique(targets)) < 2 and self._validate is None and not tuning.head:
            warn(
                "Fine-tuning leaves the model as it is: y holds a single value for all rows, on which no choice can be "
                "validated.",
                UserWarning,
            )
            return None
        folds = folds_of(targets, len(self._vector), tuner.cv, rng) if self._validate is None else None
        if not tuning.head:
            output = no_output_weights(len(self._vector))
            if tuner.recalibrate:
                output = output_weights(objective.parameters, tuning.scores)
                if tuning.inner is not None and not (len(output.shifts) or output.scaled.any()):
                    output = output_weights(objective.parameters, tuning.inner.scores, tuning.inner.names)
            cost = metric(objective, old, rng, tuning.damping)
            return self._found(Paths(tuner, objective, old, output, cost, tuning.old_rows, tuning.damping), folds)

        # Fit a new head alone first, then together with the other weights.
        heads = HeadPaths(tuner, objective, old, tuning.head, rng)
        first = self._found(heads, folds)
        if heads.output.scaled.all():
            return first
        second = self._found(WholePaths(heads, first.strength, rng), folds)
        earlier = {**first.report, "share": np.zeros_like(first.report["share"])}
        report = {name: np.concatenate([earlier[name], column]) for name, column in second.report.items()}
        return TuningResult(second.vector, second.strength, report)

    def _found(self, paths: Paths, folds: np.ndarray | None) -> TuningResult:
        """Return the result of the searches, chosen by cross-validation, or without folds by the validation score."""
        if folds is not None:
            choice = cross_validated(paths, folds)
            vector = refitted(choice, paths, folds) if (folds == UNUSED).any() else mean_of(choice, paths)
            return TuningResult(vector, choice.strength, choice.report())

        assert self._validate is not None
        found: list[tuple[str, float, float]] = []
        best = paths.old
        best_score = -np.inf
        best_strength = np.inf
        for name, strength, vector in every_candidate(paths):
            self._vector[...] = vector
            score = self._validate() if self.validation_loss is None else -self.validation_loss()
            found.append((name, strength, -np.inf if np.isnan(score) else score))
            if found[-1][2] > best_score:  # of equal scores, the first candidate wins
                best = vector
                best_score = found[-1][2]
                best_strength = strength
        names, strengths, scores = (np.array(column) for column in zip(*found, strict=True))
        shares = np.eye(1, len(scores), int(np.argmax(scores)))[0]
        report = {"candidate": names, "strength": strengths, "score": scores, "share": shares}
        return TuningResult(best, best_strength, report)


def every_candidate(paths: Paths) -> Iterator[tuple[str, float, np.ndarray]]:
    """Yield (name of the search, strength, weights) for each candidate, fitted on all rows."""
    weights = paths.objective.weights
    for name, anchor in paths.anchors(weights).items():
        for strength, vector in paths.along(name, anchor, weights, paths.strengths(name)):
            yield name, strength, vector


def mean_of(choice: Choice, paths: Paths) -> np.ndarray:
    """Return the mean of the candidates, trained on all rows, weighted by their shares."""
    weights = paths.objective.weights
    result = np.zeros(len(paths.old))
    for name, anchor in paths.anchors(weights).items():
        pairs = zip(choice.candidates, choice.shares, strict=True)
        own = {one.strength: share for one, share in pairs if one.anchor == name and share}
        if own:
            tried = [strength for strength in paths.strengths(name) if strength >= min(own)]
            result += sum(own[s] * vector for s, vector in paths.along(name, anchor, weights, tried) if s in own)
    return result


def refitted(choice: Choice, paths: Paths, folds: np.ndarray) -> np.ndarray:
    """Search again on all rows for the candidate that was chosen on some of them; return the weights."""
    taken = choice.candidates[int(np.argmax(choice.shares))]
    anchor = next(one for one in choice.candidates if one.anchor == taken.anchor).vectors[0]
    return paths.refitted(taken.anchor, taken.strength, anchor, taken.vectors[0], fraction_used(folds))


# Training of a new head: first alone, on fixed features, then together with the weights of the body.


HEAD_ONLY, NEW_HEAD = "head only", "new head"
"""Names of the two searches: for the head alone, and for all weights."""


def head_weights(objective: RowObjective, head: Sequence[str]) -> OutputWeights:
    """Return the weights of the head, which scale the scores, and its bias, which shifts them."""
    parameters = objective.parameters
    places = np.arange(len(objective.parameters.vector))
    scaled = np.zeros(len(places), bool)
    for name in head:
        scaled[parameters.span(name)] = True
    return OutputWeights(scaled, places[parameters.span(head[1])].reshape(-1, 1), 1.0)


class HeadPaths(Paths):
    """The search for the weights of a head on fixed features: a penalized linear model that starts from a constant."""

    base = HEAD_ONLY

    def __init__(
        self,
        tuner: FineTuner,
        objective: RowObjective,
        start: np.ndarray,
        head: Sequence[str],
        rng: np.random.RandomState,
    ) -> None:
        output = head_weights(objective, head)
        cost = metric(objective, start, rng)
        super().__init__(tuner, objective, start, output, np.where(output.scaled, cost, np.inf))

    def anchors(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Return the head that predicts the best constant."""
        return {HEAD_ONLY: anchors(self.objective, self.old, self.output, weights)["shifted"]}

    def fitted(self, weights: np.ndarray, strength: float) -> np.ndarray:
        """Return the weights with the head that is fitted on the weighted rows by this strength of the penalty."""
        strengths = [one for one in self.strengths(HEAD_ONLY) if one >= strength]
        *_, (_, vector) = self.along(HEAD_ONLY, self.anchors(weights)[HEAD_ONLY], weights, strengths)
        return vector


class WholePaths(Paths):
    """The search for all weights, with a pull towards the fitted head and the old weights of the body."""

    base = NEW_HEAD

    def __init__(self, heads: HeadPaths, strength: float, rng: np.random.RandomState) -> None:
        objective = heads.objective
        start = heads.fitted(objective.weights, strength)
        super().__init__(heads.tuner, objective, start, heads.output, metric(objective, start, rng))
        self._heads, self._strength = heads, strength

    def anchors(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Return the head that is fitted on the weighted rows."""
        return {NEW_HEAD: self._heads.fitted(weights, self._strength)}

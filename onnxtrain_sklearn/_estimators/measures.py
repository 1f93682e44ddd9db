"""Losses and scores of the current parameters on training or validation rows, for callbacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from .._callbacks.base import Part
from .._inference.predictor import Predictor
from .._training.loss_graph import StepSettings
from .._training.score_loss import SCORED_PIECE, ScoreLoss, weighted_mean
from ..exceptions import ModelError
from .examples import ignoring, scaled_values
from .output_losses import loss_of_outputs
from .parameters import Parameters
from .run import Run
from .scoring import Scoring
from .validation import ScoredRows, score_by


class Measures:
    """What callbacks measure after an epoch; the functions are made once."""

    def __init__(
        self, estimator: Parameters, run: Run, settings: StepSettings, rows: Mapping[Part, ScoredRows | None]
    ) -> None:
        self._estimator, self._run, self._settings, self._rows = estimator, run, settings, rows
        self._known: dict[tuple[str, Part], Callable[[], float]] = {}

    def __call__(self, name: str, scoring: Scoring, on: Part) -> float:
        """Return a score, or the loss where ``scoring`` is "loss"."""
        if (name, on) not in self._known:
            rows = self._rows[on]
            if rows is None:
                raise ValueError(
                    f"{name!r} needs validation data: set early_stopping=True, or give X_val and y_val to fit."
                )
            self._known[name, on] = self._function(scoring, rows)
        return self._known[name, on]()

    def _function(self, scoring: Scoring, rows: ScoredRows) -> Callable[[], float]:
        if isinstance(scoring, str) and scoring == "loss":
            return self._loss(rows)
        return score_by(self._estimator, scoring, self._run, rows)

    def _loss(self, rows: ScoredRows) -> Callable[[], float]:
        if self._run.model.link == "votes":
            raise ModelError("The loss on validation data is not known for one-vs-one votes: take a score.")
        predictor = self._run.live_predictor(rows.live, with_scores=True)
        loss = loss_of_outputs if self._run.head.parts else loss_of_rows
        return loss(self._run, self._settings, rows, predictor)


def loss_of_rows(run: Run, settings: StepSettings, scored: ScoredRows, predictor: Predictor) -> Callable[[], float]:
    """Return the function that computes the mean loss of rows by the current parameters.

    Scores of many labels at many positions are large: there are never those of more rows than are predicted at a time.
    """
    mean = ScoreLoss(ignoring(settings, scored.targets), run.parameters.buffer.dtype, run.rows or SCORED_PIECE)
    y, rows = scaled_values(run, scored.targets), scored.rows
    weights = np.ones(len(rows)) if scored.weights is None else scored.weights
    if mean.rows_meet:  # rows of weight zero are in no minibatch
        y, rows, weights = y[weights > 0], rows[weights > 0], weights[weights > 0]
    pieces = [slice(0, len(rows))] if mean.rows_meet else predictor.pieces_of(scored.live, rows)

    def loss() -> float:
        found = [mean(predictor.run(scored.live, rows[p], -1), y[p], weights[p]) for p in pieces]
        return weighted_mean(found, [weights[p] for p in pieces])

    return loss

"""The weighted sum of the mean losses on several outputs, by the scores of the current parameters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .._data.several_targets import SeveralTargets
from .._inference.predictor import Predictor
from .._training.loss_graph import StepSettings, settings_of_output
from .._training.score_loss import SCORED_PIECE, ScoreLoss
from .._training.total_loss import TotalLoss
from .examples import ignoring
from .output_predictions import numbers_of_outputs
from .run import Run
from .validation import ScoredRows


def loss_of_outputs(run: Run, settings: StepSettings, scored: ScoredRows, predictor: Predictor) -> Callable[[], float]:
    """Return the function that computes the loss of rows; ``predictor`` gives the scores of each output last."""
    total, targets, dtype = settings.loss, scored.targets, run.parameters.buffer.dtype
    assert isinstance(total, TotalLoss)
    assert isinstance(targets, SeveralTargets)
    numbers = numbers_of_outputs(run.head, -1, with_scores=True)
    batch = run.rows or SCORED_PIECE
    parts = [
        ignoring(settings_of_output(settings, one), own) for one, own in zip(total.outputs, targets.parts, strict=True)
    ]
    losses = [ScoreLoss(one, dtype, batch) for one in parts]
    each = list(zip(total.outputs, losses, targets.parts, targets.weights, strict=True))

    def loss() -> float:
        found = predictor.run_several(scored.live, numbers, scored.rows)
        parts = zip(found, each, strict=True)
        return float(np.sum([one.weight * mean(s, part.values, w) for s, (one, mean, part, w) in parts]))

    return loss

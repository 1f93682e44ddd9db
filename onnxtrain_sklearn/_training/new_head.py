"""Training of a new head: first alone, on the features as they are, then with the weights before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..finetuning import FineTuner
from .recalibration import OutputWeights, anchors
from .row_objective import RowObjective
from .tuning_paths import Paths, metric

HEAD_ONLY, NEW_HEAD = "head only", "new head"
"""Names of the searches: of the head alone, and of all weights."""


def head_weights(objective: RowObjective, head: Sequence[str]) -> OutputWeights:
    """Return the weights of the head, which scale the scores, and its bias, which shifts them."""
    parameters, places = objective.parameters, np.arange(len(objective.parameters.vector))
    scaled = np.zeros(len(places), bool)
    for name in head:
        scaled[parameters.span(name)] = True
    return OutputWeights(scaled, places[parameters.span(head[1])].reshape(-1, 1), 1.0)


class HeadPaths(Paths):
    """The search of the weights of a head on fixed features: a penalized linear model, whose start is a constant."""

    base = HEAD_ONLY

    def __init__(
        self,
        tuner: FineTuner,
        objective: RowObjective,
        start: np.ndarray,
        head: Sequence[str],
        rng: np.random.RandomState,
    ) -> None:
        output, cost = head_weights(objective, head), metric(objective, start, rng)
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
    """The search of all weights, with a pull towards the fitted head and the old weights before it."""

    base = NEW_HEAD

    def __init__(self, heads: HeadPaths, strength: float, rng: np.random.RandomState) -> None:
        objective = heads.objective
        start = heads.fitted(objective.weights, strength)
        super().__init__(heads.tuner, objective, start, heads.output, metric(objective, start, rng))
        self._heads, self._strength = heads, strength

    def anchors(self, weights: np.ndarray) -> dict[str, np.ndarray]:
        """Return the head that is fitted on the weighted rows."""
        return {NEW_HEAD: self._heads.fitted(weights, self._strength)}

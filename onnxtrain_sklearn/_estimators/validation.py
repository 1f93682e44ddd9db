"""The score on validation data, split off or given, during training."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .._data.ignored_labels import rows_with_labels, weights_without_shares
from .._data.positions import given_weights, require_same_places
from .._data.targets import Targets
from .._data.validation import faults_of_validation_data, require_scorable
from .examples import Call, Examples, validation_examples
from .flat_scoring import FlatScorer
from .output_predictions import LiveOutputs
from .parameters import Parameters
from .run import Columns, Run
from .scoring import LivePredictions, Scoring, rows_of, scorer_of

Metric = Callable[[np.ndarray, Targets, "np.ndarray | None"], float]
"""From predictions, targets and weights to a score."""


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """Rows that are scored during training.

    Attributes
    ----------
    given : callable () -> tuple of data
        Returns X and y of these rows as the user gave them. Of data mapped from a file that is a copy in memory, which
        is made where a scorer or a callback reads them.
    targets : Targets
    weights : ndarray or None
    live : mapping of str to Column
        The data that contain the rows, as inputs of the trained graph.
    rows : ndarray of int
        The rows among them.
    """

    given: Callable[[], tuple[Any, Any]]
    targets: Targets
    weights: np.ndarray | None
    live: Columns
    rows: np.ndarray

    @cached_property
    def data(self) -> tuple[Any, Any]:
        """X and y of these rows as the user gave them."""
        return self.given()


def validation_rows(
    estimator: Parameters, run: Run, examples: Examples, held_out: np.ndarray | None, call: Call
) -> ScoredRows | None:
    """Return the validation data of the call, else the rows ``held_out`` of ``examples``; None without any."""
    given = call.validation
    if given is None:
        return None if held_out is None else scored_rows(run, examples, held_out, call)
    with faults_of_validation_data():
        trained, examples = examples, validation_examples(estimator, run, *given)
        require_same_places(trained.targets, examples.targets)
    require_scorable(examples.targets, examples.weights)
    rows = rows_with_labels(examples.targets)
    if len(rows) == len(examples):
        return rows_to_score(run, examples, rows, lambda: given[:2])
    return rows_to_score(run, examples, rows, lambda: (rows_of(given[0], rows), rows_of(given[1], rows)))


def scored_rows(run: Run, examples: Examples, rows: np.ndarray, call: Call) -> ScoredRows:
    """Return some rows of the training data of the call."""
    X, y = call.X, call.y
    if len(rows) == len(examples):
        return rows_to_score(run, examples, rows, lambda: (X, y))
    return rows_to_score(run, examples, rows, lambda: (rows_of(X, rows), rows_of(y, rows)))


def rows_to_score(run: Run, examples: Examples, rows: np.ndarray, given: Callable[[], tuple[Any, Any]]) -> ScoredRows:
    """Return some rows of the examples; ``given`` returns X and y of these rows as the user gave them."""
    targets = examples.targets.take(rows)
    weights = None if examples.weights is None else examples.weights[rows]
    live = {spec.name: examples.columns[spec.name].of_type(spec.dtype) for spec in run.model.inputs}
    return ScoredRows(given, targets, weights, live, rows)


def validation_score(estimator: Any, run: Run, scored: ScoredRows | None, call: Call) -> Callable[[], float] | None:
    """Return the function that scores the current parameters; None without validation data."""
    if scored is None:
        require_no_scoring(estimator, call)
        return None
    if estimator.scoring is not None and not _is_own_score(estimator, run):
        return score_by(estimator, estimator.scoring, run, scored)
    return OwnScore(estimator._score, run, scored, with_scores=watches_loss(estimator, run, call))


class OwnScore:
    """The accuracy or R² of the current parameters on validation data.

    Attributes
    ----------
    predictor : Predictor
        A session holds memory for its largest values: the loss on the same rows is computed by this one too.
    """

    def __init__(self, metric: Metric, run: Run, scored: ScoredRows, *, with_scores: bool) -> None:
        self._metric, self._scored = metric, scored
        self.predictor = run.live_predictor(scored.live, with_scores=with_scores)

    def __call__(self) -> float:
        scored = self._scored
        predicted = self.predictor.run(scored.live, scored.rows)
        finite = predicted.dtype.kind != "f" or np.isfinite(predicted).all()
        return self._metric(predicted, scored.targets, scored.weights) if finite else math.nan


def watches_loss(estimator: Parameters, run: Run, call: Call) -> bool:
    """Whether early stopping watches the loss on the validation data in place of the score.

    The accuracy on few rows moves in steps and stands still for many epochs, also where the network goes on learning.
    """
    classifies = run.head.task != "regression" and not run.head.parts and run.model.link != "votes"
    return bool(estimator.early_stopping) and not call.one_pass and estimator.scoring is None and classifies


def _is_own_score(estimator: Parameters, run: Run) -> bool:
    """Whether ``scoring`` names the accuracy that is computed anyway; the scorer of that name takes longer."""
    known = run.head.task in ("binary", "multiclass", "multilabel") and run.head.positions is None
    return known and isinstance(estimator.scoring, str) and estimator.scoring == "accuracy"


def score_by(estimator: Parameters, scoring: Scoring, run: Run, scored: ScoredRows) -> Callable[[], float]:
    """Return the function that scores the current parameters by a scorer of scikit-learn."""
    weights, targets, (X, y) = scored.weights, scored.targets, scored.data
    if run.head.parts:
        _require_function(scoring)
        return scorer_of(estimator, scoring, run, (X, y, None), LiveOutputs(run, X, scored.live, scored.rows))
    if targets.row_shape and isinstance(scoring, str):
        scoring = FlatScorer(estimator, scoring, targets, weights)
    if isinstance(scoring, str) and targets.lacks_labels:
        raise ValueError(
            f"scoring={scoring!r} cannot leave out single labels of a row, which are ignored here (ignore_label). Take "
            f"a function (estimator, X, y) -> float, or None, for the accuracy of the labels that count."
        )
    if weights is not None and targets.has_positions:
        weights = given_weights(targets, weights)
    elif weights is not None and targets.lacks_labels:
        weights = weights_without_shares(targets, weights)
    return scorer_of(estimator, scoring, run, (X, y, weights), LivePredictions(run, X, scored.live, scored.rows))


def _require_function(scoring: Scoring) -> None:
    if not callable(scoring):
        raise ValueError(
            f"scoring must be a function (estimator, X, y) -> float where y has several outputs, or None; "
            f"scikit-learn's scorers take one. Got {scoring!r}."
        )


def require_no_scoring(estimator: Parameters, call: Call) -> None:
    """Raise if ``scoring`` is set but there are no validation data."""
    if estimator.scoring is not None and not call.one_pass:
        raise ValueError(
            f"scoring={estimator.scoring!r} needs validation data: set early_stopping=True, or give X_val and y_val."
        )

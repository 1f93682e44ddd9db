"""The score on validation data of several outputs: the mean of their scores, or a function of the user."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .._data.positions import require_same_places
from .._data.several_targets import SeveralTargets
from .._data.targets import Targets
from .._data.validation import faults_of_validation_data, require_scorable
from .._estimators.examples import Call, Examples
from .._estimators.output_predictions import first_outputs
from .._estimators.parameters import Parameters
from .._estimators.plan import Plan
from .._estimators.run import Run
from .._estimators.validation import ScoredRows, require_no_scoring, rows_to_score, score_by, scored_rows
from .examples import Singles, several_validation_examples
from .single_estimators import naming


def validation_rows_of_outputs(plan: Plan, run: Run, singles: Singles, examples: Examples) -> ScoredRows | None:
    """Return the validation data of the call, else the rows that are held out; None without any."""
    estimator, call, held_out = plan.estimator, plan.call, plan.rows.split(examples)[1]
    if call.validation is not None:
        given, data = _given_examples(estimator, singles, run, examples, call), call.validation[:2]
        found = rows_to_score(run, given, np.arange(len(given)), lambda: data)
    elif held_out is None:
        return None
    else:
        found = scored_rows(run, examples, held_out, call)
    assert isinstance(found.targets, SeveralTargets)
    for name, part, own in zip(singles, found.targets.parts, found.targets.weights, strict=True):
        with naming(name):
            _require_scored_labels(part, own)
    return found


def score_of_outputs(
    estimator: Parameters, singles: Singles, run: Run, scored: ScoredRows | None, call: Call
) -> Callable[[], float] | None:
    """Return the function that scores the current parameters; None without validation data."""
    if scored is None:
        require_no_scoring(estimator, call)
        return None
    if estimator.scoring is not None:
        return score_by(estimator, estimator.scoring, run, scored)
    predictor, numbers = run.live_predictor(scored.live), first_outputs(run.head, with_scores=False)
    targets, live, rows = scored.targets, scored.live, scored.rows
    assert isinstance(targets, SeveralTargets)
    each = list(zip(singles.values(), targets.parts, targets.weights, strict=True))

    def score() -> float:
        found = predictor.run_several(live, numbers, rows)
        if not all(_is_finite(own) for own in found):
            return math.nan
        return float(np.mean([one._score(p, true, w) for p, (one, true, w) in zip(found, each, strict=True)]))

    return score


def _given_examples(estimator: Parameters, singles: Singles, run: Run, trained: Examples, call: Call) -> Examples:
    """Return the validation data of the call, checked."""
    assert call.validation is not None
    with faults_of_validation_data():
        examples = several_validation_examples(estimator, singles, run, *call.validation)
        assert isinstance(examples.targets, SeveralTargets)
        assert isinstance(trained.targets, SeveralTargets)
        for name, old, new in zip(singles, trained.targets.parts, examples.targets.parts, strict=True):
            with naming(name):
                require_same_places(old, new)
    return examples


def _require_scored_labels(targets: Targets, weights: np.ndarray | None) -> None:
    if weights is not None and not weights.any():
        raise ValueError("The validation rows have no positive weight for this output, so that it has no score there.")
    require_scorable(targets, weights)


def _is_finite(found: np.ndarray) -> bool:
    return found.dtype.kind != "f" or bool(np.isfinite(found).all())

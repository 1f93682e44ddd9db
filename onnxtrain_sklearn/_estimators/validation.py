"""The score on validation data, split off or given, during training."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from .._data.positions import given_weights, require_same_places
from .._data.validation import faults_of_validation_data, require_scorable
from .examples import Call, Examples, validation_examples
from .run import Run
from .scoring import rows_of, scorer_of


def validation_score(
    estimator: Any,
    run: Run,
    examples: Examples,
    held_out: np.ndarray | None,
    call: Call,
) -> Callable[[], float] | None:
    """Return the function that scores the current parameters; None without validation data.

    It scores the validation data of the call, else the rows ``held_out`` of ``examples``.
    """
    given = call.validation
    if given is not None:
        with faults_of_validation_data():
            trained, examples = examples, validation_examples(estimator, run, *given)
            require_same_places(trained.targets, examples.targets)
        require_scorable(examples.targets, examples.weights)
        held_out = np.arange(len(examples))
    if held_out is None:
        _require_no_scoring(estimator, call)
        return None
    rows, targets = held_out, examples.targets
    held = replace(targets, values=targets.values[rows])
    weights = None if examples.weights is None else examples.weights[rows]
    live = {spec.name: examples.columns[spec.name].of_type(spec.dtype) for spec in run.model.inputs}
    if estimator.scoring is not None:
        weights = given_weights(held, weights) if held.has_positions and weights is not None else weights
        X, y = given[:2] if given is not None else (rows_of(call.X, rows), rows_of(call.y, rows))
        return scorer_of(estimator, run, (X, y, weights), live, rows)
    predictor = run.live_predictor(live)

    def score() -> float:
        predicted = predictor.run(live, rows)
        finite = predicted.dtype.kind != "f" or np.isfinite(predicted).all()
        value: float = estimator._score(predicted, held, weights) if finite else math.nan
        return value

    return score


def _require_no_scoring(estimator: Any, call: Call) -> None:
    """Raise if ``scoring`` is set but there are no validation data."""
    if estimator.scoring is not None and not call.one_pass:
        raise ValueError(
            f"scoring={estimator.scoring!r} needs validation data: set early_stopping=True, or give X_val and y_val."
        )

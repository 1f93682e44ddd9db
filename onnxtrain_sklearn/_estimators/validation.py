"""The score on validation data, split off or given, of the parameters while they are trained."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .._data.targets import Targets
from .._data.validation import faults_of_validation_data, require_scorable
from .._support.typing import Validation
from .examples import Examples, validation_examples
from .run import Run


def validation_score(
    estimator: Any,
    run: Run,
    examples: Examples,
    held_out: np.ndarray | None,
    given: Validation | None,
) -> Callable[[], float] | None:
    """Return the function that scores the parameters as they are; None where there are no validation data.

    ``given`` are X, y and weights of the user; else the rows ``held_out`` of ``examples`` are scored.
    """
    if given is not None:
        with faults_of_validation_data():
            examples = validation_examples(estimator, run, *given)
        require_scorable(examples.targets, examples.weights)
        held_out = np.arange(len(examples))
    if held_out is None:
        return None
    rows, targets = held_out, examples.targets
    held = Targets(targets.values[rows], targets.task, targets.n_outputs, targets.classes)
    weights = None if examples.weights is None else examples.weights[rows]
    predictor = run.live_predictor()
    live = {spec.name: examples.columns[spec.name].of_type(spec.dtype) for spec in run.model.inputs}

    def score() -> float:
        predicted = predictor.run(live, rows)
        finite = predicted.dtype.kind != "f" or np.isfinite(predicted).all()
        value: float = estimator._score(predicted, held, weights) if finite else math.nan
        return value

    return score

"""Ties of nearest neighbors, which scikit-learn and graphs break differently: data of few different numbers have them.

Which of several training points at one distance count as the nearest depends on their order in scikit-learn's tree, as
its documentation says. No graph can know it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor, KNeighborsTransformer
from sklearn.pipeline import Pipeline

from .._support.typing import Estimator, MatrixLike
from .steps import unwrapped

_NEIGHBORS = (KNeighborsClassifier, KNeighborsRegressor, KNeighborsTransformer)
_EQUAL = 1e-6
"""Relative difference of distances that float32 may not tell apart."""


def tied_rows(model: Estimator, rows: MatrixLike) -> tuple[float, str]:
    """Return the largest share of rows whose last neighbor ties with a further one, and the step; 0 without any."""
    shares = [(_share_of_ties(step, own), type(step).__name__) for step, own in _steps_with_rows(model, rows)]
    return max(shares, default=(0.0, ""))


def _steps_with_rows(model: Estimator, rows: MatrixLike) -> Iterator[tuple[Estimator, MatrixLike]]:
    """Yield the steps that count neighbors, with the rows as they reach them."""
    whole: Any = unwrapped(model)
    if isinstance(whole, _NEIGHBORS) and whole.effective_metric_ != "precomputed":
        yield whole, rows
    if isinstance(whole, Pipeline) and any(isinstance(unwrapped(step), _NEIGHBORS) for _, step in whole.steps):
        for place, (_, step) in enumerate(whole.steps):
            yield from _steps_with_rows(step, whole[:place].transform(rows) if place else rows)


def _share_of_ties(step: Estimator, rows: MatrixLike) -> float:
    count = step.n_neighbors + (getattr(step, "mode", "") == "distance")
    if step.n_samples_fit_ <= count:
        return 0.0
    distances = step.kneighbors(rows, count + 1)[0]
    last, next_one = distances[:, -2], distances[:, -1]
    return float(np.mean(next_one - last <= _EQUAL * next_one))

"""Predictions for plain arrays without scikit-learn's checks, which take several times as long as a row.

What is taken here, scikit-learn would take as it is: arrays of NumPy itself, of native floats, with rows of the fitted
shape, finite, where no feature names are to be compared. Everything else goes through scikit-learn, which raises and
warns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._graph.trainable import TensorSpec

_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


def plain_prediction(estimator: Any, X: object, output: int, *, with_scores: bool) -> np.ndarray | None:
    """Return an output of the graph of a fitted estimator for the rows of ``X``; None if they need other checks."""
    if type(X) is not np.ndarray or X.dtype not in _FLOATS or not _checks_numbers_alone(estimator):
        return None
    run = estimator._run
    spec = _single_input(run.source.inputs)
    if (run.fitted is not None and run.fitted.table is not None) or spec is None or not _suits(X, spec, estimator):
        return None
    result: np.ndarray | None = run.predictor({}, with_scores=with_scores).run_finite(spec.name, X, spec.dtype, output)
    return result


def _checks_numbers_alone(estimator: Any) -> bool:
    """Whether it is fitted, and without names of features."""
    fitted = "n_features_in_" in estimator.__dict__ and estimator.__sklearn_is_fitted__()
    return fitted and getattr(estimator, "feature_names_in_", None) is None


def _single_input(inputs: Sequence[TensorSpec]) -> TensorSpec | None:
    return inputs[0] if len(inputs) == 1 and inputs[0].dtype in _FLOATS and len(inputs[0].shape) > 1 else None


def _suits(X: np.ndarray, spec: TensorSpec, estimator: Any) -> bool:
    """Whether there are rows, and all have the shape of the graph's input and the number of features."""
    shape, wanted = X.shape, spec.shape
    suits = len(shape) == len(wanted) and (
        shape[1:] == wanted[1:] or all(w is None or w == n for w, n in zip(wanted[1:], shape[1:], strict=True))
    )
    return suits and X.size > 0 and math.prod(shape[1:]) == estimator.n_features_in_

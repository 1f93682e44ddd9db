"""Predict with a fitted estimator of one output: plain arrays directly, all other data by scikit-learn's checks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from .._utils.typing import MatrixLike
from .examples import graph_inputs, require_numbers


def predicted(estimator: Any, X: MatrixLike, output: int, *, with_scores: bool) -> np.ndarray:
    """Return an output of the graph for the rows of ``X``; the scores can be its last output."""
    found = plain_prediction(estimator, X, output, with_scores=with_scores)
    if found is not None:
        return found
    check_is_fitted(estimator)
    state = estimator._state
    columns = graph_inputs(estimator, X, state.source.inputs, state.fitted, reset=False)
    require_numbers(estimator, state, columns)
    result: np.ndarray = state.predictor(columns, with_scores=with_scores).run(columns, output=output)
    return result


# Predictions for plain arrays without scikit-learn's checks, which take several times as long as a row.
#
# This path takes only data that scikit-learn takes as they are: plain NumPy arrays of native floats, with rows of the
# fitted shape, finite, where no feature names are to be compared. Everything else goes through scikit-learn, which
# raises and warns.


_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


def plain_prediction(estimator: Any, X: object, output: int, *, with_scores: bool) -> np.ndarray | None:
    """Return an output of the graph of a fitted estimator for the rows of ``X``; None if they need other checks."""
    if type(X) is not np.ndarray or X.dtype not in _FLOATS:
        return None
    # with names, scikit-learn compares them, and warns where X has none
    if "n_features_in_" not in vars(estimator) or getattr(estimator, "feature_names_in_", None) is not None:
        return None
    if not estimator.__sklearn_is_fitted__():
        return None
    state = estimator._state
    inputs = state.source.inputs
    if (state.fitted is not None and state.fitted.table is not None) or len(inputs) != 1:
        return None
    (spec,) = inputs
    if spec.dtype not in _FLOATS or len(spec.shape) < 2 or len(X.shape) != len(spec.shape) or not X.size:
        return None
    row, wanted = X.shape[1:], spec.shape[1:]
    suits = row == wanted or all(w is None or w == n for w, n in zip(wanted, row, strict=True))
    if not suits or math.prod(row) != estimator.n_features_in_:
        return None
    predictor = state.predictor({}, with_scores=with_scores)
    # None where a number is not finite: which ones are allowed depends on the model
    result: np.ndarray | None = predictor.run_finite(spec.name, X, spec.dtype, output)
    return result

"""Predict with a fitted estimator of one output: plain arrays directly, all other data by scikit-learn's checks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from .._model.trainable import TensorSpec
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
    if type(X) is not np.ndarray or X.dtype not in _FLOATS or not _checks_numbers_alone(estimator):
        return None
    state = estimator._state
    spec = _single_input(state.source.inputs)
    if (state.fitted is not None and state.fitted.table is not None) or spec is None or not _suits(X, spec, estimator):
        return None
    result: np.ndarray | None = state.predictor({}, with_scores=with_scores).run_finite(
        spec.name, X, spec.dtype, output
    )
    return result


def _checks_numbers_alone(estimator: Any) -> bool:
    """Return True if the estimator is fitted without feature names."""
    fitted = "n_features_in_" in estimator.__dict__ and estimator.__sklearn_is_fitted__()
    return fitted and getattr(estimator, "feature_names_in_", None) is None


def _single_input(inputs: Sequence[TensorSpec]) -> TensorSpec | None:
    return inputs[0] if len(inputs) == 1 and inputs[0].dtype in _FLOATS and len(inputs[0].shape) > 1 else None


def _suits(X: np.ndarray, spec: TensorSpec, estimator: Any) -> bool:
    """Return True if there are rows, all with the shape of the graph's input and the number of features."""
    shape, wanted = X.shape, spec.shape
    suits = len(shape) == len(wanted) and (
        shape[1:] == wanted[1:] or all(w is None or w == n for w, n in zip(wanted[1:], shape[1:], strict=True))
    )
    return suits and X.size > 0 and math.prod(shape[1:]) == estimator.n_features_in_

"""Predict with a fitted estimator: from data through the graph to labels and numbers, and the accuracy of these.

Plain arrays go to the graph directly, all other data by scikit-learn's checks.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from .._data.held_out import accuracy
from .._data.inputs import prediction_type
from .._data.targets import accuracy_at_positions
from .._inference.graph import Decoding
from .._model.links import Link
from .._utils.typing import MatrixLike
from .examples import graph_inputs, require_numbers


def predicted(estimator: Any, X: MatrixLike, output: int, *, with_scores: bool) -> np.ndarray:
    """Return an output of the graph for the rows of ``X``; the scores can be its last output."""
    found = plain_prediction(estimator, X, output, with_scores=with_scores)
    if found is not None:
        return found
    check_is_fitted(estimator)
    state = estimator._state
    columns = graph_inputs(estimator, X, state.graph.inputs, state.fitted, reset=False)
    require_numbers(estimator, state, columns)
    result: np.ndarray = state.predictor(columns, with_scores=with_scores).run(columns, output=output)
    return result


def chunk_rows(estimator: Any, X: MatrixLike, method: str) -> tuple[int, int]:
    """Return the rows of data like ``X`` that a method computes at a time, and the numbers of a row."""
    state = estimator._state
    columns = graph_inputs(estimator, X, state.graph.inputs, state.fitted, reset=False)
    with_scores = method == "decision_function" or (method == "predict_proba" and prediction_type(X) is np.float64)
    width = sum(math.prod(one.shape[1:]) for one in columns.values())
    return state.predictor(columns, with_scores=with_scores).chunk_rows(columns), max(1, width)


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
    inputs = state.graph.inputs
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
    # None if a number is not finite, because it depends on the model which ones are allowed
    result: np.ndarray | None = predictor.run_finite(spec.name, X, spec.dtype, output)
    return result


# From the outputs of the graph to predictions, and the accuracy of these.


def typed_labels(decoding: Decoding, labels: np.ndarray) -> np.ndarray:
    """Return the labels that the graph gives in the type that they had in ``y``; indicators stay integers."""
    if decoding.task == "multilabel":
        return labels
    several: Any = decoding.classes if isinstance(decoding.classes, list) else [decoding.classes]
    return np.asarray(labels).astype(np.result_type(*several))


def numbers_in_rows(decoding: Decoding, prediction: np.ndarray, X: MatrixLike) -> np.ndarray:
    """Return the numbers that the graph gives in rows of the shape of the targets, in a type that follows ``X``."""
    prediction, row = prediction.astype(prediction_type(X), copy=False), decoding.row_shape
    if row:  # a graph that takes rows of several sizes gives them
        return prediction if prediction.ndim == len(row) + 1 else prediction.reshape(len(prediction), *row)
    return prediction.ravel() if decoding.n_scores == 1 else prediction.reshape(len(prediction), -1)


def by_label(decoding: Decoding, numbers: np.ndarray) -> np.ndarray | list[np.ndarray]:
    """Return the columns of each label separately, if there are several."""
    return np.split(numbers, np.cumsum(decoding.groups)[:-1], axis=1) if decoding.groups else numbers


def within_one(link: Link, probabilities: np.ndarray) -> np.ndarray:
    """Return probabilities in [0, 1], as metrics require them.

    Of all scores in float32, onnxruntime's sigmoid gives 20 the probability 1 + 1.2e-7, and their complements -1.2e-7;
    they lie between 17.4 and 18. A softmax never exceeds 1.
    """
    if link != "sigmoid" or probabilities.dtype != np.float32:
        return probabilities
    cut: np.ndarray = np.maximum(np.minimum(probabilities, np.float32(1)), np.float32(0))
    return cut


def decisions(decoding: Decoding, numbers: np.ndarray, X: MatrixLike) -> np.ndarray | list[np.ndarray]:
    """Return the scores of the labels from those of the graph, in a type that follows ``X``."""
    scores = by_label(decoding, numbers.astype(np.result_type(prediction_type(X), numbers), copy=False))
    if isinstance(scores, list):
        share = 1.0 if decoding.has_probabilities else 0.5  # the margins of two classes are -s and s
        return [_decisions(own) * (share if own.shape[1] == 2 else 1.0) for own in scores]
    return scores if decoding.task == "multilabel" else _decisions(scores)


def _decisions(scores: np.ndarray) -> np.ndarray:
    """Return the scores of one label; a single column for two classes."""
    if scores.shape[-1] == 1:
        return scores[..., 0]
    return scores[..., 1] - scores[..., 0] if scores.shape[-1] == 2 else scores


def has_one_label(decoding: Decoding) -> bool:
    """Return True if scikit-learn's accuracy applies: rows have one label, or several that are 0 or 1."""
    return decoding.positions is None and decoding.task != "multioutput"


def accuracy_of_labels(y: ArrayLike, predicted: np.ndarray, sample_weight: ArrayLike | None) -> float:
    """Return the accuracy of scikit-learn, whose checks take longer than a small network predicts.

    Whole numbers and texts of equal kind and number need no checks.
    """
    if type(y) is np.ndarray and sample_weight is None and y.shape == predicted.shape and y.ndim == 1 and len(y):
        kinds = y.dtype.kind, predicted.dtype.kind
        if kinds == ("U", "U") or all(kind in "iu" for kind in kinds):
            return accuracy(y, predicted, None)
    from sklearn.metrics import accuracy_score  # needs a fifth of scikit-learn

    return float(accuracy_score(y, predicted, sample_weight=sample_weight))


def accuracy_of_several(
    decoding: Decoding, y: ArrayLike, predicted: np.ndarray, ignore_label: object, sample_weight: ArrayLike | None
) -> float:
    """Return the share of right labels if they are at positions, else the share of rows with all labels right."""
    if decoding.positions is not None:
        return accuracy_at_positions(y, predicted, ignore_label, sample_weight)
    right = (predicted == np.asarray(y)).all(axis=1)
    return float(np.average(right, weights=None if sample_weight is None else np.asarray(sample_weight)))

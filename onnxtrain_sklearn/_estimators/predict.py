"""Predict with a fitted estimator: run the graph on data, and turn its outputs into labels, numbers and accuracy.

Plain arrays go to the graph directly; all other data go through scikit-learn's checks.
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
from ..losses import Loss, Quantiles
from .examples import graph_inputs, require_no_nan


def predicted(estimator: Any, X: MatrixLike, output: int, *, with_scores: bool) -> np.ndarray:
    """Return the output number ``output`` of the graph for the rows of ``X``; ``with_scores`` adds the scores last."""
    found = plain_prediction(estimator, X, output, with_scores=with_scores)
    if found is not None:
        return found
    check_is_fitted(estimator)
    state = estimator._state
    columns = graph_inputs(estimator, X, state.graph.inputs_of_X, state.fitted, reset=False)
    require_no_nan(estimator, state, columns)
    result: np.ndarray = state.predictor(columns, with_scores=with_scores).run(columns, output=output)
    return result


def predicted_with_further(estimator: Any, X: MatrixLike) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the prediction of a regressor, and the outputs of its graph that its loss adds, by name."""
    state = estimator._state
    columns = graph_inputs(estimator, X, state.graph.inputs_of_X, state.fitted, reset=False)
    require_no_nan(estimator, state, columns)
    predictor = state.predictor(columns)
    prediction, *others = predictor.run_several(columns, range(len(predictor.outputs)))
    further = dict(zip(predictor.outputs[1:], others, strict=True))
    return numbers_in_rows(state.decoding, prediction, X), further


def chunk_rows(estimator: Any, X: MatrixLike, method: str) -> tuple[int, int]:
    """Return how many rows of data like ``X`` a method predicts at a time, and how many numbers a row has."""
    state = estimator._state
    columns = graph_inputs(estimator, X, state.graph.inputs_of_X, state.fitted, reset=False)
    with_scores = method == "decision_function" or (method == "predict_proba" and prediction_type(X) is np.float64)
    width = sum(math.prod(one.shape[1:]) for one in columns.values())
    return state.predictor(columns, with_scores=with_scores).chunk_rows(columns), max(1, width)


# Predict plain arrays without scikit-learn's checks, which take several times as long as the prediction of a row.
#
# This path takes only data that scikit-learn would leave unchanged: finite NumPy arrays of native floats, with rows of
# the fitted shape, if no feature names must be compared. Other data go through scikit-learn, which raises and warns.


_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


def plain_prediction(estimator: Any, X: object, output: int, *, with_scores: bool) -> np.ndarray | None:
    """Return an output of the graph for the rows of ``X``; None if ``X`` needs scikit-learn's checks."""
    if type(X) is not np.ndarray or X.dtype not in _FLOATS:
        return None
    # scikit-learn compares feature names, and warns if X has none
    if "n_features_in_" not in vars(estimator) or getattr(estimator, "feature_names_in_", None) is not None:
        return None
    if not estimator.__sklearn_is_fitted__():
        return None
    state = estimator._state
    inputs = state.graph.inputs_of_X
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
    # The result is None if a number of X is not finite: the checks know whether the model allows it.
    result: np.ndarray | None = predictor.run_finite(spec.name, X, spec.dtype, output)
    return result


def checked_levels(quantiles: Any, loss: Loss | None) -> list[float]:
    """Return the quantiles to predict as numbers in (0, 1); raise ValueError for one that the loss does not learn."""
    known = list(map(float, loss.quantiles)) if isinstance(loss, Quantiles) else None
    if quantiles is None:
        return known or [0.1, 0.5, 0.9]
    levels = np.asarray(quantiles)
    if levels.ndim != 1 or not levels.size or levels.dtype.kind not in "fiu" or not ((levels > 0) & (levels < 1)).all():
        raise ValueError(f"quantiles must be a sequence of numbers between 0 and 1, got {quantiles!r}.")
    if known is None:
        return [float(level) for level in levels]
    found = [min(known, key=lambda own: abs(own - level)) for level in levels.tolist()]
    # float32 rounds
    if unknown := [x for x, own in zip(levels.tolist(), found, strict=True) if not math.isclose(x, own, rel_tol=1e-6)]:
        raise ValueError(
            f"loss=Quantiles({known}) was not trained for the quantiles {unknown}: ask for some of {known}, or train "
            f"with Quantiles({sorted({*known, *unknown})})."
        )
    return found


# Turn outputs of the graph into predictions, and compute the accuracy of labels.


def typed_labels(decoding: Decoding, labels: np.ndarray) -> np.ndarray:
    """Convert the labels that the graph outputs to the type of ``y``; indicators stay integers."""
    if decoding.task == "multilabel":
        return labels
    several: Any = decoding.classes if isinstance(decoding.classes, list) else [decoding.classes]
    return np.asarray(labels).astype(np.result_type(*several))


def numbers_in_rows(decoding: Decoding, prediction: np.ndarray, X: MatrixLike) -> np.ndarray:
    """Convert the numbers that the graph outputs to the row shape of the targets, in float32 or float64 as ``X``."""
    prediction = prediction.astype(prediction_type(X), copy=False)
    row = decoding.row_shape
    if row:  # a graph for rows of several sizes outputs their shape already
        return prediction if prediction.ndim == len(row) + 1 else prediction.reshape(len(prediction), *row)
    return prediction.ravel() if decoding.n_columns == 1 else prediction.reshape(len(prediction), -1)


def by_label(decoding: Decoding, numbers: np.ndarray) -> np.ndarray | list[np.ndarray]:
    """Return a list with the columns of each label if rows have several labels of several classes, else ``numbers``."""
    return np.split(numbers, np.cumsum(decoding.groups)[:-1], axis=1) if decoding.groups else numbers


def within_one(link: Link, probabilities: np.ndarray) -> np.ndarray:
    """Return probabilities clipped to [0, 1], as metrics require.

    For 20 of all float32 scores, between 17.4 and 18, onnxruntime's sigmoid returns 1 + 1.2e-7, so that the probability
    of the other class is -1.2e-7. A softmax never exceeds 1.
    """
    if link != "sigmoid" or probabilities.dtype != np.float32:
        return probabilities
    cut: np.ndarray = np.maximum(np.minimum(probabilities, np.float32(1)), np.float32(0))
    return cut


def decisions(decoding: Decoding, numbers: np.ndarray, X: MatrixLike) -> np.ndarray | list[np.ndarray]:
    """Convert the scores that the graph outputs to the result of ``decision_function`` for ``X``."""
    scores = by_label(decoding, numbers.astype(np.result_type(prediction_type(X), numbers), copy=False))
    if decoding.link == "ordinal" and not isinstance(scores, list):
        return log_probabilities(scores)
    if isinstance(scores, list):
        share = 1.0 if decoding.has_probabilities else 0.5  # the margins of two classes are -s and s
        return [_decisions(own) * (share if own.shape[1] == 2 else 1.0) for own in scores]
    return scores if decoding.task == "multilabel" else _decisions(scores)


def log_probabilities(scores: np.ndarray) -> np.ndarray:
    """Return the log-probabilities of ordered classes from their scores, as ``log_probabilities_in_order`` emits."""
    beyond, at = -np.logaddexp(0, -scores), -np.logaddexp(0, scores)
    passed = np.concatenate([np.zeros_like(scores[:, :1]), np.cumsum(beyond, axis=1)], axis=1)
    passed[:, :-1] += at
    return passed


def _decisions(scores: np.ndarray) -> np.ndarray:
    """Return the scores of one label as ``decision_function`` does: two classes have a single column."""
    if scores.shape[-1] == 1:
        return scores[..., 0]
    return scores[..., 1] - scores[..., 0] if scores.shape[-1] == 2 else scores


def has_one_label(decoding: Decoding) -> bool:
    """Return True if scikit-learn's accuracy applies: each row has one label, or several labels that are 0 or 1."""
    return decoding.positions is None and decoding.task != "multioutput"


def accuracy_of_labels(y: ArrayLike, predicted: np.ndarray, sample_weight: ArrayLike | None) -> float:
    """Return the accuracy as ``sklearn.metrics.accuracy_score`` does.

    Its checks take longer than the prediction of a small network, so leave them out for arrays that do not need them:
    integers or strings on both sides, of equal length.
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
    """Return the fraction of rows whose labels are all right or, with a label for each position, of right labels."""
    if decoding.positions is not None:
        return accuracy_at_positions(y, predicted, ignore_label, sample_weight)
    right = (predicted == np.asarray(y)).all(axis=1)
    return float(np.average(right, weights=None if sample_weight is None else np.asarray(sample_weight)))

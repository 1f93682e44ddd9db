"""Classes, scores of the labels and accuracy: what the classifier adds to a training run."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._data.ignored_labels import rows_with_labels, weights_without_shares
from .._data.inputs import prediction_type
from .._data.positions import accuracy_at_positions, validation_accuracy
from .._data.targets import Classes, Targets, labels_of, require_sorted, sorted_classes
from .._data.validation_scores import accuracy
from .._fitted.model import is_estimator, listed
from .._inference.head import Head
from .._support.typing import MatrixLike
from ..models import resolve_builder
from .base import BaseOrtGradient


def known_classes(estimator: BaseOrtGradient, classes: ArrayLike | None, *, fitted: bool) -> Classes:
    """Return the user's classes, sorted; None if a fitted estimator already knows them."""
    given = None if classes is None else sorted_classes(classes)
    if fitted and given is not None and listed(given) != listed(estimator.classes_):
        raise ValueError(f"classes={listed(given)} is not the same as on the last call, {listed(estimator.classes_)}.")
    if given is not None and resolve_builder(estimator.model) is None and not is_estimator(estimator.model):
        require_sorted(classes, given)
    return None if fitted else given


def by_label(head: Head, numbers: np.ndarray) -> np.ndarray | list[np.ndarray]:
    """Return the columns of each label separately, if there are several."""
    return np.split(numbers, np.cumsum(head.groups)[:-1], axis=1) if head.groups else numbers


def typed_labels(head: Head, labels: np.ndarray) -> np.ndarray:
    """Return the labels that the graph gives in the type that they had in ``y``; indicators stay integers."""
    if head.task == "multilabel":
        return labels
    several: Any = head.classes if isinstance(head.classes, list) else [head.classes]
    return np.asarray(labels).astype(np.result_type(*several))


def decisions(head: Head, numbers: np.ndarray, X: MatrixLike) -> np.ndarray | list[np.ndarray]:
    """Return the scores of the labels from those of the graph, in a type that follows ``X``."""
    scores = by_label(head, numbers.astype(np.result_type(prediction_type(X), numbers), copy=False))
    if isinstance(scores, list):
        share = 1.0 if head.has_probabilities else 0.5  # the margins of two classes are -s and s
        return [_decisions(own) * (share if own.shape[1] == 2 else 1.0) for own in scores]
    return scores if head.task == "multilabel" else _decisions(scores)


def _decisions(scores: np.ndarray) -> np.ndarray:
    """Return the scores of one label; a single column for two classes."""
    if scores.shape[-1] == 1:
        return scores[..., 0]
    return scores[..., 1] - scores[..., 0] if scores.shape[-1] == 2 else scores


def has_one_label(head: Head) -> bool:
    """Whether scikit-learn's accuracy applies: rows have one label, or several that are 0 or 1."""
    return head.positions is None and head.task != "multioutput"


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
    head: Head, y: ArrayLike, predicted: np.ndarray, ignore_label: object, sample_weight: ArrayLike | None
) -> float:
    """Return the share of right labels at positions, else that of the rows of which all labels are right."""
    if head.positions is not None:
        return accuracy_at_positions(y, predicted, ignore_label, sample_weight)
    right = (predicted == np.asarray(y)).all(axis=1)
    return float(np.average(right, weights=None if sample_weight is None else np.asarray(sample_weight)))


def score_of_labels(predicted: np.ndarray, targets: Targets, weights: np.ndarray | None) -> float:
    """Return the accuracy on validation rows, whose targets are class indices."""
    truth = targets.values
    if targets.has_positions:
        return validation_accuracy(predicted, targets, weights)
    if targets.lacks_labels:
        return _accuracy_of_counted(predicted, targets, weights)
    if isinstance(targets.classes, list):
        right = (predicted == labels_of(truth, targets.classes)).all(axis=1)
        return float(np.average(right, weights=weights))
    if targets.classes is not None and targets.task != "multilabel":
        truth, predicted = targets.classes[truth], predicted.astype(targets.classes.dtype)
    return accuracy(truth.astype(predicted.dtype), predicted, weights)


def _accuracy_of_counted(predicted: np.ndarray, targets: Targets, weights: np.ndarray | None) -> float:
    """Return the share of rows all of whose labels that count are right, by the weights that the rows were given."""
    truth = targets.values
    labels = labels_of(truth, targets.classes) if isinstance(targets.classes, list) else truth
    rows, known = rows_with_labels(targets), targets.counts
    given = None if weights is None else weights_without_shares(targets, weights)
    right = (predicted == labels) | ~np.asarray(known)
    return float(np.average(right[rows].all(axis=1), weights=None if given is None else given[rows]))

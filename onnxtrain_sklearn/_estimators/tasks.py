"""What an estimator learns, labels or numbers: how its targets are read, and its predictions scored.

A task is made of the parameters of an estimator; one of several outputs has a task for each of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from .._data.inputs import prediction_type
from .._data.metrics import accuracy, r2_of_rows
from .._data.targets import (
    Classes,
    Targets,
    accuracy_at_positions,
    counted_targets,
    labels_of,
    regression_targets,
    rows_with_labels,
    validation_accuracy,
    weights_without_shares,
)
from .._inference.graph import Head
from .._utils.typing import ClassWeight, MatrixLike
from ..exceptions import warn

IGNORED_BY_DEFAULT = -100
"""The ``ignore_label`` of PyTorch, which nobody may have chosen."""


@dataclass(frozen=True, eq=False)
class Task(ABC):
    """What one output learns.

    Attributes
    ----------
    loss : str, Loss or block
        As the estimator was given it.
    output_kind : str
        What the output of a given graph holds.
    class_axis : int or str
    ignore_label : int, float, str or None
    class_weight : dict, list of dicts, "balanced" or None
        Those of labels; for numbers the values that change nothing.
    """

    loss: Any
    output_kind: str
    class_axis: int | str = "auto"
    ignore_label: int | float | str | None = None
    class_weight: ClassWeight = None

    classifies: ClassVar[bool]
    default_loss: ClassVar[str]
    """The default loss: with a fitted model, the loss of that model replaces it."""

    @abstractmethod
    def encode(self, y: ArrayLike, classes: Classes) -> Targets:
        """Return the targets as numbers; ``classes`` are the classes already known."""

    @abstractmethod
    def score(self, predicted: np.ndarray, targets: Targets, weights: np.ndarray | None) -> float:
        """Return the score of predictions of validation rows."""


class LabelTask(Task):
    """Labels: one a row, several a row, or one at each position of a row."""

    classifies = True
    default_loss = "log_loss"

    def encode(self, y: ArrayLike, classes: Classes) -> Targets:
        """Return the indices of the labels, or indicators."""
        targets = counted_targets(y, classes, self.ignore_label)
        counts = targets.counts
        if counts is not None and counts.ndim == 1 and self.ignore_label == IGNORED_BY_DEFAULT:
            warn(
                f"y holds ignore_label={self.ignore_label} in {len(counts) - np.count_nonzero(counts)} of "
                f"{len(counts)} rows, which do not count. Set ignore_label=None if it is a class; leave the rows out "
                f"if not."
            )
        return targets

    def score(self, predicted: np.ndarray, targets: Targets, weights: np.ndarray | None) -> float:
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


class NumberTask(Task):
    """Numbers: one a row, several a row, or rows of several axes."""

    classifies = False
    default_loss = "squared_error"

    def encode(self, y: ArrayLike, classes: Classes) -> Targets:
        """Return the numbers."""
        return regression_targets(y, allow_nd=True)

    def score(self, predicted: np.ndarray, targets: Targets, weights: np.ndarray | None) -> float:
        """Return R² on validation rows."""
        return r2_of_rows(targets.values, predicted, weights, are_maps=bool(targets.row_shape))


def _accuracy_of_counted(predicted: np.ndarray, targets: Targets, weights: np.ndarray | None) -> float:
    """Return the share of rows all of whose labels that count are right, by the weights that the rows were given."""
    truth = targets.values
    labels = labels_of(truth, targets.classes) if isinstance(targets.classes, list) else truth
    rows, known = rows_with_labels(targets), targets.counts
    given = None if weights is None else weights_without_shares(targets, weights)
    right = (predicted == labels) | ~np.asarray(known)
    return float(np.average(right[rows].all(axis=1), weights=None if given is None else given[rows]))


# From the outputs of the graph to predictions, and the accuracy of these.


def typed_labels(head: Head, labels: np.ndarray) -> np.ndarray:
    """Return the labels that the graph gives in the type that they had in ``y``; indicators stay integers."""
    if head.task == "multilabel":
        return labels
    several: Any = head.classes if isinstance(head.classes, list) else [head.classes]
    return np.asarray(labels).astype(np.result_type(*several))


def numbers_in_rows(head: Head, prediction: np.ndarray, X: MatrixLike) -> np.ndarray:
    """Return the numbers that the graph gives in rows of the shape of the targets, in a type that follows ``X``."""
    prediction, row = prediction.astype(prediction_type(X), copy=False), head.row_shape
    if row:  # a graph that takes rows of several sizes gives them
        return prediction if prediction.ndim == len(row) + 1 else prediction.reshape(len(prediction), *row)
    return prediction.ravel() if head.n_outputs == 1 else prediction.reshape(len(prediction), -1)


def by_label(head: Head, numbers: np.ndarray) -> np.ndarray | list[np.ndarray]:
    """Return the columns of each label separately, if there are several."""
    return np.split(numbers, np.cumsum(head.groups)[:-1], axis=1) if head.groups else numbers


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
    """Return True if scikit-learn's accuracy applies: rows have one label, or several that are 0 or 1."""
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

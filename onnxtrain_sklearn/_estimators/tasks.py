"""What an estimator learns, labels or numbers: how its targets are read, and its predictions scored.

A task is made of the parameters of an estimator; one of several outputs has a task for each of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from .._data.held_out import accuracy, r2_of_rows
from .._data.targets import (
    Classes,
    Targets,
    counted_targets,
    given_weights,
    labels_of,
    regression_targets,
    rows_with_labels,
    validation_accuracy,
)
from .._utils.typing import ClassWeight
from ..exceptions import warn
from ..losses import LOSSES, Loss
from .fitted_state import FittedState
from .parameters import Parameters

IGNORED_BY_DEFAULT = -100
"""The ``ignore_label`` of PyTorch, which nobody may have chosen."""


@dataclass(frozen=True, eq=False)
class OutputTask(ABC):
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


class LabelTask(OutputTask):
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


class NumberTask(OutputTask):
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
    given = None if weights is None else given_weights(targets, weights)
    right = (predicted == labels) | ~np.asarray(known)
    return float(np.average(right[rows].all(axis=1), weights=None if given is None else given[rows]))


# Methods that exist depending on the loss and the fitted state.


def gives_probabilities(estimator: Parameters) -> bool:
    state: FittedState | None = getattr(estimator, "_state", None)
    loss = estimator.loss
    if not (links_classes(loss) if state is None else state.head.has_probabilities):
        raise AttributeError(f"predict_proba is not available: loss={loss!r} gives scores without probabilities.")
    return True


def links_classes(loss: object) -> bool:
    """Return True if ``loss`` gives probabilities; for an invalid loss ``fit`` raises the error."""
    known = LOSSES[loss]() if isinstance(loss, str) and loss in LOSSES else loss
    return not isinstance(known, Loss) or known.link("binary") != "identity"


def takes_negative_numbers(loss: object) -> bool:
    known = LOSSES[loss]() if isinstance(loss, str) and loss in LOSSES else loss
    try:
        if isinstance(known, Loss):
            known.check_targets(np.array([[-1.0]]))
    except ValueError:
        return False
    return True

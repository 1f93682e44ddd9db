"""Labels and numbers as the targets that losses take.

A task is decided here once: regression, binary (one score), multiclass (one score a class), multilabel (one score a
label that is 0 or 1), multioutput (several labels a row, each with one score a class). Classes are encoded as indices
into ``classes``, or as rows of zeros and a one for each of several; nothing else depends on the type of the labels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Number
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from sklearn.utils import assert_all_finite, check_array, column_or_1d
from sklearn.utils.class_weight import compute_class_weight, compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_non_negative

from .._graph.links import Task
from .._support.typing import ClassWeight, SparseLike
from .frames import require_unmasked
from .labels import require_present, sortable_labels

MIN_WEIGHT, MAX_WEIGHT = 1e-30, 1e30
"""Between them sums of weights are exact enough in float32."""


Classes: TypeAlias = "np.ndarray | list[np.ndarray] | None"


@dataclass(frozen=True, eq=False)
class Targets:
    """Encoded targets.

    Attributes
    ----------
    values : ndarray of shape (n_samples,) of int64, or (n_samples, n_outputs) of float
        Class indices, or numbers; rows of several axes are flat. Of labels at each position (n_samples, n_positions) of
        int64, -1 where a label is ignored.
    task : {"regression", "binary", "multiclass", "multilabel", "multioutput"}
        "binary" stands for two classes, whatever the number of scores.
    n_outputs : int
        Columns that a graph built for these targets has, at each position if there are positions.
    classes : ndarray, list of ndarray or None
        Sorted labels; a list where a row has several labels of classes of their own.
    row_shape : tuple of int
        Shape of a row of numbers that has several axes, such as an image, or of the labels at positions; else empty.
    label_weights : ndarray of shape (n_classes,), or None
        Weights of the labels at positions by class; None: there are no positions.
    counts : ndarray of bool of shape (n_samples,) or (n_samples, n_labels), or None
        Which labels of rows count, where some do not; None: all do. The values of one of several labels that does not
        are -1, those of rows with one label are of any class.
    """

    values: np.ndarray
    task: Task
    n_outputs: int
    classes: Classes = None
    row_shape: tuple[int, ...] = ()
    label_weights: np.ndarray | None = None
    counts: np.ndarray | None = None

    def take(self, rows: np.ndarray) -> Targets:
        """Return the targets of some rows."""
        counts = None if self.counts is None else self.counts[rows]
        return replace(self, values=self.values[rows], counts=counts)

    @property
    def lacks_labels(self) -> bool:
        """Whether some of several labels of a row do not count."""
        return self.counts is not None and self.counts.ndim == 2 and not self.counts.all()

    @property
    def has_positions(self) -> bool:
        """Whether there is a label at each position of a row."""
        return self.label_weights is not None

    @property
    def stratify(self) -> np.ndarray | None:
        """What a split keeps the proportions of."""
        return self.values if self.task in ("binary", "multiclass") and not self.has_positions else None


def regression_targets(y: ArrayLike, *, allow_nd: bool = False) -> Targets:
    """Return numbers, a column per output; ``allow_nd``: rows may have several axes."""
    require_unmasked(y, "y")
    require_present(y)
    array = np.asarray(check_array(y, ensure_2d=False, dtype=None, input_name="y", allow_nd=allow_nd))
    if array.dtype.kind in "mM":
        raise ValueError(f"y holds times ({array.dtype}): give numbers made of them, such as days since a date.")
    if array.ndim == 2 and array.shape[1] == 1:
        array = column_or_1d(array, warn=True)
    if array.dtype.kind in "OSUV":
        try:
            array = array.astype(np.float64)
        except (ValueError, TypeError):
            raise ValueError("Unknown label type: y must hold numbers for regression.") from None
        assert_all_finite(array, input_name="y")  # the text "nan" is a number to NumPy
    columns = array.reshape(len(array), math.prod(array.shape[1:]))
    if array.ndim > 2:  # maps are large: float32 stays what it is
        columns = columns if columns.dtype == np.float32 else columns.astype(np.float64)
        return Targets(columns, "regression", columns.shape[1], row_shape=array.shape[1:])
    return Targets(columns.astype(np.float64), "regression", columns.shape[1])


def class_targets(y: ArrayLike | SparseLike, classes: Classes) -> Targets:
    """Return class indices or label indicators; labels that ``classes`` lacks are an error."""
    require_unmasked(y, "y")
    require_present(y)
    with sortable_labels(y, "y"):
        return _class_targets(y, classes)


def _class_targets(y: ArrayLike | SparseLike, classes: Classes) -> Targets:
    if not isinstance(classes, list) and (plain := _plain_labels(y)) is not None:
        return _label_targets(np.ascontiguousarray(y), classes, plain)
    if sp.issparse(y) and y.ndim == 1:  # which scikit-learn does not take
        y = y.toarray()
    if getattr(getattr(y, "dtype", None), "kind", "") == "f":
        assert_all_finite(y, input_name="y")
    kind = type_of_target(y, input_name="y")
    if kind not in ("binary", "multiclass"):
        check_classification_targets(y)  # which finds the kind once more
    if isinstance(classes, list) or (classes is None and kind == "multiclass-multioutput"):
        return _several_labels(np.asarray(y.toarray() if hasattr(y, "toarray") else y), classes)
    if kind == "multilabel-indicator" or (classes is not None and np.shape(y)[1:] == classes.shape):
        return _indicator_matrix(y, classes)
    return _label_targets(column_or_1d(y, warn=True), classes)


def _plain_labels(y: object) -> np.ndarray | None:
    """Return the labels of a plain array of whole numbers whose kind needs none of scikit-learn's checks; else None.

    scikit-learn warns where most rows have a label of their own.
    """
    if type(y) is not np.ndarray or y.ndim != 1 or y.dtype.kind not in "iub" or not len(y):
        return None
    labels = _counted(y) if y.dtype.kind == "i" and y.min() >= 0 and y.max() < len(y) else np.unique(y)
    return labels if len(labels) <= max(2, len(y) // 2) else None


def _counted(labels: np.ndarray) -> np.ndarray:
    """Return what ``np.unique`` returns, of small whole numbers in a third of its time."""
    return np.flatnonzero(np.bincount(labels)).astype(labels.dtype)


def _label_targets(labels: np.ndarray, classes: np.ndarray | None, distinct: np.ndarray | None = None) -> Targets:
    values, known = encoded_labels(labels, classes, distinct)
    many = len(known) > 2
    return Targets(values, "multiclass" if many else "binary", len(known) if many else 1, known)


def encoded_labels(
    labels: np.ndarray, classes: np.ndarray | None, distinct: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return class indices and the classes, of which there must be two; ``distinct`` are the labels if known."""
    known = distinct if classes is None else classes
    if known is None:
        known = np.unique(labels)
    if len(known) < 2:
        where = "y" if classes is None else "classes"
        raise ValueError(
            f"Classification needs at least 2 classes in {where}, got {len(known)} class: {known.tolist()}."
        )
    if known is distinct and known.dtype.kind == "i" and known[0] == 0 and known[-1] == len(known) - 1:
        return labels.astype(np.int64), known  # 0, 1, ... are their own indices
    return _indices(labels, known, "y").astype(np.int64), known


def sorted_classes(classes: ArrayLike) -> np.ndarray | list[np.ndarray]:
    """Return the classes that a user names without repetition, in order; of each of several labels a row."""
    with sortable_labels(classes, "classes"):
        if isinstance(classes, list | tuple) and all(np.ndim(known) == 1 for known in classes):
            return [np.unique(known) for known in classes]
        return np.unique(_flat(classes))


def require_sorted(classes: ArrayLike | None, known: np.ndarray | list[np.ndarray]) -> None:
    """Raise where the classes for the columns of a given graph come in another order than that of their columns."""
    several: Any = classes
    for given, own in zip(several, known, strict=True) if isinstance(known, list) else [(_flat(several), known)]:
        if list(given) != own.tolist():
            raise ValueError(
                f"classes must be sorted and without repetition where the graph is given: its scores are those of "
                f"{own.tolist()}, in this order. Got {list(given)}."
            )


def _flat(classes: ArrayLike) -> np.ndarray:
    given: Any = classes
    array = np.asarray(list(given) if np.iterable(given) and not isinstance(given, str) else given)
    if array.ndim != 1:
        raise ValueError(f"classes must be a list of labels, got {classes!r}.")
    return array


def require_labels(y: ArrayLike, classes: ArrayLike | None, *, classifies: bool, at_positions: bool) -> None:
    """Raise at the first of several passes where nothing says which labels later ones will bring."""
    if classifies and classes is None and (at_positions or type_of_target(y) != "multilabel-indicator"):
        raise ValueError(
            "classes must be passed on the first call to partial_fit: all labels that any call will bring."
        )


def _indices(labels: np.ndarray, known: np.ndarray, name: str) -> np.ndarray:
    """Return the place of each label among the known ones."""
    if known.dtype.kind not in "biufUO":
        raise ValueError(f"ONNX has no labels of type {known.dtype}: give strings, integers or floats.")
    try:
        values = np.searchsorted(known, labels).clip(max=len(known) - 1)
    except TypeError as error:
        raise TypeError(f"{name} has labels of a type that the classes {known.tolist()} are not: {error}.") from None
    unknown = known[values] != labels
    if np.any(unknown):
        raise ValueError(
            f"{name} contains labels that are not among the classes: {_shortened(np.unique(labels[unknown]))}. "
            f"The classes, given or fixed by the fitted model or when training began, are {_shortened(known)}."
        )
    return values


def _shortened(labels: np.ndarray, most: int = 20) -> str:
    """Return labels as a list, of many the first ones and their number."""
    if len(labels) <= most:
        return str(labels.tolist())
    return f"[{', '.join(map(repr, labels[:most].tolist()))}, ...], {len(labels)} in all"


def _several_labels(y: np.ndarray, classes: list[np.ndarray] | None) -> Targets:
    """Return a column for each class of each label: the one of the row's class is 1."""
    if classes is not None and y.shape[1:] != (len(classes),):
        raise ValueError(f"y has shape {y.shape}, expected {len(classes)} labels (columns) a row.")
    known = [np.unique(column) for column in y.T] if classes is None else classes
    places = [_indices(y[:, j], own, f"Column {j} of y") for j, own in enumerate(known)]
    values = np.concatenate([np.eye(len(own))[place] for own, place in zip(known, places, strict=True)], axis=1)
    return Targets(values, "multioutput", values.shape[1], known)


def labels_of(values: np.ndarray, classes: list[np.ndarray]) -> np.ndarray:
    """Return the labels of rows that have a column for each class of each label: where it is largest."""
    parts = np.split(values, np.cumsum([len(known) for known in classes])[:-1], axis=1)
    return np.stack([known[part.argmax(axis=1)] for known, part in zip(classes, parts, strict=True)], axis=1)


def _indicator_matrix(y: ArrayLike | SparseLike, classes: Classes) -> Targets:
    values = np.asarray(y.toarray() if hasattr(y, "toarray") else y)
    if not np.isin(values, (0, 1)).all():
        raise ValueError(f"Indicators of several labels a row must be 0 or 1, got {np.unique(values).tolist()} in y.")
    if classes is not None and len(classes) != values.shape[1]:
        raise ValueError(f"y has {values.shape[1]} labels (columns), expected {len(classes)}.")
    return Targets(values.astype(np.float64), "multilabel", values.shape[1], np.arange(values.shape[1]))


def checked_weights(sample_weight: ArrayLike | None, n_rows: int) -> np.ndarray:
    """Return a weight for each row, checked as scikit-learn checks them by a function that is private there."""
    if sample_weight is None:
        return np.ones(n_rows)
    if isinstance(sample_weight, Number):
        sample_weight = np.full(n_rows, sample_weight)
    require_unmasked(sample_weight, "sample_weight")
    weights = check_array(sample_weight, ensure_2d=False, dtype=np.float64, order="C", input_name="sample_weight")
    if weights.shape != (n_rows,):
        raise ValueError(f"sample_weight.shape == {weights.shape}, expected {(n_rows,)}!")
    check_non_negative(weights, "`sample_weight`")
    return np.asarray(weights)


def row_weights(sample_weight: ArrayLike | None, targets: Targets, class_weight: ClassWeight) -> np.ndarray | None:
    """Return the weight of every row, None where all are one; class weights are multiplied in."""
    if sample_weight is None and class_weight is None:
        return None
    weights = checked_weights(sample_weight, len(targets.values))
    if class_weight is not None:
        weights = weights * _class_weights(class_weight, targets, weights)
    require_usable_weights(weights)
    return weights


def require_usable_weights(weights: np.ndarray) -> None:
    """Raise if all weights are zero, or float32 cannot hold them."""
    if not weights.sum() > 0:
        raise ValueError("The sum of sample_weight is zero: at least one row must have a positive weight.")
    if not MIN_WEIGHT < weights.max() <= weights.sum() < MAX_WEIGHT:
        raise ValueError(f"The largest weight of a row is {weights.max():g}: scale them, only their ratios count.")


def _class_weights(class_weight: ClassWeight, targets: Targets, weights: np.ndarray) -> np.ndarray:
    """Return the weight that its class gives to every row; "balanced" counts a row as often as it weighs."""
    if targets.task == "multilabel":
        rows = compute_sample_weight(class_weight, targets.values)
    elif isinstance(targets.classes, list):
        rows = compute_sample_weight(class_weight, labels_of(targets.values, targets.classes))
    else:
        rows = weights_of_classes(class_weight, targets.classes, targets.values, weights)[targets.values]
    _require_no_negative(rows, class_weight)
    return np.asarray(rows)


def weights_of_classes(
    class_weight: ClassWeight, classes: Classes, values: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Return the weight of each class; "balanced" counts each of the class indices ``values`` as often as it weighs."""
    if isinstance(class_weight, str) and class_weight == "balanced":
        totals = np.bincount(values, weights, minlength=0 if classes is None else len(classes))
        return np.asarray(float(weights.sum()) / np.count_nonzero(totals) / np.where(totals > 0, totals, 1.0))
    found = np.asarray(compute_class_weight(class_weight, classes=classes, y=classes))
    _require_no_negative(found, class_weight)
    return found


def _require_no_negative(weights: np.ndarray, class_weight: ClassWeight) -> None:
    if np.any(weights < 0):
        raise ValueError(f"class_weight must not contain negative weights, got {class_weight!r}.")

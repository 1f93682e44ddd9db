"""Labels and numbers, encoded as the targets that losses take.

Only this module finds the task in y: regression, binary (two classes), multiclass (one score for each class),
multilabel (several labels per row, each 0 or 1, with one score each), or multioutput (several labels per row, each with
one score for each of its classes). A graph with two scores makes binary multiclass (``_estimators/outputs``). Labels
become indices into ``classes``, or one-hot columns if a row has several labels, so that no other module depends on
their type.

:func:`regression_targets` encodes numbers, :func:`label_targets` labels, some of which may be ignored, and
:func:`position_targets` labels at each position of a row. :func:`joined_targets` joins the targets of several outputs.
The weights of their rows are in ``class_weight``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from numbers import Number, Real
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike
from sklearn.utils import assert_all_finite, check_array, column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_non_negative

from .._model.declared_targets import DeclaredTargets
from .._model.links import Task
from .._utils.typing import SparseLike
from ..exceptions import warn
from .columns import require_in_memory, require_no_times, require_unmasked

Classes: TypeAlias = "np.ndarray | list[np.ndarray] | None"


@dataclass(frozen=True, eq=False)
class Targets:
    """Encoded targets.

    Attributes
    ----------
    values : ndarray of shape (n_samples,) of int64, or (n_samples, n_scores) of float
        Class indices, or numbers; rows of several axes are flattened. For labels at each position, int64 of shape
        (n_samples, n_positions), -1 where a label is ignored.
    task : {"regression", "binary", "multiclass", "multilabel", "multioutput"}
        "binary" means two classes, whether there are one or two scores.
    n_scores : int
        Number of scores per row (per position, if there are positions) of a graph that is built for these targets.
    classes : ndarray, list of ndarray or None
        Sorted labels; a list if a row has several labels, each with its own classes.
    row_shape : tuple of int
        Shape of a row of numbers with several axes, such as an image, or of the labels at positions; else empty.
    label_weights : ndarray of shape (n_classes,), or None
        Weights of the labels at positions by class; None if there are no positions.
    label_mask : ndarray of bool of shape (n_samples,) or (n_samples, n_labels), or None
        True for labels and numbers that count; None if all do. A label that does not count has the value -1 if rows
        have several labels, and an arbitrary value if they have one; a missing number is NaN.
    label_shares : ndarray of shape (n_samples, n_labels), or None
        The share of each label or number in the weight of its row, 0 for one that does not count; None if those that
        count have equal shares.
    soft : bool
        True if ``values`` are the shares of the classes in each row, (n_samples, n_classes) of float.
    declared : DeclaredTargets or None
        The targets that the loss declares by name, whose columns ``values`` are; None if ``y`` holds labels or numbers.
    """

    values: np.ndarray
    task: Task
    n_scores: int
    classes: Classes = None
    row_shape: tuple[int, ...] = ()
    label_weights: np.ndarray | None = None
    label_mask: np.ndarray | None = None
    label_shares: np.ndarray | None = None
    soft: bool = False
    declared: DeclaredTargets | None = None

    def take(self, rows: np.ndarray) -> Targets:
        """Return the targets of some rows."""
        label_mask = None if self.label_mask is None else self.label_mask[rows]
        label_shares = None if self.label_shares is None else self.label_shares[rows]
        return replace(self, values=self.values[rows], label_mask=label_mask, label_shares=label_shares)

    @property
    def content(self) -> np.ndarray | dict[str, np.ndarray]:
        """``values`` with missing numbers filled (:func:`filled_numbers`), or what the loss declares, by name."""
        return filled_numbers(self) if self.declared is None else self.declared.arrays(self.values)

    @property
    def n_labels(self) -> int:
        """Number of labels or numbers of a row."""
        if isinstance(self.classes, list):
            return len(self.classes)
        return self.values.shape[1] if self.values.ndim == 2 and not (self.has_positions or self.soft) else 1

    @property
    def counts_in_part(self) -> bool:
        """True if the labels or numbers of a row do not count alike: some are missing, or they have weights."""
        if self.label_shares is not None:
            return True
        return self.label_mask is not None and self.label_mask.ndim == 2 and not self.label_mask.all()

    def with_shares(self, values: np.ndarray) -> np.ndarray:
        """Return the targets ``values``, as a step reads them, followed by the shares of the labels if they differ."""
        return values if self.label_shares is None else np.column_stack([values, self.label_shares])

    @property
    def has_positions(self) -> bool:
        """True if a row has a label at each position."""
        return self.label_weights is not None

    @property
    def stratify(self) -> np.ndarray | None:
        """Labels whose proportions a split preserves; None if there are no such labels."""
        one_label = self.task in ("binary", "multiclass") and not self.has_positions and not self.soft
        return self.values if one_label else None


def regression_targets(y: ArrayLike, *, allow_nd: bool = False, allow_missing: bool = False) -> Targets:
    """Return numbers as targets, with a column for each output; ``allow_nd`` admits rows of several axes.

    ``allow_missing`` admits missing numbers (NaN or None) if a row has several numbers in one axis.
    """
    require_unmasked(y, "y")
    if allow_missing and (found := numbers_in_part(y)) is not None:
        values, counted = found
        if not counted.any():
            raise ValueError("Input y contains NaN in all rows: at least one row must have a target.")
        return Targets(values, "regression", values.shape[1], label_mask=counted)
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
        assert_all_finite(array, input_name="y")  # NumPy has converted the text "nan" to a number
    columns = array.reshape(len(array), math.prod(array.shape[1:]))
    if array.ndim > 2:  # images are large, so do not convert float32 to float64
        columns = columns if columns.dtype == np.float32 else columns.astype(np.float64)
        return Targets(columns, "regression", columns.shape[1], row_shape=array.shape[1:])
    return Targets(columns.astype(np.float64), "regression", columns.shape[1])


# Missing numbers in rows of several numbers. The others *count*, and a row weighs as much as the share of them: the
# weighted mean over rows of the mean over each row's numbers then equals the mean over all numbers that count.


def numbers_in_part(y: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Return numbers (n_samples, n_outputs) of which some are missing (NaN), and the mask of the others.

    None if no number is missing, or if ``y`` is no matrix of several columns of numbers.
    """
    if sp.issparse(y):
        return None
    try:
        array = np.asarray(y)
    except ValueError:  # rows of different lengths, which are refused elsewhere
        return None
    if array.ndim != 2 or array.shape[1] < 2 or array.dtype.kind not in "fO":
        return None
    if array.dtype == object:
        missing = np.array([is_missing(value) for value in array.ravel()], bool).reshape(array.shape)
        try:
            array = np.where(missing, np.nan, array).astype(np.float64)
        except (ValueError, TypeError):  # texts, which are refused elsewhere
            return None
    if not np.isnan(array).any():
        return None
    values = np.asarray(
        check_array(array, dtype=np.float64, ensure_all_finite="allow-nan", input_name="y", ensure_min_features=2)
    )
    return values, ~np.isnan(values)


def filled_numbers(targets: Targets) -> np.ndarray:
    """Return numbers, in which the mean of the output replaces those that are missing."""
    mask, values = targets.label_mask, targets.values
    if mask is None or targets.task != "regression":
        return values
    require_numbers_of_columns(targets)
    return np.where(mask, values, np.nanmean(values, axis=0))


def require_numbers_of_columns(targets: Targets, rows: str = "") -> None:
    """Raise if all numbers of a column are missing; ``rows`` names the rows if they are not all of y."""
    if targets.task == "regression" and targets.label_mask is not None:
        lacking = np.flatnonzero(~targets.label_mask.any(axis=0))
        if len(lacking):
            raise ValueError(f"Input y contains NaN: column {lacking[0]} of y has no number{rows}. Leave it out.")


def require_all_numbers(targets: Targets, reader: str) -> None:
    """Raise if numbers or labels are missing; ``reader`` names what cannot leave them out."""
    if targets.counts_in_part and targets.label_shares is None:
        what = "numbers" if targets.task == "regression" else "labels"
        raise ValueError(f"Input y contains NaN. {reader} takes no missing {what}: leave these rows out.")


def warn_of_empty_rows(targets: Targets) -> None:
    """Warn of rows of which all numbers are missing."""
    if targets.task == "regression" and targets.counts_in_part:
        _warn_of_empty(len(targets.values) - len(rows_with_labels(targets)), len(targets.values), "number")


def _warn_of_empty(count: int, n_rows: int, what: str) -> None:
    if count:
        warn(f"{count} of {n_rows} rows of y have no {what}, and are left out.")


def class_targets(y: ArrayLike | SparseLike, classes: Classes) -> Targets:
    """Return class indices or label indicators; raise for labels that are not in ``classes``."""
    require_unmasked(y, "y")
    require_present(y)
    with sortable_labels(y, "y"):
        if not isinstance(classes, list) and (plain := _quick_classes(y)) is not None:
            return _label_targets(np.ascontiguousarray(y), classes, plain)
        if sp.issparse(y) and y.ndim == 1:  # scikit-learn does not take sparse vectors
            y = y.toarray()
        if getattr(getattr(y, "dtype", None), "kind", "") == "f":
            assert_all_finite(y, input_name="y")
        kind = type_of_target(y, input_name="y")
        if kind == "continuous-multioutput":
            raise ValueError(
                "Unknown label type: continuous-multioutput. If the columns of y are the probabilities of the classes, "
                "set loss=LogLoss(targets='probabilities'); numbers are for OrtGradientRegressor."
            )
        if kind not in ("binary", "multiclass"):
            check_classification_targets(y)  # only in this case, because it determines the kind again, which takes time
        if isinstance(classes, list) or (classes is None and kind == "multiclass-multioutput"):
            # Encode several labels per row as one-hot columns for the classes of each label.
            labels = np.asarray(y.toarray() if hasattr(y, "toarray") else y)
            if classes is not None and labels.shape[1:] != (len(classes),):
                raise ValueError(f"y has shape {labels.shape}, expected {len(classes)} labels (columns) a row.")
            known = [np.unique(column) for column in labels.T] if classes is None else classes
            places = [_indices(labels[:, j], own, f"Column {j} of y") for j, own in enumerate(known)]
            one_hot = [np.eye(len(own))[place] for own, place in zip(known, places, strict=True)]
            values = np.concatenate(one_hot, axis=1)
            return Targets(values, "multioutput", values.shape[1], known)
        if kind == "multilabel-indicator" or (classes is not None and np.shape(y)[1:] == classes.shape):
            values = np.asarray(y.toarray() if hasattr(y, "toarray") else y)
            if not np.isin(values, (0, 1)).all():
                found = np.unique(values).tolist()
                raise ValueError(f"Indicators of several labels a row must be 0 or 1, got {found} in y.")
            if classes is not None and len(classes) != values.shape[1]:
                raise ValueError(f"y has {values.shape[1]} labels (columns), expected {len(classes)}.")
            return Targets(values.astype(np.float64), "multilabel", values.shape[1], np.arange(values.shape[1]))
        return _label_targets(column_or_1d(y, warn=True), classes)


SUM_TOLERANCE = 1e-3
"""Largest difference between one and the sum of a row's probabilities that may be due to rounding."""


def soft_targets(y: ArrayLike | SparseLike, classes: Classes, kind: str) -> tuple[Targets, np.ndarray]:
    """Return targets with the shares of the classes in each row, and the sum of each row of ``y``.

    ``kind`` is "probabilities" or "counts".
    """
    require_unmasked(y, "y")
    if not sp.issparse(y):
        require_present(y)
    dense: Any = y.toarray() if hasattr(y, "toarray") else y
    values = np.asarray(check_array(dense, dtype=np.float64, ensure_2d=False, allow_nd=True, input_name="y"))
    if values.ndim != 2 or values.shape[1] < 2:
        raise ValueError(
            f"targets={kind!r} needs a column of y for each class, (n_samples, n_classes), got shape {values.shape}. "
            f"One label a row needs a loss with targets='labels', the default."
        )
    known = np.arange(values.shape[1]) if classes is None else classes
    if isinstance(known, list) or known.shape != values.shape[1:]:
        raise ValueError(f"y has {values.shape[1]} columns of {kind}, expected one for each of {len(known)} classes.")
    if (negative := np.count_nonzero(values < 0)) > 0:
        raise ValueError(f"{kind} in y must not be negative, got {negative} below zero, the smallest {values.min()}.")
    sums = values.sum(axis=1)
    if kind == "probabilities" and (wrong := np.abs(sums - 1) > SUM_TOLERANCE).any():
        raise ValueError(
            f"The probabilities in a row of y must sum to one, but {np.count_nonzero(wrong)} of {len(sums)} rows do "
            f"not; row {np.argmax(wrong)} sums to {sums[np.argmax(wrong)]:.6g}. Divide rows by their sums, or take "
            f"targets='counts', by which a row weighs as much as its sum."
        )
    # Give a row that sums to zero equal shares of all classes; its weight is zero.
    shares = np.where(sums[:, None] > 0, values, 1.0)
    shares /= shares.sum(axis=1, keepdims=True)
    many = len(known) > 2
    task: Task = "multiclass" if many else "binary"
    return Targets(shares, task, len(known) if many else 1, known, soft=True), sums


def soft_accuracy(targets: Targets, predicted: np.ndarray, weights: np.ndarray | None) -> float:
    """Return the mean share of the predicted class: the accuracy if each row were repeated for its classes by share."""
    assert isinstance(targets.classes, np.ndarray)
    places = np.searchsorted(targets.classes, predicted.astype(targets.classes.dtype))
    return float(np.average(np.take_along_axis(targets.values, places[:, None], axis=1)[:, 0], weights=weights))


def _quick_classes(y: object) -> np.ndarray | None:
    """Return the sorted classes if ``y`` is a plain integer array that scikit-learn need not check, else None.

    Also return None if most rows have distinct labels, because scikit-learn warns of that.
    """
    if type(y) is not np.ndarray or y.ndim != 1 or y.dtype.kind not in "iub" or not len(y):
        return None
    if y.dtype.kind == "i" and y.min() >= 0 and y.max() < len(y):
        labels = np.flatnonzero(np.bincount(y)).astype(y.dtype)  # three times as fast as np.unique
    else:
        labels = np.unique(y)
    return labels if len(labels) <= max(2, len(y) // 2) else None


def _label_targets(labels: np.ndarray, classes: np.ndarray | None, distinct: np.ndarray | None = None) -> Targets:
    values, known = encoded_labels(labels, classes, distinct)
    many = len(known) > 2
    return Targets(values, "multiclass" if many else "binary", len(known) if many else 1, known)


def encoded_labels(
    labels: np.ndarray, classes: np.ndarray | None, distinct: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return class indices and the classes, at least two; ``distinct`` are the labels that occur, if known."""
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
    """Return the distinct classes, sorted; a list of such arrays if classes are given for each of several labels."""
    with sortable_labels(classes, "classes"):
        if isinstance(classes, list | tuple) and all(np.ndim(known) == 1 for known in classes):
            return [np.unique(known) for known in classes]
        return np.unique(_flat(classes))


def require_sorted(classes: ArrayLike | None, known: np.ndarray | list[np.ndarray]) -> None:
    """Raise if the user's ``classes`` are not in sorted order, in which the columns of a given graph stand."""
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
    """Raise at the first ``partial_fit`` unless ``classes`` are given, or ``y`` is an indicator matrix."""
    if classifies and classes is None and (at_positions or type_of_target(y) != "multilabel-indicator"):
        raise ValueError(
            "classes must be passed on the first call to partial_fit: all labels that any call will bring."
        )


def _indices(labels: np.ndarray, known: np.ndarray, name: str) -> np.ndarray:
    """Return the index of each label in ``known``."""
    if known.dtype.kind not in "biufUO":
        raise ValueError(f"ONNX has no labels of type {known.dtype}: give strings, integers or floats.")
    if known.dtype.kind == "u" and known.size and known.max() > np.iinfo(np.int64).max:
        raise ValueError(
            f"ONNX has no labels above {np.iinfo(np.int64).max}, and {name} holds {known.max()}: give strings."
        )
    try:
        values = np.searchsorted(known, labels).clip(max=len(known) - 1)
    except TypeError as error:
        raise TypeError(f"{name} has labels of a type that the classes {known.tolist()} are not: {error}.") from None
    unknown = known[values] != labels
    if np.any(unknown):
        raise ValueError(
            f"{name} contains labels that are not among the classes: {_shortened(np.unique(labels[unknown]))}. "
            f"The classes, given or fixed by the fitted model or when training began, are {_shortened(known)}. A model "
            f"that was trained before learns other classes by a new head: finetune=FineTuner(new_head=True)."
        )
    return values


def _shortened(labels: np.ndarray, most: int = 20) -> str:
    """Return labels as text for a message: all of them, or if there are many the first ones and the total number."""
    if len(labels) <= most:
        return str(labels.tolist())
    return f"[{', '.join(map(repr, labels[:most].tolist()))}, ...], {len(labels)} in all"


def labels_of(values: np.ndarray, classes: list[np.ndarray]) -> np.ndarray:
    """Return the labels (n_samples, n_labels) from one-hot columns or scores: the class with the largest value."""
    parts = np.split(values, np.cumsum([len(known) for known in classes])[:-1], axis=1)
    return np.stack([known[part.argmax(axis=1)] for known, part in zip(classes, parts, strict=True)], axis=1)


def checked_weights(sample_weight: ArrayLike | None, n_rows: int) -> np.ndarray:
    """Return the weight of each row, checked as in scikit-learn, whose own function is private."""
    if sample_weight is None:
        return np.ones(n_rows)
    if isinstance(sample_weight, Number):
        sample_weight = np.full(n_rows, sample_weight)
    require_unmasked(sample_weight, "sample_weight")
    require_no_times(sample_weight, "sample_weight")  # NumPy would convert times to numbers of nanoseconds
    weights = check_array(sample_weight, ensure_2d=False, dtype=np.float64, order="C", input_name="sample_weight")
    if weights.shape != (n_rows,):
        who = "" if weights.ndim < 2 else " Only arrays y with several numbers or labels a row have a weight for each."
        raise ValueError(f"sample_weight.shape == {weights.shape}, expected {(n_rows,)}!{who}")
    check_non_negative(weights, "`sample_weight`")
    return np.asarray(weights)


# Weights of single labels or numbers: ``sample_weight`` with two axes.
#
# A row weighs as much as the mean of its weights, and each label has a share of it. Then the weighted mean over rows of
# the mean over each row's labels, weighted by their shares, equals the weighted mean over all labels. In scores by row,
# where a row is right or wrong as a whole, it weighs as much as the mean over its labels that count.


def weighs_labels(sample_weight: Any) -> bool:
    """Return True if there is a weight for each label or number of a row."""
    if sample_weight is None or hasattr(sample_weight, "ndim"):
        return getattr(sample_weight, "ndim", 0) == 2
    try:
        return np.asarray(sample_weight).ndim == 2
    except ValueError:  # rows of different lengths, which are refused elsewhere
        return False


def checked_label_weights(sample_weight: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return the weight of each label or number, checked as :func:`checked_weights` does that of a row."""
    require_unmasked(sample_weight, "sample_weight")
    require_no_times(sample_weight, "sample_weight")
    weights = np.asarray(check_array(sample_weight, dtype=np.float64, input_name="sample_weight"))
    if weights.shape != shape or shape[1:] == (1,):
        either = f"{(shape[0],)} or {shape}" if math.prod(shape[1:]) > 1 and len(shape) == 2 else f"{(shape[0],)}"
        raise ValueError(f"sample_weight.shape == {weights.shape}, expected {either}!")
    check_non_negative(weights, "`sample_weight`")
    return weights


def labels_of_weight(counted: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mask of the labels that are ``counted`` and have a weight, and their mean weight in each row."""
    counts = counted & (weights > 0)
    own = np.where(counts, weights, 0.0)
    return counts, own.sum(axis=1) / np.maximum(counts.sum(axis=1), 1)


def weigh_labels(targets: Targets, sample_weight: Any) -> tuple[Targets, np.ndarray]:
    """Return targets with the shares of the labels, and the mean weight of the labels of each row that count."""
    shape = len(targets.values), targets.n_labels
    if targets.row_shape or shape[1] == 1:
        return targets, checked_weights(sample_weight, shape[0])  # raises
    weights = checked_label_weights(sample_weight, shape)
    counts, rows = labels_of_weight(np.ones(shape, bool) if targets.label_mask is None else targets.label_mask, weights)
    own = np.where(counts, weights, 0.0)
    own /= np.maximum(own.max(axis=1, keepdims=True), np.finfo(float).tiny)  # the sum of tiny weights is inexact
    shares = own / np.maximum(own.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    if targets.task == "regression":
        values = np.where(counts, targets.values, np.nan)
    else:
        sizes = [len(known) for known in targets.classes] if isinstance(targets.classes, list) else 1
        values = np.where(np.repeat(counts, sizes, axis=1), targets.values, IGNORED)
    return replace(targets, values=values, label_mask=counts, label_shares=shares), rows


def with_label_shares(targets: Targets) -> Targets:
    """Return the targets with the shares of labels, which are equal if there are none."""
    if targets.label_shares is not None:
        return targets
    mask = np.ones((len(targets.values), targets.n_labels), bool) if targets.label_mask is None else targets.label_mask
    return replace(targets, label_mask=mask, label_shares=mask / np.maximum(mask.sum(axis=1, keepdims=True), 1))


# Labels at each position of a row, such as the words of a text or the pixels of an image.
#
# The loss is the weighted mean over all positions. Averaging the positions of each row first, and then the rows, gives
# the same if the weight of a row is multiplied by the mean weight of its labels, with zero for ignored ones. Then a row
# whose labels are all ignored has weight zero.


def label_array(y: ArrayLike) -> np.ndarray:
    """Return labels as an array; raise for rows of different lengths."""
    try:
        return np.asarray(y)
    except ValueError:
        raise ValueError(
            "The rows of y differ in length: fill them up with labels that are ignored (ignore_label)."
        ) from None


def position_targets(y: ArrayLike, classes: Classes, ignore_label: object) -> Targets:
    """Return class indices of shape (n_samples, n_positions), with -1 for ignored labels."""
    labels = label_array(y)
    if labels.ndim < 2:
        raise ValueError(f"y must hold a label at each position, (n_samples, n_positions), got shape {labels.shape}.")
    if isinstance(classes, list):
        raise ValueError("classes must be one list of labels where y has a label at each position.")
    counted = mask_of_labels(labels, ignore_label)
    if labels.dtype.kind == "f":
        assert_all_finite(labels[counted], input_name="y")
    require_counted_classes(classes, ignore_label)
    if not counted.any():
        raise ValueError(f"No label of y counts: all are ignore_label={ignore_label!r}.")
    indices, known = encoded_labels(plain_labels(labels[counted]), classes)
    values = np.full(labels.shape, IGNORED, np.int64)
    values[counted] = indices
    many = len(known) > 2
    return Targets(
        values.reshape(len(values), -1),
        "multiclass" if many else "binary",
        len(known) if many else 1,
        known,
        row_shape=labels.shape[1:],
        label_weights=np.ones(len(known)),
    )


def position_shares(targets: Targets) -> np.ndarray:
    """Return the weight of each label, of shape (n_samples, n_positions); 0 for ignored ones."""
    assert targets.label_weights is not None
    # Index -1, which stands for ignored labels, selects the appended zero.
    return np.asarray(np.append(targets.label_weights, 0.0)[targets.values])


def require_same_places(trained: Targets, held_out: Targets) -> None:
    """Raise if validation data have other positions than the training data, for which the graph was prepared."""
    if trained.has_positions and trained.row_shape != held_out.row_shape:
        raise ValueError(f"y has rows of shape {held_out.row_shape}, those to train on have {trained.row_shape}.")


def validation_accuracy(predicted: np.ndarray, targets: Targets, weights: np.ndarray | None) -> float:
    """Return the share of correct labels, weighted as in the loss."""
    shares = position_shares(targets)
    classes = np.asarray(targets.classes)
    row_weights = np.ones(len(shares)) if weights is None else weights / np.maximum(shares.mean(axis=1), 1e-300)
    right = classes[targets.values] == predicted.reshape(targets.values.shape).astype(classes.dtype)
    return float(np.average(right, weights=row_weights[:, None] * shares))


def accuracy_at_positions(
    y: ArrayLike, predicted: np.ndarray, ignore_label: object, sample_weight: ArrayLike | None
) -> float:
    """Return the share of correct labels, ignored ones left out, weighted by ``sample_weight``."""
    labels = label_array(y)
    if labels.shape != predicted.shape:
        raise ValueError(f"y has shape {labels.shape}, but the predictions have {predicted.shape}.")
    row_weights = checked_weights(sample_weight, len(labels)).reshape(-1, *[1] * (labels.ndim - 1))
    weights = row_weights * mask_of_labels(labels, ignore_label)
    if not weights.sum() > 0:
        raise ValueError(f"No label of y counts: all are ignore_label={ignore_label!r} or in rows of weight zero.")
    return float(np.average(labels == predicted, weights=weights))


# Ignored labels (``ignore_label``), with one or several labels per row. The other labels *count*.
#
# The weight of a row is multiplied by the share of its labels that count. Then the weighted mean over rows of the mean
# over each row's counting labels equals the mean over all labels that count.


IGNORED = -1
"""Value of an ignored label, in place of a class index or an indicator."""


def mask_of_labels(labels: np.ndarray, ignore_label: object) -> np.ndarray:
    """Return a mask of the labels that count."""
    if ignores_missing(ignore_label):
        if labels.dtype != object:
            return np.asarray(labels == labels, bool)  # NaN differs from itself
        return np.array([not is_missing(label) for label in labels.ravel()], bool).reshape(labels.shape)
    other_kind = labels.dtype != object and (labels.dtype.kind in "US") != isinstance(ignore_label, str)
    if ignore_label is None or other_kind:
        return np.ones(labels.shape, bool)
    return np.asarray(labels != ignore_label, bool)


def ignores_missing(ignore_label: object) -> bool:
    """Return True if ``ignore_label`` is NaN, so that missing labels are ignored."""
    return isinstance(ignore_label, Real) and math.isnan(ignore_label)


def plain_labels(labels: np.ndarray) -> np.ndarray:
    """Return labels, converted from Python numbers to a numeric array, because a graph cannot output objects."""
    if labels.dtype != object:
        return labels
    numbers = {isinstance(label, Real) for label in labels.ravel()}
    if numbers == {False} and all(isinstance(label, str) for label in labels.ravel()):
        return labels
    if numbers != {True}:
        kinds = sorted({type(label).__name__ for label in labels.ravel()})
        raise TypeError(f"y must hold texts or numbers, and not both, where labels count; got {', '.join(kinds)}.")
    plain = np.array(labels.tolist())
    if plain.dtype.kind == "f":
        assert_all_finite(plain, input_name="y")
    return plain


def masked_labels(y: ArrayLike, ignore_label: object) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the labels as an array, and a mask that is True for labels that count; None if all labels count.

    Missing labels (NaN, None) of rows with several never count; of rows with one label, ``ignore_label`` decides.
    """
    several: object = y
    require_in_memory(several, "y")
    if sp.issparse(several):
        if ignore_label is None or mask_of_labels(several.data, ignore_label).all():
            return None
        several = several.toarray()
    elif ignore_label is None and not _may_lack_labels(several):
        return None
    require_unmasked(several, "y")
    try:
        labels = np.asarray(several)
    except ValueError:  # rows of different lengths, which are refused elsewhere
        return None
    if not (_may_lack_labels(labels) or ignores_missing(ignore_label)):
        require_present(several)
    counted = labels_that_count(labels, ignore_label)
    return None if labels.ndim not in (1, 2) or counted.all() else (labels, counted)


def labels_that_count(labels: np.ndarray, ignore_label: object) -> np.ndarray:
    """Return a mask of the labels that are neither ignored nor missing among several of a row."""
    if not _may_lack_labels(labels):
        return mask_of_labels(labels, ignore_label)
    there = mask_of_labels(labels, math.nan)
    filled = labels.copy()
    filled[~there] = None if labels.dtype == object else 0
    return np.asarray(there & mask_of_labels(filled, ignore_label))


def _may_lack_labels(y: object) -> bool:
    """Return True if rows have several labels, of a type that has missing values."""
    try:
        labels = np.asarray(y)
    except ValueError:
        return False
    return labels.ndim == 2 and labels.shape[1] > 1 and labels.dtype.kind in "fO"


def label_targets(y: ArrayLike, classes: Classes, ignore_label: object) -> Targets:
    """Encode labels, some of which may be ignored (``ignore_label``)."""
    found = masked_labels(y, ignore_label)
    if found is None:
        return class_targets(y, classes)
    labels, counted = found
    if labels.ndim == 2 and not ignores_missing(ignore_label):
        empty = ~mask_of_labels(labels, math.nan).any(axis=1)
        _warn_of_empty(int(np.count_nonzero(empty)), len(labels), "label")
    require_counted_classes(classes, ignore_label)
    if not counted.any():
        raise ValueError(f"No label of y counts: all are ignore_label={ignore_label!r}, or missing.")
    if labels.ndim == 1 or labels.shape[1] == 1:
        rows = counted.reshape(-1)
        kept = class_targets(plain_labels(labels[rows]), classes)
        values = np.zeros(len(rows), kept.values.dtype)
        values[rows] = kept.values
        return replace(kept, values=values, label_mask=rows)
    targets = class_targets(filled_labels(labels, counted, classes), classes)
    sizes = [len(own) for own in targets.classes] if isinstance(targets.classes, list) else 1
    values = np.where(np.repeat(counted, sizes, axis=1), targets.values, IGNORED)
    return replace(targets, values=values, label_mask=counted)


def require_counted_classes(classes: Classes, ignore_label: object) -> None:
    """Raise if a class is the label to ignore."""
    for own in classes if isinstance(classes, list) else [classes]:
        if own is not None and not mask_of_labels(own, ignore_label).all():
            raise ValueError(
                f"classes contains ignore_label={ignore_label!r}, but rows with this label are ignored. Remove it from "
                f"classes, or set ignore_label=None if it is a class."
            )


def filled_labels(labels: np.ndarray, counted: np.ndarray, classes: Classes) -> np.ndarray:
    """Return a matrix of labels in which a valid label of the column replaces each ignored label."""
    filled = labels.copy()
    indicators = not isinstance(classes, list) and bool(np.isin(labels[counted], (0, 1)).all())
    for j, own in enumerate(counted.T):
        if own.all():
            continue
        if own.any():
            filled[~own, j] = labels[own, j][0]
        elif isinstance(classes, list) and j < len(classes):
            filled[:, j] = classes[j][0]
        elif indicators:
            filled[:, j] = 0
        else:
            raise ValueError(
                f"Column {j} of y has no label that counts, so that its classes are not known: leave the column out, "
                f"or name the classes of each: fit(X, y, classes=[...])."
            )
    return plain_labels(filled)


def share_of_labels(targets: Targets) -> np.ndarray:
    """Return, for each row, the share of its labels that are not ignored."""
    assert targets.label_mask is not None
    return np.asarray(targets.label_mask.reshape(len(targets.label_mask), -1).mean(axis=1))


def values_in_rows(targets: Targets) -> np.ndarray:
    """Return numeric targets in the shape of the rows of ``y``."""
    return targets.values.reshape(len(targets.values), *(targets.row_shape or targets.values.shape[1:]))


def rows_with_labels(targets: Targets) -> np.ndarray:
    """Return the indices of the rows with at least one label that is not ignored."""
    if targets.label_mask is None:
        return np.arange(len(targets.values))
    return np.flatnonzero(share_of_labels(targets))


def rows_that_count(
    y: ArrayLike, predicted: np.ndarray, sample_weight: ArrayLike | None, ignore_label: object
) -> tuple[ArrayLike, np.ndarray, ArrayLike | None]:
    """Return labels, predictions and weights, for a score, of the rows with at least one label that is not ignored.

    In these rows, the predictions replace the ignored labels, so that ignored labels are never errors.
    """
    found = masked_labels(y, ignore_label)
    if weighs_labels(sample_weight):
        if found is None:
            several: Any = y
            labels = np.asarray(several.toarray() if sp.issparse(several) else several)
            found = labels, np.ones(labels.shape, bool)
        counted, sample_weight = labels_of_weight(found[1], checked_label_weights(sample_weight, found[1].shape))
        found = found[0], counted
    if found is None:
        return y, predicted, sample_weight
    labels, counted = found
    some = np.asarray(counted.reshape(len(counted), -1).any(axis=1))
    if labels.shape[:1] != predicted.shape[:1] or labels.size != predicted.size:
        raise ValueError(f"y has shape {labels.shape}, but the predictions have {predicted.shape}.")
    if not some.any():
        raise ValueError(f"No label of y counts: all are ignore_label={ignore_label!r}, or missing.")
    labels, counted, predicted = labels[some], counted[some], predicted[some]
    filled = labels.astype(np.result_type(labels, predicted))
    filled[~counted] = predicted.reshape(labels.shape)[~counted]
    weights = None if sample_weight is None else checked_weights(sample_weight, len(some))[some]
    return plain_labels(filled), predicted, weights


# Targets of several outputs, as columns of one matrix.
#
# A row without a label for an output has weight zero for it; :func:`spread` fills the columns of such rows with values
# that every loss accepts and that have no effect.


@dataclass(frozen=True, eq=False)
class SeveralTargets(Targets):
    """The targets of several outputs, joined in one matrix of numbers.

    Attributes
    ----------
    names : tuple of str
        The names of the outputs.
    parts : tuple of Targets
        The targets of each output.
    weights : tuple of ndarray or None
        The weights of the rows for each output; None if all are one.
    has_factors : bool
        True if the outputs have different row weights. Then ``values`` has, after the targets, a column for each output
        with the factor of the row's weight.
    """

    names: tuple[str, ...] = ()
    parts: tuple[Targets, ...] = ()
    weights: tuple[np.ndarray | None, ...] = ()
    has_factors: bool = False

    def take(self, rows: np.ndarray) -> SeveralTargets:
        """Return the targets of some rows."""
        parts = tuple(part.take(rows) for part in self.parts)
        weights = tuple(None if own is None else own[rows] for own in self.weights)
        return replace(self, values=self.values[rows], parts=parts, weights=weights)

    def with_factors(self, rows: np.ndarray, means: Mapping[str, float] | None = None) -> SeveralTargets:
        """Return the targets with the factors of the outputs, each of mean one over ``rows``.

        ``means`` are the mean weights by output, if ``rows`` are only some of those to train on.
        """
        if not self.has_factors:
            return self
        factors = []
        for weights, name in zip(self.weights, self.names, strict=True):
            if weights is None:
                factors.append(np.ones(len(self.values)))
                continue
            mean = float(weights[rows].mean()) if means is None else means[name]
            if weights.any() and not mean > 0:
                raise ValueError(f"Output {name!r}: none of the rows to train on has a positive weight.")
            # The rows of a call of partial_fit may have no label of this output, so that the mean weight is zero.
            factors.append(np.asarray(weights / mean) if mean > 0 else weights)
        values = np.column_stack([self.values, *factors])
        return replace(self, values=values, n_scores=values.shape[1])


def joined_targets(
    names: Sequence[str],
    parts: Sequence[Targets],
    weights: Sequence[np.ndarray | None],
    *,
    alike: bool | None = None,
) -> tuple[SeveralTargets, np.ndarray | None]:
    """Return the targets of several outputs as one, and the weights of the rows.

    If all outputs have the same weights, these are returned. If not, the weight is 1 for rows with a positive weight
    for some output, and 0 for all others. If the rows are only a part of the rows to train on, ``alike`` is True if all
    outputs have the same weights in the whole.
    """
    columns = [part.with_shares(np.reshape(part.values, (len(part.values), -1))) for part in parts]
    values = np.concatenate(columns, axis=1)
    if alike is None:
        alike = all(_equal(own, weights[0]) for own in weights[1:])
    joined = SeveralTargets(
        values,
        "regression",
        values.shape[1],
        names=tuple(names),
        parts=tuple(parts),
        weights=tuple(weights),
        has_factors=not alike,
    )
    if alike:
        return joined, weights[0]
    counts = np.any([np.ones(len(values), bool) if own is None else own > 0 for own in weights], axis=0)
    if not counts.any():
        raise ValueError("The sum of sample_weight is zero for every output: at least one row must have a weight.")
    return joined, None if counts.all() else counts.astype(np.float64)


def _equal(first: np.ndarray | None, second: np.ndarray | None) -> bool:
    if first is None or second is None:
        return first is second
    return np.array_equal(first, second)


def spread(targets: Targets, weights: np.ndarray | None, rows: np.ndarray, count: int) -> tuple[Targets, np.ndarray]:
    """Return the targets of ``rows`` among ``count`` rows, and the weights, which are zero for the other rows.

    The other rows get a target that every loss accepts: a positive number, the first class,
    or at positions a label that is ignored.
    """
    filler = IGNORED if targets.has_positions else int(targets.task == "regression")
    values = np.full((count, *targets.values.shape[1:]), filler, targets.values.dtype)
    values[rows] = targets.values
    every = np.zeros(count)
    every[rows] = 1.0 if weights is None else weights
    mask = targets.label_mask
    if mask is not None:
        mask = np.ones((count, *mask.shape[1:]), bool)
        mask[rows] = targets.label_mask
    shares = targets.label_shares
    if shares is not None:
        shares = np.full((count, shares.shape[1]), 1.0 / shares.shape[1])
        shares[rows] = targets.label_shares
    return replace(targets, values=values, label_mask=mask, label_shares=shares), every


# Errors about labels that cannot be classes: missing labels, and texts among numbers, which cannot be sorted.


def require_present(y: object) -> None:
    """Raise if a target among Python objects is missing, which NumPy or scikit-learn would read as NaN or text."""
    if sp.issparse(y) or (isinstance(y, np.ndarray) and y.dtype != object):  # scikit-learn checks arrays of numbers
        return
    found = _objects(y)
    if found is None:
        found = _floats(y)
    if missing := sum(map(is_missing, found)):
        raise ValueError(
            f"Input y contains NaN: it lacks {missing} of {len(found)} labels or numbers (None or NaN). Leave these "
            f"rows out, or give missing labels a label of their own. OrtGradientClassifier leaves them out by "
            f"ignore_label=float('nan')."
        )


@contextmanager
def sortable_labels(labels: object, name: str) -> Iterator[None]:
    """Describe labels that cannot be sorted in the error; Python's own message names only two types."""
    try:
        yield
    except (TypeError, ValueError) as error:
        found = None if sp.issparse(labels) else _objects(labels)
        if found and (missing := sum(map(is_missing, found))):
            raise ValueError(
                f"{name} lacks {missing} of {len(found)} labels (None or NaN): leave these rows out, or give them a "
                f"label of their own."
            ) from error
        if found and len({isinstance(label, str) for label in found}) == 2:
            kinds = sorted({type(label).__name__ for label in found})
            raise ValueError(
                f"{name} must hold texts or numbers, and not both; got {', '.join(kinds)}: make them texts with str."
            ) from error
        raise


def _objects(labels: object) -> list[object] | None:
    """Return labels that are Python objects as a list; None if they are an array of another type."""
    try:
        array = np.asarray(labels)
    except ValueError:  # rows of different lengths
        return None
    return array.ravel().tolist() if array.dtype == object else None


def _floats(labels: object) -> list[object]:
    """Return float labels as a list if one of them is NaN; else an empty list."""
    try:
        array = np.asarray(labels)
    except ValueError:
        return []
    return array.ravel().tolist() if array.dtype.kind == "f" and np.isnan(array).any() else []


def is_missing(value: object) -> bool:
    """Return True if a cell holds None, NaN, or a missing value of pandas."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


# Rows without a target, where the data are one thing: a row cannot be left out, so it gets the weight zero.


def rows_without_target(y: Any) -> np.ndarray:
    """Return the mask of the rows of which all targets are missing (NaN or None)."""
    labels: Any = y if sp.issparse(y) else np.asarray(y)
    if sp.issparse(y) or labels.ndim == 0 or labels.dtype.kind not in "fO":
        return np.zeros(np.shape(y)[:1], bool)
    if labels.dtype == object:
        missing = np.array([is_missing(one) for one in labels.ravel()], bool).reshape(labels.shape)
    else:
        missing = np.isnan(labels)
    return np.asarray(missing.reshape(len(labels), -1).all(axis=1))


def without_missing(y: Any, sample_weight: Any) -> tuple[Any, Any]:
    """Return the targets and weights with weight zero, and the target of another row, where a target is NaN or None.

    Both may be dicts by output.
    """
    if isinstance(y, Mapping):  # by output
        weights = sample_weight if isinstance(sample_weight, Mapping) else dict.fromkeys(y, sample_weight)
        found = {name: without_missing(one, weights.get(name)) for name, one in y.items()}
        return {name: one for name, (one, _) in found.items()}, {name: own for name, (_, own) in found.items()}
    rows = rows_without_target(y)
    if not rows.any():
        return y, sample_weight
    labels = np.asarray(y)
    if rows.all():
        raise ValueError("Input y contains NaN in all rows: at least one row must have a target.")
    filled = labels.copy()
    filled[rows] = labels[~rows][0]
    own = np.ones(len(labels)) if sample_weight is None else checked_weights(sample_weight, len(labels)).copy()
    own[rows] = 0.0
    return plain_labels(filled), own

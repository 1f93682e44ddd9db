"""Check X and y, and turn them into training and validation examples.

``graph_inputs`` turns X into the inputs of the graph, ``_data/targets`` encodes y, and ``TrainingRows`` splits the rows
into training rows and held-out rows. Minibatches are drawn from the result, ``Examples``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike

from .._data.batches import MERGE_LIMIT, ArrayBatches, distinct_rows, weighted_rows
from .._data.columns import InputData, dimensions
from .._data.held_out import split_rows
from .._data.inputs import has_several_inputs, input_columns
from .._data.target_scale import TargetRange, TargetScale, target_range, target_scale
from .._data.targets import (
    Classes,
    Targets,
    checked_weights,
    filled_labels,
    ignored_in,
    label_array,
    position_targets,
    require_labels,
    row_weights,
    weighted_positions,
    weights_of_classes,
    weights_of_counted,
)
from .._fitted.fitted_model import FEATURES, FittedModel, InputColumns, Specs, as_trained, table_columns
from .._given.given_output import OwnOutput
from .._given.ml_files import FittedFile
from .._inference.graph import Head
from .._model.score_axes import Positions
from .._model.trainable import TensorSpec, TrainableModel
from .._training.loss_graph import TARGET, target_layout
from .._training.step_parts import StepSettings, TrainedPositions
from .._utils.cache import with_attributes
from .._utils.typing import MatrixLike, Validation
from ..exceptions import ModelError
from ..losses import Loss, resolve_loss
from ..models import ModelSource, keywords_of, resolve_builder
from ..models.given import bare_model
from .fitted_state import Columns, FittedState
from .parameters import Parameters
from .tasks import OutputTask


@dataclass(frozen=True)
class Call:
    """The arguments of a call of ``fit`` or ``partial_fit``.

    Attributes
    ----------
    X, y, sample_weight : data
    classes : ndarray, list of ndarray or None
        All labels, if the user gives them.
    validation : tuple or None
        X, y and sample_weight of the validation data.
    resume : bool
        Whether training continues from the last call.
    one_pass : bool
        Whether to make only one pass over the rows.
    old : tuple or None
        X, y and sample_weight of old rows, for fine-tuning.
    """

    X: MatrixLike
    y: ArrayLike
    sample_weight: ArrayLike | None = None
    classes: Classes = None
    validation: Validation | None = None
    resume: bool = False
    one_pass: bool = False
    old: Validation | None = None


def together(name: str, X: Any, y: Any, sample_weight: Any) -> Validation | None:
    """Return data that belong together, such as ``X_val``, ``y_val`` and their weights; None if none are given."""
    if (X is None) != (y is None):
        raise ValueError(f"X_{name} and y_{name} belong together: give both or neither.")
    if X is None and sample_weight is not None:
        raise ValueError(f"sample_weight_{name} holds the weights of X_{name} and y_{name}: give them too.")
    return None if X is None else (X, y, sample_weight)


@dataclass(frozen=True)
class Examples:
    """Rows with their targets and weights; weights are None if all are one."""

    columns: Columns
    targets: Targets
    weights: np.ndarray | None

    def __len__(self) -> int:
        return len(self.targets.values)


def training_examples(
    estimator: Any, call: Call, source: TrainableModel | None, fitted: FittedModel | None, old: FittedState | None
) -> Examples:
    """Return the examples of a call; ``source``, the graph, is None if it is not built yet."""
    task: OutputTask = estimator._task()
    specs = expected_inputs(estimator.model, call.X) if source is None else source.inputs
    if old is None and fitted is not None:
        take_features(estimator, fitted)
    reset = old is None and (fitted is None or isinstance(fitted, FittedFile))
    columns = graph_inputs(estimator, call.X, specs, fitted, reset=reset)
    columns = columns if fitted is None else as_trained(columns, fitted, specs)
    known = call.classes if fitted is None else fitted.known_classes(call.classes, call.y)
    at_positions = old is None and fitted is None and takes_positions(task, source, call.y)
    if call.one_pass and old is None:
        require_known_labels(task, call.y, known, at_positions=at_positions)
    head, known = (None, known) if old is None else (old.head, old.head.classes)
    n_rows = len(next(iter(columns.values())))
    found = weighted_targets(task, n_rows, call.y, call.sample_weight, known, head, at_positions=at_positions)
    return Examples(columns, *found)


def require_known_labels(task: OutputTask, y: ArrayLike, classes: Classes, *, at_positions: bool) -> None:
    """Raise at the first ``partial_fit`` if the labels of later calls are unknown.

    They are known from ``classes``, or if y is an indicator matrix, which has a column for each label.
    """
    found = None if at_positions else ignored_in(y, task.ignore_label)
    if found is not None and classes is None and found[1].any():
        y = filled_labels(*found, None) if found[0].ndim == 2 else found[0][found[1]]
    require_labels(y, classes, classifies=task.classifies, at_positions=at_positions)


def validation_examples(
    estimator: Any, state: FittedState, X: MatrixLike, y: ArrayLike, sample_weight: ArrayLike | None
) -> Examples:
    """Return the validation examples, checked like the training examples."""
    columns = graph_inputs(estimator, X, state.source.inputs, state.fitted, reset=False)
    columns = columns if state.fitted is None else as_trained(columns, state.fitted, state.source.inputs)
    n_rows, head = len(next(iter(columns.values()))), state.head
    found = weighted_targets(estimator._task(), n_rows, y, sample_weight, head.classes, head, at_positions=False)
    return Examples(columns, *found)


def weighted_targets(
    task: OutputTask,
    n_rows: int,
    y: ArrayLike,
    sample_weight: ArrayLike | None,
    classes: Classes,
    head: Head | None,
    *,
    at_positions: bool,
) -> tuple[Targets, np.ndarray | None]:
    """Return checked targets of ``n_rows`` rows, and their weights, which are None if all are one.

    Targets must match ``head``, the head of the first call; it is None in the first call itself.
    """
    if at_positions or (head is not None and head.positions is not None):
        targets = position_targets(y, classes, task.ignore_label)
        _require_rows(n_rows, targets)
        return weighted_positions(targets, sample_weight, task.class_weight)
    targets = task.encode(y, classes)
    _require_rows(n_rows, targets)
    if head is not None:
        _require_like(targets, head)
    if targets.counts is not None:
        return targets, weights_of_counted(targets, sample_weight, task.class_weight)
    return targets, row_weights(sample_weight, targets, task.class_weight)


def balanced_weights(task: OutputTask, sample_weight: ArrayLike | None, targets: Targets) -> tuple[float, ...] | None:
    """Return the weight of each class by ``class_weight="balanced"``.

    None if it is not set, or if rows have several labels.
    """
    one_label = isinstance(targets.classes, np.ndarray) and targets.values.ndim == 1
    if task.class_weight != "balanced" or not one_label:
        return None
    weights = checked_weights(sample_weight, len(targets.values)) * (1.0 if targets.counts is None else targets.counts)
    return tuple(weights_of_classes("balanced", targets.classes, targets.values, weights).tolist())


def trained_positions(head: Head, targets: Targets) -> TrainedPositions | None:
    """Return a training step's description of the labels at positions; None if y has no labels at positions."""
    if head.positions is None or targets.label_weights is None:
        return None
    return TrainedPositions(head.positions, targets.row_shape, tuple(targets.label_weights.tolist()))


def ignoring(settings: StepSettings, targets: Targets) -> StepSettings:
    """Return the settings, with ``ignores=True`` if the targets have labels that do not count in the loss."""
    return with_attributes(settings, ignores=True) if targets.lacks_labels and not settings.ignores else settings


def batches_for(
    state: FittedState,
    examples: Examples,
    rows: np.ndarray,
    size: int,
    *,
    shuffle: bool,
    drop_last: bool = False,
    rows_meet: bool = False,
) -> ArrayBatches:
    """Return the minibatches of these rows; the target is one of their columns.

    If few rows make a single minibatch, equal rows are merged into one with the sum of their weights. They are not
    merged with ``rows_meet`` (the result of a row depends on the others of its minibatch), where their number matters.
    """
    examples = scaled(examples, state.head.target_scale)
    values, weights = examples.targets.values, examples.weights
    positions, number_type = trained_positions(state.head, examples.targets), state.parameters.buffer.dtype
    shape, dtype = target_layout(state.head.task, state.head.n_outputs, len(values), number_type, positions)
    every = {**examples.columns, TARGET: InputData(values.reshape(shape), dtype)}
    n_rows = len(rows)
    fits = n_rows <= min(size, MERGE_LIMIT) and not rows_meet
    rows, weights = distinct_rows(every, rows, weights) if fits else weighted_rows(rows, weights)
    return ArrayBatches(every, rows, weights, size, state.rng if shuffle else None, n_rows=n_rows, drop_last=drop_last)


def scaled(examples: Examples, scale: TargetScale | None) -> Examples:
    """Return the examples with scaled targets."""
    if scale is None:
        return examples
    targets = examples.targets
    return replace(examples, targets=replace(targets, values=scale.scaled(targets.values)))


def scaled_values(state: FittedState, targets: Targets) -> np.ndarray:
    """Return the targets in the units in which the graph is trained."""
    scale, values = state.head.target_scale, targets.values
    return values if scale is None else scale.scaled(values)


def _require_rows(n_rows: int, targets: Targets) -> None:
    """Raise if the number of targets differs from the number of rows."""
    n_targets = len(targets.values)
    if n_rows != n_targets:
        raise ValueError(
            f"Found input variables with inconsistent numbers of samples: X has {n_rows}, y has {n_targets}."
        )


def _require_like(targets: Targets, head: Head) -> None:
    """Raise if the number of outputs, or one against several labels per row, differs from the first call."""
    if targets.task == "regression" and targets.row_shape != head.row_shape:
        shapes = [("n", *(shape or [head.n_outputs])) for shape in (targets.row_shape, head.row_shape)]
        raise ValueError(f"y has shape {shapes[0]}, expected {shapes[1]}, as when training began.")
    if targets.task == "regression" and targets.n_outputs != head.n_outputs:
        raise ValueError(f"y has {targets.n_outputs} output(s), expected {head.n_outputs}.")
    if (targets.task == "multilabel") != (head.task == "multilabel"):
        expected = "indicators of several labels a row" if head.task == "multilabel" else "one label a row"
        raise ValueError(f"y does not hold {expected}, as it did when training began.")


# The training rows and the held-out rows of a call, with the scale and the range of their targets.


class TrainingRows:
    """The split of the rows of a call, drawn on first use, and the scale of the targets.

    Parameters
    ----------
    estimator : BaseOrtGradient
    call : Call
    old : FittedState or None
        The state that the call continues. Its targets keep their scale.
    rng : numpy.random.RandomState
        Draws the rows that are held out.
    """

    def __init__(self, estimator: Parameters, call: Call, old: FittedState | None, rng: np.random.RandomState) -> None:
        self._estimator, self._call, self._rng = estimator, call, rng
        self._head = None if old is None else old.head
        self.scale: TargetScale | None = None if self._head is None else self._head.target_scale
        self._split: tuple[np.ndarray, np.ndarray | None] | None = None

    def split(self, examples: Examples) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the training rows and the rows held out for early stopping; the first call draws them.

        Rows of weight zero are in neither.
        """
        if self._split is None:
            weights, estimator, call = examples.weights, self._estimator, self._call
            rows = np.arange(len(examples)) if weights is None else np.flatnonzero(weights)
            if not estimator.early_stopping or call.validation is not None or call.one_pass:
                self._split = rows, None
            else:
                fraction = float(estimator.validation_fraction)
                self._split = split_rows(rows, examples.targets, fraction, self._rng)
        return self._split

    def choose_scale(self, examples: Examples) -> None:
        """Choose the target scaling for the graph of a builder."""
        estimator, builder = self._estimator, resolve_builder(self._estimator.model)
        if getattr(estimator, "target_scaling", None) is None or not getattr(builder, "scales_targets", False):
            return
        loss = resolve_loss(estimator.loss)
        loss.check_targets(examples.targets.values)
        rows, centered = self.split(examples)[0], getattr(builder, "fit_intercept", True)
        self.scale = target_scale(loss.target_scaling, examples.targets, rows, examples.weights, centered=centered)

    def require_same_units(self, loss: Loss) -> None:
        """Raise if an earlier call scaled the targets in a way that the current loss does not support."""
        if self.scale is not None and loss.target_scaling != self.scale.method:
            raise ModelError(
                f"The targets were scaled for another loss when training began, and {type(loss).__name__} cannot take "
                f"them so. Call fit with warm_start=False, or begin with target_scaling=None."
            )

    def target_range(self, examples: Examples) -> TargetRange | None:
        """Return the range of all targets trained on so far, including this call; None except in regression."""
        if examples.targets.task != "regression":
            return None
        earlier = None if self._head is None else self._head.target_range
        values = examples.targets.values[self.split(examples)[0]]
        clips = bool(getattr(self._estimator, "clip_predictions", False))
        shifts = getattr(resolve_builder(self._estimator.model), "fit_intercept", True)
        return target_range(earlier, values, clips=clips, holds_constants=shifts and self.scale is not None)


# Convert data to graph inputs, with scikit-learn's checks: features, feature names, missing values.


def graph_inputs(
    estimator: Any, X: MatrixLike, specs: Specs, fitted: FittedModel | None, *, reset: bool
) -> InputColumns:
    """Return the data as the graph's inputs; ``specs``, its inputs, is None if the graph is not built yet.

    ``reset`` sets the estimator's feature attributes from X; without it, X is checked against them.
    """
    if fitted is not None and fitted.table is not None:
        return table_columns(estimator, X, fitted)
    if fitted is not None and has_several_inputs(X):
        raise TypeError("A fitted scikit-learn model takes X as it was fitted, got a dict of arrays.")
    if reset:
        _forget_features(estimator)
    return input_columns(estimator, X, specs, reset=reset, missing=partial(_allows_missing, estimator, fitted))


def expected_inputs(model: ModelSource, X: MatrixLike) -> Specs:
    """Return the input of a graph to build if its rows have several axes and the builder accepts them, else None."""
    builder = resolve_builder(model)
    if builder is None or "row_shape" not in keywords_of(builder) or dimensions(X) <= 2:
        return None
    return (TensorSpec("X", np.dtype(np.float32), (None,) * dimensions(X)),)


def take_features(estimator: Parameters, fitted: FittedModel) -> None:
    """Copy the features of the fitted model to the estimator, so that data are checked against them."""
    _forget_features(estimator)
    vars(estimator).update(fitted.features)


def _forget_features(estimator: Parameters) -> None:
    for name in FEATURES:
        vars(estimator).pop(name, None)


def _allows_missing(estimator: Any, fitted: FittedModel | None) -> bool:
    allowed: bool = estimator.__sklearn_tags__().input_tags.allow_nan
    return fitted.allows_missing if isinstance(fitted, FittedFile) else allowed


def require_numbers(estimator: Parameters, state: FittedState, columns: Mapping[str, InputData]) -> None:
    """Raise if the graph predicts NaN for a row with a missing value.

    In this case a step of the pipeline accepts missing values, and a later one does not.
    """
    if state.fitted is None or state.fitted.table is not None or not _allows_missing(estimator, state.fitted):
        return
    rows = np.unique(np.concatenate([column.rows_with_missing() for column in columns.values()]))
    if len(rows) and np.isnan(state.predictor(columns, with_scores=True).run(columns, rows, output=-1)).any():
        raise ValueError(
            f"Input X contains NaN in columns in which {type(bare_model(estimator.model)).__name__} accepts no missing "
            f"values. Fill them in first, for instance with a SimpleImputer."
        )


def predictions_on(estimator: Parameters, state: FittedState, rows: MatrixLike) -> dict[str, np.ndarray]:
    """Return the predictions of the graph for some rows, by scikit-learn method."""
    return state.predictions(graph_inputs(estimator, rows, state.source.inputs, state.fitted, reset=False))


# Labels at each position of a row: recognize them in ``y``, and find the axis of the scores that holds the classes.


def takes_positions(task: OutputTask, source: TrainableModel | None, y: ArrayLike) -> bool:
    """Return True if ``y`` has a label at each position.

    It does if ``class_axis`` is set. Otherwise a matrix does if the scores of a row have several axes; else its columns
    are several labels of a row.
    """
    if not task.classifies or sp.issparse(y):
        return False
    axis = task.class_axis
    if axis != "auto":
        return True
    axes = _axes(y)
    if axes != 2 or source is None:
        return axes > 2
    row = source.output_row
    long = [size for size in row if size != 1]
    return len(long) > 1 or (len(row) == 2 and len(long) == 1 and _is_at(long[0], label_array(y)))


def _is_at(places: int | None, labels: np.ndarray) -> bool:
    """Return True if ``labels`` has one label for each score of a row; ``places`` is their number, None if it varies.

    A matrix of only 0 and 1 holds indicators instead.
    """
    return labels.shape[1] > 1 and places in (None, labels.shape[1]) and not np.isin(labels, (0, 1)).all()


def _axes(y: ArrayLike) -> int:
    """Return the number of axes; 2 if the rows of a list differ in length."""
    if isinstance(y, list | tuple) and (not y or isinstance(y[0], str | bytes | int | float)):
        return 1  # without a copy
    shape = getattr(y, "shape", None)
    try:
        return np.asarray(y).ndim if shape is None else len(shape)
    except ValueError:
        return 2


def positions_of(own: OwnOutput | None, source: TrainableModel, targets: Targets, setting: int | str) -> Positions:
    """Return the axes of the scores.

    Raise ValueError if they do not fit the labels, or if both the first and the last axis could hold the classes.
    """
    if own is None:
        raise ValueError(
            f"y has a label at each of {targets.row_shape} positions, for which the graph must have scores: give an "
            f"ONNX graph, or a builder of your own."
        )
    row, places, declared = own.row_shape, targets.row_shape, source.output_row
    ends = {axis: rest for axis, rest in ((-1, row[:-1]), (1, row[1:])) if setting in ("auto", axis)}
    fitting = [axis for axis, rest in ends.items() if rest == places]
    if len(fitting) > 1 and len(declared) == len(row):  # an axis of unknown size cannot hold the classes
        fitting = [axis for axis in fitting if declared[min(axis, 0)] is not None] or fitting
    if row == places:
        return Positions(len(places), -1)
    if len(fitting) == 1:
        return Positions(len(places), fitting[0])
    shape = ("n", *row)
    if fitting:
        raise ValueError(
            f"The graph's output {own.name!r} has shape {shape}: both its first axis after the rows and its last axis "
            f"could hold the classes. Choose one by model=GraphModel(..., class_axis=1) or class_axis=-1."
        )
    raise ValueError(
        f"The graph's output {own.name!r} has shape {shape}, but y has shape {('n', *places)}: labels at positions "
        f"need scores of shape {('n', *places, 'k')} or {('n', 'k', *places)}."
    )

"""Training and validation examples: rows as graph inputs, with targets and weights, checked for consistency."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import is_classifier

from .._data.batches import MERGE_LIMIT, Batches, distinct_rows, weighted_rows
from .._data.columns import Column
from .._data.ignored_labels import filled_labels, ignored_in, weights_of_counted
from .._data.positions import position_targets, weighted_positions
from .._data.target_scale import TargetScale
from .._data.targets import Classes, Targets, checked_weights, require_labels, row_weights, weights_of_classes
from .._fitted.encoding import as_trained
from .._fitted.model import FittedModel
from .._given.ml_files import FittedFile
from .._graph.trainable import TrainableModel
from .._inference.head import Head
from .._support.frozen import with_attributes
from .._support.typing import MatrixLike, Validation
from .._training.loss_graph import TARGET, StepSettings, TrainedPositions, target_layout
from .class_axis import takes_positions
from .graph_inputs import expected_inputs, graph_inputs, take_features
from .run import Columns, Run


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


GivenRows: TypeAlias = "tuple[MatrixLike | None, ArrayLike | None, ArrayLike | None]"


@dataclass(frozen=True)
class FitRows:
    """The arguments of ``fit``: X, y and sample_weight of the training, the validation and the old rows."""

    training: tuple[MatrixLike, ArrayLike, ArrayLike | None]
    validation: GivenRows
    old: GivenRows

    def call(self, classes: Classes, *, resume: bool) -> Call:
        """Return the call; ValueError if ``X`` and ``y`` of a part are not given together, or weights without them."""
        validation, old = _together(self.validation, "val"), _together(self.old, "old")
        return Call(*self.training, classes, validation, resume=resume, old=old)


def _together(rows: GivenRows, suffix: str) -> Validation | None:
    if (rows[0] is None) != (rows[1] is None):
        raise ValueError(f"X_{suffix} and y_{suffix} belong together: give both or neither.")
    if rows[0] is None and rows[2] is not None:
        raise ValueError(f"sample_weight_{suffix} holds the weights of X_{suffix} and y_{suffix}: give them too.")
    return None if rows[0] is None or rows[1] is None else (rows[0], rows[1], rows[2])


@dataclass(frozen=True)
class Examples:
    """Rows with their targets and weights; weights are None if all are one."""

    columns: Columns
    targets: Targets
    weights: np.ndarray | None

    def __len__(self) -> int:
        return len(self.targets.values)


def training_examples(
    estimator: Any, call: Call, source: TrainableModel | None, fitted: FittedModel | None, old: Run | None
) -> Examples:
    """Return the examples of a call; ``source`` is None if the graph is not built yet."""
    specs = expected_inputs(estimator.model, call.X) if source is None else source.inputs
    if old is None and fitted is not None:
        take_features(estimator, fitted)
    reset = old is None and (fitted is None or isinstance(fitted, FittedFile))
    columns = as_trained(graph_inputs(estimator, call.X, specs, fitted, reset=reset), fitted, specs)
    known = call.classes if fitted is None else fitted.known_classes(call.classes, call.y)
    at_positions = old is None and fitted is None and takes_positions(estimator, source, call.y)
    if call.one_pass and old is None:
        require_known_labels(estimator, call.y, known, at_positions=at_positions)
    if old is not None:
        return _checked(estimator, columns, call.y, call.sample_weight, old.head.classes, old.head)
    return _checked(estimator, columns, call.y, call.sample_weight, known, None, at_positions=at_positions)


def require_known_labels(estimator: Any, y: ArrayLike, classes: Classes, *, at_positions: bool) -> None:
    """Raise at the first of several passes where nothing says which labels later ones will bring."""
    found = None if at_positions else ignored_in(y, getattr(estimator, "ignore_label", None))
    if found is not None and classes is None and found[1].any():
        y = filled_labels(*found, None) if found[0].ndim == 2 else found[0][found[1]]
    require_labels(y, classes, classifies=is_classifier(estimator), at_positions=at_positions)


def validation_examples(
    estimator: Any, run: Run, X: MatrixLike, y: ArrayLike, sample_weight: ArrayLike | None
) -> Examples:
    """Return the validation examples, checked like the training examples."""
    columns = graph_inputs(estimator, X, run.source.inputs, run.fitted, reset=False)
    columns = as_trained(columns, run.fitted, run.source.inputs)
    return _checked(estimator, columns, y, sample_weight, run.head.classes, run.head)


def _checked(
    estimator: Any,
    columns: Columns,
    y: ArrayLike,
    sample_weight: ArrayLike | None,
    classes: Classes,
    head: Head | None,
    *,
    at_positions: bool = False,
) -> Examples:
    """Return checked examples; targets must match ``head``, the head of the first call."""
    n_rows = len(next(iter(columns.values())))
    found = weighted_targets(estimator, n_rows, y, sample_weight, classes, head, at_positions=at_positions)
    return Examples(columns, *found)


def weighted_targets(
    estimator: Any,
    n_rows: int,
    y: ArrayLike,
    sample_weight: ArrayLike | None,
    classes: Classes,
    head: Head | None,
    *,
    at_positions: bool,
) -> tuple[Targets, np.ndarray | None]:
    """Return checked targets of ``n_rows`` rows and their weights; None: all are one."""
    if at_positions or (head is not None and head.positions is not None):
        targets = position_targets(y, classes, estimator.ignore_label)
        _require_rows(n_rows, targets)
        return weighted_positions(targets, sample_weight, estimator.class_weight)
    targets = estimator._encode(y, classes)
    _require_rows(n_rows, targets)
    if head is not None:
        _require_like(targets, head)
    if targets.counts is not None:
        return targets, weights_of_counted(targets, sample_weight, estimator.class_weight)
    return targets, row_weights(sample_weight, targets, getattr(estimator, "class_weight", None))


def balanced_weights(estimator: Any, sample_weight: ArrayLike | None, targets: Targets) -> tuple[float, ...] | None:
    """Return the weight of each class of ``class_weight="balanced"``, where each row has one label."""
    one_label = isinstance(targets.classes, np.ndarray) and targets.values.ndim == 1
    if getattr(estimator, "class_weight", None) != "balanced" or not one_label:
        return None
    weights = checked_weights(sample_weight, len(targets.values)) * (1.0 if targets.counts is None else targets.counts)
    return tuple(weights_of_classes("balanced", targets.classes, targets.values, weights).tolist())


def trained_positions(head: Head, targets: Targets) -> TrainedPositions | None:
    """Return what a training step needs to know of the positions that have labels, if they have."""
    if head.positions is None or targets.label_weights is None:
        return None
    return TrainedPositions(head.positions, targets.row_shape, tuple(targets.label_weights.tolist()))


def ignoring(settings: StepSettings, targets: Targets) -> StepSettings:
    """Return settings whose loss leaves out labels of rows, where these targets have some that do not count."""
    return with_attributes(settings, ignores=True) if targets.lacks_labels and not settings.ignores else settings


def batches_for(
    run: Run,
    examples: Examples,
    rows: np.ndarray,
    size: int,
    *,
    shuffle: bool,
    drop_last: bool = False,
    rows_meet: bool = False,
) -> Batches:
    """Return the minibatches of these rows; the target is one of their columns.

    Equal rows of a single minibatch are merged to one of their weight, unless ``rows_meet``: each of them counts then.
    """
    examples = scaled(examples, run.head.target_scale)
    values, weights = examples.targets.values, examples.weights
    positions, number_type = trained_positions(run.head, examples.targets), run.parameters.buffer.dtype
    shape, dtype = target_layout(run.head.task, run.head.n_outputs, len(values), number_type, positions)
    every = {**examples.columns, TARGET: Column(values.reshape(shape), dtype)}
    n_rows = len(rows)
    fits = n_rows <= min(size, MERGE_LIMIT) and not rows_meet
    rows, weights = distinct_rows(every, rows, weights) if fits else weighted_rows(rows, weights)
    return Batches(every, rows, weights, size, run.rng if shuffle else None, n_rows=n_rows, drop_last=drop_last)


def scaled(examples: Examples, scale: TargetScale | None) -> Examples:
    """Return the examples with scaled targets."""
    if scale is None:
        return examples
    targets = examples.targets
    return replace(examples, targets=replace(targets, values=scale.scaled(targets.values)))


def scaled_values(run: Run, targets: Targets) -> np.ndarray:
    """Return the targets in the units that are trained."""
    scale, values = run.head.target_scale, targets.values
    return values if scale is None else scale.scaled(values)


def _require_rows(n_rows: int, targets: Targets) -> None:
    """Raise if the number of targets differs from the number of rows."""
    n_targets = len(targets.values)
    if n_rows != n_targets:
        raise ValueError(
            f"Found input variables with inconsistent numbers of samples: X has {n_rows}, y has {n_targets}."
        )


def _require_like(targets: Targets, head: Head) -> None:
    """Raise if later targets differ from the first ones in number, or in having one or several labels per row."""
    if targets.task == "regression" and targets.row_shape != head.row_shape:
        shapes = [("n", *(shape or [head.n_outputs])) for shape in (targets.row_shape, head.row_shape)]
        raise ValueError(f"y has shape {shapes[0]}, expected {shapes[1]}, as when training began.")
    if targets.task == "regression" and targets.n_outputs != head.n_outputs:
        raise ValueError(f"y has {targets.n_outputs} output(s), expected {head.n_outputs}.")
    if (targets.task == "multilabel") != (head.task == "multilabel"):
        expected = "indicators of several labels a row" if head.task == "multilabel" else "one label a row"
        raise ValueError(f"y does not hold {expected}, as it did when training began.")

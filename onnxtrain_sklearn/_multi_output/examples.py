"""Training and validation examples for several outputs: the rows with the targets and the weights of each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import is_classifier

from .._data.ignored_labels import IGNORED
from .._data.several_targets import SeveralTargets, joined_targets, spread
from .._data.targets import Classes, Targets, checked_weights, require_sorted, sorted_classes
from .._estimators.class_axis import takes_positions
from .._estimators.examples import Call, Examples, balanced_weights, require_known_labels, weighted_targets
from .._estimators.graph_inputs import graph_inputs
from .._estimators.parameters import Parameters
from .._estimators.run import Run
from .._estimators.scoring import rows_of
from .._fitted.model import listed
from .._graph.links import Task
from .._graph.trainable import TrainableModel
from .._inference.head import Head
from .._support.typing import MatrixLike
from ..exceptions import nearest
from .single_estimators import OutputEstimator, by_output, naming, weights_by_output

Singles = Mapping[str, OutputEstimator]


def several_examples(
    estimator: Parameters, singles: Singles, call: Call, source: TrainableModel, old: Run | None
) -> Examples:
    """Return the examples of a call; the factors of the targets are yet to be made, for the rows to train on."""
    columns = graph_inputs(estimator, call.X, source.inputs, None, reset=old is None)
    n_rows, y = len(next(iter(columns.values()))), by_output(call.y, singles, "y")
    _require_outputs_with_labels(call.classes, singles)
    weights, known = weights_by_output(call.sample_weight, singles), dict[str, Any](call.classes or {})  # type: ignore[arg-type]
    heads = dict(zip(singles, [None] * len(singles) if old is None else old.head.parts, strict=True))
    found = []
    for view, (name, single) in zip(source.views, singles.items(), strict=True):
        with naming(name):
            head, classes = heads[name], known.get(name)
            at_positions = head is None and takes_positions(single, view, y[name])
            if call.one_pass and head is None:
                require_known_labels(single, y[name], classes, at_positions=at_positions)
            classes = _known_classes(classes, head)
            found.append(
                _targets_of_output(
                    single,
                    n_rows,
                    y[name],
                    weights[name],
                    classes,
                    head,
                    at_positions=at_positions,
                    may_lack_labels=call.one_pass,
                )
            )
    return Examples(columns, *joined_targets(list(singles), *zip(*found, strict=True)))


def _require_outputs_with_labels(classes: object, singles: Singles) -> None:
    """Raise if ``classes`` are not labels of outputs that have some."""
    if classes is None:
        return
    if not isinstance(classes, Mapping):
        raise TypeError(f"classes must be a dict of labels by output, got {type(classes).__name__}.")
    for name in classes:
        if name not in singles or not is_classifier(singles[name]):
            names = [known for known, single in singles.items() if is_classifier(single)]
            raise ValueError(f"classes names {name!r}, which is no output with labels.{nearest(str(name), names)}")


def _known_classes(classes: np.ndarray | None, head: Head | None) -> Classes:
    """Return the labels that are known of an output, sorted; those that a user names must be those of earlier calls."""
    given = None if classes is None else sorted_classes(classes)
    if given is not None:
        require_sorted(classes, given)
    if head is None:
        return given
    if given is not None and listed(given) != listed(head.classes):
        raise ValueError(f"classes={listed(given)} is not the same as on the last call, {listed(head.classes)}.")
    return head.classes


def _targets_of_output(
    single: OutputEstimator,
    n_rows: int,
    y: np.ndarray,
    sample_weight: ArrayLike | None,
    classes: Classes,
    head: Head | None,
    *,
    at_positions: bool = False,
    may_lack_labels: bool = False,
) -> tuple[Targets, np.ndarray | None]:
    """Return the targets of one output and the weights of the rows; targets of rows of weight zero are not read."""
    weights = None if sample_weight is None else checked_weights(sample_weight, n_rows)
    if may_lack_labels and weights is not None and not weights.any() and head is not None:
        return _no_targets(head, n_rows, np.shape(y)[1:]), weights
    rows = None if weights is None or weights.all() or not weights.any() else np.flatnonzero(weights)
    if rows is None or weights is None or len(y) != n_rows:
        return weighted_targets(single, n_rows, y, weights, classes, head, at_positions=at_positions)
    found = weighted_targets(
        single, len(rows), rows_of(y, rows), weights[rows], classes, head, at_positions=at_positions
    )
    return spread(*found, rows, n_rows)


def _no_targets(head: Head, n_rows: int, places: tuple[int, ...]) -> Targets:
    """Return targets for rows none of which has a label for the output."""
    if head.positions is not None:
        classes: Any = head.classes
        values = np.full((n_rows, math.prod(places)), IGNORED, np.int64)
        many = len(classes) > 2
        task: Task = "multiclass" if many else "binary"
        return Targets(values, task, len(classes) if many else 1, classes, places, np.ones(len(classes)))
    if head.task in ("binary", "multiclass"):
        two = head.classes is not None and len(head.classes) == 2
        count = 1 if two else head.n_outputs
        return Targets(np.zeros(n_rows, np.int64), "binary" if two else "multiclass", count, head.classes)
    return Targets(np.zeros((n_rows, head.n_outputs)), head.task, head.n_outputs, head.classes, head.row_shape)


def several_validation_examples(
    estimator: Parameters, singles: Singles, run: Run, X: MatrixLike, y: MatrixLike, sample_weight: Any
) -> Examples:
    """Return the validation examples, checked like the training examples."""
    columns = graph_inputs(estimator, X, run.source.inputs, None, reset=False)
    n_rows, found = len(next(iter(columns.values()))), []
    y, weights = by_output(y, singles, "y"), weights_by_output(sample_weight, singles)
    for head, (name, single) in zip(run.head.parts, singles.items(), strict=True):
        with naming(name):
            found.append(_targets_of_output(single, n_rows, y[name], weights[name], head.classes, head))
    return Examples(columns, *joined_targets(list(singles), *zip(*found, strict=True)))


def balanced_outputs(singles: Singles, call: Call, examples: Examples) -> tuple[tuple[float, ...] | None, ...]:
    """Return the weights of the classes that ``class_weight="balanced"`` comes to, for each output; None for others."""
    assert isinstance(examples.targets, SeveralTargets)
    weights = weights_by_output(call.sample_weight, singles)
    each = zip(singles.items(), examples.targets.parts, strict=True)
    return tuple(balanced_weights(single, weights[name], part) for (name, single), part in each)


def with_factors(examples: Examples, rows: np.ndarray) -> Examples:
    """Return the examples with the factors of their targets, for these rows to train on."""
    assert isinstance(examples.targets, SeveralTargets)
    return replace(examples, targets=examples.targets.with_factors(rows))

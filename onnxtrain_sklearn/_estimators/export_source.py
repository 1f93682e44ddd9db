"""What the training graphs of an estimator are made from: its run and its current parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone

from .._data.targets import weights_of_classes
from .._export.manifest import component_fact, json_value
from .._export.source import ExportSource, OutputSource
from .._fitted.table_graph import encoding_graph
from .._inference.head import Head
from .._support.typing import MatrixLike
from .._training.base_step import StepParts
from .._training.dropout import draws_numbers
from .._training.loop import TrainerSettings
from .._training.loss_graph import StepSettings, TrainedPositions
from .._training.meeting_rows import outputs_that_meet
from .._training.total_loss import TotalLoss
from ..exceptions import ModelError, instead_of
from ..schedules import resolve_schedule
from .built_in import constants_of
from .examples import FitRows
from .head_choice import loss_of
from .run import Run
from .settings import batch_limit, trainer_settings
from .step_settings import settings_with_graph, settings_with_head

SCHEDULE_PARAMETERS = ("learning_rate", "weight_decay_schedule", "dropout_schedule")
FACTS = ("learning_rate_init", "shuffle", "drop_last", "accumulate", "max_iter", "random_state")
"""Parameters of the estimator that the graphs do not hold and a loop may want."""


def export_source(
    estimator: Any, run: Run, batch_size: int | None, target: str = "any", outputs: tuple[OutputSource, ...] = ()
) -> ExportSource:
    """Return the source of training graphs that go on as ``partial_fit`` would; ``outputs``: of several trained."""
    loop = trainer_settings(estimator)
    total = TotalLoss(tuple(one.loss for one in outputs), has_factors=True) if outputs else None
    settings = _step_settings(estimator, run, loop, total)
    parameters = run.parameters
    if parameters.averages != (settings.ema_decay is not None):
        parameters = parameters.with_averages(settings.ema_decay is not None)
    rows = loop.accumulate * batch_limit(estimator.batch_size, settings.optimizer)
    rows = rows if batch_size is None else _checked_batch(batch_size)
    facts = {
        "generator": "onnxtrain-sklearn",
        "estimator": type(estimator).__name__,
        **{name: component_fact(resolve_schedule(getattr(estimator, name), name)) for name in SCHEDULE_PARAMETERS},
        "progress": dict(vars(run.history.progress)),
        "hyperparameters": {name: json_value(getattr(estimator, name)) for name in FACTS},
        "constants": constants_of(run),
    }
    parts = StepParts(run.model, settings, parameters, run.frozen, run.state, rows, run.sparse)
    if found := outputs_that_meet(run.model, settings):
        raise ModelError(
            f"Output {found[0]!r}: rows meet in its loss. In training graphs of several outputs, rows without a label "
            f"for an output would meet those with one: train it in Python, or take a loss of single rows."
        )
    minibatches = _separate_minibatches(parts, loop.accumulate)
    ignored = None if run.head.positions is None else getattr(estimator, "ignore_label", None)
    weights = None if outputs else exported_class_weights(estimator, run.head, run.balanced)
    table = None if run.fitted is None else run.fitted.parts
    front = None if table is None else encoding_graph(table)
    return ExportSource(parts, run.head, facts, weights, ignored, target, outputs, front, minibatches)


def _step_settings(estimator: Any, run: Run, loop: TrainerSettings, total: TotalLoss | None) -> StepSettings:
    """Return the settings of a step on all rows of its minibatches."""
    loss = loss_of(estimator, run.fitted, run.source) if total is None else total
    positions = _trained_positions(run)
    found = settings_with_head(estimator, loss, run.head, run.device, "portable", run.seed, positions)
    found = replace(found, session_options=None, accumulate=1)
    found = found if total is None else replace(found, n_outputs=total.width)
    return settings_with_graph(estimator, found, run.source, loop.scheduled)


def _checked_batch(batch_size: object) -> int:
    if isinstance(batch_size, bool) or not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise ValueError(f"batch_size must be an int of at least 1, or None, {instead_of(batch_size)}.")
    return int(batch_size)


def _separate_minibatches(parts: StepParts, accumulate: int) -> int:
    """Return how many minibatches are passes of their own: where rows meet, or each draws numbers.

    Rows that are no whole number of minibatches are no step of the estimator: they are one minibatch.
    """
    rows = parts.batch
    if parts.meeting is not None:
        if rows % accumulate:
            raise ValueError(
                f"batch_size must be a multiple of {accumulate}, got {rows}: a step takes the rows of all accumulate="
                f"{accumulate} minibatches, and rows meet within each of them ({parts.meeting})."
            )
        return accumulate
    return accumulate if draws_numbers(parts.model.model) and not rows % accumulate else 1


def exported_class_weights(estimator: Any, head: Head, balanced: tuple[float, ...] | None) -> tuple[float, ...] | None:
    """Return the weight of each class; labels at positions have theirs in the loss."""
    given, classes = getattr(estimator, "class_weight", None), head.classes
    if given is None or head.positions is not None:
        return None
    if head.task not in ("binary", "multiclass") or isinstance(classes, list):
        raise ModelError(
            "Training graphs weigh rows by one label, and these have several: set class_weight=None, and multiply the "
            "weights into sample_weight (sklearn.utils.class_weight.compute_sample_weight)."
        )
    if isinstance(given, str):
        return _required_balance(balanced)
    return tuple(weights_of_classes(given, classes, np.zeros(0, np.int64), np.ones(0)).tolist())


def _required_balance(balanced: tuple[float, ...] | None) -> tuple[float, ...]:
    if balanced is None:
        raise ModelError(
            "Training graphs hold the weight of each class, and class_weight='balanced' takes them from the rows of a "
            "fit, which this estimator was not fitted with: call fit again, or give a dict, such as "
            "sklearn.utils.class_weight.compute_class_weight makes."
        )
    return balanced


def _trained_positions(run: Run) -> TrainedPositions | None:
    if run.head.positions is None:
        return None
    return settings_of_step(run).positions


def settings_of_step(run: Run) -> StepSettings:
    """Return the settings of the last call, which know how many labels a row has."""
    settings: StepSettings | None = getattr(run.step, "settings", None)
    if settings is None:
        raise ModelError(
            "The number of labels in a row is not known after loading a pickle. Call partial_fit on some rows first."
        )
    return settings


def untrained_run(estimator: Any, X: MatrixLike, y: MatrixLike) -> Run:
    """Return the run that a fit of a copy of ``estimator`` would begin from."""
    twin = clone(estimator)
    rows = (X, cast("ArrayLike", y), None)
    run, _ = twin._prepare(FitRows(rows, (None, None, None), (None, None, None)).call(None, resume=False))
    prepared: Run = run
    return prepared

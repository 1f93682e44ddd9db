"""Training for ``train``: preprocessing, estimator, fit, for each kind of model."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone

from .._data.text_columns import WARNINGS
from .._estimators.classifier import OrtGradientClassifier
from .._estimators.regressor import OrtGradientRegressor
from .._recipes.base import BaseRecipe
from ..models import Linear
from .command import UsageError
from .console import Console
from .continuation import continue_training
from .progress import epochs_shown
from .settings import apply_settings
from .sources import RECIPES, ModelOption, fitted_columns, is_classifier_option
from .table_pipeline import train_table_pipeline
from .tables import MISSING_TEXT, TableTask, as_numbers_and_text, text_columns, warn_of_row_names
from .trained import Rows, Trained

if TYPE_CHECKING:
    import pandas

LINEAR_STEPS: dict[str, object] = {"learning_rate_init": 0.05, "learning_rate": "cosine"}
"""Settings of the linear model: at the rate of networks its weights are half way after the default number of epochs."""

OF_STEPS = {*LINEAR_STEPS, "optimizer"}
"""Parameters that say how far a step goes; those who set one set all."""


def train_source(
    source: ModelOption,
    task: TableTask,
    rows: Rows,
    validation: Rows | None,
    settings: Mapping[str, object],
    *,
    seed: int,
    console: Console,
) -> Trained:
    """Fit what ``--model`` names to the rows."""
    if source.kind == "recipe" or isinstance(source.model, BaseRecipe):
        return _train_recipe(source, task, rows, validation, settings, seed=seed, console=console)
    if source.kind == "own":
        return continue_training(source, rows, validation, settings, console)
    estimator = _estimator(source, task, settings, seed, validation)
    if source.kind == "builder":
        return train_table_pipeline(estimator, rows, validation, console)
    prepare, columns = fitted_columns(source, rows.frame) if source.kind == "fitted" else _graph_columns(rows.frame)
    held = {} if validation is None else {"X_val": prepare(validation.frame), "y_val": validation.y}
    with epochs_shown(estimator, console):
        estimator.fit(prepare(rows.frame), rows.y, **held)
    missing = "nan" if source.kind == "fitted" else MISSING_TEXT
    return Trained(estimator, estimator, prepare, columns, missing)


def _estimator(
    source: ModelOption, task: TableTask, settings: Mapping[str, object], seed: int, validation: Rows | None
) -> Any:
    kind = OrtGradientClassifier if task == "classification" else OrtGradientRegressor
    estimator: Any = kind(source.model, random_state=seed, early_stopping=validation is not None)
    if isinstance(source.model, Linear) and settings.keys().isdisjoint(OF_STEPS):
        patience = {} if validation is not None else {"n_iter_no_change": math.inf}  # the rates are planned to the end
        estimator.set_params(**LINEAR_STEPS, **patience)
    apply_settings(estimator, dict(settings))
    return estimator


def _train_recipe(
    source: ModelOption,
    task: TableTask,
    rows: Rows,
    validation: Rows | None,
    settings: Mapping[str, object],
    *,
    seed: int,
    console: Console,
) -> Trained:
    if validation is not None:
        raise UsageError(
            f"--validation is for networks; {source.text} holds out rows of its own (validation_fraction)."
        )
    # A stored one begins anew, too, with its settings: what it was fitted to is in its preprocessing.
    kind: Any = type(source.model) if source.kind == "own" else RECIPES[source.model][task]
    estimator = clone(source.model) if source.kind == "own" else kind(random_state=seed)
    apply_settings(estimator, dict(settings))
    names = list(rows.frame.columns)
    warn_of_row_names(as_numbers_and_text(rows.frame))
    with epochs_shown(estimator, console), warnings.catch_warnings():
        warnings.filterwarnings("ignore", WARNINGS)  # those above name the option
        estimator.fit(_raw_table(rows.frame[names]), rows.y)
    return Trained(estimator, estimator, lambda table: _raw_table(table[names]), names)


def _raw_table(frame: pandas.DataFrame) -> Any:
    """Return the table with None for missing text, as estimators for raw tables take it."""
    table = as_numbers_and_text(frame)
    for name in text_columns(table):
        table[name] = np.array([*(text or None for text in table[name].tolist()), None], object)[:-1]
    return table


def _graph_columns(frame: pandas.DataFrame) -> tuple[Callable[[Any], Any], list[str]]:
    names = list(frame.columns)
    if texts := text_columns(frame):
        raise UsageError(
            f"An ONNX graph is trained on numbers, and column {texts[0]!r} holds text: --drop {texts[0]!r}."
        )
    return lambda table: as_numbers_and_text(table[names]), names


def task_of_model(source: ModelOption, task: TableTask | None) -> TableTask | None:
    """Return the task that a fitted model has; for others, the one that was given."""
    if source.kind not in ("fitted", "own"):
        return task
    own: TableTask = "classification" if is_classifier_option(source) else "regression"
    if task not in (None, own):
        raise UsageError(f"--task {task}: the fitted {type(source.model).__name__} is for {own}.")
    return own

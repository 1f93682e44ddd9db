"""Training for ``train``: preprocessing, estimator, fit, for each kind of model."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from .._estimators.classifier import OrtGradientClassifier
from .._estimators.regressor import OrtGradientRegressor
from .._support.typing import Estimator
from .._training.history import Epoch
from ..exceptions import OnnxTrainWarning
from .command import UsageError
from .console import Console
from .settings import apply_settings
from .sources import RECIPES, ModelOption
from .tables import MISSING_TEXT, TableTask, as_numbers_and_text, require_columns, text_columns

if TYPE_CHECKING:
    import pandas

MANY_CATEGORIES = 20
"""Different texts from which on a column that has one for every other row is suspicious."""


@dataclass(frozen=True)
class Rows:
    """Rows of the table without the target, and their targets."""

    frame: pandas.DataFrame
    y: np.ndarray


@dataclass(frozen=True)
class Trained:
    """A fitted estimator.

    Attributes
    ----------
    predictor : estimator
        Predicts from what ``prepare`` returns.
    net : estimator
        The estimator of this package in it, with the losses of its epochs.
    prepare : callable
        Takes a data frame.
    columns : list of str
        The columns that it reads, in their order.
    missing_text : str
        What stands for missing text in the ONNX file.
    """

    predictor: Any
    net: Any
    prepare: Callable[[Any], Any]
    columns: list[str]
    missing_text: str = MISSING_TEXT


@dataclass
class EpochProgress:
    """Prints epochs on stderr, at most one a second, later one for each tenth of the time so far."""

    console: Console
    total: int
    begun: float = field(default_factory=time.monotonic)
    printed: float = field(default=-np.inf)

    def __call__(self, epoch: Epoch) -> None:
        now = time.monotonic()
        if epoch.number < self.total and now - self.printed < max(1.0, (now - self.begun) / 10):
            return
        self.printed = now
        score = "" if epoch.validation_score is None else f", validation score {epoch.validation_score:.4f}"
        self.console.progress(f"epoch {epoch.number} of at most {self.total}: loss {epoch.loss:.5g}{score}")


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
    if source.kind == "recipe":
        return _train_recipe(source, task, rows, validation, settings, seed)
    estimator = _estimator(source, task, settings, seed, validation)
    estimator.callbacks = [EpochProgress(console, int(estimator.max_iter))]
    if source.kind == "builder":
        return _train_builder(estimator, rows, validation)
    prepare, columns = _fitted_columns(source, rows.frame) if source.kind == "fitted" else _graph_columns(rows.frame)
    held = {} if validation is None else {"X_val": prepare(validation.frame), "y_val": validation.y}
    estimator.fit(prepare(rows.frame), rows.y, **held)
    missing = "nan" if source.kind == "fitted" else MISSING_TEXT
    return Trained(estimator, estimator, prepare, columns, missing)


def _estimator(
    source: ModelOption, task: TableTask, settings: Mapping[str, object], seed: int, validation: Rows | None
) -> Any:
    kind = OrtGradientClassifier if task == "classification" else OrtGradientRegressor
    estimator: Any = kind(source.model, random_state=seed, early_stopping=validation is not None)
    apply_settings(estimator, dict(settings))
    return estimator


def _train_builder(estimator: Estimator, rows: Rows, validation: Rows | None) -> Trained:
    frame = as_numbers_and_text(rows.frame)
    columns = _preprocessing(frame)
    X = columns.fit_transform(frame)
    held = {}
    if validation is not None:
        held = {"X_val": columns.transform(as_numbers_and_text(validation.frame)), "y_val": validation.y}
    estimator.fit(X, rows.y, **held)
    names = list(frame.columns)
    return Trained(
        Pipeline([("columns", columns), ("net", estimator)]),
        estimator,
        lambda table: as_numbers_and_text(table[names]),
        names,
    )


def _preprocessing(frame: pandas.DataFrame) -> Any:
    """Return the transformer of a table: missing numbers become the median, numbers are scaled, text is encoded."""
    texts = text_columns(frame)
    numbers = [name for name in frame.columns if name not in texts]
    for name in numbers:
        if frame[name].isna().all():
            raise ValueError(
                f"Column {name!r} holds no value in the rows to train on: leave it out by --drop {name!r}."
            )
    for name in texts:
        if frame[name].nunique() > max(MANY_CATEGORIES, len(frame) // 2):
            warnings.warn(
                f"Column {name!r} has {frame[name].nunique()} different texts in {len(frame)} rows; if they identify "
                f"the rows, leave it out by --drop {name!r}.",
                OnnxTrainWarning,
                stacklevel=2,
            )
    scaled = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    if not texts:
        return scaled
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False, dtype=np.float32)
    return ColumnTransformer([("numbers", scaled, numbers), ("texts", encoder, texts)][not numbers :])


def _train_recipe(
    source: ModelOption, task: TableTask, rows: Rows, validation: Rows | None, settings: Mapping[str, object], seed: int
) -> Trained:
    if validation is not None:
        raise UsageError(
            f"--validation is for networks; {source.text} holds out rows of its own (validation_fraction)."
        )
    kind: Any = RECIPES[source.model][task]
    estimator = kind(random_state=seed)
    apply_settings(estimator, dict(settings))
    names = list(rows.frame.columns)
    estimator.fit(_raw_table(rows.frame[names]), rows.y)
    return Trained(estimator, estimator, lambda table: _raw_table(table[names]), names)


def _raw_table(frame: pandas.DataFrame) -> Any:
    """Return the table with None for missing text, as estimators for raw tables take it."""
    table = as_numbers_and_text(frame)
    for name in text_columns(table):
        table[name] = np.array([*(text or None for text in table[name].tolist()), None], object)[:-1]
    return table


def _fitted_columns(source: ModelOption, frame: pandas.DataFrame) -> tuple[Callable[[Any], Any], list[str]]:
    """Return how the data of a fitted model are taken from the table: its own columns, or all of them."""
    named = getattr(source.model, "feature_names_in_", None)
    if named is not None:
        names = [str(name) for name in named]
        require_columns(frame, names, "The fitted model's column")
        return lambda table: table[names], names
    names = list(frame.columns)
    expected = getattr(source.model, "n_features_in_", len(names))
    if expected != len(names):
        raise UsageError(f"The fitted model takes {expected} columns, the table has {len(names)} besides the target.")
    return lambda table: table[names].to_numpy(), names


def _graph_columns(frame: pandas.DataFrame) -> tuple[Callable[[Any], Any], list[str]]:
    names = list(frame.columns)
    if texts := text_columns(frame):
        raise UsageError(
            f"An ONNX graph is trained on numbers, and column {texts[0]!r} holds text: --drop {texts[0]!r}."
        )
    return lambda table: as_numbers_and_text(table[names]), names


def task_of_model(source: ModelOption, task: TableTask | None) -> TableTask | None:
    """Return the task that a fitted model has; for others, the one that was given."""
    if source.kind != "fitted":
        return task
    own: TableTask = "classification" if is_classifier(source.model) else "regression"
    if task not in (None, own):
        raise UsageError(f"--task {task}: the fitted {type(source.model).__name__} is for {own}.")
    return own

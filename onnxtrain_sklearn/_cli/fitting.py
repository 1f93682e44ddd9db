"""Fit what ``--model`` names to the rows of a table, in the way of its kind.

``fit_option`` chooses: a recipe takes the raw table; a builder's network is trained on imputed, scaled and encoded
columns; a fitted model or a graph takes its own columns; a stored estimator of this package goes on from its weights.
Each way returns a ``Trained``: the estimator, and how it reads a table.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from .._data.inputs import WARNINGS
from .._estimators.base import BaseOrtGradient
from .._estimators.classifier import OrtGradientClassifier
from .._estimators.regressor import OrtGradientRegressor
from .._recipes.base import BaseRecipe
from .._utils.typing import Estimator, FrameLike
from ..models import Linear
from .arguments import apply_settings
from .console import Console, UsageError, epochs_shown
from .model_option import RECIPES, ModelOption, fitted_columns, own_estimator
from .table_columns import MISSING_TEXT, TableTask, as_numbers_and_text, text_columns, warn_of_row_names

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Rows:
    """Rows of a table: the columns besides the target, and the targets."""

    frame: pandas.DataFrame
    y: np.ndarray


@dataclass(frozen=True)
class Trained:
    """A fitted estimator, and how it reads a table.

    Attributes
    ----------
    predictor : estimator
        The whole estimator, which may be a pipeline; it predicts from the results of ``prepare``.
    net : estimator
        The estimator of this package in it, with the losses of its epochs.
    prepare : callable
        Makes the input of ``predictor`` from a data frame.
    columns : list of str
        The columns that it reads, in their order.
    missing_text : str
        The text that stands for a missing one in the ONNX file.
    earlier : int
        Epochs of earlier fits that this training went on from.
    """

    predictor: Any
    net: Any
    prepare: Callable[[Any], Any]
    columns: list[str]
    missing_text: str = MISSING_TEXT
    earlier: int = 0


LINEAR_STEPS: dict[str, object] = {"learning_rate_init": 0.05, "learning_rate": "cosine"}
"""Settings of the linear model: at the learning rate of networks, its weights would be only half way to their optimum
after the default number of epochs."""

OF_STEPS = {*LINEAR_STEPS, "optimizer"}
"""Parameters that decide the size of a step: if the user sets one of them, ``LINEAR_STEPS`` are not applied."""


def fit_option(
    option: ModelOption,
    task: TableTask,
    rows: Rows,
    validation: Rows | None,
    settings: Mapping[str, object],
    *,
    seed: int,
    console: Console,
) -> Trained:
    """Fit the model that ``--model`` names to the rows."""
    if option.kind == "recipe" or isinstance(option.model, BaseRecipe):
        return _train_recipe(option, task, rows, validation, settings, seed=seed, console=console)
    if option.kind == "own":
        return continue_training(option, rows, validation, settings, console)
    estimator = _estimator(option, task, settings, seed, validation)
    if option.kind == "builder":
        return train_table_pipeline(estimator, rows, validation, console)
    prepare, columns = fitted_columns(option, rows.frame) if option.kind == "fitted" else _graph_columns(rows.frame)
    held = {} if validation is None else {"X_val": prepare(validation.frame), "y_val": validation.y}
    with epochs_shown(estimator, console):
        estimator.fit(prepare(rows.frame), rows.y, **held)
    missing = "nan" if option.kind == "fitted" else MISSING_TEXT
    return Trained(estimator, estimator, prepare, columns, missing)


def _estimator(
    option: ModelOption, task: TableTask, settings: Mapping[str, object], seed: int, validation: Rows | None
) -> Any:
    kind = OrtGradientClassifier if task == "classification" else OrtGradientRegressor
    estimator: Any = kind(option.model, random_state=seed, early_stopping=validation is not None)
    if isinstance(option.model, Linear) and settings.keys().isdisjoint(OF_STEPS):
        patience = {} if validation is not None else {"n_iter_no_change": math.inf}  # the rates are planned to the end
        estimator.set_params(**LINEAR_STEPS, **patience)
    apply_settings(estimator, dict(settings))
    return estimator


def _train_recipe(
    option: ModelOption,
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
            f"--validation is for networks; {option.text} holds out rows of its own (validation_fraction)."
        )
    # A stored recipe is trained anew, with its settings: its preprocessing is fitted to the rows of its first fit.
    kind: Any = type(option.model) if option.kind == "own" else RECIPES[option.model][task]
    estimator = clone(option.model) if option.kind == "own" else kind(random_state=seed)
    apply_settings(estimator, dict(settings))
    names = list(rows.frame.columns)
    warn_of_row_names(as_numbers_and_text(rows.frame))
    with epochs_shown(estimator, console), warnings.catch_warnings():
        warnings.filterwarnings("ignore", WARNINGS)  # the warnings above name --drop
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


def continue_training(
    option: ModelOption, rows: Rows, validation: Rows | None, settings: Mapping[str, object], console: Console
) -> Trained:
    """Train a stored estimator from its weights and with its settings; earlier steps of a pipeline stay as they are."""
    whole, net = option.model, own_estimator(option.model)
    _require_continuable(option.text, net)
    select, columns = fitted_columns(option, rows.frame)
    written_here = is_table_pipeline(whole)

    def prepare(frame: FrameLike) -> Any:
        return as_numbers_and_text(select(frame)) if written_here else select(frame)

    def encoded(frame: FrameLike) -> Any:
        return prepare(frame) if whole is net else whole[:-1].transform(prepare(frame))

    apply_settings(net, dict(settings))
    for_now: dict[str, object] = {} if "warm_start" in settings else {"warm_start": True}
    held = {}
    if validation is not None:
        for_now["early_stopping"] = True
        held = {"X_val": encoded(validation.frame), "y_val": validation.y}
    earlier = int(getattr(net, "n_iter_", 0)) if for_now.get("warm_start", net.warm_start) else 0
    with _set_for_now(net, for_now), epochs_shown(net, console, earlier):
        net.fit(encoded(rows.frame), rows.y, **held)
    return Trained(whole, net, prepare, columns, MISSING_TEXT if written_here else "nan", earlier)


def _require_continuable(text: str, net: Estimator) -> None:
    if isinstance(net, BaseOrtGradient):
        return
    name = type(net).__name__
    known = {"RealMLP": "realmlp", "TabM": "tabm"}
    if recipe := next((known[prefix] for prefix in known if name.startswith(prefix)), None):
        raise UsageError(f"{text}: each fit of a {name} begins anew. Train another with --model {recipe}.")
    raise UsageError(
        f"{text}: a {name} has several targets, and train takes one --target. Go on in Python, by fit() with "
        f"warm_start=True."
    )


@contextmanager
def _set_for_now(estimator: Estimator, parameters: Mapping[str, object]) -> Iterator[None]:
    before = {name: getattr(estimator, name) for name in parameters}
    estimator.set_params(**parameters)
    try:
        yield
    finally:
        estimator.set_params(**before)


STEP_NAMES = ("table_columns", "network")
"""Steps of the pipeline for builders. By these names a stored one is known, which takes missing text as empty."""


def is_table_pipeline(model: object) -> bool:
    """Return True if a stored model is a pipeline that ``train`` wrote."""
    return isinstance(model, Pipeline) and tuple(name for name, _ in model.steps) == STEP_NAMES


def train_table_pipeline(estimator: Estimator, rows: Rows, validation: Rows | None, console: Console) -> Trained:
    """Fit imputation, scaling and one-hot encoding to the rows, and train a network behind them."""
    frame = as_numbers_and_text(rows.frame)
    columns = _preprocessing(frame)
    X = columns.fit_transform(frame)
    held = {}
    if validation is not None:
        held = {"X_val": columns.transform(as_numbers_and_text(validation.frame)), "y_val": validation.y}
    with epochs_shown(estimator, console):
        estimator.fit(X, rows.y, **held)
    names = list(frame.columns)
    return Trained(
        Pipeline([*zip(STEP_NAMES, (columns, estimator), strict=True)]),
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
    warn_of_row_names(frame)
    scaled = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    if not texts:
        return scaled
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False, dtype=np.float32)
    return ColumnTransformer([("numbers", scaled, numbers), ("texts", encoder, texts)][not numbers :])

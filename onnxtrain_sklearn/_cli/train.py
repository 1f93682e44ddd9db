"""`train`: a network on a table, written as one ONNX file, with a report; and how it is continued."""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from .._data.inputs import WARNINGS
from .._estimators.base import BaseOrtGradient
from .._estimators.classifier import OrtGradientClassifier
from .._estimators.regressor import OrtGradientRegressor
from .._recipes.base import BaseRecipe
from .._utils.typing import Estimator, FrameLike
from ..models import Linear
from .console import (
    Command,
    Console,
    Outcome,
    Record,
    UsageError,
    apply_settings,
    epochs_shown,
    parsed_settings,
    require_writable,
    sentence,
)
from .deploy import describe_table, prediction_difference, runner_of, save, whole_graph
from .report import Report, baseline, confusion, prediction_scores, write_report
from .sources import (
    BUILDERS,
    RECIPES,
    SECURITY,
    ModelOption,
    fitted_columns,
    is_classifier_option,
    own_estimator,
    require_joblib_name,
    save_estimator,
    source_named,
)
from .tables import (
    MISSING_TEXT,
    Rows,
    TableTask,
    Target,
    Trained,
    as_numbers_and_text,
    read_table_file,
    require_columns,
    table_arguments,
    target_of,
    text_columns,
    warn_of_row_names,
    warn_of_row_numbers,
    without_columns,
)

if TYPE_CHECKING:
    import pandas


# Training for ``train``: preprocessing, estimator, fit, for each kind of model.


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


# Going on with a stored estimator of this package, alone or at the end of a pipeline, from its weights.


def continue_training(
    source: ModelOption, rows: Rows, validation: Rows | None, settings: Mapping[str, object], console: Console
) -> Trained:
    """Train a stored estimator from its weights and with its settings; the steps before it stay as they are."""
    whole, net = source.model, own_estimator(source.model)
    _require_continuable(source.text, net)
    select, columns = fitted_columns(source, rows.frame)
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


# The pipeline that ``train`` puts before a network: imputation, scaling and one-hot encoding of a table.


STEP_NAMES = ("table_columns", "network")
"""Names of its steps, by which a stored one is known: it takes missing text as an empty string."""


def is_table_pipeline(model: object) -> bool:
    """Return True if a stored model is a pipeline that ``train`` wrote."""
    return isinstance(model, Pipeline) and tuple(name for name, _ in model.steps) == STEP_NAMES


def train_table_pipeline(estimator: Estimator, rows: Rows, validation: Rows | None, console: Console) -> Trained:
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


# ``train``: a network on a CSV or Parquet file, written as one ONNX file, with a report.


SAME = 1e-4
"""Relative difference up to which the file predicts what the estimator does."""

NOTES = f"""\
models:
  {", ".join(RECIPES)}: estimators for raw tables, with a preprocessing of their own and tuned settings
  {", ".join(BUILDERS)}: a network of that kind behind imputation, scaling and one-hot encoding
  FILE.joblib, FILE.pkl, FILE.skops: a fitted scikit-learn model or pipeline, which is fine-tuned as a whole;
    an OrtGradient estimator, alone or at the end of a pipeline, goes on from its weights with its settings;
    an estimator for raw tables is trained anew with its settings
  FILE.onnx: a graph, trained from its own weights; its columns are given as they are

{SECURITY}

example:
  onnxtrain-sklearn train iris.csv --target species --set max_iter=64 --report iris.html"""

DEFAULT_MODEL, DEFAULT_WITH_VALIDATION = "realmlp", "mlp"
"""What is trained by default: the best of the networks on small tables, which holds out rows of its own."""


@dataclass(frozen=True)
class Splits:
    """The rows to train on, to test on and to stop on."""

    train: Rows
    test: Rows | None
    validation: Rows | None


@dataclass(frozen=True)
class Written:
    """The file that was written: whether it holds the whole pipeline, and how far its predictions are off."""

    path: Path
    size: int
    whole: bool
    difference: float | None


def _train_arguments(parser: argparse.ArgumentParser) -> None:
    table_arguments(parser, "CSV or Parquet file with a header")
    add = parser.add_argument
    add("--target", required=True, metavar="COLUMN", help="the column to predict")
    defaults = f"{DEFAULT_MODEL}; with --validation: {DEFAULT_WITH_VALIDATION}"
    add("--model", metavar="NAME|FILE", help=f"what is trained, see below; default: {defaults}")
    add("--task", choices=["classification", "regression"], help="default: as the target's values tell")
    add("--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help="parameters of the estimator")
    add("--holdout", type=_share, default=0.2, metavar="SHARE", help="rows to test on, 0: none; default: %(default)s")
    add("--test", type=Path, metavar="FILE", help="a table to test on, in place of --holdout")
    add("--validation", type=Path, metavar="FILE", help="a table whose score ends the training (early stopping)")
    add(
        "--seed", type=int, default=0, metavar="N", help="of the split, the weights and the order; default: %(default)s"
    )
    add("--output", type=Path, default=Path("model.onnx"), metavar="FILE", help="default: %(default)s")
    add("--save", type=Path, metavar="FILE", help="a .joblib file of the trained estimator, which --model takes again")
    add("--report", type=Path, metavar="FILE", help="a report with a picture: .html, or .md with a .png beside it")
    add("--trust", nargs="+", default=[], metavar="TYPE", help="types in a skops file that may be loaded")


def _default_model(options: argparse.Namespace) -> str:
    return DEFAULT_MODEL if options.validation is None else DEFAULT_WITH_VALIDATION


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"a share of the rows from 0 to below 1, got {text}")
    return value


def _train(options: argparse.Namespace, console: Console) -> Outcome:
    if options.report is not None and options.report.suffix not in (".html", ".md"):
        raise UsageError(f"--report writes .html or .md, got {options.report.name!r}.")
    require_joblib_name(options.save)
    tables = [options.data, options.test, options.validation]
    require_writable([options.output, options.save, options.report], tables)
    settings = parsed_settings(options.set)
    source = source_named(options.model or _default_model(options), options.trust)
    table = read_table_file(options.data, options.separator)
    frame = without_columns(table, options.drop)
    target = target_of(frame, options.target, task_of_model(source, options.task))
    if len(frame.columns) == 1:
        raise ValueError(f"{options.data}: there is no column besides the target {target.name!r} to predict it from.")
    console.progress(f"{options.data}: {len(frame)} rows, {len(frame.columns) - 1} columns besides the target")
    console.progress(f"target {target.name!r}: {target.task}, as {target.reason}")
    warn_of_row_numbers(frame.drop(columns=target.name))
    splits = _splits(options, frame.drop(columns=target.name), target)
    begun = time.monotonic()
    trained = train_source(
        source, target.task, splits.train, splits.validation, settings, seed=options.seed, console=console
    )
    seconds = time.monotonic() - begun
    written = _write(trained, splits.test or splits.train, target, options.output, console)
    record = _train_record(source, target, splits, trained, written, settings) | {"seconds": seconds}
    if options.save is not None:
        record["saved"] = {"path": str(options.save), "bytes": save_estimator(trained, options.save)}
    if options.report is not None:
        matrix = confusion(trained, splits.test, target.task) if splits.test is not None else None
        record["report"] = [
            str(path) for path in write_report(Report(record, trained.net, matrix), options.report, console)
        ]
    return Outcome(record, _summary(record), succeeded=written.difference is None or written.difference <= SAME)


def _splits(options: argparse.Namespace, frame: pandas.DataFrame, target: Target) -> Splits:
    """Return the rows for each purpose; classes of one row are not split."""
    whole = Rows(frame, target.values)
    validation = None if options.validation is None else _rows_of(options, options.validation, frame, target)
    if options.test is not None:
        return Splits(whole, _rows_of(options, options.test, frame, target), validation)
    if not options.holdout:
        return Splits(whole, None, validation)
    if len(frame) < 2:
        raise ValueError("One row cannot be split: give --holdout 0.")
    chosen = np.arange(len(frame))
    split = {"test_size": options.holdout, "random_state": options.seed}
    train, test = train_test_split(chosen, stratify=_strata(target, options.holdout), **split)
    part = [Rows(frame.iloc[rows], target.values[rows]) for rows in (np.sort(train), np.sort(test))]
    return Splits(part[0], part[1], validation)


def _strata(target: Target, share: float) -> np.ndarray | None:
    """Return the labels to stratify by, where each class has rows for both parts."""
    if target.task == "regression":
        return None
    _, counts = np.unique(target.values, return_counts=True)
    rows = len(target.values)
    enough = np.min(counts) >= 2 and min(rows * share, rows * (1 - share)) >= len(counts)
    return target.values if enough else None


def _rows_of(options: argparse.Namespace, path: Path, frame: pandas.DataFrame, target: Target) -> Rows:
    table = read_table_file(path, options.separator)
    require_columns(table, [*frame.columns, target.name], f"In {str(path)!r}, column")
    return Rows(table[list(frame.columns)], target_of(table, target.name, target.task).values)


def _write(trained: Trained, rows: Rows, target: Target, path: Path, console: Console) -> Written:
    """Write the ONNX file, run it, and compare its predictions with those of the estimator."""
    sample = rows.frame[trained.columns]
    prepared = trained.prepare(rows.frame)
    try:
        model, whole = whole_graph(trained, prepared), True
    except Exception as error:
        if trained.predictor is trained.net:
            raise
        console.progress(f"The pipeline is not converted to ONNX ({sentence(error)}): the network alone is written.")
        model, whole = trained.net.to_onnx(), False
    if whole:
        describe_table(model, trained, target.name)
    size = save(model, path)
    if not whole:
        return Written(path, size, whole, None)
    runner = runner_of(path)
    return Written(path, size, whole, prediction_difference(trained.predictor, prepared, runner.run(sample)))


def _train_record(
    source: ModelOption,
    target: Target,
    splits: Splits,
    trained: Trained,
    written: Written,
    settings: Mapping[str, object],
) -> dict[str, Any]:
    net, test = trained.net, splits.test
    return {
        "model": source.text,
        "task": target.task,
        "task_reason": target.reason,
        "target": target.name,
        "columns": trained.columns,
        "classes": getattr(net, "classes_", None),
        "rows": {"train": len(splits.train.y), "test": 0 if test is None else len(test.y)},
        "settings": dict(settings),
        "engine": net.engine_,
        "epochs": net.n_iter_ - trained.earlier,
        "scores": {"train": prediction_scores(trained, splits.train, target.task)}
        | ({} if test is None else {"test": prediction_scores(trained, test, target.task)}),
        "baseline": {} if test is None else baseline(splits.train.y, test.y, target.task),
        "onnx": {
            "path": str(written.path),
            "bytes": written.size,
            "whole_pipeline": written.whole,
            "difference": written.difference,
        },
    }


def _summary(record: Record) -> list[str]:
    classes = "" if record["classes"] is None else f" of {len(record['classes'])} classes"
    lines = [f"{record['task']}{classes}, as {record['task_reason']}"]
    lines.append(
        f"{record['model']}, engine {record['engine']}: {record['epochs']} epochs in {record['seconds']:.1f} s"
    )
    for part, scores in record["scores"].items():
        told = ", ".join(f"{name} {value:.4g}" for name, value in scores.items())
        lines.append(f"{part} ({record['rows'][part]} rows): {told}")
    if record["baseline"]:
        told = ", ".join(f"{name} {value:.4g}" for name, value in record["baseline"].items())
        lines.append(f"constant prediction: {told}")
    file = record["onnx"]
    lines.append(f"{file['path']}: {file['bytes']:,} bytes, {_verdict(file)}")
    if saved := record.get("saved"):
        lines.append(f"{saved['path']}: {saved['bytes']:,} bytes, the trained estimator")
    return [*lines, *record.get("report", [])]


def _verdict(file: Record) -> str:
    if not file["whole_pipeline"]:
        return "the network alone, which takes preprocessed rows"
    if file["difference"] <= SAME:
        return "run by onnxruntime it predicts what the estimator does"
    return f"its predictions DIFFER from the estimator's by {file['difference']:.2g}"


TRAIN = Command(_train_arguments, _train, NOTES)

"""``train``: fit a network to a table and write it as one ONNX file, with scores and a report.

``_train`` is the command: it reads the table and splits its rows (``rows``), fits the model in the way of its kind
(``fit_option``), writes the file and runs it again to compare its predictions with the estimator's.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx.compose
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GroupKFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from .._data.inputs import WARNINGS
from .._estimators.classifier import OrtGradientClassifier
from .._estimators.regressor import OrtGradientRegressor
from .._fitted import skl2onnx_bridge
from .._ir.files import read
from .._multi_output.estimator import OrtGradientMultiOutput
from .._pretrained.ml_files import TABLE_KEY
from .._recipes.base import BaseRecipe
from .._utils.typing import Estimator, FrameLike, MatrixLike
from ..losses import Quantiles
from ..models import GraphModel, Linear
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
    warnings_kept,
    write_model,
)
from .csv_format import as_record
from .model_option import (
    BUILDERS,
    CONSTANT_HELP,
    PICKLES,
    RECIPES,
    SECURITY,
    ModelOption,
    constant_inputs,
    fitted_columns,
    is_classifier_option,
    model_named,
    own_estimator,
)
from .predict import Output, runner_of
from .report import Report, provenance, rarity, write_report
from .rows import MOST_ROWS, AnyRows, Rows, Splits, is_large, rows_to_train
from .scores import (
    THRESHOLD_SCORES,
    Trained,
    assess,
    baseline,
    best_threshold,
    calibration_of,
    class_shares,
    evaluate,
    rare_classes,
)
from .tables import (
    MISSING_TEXT,
    TableTask,
    as_numbers_and_text,
    require_columns,
    table_arguments,
    table_files,
    text_columns,
    warn_of_row_names,
    warn_of_row_numbers,
)

if TYPE_CHECKING:
    import pandas


SAME = 1e-4
"""Largest relative difference of predictions with which file and estimator count as equal."""

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

DEFAULT_MODEL, DEFAULT_NETWORK = "realmlp", "mlp"
"""Default models. The first is the best on small tables; it takes too long on large ones."""


def _train_arguments(parser: argparse.ArgumentParser) -> None:
    table_arguments(parser)
    add = parser.add_argument
    add("--target", required=True, metavar="COLUMN", help="the column to predict")
    defaults = f"{DEFAULT_MODEL}; for more than {MOST_ROWS:,} rows: {DEFAULT_NETWORK}"
    add("--model", metavar="NAME|FILE", help=f"the model to train, see below; default: {defaults}")
    add("--constant", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help=CONSTANT_HELP)
    add("--task", choices=["classification", "regression"], help="default: as the target's values tell")
    add("--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help="parameters of the estimator")
    add("--holdout", type=_share, default=0.2, metavar="SHARE", help="rows to test on, 0: none; default: %(default)s")
    add("--test", type=Path, metavar="FILE", help="a table to test on, in place of --holdout")
    add("--validation", type=Path, metavar="FILE", help="a table whose score ends the training (early stopping)")
    order = parser.add_mutually_exclusive_group()
    groups = "a column whose equal values stay together: no group is both trained on and tested on; it is no input"
    order.add_argument("--group", metavar="COLUMN", help=groups)
    times = "a column of times (numbers or ISO dates): the last rows are those to test and to stop on; it is no input"
    order.add_argument("--time", metavar="COLUMN", help=times)
    levels = "regression: predict these quantiles too, 0.5 among them, such as 0.1,0.5,0.9"
    add("--quantiles", type=_levels, metavar="Q,Q,...", help=levels)
    add("--time-limit", type=_seconds, metavar="SECONDS", help="end the training after this time")
    add(
        "--seed", type=int, default=0, metavar="N", help="of the split, the weights and the order; default: %(default)s"
    )
    add("--output", type=Path, default=Path("model.onnx"), metavar="FILE", help="default: %(default)s")
    add("--save", type=Path, metavar="FILE", help="a .joblib file of the trained estimator, which --model takes again")
    add("--report", type=Path, metavar="FILE", help="a report: .html, or .md, a model card with pictures beside it")
    best = "score of two classes for which the report names the best threshold; default: %(default)s"
    add("--threshold-score", choices=list(THRESHOLD_SCORES), default="balanced_accuracy", help=best)
    add("--trust", nargs="+", default=[], metavar="TYPE", help="types in a skops file that may be loaded")


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"a share of the rows from 0 to below 1, got {text}")
    return value


def _levels(text: str) -> list[float]:
    levels = [float(one) for one in text.split(",")]
    if not all(0 < one < 1 for one in levels) or sorted(set(levels)) != levels or 0.5 not in levels:
        raise argparse.ArgumentTypeError(
            f"expected rising numbers between 0 and 1, 0.5 among them, as in 0.1,0.5,0.9, got {text}"
        )
    return levels


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"seconds above 0, got {text}")
    return value


def _train(options: argparse.Namespace, console: Console) -> Outcome:
    # Check the arguments that need no data.
    if options.report is not None and options.report.suffix not in (".html", ".md"):
        raise UsageError(f"--report writes .html or .md, got {options.report.name!r}.")
    if options.save is not None and options.save.suffix not in PICKLES:  # the ending says how the file is read again
        raise UsageError(f"--save writes {', '.join(PICKLES[:-1])} or {PICKLES[-1]}, got {options.save.name!r}.")
    files = table_files(options.data)
    further = [file for path in (options.test, options.validation) if path for file in table_files([path])]
    require_writable([options.output, options.save, options.report], [*files, *further])
    settings = parsed_settings(options.set)
    limit = options.time_limit
    default = DEFAULT_MODEL
    if options.model is None and (options.quantiles is not None or is_large(files)):
        default = DEFAULT_NETWORK
    option = model_named(options.model or default, options.trust)  # before the table is read, which may take long
    if (constants := constant_inputs(option, options.constant)) is not None:
        option = replace(option, model=GraphModel(option.model, constant_inputs=constants))
    task = _task_of_model(option, options.task)
    if options.quantiles is not None:
        settings = with_quantiles(settings, options.quantiles, option, task)
        task = "regression"
    splits = rows_to_train(options, task, console, warn_of_row_numbers)
    target = splits.target

    # Fit, write and compare.
    begun = time.monotonic()
    with warnings_kept() as told:
        trained = fit_option(
            option,
            target.task,
            splits.train,
            splits.validation,
            settings,
            limit=limit,
            seed=options.seed,
            console=console,
        )
    seconds = time.monotonic() - begun
    file = _write(trained, (splits.test or splits.train).sample(), splits, options.output, console)

    # Score, save and report.
    net, test = trained.net, splits.test
    shares = class_shares(splits.train) if target.task == "classification" else {}
    positive = next(iter(shares)) if len(shares) == 2 else None
    found = {"train": evaluate(trained, splits.train, target.task, positive)}
    if test is not None:
        found["test"] = evaluate(trained, test, target.task, positive)
    threshold = best_threshold(found["test"], options.threshold_score) if test is not None else None
    record = {
        "model": option.text,
        "task": target.task,
        "task_reason": target.reason,
        "target": target.name,
        "columns": trained.columns,
        "classes": getattr(net, "classes_", None),
        "read_as": as_record(splits.source.formats),
        "rows": {"train": splits.train.n_rows, "test": 0 if test is None else test.n_rows},
        "settings": settings,
        "engine": net.engine_,
        "epochs": net.n_iter_ - trained.earlier,
        "scores": {part: one.by_name() for part, one in found.items()},
        "baseline": {} if test is None else baseline(splits.train, test, target.task),
        "rare_classes": rare_classes(shares),
        "threshold": None if threshold is None else vars(threshold),
        "warnings": told,
        "onnx": file,
        "seconds": seconds,
        "provenance": provenance(splits.source.files, options),
    }
    if options.save is not None:
        import joblib

        options.save.parent.mkdir(parents=True, exist_ok=True)
        joblib.dump(trained.predictor, options.save)
        record["saved"] = {"path": str(options.save), "bytes": options.save.stat().st_size}
    if options.report is not None:
        matrix, calibration, assessment = None, None, None
        if test is not None:
            matrix = found["test"].confusion()
            calibration = calibration_of(found["test"])
            console.progress("The report compares with models of scikit-learn.")
            assessment = assess(
                trained, splits.train.sample(), test.sample(), target.task, positive=positive, seed=options.seed
            )
            record |= {"baselines": assessment.baselines, "verdict": assessment.verdict}
            record["importances"] = {name: mean for name, (mean, _) in assessment.importances.items()}
        written = write_report(Report(record, net, matrix, calibration, assessment), options.report, console)
        record["report"] = [str(path) for path in written]
    return Outcome(record, _summary(record), succeeded=file["difference"] is None or file["difference"] <= SAME)


def _summary(record: Record) -> list[str]:
    def told(scores: Mapping[str, float]) -> str:
        return ", ".join(f"{name} {value:.4g}" for name, value in scores.items())

    classes = "" if record["classes"] is None else f" of {len(record['classes'])} classes"
    lines = [
        f"{record['task']}{classes}, as {record['task_reason']}",
        f"{record['model']}, engine {record['engine']}: {record['epochs']} epochs in {record['seconds']:.1f} s",
    ]
    lines += [f"{part} ({record['rows'][part]} rows): {told(scores)}" for part, scores in record["scores"].items()]
    if record["baseline"]:
        lines.append(f"constant prediction: {told(record['baseline'])}")
    lines += rarity(record)
    if "verdict" in record:
        lines.append(record["verdict"])
    file = record["onnx"]
    if not file["whole_pipeline"]:
        verdict = "the network alone, which takes preprocessed rows"
    elif file["difference"] <= SAME:
        verdict = "run by onnxruntime it predicts what the estimator does"
    else:
        verdict = f"its predictions DIFFER from the estimator's by {file['difference']:.2g}"
    lines.append(f"{file['path']}: {file['bytes']:,} bytes, {verdict}")
    if saved := record.get("saved"):
        lines.append(f"{saved['path']}: {saved['bytes']:,} bytes, the trained estimator")
    return [*lines, *record.get("report", [])]


def with_quantiles(
    settings: Mapping[str, object], levels: list[float], option: ModelOption, task: TableTask | None
) -> dict[str, object]:
    """Return the settings of an estimator that predicts these quantiles.

    Raises
    ------
    UsageError
        The model or another option does not go with quantiles.
    """
    if option.kind != "builder":
        raise UsageError(f"--quantiles is for --model {' or '.join(BUILDERS)}, got {option.text}.")
    if task == "classification":
        raise UsageError("--quantiles predicts numbers, and --task classification predicts classes.")
    if "loss" in settings:
        raise UsageError("--quantiles sets the loss: leave out --set loss.")
    return {**settings, "loss": Quantiles(levels)}


def _task_of_model(option: ModelOption, task: TableTask | None) -> TableTask | None:
    """Return the task that a fitted model has; for others, the one that was given."""
    if option.kind not in ("fitted", "own"):
        return task
    own: TableTask = "classification" if is_classifier_option(option) else "regression"
    if task not in (None, own):
        raise UsageError(f"--task {task}: the fitted {type(option.model).__name__} is for {own}.")
    return own


# Fitting: a recipe takes the raw table; a builder's network is trained on imputed, scaled and encoded columns; a fitted
# model or a graph takes its own columns; a stored estimator of this package goes on from its weights.


LINEAR_STEPS: dict[str, object] = {"learning_rate_init": 0.05, "learning_rate": "cosine"}
"""Settings of the linear model: at the learning rate of networks, its weights would be only half way to their optimum
after the default number of epochs."""

OF_STEPS = {*LINEAR_STEPS, "optimizer"}
"""Parameters that decide the size of a step: if the user sets one of them, ``LINEAR_STEPS`` are not applied."""


def fit_option(
    option: ModelOption,
    task: TableTask,
    rows: AnyRows,
    validation: Rows | None,
    settings: Mapping[str, object],
    *,
    limit: float | None = None,
    seed: int,
    console: Console,
) -> Trained:
    """Fit the model that ``--model`` names to the rows."""
    if option.kind == "builder" or (option.kind == "own" and isinstance(option.model, Pipeline)):
        skl2onnx_bridge.package()  # it writes the pipeline to the file: an error comes before training
    if option.kind == "recipe" or isinstance(option.model, BaseRecipe):
        settings = settings if limit is None else {"time_limit": limit, **settings}
        return _train_recipe(option, task, rows, validation, settings, seed=seed, console=console)
    if option.kind == "own":
        return _continue_training(option, rows, validation, settings, limit, console)
    kind = OrtGradientClassifier if task == "classification" else OrtGradientRegressor
    estimator: Any = kind(option.model, random_state=seed, early_stopping=validation is not None)
    if isinstance(option.model, Linear) and settings.keys().isdisjoint(OF_STEPS):
        patience = {} if validation is not None else {"n_iter_no_change": math.inf}  # the rates are planned to the end
        estimator.set_params(**LINEAR_STEPS, **patience)
    apply_settings(estimator, settings)
    if option.kind == "builder":
        return _train_table_pipeline(estimator, rows, validation, settings, limit, console)
    frame = rows.sample().frame
    names = list(frame.columns)
    if option.kind == "fitted":
        prepare, names = fitted_columns(option, frame)
    elif known := columns_of_file(option):
        require_columns(frame, known, f"{option.text} is trained on column")
        prepare, names = _table_of(known), known
    elif texts := text_columns(frame):
        raise UsageError(
            f"An ONNX graph is trained on numbers, and column {texts[0]!r} holds text: --drop {texts[0]!r}."
        )
    else:
        prepare = _table_of(names)
    held = {} if validation is None else {"X_val": prepare(validation.frame), "y_val": validation.y}
    with (
        held_out(estimator, rows, held, settings) as arguments,
        epochs_shown(estimator, console, rows.n_rows, limit=limit),
    ):
        estimator.fit(*rows.given(prepare), **arguments)
    return Trained(estimator, estimator, prepare, names, "nan" if option.kind == "fitted" else MISSING_TEXT)


def columns_of_file(option: ModelOption) -> list[str]:
    """Return the columns that a file of ``train`` takes; none of other files."""
    if not isinstance(option.model, str):  # a GraphModel, with constant inputs
        return []
    properties = read(option.model).metadata_props
    told = json.loads(next((one.value for one in properties if one.key == TABLE_KEY), "{}"))
    return list(told.get("columns", ())) if told.get("missing_text") == MISSING_TEXT else []


def _table_of(names: list[str]) -> Callable[[Any], Any]:
    return lambda table: as_numbers_and_text(table[names])


def _train_recipe(
    option: ModelOption,
    task: TableTask,
    rows: AnyRows,
    validation: Rows | None,
    settings: Mapping[str, object],
    *,
    seed: int,
    console: Console,
) -> Trained:
    # A stored recipe is trained anew, with its settings: its preprocessing is fitted to the rows of its first fit.
    kind: Any = type(option.model) if option.kind == "own" else RECIPES[option.model][task]
    estimator = clone(option.model) if option.kind == "own" else kind(random_state=seed)
    apply_settings(estimator, settings)
    sample = rows.sample().frame
    names = list(sample.columns)
    warn_of_row_names(as_numbers_and_text(sample))

    def raw_table(frame: pandas.DataFrame) -> Any:
        """Return the table with None for missing text, as estimators for raw tables take it."""
        table = as_numbers_and_text(frame[names])
        for name in text_columns(table):
            table[name] = np.array([text or None for text in table[name].tolist()], object)
        return table

    held = {} if validation is None else {"X_val": raw_table(validation.frame), "y_val": validation.y}
    showing = epochs_shown(estimator, console, rows.n_rows)
    with held_out(estimator, rows, held, settings) as arguments, showing, warnings.catch_warnings():
        warnings.filterwarnings("ignore", WARNINGS)  # the warnings above name --drop
        estimator.fit(*rows.given(raw_table), **arguments)
    return Trained(estimator, estimator, raw_table, names)


def _continue_training(
    option: ModelOption,
    rows: AnyRows,
    validation: Rows | None,
    settings: Mapping[str, object],
    limit: float | None,
    console: Console,
) -> Trained:
    """Train a stored estimator from its weights and with its settings; earlier steps of a pipeline stay as they are."""
    whole = option.model
    net = own_estimator(whole)
    if isinstance(net, BaseRecipe):
        recipe = next(name for name, kinds in RECIPES.items() if type(net) in kinds.values())
        raise UsageError(
            f"{option.text}: each fit of a {type(net).__name__} begins anew. Train another with --model {recipe}."
        )
    if isinstance(net, OrtGradientMultiOutput):
        raise UsageError(
            f"{option.text}: a {type(net).__name__} has several targets, and train takes one --target. Go on in "
            "Python, by fit() with warm_start=True."
        )
    select, columns = fitted_columns(option, rows.sample().frame)
    written_here = isinstance(whole, Pipeline) and tuple(name for name, _ in whole.steps) == STEP_NAMES

    def prepare(frame: FrameLike) -> Any:
        return as_numbers_and_text(select(frame)) if written_here else select(frame)

    def encoded(frame: FrameLike) -> Any:
        return prepare(frame) if whole is net else whole[:-1].transform(prepare(frame))

    apply_settings(net, settings)
    # For this call alone: a stored estimator keeps the settings that it was made with.
    for_now: dict[str, object] = {} if "warm_start" in settings else {"warm_start": True}
    held = {}
    if validation is not None:
        for_now["early_stopping"] = True
        held = {"X_val": encoded(validation.frame), "y_val": validation.y}
    earlier = int(getattr(net, "n_iter_", 0)) if for_now.get("warm_start", net.warm_start) else 0
    showing = epochs_shown(net, console, rows.n_rows, earlier, limit=limit)
    with _set_for_now(net, for_now), held_out(net, rows, held, settings) as arguments, showing:
        net.fit(*rows.given(encoded), **arguments)
    return Trained(whole, net, prepare, columns, MISSING_TEXT if written_here else "nan", earlier)


@contextmanager
def held_out(
    estimator: Any, rows: AnyRows, held: Mapping[str, Any], settings: Mapping[str, object]
) -> Iterator[Mapping[str, Any]]:
    """Yield the arguments of ``fit`` by which it holds out rows in the way of ``--group`` or ``--time``.

    ``held`` are the arguments so far, with a table to validate on, if there is one.
    """
    order = rows.order if isinstance(rows, Rows) else None
    validates = isinstance(estimator, BaseRecipe) or estimator.early_stopping
    if order is None or held or not validates:
        yield held
        return
    if "validation_split" in settings:
        raise UsageError(f"{order.option} says which rows are held out: leave out --set validation_split.")
    split = estimator.validation_split
    if split is None:
        yield held
    elif order.option == "--group":
        if (n_groups := len(np.unique(order.values))) < 2:
            raise ValueError("--group: there is one group in the rows to train on; a part to stop on needs another.")
        with _set_for_now(estimator, {"validation_split": GroupKFold(min(5, n_groups))}):
            yield {"groups": order.values}
    else:
        mask = order.held_out(split if isinstance(split, float) else 0.2, 0)
        with _set_for_now(estimator, {"validation_split": np.flatnonzero(mask)}):
            yield {}


@contextmanager
def _set_for_now(estimator: Any, parameters: Mapping[str, object]) -> Iterator[None]:
    before = {name: getattr(estimator, name) for name in parameters}
    estimator.set_params(**parameters)
    try:
        yield
    finally:
        estimator.set_params(**before)


STEP_NAMES = ("table_columns", "network")
"""Steps of the pipeline for builders. By these names a stored one is known, which takes missing text as empty."""


def _train_table_pipeline(
    estimator: Estimator,
    rows: AnyRows,
    validation: Rows | None,
    settings: Mapping[str, object],
    limit: float | None,
    console: Console,
) -> Trained:
    """Fit imputation, scaling and one-hot encoding to the rows, or a sample, and train a network behind them."""
    frame = as_numbers_and_text(rows.sample().frame)
    texts = text_columns(frame)
    numbers = [name for name in frame.columns if name not in texts]
    for name in numbers:
        if frame[name].isna().all():  # the imputer would leave the column out without a word
            raise ValueError(
                f"Column {name!r} holds no value in the rows to train on: leave it out by --drop {name!r}."
            )
    warn_of_row_names(frame)
    preprocessing: Any = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    if texts:
        encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False, dtype=np.float32)
        parts = [("numbers", preprocessing, numbers), ("texts", encoder, texts)]
        preprocessing = ColumnTransformer(parts if numbers else parts[1:])  # an imputer refuses a table of no columns
    preprocessing.fit(frame)

    def encoded(frame: FrameLike) -> Any:
        return preprocessing.transform(as_numbers_and_text(frame))

    held = {} if validation is None else {"X_val": encoded(validation.frame), "y_val": validation.y}
    with (
        held_out(estimator, rows, held, settings) as arguments,
        epochs_shown(estimator, console, rows.n_rows, limit=limit),
    ):
        estimator.fit(*rows.given(encoded), **arguments)
    whole = Pipeline([*zip(STEP_NAMES, (preprocessing, estimator), strict=True)])
    names = list(frame.columns)
    return Trained(whole, estimator, _table_of(names), names)


# The ONNX file: the whole pipeline, with the table's columns and classes in its metadata.


OPSET = 18


def _write(trained: Trained, rows: Rows, splits: Splits, path: Path, console: Console) -> dict[str, Any]:
    """Write the ONNX file, run it, compare its predictions with the estimator's, and return the record of the file."""
    sample = rows.frame[trained.columns]
    prepared = trained.prepare(rows.frame)
    try:
        model, whole = whole_graph(trained, prepared), True
    except Exception as error:  # skl2onnx raises errors of many types for steps that it does not convert
        if trained.predictor is trained.net:
            raise
        console.progress(f"The pipeline is not converted to ONNX ({sentence(error)}): the network alone is written.")
        model, whole = trained.net.to_onnx(), False
    if whole:
        classes = getattr(trained.net, "classes_", None)
        told = {
            "columns": trained.columns,
            "target": splits.target.name,
            "classes": None if classes is None else np.asarray(classes).tolist(),
            "missing_text": trained.missing_text,
            "quantiles": quantiles_of(trained.net),
            "missing": splits.source.missing_words(trained.columns),
            "decimal": splits.source.decimal,
        }
        # A graph trained from a file that this command wrote may carry the entry of that file.
        others = [entry for entry in model.metadata_props if entry.key != TABLE_KEY]
        del model.metadata_props[:]
        model.metadata_props.extend(others)
        model.metadata_props.add(key=TABLE_KEY, value=json.dumps(told))
    # Compare what the file predicts: the user runs that, not the estimator.
    size, difference = write_model(model, path), None
    if whole:
        difference = prediction_difference(trained.predictor, prepared, runner_of(path).run(sample))
    return {"path": str(path), "bytes": size, "whole_pipeline": whole, "difference": difference}


def whole_graph(trained: Trained, sample: pandas.DataFrame) -> Any:
    """Return the ONNX model of a trained estimator, its preprocessing included.

    Raises
    ------
    Exception
        skl2onnx cannot convert the pipeline.
    """
    if trained.predictor is trained.net:
        return trained.net.to_onnx()
    levels = quantiles_of(trained.net)
    texts = set(text_columns(sample))
    kinds = skl2onnx_bridge.types()
    number, text = kinds.FloatTensorType, kinds.StringTensorType
    # Columns of text and of numbers have inputs of their own; numbers alone are one matrix, as most callers hold them.
    types = [(name, (text if name in texts else number)([None, 1])) for name in sample.columns]
    if not texts:
        types = [("X", number([None, len(sample.columns)]))]
    options = {id(trained.net): {"zipmap": False}} if hasattr(trained.net, "classes_") else {}
    # skl2onnx knows one output of a regressor: with quantiles, the network's own graph follows that of the other steps.
    steps = trained.predictor if levels is None else trained.predictor[:-1]
    model: onnx.ModelProto = skl2onnx_bridge.package().to_onnx(
        steps, initial_types=types, options=options, target_opset=OPSET
    )
    if levels is not None:
        model = _followed_by(model, trained.net.to_onnx())
    # Rename the inputs after the columns: skl2onnx replaces characters that identifiers cannot have by "_".
    given = {value.name: name for value, (name, _) in zip(model.graph.input, types, strict=True)}
    for value in model.graph.input:
        value.name = given[value.name]
    for node in model.graph.node:
        node.input[:] = [given.get(name, name) for name in node.input]
    return model


def _followed_by(first: onnx.ModelProto, second: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose second part takes the output of the first."""
    for part in (first, second):
        part.ir_version = max(first.ir_version, second.ir_version)
    # Names may occur in both; those of the inputs of the first and the outputs of the second are kept.
    begin = onnx.compose.add_prefix(first, "table/", rename_inputs=False)
    joint = [(begin.graph.output[0].name, second.graph.input[0].name)]
    return onnx.compose.merge_models(begin, second, io_map=joint)


def quantiles_of(net: Any) -> list[float] | None:
    """Return the quantiles that a network predicts."""
    loss = getattr(net, "loss", None)
    return [float(level) for level in loss.quantiles] if isinstance(loss, Quantiles) else None


def prediction_difference(estimator: Estimator, X: MatrixLike, outputs: Mapping[str, Output]) -> float:
    """Return the largest difference of predictions, relative to the largest one; of labels, the share that differs."""
    expected = np.asarray(estimator.predict(X))
    got = np.asarray(next(iter(outputs.values()))).reshape(expected.shape)
    if expected.dtype.kind != "f":
        return float(np.mean(got.astype(str) != expected.astype(str)))
    return float(np.max(np.abs(got - expected)) / max(1e-12, float(np.max(np.abs(expected)))))


TRAIN = Command(_train_arguments, _train, NOTES)

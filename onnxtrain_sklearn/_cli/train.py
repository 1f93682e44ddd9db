"""``train``: fit a network to a table and write it as one ONNX file, with scores and a report.

The command reads the table (``table_files``, ``table_columns``), splits its rows, fits the model (``fitting``), writes
the file and runs it again to compare its predictions with the estimator's (``onnx_files``).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.model_selection import train_test_split

from .arguments import parsed_settings, require_writable
from .console import Command, Console, Outcome, Record, UsageError, sentence
from .fitting import Rows, Trained, fit_option
from .model_option import BUILDERS, PICKLES, RECIPES, SECURITY, ModelOption, is_classifier_option, model_named
from .onnx_files import describe_table, prediction_difference, runner_of, save, whole_graph
from .report import Report, baseline, confusion, prediction_scores, write_report
from .table_columns import TableTask, Target, target_of, warn_of_row_numbers
from .table_files import read_table_file, require_columns, table_arguments, without_columns

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

DEFAULT_MODEL, DEFAULT_WITH_VALIDATION = "realmlp", "mlp"
"""Default models. The first, the best on small tables, holds out rows of its own and takes no ``--validation``."""


@dataclass(frozen=True)
class Splits:
    """The rows to train on, to test on and to stop on."""

    train: Rows
    test: Rows | None
    validation: Rows | None


@dataclass(frozen=True)
class Written:
    """The written file: its size, whether it holds the whole pipeline, and the difference of its predictions."""

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
    option = model_named(options.model or _default_model(options), options.trust)
    table = read_table_file(options.data, options.separator)
    frame = without_columns(table, options.drop)
    target = target_of(frame, options.target, task_of_model(option, options.task))
    if len(frame.columns) == 1:
        raise ValueError(f"{options.data}: there is no column besides the target {target.name!r} to predict it from.")
    console.progress(f"{options.data}: {len(frame)} rows, {len(frame.columns) - 1} columns besides the target")
    console.progress(f"target {target.name!r}: {target.task}, as {target.reason}")
    warn_of_row_numbers(frame.drop(columns=target.name))
    splits = _splits(options, frame.drop(columns=target.name), target)
    begun = time.monotonic()
    trained = fit_option(
        option, target.task, splits.train, splits.validation, settings, seed=options.seed, console=console
    )
    seconds = time.monotonic() - begun
    written = _write(trained, splits.test or splits.train, target, options.output, console)
    record = _train_record(option, target, splits, trained, written, settings) | {"seconds": seconds}
    if options.save is not None:
        record["saved"] = {"path": str(options.save), "bytes": save_estimator(trained, options.save)}
    if options.report is not None:
        matrix = confusion(trained, splits.test, target.task) if splits.test is not None else None
        record["report"] = [
            str(path) for path in write_report(Report(record, trained.net, matrix), options.report, console)
        ]
    return Outcome(record, _summary(record), succeeded=written.difference is None or written.difference <= SAME)


def task_of_model(option: ModelOption, task: TableTask | None) -> TableTask | None:
    """Return the task that a fitted model has; for others, the one that was given."""
    if option.kind not in ("fitted", "own"):
        return task
    own: TableTask = "classification" if is_classifier_option(option) else "regression"
    if task not in (None, own):
        raise UsageError(f"--task {task}: the fitted {type(option.model).__name__} is for {own}.")
    return own


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
    """Return the labels to stratify by; None for numbers, and where a class has too few rows for both parts."""
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
    option: ModelOption,
    target: Target,
    splits: Splits,
    trained: Trained,
    written: Written,
    settings: Mapping[str, object],
) -> dict[str, Any]:
    net, test = trained.net, splits.test
    return {
        "model": option.text,
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


def require_joblib_name(path: Path | None) -> None:
    """Raise UsageError where the name of the file has not the ending by which it is read again."""
    if path is not None and path.suffix not in PICKLES:
        raise UsageError(f"--save writes {', '.join(PICKLES[:-1])} or {PICKLES[-1]}, got {path.name!r}.")


def save_estimator(trained: Trained, path: Path) -> int:
    """Write the whole estimator, its preprocessing included, and return the size of the file."""
    import joblib

    path.parent.mkdir(parents=True, exist_ok=True)
    joblib.dump(trained.predictor, path)
    return path.stat().st_size


TRAIN = Command(_train_arguments, _train, NOTES)

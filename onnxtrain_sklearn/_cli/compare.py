"""``compare``: run two ONNX files on a table, and compare their predictions and scores."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .console import Command, Console, Outcome, Record, UsageError
from .predict import PIECE_ROWS, Output, Runner, runner_of
from .scores import Scores, row_losses, verdict
from .tables import TableTask, Target, open_table, require_columns, table_arguments, target_of, without_columns

NOTES = """\
example:
  onnxtrain-sklearn compare old.onnx new.onnx later.csv --target y"""


def _compare_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", type=Path, metavar="FIRST", help="ONNX file")
    parser.add_argument("second", type=Path, metavar="SECOND", help="ONNX file that predicts the same")
    table_arguments(parser)
    target = "the column that both predict; default: as the files say, if the table has it"
    parser.add_argument("--target", metavar="COLUMN", help=target)


def _compare(options: argparse.Namespace, console: Console) -> Outcome:
    paths = (options.first, options.second)
    runners = [runner_of(path) for path in paths]
    targets = {runner.table.get("target") for runner in runners}
    name = options.target
    if name is None and len(targets) > 1:
        both = " and ".join(repr(one) for one in targets)
        raise UsageError(f"The files predict the columns {both}: name the one to compare by --target.")
    name = name or next(iter(targets))
    told = runners[0].table
    source = open_table(options.data, options, console, decimal=told.get("decimal"), missing=told.get("missing"))
    frame = without_columns(source.read(), options.drop)
    if options.target is not None:
        require_columns(frame, [options.target], "--target")
    found = [_predictions(runner, frame.drop(columns=name or [], errors="ignore")) for runner in runners]
    (first, first_shares, _), (second, second_shares, _) = found
    if (first.dtype.kind == "f") != (second.dtype.kind == "f"):
        raise ValueError(f"{paths[0]} and {paths[1]} cannot be compared: one predicts numbers, the other classes.")
    is_regression = first.dtype.kind == "f"
    gap = np.abs(first - second) if is_regression else np.asarray(first.astype(str) != second.astype(str), float)
    record: dict[str, Any] = {"rows": len(frame), "target": name}
    if is_regression:
        record |= {"mean_difference": float(gap.mean()), "largest_difference": float(gap.max())}
        lines = [f"{len(frame)} rows; predictions differ by {gap.mean():.4g} in the mean, {gap.max():.4g} at most"]
    else:
        record["different_labels"] = int(gap.sum())
        lines = [f"{len(frame)} rows; {int(gap.sum())} labels differ"]
    if name is None or name not in frame.columns:
        return Outcome(record, [*lines, "Without the target in the table (--target), nothing says which is better."])
    task: TableTask = "regression" if is_regression else "classification"
    target = target_of(frame, name, task)
    has_shares = first_shares is not None and second_shares is not None
    scores, losses = [], []
    for predicted, shares, labels in found:
        y = _as_labels(frame[name], target, labels)
        own = Scores(task, labels, labels[1] if len(labels) == 2 else None)
        own.update(y, predicted, shares)
        scores.append(own.by_name())
        losses.append(row_losses(y, predicted, shares if has_shares else None, labels))
    sentence = verdict(losses[1], {str(paths[0]): losses[0]}, task, has_probabilities=has_shares, name=str(paths[1]))
    record |= {"scores": {str(path): one for path, one in zip(paths, scores, strict=True)}, "verdict": sentence}
    return Outcome(record, [*lines, *_told(record["scores"]), sentence])


def _told(scores: Mapping[str, Record]) -> list[str]:
    return [
        f"{path}: " + ", ".join(f"{name} {value:.4g}" for name, value in one.items()) for path, one in scores.items()
    ]


def _as_labels(column: Any, target: Target, labels: list[Any]) -> np.ndarray:
    """Return the target in the type of the labels of a file."""
    values = target.values_of(column)
    is_text = any(isinstance(label, str) for label in labels)
    return values.astype(str).astype(object) if is_text else values


def _predictions(runner: Runner, frame: Any) -> tuple[np.ndarray, np.ndarray | None, list[Any]]:
    """Return the predictions of a file, its probabilities, if it has some, and its classes."""
    size = runner.rows * max(1, PIECE_ROWS // runner.rows)
    parts = [runner.run(frame.iloc[begin : begin + size]) for begin in range(0, len(frame), size)]
    outputs: dict[str, list[Output]] = {name: [part[name] for part in parts] for name in parts[0]}
    predicted, *others = outputs.values()
    if isinstance(predicted[0], list):
        raise ValueError("The first output of a file holds no predictions, but scores by class.")
    answers = np.concatenate([np.asarray(one) for one in predicted])
    answers = answers.reshape(len(answers), -1)
    if answers.shape[1] != 1:
        raise ValueError(f"compare takes files with one prediction a row, got {answers.shape[1]} numbers.")
    answers = answers[:, 0]
    labels = list(runner.table.get("classes") or ())
    if answers.dtype.kind == "f" or not others:
        return answers, None, labels
    if isinstance(others[0][0], list):
        rows = [row for part in others[0] for row in part]
        labels = list(rows[0])
        return answers, np.array([[row[label] for label in labels] for row in rows], np.float64), labels
    shares = np.concatenate([np.asarray(part, np.float64) for part in others[0]])
    return answers, shares if shares.shape == (len(answers), len(labels)) else None, labels


COMPARE = Command(_compare_arguments, _compare, NOTES)

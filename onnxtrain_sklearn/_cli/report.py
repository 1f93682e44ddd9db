"""The report of ``train``: scores beside those of a constant prediction, settings, and a picture of the curves.

``write_report`` writes one HTML file, or Markdown with a PNG beside it; ``prediction_scores``, ``baseline`` and
``confusion`` compute its numbers.
"""

from __future__ import annotations

import base64
import html
import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import metrics

from .._utils.untrusted_text import printable
from ..displays.training import TrainingDisplay
from .console import Console, Record
from .fitting import Rows, Trained
from .table_columns import TableTask

NO_PICTURE = "There is no picture: matplotlib is not installed (pip install matplotlib)."

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:46em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse;margin:.5em 0}td,th{border:1px solid #ccc;padding:.2em .6em;text-align:left}"
    "td.n{text-align:right}img{max-width:100%}"
)


@dataclass(frozen=True)
class Report:
    """Contents of a report: the record of ``train``, the fitted estimator, and a confusion matrix with its labels."""

    record: Record
    net: Any
    matrix: tuple[list[Any], list[list[int]]] | None


@dataclass(frozen=True)
class ReportTable:
    """A table of the report, under a heading."""

    heading: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def write_report(report: Report, path: Path, console: Console) -> list[Path]:
    """Write a report, in the format of the name's ending, and return the paths of its files."""
    picture = _picture(report)
    if picture is None:
        console.progress(NO_PICTURE)
    path.parent.mkdir(parents=True, exist_ok=True)
    title = f"{report.record['target']} by {report.record['model']}"
    if path.suffix == ".html":
        path.write_text(_html(title, _tables(report), picture), encoding="utf-8")
        return [path]
    image = path.with_suffix(".png")
    path.write_text(_markdown(title, _tables(report), image.name if picture else None), encoding="utf-8")
    if picture is None:
        return [path]
    image.write_bytes(picture)
    return [path, image]


def _picture(report: Report) -> bytes | None:
    """Return the curves of the training as PNG; None: there is no matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    display = TrainingDisplay.of(report.net)
    panels = len(display.panels)
    figure = Figure(figsize=(6.4, 1.2 + 2.4 * panels), layout="constrained")
    display.plot(ax=figure.subplots(panels, 1, squeeze=False)[:, 0])
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    return file.getvalue()


def _tables(report: Report) -> list[ReportTable]:
    record = report.record
    return [*_score_tables(report), ReportTable("Training", ("setting", "value"), _settings(record))]


def _score_tables(report: Report) -> list[ReportTable]:
    scores: Mapping[str, Mapping[str, float]] = report.record["scores"]
    constant = report.record["baseline"]
    parts = {part: f"{part} ({report.record['rows'][part]} rows)" for part in scores}
    names = list(scores["train"])
    rows = [
        [
            name,
            *(_number(scores[part].get(name)) for part in parts),
            *([_number(constant.get(name))] if constant else []),
        ]
        for name in names
    ]
    head = ["score", *parts.values(), *(["constant prediction"] if constant else [])]
    tables = [ReportTable("Scores", head, rows)]
    if report.matrix is not None:
        labels, counts = report.matrix
        told = [[str(label), *map(str, row)] for label, row in zip(labels, counts, strict=True)]
        tables.append(ReportTable("Test rows by true class (rows) and predicted class", ["", *map(str, labels)], told))
    return tables


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _settings(record: Record) -> list[list[str]]:
    file, columns = record["onnx"], record["columns"]
    listed = ", ".join(columns[:20]) + (f" and {len(columns) - 20} more" if len(columns) > 20 else "")
    return [
        ["task", f"{record['task']}, as {record['task_reason']}"],
        ["columns", listed],
        ["settings", ", ".join(f"{name}={value!r}" for name, value in record["settings"].items()) or "defaults"],
        ["engine", record["engine"]],
        ["epochs", str(record["epochs"])],
        ["seconds", f"{record['seconds']:.1f}"],
        ["ONNX file", f"{file['path']}, {file['bytes']:,} bytes"],
        ["Python", sys.version.split()[0]],
    ]


def _html(title: str, tables: Sequence[ReportTable], picture: bytes | None) -> str:
    image = f"<p>{html.escape(NO_PICTURE)}</p>"
    if picture is not None:
        encoded = base64.b64encode(picture).decode()
        image = f'<img alt="Curves of the training" src="data:image/png;base64,{encoded}">'
    body = "".join(f"<h2>{html.escape(one.heading)}</h2>{_html_table(one)}" for one in tables)
    named = html.escape(title)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{named}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{named}</h1>{body}<h2>Curves</h2>{image}</body></html>\n"
    )


def _html_table(table: ReportTable) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in table.head)
    rows = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    return f"<table><tr>{head}</tr>{rows}</table>"


def _markdown(title: str, tables: Sequence[ReportTable], image: str | None) -> str:
    parts = [f"# {_markdown_cell(title)}"]
    for table in tables:
        lines = [table.head, ["---"] * len(table.head), *table.rows]
        parts.append(
            f"## {table.heading}\n\n" + "\n".join(f"| {' | '.join(map(_markdown_cell, row))} |" for row in lines)
        )
    parts.append("## Curves\n\n" + (NO_PICTURE if image is None else f"![Curves of the training]({image})"))
    return "\n\n".join(parts) + "\n"


def _markdown_cell(text: str) -> str:
    text = printable(text).replace("\\", "\\\\").replace("|", "\\|")
    return text.replace("<", "&lt;")


# Scores of a trained model, beside those of the best constant prediction.


LARGEST_TABLE = 12
"""Most classes for which the report has a confusion matrix."""


def prediction_scores(trained: Trained, rows: Rows, task: TableTask) -> dict[str, float]:
    """Return the scores on some rows by name."""
    X = trained.prepare(rows.frame)
    predicted = np.asarray(trained.predictor.predict(X))
    if task == "regression":
        return _regression_scores(rows.y, predicted)
    found = {
        "accuracy": float(metrics.accuracy_score(rows.y, predicted)),
        "balanced_accuracy": float(_balanced_accuracy(rows.y, predicted)),
    }
    if hasattr(trained.predictor, "predict_proba"):
        labels = trained.net.classes_
        if set(np.unique(rows.y)) <= set(labels):
            found["log_loss"] = float(metrics.log_loss(rows.y, trained.predictor.predict_proba(X), labels=labels))
    return found


def _balanced_accuracy(y: np.ndarray, predicted: np.ndarray) -> float:
    """Return the mean recall of the classes in ``y``; scikit-learn's warns where other classes are predicted."""
    return float(np.mean([np.mean(predicted[y == label] == label) for label in np.unique(y)]))


def _regression_scores(y: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    y, predicted = y.ravel(), predicted.ravel()
    return {
        "r2": float(metrics.r2_score(y, predicted)) if len(y) > 1 else float("nan"),
        "mean_absolute_error": float(metrics.mean_absolute_error(y, predicted)),
        "root_mean_squared_error": float(np.sqrt(metrics.mean_squared_error(y, predicted))),
    }


def baseline(train: np.ndarray, y: np.ndarray, task: TableTask) -> dict[str, float]:
    """Return the score of the most frequent class, or of the mean, of the rows that were trained."""
    if task == "regression":
        return _regression_scores(y, np.full(len(y), train.mean()))
    labels, counts = np.unique(train, return_counts=True)
    return {"accuracy": float(np.mean(y == labels[np.argmax(counts)]))}


def confusion(trained: Trained, rows: Rows, task: TableTask) -> tuple[list[Any], list[list[int]]] | None:
    """Return labels and counts (true by predicted) for few classes."""
    labels = [] if task == "regression" else list(trained.net.classes_)
    if not 2 <= len(labels) <= LARGEST_TABLE:
        return None
    predicted = trained.predictor.predict(trained.prepare(rows.frame))
    return labels, metrics.confusion_matrix(rows.y, predicted, labels=labels).tolist()

"""The report of ``train``: scores beside those of a constant prediction, settings, and a picture of the curves.

``write_report`` writes one HTML file, or Markdown with a PNG beside it. ``train`` computes the numbers.
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

from .._utils.untrusted_text import printable
from ..displays.training import TrainingDisplay
from .console import Console, Record

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
    picture = _curves_as_png(report)
    if picture is None:
        console.progress(NO_PICTURE)
    path.parent.mkdir(parents=True, exist_ok=True)
    title = f"{report.record['target']} by {report.record['model']}"
    tables = [*_score_tables(report), ReportTable("Training", ("setting", "value"), _settings(report.record))]
    if path.suffix == ".html":
        path.write_text(_html(title, tables, picture), encoding="utf-8")
        return [path]
    image = path.with_suffix(".png")
    path.write_text(_markdown(title, tables, image.name if picture else None), encoding="utf-8")
    if picture is None:
        return [path]
    image.write_bytes(picture)
    return [path, image]


def _curves_as_png(report: Report) -> bytes | None:
    """Return the curves of the training as PNG; None if there is no matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    # Without pyplot, which would choose a backend with windows and keep the figure in a global list.
    display = TrainingDisplay.of(report.net)
    panels = len(display.panels)
    figure = Figure(figsize=(6.4, 1.2 + 2.4 * panels), layout="constrained")
    display.plot(ax=figure.subplots(panels, 1, squeeze=False)[:, 0])
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    return file.getvalue()


def _score_tables(report: Report) -> list[ReportTable]:
    """Return the table of the scores, a column for each set of rows, and the confusion matrix if there is one."""
    columns: dict[str, Mapping[str, float]] = {
        f"{part} ({report.record['rows'][part]} rows)": scores for part, scores in report.record["scores"].items()
    }
    if report.record["baseline"]:
        columns["constant prediction"] = report.record["baseline"]
    rows = [
        [name, *(f"{scores[name]:.4g}" if name in scores else "" for scores in columns.values())]
        for name in report.record["scores"]["train"]
    ]
    tables = [ReportTable("Scores", ["score", *columns], rows)]
    if report.matrix is not None:
        labels, counts = report.matrix
        told = [[str(label), *map(str, row)] for label, row in zip(labels, counts, strict=True)]
        tables.append(ReportTable("Test rows by true class (rows) and predicted class", ["", *map(str, labels)], told))
    return tables


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
    def cells(tag: str, texts: Sequence[str]) -> str:
        # Names of columns and classes come from the table, and may hold markup.
        return f"<tr>{''.join(f'<{tag}>{html.escape(text)}</{tag}>' for text in texts)}</tr>"

    image = f"<p>{html.escape(NO_PICTURE)}</p>"
    if picture is not None:
        encoded = base64.b64encode(picture).decode()
        image = f'<img alt="Curves of the training" src="data:image/png;base64,{encoded}">'
    body = "".join(
        f"<h2>{html.escape(one.heading)}</h2><table>{cells('th', one.head)}"
        f"{''.join(cells('td', row) for row in one.rows)}</table>"
        for one in tables
    )
    named = html.escape(title)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{named}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{named}</h1>{body}<h2>Curves</h2>{image}</body></html>\n"
    )


def _markdown(title: str, tables: Sequence[ReportTable], image: str | None) -> str:
    def escaped(text: str) -> str:
        return printable(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")

    parts = [f"# {escaped(title)}"]
    for table in tables:
        lines = [table.head, ["---"] * len(table.head), *table.rows]
        parts.append(f"## {table.heading}\n\n" + "\n".join(f"| {' | '.join(map(escaped, row))} |" for row in lines))
    parts.append("## Curves\n\n" + (NO_PICTURE if image is None else f"![Curves of the training]({image})"))
    return "\n\n".join(parts) + "\n"

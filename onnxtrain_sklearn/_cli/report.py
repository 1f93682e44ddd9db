"""The report of ``train``: scores beside those of other models, what they rest on, how the file was made, pictures.

``write_report`` writes one HTML file, or a model card in Markdown with PNG files beside it. ``train`` and ``scores``
compute the numbers.
"""

from __future__ import annotations

import base64
import html
import io
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._ort import packages
from .._utils.untrusted_text import printable
from ..displays.training import TrainingDisplay
from .console import Console, Record
from .scores import Assessment

if TYPE_CHECKING:
    import argparse

NO_PICTURE = "There is no picture: matplotlib is not installed (pip install matplotlib)."

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:46em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse;margin:.5em 0}td,th{border:1px solid #ccc;padding:.2em .6em;text-align:left}"
    "td.n{text-align:right}img{max-width:100%}"
)


@dataclass(frozen=True)
class Report:
    """Contents of a report.

    Attributes
    ----------
    record : mapping
        The record of ``train``.
    net : estimator
        The fitted estimator.
    matrix : tuple of labels and counts, or None
        The confusion matrix.
    calibration : list of tuple, or None
        Mean probability, share and rows of each bin.
    assessment : Assessment or None
        None without rows that are held out.
    """

    record: Record
    net: Any
    matrix: tuple[list[Any], list[list[int]]] | None
    calibration: list[tuple[float, float, int]] | None
    assessment: Assessment | None


@dataclass(frozen=True)
class Section:
    """A section of the report: paragraphs, and a table if it has rows."""

    heading: str
    paragraphs: Sequence[str] = ()
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


@dataclass(frozen=True)
class Picture:
    """A picture of the report; ``name`` is added to that of the report's file."""

    heading: str
    name: str
    content: bytes


def provenance(files: Sequence[Path], options: argparse.Namespace) -> dict[str, Any]:
    """Return how a file is made: from which files, when, by which command and which versions."""
    versions = {"Python": sys.version.split()[0], "onnxruntime": packages.version()}
    for name in ("onnxtrain-sklearn", "scikit-learn", "numpy", "pandas"):
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "files": [str(file) for file in files],
        "bytes": sum(file.stat().st_size for file in files),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": options.command_line,
        "versions": versions,
    }


def rarity(record: Record) -> list[str]:
    """Return sentences about rare classes, and about the probability from which on one of two is predicted best."""
    rare, best = record["rare_classes"], record["threshold"]
    lines = []
    if rare:
        named = ", ".join(f"{str(label)!r} ({share:.2g} of the rows)" for label, share in list(rare.items())[:5])
        more = f" and {len(rare) - 5} more" if len(rare) > 5 else ""
        lines.append(f"rare classes: {named}{more}; accuracy says little about them")
    if best is not None and (rare or best["threshold"] != 0.5):
        name = best["score"].replace("_", " ")
        lines.append(
            f"{str(best['positive'])!r} is predicted best from a probability of {best['threshold']:.3g}: {name} "
            f"{best['value']:.4g} on the test rows, from which it is chosen, against {best['usual']:.4g} from 0.5"
        )
    return lines


def write_report(report: Report, path: Path, console: Console) -> list[Path]:
    """Write a report, in the format of the name's ending, and return the paths of its files."""
    pictures = _pictures(report)
    if pictures is None:
        console.progress(NO_PICTURE)
    path.parent.mkdir(parents=True, exist_ok=True)
    title = f"{report.record['target']} by {report.record['model']}"
    sections = _sections(report)
    if path.suffix == ".html":
        path.write_text(_html(title, sections, pictures), encoding="utf-8")
        return [path]
    images = [path.with_name(f"{path.stem}{one.name}.png") for one in pictures or ()]
    text = _markdown(title, sections, None if pictures is None else list(zip(pictures, images, strict=True)))
    path.write_text(_METADATA.format(task=report.record["task"]) + text, encoding="utf-8")
    for one, image in zip(pictures or (), images, strict=True):
        image.write_bytes(one.content)
    return [path, *images]


_METADATA = """\
---
library_name: onnx
tags: [tabular-{task}, onnx, onnxtrain-sklearn]
---

"""
"""The beginning of a model card, by which hubs of models list it."""


def _pictures(report: Report) -> list[Picture] | None:
    """Return the pictures as PNG; None if there is no matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None

    def content(figure: Any) -> bytes:
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=100)
        return file.getvalue()

    # Without pyplot, which would choose a backend with windows and keep the figure in a global list.
    display = TrainingDisplay.of(report.net)
    panels = len(display.panels)
    figure = Figure(figsize=(6.4, 1.2 + 2.4 * panels), layout="constrained")
    display.plot(ax=figure.subplots(panels, 1, squeeze=False)[:, 0])
    pictures = [Picture("Curves of the training", "", content(figure))]
    if report.calibration is not None:
        figure = Figure(figsize=(4.8, 4.4), layout="constrained")
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color="0.7", label="as often as predicted")
        mean, share, _ = zip(*report.calibration, strict=True)
        axes.plot(mean, share, marker="o", label="model")
        axes.set(xlabel="mean predicted probability", ylabel="share of the rows")
        axes.legend()
        pictures.append(Picture("Calibration curve", "-calibration", content(figure)))
    return pictures


LISTED = 30
"""Most columns or classes that a table of the report lists."""


def _sections(report: Report) -> list[Section]:
    record, assessment = report.record, report.assessment
    file = record["onnx"]
    use = f"onnxtrain-sklearn predict {shlex.quote(file['path'])} TABLE"
    classes = "" if record["classes"] is None else f" of {len(record['classes'])} classes"
    summary = [f"A model that predicts the column {record['target']!r} ({record['task']}{classes}). Run it by: {use}"]
    if assessment is not None:
        summary.append(assessment.verdict)
    sections = [Section("Summary", [*summary, *rarity(record)]), _scores(report)]
    if report.matrix is not None:
        labels, counts = report.matrix
        told = [[str(label), *map(str, row)] for label, row in zip(labels, counts, strict=True)]
        heading = "Test rows by true class (rows) and predicted class"
        sections.append(Section(heading, (), ["", *map(str, labels)], told))
    if assessment is not None and assessment.per_class:
        rows = [
            [str(label), *(f"{value:.3g}" for value in values[:3]), str(values[3])]
            for label, values in list(assessment.per_class.items())[:LISTED]
        ]
        sections.append(Section("Classes", (), ["class", "precision", "recall", "F1", "rows"], rows))
    if report.calibration is not None:
        positive = str(record["threshold"]["positive"])
        rows = [[f"{mean:.3g}", f"{share:.3g}", str(count)] for mean, share, count in report.calibration]
        head = ["mean predicted probability", f"share of {positive}", "rows"]
        sections.append(Section("Calibration", (), head, rows))
    if assessment is not None:
        rows = [[name, f"{mean:.3g}", f"{std:.2g}"] for name, (mean, std) in assessment.importances.items()]
        what = "How much the loss on the test rows rises if a column is shuffled (permutation importance)."
        head = ["column", "rise of the loss", "standard deviation"]
        sections.append(Section("Importances", [what], head, rows[:LISTED]))
    sections.append(Section("Training", (), ("setting", "value"), _settings(record)))
    if record["warnings"]:
        sections.append(Section("Warnings of the training", record["warnings"]))
    source = record["provenance"]
    files = source["files"]
    more = f" and {len(files) - 5} more" if len(files) > 5 else ""
    rows = [
        ["files", f"{', '.join(files[:5])}{more}, {source['bytes']:,} bytes"],
        ["rows", f"{record['rows']['train']} to train on, {record['rows']['test']} to test on"],
        ["date", source["date"]],
        ["command", source["command"]],
        ["versions", ", ".join(f"{name} {version}" for name, version in source["versions"].items())],
    ]
    return [*sections, Section("Provenance", (), ("of", "value"), rows)]


def _scores(report: Report) -> Section:
    """Return the scores, a column for each set of rows and for each other model."""
    record = report.record
    columns: dict[str, Mapping[str, float]] = {
        f"{part} ({record['rows'][part]} rows)": scores for part, scores in record["scores"].items()
    }
    told = []
    if report.assessment is not None:
        columns |= report.assessment.baselines
        if report.assessment.n_rows < record["rows"]["test"]:
            told.append(f"The other models are trained on a sample, and tested on {report.assessment.n_rows} rows.")
    if record["baseline"]:
        columns["constant prediction"] = record["baseline"]
    names = list(dict.fromkeys(name for scores in record["scores"].values() for name in scores))
    rows = [[name, *(f"{scores[name]:.4g}" if name in scores else "" for scores in columns.values())] for name in names]
    return Section("Scores", told, ["score", *columns], rows)


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
    ]


def _html(title: str, sections: Sequence[Section], pictures: Sequence[Picture] | None) -> str:
    def cells(tag: str, texts: Sequence[str]) -> str:
        # Names of columns and classes come from the table, and may hold markup.
        return f"<tr>{''.join(f'<{tag}>{html.escape(text)}</{tag}>' for text in texts)}</tr>"

    def table(one: Section) -> str:
        if not one.rows:
            return ""
        return f"<table>{cells('th', one.head)}{''.join(cells('td', row) for row in one.rows)}</table>"

    body = "".join(
        f"<h2>{html.escape(one.heading)}</h2>{''.join(f'<p>{html.escape(text)}</p>' for text in one.paragraphs)}"
        f"{table(one)}"
        for one in sections
    )
    body += f"<p>{html.escape(NO_PICTURE)}</p>" if pictures is None else ""
    for one in pictures or ():
        encoded = base64.b64encode(one.content).decode()
        body += f'<h2>{one.heading}</h2><img alt="{one.heading}" src="data:image/png;base64,{encoded}">'
    named = html.escape(title)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{named}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{named}</h1>{body}</body></html>\n"
    )


def _markdown(title: str, sections: Sequence[Section], pictures: Sequence[tuple[Picture, Path]] | None) -> str:
    def escaped(text: str) -> str:
        return printable(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")

    parts = [f"# {escaped(title)}"]
    for one in sections:
        parts += [f"## {one.heading}", *map(escaped, one.paragraphs)]
        if one.rows:
            lines = [one.head, ["---"] * len(one.head), *one.rows]
            parts.append("\n".join(f"| {' | '.join(map(escaped, row))} |" for row in lines))
    parts += [NO_PICTURE] if pictures is None else []
    for picture, image in pictures or ():
        parts += [f"## {picture.heading}", f"![{picture.heading}]({image.name})"]
    return "\n\n".join(parts) + "\n"

"""HTML of an estimator in notebooks: scikit-learn's table, links to the documentation, graph and loss curve.

This module draws graph and curves as SVG, so that they need no library and no network. It escapes all text, because the
names in a graph may come from an untrusted file.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from html import escape
from importlib import metadata
from typing import Any

from .._importers.load import load
from .._ir.drawing import BoxLayout, graph_svg
from .._utils.params import Declaration
from .._utils.typing import HistoryRow
from ..exceptions import ModelError

PACKAGE, DISTRIBUTION = "onnxtrain_sklearn", "onnxtrain-sklearn"

PAGE = f"api/generated/{PACKAGE}.{{name}}.html"
"""The path of the page of a public class, within the documentation."""

MOST_BOXES = 200
"""Most boxes of a graph that is drawn; larger graphs would be unreadable."""

MOST_CURVES = 16
"""Most curves that are drawn; of a larger ensemble, the curves of its first networks are drawn."""


@lru_cache(maxsize=1)
def documentation_url() -> str | None:
    """Return the URL of the documentation from the package's metadata; None if there is none."""
    try:
        declared = metadata.metadata(DISTRIBUTION).get_all("Project-URL") or []
    except metadata.PackageNotFoundError:
        return None
    found = dict(re.split(r"\s*,\s*", entry, maxsplit=1) for entry in declared if "," in entry)
    return found.get("Documentation")


def page_of(kind: type) -> str:
    """Return the URL of the page on a class; empty for classes of other packages, and without documentation."""
    site = documentation_url()
    if site is None or kind.__module__.partition(".")[0] != PACKAGE:
        return ""
    return f"{site.rstrip('/')}/{PAGE.format(name=kind.__name__)}"


def meanings(estimator: Any) -> str:
    """Return an HTML list of the parameters and their meanings; empty if scikit-learn links to the documentation."""
    if documentation_url() is not None:
        return ""
    declared: Mapping[str, Declaration] = type(estimator).declared
    names = [name for name in inspect.signature(type(estimator)).parameters if name in declared]
    entries = []
    for name in names:  # remove the markup of reStructuredText
        text = re.sub(r":\w+:`~?([^`]*)`", r"\1", declared[name].text).replace("``", "").strip()
        entries.append(f"<dt><code>{escape(name)}</code>: {escape(declared[name].kind)}</dt><dd>{escape(text)}</dd>")
    return _unfolding("What the parameters mean", f"<dl>{''.join(entries)}</dl>")


def pictures(estimator: Any) -> str:
    """Return the curves and the graph of a fitted estimator, in sections that the reader can unfold."""
    rows = getattr(estimator, "history_", None)
    if rows is None:
        return ""
    return f"{_unfolding('Training', _curve_drawings(rows))}{_unfolding('Graph', _graph(estimator))}"


def _unfolding(title: str, content: str) -> str:
    return (
        f"<details><summary>{title}</summary>"
        f'<div style="overflow: auto; max-height: 40em; background: white; color: black">{content}</div></details>'
    )


def _curve_drawings(rows: Iterable[HistoryRow]) -> str:
    """Return drawings of the losses and the validation scores in a history."""
    losses: dict[str, list[float]] = {}
    scores: dict[str, list[float]] = {}
    for row in rows:
        network = f" of network {row['network'] + 1}" if "network" in row else ""
        for found, key, name in (
            (losses, "loss", "loss"),
            (losses, "validation_loss", "validation loss"),
            (scores, "validation_score", "validation score"),
        ):
            if key in row:
                found.setdefault(name + network, []).append(math.nan if row[key] is None else float(row[key]))
    return "".join(curves_svg(dict(list(curves.items())[:MOST_CURVES])) for curves in (losses, scores) if curves)


def _graph(estimator: Any) -> str:
    """Return a drawing of the inference graph, or a sentence if it cannot be drawn."""
    try:
        ir_graph = load(estimator.to_onnx()).graph
    except ModelError as error:  # for example, ONNX has no type for the labels
        return escape(str(error))
    describe = getattr(estimator, "describe", None)
    trained = ir_graph.initializers if describe is None else {entry.name for entry in describe().of("trained")}
    count = len(ir_graph) + len(ir_graph.inputs) + len(ir_graph.outputs)
    if count > MOST_BOXES:
        return (
            f"{count} nodes, inputs and outputs: too many to be read here. displays.plot_graph draws them for Graphviz."
        )
    layout = BoxLayout(ir_graph, trained)
    return graph_svg(layout.boxes, layout.edges)


# Draw curves as SVG.


WIDTH, HEIGHT = 420, 150
"""Size of the area that curves are drawn in, in pixels."""
LEFT, TOP, BOTTOM = 70, 10, 22
"""Margins, for labels."""

COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#17becf")
MOST_POINTS = 420
"""Most points of a curve that are drawn: more points than pixels would be invisible."""


def curves_svg(curves: Mapping[str, Sequence[float]]) -> str:
    """Return a drawing of named curves over epochs; the scale is logarithmic if all numbers are positive.

    Numbers that are not finite leave a gap.
    """
    known = [value for curve in curves.values() for value in curve if math.isfinite(value)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    logarithmic = low > 0
    epochs = max(map(len, curves.values()), default=0)
    lines = [_polyline(curve, COLORS[i % len(COLORS)], (low, high), epochs) for i, curve in enumerate(curves.values())]
    scale = "logarithmic" if logarithmic else "linear"
    ends = ((high, TOP + 8), (low, TOP + HEIGHT)) if high > low else ((high, TOP + HEIGHT / 2),)
    labels = [_svg_text(LEFT - 6, y, f"{value:.4g}", "end") for value, y in ends]
    ticks = [
        _svg_text(LEFT, TOP + HEIGHT + 16, "1"),
        _svg_text(LEFT + WIDTH, TOP + HEIGHT + 16, f"epoch {epochs}", "end"),
    ]
    names = [
        _svg_text(LEFT + WIDTH + 8, TOP + 12 * (i + 1), name, color=COLORS[i % len(COLORS)])
        for i, name in enumerate(curves)
    ]
    full = LEFT + WIDTH + 12 + 7 * max(map(len, curves), default=0), TOP + HEIGHT + BOTTOM
    frame = f'<path d="M{LEFT} {TOP} v{HEIGHT} h{WIDTH}" fill="none" stroke="gray"><title>{scale} scale</title></path>'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{full[0]}" height="{full[1]}" '
        f'viewBox="0 0 {full[0]} {full[1]}" font-family="sans-serif" font-size="11">'
    )
    return "\n".join([head, frame, *lines, *labels, *ticks, *names, "</svg>"])


def _svg_text(x: float, y: float, text: str, anchor: str = "start", color: str = "gray") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{escape(text)}</text>'


def _polyline(curve: Sequence[float], color: str, limits: tuple[float, float], epochs: int) -> str:
    """Return the path of a curve; a point without neighbors becomes a dot."""
    every = math.ceil(len(curve) / MOST_POINTS) if curve else 1
    shown = sorted({*range(0, len(curve), every), len(curve) - 1}) if curve else []
    parts, part = [], list[str]()
    for i in shown:
        if math.isfinite(curve[i]):
            x = LEFT + WIDTH * i / max(epochs - 1, 1)
            # the lowest number at the bottom, the highest at the top; equal ones in the middle
            number, (low, high) = curve[i], limits
            if low > 0:
                number, low, high = math.log(number), math.log(low), math.log(high)
            share = (high - number) / (high - low) if high > low else 0.5
            part.append(f"{x:.1f} {TOP + HEIGHT * share:.1f}")
        elif part:
            parts.append(part)
            part = []
    joined = " ".join(
        f"M{' L'.join(points)}" + ("h0.01" if len(points) == 1 else "") for points in [*parts, part] if points
    )
    return f'<path d="{joined}" fill="none" stroke="{color}" stroke-width="1.5" stroke-linecap="round"/>'

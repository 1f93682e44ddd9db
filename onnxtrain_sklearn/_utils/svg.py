"""Curves of a training run as SVG, which browsers and notebooks show without a library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 420, 150
"""Size of the area that curves are drawn in, in pixels."""
LEFT, TOP, BOTTOM = 70, 10, 22
"""Margins, for labels."""

COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#17becf")
MOST_POINTS = 420
"""Points of a curve that are drawn: more than pixels cannot be told apart."""

Numbers = Sequence[float]


def curves_svg(curves: Mapping[str, Numbers]) -> str:
    """Return a drawing of curves over epochs, by name; on a logarithmic scale where all numbers are positive.

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


def _polyline(curve: Numbers, color: str, limits: tuple[float, float], epochs: int) -> str:
    """Return the line of a curve; a point that stands alone is a dot."""
    every = math.ceil(len(curve) / MOST_POINTS) if curve else 1
    shown = sorted({*range(0, len(curve), every), len(curve) - 1}) if curve else []
    parts, part = [], list[str]()
    for i in shown:
        if math.isfinite(curve[i]):
            x = LEFT + WIDTH * i / max(epochs - 1, 1)
            part.append(f"{x:.1f} {_height_of(curve[i], limits):.1f}")
        elif part:
            parts.append(part)
            part = []
    joined = " ".join(
        f"M{' L'.join(points)}" + ("h0.01" if len(points) == 1 else "") for points in [*parts, part] if points
    )
    return f'<path d="{joined}" fill="none" stroke="{color}" stroke-width="1.5" stroke-linecap="round"/>'


def _height_of(value: float, limits: tuple[float, float]) -> float:
    """Return the distance from the top."""
    low, high = limits
    if low == high:
        return TOP + HEIGHT / 2
    if low > 0:
        value, low, high = math.log(value), math.log(low), math.log(high)
    return TOP + HEIGHT * (high - value) / (high - low)

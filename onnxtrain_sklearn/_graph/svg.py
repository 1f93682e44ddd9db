"""Drawings of graphs as SVG, which browsers and notebooks show without a library."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .layout import Box, Edge

CHARACTER, LINE = 6.2, 14
"""Width of a character and height of a line, in pixels; wide enough for any sans-serif font at 10 pixels."""
PADDING, GAP = 8, 28
"""Around the text of a box, and between boxes."""


def graph_svg(boxes: Sequence[Box], edges: Sequence[Edge]) -> str:
    """Return the drawing of a layout, from the inputs at the top to the outputs."""
    column = max(map(_width, boxes), default=0) + GAP
    heights = [0] * (1 + max((box.layer for box in boxes), default=0))
    for box in boxes:
        heights[box.layer] = max(heights[box.layer], _height(box) + GAP)
    tops = [GAP / 2 + sum(heights[:layer]) for layer in range(len(heights) + 1)]
    middles = [(column * (box.place + 0.5), tops[box.layer]) for box in boxes]
    size = column * (1 + max((box.place for box in boxes), default=0)), tops[-1]
    lines = [_arrow(middles[i], _height(boxes[i]), middles[j], shape) for i, j, shape in edges]
    drawn = [_drawn_box(box, *middle) for box, middle in zip(boxes, middles, strict=True)]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]:.0f}" height="{size[1]:.0f}" '
        f'viewBox="0 0 {size[0]:.0f} {size[1]:.0f}" font-family="sans-serif" font-size="10">'
    )
    return "\n".join([head, *lines, *drawn, "</svg>"])


def _width(box: Box) -> float:
    return max(map(len, (box.title, *box.lines))) * CHARACTER + 2 * PADDING


def _height(box: Box) -> int:
    return LINE * (1 + len(box.lines)) + PADDING


def _drawn_box(box: Box, x: float, top: float) -> str:
    width, height = _width(box), _height(box)
    rectangle = (
        f'<rect x="{x - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height}" rx="4" '
        f'fill="{box.color}" stroke="gray"/>'
    )
    rows = [
        f'<text x="{x:.1f}" y="{top + LINE * (i + 1):.1f}" text-anchor="middle" fill="black">{escape(line)}</text>'
        for i, line in enumerate((box.title, *box.lines))
    ]
    return "".join([rectangle, *rows])


def _arrow(start: tuple[float, float], height: int, end: tuple[float, float], shape: str) -> str:
    """Return an arrow from the lower edge of a box to the upper edge of another, with the shape beside it."""
    (x_0, top), (x_1, y_1) = start, end
    y_0 = top + height
    line = f'<line x1="{x_0:.1f}" y1="{y_0:.1f}" x2="{x_1:.1f}" y2="{y_1 - 5:.1f}" stroke="gray"/>'
    head = f'<path d="M{x_1 - 3:.1f} {y_1 - 6:.1f} h6 l-3 6 z" fill="gray"/>'
    text = (
        f'<text x="{(x_0 + x_1) / 2 + 4:.1f}" y="{(y_0 + y_1) / 2 + 2:.1f}" font-size="8" fill="gray">'
        f"{escape(shape)}</text>"
    )
    return line + head + text

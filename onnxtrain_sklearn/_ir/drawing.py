"""Draw a graph as SVG, in layers: places, colors and texts of its nodes.

:class:`BoxLayout` places the boxes and edges, and :func:`graph_svg` draws them. Browsers and notebooks show the result
without a library.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from html import escape

import onnx_ir as ir

Edge = tuple[int, int, str]
"""The boxes that a value connects, and its shape."""


@dataclass(frozen=True)
class Box:
    """A box of the drawing: an input, an output, or an operator with the constants that it alone reads.

    Attributes
    ----------
    kind : {"input", "output", "operator"}
    title : str
        The operator, or the name of the input or output.
    lines : tuple of str
        For an operator, its constants with their shapes; for an input or output, its type and shape.
    trained : bool
        Whether a constant among them is trained.
    layer, place : int
        The row of the box from the top, and its position in the row.
    """

    kind: str
    title: str
    lines: tuple[str, ...]
    trained: bool
    layer: int = 0
    place: int = 0

    @property
    def color(self) -> str:
        """The name of the box's color, valid in Graphviz, matplotlib and SVG."""
        return "orange" if self.trained else "white" if self.kind == "operator" else "lightblue"


class BoxLayout:
    """The boxes and edges of a graph, and the positions of the boxes.

    Parameters
    ----------
    graph : onnx_ir.Graph
    trained : collection of str
        The names of the trained parameters.
    """

    def __init__(self, graph: ir.Graph, trained: Collection[str]) -> None:
        self._makers: dict[str, int] = {}
        self._in_layer: dict[int, int] = {}
        self.boxes: list[Box] = []
        self.edges: list[Edge] = []
        for value in graph.inputs:
            self._add(Box("input", value.name or "", (_typed_shape(value),), False), [], [value])
        for node in graph:
            if node.op_type == "Constant":
                continue
            reads = [value for value in node.inputs if value is not None]
            held = [value for value in reads if value.name in graph.initializers]
            lines = tuple(f"{value.name} {_joined_sizes(value)}" for value in held)
            box = Box("operator", node.op_type, lines, any(value.name in trained for value in held))
            self._add(box, reads, node.outputs)
        for value in graph.outputs:
            self._add(Box("output", value.name or "", (_typed_shape(value),), False), [value], [])

    def _add(self, box: Box, reads: Collection[ir.Value], makes: Collection[ir.Value]) -> None:
        """Place a box below all boxes whose values it reads, to the right of those in its layer."""
        sources = [(self._makers[v.name or ""], _joined_sizes(v)) for v in reads if v.name in self._makers]
        self.edges += [(source, len(self.boxes), shape) for source, shape in sources]
        layer = 1 + max((self.boxes[source].layer for source, _ in sources), default=-1)
        place = self._in_layer.get(layer, 0)
        self._in_layer[layer] = place + 1
        self._makers |= {value.name or "": len(self.boxes) for value in makes}
        self.boxes.append(Box(box.kind, box.title, box.lines, box.trained, layer, place))


def _joined_sizes(value: ir.Value) -> str:
    held = value.const_value
    sizes = held.shape if held is not None else value.shape
    if sizes is None:
        return "?"
    return "x".join("?" if str(size) == "None" else str(size) for size in sizes) or "scalar"


def _typed_shape(value: ir.Value) -> str:
    kind = "?" if value.dtype is None else value.dtype.name.lower()
    return f"{kind} {_joined_sizes(value)}"


# The drawing as SVG.


CHARACTER, LINE = 6.2, 14
"""Width of a character and height of a line, in pixels; wide enough for any sans-serif font at 10 pixels."""
PADDING, GAP = 8, 28
"""Pixels around the text of a box, and between boxes."""


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

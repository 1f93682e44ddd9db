"""BoxLayout of a graph for drawings: boxes in layers, each below all those that it reads from."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

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
        The constants with their shapes, or type and shape.
    trained : bool
        Whether a constant among them is trained.
    layer, place : int
        Its row from the top, and its place in the row.
    """

    kind: str
    title: str
    lines: tuple[str, ...]
    trained: bool
    layer: int = 0
    place: int = 0

    @property
    def color(self) -> str:
        """The name of its color, for Graphviz, matplotlib and SVG."""
        return "orange" if self.trained else "white" if self.kind == "operator" else "lightblue"


class BoxLayout:
    """The boxes and edges of a graph, and where the boxes are.

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
            if node.op_type != "Constant":
                self._add_node(node, graph, trained)
        for value in graph.outputs:
            self._add(Box("output", value.name or "", (_typed_shape(value),), False), [value], [])

    def _add_node(self, node: ir.Node, graph: ir.Graph, trained: Collection[str]) -> None:
        reads = [value for value in node.inputs if value is not None]
        held = [value for value in reads if value.name in graph.initializers]
        lines = tuple(f"{value.name} {_joined_sizes(value)}" for value in held)
        box = Box("operator", node.op_type, lines, any(value.name in trained for value in held))
        self._add(box, reads, node.outputs)

    def _add(self, box: Box, reads: Collection[ir.Value], makes: Collection[ir.Value]) -> None:
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

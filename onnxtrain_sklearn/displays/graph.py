"""Drawings of ONNX graphs: as text for Graphviz, and by matplotlib."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from .._graph.protobuf import load
from ..models import ModelSource
from .axes import given_axes, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from typing_extensions import Self

MOST_NODES = 200
"""Nodes up to which matplotlib draws a graph; larger ones are for Graphviz."""


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


class GraphDisplay:
    """A drawing of an ONNX graph; :func:`plot_graph` makes one.

    Parameters
    ----------
    boxes : sequence of Box
        Inputs, operators and outputs.
    edges : sequence of (int, int, str)
        The boxes that a value connects, and its shape.

    Attributes
    ----------
    ax_ : matplotlib.axes.Axes
    figure_ : matplotlib.figure.Figure
    texts_ : list of matplotlib.text.Text
        The boxes, as drawn.
    """

    def __init__(self, boxes: Iterable[Box], edges: Iterable[tuple[int, int, str]]) -> None:
        self.boxes = tuple(boxes)
        self.edges = tuple(edges)

    @property
    def dot(self) -> str:
        """The graph in the language of Graphviz, for ``dot -Tsvg``."""
        colors = {"input": "lightblue", "output": "lightblue", "operator": "white"}
        lines = ["digraph model {", '  node [shape=box style="rounded,filled" fontname=Helvetica fontsize=10]']
        for i, box in enumerate(self.boxes):
            color = "orange" if box.trained else colors[box.kind]
            lines.append(f'  b{i} [label="{_quoted(_label(box))}" fillcolor={color}]')
        lines += [f'  b{i} -> b{j} [label="{_quoted(shape)}" fontsize=8]' for i, j, shape in self.edges]
        return "\n".join([*lines, "}"])

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw the graph by matplotlib, from the inputs at the top to the outputs.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, default=None
            Where to draw; None: in a new figure.

        Returns
        -------
        GraphDisplay
            The display itself, with ``ax_``, ``figure_`` and ``texts_``.

        Raises
        ------
        ValueError
            The graph has too many nodes to be read; ``dot`` has them all.
        """
        if len(self.boxes) > MOST_NODES:
            raise ValueError(
                f"The graph has {len(self.boxes)} nodes, inputs and outputs, of which at most {MOST_NODES} can be read "
                f"in one picture: give the text in dot to Graphviz."
            )
        layers, width = 1 + max(b.layer for b in self.boxes), 1 + max(b.place for b in self.boxes)
        self.ax_ = (
            new_axes(1, (2.6 * width + 1, 0.9 * layers + 0.5))[0] if ax is None else given_axes(ax, 1, "a graph")[0]
        )
        self.figure_ = self.ax_.figure
        self.ax_.set_axis_off()
        self.ax_.set(xlim=(-0.6, width - 0.4), ylim=(layers - 0.5, -0.5))
        for i, j, shape in self.edges:
            self._draw_edge(self.boxes[i], self.boxes[j], shape)
        self.texts_ = [self._draw_box(box) for box in self.boxes]
        return self

    def _draw_edge(self, start: Box, end: Box, shape: str) -> None:
        ends = (start.place, start.layer), (end.place, end.layer)
        arrow = {"arrowstyle": "->", "color": "gray", "shrinkA": 12, "shrinkB": 14}
        self.ax_.annotate("", xy=ends[1], xytext=ends[0], arrowprops=arrow)
        middle = [sum(numbers) / 2 for numbers in zip(*ends, strict=True)]
        self.ax_.text(middle[0], middle[1], f" {shape}", fontsize=6, color="gray")

    def _draw_box(self, box: Box) -> Any:
        color = "orange" if box.trained else "white" if box.kind == "operator" else "lightblue"
        style = {"boxstyle": "round", "facecolor": color, "edgecolor": "gray"}
        return self.ax_.text(box.place, box.layer, _label(box), ha="center", va="center", fontsize=8, bbox=style)


def plot_graph(model: ModelSource | object, *, ax: Axes | None = None, draw: bool = True) -> GraphDisplay:
    r"""Draw an ONNX graph with its shapes; operators that have trained parameters are in orange.

    Parameters
    ----------
    model : onnx.ModelProto, bytes, str, path or estimator
        A graph; the parameters that an estimator would train are marked. Or an estimator of this package: a fitted one
        is drawn as it predicts, with the parameters that were trained, and one that is not fitted by its ``model``.
    ax : matplotlib.axes.Axes, default=None
        Where to draw; None: in a new figure.
    draw : bool, default=True
        Whether to draw by matplotlib; ``dot`` has the graph for Graphviz in any case.

    Returns
    -------
    GraphDisplay

    Raises
    ------
    ModelError
        The graph is not valid.
    ValueError
        The graph is too large to draw.

    Examples
    --------
    >>> import onnx
    >>> from onnxtrain_sklearn.displays import plot_graph
    >>> model = onnx.parser.parse_model('''
    ...     <ir_version: 8, opset_import: ["": 18]> net (float[N, 2] X) => (float[N, 1] Y)
    ...     <float[2, 1] W = {1, 2}> { Z = MatMul(X, W)  Y = Sigmoid(Z) }''')
    >>> print(plot_graph(model, draw=False).dot)
    digraph model {
      node [shape=box style="rounded,filled" fontname=Helvetica fontsize=10]
      b0 [label="X\nfloat Nx2" fillcolor=lightblue]
      b1 [label="MatMul\nW 2x1" fillcolor=orange]
      b2 [label="Sigmoid" fillcolor=white]
      b3 [label="Y\nfloat Nx1" fillcolor=lightblue]
      b0 -> b1 [label="Nx2" fontsize=8]
      b1 -> b2 [label="Nx1" fontsize=8]
      b2 -> b3 [label="Nx1" fontsize=8]
    }
    """
    graph, trained = _drawn_graph(model)
    display = GraphDisplay(*_layout(graph, trained))
    return display.plot(ax) if draw else display


def _drawn_graph(model: Any) -> tuple[ir.Graph, frozenset[str]]:
    """Return the graph to draw, and the names of its trained parameters."""
    from .._estimators.regressor import OrtGradientRegressor

    describe = getattr(model, "describe", None)
    if isinstance(model, onnx.ModelProto | bytes | str | os.PathLike):
        described, source = OrtGradientRegressor(model).describe, model
    elif callable(describe):
        described, source = describe, model.to_onnx() if hasattr(model, "model_") else model.model
    else:
        raise TypeError(f"model must be an ONNX graph or an estimator of this package, got {type(model).__name__}.")
    return load(source).graph, frozenset(entry.name for entry in described().of("trained"))


def _layout(graph: ir.Graph, trained: frozenset[str]) -> tuple[list[Box], list[tuple[int, int, str]]]:
    """Return boxes in layers, each below all those that it reads from, and the edges between them."""
    makers: dict[str, int] = {}
    layers: list[int] = []
    boxes: list[tuple[str, str, tuple[str, ...], bool]] = []
    edges: list[tuple[int, int, str]] = []

    def add(kind: str, title: str, lines: tuple[str, ...], marked: bool, reads: list[ir.Value]) -> None:
        sources = [(makers[v.name or ""], _joined_sizes(v)) for v in reads if v.name in makers]
        edges.extend((i, len(boxes), shape) for i, shape in sources)
        layers.append(1 + max((layers[i] for i, _ in sources), default=-1))
        boxes.append((kind, title, lines, marked))

    for value in graph.inputs:
        add("input", value.name or "", (_typed_shape(value),), False, [])
        makers[value.name or ""] = len(boxes) - 1
    for node in graph:
        if node.op_type == "Constant":
            continue
        held = [x for x in node.inputs if x is not None and x.name in graph.initializers]
        lines = tuple(f"{x.name} {_joined_sizes(x)}" for x in held)
        add(
            "operator",
            node.op_type,
            lines,
            any(x.name in trained for x in held),
            [x for x in node.inputs if x is not None],
        )
        makers |= {value.name or "": len(boxes) - 1 for value in node.outputs}
    for value in graph.outputs:
        add("output", value.name or "", (_typed_shape(value),), False, [value])
    places: dict[int, int] = {}
    placed = []
    for parts, layer in zip(boxes, layers, strict=True):
        placed.append(Box(*parts, layer, places.setdefault(layer, 0)))
        places[layer] += 1
    return placed, edges


def _joined_sizes(value: ir.Value) -> str:
    held = value.const_value
    sizes = held.shape if held is not None else value.shape
    if sizes is None:
        return "?"
    return "x".join("?" if str(size) == "None" else str(size) for size in sizes) or "scalar"


def _typed_shape(value: ir.Value) -> str:
    kind = "?" if value.dtype is None else value.dtype.name.lower()
    return f"{kind} {_joined_sizes(value)}"


def _label(box: Box) -> str:
    return "\n".join([box.title, *box.lines])


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

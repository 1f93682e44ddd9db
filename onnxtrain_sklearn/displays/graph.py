"""Drawings of ONNX graphs: ``plot_graph`` makes a ``GraphDisplay``, for matplotlib, as SVG and as text for Graphviz."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from .._estimators.regressor import OrtGradientRegressor
from .._fitted.fitted_model import is_estimator
from .._importers.load import load
from .._ir.drawing import Box, BoxLayout, Edge, graph_svg
from ..exceptions import ModelError
from ..models import GraphModel, ModelLike, resolve_builder
from ..models.given import bare_model
from .training import given_axes, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from typing_extensions import Self

MOST_NODES = 200
"""Most nodes of a graph that matplotlib draws: in larger ones nothing could be read. Graphviz draws them."""


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

    def __init__(self, boxes: Iterable[Box], edges: Iterable[Edge]) -> None:
        self.boxes = tuple(boxes)
        self.edges = tuple(edges)

    @property
    def dot(self) -> str:
        """The graph in the language of Graphviz, for ``dot -Tsvg``."""
        lines = ["digraph model {", '  node [shape=box style="rounded,filled" fontname=Helvetica fontsize=10]']
        for i, box in enumerate(self.boxes):
            lines.append(f'  b{i} [label="{_quoted(_label(box))}" fillcolor={box.color}]')
        lines += [f'  b{i} -> b{j} [label="{_quoted(shape)}" fontsize=8]' for i, j, shape in self.edges]
        return "\n".join([*lines, "}"])

    @property
    def svg(self) -> str:
        """The graph as SVG, for browsers and notebooks; nothing but Python is needed to draw it."""
        return graph_svg(self.boxes, self.edges)

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
        arrow = {"arrowstyle": "->", "color": "gray", "shrinkA": 12, "shrinkB": 14}
        for i, j, shape in self.edges:
            start, end = self.boxes[i], self.boxes[j]
            self.ax_.annotate("", xy=(end.place, end.layer), xytext=(start.place, start.layer), arrowprops=arrow)
            x, y = (start.place + end.place) / 2, (start.layer + end.layer) / 2
            self.ax_.text(x, y, f" {shape}", fontsize=6, color="gray")
        self.texts_: list[Any] = []
        for box in self.boxes:
            style = {"boxstyle": "round", "facecolor": box.color, "edgecolor": "gray"}
            placed: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8, "bbox": style}
            self.texts_.append(self.ax_.text(box.place, box.layer, _label(box), **placed))
        return self


def plot_graph(model: ModelLike | object, *, ax: Axes | None = None, draw: bool = True) -> GraphDisplay:
    r"""Draw an ONNX graph with its shapes; operators that have trained parameters are in orange.

    Parameters
    ----------
    model : onnx.ModelProto, bytes, str, path or estimator
        A graph; the parameters that an estimator would train of any output are marked. Or an estimator of this package:
        a fitted one is drawn as it predicts, with the parameters that were trained, and one that is not fitted by its
        ``model``.
    ax : matplotlib.axes.Axes, default=None
        Where to draw; None: in a new figure.
    draw : bool, default=True
        Whether to draw by matplotlib; ``dot`` has the graph for Graphviz in any case, and ``svg`` for browsers.

    Returns
    -------
    GraphDisplay

    Raises
    ------
    ModelError
        The graph is not valid.
    ValueError
        The graph is too large to draw.
    NotFittedError
        The estimator makes its graph in ``fit``, and is not fitted.

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
    layout = BoxLayout(graph, trained)
    display = GraphDisplay(layout.boxes, layout.edges)
    return display.plot(ax) if draw else display


def _drawn_graph(model: Any) -> tuple[ir.Graph, frozenset[str]]:
    """Return the graph to draw, and the names of its trained parameters."""
    describe = getattr(model, "describe", None)
    if isinstance(model, onnx.ModelProto | bytes | str | os.PathLike):
        return _graph_of_file(model)
    if callable(describe):
        source: Any = model.to_onnx() if hasattr(model, "model_") else bare_model(model.model)
        if is_estimator(source) or resolve_builder(source) is not None:
            raise NotFittedError(
                f"{type(model).__name__} makes its graph in fit, from model={source!r} and the data: call fit first."
            )
    elif isinstance(model, BaseEstimator) and hasattr(model, "to_onnx"):
        # A recipe: all initializers of its graph are trained weights; the preprocessing holds its numbers in nodes.
        graph = load(model.to_onnx()).graph
        return graph, frozenset(graph.initializers)
    else:
        raise TypeError(f"model must be an ONNX graph or an estimator of this package, got {type(model).__name__}.")
    return load(source).graph, frozenset(entry.name for entry in describe().of("trained"))


def _graph_of_file(model: onnx.ModelProto | bytes | str | os.PathLike[str]) -> tuple[ir.Graph, frozenset[str]]:
    """Return the graph, and the parameters that an estimator would train for any of its outputs."""
    # Of a regressor, as it takes outputs of any content. An output that cannot be trained marks no parameter, unless no
    # output can be.
    graph = load(model).graph
    trained = set[str]()
    refused = None
    for output in [v.name for v in graph.outputs] if len(graph.outputs) > 1 else [None]:
        try:
            trained.update(
                entry.name for entry in OrtGradientRegressor(GraphModel(model, output)).describe().of("trained")
            )
        except ModelError as error:
            refused = error
    if refused is not None and not trained:
        raise refused
    return graph, frozenset(trained)


def _label(box: Box) -> str:
    return "\n".join([box.title, *box.lines])


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

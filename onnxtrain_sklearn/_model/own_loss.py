"""Graphs that compute their loss themselves: find the loss, the output to predict, and the inputs that are targets.

Such a graph is trained like any other: the loss of each row is its scores, and its targets are inputs beside those of
X. Predictions leave out the loss and the targets.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import onnx_ir as ir

from .._ir.queries import is_float, reads
from .._ir.shapes import infer_shapes
from ..exceptions import ModelError, nearest
from ..graph import GraphBuilder, names_of

OWN_LOSS = "output"
"""The loss that is an output of the graph, where its name is not given."""


@dataclass(frozen=True)
class OwnLoss:
    """The loss that a graph computes itself.

    Attributes
    ----------
    name : str
        The output of the file that is the loss.
    targets : tuple of str
        The inputs that only the loss reads.
    by_row : bool
        Whether the graph gives a loss for each row, not one for a minibatch.
    """

    name: str
    targets: tuple[str, ...]
    by_row: bool


def with_own_loss(
    source: ir.Model, loss: str, predicted: str | None, losses: Collection[str]
) -> tuple[ir.Model, str, str, OwnLoss]:
    """Return a copy of a graph whose first two outputs are the prediction and a loss for each row.

    Parameters
    ----------
    source : onnx_ir.Model
    loss : str
        The output that is the loss, or "output".
    predicted : str or None
        The output or inner value to predict; None: the first float output besides the loss.
    losses : collection of str
        Names of losses, for the message about an unknown name.

    Returns
    -------
    model : onnx_ir.Model
    predicted : str
    rows : str
        The output with the losses of the rows, the same for all rows of a minibatch if the graph gives one number.
    own_loss : OwnLoss
    """
    model = infer_shapes(source.clone())
    graph = model.graph
    outputs = {value.name or "": value for value in graph.outputs}
    of_loss = outputs[_name_of_loss(graph, loss, predicted, losses)]
    if not is_float(of_loss) or of_loss.shape is None:
        raise ModelError(f"Output {of_loss.name!r} must be a loss, a float tensor of known axes, got {of_loss.type}.")
    final = _predicted(model, of_loss, predicted)
    of_prediction = _inputs_of(final)
    every = _inputs_of(of_loss) | of_prediction
    targets = tuple(v.name or "" for v in graph.inputs if v.name in every and v.name not in of_prediction)
    if not of_prediction:
        raise ModelError(
            f"Output {final.name!r} depends on no input of the graph: there is nothing to predict it from."
        )
    sizes = list(of_loss.shape)
    by_row, rows = sizes not in ([], [1]), of_loss
    if not by_row:  # of a file with a fixed batch of one, it is the loss of a row
        op = GraphBuilder(graph, dtype=of_loss.dtype or ir.DataType.FLOAT, prefix="own_loss", constant_nodes=True)
        first = next(value for value in graph.inputs if value.name in of_prediction)
        rows = op.Expand(of_loss, op.Slice(op.Shape(first), [0], [1], [0]))
        rows.name, rows.type, rows.shape = names_of(graph).free("own_loss/rows"), of_loss.type, ir.Shape([None])
    graph.outputs[:] = [final, rows]
    return model, final.name or "", rows.name or "", OwnLoss(of_loss.name or "", targets, by_row)


def _name_of_loss(graph: ir.Graph, loss: str, predicted: str | None, losses: Collection[str]) -> str:
    names = [value.name or "" for value in graph.outputs]
    if loss in names:
        name = loss
    elif loss == OWN_LOSS:
        left = ["loss"] if "loss" in names else [name for name in names if name != predicted]
        if len(left) != 1:
            raise ModelError(
                f"loss='output': the graph has the outputs {names}, none of them named 'loss'. Name the one that is "
                f"the loss: loss={left[-1] if left else '...'!r}."
            )
        (name,) = left
    else:
        raise ModelError(
            f"loss={loss!r} is neither the name of a loss nor an output of the graph, {names}."
            f"{nearest(loss, [*losses, *names])}"
        )
    if name == predicted:
        raise ModelError(
            f"Output {name!r} is both the loss and the output to predict: name another, "
            f"model=GraphModel(..., output=...)."
        )
    return name


def _predicted(model: ir.Model, of_loss: ir.Value, name: str | None) -> ir.Value:
    """Return the value that is predicted: an output, or a value inside the graph."""
    graph = model.graph
    if name is None:
        others = [v for v in graph.outputs if v is not of_loss and is_float(v) and v.producer() is not None]
        if not others:
            raise ModelError(
                f"The graph has no float output besides its loss {of_loss.name!r}. Name the value inside the graph "
                f"that predict() is to return: model=GraphModel(..., output=...)."
            )
        return others[0]
    inner = {v.name or "": v for node in graph for v in node.outputs if is_float(v) and v is not of_loss}
    if name not in inner:
        raise ModelError(f"output={name!r} is no float value of the graph.{nearest(name, inner)}")
    return inner[name]


def _inputs_of(value: ir.Value) -> set[str]:
    """Return the names of the inputs that a value depends on."""
    front = [value]
    seen = set[ir.Value]()
    found = set[str]()
    while front:
        one = front.pop()
        if one in seen:
            continue
        seen.add(one)
        if one.is_graph_input():
            found.add(one.name or "")
        elif (node := one.producer()) is not None:
            front += reads(node)
    return found

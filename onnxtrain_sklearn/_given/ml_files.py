"""Fitted models given as ONNX files: graphs with operators of ai.onnx.ml, as skl2onnx and onnxmltools write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from .._data.columns import Column
from .._fitted.model import FittedModel
from .._graph.queries import is_float, reads
from .._inference.predictor import Predictor
from .._runtime import devices
from ..exceptions import ModelError
from .as_given import FileCompared
from .ml_graphs import ML, is_raw_table, takes_text

Labels: TypeAlias = "tuple[np.ndarray, ...]"
"""The classes of each of several labels a row."""


@dataclass(frozen=True)
class FittedFile(FittedModel):
    """A fitted model that was given as ONNX.

    Attributes
    ----------
    file : onnx_ir.Model or None
        The graph as given, until the trainable graph has been compared with it.
    label, values : str or None
        Names of its outputs: the label, if there is one, and the trained output.
    of_probabilities : bool
        Whether each row of ``values`` sums to one.
    allows_missing : bool
        Whether an operator accepts missing values: an imputer, IsNaN or a tree.
    order : ndarray or None
        The column of ``values`` for each of the sorted labels, if their order differs.
    labels : tuple of ndarray or None
        The classes of each of several labels a row.
    is_plain : bool
        Whether it is a graph of a network behind text, which tells nothing about labels.
    compared : FileCompared or None
        What was compared of the graph as it was read with the file as given.
    """

    file: ir.Model | None = None
    label: str | None = None
    values: str = ""
    of_probabilities: bool = False
    allows_missing: bool = False
    order: np.ndarray | None = None
    labels: Labels | None = None
    is_plain: bool = False
    compared: FileCompared | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "file": None, "compared": None}


def is_fitted_graph(model: ir.Model, output: str | None) -> bool:
    """Whether a graph has operators of ai.onnx.ml, trains behind text, or is that of an estimator for raw tables."""
    return _has_operators_of_models(model) or is_plain_graph_of_text(model, output)


def is_plain_graph_of_text(model: ir.Model, output: str | None) -> bool:
    """Whether the trained output depends on text, and the graph is otherwise one of a network, without labels."""
    if not takes_text(model) or _has_operators_of_models(model):
        return False
    front: list[ir.Value] = [v for v in model.graph.outputs if is_float(v) and output in (None, v.name)][:1]
    seen = set[ir.Node]()
    while front:
        value = front.pop()
        node = value.producer()
        if value.is_graph_input() and value.dtype is ir.DataType.STRING:
            return True
        if node is not None and node not in seen:
            seen.add(node)
            front += reads(node)
    return False


def _has_operators_of_models(model: ir.Model) -> bool:
    return any(node.domain == ML for node in model.graph) or is_raw_table(model)


def are_indicators(labels: Labels) -> bool:
    """Whether each label is 0 or 1."""
    return all(one.dtype.kind in "iub" and np.array_equal(one, [0, 1]) for one in labels)


def outputs_of_file(known: FittedFile, columns: Mapping[str, Column]) -> tuple[np.ndarray | None, np.ndarray]:
    """Return the labels and the values that the given file computes."""
    assert known.file is not None
    running = Predictor(known.file, devices.resolve_device(), None)
    label = None if known.label is None else running.run(columns, output=0)
    values = running.run(columns, output=len(running.outputs) - 1)
    rows, several = len(next(iter(columns.values()))), known.n_labels or 1
    for array, one in ((label, True), (values, False)):
        if array is not None and (len(np.atleast_1d(array)) != rows or (one and array.size != rows * several)):
            raise ModelError(
                f"The ONNX file returns an array of shape {array.shape} for {rows} rows: each row must have "
                f"{('one label' if several == 1 else f'{several} labels') if one else 'values of its own'}."
            )
    return label, values.reshape(rows, -1)

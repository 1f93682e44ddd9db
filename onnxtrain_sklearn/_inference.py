"""The trained inference graph, and the session that predicts with it.

The graph that predicts is the graph that is given away: labels and probabilities are computed by ONNX operators, in the
conventions of skl2onnx (``label`` and ``probabilities`` for classifiers), so an estimator and its exported file cannot
disagree. Training-only operators are gone from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common

from . import _runtime
from ._data import Column
from ._graph.builder import GraphBuilder, infer_shapes
from ._graph.model import TrainableModel, inference_form, initializers_to_inputs, swap_initializers, to_proto
from ._parameters import FlatParameters
from .exceptions import ModelError
from .losses import Link, Task, apply_link

CHUNK = 8192
"""Rows predicted at a time: bounds the memory that activations take."""

CHUNK_NUMBERS = 2**23
"""Numbers of an input that are converted at a time: wide rows come in smaller chunks."""


@dataclass(frozen=True)
class Head:
    """What comes after the scores.

    Attributes
    ----------
    task : {"regression", "binary", "multiclass", "multilabel"}
    link : str
        The function from scores to predictions or probabilities.
    n_outputs : int
        Columns of the scores.
    classes : ndarray or None
        Labels that the label indices stand for.
    """

    task: Task
    link: Link
    n_outputs: int
    classes: np.ndarray | None = None

    @property
    def has_probabilities(self) -> bool:
        """Whether the link of a classifier gives probabilities."""
        return self.task != "regression" and self.link != "identity"


def inference_model(
    model: TrainableModel, weights: Mapping[str, np.ndarray], head: Head, *, with_scores: bool = False
) -> ir.Model:
    """Return the graph that predicts, with ``weights``; ``with_scores`` adds the scores as the last output."""
    result = inference_form(model.model)
    graph = result.graph
    swap_initializers(graph, weights)
    outputs = {v.name: v for v in graph.outputs}
    scores, final = outputs[model.scores], outputs[model.output]
    graph.outputs.clear()
    # Constant nodes: whoever trains the exported graph further finds weights alone among its initializers.
    op = GraphBuilder(graph, dtype=ir.DataType.from_numpy(model.dtype), prefix="predict", constant_nodes=True)
    own = final if model.link == head.link and not model.log_output else None
    if head.task == "regression":
        prediction = final if model.link is None and head.link == "identity" else own
        _add_output(op, "variable", apply_link(op, head.link, scores) if prediction is None else prediction, final)
    else:
        columns = _columns(op, scores)
        _add_output(op, "label", _label(op, columns, head), None)
        values = _probabilities(op, columns, own, head) if head.has_probabilities else op.Identity(columns)
        _add_output(op, "probabilities" if head.has_probabilities else "scores", values, None)
    if with_scores:
        _add_output(op, "raw_scores", op.Identity(_columns(op, scores)), None)
    common.RemoveUnusedNodesPass()(result)
    return infer_shapes(result)


class Predictor:
    """Run an inference graph over data, a chunk of rows at a time.

    Parameters
    ----------
    model : onnx_ir.Model
    device : Device
    session_options : mapping or None
    live : FlatParameters, optional
        Parameters that are read from their vector on every run, instead of from the graph: for scores in between.
    """

    def __init__(
        self,
        model: ir.Model,
        device: _runtime.Device,
        session_options: Mapping[str, Any] | None,
        live: FlatParameters | None = None,
    ) -> None:
        self._live = {} if live is None else live.views()
        if self._live:
            model = model.clone()
            initializers_to_inputs(model.graph, list(self._live))
        self.outputs = [v.name or "" for v in model.graph.outputs]
        threads = _runtime.available_threads() if _is_large(model.graph) else 1
        self._session = _runtime.create_session(
            to_proto(model).SerializeToString(), device, threads=threads, options=session_options
        )

    def run(self, columns: Mapping[str, Column], rows: np.ndarray | None = None, output: int = 0) -> np.ndarray:
        """Return output number ``output`` for all rows of the data, or for the given ones."""
        if rows is None:
            rows = np.arange(len(next(iter(columns.values()))))
        width = max(1, *(math.prod(column.shape[1:]) for column in columns.values()))
        size = max(1, min(CHUNK, CHUNK_NUMBERS // width))
        return np.concatenate([self._chunk(columns, rows[i : i + size], output) for i in range(0, len(rows), size)])

    def _chunk(self, columns: Mapping[str, Column], rows: np.ndarray, output: int) -> np.ndarray:
        feeds = {name: column.rows(rows) for name, column in columns.items()}
        result = np.asarray(self._session.run([self.outputs[output]], feeds | self._live)[0])
        if result.shape[:1] != (len(rows),):
            found = f"{len(result)} output rows" if result.ndim else "a single number"
            raise ModelError(
                f"The graph gives {found} for {len(rows)} input rows; each input row must give one output row. Export "
                f"the graph with a dynamic batch axis."
            )
        return result


def _columns(op: GraphBuilder, scores: ir.Value) -> ir.Value:
    shape = op.shape(scores)
    return op.Unsqueeze(scores, axes=[1]) if shape is not None and len(shape) == 1 else scores


def _label(op: GraphBuilder, scores: ir.Value, head: Head) -> ir.Value:
    if head.task == "multilabel":
        return op.Cast(op.Greater(scores, 0.0), to=ir.DataType.INT64)
    assert head.classes is not None
    if head.task == "binary":
        index = op.Cast(op.Greater(op.Squeeze(scores, axes=[1]), 0.0), to=ir.DataType.INT64)
    else:
        index = op.ArgMax(scores, axis=1, keepdims=False)
    return op.Gather(_class_constant(head.classes), index)


def _class_constant(classes: np.ndarray) -> np.ndarray:
    if classes.dtype.kind in "iub":
        return classes.astype(np.int64)
    if classes.dtype.kind == "f":
        return classes.astype(np.float64)
    if all(isinstance(c, str) for c in classes):
        return np.array([str(c) for c in classes])
    kind = type(classes[0]).__name__
    raise ModelError(f"ONNX has no tensors for labels of type {kind}; use strings, integers or floats.")


def _probabilities(op: GraphBuilder, scores: ir.Value, own: ir.Value | None, head: Head) -> ir.Value:
    """Return a column per class; ``own`` is the probability that the graph itself computes."""
    values = apply_link(op, head.link, scores) if own is None else _columns(op, own)
    return op.Concat(op.Sub(1.0, values), values, axis=1) if head.task == "binary" else values


def _add_output(op: GraphBuilder, name: str, value: ir.Value, keep: ir.Value | None) -> None:
    """Make ``value`` an output; the user's own output keeps its name, others get ``name``."""
    if value is not keep:
        if value.producer() is None or value in op.graph.outputs:
            value = op.Identity(value)
        value.name = name if value.name == name or _vacated(op, name) else op.name(name)
    op.graph.outputs.append(value)


def _vacated(op: GraphBuilder, name: str) -> bool:
    """Rename what bears ``name`` inside the graph; inputs and initializers keep theirs, and then the answer is no."""
    for value in (v for node in ir.traversal.RecursiveGraphIterator(op.graph) for v in node.outputs if v.name == name):
        value.name = op.name(name)
    kept = {v.name for v in op.graph.inputs} | set(op.graph.initializers)
    return name not in kept


def _is_large(graph: ir.Graph) -> bool:
    return sum(v.const_value.size for v in graph.initializers.values() if v.const_value is not None) > 500_000

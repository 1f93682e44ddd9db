"""Values of a graph under construction on rows of the training data, for initial weights that depend on them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import scipy.sparse as sp

from .._graph.builder import GraphBuilder
from .._graph.protobuf import erase_initializers, fill_initializers, to_proto
from .._runtime.devices import resolve_device
from .._runtime.sessions import create_session, run_session
from .._support.cache import Cache
from ..exceptions import ModelError
from .layers import empty_graph, finish

MAX_ROWS = 10_000
"""Rows from which statistics are computed, at most."""


def dense_rows(X: Any) -> np.ndarray:
    """Return rows as an array of float32; sparse ones become dense."""
    return np.asarray(X.toarray() if sp.issparse(X) else X, np.float32)


def some_rows(X: Any, rng: np.random.RandomState) -> np.ndarray:
    """Return the rows, or :data:`MAX_ROWS` of them that are drawn at random."""
    n = X.shape[0]
    return dense_rows(X if n <= MAX_ROWS else X[np.sort(rng.choice(n, MAX_ROWS, replace=False))])


def values_of(graph: ir.Graph, value: ir.Value, X: np.ndarray) -> np.ndarray:
    """Return a value of a graph with one input, on rows ``X``; the graph stays as it is."""
    if value is graph.inputs[0]:
        return X
    value.dtype = value.dtype or ir.DataType.FLOAT
    graph.outputs.append(value)
    model = to_proto(ir.Model(graph, ir_version=8)).SerializeToString()
    graph.outputs.pop()
    session = create_session(model, resolve_device())
    (array,) = run_session(session, [str(value.name)], {str(graph.inputs[0].name): X})
    return np.asarray(array)


@dataclass(frozen=True, eq=False)
class GraphPart:
    """A part of a graph, from a table to a value.

    Attributes
    ----------
    emit : callable
        Emits the part, its weights too, and returns the value.
    weights : mapping of str to ndarray
        The weights, by which parts of equal form differ.
    form : hashable or None
        All else that the part is made from; None: it is unknown.
    """

    emit: Callable[[GraphBuilder, ir.Value], ir.Value]
    weights: Mapping[str, np.ndarray]
    form: Hashable | None

    def values(self, X: np.ndarray) -> np.ndarray:
        """Return the value for rows."""
        if self.form is None:
            proto = self._graph(X.shape[1])
        else:
            erased = _part_graphs.get((self.form, X.shape[1]), lambda: self._erased_graph(X.shape[1]))
            proto = onnx.ModelProto()
            proto.CopyFrom(erased)
            fill_initializers(proto, self.weights)
        session = create_session(proto.SerializeToString(), resolve_device())
        return np.asarray(run_session(session, ["scores"], {"X": X})[0])

    def _graph(self, width: int) -> onnx.ModelProto:
        graph, op, x = empty_graph(width)
        return finish(graph, self.emit(op, x), None)

    def _erased_graph(self, width: int) -> onnx.ModelProto:
        """Return the graph without the weights of this fit."""
        proto = self._graph(width)
        erase_initializers(proto, self.weights)
        return proto


_part_graphs: Cache[onnx.ModelProto] = Cache(64, 2**24, lambda proto: proto.ByteSize())


def width_of(op: GraphBuilder, embedded: ir.Value) -> int:
    """Return the number of columns of what an embedding emitted; raise ModelError where it is not fixed."""
    shape = op.shape(embedded)
    if shape is None or len(shape) != 2 or not isinstance(shape[1], int):
        raise ModelError(f"emit must return a value of shape (N, width) of a fixed width, got {shape}.")
    return shape[1]

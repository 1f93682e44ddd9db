"""Importances of the columns of a raw table: mean absolute effects on the predictions, by integrated gradients.

Effects are those of a row in place of the :func:`baseline`, a row of medians and most frequent categories. They are
integrated on the straight line between the two, as a network sees them: scaled numbers, and the indicators or vectors
that it makes of categories (:func:`_encodings`). The effects of all that is made of a column are its effect. Together,
those of a row sum to the difference between its prediction and that of the baseline (M. Sundararajan, A. Taly and
Q. Yan, "Axiomatic attribution for deep networks", ICML 2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from .._gradient.derivatives import gradient_graph
from .._inference.predictor import Predictor, prediction_graph
from .._ir.edits import keep_outputs, read_as_input
from .._ir.protobuf import from_bytes, to_proto
from .._ir.queries import constant
from .._ir.shapes import infer_shapes
from .._model.links import Task
from .._ort import devices, sessions
from ..graph import GraphBuilder
from .ensemble import MemberPlace
from .preprocessing import Preprocessing
from .raw_table import RawTable

SAMPLE_ROWS = 64
"""Rows of the training data, evenly spaced, whose effects are averaged."""

STEPS = 16
"""Points of the midpoint rule on the line between two rows."""

CHUNK_ROWS = 1024
"""Most rows that are differentiated at a time."""


@dataclass(frozen=True, eq=False)
class EffectSource:
    """What the effects are computed of, besides the graph of the fitted model: kept from ``fit`` until they are read.

    Attributes
    ----------
    places : sequence of MemberPlace
    table : RawTable
        Some rows of the training data.
    categorical : sequence of bool
        Whether a column is categorical.
    task : str
    engine : str
        The gradient engine.
    """

    places: Sequence[MemberPlace]
    table: RawTable
    categorical: Sequence[bool]
    task: Task
    engine: str

    def importances(self, graph: bytes, inputs: Preprocessing) -> np.ndarray:
        """Return the mean absolute effect of each column over the rows, divided by their sum.

        Of classes, the effects are those on the probability of the class that is predicted for the row. Of several
        numbers or labels a row, the importances are the mean of those of each.

        Returns
        -------
        ndarray of shape (n_columns,)
            Zeros if no column has an effect.
        """
        found = np.abs(self.effects(graph, inputs, baseline(self.table, self.categorical))).mean(axis=1)
        totals = found.sum(axis=1, keepdims=True)
        shares = np.divide(found, totals, out=np.zeros_like(found), where=totals > 0)
        total = shares.sum()
        return np.asarray(shares.sum(axis=0) / total if total else shares[0])

    def effects(self, graph: bytes, inputs: Preprocessing, reference: RawTable, n_steps: int = STEPS) -> np.ndarray:
        """Return the effects of the columns on the predictions of the rows, in place of a reference row.

        Returns
        -------
        ndarray of shape (n_outputs, n_rows, n_columns)
            One output for classes: the probability of the class that is predicted for a row.
        """
        n_rows, n_columns = len(self.table), len(self.table.names)
        graphs = [_EffectGraph.of(graph, place, self.engine) for place in self.places]
        rows, references = (_matrices(graph, inputs, self.places, one) for one in (self.table, reference))
        predictions = np.mean([one.predict(X) for one, X in zip(graphs, rows, strict=True)], axis=0)
        if self.task in ("binary", "multiclass"):
            weights = np.eye(predictions.shape[1], dtype=np.float32)[[predictions.argmax(axis=1)]]
        else:
            ones = np.eye(predictions.shape[1], dtype=np.float32)[:, np.newaxis]
            weights = np.broadcast_to(ones, (len(ones), n_rows, len(ones)))
        found = np.zeros((len(weights), n_rows, n_columns))
        for one, X, base in zip(graphs, rows, references, strict=True):
            for output, each in enumerate(weights):
                found[output] += one.effects(X, base, each, n_steps, n_columns) / len(graphs)
        return found


def baseline(table: RawTable, categorical: Sequence[bool]) -> RawTable:
    """Return a table of one row: medians of numbers and times, and the most frequent categories."""
    columns = [_typical(*one) for one in zip(table.columns, categorical, strict=True)]
    return RawTable(table.names, tuple(columns), table.declared)


def _typical(column: np.ndarray, is_category: bool) -> np.ndarray:
    present = ~np.isnat(column.view("datetime64[ns]")) if column.dtype == np.int64 else column == column
    if column.dtype == object:
        values = column.tolist()
        counts = dict.fromkeys(values, 0)
        for value in values:
            counts[value] += 1
        return np.array([max(counts, key=counts.__getitem__), None], object)[:1]
    if not present.any():
        return column[:1]
    if is_category:
        values, frequencies = np.unique(column[present], return_counts=True)
        most = int(np.argmax(frequencies))
        return values[[most]] if frequencies[most] >= np.count_nonzero(~present) else column[~present][:1]
    values = np.sort(column[present])
    return values[[(len(values) - 1) // 2]]


def _matrices(graph: bytes, inputs: Preprocessing, places: Sequence[MemberPlace], table: RawTable) -> list[np.ndarray]:
    """Return the preprocessed rows of a table, for each network."""
    model = from_bytes(graph)
    values = {value.name: value for node in model.graph for value in node.outputs}
    keep_outputs(model, [values[place.matrix] for place in places])
    predictor = Predictor(prediction_graph(model), devices.resolve_device("cpu"), None, width=inputs.width)
    return predictor.run_several(inputs.columns(table), range(len(places)))


@dataclass(frozen=True, eq=False)
class _Encoding:
    """A value of a graph that encodes columns of the matrix: what belongs to column ``i`` is at ``i`` of axis 1."""

    name: str
    columns: np.ndarray


@dataclass(frozen=True, eq=False)
class _EffectGraph:
    """The network of a member: predictions and encodings of a matrix, and gradients with respect to the encodings.

    Attributes
    ----------
    forward : InferenceSession
        The matrix to predictions and encodings.
    gradients : InferenceSession
        Matrix, encodings and weights of the predictions to the gradients of their sum.
    encodings : sequence of _Encoding
        The matrix, of which numbers are read, then the encodings of its codes.
    weights : str
        The input of weights.
    owners : ndarray of int
        The column of the table of which each column of the matrix is made.
    """

    forward: Any
    gradients: Any
    encodings: Sequence[_Encoding]
    weights: str
    owners: np.ndarray

    @classmethod
    def of(cls, content: bytes, place: MemberPlace, engine: str) -> _EffectGraph:
        model = from_bytes(content)
        graph = model.graph
        computed = {value.name: value for node in graph for value in node.outputs}
        predicted = computed[place.predictions]
        matrix = read_as_input(graph, computed[place.matrix])
        keep_outputs(model, [predicted], inputs=True)
        infer_shapes(model)
        encodings = _encodings(graph, matrix)
        values = [value for value, _ in encodings]
        graph.outputs.extend(values)
        device = devices.resolve_device("cpu")
        forward = sessions.create_session(to_proto(model).SerializeToString(), device)
        graph.outputs[:] = [predicted]
        op = GraphBuilder(graph, prefix="effects", constant_nodes=True)
        weights = ir.val(op.taken.free("weights"), ir.DataType.FLOAT, predicted.shape)
        total = op.ReduceSum(op.Mul(predicted, weights), keepdims=False)
        graph.inputs.append(weights)
        inputs = [matrix, *(read_as_input(graph, value) for value in values)]
        keep_outputs(model, [total])
        names = [str(value.name) for value in inputs]
        made = gradient_graph(to_proto(model), names, total.name, engine=engine)
        gradients = sessions.create_session(made.SerializeToString(), device)
        columns = [np.arange(len(place.owners)), *(own for _, own in encodings)]
        named = [_Encoding(name, own) for name, own in zip(names, columns, strict=True)]
        return cls(forward, gradients, named, str(weights.name), place.owners)

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return numbers, or probabilities, of the rows of a matrix, of shape (n_rows, n_outputs)."""
        return np.asarray(self._forward(X)[0])

    def _forward(self, X: np.ndarray) -> list[np.ndarray]:
        return sessions.run_session(
            self.forward, [v.name for v in self.forward.get_outputs()], {self.encodings[0].name: X}
        )

    def effects(
        self, X: np.ndarray, reference: np.ndarray, weights: np.ndarray, n_steps: int, n_columns: int
    ) -> np.ndarray:
        """Return the effects of the table's columns on the weighted sum of the predictions, (n_rows, n_columns)."""
        ends = [X, *self._forward(X)[1:]]
        starts = [reference, *self._forward(reference)[1:]]
        names = [f"{one.name}_grad" for one in self.encodings]
        found = np.zeros((len(X), n_columns))
        times = ((np.arange(n_steps) + 0.5) / n_steps).astype(np.float32)
        size = max(1, CHUNK_ROWS // n_steps)
        for begin in range(0, len(X), size):
            rows = slice(begin, begin + size)
            feeds = {self.weights: np.repeat(weights[rows], n_steps, axis=0)}
            ways = []
            for one, end, start in zip(self.encodings, ends, starts, strict=True):
                way = (end[rows] - start)[:, np.newaxis]
                moments = times.reshape(1, -1, *[1] * (way.ndim - 2))
                points = start[:, np.newaxis] + moments * way
                feeds[one.name] = points.reshape(-1, *way.shape[2:]).astype(np.float32)
                ways.append(way[:, 0])
            results = sessions.run_session(self.gradients, names, feeds)
            for one, way, gradient in zip(self.encodings, ways, results, strict=True):
                mean = gradient.reshape(len(way), n_steps, *way.shape[1:]).mean(axis=1, dtype=np.float64)
                own = (mean * way).reshape(len(way), len(one.columns), -1).sum(axis=2)
                for owner, effect in zip(self.owners[one.columns], own.T, strict=True):
                    found[rows, owner] += effect
        return found


def _encodings(graph: ir.Graph, matrix: ir.Value) -> list[tuple[ir.Value, np.ndarray]]:
    """Return the first floats that a graph makes of the codes in its matrix, with the columns that each encodes.

    These are indicators, cast from truth values, and rows of tables that are gathered by the codes.
    """
    places: dict[ir.Value | None, np.ndarray] = {matrix: np.arange(0)}  # codes, and the columns of each
    found = []
    for node in graph:
        if node.op_type == "Gather" and node.inputs[0] is matrix:
            chosen = None if node.inputs[1] is None else constant(node.inputs[1])
            if chosen is not None:
                places[node.outputs[0]] = np.atleast_1d(chosen)
            continue
        read = [value for value in node.inputs if value is not None and value in places]
        if not read or node.op_type not in ("Cast", "Equal", "GreaterOrEqual", "Less", "And", "Where", "Add", "Gather"):
            continue
        output = node.outputs[0]
        # a table of floats that is read by codes, or an indicator; all other nodes compute codes or truth values
        by_codes = node.op_type == "Gather" and node.inputs[1] in places and node.inputs[0] not in places
        from_truth = node.op_type == "Cast" and read[0].dtype == ir.DataType.BOOL
        if by_codes or (from_truth and output.dtype is not None and output.dtype.is_floating_point()):
            found.append((output, places[read[0]]))
        elif read[0] is not matrix:
            places[output] = places[read[0]]
    return found

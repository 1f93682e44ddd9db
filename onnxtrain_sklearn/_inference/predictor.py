"""Run the graph that predicts over data, a chunk of rows at a time.

:func:`filled_graph` returns the inference graph with the weights of a fit, as bytes. It fills a template, which fits in
one process share if their graphs have equal structure. A :class:`Predictor` holds the session. It serves the methods of
an estimator, scores during training (which read the parameters in training), and given graphs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from .._data import columns as data_columns
from .._data.columns import InputData
from .._importers.quantization import holds_fakes, requantized
from .._ir.edits import initializers_to_inputs
from .._ir.protobuf import fill_initializers, to_proto
from .._ir.queries import constant, structure
from .._model.modes import is_stateless
from .._model.row_reads import FirstProduct, take_first_products
from .._model.trainable import TrainableModel
from .._model.weights import template_of
from .._ort import devices, sessions
from .._ort.devices import Device
from .._ort.sessions import shared_session
from .._utils.cache import Cache, content, with_attributes
from .._utils.errors import ignores_float_errors, refusing
from .._utils.typing import DType
from ..exceptions import ModelError
from .graph import Decoding, inference_model, target_numbers

CHUNK_ROWS = 8192
"""Most rows predicted at a time, to limit the memory of activations."""


CHUNK_NUMBERS = 2**23
"""Most numbers of an input that are converted at a time; chunks of wide rows are smaller."""


LARGE_WEIGHTS = 500_000
"""Number of weights above which the session of a graph has several threads."""


INNER_NUMBERS = 2**24
"""Most numbers in a value inside the graph at a time; ensembles and convolutions have many for each row."""


LARGEST_WEIGHTS = 2**24
"""Bytes of weights above which a graph is made without a template, which would briefly copy the weights."""


class LiveParameters(Protocol):
    """Parameters in training, such as :class:`~onnxtrain_sklearn._training.parameters.FlatParameters`."""

    def prediction_views(self) -> dict[str, np.ndarray]: ...


@dataclass(frozen=True)
class PredictionGraph:
    """An inference graph as bytes.

    Attributes
    ----------
    content : bytes
    outputs : tuple of str
    widest : int
        Numbers per row in the largest value of the graph.
    is_large : bool
        Whether the graph has enough weights to benefit from several threads.
    is_shared : bool
        Whether estimators may share the session of the graph.
    """

    content: bytes
    outputs: tuple[str, ...]
    widest: int
    is_large: bool
    is_shared: bool = False


def prediction_graph(model: ir.Model) -> PredictionGraph:
    """Return an inference graph as bytes, with the attributes of :class:`PredictionGraph`."""
    graph = model.graph
    outputs = tuple(v.name or "" for v in model.graph.outputs)
    # Only values whose shape is known except for the batch axis count.
    shapes = [value.shape for node in graph for value in node.outputs if value.shape is not None]
    rows = [[d for d in shape if isinstance(d, int)] for shape in shapes if not shape.is_static()]
    widest = max(map(math.prod, rows), default=1) or 1
    weights = sum(v.const_value.size for v in graph.initializers.values() if v.const_value is not None)
    return PredictionGraph(to_proto(model).SerializeToString(), outputs, widest, is_large=weights > LARGE_WEIGHTS)


class Predictor:
    """Run an inference graph over data, a chunk of rows at a time.

    Parameters
    ----------
    model : onnx_ir.Model or PredictionGraph
    device : Device
    session_options : mapping or None
    live : LiveParameters, optional
        Parameters in training, from whose views each run reads the weights, for scores during training. These weights
        become inputs of an ``onnx_ir.Model``; in a PredictionGraph they are inputs already.
    width : int, default=1
        Numbers per row inside the graph, if they are more than those of its inputs.
    sparse : collection of str, default=()
        Names of inputs with sparse rows. Products with weights are computed without making the rows dense.
    rows_meet : callable () -> bool
        Returns True if the prediction of a row depends on other rows, so that all rows must be predicted at once. It
        is called only if the rows would be divided into several chunks.
    whole : bool, default=False
        Whether a run takes all of the data (:attr:`TrainableModel.is_whole`); rows are then those of the output.
    batch : int or None
        The only number of rows of a run (:attr:`TrainableModel.batch`); the last run repeats rows to fill it.
    """

    def __init__(
        self,
        model: ir.Model | PredictionGraph,
        device: Device,
        session_options: Mapping[str, object] | None,
        live: LiveParameters | None = None,
        *,
        width: int = 1,
        sparse: Collection[str] = (),
        rows_meet: Callable[[], bool] = lambda: False,
        whole: bool = False,
        batch: int | None = None,
    ) -> None:
        self._whole, self._batch = whole, batch
        self._live: dict[str, np.ndarray] = {} if live is None else live.prediction_views()
        self._products: list[FirstProduct] = list[FirstProduct]()
        self._matrices = list[Any]()
        graph = model if isinstance(model, PredictionGraph) else self._with_inputs(model, sparse)
        self._sparse = {product.input for product in self._products}
        self._width = 1 if self._sparse else width
        self._inner, self.outputs, self._rows_meet = graph.widest, graph.outputs, rows_meet
        threads = devices.available_threads() if graph.is_large else 1
        if graph.is_shared:  # for fits that score validation rows with their parameters in training
            memory = 4.0 * graph.widest * CHUNK_ROWS
            self._session = shared_session(
                graph.content, device, threads=threads, options=session_options, memory=memory
            )
        else:
            self._session = sessions.create_session(graph.content, device, threads=threads, options=session_options)
        self._run_session = sessions.session_runner(self._session)
        self._inputs = {value.name for value in self._session.get_inputs()}

    def _with_inputs(self, model: ir.Model, sparse: Collection[str]) -> PredictionGraph:
        """Return the graph with inputs for the live parameters and for products with sparse rows."""
        model = model.clone() if self._live or sparse else model
        initializers = {name: constant(value) for name, value in model.graph.initializers.items()} if sparse else {}
        self._products = take_first_products(model, sparse)
        self._matrices = [self._live.pop(one.weight, initializers[one.weight]) for one in self._products]
        initializers_to_inputs(model.graph, list(self._live))
        return prediction_graph(model)

    def run(self, columns: Mapping[str, InputData], rows: np.ndarray | None = None, output: int = 0) -> np.ndarray:
        """Return output number ``output`` for all rows of the data, or for those with the indices ``rows``."""
        return self.run_several(columns, [output], rows)[0]

    def run_several(
        self, columns: Mapping[str, InputData], outputs: Sequence[int], rows: np.ndarray | None = None
    ) -> list[np.ndarray]:
        """Return the outputs with the numbers ``outputs`` in one pass, for all rows or for the indices ``rows``."""
        names = [self.outputs[i] for i in outputs]
        found = list[list[np.ndarray]]()
        if self._whole:
            feeds = {name: column.rows(slice(None)) for name, column in columns.items()}
            with refusing("The graph does not run on the data"):
                results = self._run_session(names, {**feeds, **self._live})
            every = [_joined(result) for result in results]
            return every if rows is None else [result[rows] for result in every]
        for piece in self.pieces_of(columns, rows):
            chosen: np.ndarray | slice = piece if rows is None else rows[piece]
            count = piece.stop - piece.start
            repeats = 0 if self._batch is None else self._batch
            if repeats > count:
                chosen = np.resize(np.arange(piece.start, piece.stop) if rows is None else rows[piece], repeats)
            read = {name: column for name, column in columns.items() if name in self._inputs}  # targets may lie beside
            feeds = {name: column.rows(chosen) for name, column in read.items() if name not in self._sparse}
            sparse = {name: columns[name].sparse_rows(chosen) for name in self._sparse}
            for one, matrix in zip(self._products, self._matrices, strict=True):
                multiplied = data_columns.multiplied_columns(sparse[one.input], one.factors)
                feeds[one.name] = data_columns.product(multiplied, matrix, transposed=one.transposed)
            results = self._run_session(names, {**feeds, **self._live})
            found.append([_as_rows(result, max(count, repeats))[:count] for result in results])
        return [np.concatenate(parts) if len(parts) > 1 else parts[0] for parts in zip(*found, strict=True)]

    def run_finite(self, name: str, rows: np.ndarray, dtype: DType, output: int = 0) -> np.ndarray | None:
        """Return output number ``output`` for a few rows of the graph's only input, after a fast check.

        None if the rows are more than one chunk, or if a number is not finite in ``dtype``.
        """
        if self._whole or self._batch or len(self._pieces(len(rows), math.prod(rows.shape[1:]))) != 1:
            return None
        piece = np.ascontiguousarray(rows) if rows.dtype == dtype else _in_graph_type(rows, dtype)
        squares = np.vdot(piece, piece)  # finite only if all numbers are; faster than isfinite
        if not (math.isfinite(squares) or np.isfinite(piece).all()):
            return None
        return _as_rows(self._run_session([self.outputs[output]], {name: piece, **self._live})[0], len(piece))

    def pieces_of(self, columns: Mapping[str, InputData], rows: np.ndarray | None = None) -> list[slice]:
        """Return the chunks in which the data, or their rows with the indices ``rows``, are predicted."""
        n_rows = len(next(iter(columns.values()))) if rows is None else len(rows)
        dense = [column for name, column in columns.items() if name not in self._sparse]
        return self._pieces(n_rows, max([1, *(math.prod(column.shape[1:]) for column in dense)]))

    def chunk_rows(self, columns: Mapping[str, InputData]) -> int:
        """Return the number of rows of a chunk for data like ``columns``; the last chunk may have fewer."""
        dense = [column for name, column in columns.items() if name not in self._sparse]
        return self._chunk_rows(max([1, *(math.prod(column.shape[1:]) for column in dense)]))

    def _chunk_rows(self, width: int) -> int:
        if self._batch is not None:
            return self._batch
        return max(1, min(CHUNK_ROWS, CHUNK_NUMBERS // max(self._width, width), INNER_NUMBERS // self._inner))

    def _pieces(self, n_rows: int, width: int) -> list[slice]:
        """Return the chunks into which ``n_rows`` rows of ``width`` numbers are divided."""
        if self._whole:
            return [slice(0, n_rows)]
        size = self._chunk_rows(width)
        size = n_rows if size < n_rows and self._batch is None and self._rows_meet() else size
        return [slice(i, min(i + size, n_rows)) for i in range(0, n_rows, size)]


def _joined(found: Any) -> np.ndarray:
    return np.concatenate(found, axis=1) if isinstance(found, list) else np.asarray(found)


def _as_rows(found: Any, n_rows: int) -> np.ndarray:
    """Return an output as an array, joining the parts of a sequence; raise ModelError unless it has ``n_rows`` rows."""
    result = _joined(found)
    if result.shape[:1] != (n_rows,):
        what = f"{len(result)} output rows" if result.ndim else "a single number"
        remedy = ""
        if n_rows in result.shape:
            remedy = (
                f" If the rows are axis {result.shape.index(n_rows)} of its output, of shape {result.shape}, say so by "
                f"model=GraphModel(..., batch_axis={{name: axis}}) (in PyTorch: export with batch_first=True)."
            )
        raise ModelError(
            f"The graph gives {what} for {n_rows} input rows; each input row must give one output row. Export the "
            f"graph with a dynamic batch axis.{remedy}"
        )
    return result


@dataclass(frozen=True, eq=False)
class _Template:
    """An inference graph in protobuf, without values for its weights and for the numbers of its targets.

    It is made with zeros in place of the weights. Even the first graph is made from the template, so that an error,
    such as a form that depends on a weight, would show at once and not only when the template is used again.
    """

    proto: Any
    graph: PredictionGraph


_templates: Cache[_Template] = Cache(128, 2**25, lambda template: template.proto.ByteSize() + 2**14)


def filled_graph(
    graph: TrainableModel,
    weights: Mapping[str, np.ndarray],
    decoding: Decoding,
    *,
    with_scores: bool = False,
    live: Collection[str] = (),
) -> PredictionGraph:
    """Return the inference graph with ``weights``; the weights named in ``live`` become inputs and need no values."""

    def made(weights: Mapping[str, np.ndarray], *, named_numbers: bool = False) -> ir.Model:
        inference = inference_model(graph, weights, decoding, with_scores=with_scores, named_numbers=named_numbers)
        initializers_to_inputs(inference.graph, list(live))
        return inference

    if holds_fakes(template_of(graph.model)) and not live:
        return prediction_graph(requantized(made(weights)))  # predict computes with integers, as the exported file does
    if sum(array.nbytes for array in weights.values()) > LARGEST_WEIGHTS:
        return prediction_graph(made(weights))
    numbers = target_numbers(decoding, graph.dtype)

    def template() -> _Template:
        zeros = {name: np.zeros(array.shape, array.dtype) for name, array in weights.items()}
        inference = made(zeros, named_numbers=True)
        proto = to_proto(inference)
        for tensor in proto.graph.initializer:
            if tensor.name in zeros or tensor.name in numbers:
                tensor.ClearField("raw_data")
        # Estimators can share a session if all weights are inputs, so that its graph holds no numbers of one fit.
        is_shared = not numbers and {*live} >= zeros.keys() and is_stateless(inference.graph)
        return _Template(proto, replace(prediction_graph(inference), content=b"", is_shared=is_shared))

    # The cache key holds everything that determines the nodes: these attributes of the model, and the decoding with the
    # names of the numbers to fill in, but without their values.
    activation = tuple(graph.activation.values())
    form = graph.output, *activation, graph.class_output, graph.members, graph.dtype.str, graph.inputs, graph.joined
    decoding_form = content(with_attributes(decoding, target_scale=None, target_range=None)), tuple(numbers)
    found = _templates.get((structure(graph.model, weights), form, decoding_form, with_scores, tuple(live)), template)
    proto = type(found.proto)()
    proto.CopyFrom(found.proto)
    fill_initializers(proto, {**weights, **numbers})
    return replace(found.graph, content=proto.SerializeToString())


@ignores_float_errors
def _in_graph_type(rows: np.ndarray, dtype: DType) -> np.ndarray:
    return np.ascontiguousarray(rows, dtype)

"""Converts a table to graph inputs: one input per column for inference, one matrix plus encoded text for training.

The encoder of the text runs once over the data before training, on the host, on chunks of rows. Its results are kept
sparse where dense ones would be large.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from .._data.columns import COPY_LIMIT, Column
from .._graph.trainable import TensorSpec
from .._runtime import devices, distributions, sessions
from .._support.typing import MatrixLike, SparseLike
from ..exceptions import ModelError
from .model import FittedModel

CHUNK = 2048
"""Number of rows in a chunk."""

InputColumns = dict[str, Column]
Specs = tuple[TensorSpec, ...] | None


def table_columns(estimator: BaseEstimator, X: MatrixLike, fitted: FittedModel) -> InputColumns:
    """Return the columns of a table as inputs of the inference graph, validated as scikit-learn does."""
    table, parts = fitted.table, fitted.parts
    assert table is not None
    assert parts is not None
    if table.documents and isinstance(X, Mapping) and set(X) == {table.columns[0].name}:
        X = X[table.columns[0].name]
    if isinstance(X, Mapping) and not sp.issparse(X):  # scipy's dok_matrix is a mapping too
        raise TypeError(f"The fitted model takes a data frame or an array, got a {type(X).__name__}.")
    if not table.documents:
        validate_data(estimator, X, reset=False, skip_check_array=True)
    specs = {spec.name: spec for spec in parts.whole.inputs}
    return {name: _column(array, specs.get(name)) for name, array in table.arrays(X).items()}


def _column(array: np.ndarray, spec: TensorSpec | None) -> Column:
    """Return a column of a table as an input; the text of each row may be an entry of a vector."""
    is_vector = spec is not None and len(spec.shape) == 1
    return Column(array.ravel() if is_vector else array, np.dtype(np.float32) if spec is None else spec.dtype)


def as_trained(columns: InputColumns, fitted: FittedModel | None, specs: Specs) -> InputColumns:
    """Return the inputs ``specs`` of the trained part of the graph."""
    parts = None if fitted is None else fitted.parts
    if parts is None or specs is None:
        return columns
    arrays: dict[str, Any] = {} if parts.encoder is None else _encoded(columns, parts.encoder)
    if parts.numbers:
        rows = np.arange(len(next(iter(columns.values()))))
        arrays[parts.matrix] = np.hstack([columns[name].rows(rows) for name in parts.numbers])
    return {spec.name: Column(arrays[spec.name], spec.dtype) for spec in specs}


def _encoded(columns: Mapping[str, Column], encoder: bytes) -> dict[str, Any]:
    try:
        session = sessions.create_session(encoder, devices.resolve_device(), threads=devices.available_threads())
    except Exception as error:  # releases of onnxruntime differ in the class
        raise ModelError(
            f"onnxruntime {distributions.version()} cannot run the encoder of the model's text: {error}"
        ) from error
    inputs, outputs = ([value.name for value in side] for side in (session.get_inputs(), session.get_outputs()))
    rows = np.arange(len(next(iter(columns.values()))))
    pieces = []
    for start in range(0, len(rows), CHUNK):
        feeds = {name: columns[name].rows(rows[start : start + CHUNK]) for name in inputs}
        try:
            results = session.run(outputs, feeds)
        except Exception as error:  # releases of onnxruntime differ in the class
            raise ValueError(f"The texts in X cannot be encoded: {error}") from error
        pieces.append([_compact(result, len(rows)) for result in results])
    return {name: _stacked(parts) for name, parts in zip(outputs, zip(*pieces, strict=True), strict=True)}


def _compact(piece: np.ndarray, n_rows: int) -> Any:
    """Return a chunk as it is, or sparse where ``n_rows`` rows of this kind would be large."""
    is_large = n_rows * math.prod(piece.shape[1:]) * piece.itemsize > COPY_LIMIT
    return sp.csr_matrix(piece) if piece.ndim == 2 and is_large else piece


def _stacked(pieces: Sequence[np.ndarray | SparseLike]) -> Any:
    dense = [piece for piece in pieces if isinstance(piece, np.ndarray)]
    return np.concatenate(dense) if dense else sp.vstack(pieces, format="csr")

"""Converters of encoders of categories: a table for each column, with a row for each category and one for unknown ones.

scikit-learn itself fills the tables: it knows which categories are dropped, which ones are infrequent together, and the
code of missing values.
"""

from __future__ import annotations

import copy
from typing import TypeAlias

import numpy as np
import onnx_ir as ir
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder

from ..._graph.builder import GraphBuilder
from ..._graph.cast_types import FLOAT, INT64
from ..._support.typing import Estimator
from ...exceptions import ModelError
from .context import Converter, Source

Encoder: TypeAlias = OneHotEncoder | OrdinalEncoder


def _encoded(s: Source) -> list[ir.Value] | None:
    columns = _single_columns(s)
    if columns is None:
        return None
    op, encoder, parts = s.op, s.estimator, list[ir.Value]()
    for i, (column, known, table) in enumerate(zip(columns, encoder.categories_, _tables(encoder), strict=True)):
        if column.dtype is ir.DataType.STRING and encoder.handle_unknown == "error":
            parts.append(op.Gather(table[1:], _place_or_error(op, column, known), axis=0))
        else:
            parts.append(op.Gather(table, op.Squeeze(_place(op, column, known, encoder, i), np.array([1])), axis=0))
    return [parts[0] if len(parts) == 1 else op.Concat(*parts, axis=1)]


def _place_or_error(op: GraphBuilder, column: ir.Value, known: np.ndarray) -> ir.Value:
    """Return the place of each category, (rows,), by the operator that raises an error for unknown ones."""
    texts = [str(one) for one in known]
    found = op.emit("OneHotEncoder", column, domain="ai.onnx.ml", cats_strings=texts, zeros=0)[0]
    found.dtype = ir.DataType.FLOAT
    return op.ArgMax(op.Reshape(found, np.array([-1, len(texts)])), axis=1, keepdims=False)


def _single_columns(s: Source) -> list[ir.Value] | None:
    """Return the columns of the data one by one; None where the inputs do not say how many they are."""
    columns, left = list[ir.Value](), int(s.estimator.n_features_in_)
    for value in s.inputs:
        size = value.shape[1] if value.shape is not None else None
        count = size if isinstance(size, int) else left if len(s.inputs) == 1 else None
        if count is None:
            return None
        columns += [value] if count == 1 else [s.op.Gather(value, np.array([i]), axis=1) for i in range(count)]
        left -= count
    for column in columns:
        column.type = column.type or s.inputs[0].type
    return columns if left == 0 else None


def _place(op: GraphBuilder, column: ir.Value, known: np.ndarray, encoder: Encoder, index: int) -> ir.Value:
    """Return the place of each category among the known ones, counted from 1; 0 is that of unknown ones."""
    if column.dtype is ir.DataType.STRING:
        texts, places = [str(one) for one in known], list(range(1, len(known) + 1))
        place = op.emit(
            "LabelEncoder", column, domain="ai.onnx.ml", keys_strings=texts, values_int64s=places, default_int64=0
        )[0]
        place.dtype = ir.DataType.INT64
        return place
    numbers = np.asarray([np.nan if one is None else one for one in known.tolist()], np.float32)
    if len(np.unique(numbers)) < len(known):
        raise ModelError(
            f"Categories in column {index} of this {type(encoder).__name__} are equal as float32: its ONNX form "
            f"cannot tell them apart. Number the categories from 0, and fit the model on that."
        )
    x = column if column.dtype is ir.DataType.FLOAT else op.Cast(column, to=FLOAT)
    found = op.Equal(x, numbers[np.newaxis])
    if (gap := np.isnan(numbers)).any():
        found = op.Or(found, op.And(op.IsNaN(x), gap[np.newaxis]))
    position = op.MatMul(op.Cast(found, to=FLOAT), np.arange(1, len(known) + 1, dtype=np.float32)[:, np.newaxis])
    return op.Cast(position, to=INT64)


def _tables(encoder: Encoder) -> list[np.ndarray]:
    """Return what becomes of each category of each column: that of unknown ones, then that of each known one."""
    twin = copy.copy(encoder)
    if isinstance(encoder, OneHotEncoder):
        vars(twin).update(sparse_output=False)
    for name in ("feature_names_in_", "_sklearn_output_config"):
        vars(twin).pop(name, None)
    known, tables = encoder.categories_, []
    ends = np.cumsum([0, *(_width(encoder, i) for i in range(len(known)))])
    for i, own in enumerate(known):
        rows = np.empty((len(own), len(known)), object if any(one.dtype.kind in "OUS" for one in known) else float)
        for j, one in enumerate(known):
            rows[:, j] = own if j == i else one[0]
        table = np.asarray(twin.transform(rows), np.float32)[:, ends[i] : ends[i + 1]]
        tables.append(np.concatenate([_unknown(encoder, i, table), table]))
    return tables


def _rare(encoder: Encoder, column: int) -> np.ndarray | None:
    """Return the infrequent categories of a column, None where it has none."""
    found = getattr(encoder, "infrequent_categories_", None)
    return None if found is None else found[column]


def _width(encoder: Encoder, column: int) -> int:
    if isinstance(encoder, OrdinalEncoder):
        return 1
    rare = _rare(encoder, column)
    groups = len(encoder.categories_[column]) - (0 if rare is None else len(rare) - 1)
    return groups - int(encoder.drop_idx_ is not None and encoder.drop_idx_[column] is not None)


def _unknown(encoder: Encoder, column: int, table: np.ndarray) -> np.ndarray:
    """Return the row of unknown categories: zeros, or that of the infrequent ones; of codes the one for them."""
    if isinstance(encoder, OrdinalEncoder):  # NaN for an unknown number, which no operator raises an error for
        code = encoder.unknown_value if encoder.handle_unknown == "use_encoded_value" else np.nan
        return np.array([[code]], np.float32)
    rare = _rare(encoder, column)
    if rare is None or encoder.handle_unknown not in ("infrequent_if_exist", "warn"):
        return np.zeros((1, table.shape[1]), np.float32)
    place = encoder.categories_[column].tolist().index(rare[0])
    return table[place : place + 1]


def _columns(encoder: Estimator) -> int:
    return sum(_width(encoder, i) for i in range(len(encoder.categories_)))


CONVERTERS: dict[type, Converter] = {
    OneHotEncoder: Converter(_encoded, _columns, takes_text=True),
    OrdinalEncoder: Converter(_encoded, _columns, takes_text=True),
}

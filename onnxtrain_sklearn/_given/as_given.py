"""The output of a file as given, on rows of the data, beside that of the graph that was read from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from .._data.columns import Column
from .._graph.as_given import compared, draws, inputs_of, normalizes_by_batch, plain_session
from .._graph.files import read, without_program
from .._graph.protobuf import to_proto
from ..exceptions import ModelError


def require_file_as_given(
    model: Any, graph: ir.Model, name: str, columns: Mapping[str, Column], rows: np.ndarray, found: np.ndarray
) -> str | None:
    """Raise ModelError, with the first node that differs, if the file does not compute what ``graph`` did for rows.

    ``graph`` is the inference form of what was read. Return why the file was not compared, "": it was; None: the model
    is no file.
    """
    model = without_program(model)
    if not isinstance(model, onnx.ModelProto | bytes | str) and not hasattr(model, "__fspath__"):
        return None
    proto = read(model)
    if name not in {value.name for value in proto.graph.output}:
        return "its outputs are joined"
    if draws(proto):
        return "it draws random numbers"
    if normalizes_by_batch(proto):
        return "its BatchNormalization is in training form"
    feeds = _feeds(proto, columns, rows)
    if isinstance(feeds, str):
        return feeds
    if (given := plain_session(proto)) is None:
        return "onnxruntime does not load it as it is"
    outcome = compared(given, [name], feeds, "rows of X", [found], lambda: to_proto(graph.clone()))
    if outcome.different:
        raise ModelError(
            f"The graph that was read does not compute what onnxruntime computes of the file as given: "
            f"{outcome.different} Export the model with another opset (18 is a good choice) or without that operator, "
            f"and please report it."
        )
    return outcome.reason


def _feeds(proto: onnx.ModelProto, columns: Mapping[str, Column], rows: np.ndarray) -> dict[str, np.ndarray] | str:
    """Return the rows in the types of the file, or why it does not take them."""
    feeds = {}
    for value in inputs_of(proto):
        kind = value.type.tensor_type
        if value.name not in columns:
            return f"its input {value.name!r} is not among those of the trained output"
        if kind.elem_type in (onnx.TensorProto.BFLOAT16, onnx.TensorProto.STRING):
            return f"its input {value.name!r} holds {ir.DataType(kind.elem_type).name.lower()}"
        if kind.shape.dim and kind.shape.dim[0].dim_value not in (0, len(rows)):
            return f"its input {value.name!r} has {kind.shape.dim[0].dim_value} rows"
        feeds[value.name] = columns[value.name].rows(rows).astype(ir.DataType(kind.elem_type).numpy(), copy=False)
    return feeds

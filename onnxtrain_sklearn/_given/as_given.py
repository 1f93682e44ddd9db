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
) -> None:
    """Raise ModelError, with the first node that differs, if the file does not compute what ``graph`` did for rows.

    ``graph`` is the inference form of what was read. A file that the installed onnxruntime does not run as it is, that
    draws random numbers, or that has inputs beside the columns is not compared.
    """
    model = without_program(model)
    if not isinstance(model, onnx.ModelProto | bytes | str) and not hasattr(model, "__fspath__"):
        return
    proto = read(model)
    if name not in {value.name for value in proto.graph.output} or draws(proto) or normalizes_by_batch(proto):
        return
    feeds = _feeds(proto, columns, rows)
    if feeds is None or (given := plain_session(proto)) is None:
        return
    outcome = compared(given, [name], feeds, "rows of X", [found], lambda: to_proto(graph.clone()))
    if outcome.different:
        raise ModelError(
            f"The graph that was read does not compute what onnxruntime computes of the file as given: "
            f"{outcome.different} Export the model with another opset (18 is a good choice) or without that operator, "
            f"and please report it."
        )


def _feeds(proto: onnx.ModelProto, columns: Mapping[str, Column], rows: np.ndarray) -> dict[str, np.ndarray] | None:
    """Return the rows in the types of the file; None if it has other inputs, or as many rows as it was exported for."""
    feeds = {}
    for value in inputs_of(proto):
        kind = value.type.tensor_type
        if value.name not in columns or kind.elem_type in (onnx.TensorProto.BFLOAT16, onnx.TensorProto.STRING):
            return None
        if kind.shape.dim and kind.shape.dim[0].dim_value not in (0, len(rows)):
            return None
        feeds[value.name] = columns[value.name].rows(rows).astype(ir.DataType(kind.elem_type).numpy(), copy=False)
    return feeds

"""Compare a file as given, run by onnxruntime, with the graph that was read from it, on rows of the data.

Reading rewrites a graph: opsets are converted, what exporters changed is restored, operators are replaced. A mistake
there would train another model in silence, so :func:`require_file_as_given` holds both to the same outputs, or says why
they were not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from .._data.columns import InputData
from .._importers.load import without_zip_maps
from .._ir.files import read, without_program
from .._ir.protobuf import to_proto
from .._model.graph_comparison import (
    LARGEST,
    compare_outputs,
    drawn_input,
    draws,
    in_predicting_form,
    inputs_of,
    plain_session,
)
from ..exceptions import ModelError


class FileCompared(NamedTuple):
    """Result of the comparison with a file: the reason why it was not compared, or the parts left out if it was."""

    reason: str = ""
    without: str = ""


def require_file_as_given(
    model: Any,
    graph: ir.Model,
    joined: tuple[int, ...],
    columns: Mapping[str, InputData],
    rows: np.ndarray,
    found: np.ndarray,
    run: Callable[[np.ndarray], np.ndarray],
    name: str | None = None,
) -> FileCompared | None:
    """Raise ModelError, with the first node that differs, if the file does not compute what ``graph`` did for rows.

    ``graph`` is the inference form of what was read, ``run`` returns its output ``name``, None: the first, for other
    rows. With ``joined``, the columns of each output of the file, it has all of them side by side. Return what was
    compared; None: the model is no file.
    """
    model = without_program(model)
    if not isinstance(model, onnx.ModelProto | bytes | str) and not hasattr(model, "__fspath__"):
        return None
    proto = without_zip_maps(read(model))
    if proto.ByteSize() > LARGEST:
        return FileCompared("it is larger than 2 GB")
    proto, without = in_predicting_form(proto)
    if draws(proto):
        return FileCompared("it draws random numbers")
    if (given := plain_session(proto)) is None:
        return FileCompared("onnxruntime does not load it as it is")
    batch, feeds_of = _feeds(proto, columns)
    names, cuts = [name or graph.graph.outputs[0].name or ""], list[int]()
    if joined:
        kinds = {value.name: value.type.tensor_type.elem_type for value in proto.graph.output}
        names = [name for name, kind in kinds.items() if kind and ir.DataType(kind).is_floating_point()]
        cuts = list(accumulate(joined))[:-1]
    # A file for minibatches of one size gets them filled up; batch is 0 where it takes any number of rows.
    parts = [np.resize(rows[i : i + batch], batch) for i in range(0, len(rows), batch)] if batch else [rows]
    for part in parts:
        try:
            ours = found if part is rows else run(part)
        except ModelError:
            return FileCompared(f"what was read does not run on {len(part)} rows")
        made = np.split(ours, cuts, axis=1) if joined else [ours]
        outcome = compare_outputs(given, names, feeds_of(part), "rows of X", made, lambda: to_proto(graph.clone()))
        if outcome.different:
            raise ModelError(
                f"The graph that was read does not compute what onnxruntime computes of the file as given: "
                f"{outcome.different} Export the model with another opset (18 is a good choice) or without that "
                f"operator, and please report it."
            )
        if outcome.reason:
            return FileCompared(outcome.reason)
    return FileCompared(without=without)


def _feeds(
    proto: onnx.ModelProto, columns: Mapping[str, InputData]
) -> tuple[int, Callable[[np.ndarray], dict[str, np.ndarray]]]:
    """Return the number of rows that the file takes, 0: any, and the function from rows to its inputs.

    Inputs that the trained output does not need are zeros.
    """
    inputs = inputs_of(proto)
    first = [value.type.tensor_type.shape.dim[:1] for value in inputs if value.name in columns]
    batch = max((d.dim_value for dims in first for d in dims), default=0)

    def feeds(rows: np.ndarray) -> dict[str, np.ndarray]:
        found = {}
        for value in inputs:
            kind = ir.DataType(value.type.tensor_type.elem_type)
            if value.name in columns:
                dtype = np.dtype(np.float32) if kind is ir.DataType.BFLOAT16 else kind.numpy()
                found[value.name] = columns[value.name].rows(rows).astype(dtype, copy=False)
            else:
                found[value.name] = drawn_input(value, len(rows))
        return found

    return max(batch, 0), feeds

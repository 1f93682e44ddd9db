"""Infer types and shapes of the results of custom operators, which only a library knows, from two runs of the graph.

:func:`with_types_of_custom_operators` runs the file as given on random inputs, with other numbers of rows and other
free sizes in the second run. A size of a result that is equal in both runs is fixed; one that equals the number of rows
in both is the batch axis; any other is free. A file that cannot be run so stays as it is.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper
import onnx_ir as ir

from .._ir.shapes import is_custom_domain
from .._model.reference import inputs_of, plain_session

_ROWS, _FREE = (2, 5), (3, 4)
"""The number of rows, and the sizes of other free axes, in the two runs."""


def with_types_of_custom_operators(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with declared results of operators that only a library has; as it is where it does not run."""
    functions = {(function.domain, function.name) for function in proto.functions}
    declared = {
        value.name
        for value in (*proto.graph.value_info, *proto.graph.output)
        if value.type.tensor_type.elem_type and value.type.tensor_type.HasField("shape")
    }
    wanted = [
        name
        for node in proto.graph.node
        if is_custom_domain(node.domain) and (node.domain, node.op_type) not in functions
        for name in node.output
        if name and name not in declared
    ]
    if not wanted:
        return proto
    # Show the results as outputs of a copy, and run that twice.
    shown = onnx.ModelProto()
    shown.CopyFrom(proto)
    outputs = {value.name for value in proto.graph.output}
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted if name not in outputs)
    session = plain_session(shown)
    feeds = [_drawn(proto, rows, free) for rows, free in zip(_ROWS, _FREE, strict=True)]
    runs = [None if session is None or feed is None else session.run(wanted, feed) for feed in feeds]
    if runs[0] is None or runs[1] is None:
        return proto
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    batch = next((d.dim_param for value in inputs_of(proto) for d in value.type.tensor_type.shape.dim[:1]), "") or "N"
    for name, first, second in zip(wanted, runs[0], runs[1], strict=True):
        if isinstance(first, np.ndarray) and isinstance(second, np.ndarray) and first.ndim == second.ndim:
            kind = onnx.TensorProto.STRING if first.dtype.kind in "OSU" else ir.DataType.from_numpy(first.dtype)
            pairs = zip(first.shape, second.shape, strict=True)
            sizes = [a if a == b else batch if (a, b) == _ROWS else None for a, b in pairs]
            value = onnx.helper.make_tensor_value_info(name, int(kind), sizes)
            known = next((v for v in (*result.graph.output, *result.graph.value_info) if v.name == name), None)
            (result.graph.value_info.add() if known is None else known).CopyFrom(value)
    return result


def _drawn(proto: onnx.ModelProto, rows: int, free: int) -> dict[str, np.ndarray] | None:
    """Return random inputs; None if one is no tensor of numbers."""
    rng, feeds = np.random.RandomState(0), {}
    for value in inputs_of(proto):
        kind = value.type.tensor_type
        if not kind.elem_type or (dtype := ir.DataType(kind.elem_type).numpy()).kind not in "fiub":
            return None
        sizes = [d.dim_value or (free if i else rows) for i, d in enumerate(kind.shape.dim)]
        feeds[value.name] = rng.standard_normal(sizes).astype(dtype)
    return feeds

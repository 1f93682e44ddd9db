"""Translate errors of onnxruntime into errors of this package that name the remedy.

Sessions raise :func:`not_loaded` for a graph that onnxruntime does not load, and :func:`not_run` for one that fails on
its data. onnxruntime has one class for many causes, and another one in each release: the causes are told by the text.
"""

from __future__ import annotations

import re

import onnx
import onnx_ir as ir

from .._utils.errors import NOT_ENOUGH, ran_out, reason
from ..exceptions import ModelError
from .packages import version

_LACKING = re.compile(r"implementation for (\w+)\(\d+\) node with name '([^']*)'")
_BEYOND = re.compile(r"idx=(-?\d+) must be within the inclusive range \[-?\d+, ?(-?\d+)\]")
_OUT_OF_RANGE = ("Out of range value in index tensor", "invalid index found", "invalid indice found")
_SCARCE = (ir.DataType.BFLOAT16, ir.DataType.DOUBLE, ir.DataType.FLOAT16)
"""The floats that many operators are not implemented in."""


def not_loaded(error: Exception, model: bytes = b"") -> ModelError | MemoryError:
    """Return the error to raise for a graph, serialized in ``model``, that onnxruntime does not load."""
    if ran_out(error):
        return MemoryError(f"{NOT_ENOUGH} to load the graph of {len(model):,} bytes: {reason(error)}.")
    if not_implemented(error):
        if scarce := _scarce_type(error, model):
            return ModelError(
                f"onnxruntime {version()} lacks a kernel for the graph: {reason(error)}. The reason is the type of its "
                f"inputs, {scarce}, in which onnxruntime lacks some operators whatever the opset. Export the model in "
                f"float32, which takes data of any float type, or replace the operator."
            )
        foreign = "is not a registered function/op" in str(error)
        option = "session_options={'register_custom_ops_library': path}"
        library = f" For an operator of a library, name it: runtime=Runtime({option})."
        return ModelError(
            f"onnxruntime {version()} lacks a kernel for the graph: {reason(error)}. Export the model again with "
            f"another opset (18 is a good choice), or replace the operator.{library if foreign else ''}"
        )
    return ModelError(f"onnxruntime {version()} cannot load the graph: {reason(error)}.")


def beyond_table(why: str, index: int, size: int) -> ModelError:
    """Return the error to raise for an index that its table does not have."""
    return ModelError(
        f"The graph does not run on the data: {why}. The index {index} is beyond a table of {size} rows that it "
        f"selects from, such as the vocabulary of an embedding: indices from 0 to {size - 1} are valid. Replace the "
        f"others in X, or take the model with the larger table."
    )


def not_run(error: Exception) -> ModelError | MemoryError:
    """Return the error to raise for a graph that fails on its data."""
    if ran_out(error):
        return MemoryError(
            f"{NOT_ENOUGH} to run the graph on the data: {reason(error)}. Take fewer rows at a time (batch_size), or "
            f"runtime=Runtime(checkpoint_activations=True)."
        )
    if found := _BEYOND.search(str(error)):
        index, last = found.groups()
        return beyond_table(reason(error), int(index), int(last) + 1)
    if any(text in str(error) for text in _OUT_OF_RANGE):
        return ModelError(
            f"The graph does not run on the data: {reason(error)}. An index in X, or computed from it, is beyond the "
            f"size of what it selects from."
        )
    return ModelError(
        f"The graph does not run on the data: {reason(error)}. If the number of rows is fixed inside it (by a constant "
        f"shape in a Reshape), export it with a dynamic batch axis."
    )


def not_implemented(error: BaseException) -> bool:
    """Return True if ``error`` or its cause reports a missing kernel for an operator or type."""
    if error.__cause__ is not None and not_implemented(error.__cause__):
        return True
    messages = ("NOT_IMPLEMENTED", "is not a registered function/op")
    return type(error).__name__ in {"NotImplemented", "InvalidGraph"} or any(text in str(error) for text in messages)


def _scarce_type(error: Exception, model: bytes) -> str:
    """Return the type of the floats that the node without a kernel reads, "" if it is float32 or not known."""
    found = _LACKING.search(str(error))
    graph = onnx.load_model_from_string(model).graph if found and model else None
    if found is None or graph is None:
        return ""
    typed = (*graph.input, *graph.value_info, *graph.output)
    types = {value.name: value.type.tensor_type.elem_type for value in typed}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    nodes = [node for node in graph.node if (node.op_type, node.name) == found.groups()]
    read = [ir.DataType(types.get(name, 0)) for node in nodes for name in (*node.input, *node.output)]
    return next((dtype.name.lower().replace("double", "float64") for dtype in read if dtype in _SCARCE), "")

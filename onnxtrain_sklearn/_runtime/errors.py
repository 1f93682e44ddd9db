"""Errors of onnxruntime as errors of this package."""

from __future__ import annotations

from .._support.refusal import reason
from ..exceptions import ModelError
from .distributions import version


def not_loaded(error: Exception) -> ModelError:
    """Return the error to raise for a graph that onnxruntime does not load."""
    if not_implemented(error):
        return ModelError(
            f"onnxruntime {version()} lacks a kernel for the graph: {reason(error)}. Export the model again with "
            f"another opset (18 is a good choice), or replace the operator."
        )
    return ModelError(f"onnxruntime {version()} cannot load the graph: {reason(error)}.")


def not_run(error: Exception) -> ModelError:
    """Return the error to raise for a graph that fails on its data."""
    return ModelError(
        f"The graph does not run on the data: {reason(error)}. If the number of rows is fixed inside it (by a constant "
        f"shape in a Reshape), export it with a dynamic batch axis."
    )


def not_implemented(error: BaseException) -> bool:
    """Whether ``error`` or its cause says that a kernel is missing for an operator or type."""
    if error.__cause__ is not None and not_implemented(error.__cause__):
        return True
    messages = ("NOT_IMPLEMENTED", "is not a registered function/op")
    return type(error).__name__ in {"NotImplemented", "InvalidGraph"} or any(text in str(error) for text in messages)

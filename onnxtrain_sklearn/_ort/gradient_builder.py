"""The gradient builder of onnxruntime-training, the gradients that it lacks, and adapter files."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any

from . import operator_libraries
from .packages import onnxruntime, pybind

_ZERO = [("Sub", ["O(0)", "O(0)"], ["zero"]), ("Mul", ["GO(0)", "zero"], ["GI(0)"])]
_GRADIENTS: dict[str, list[tuple[str, list[str], list[str]]]] = {
    "Softplus": [("Sigmoid", ["I(0)"], ["sigmoid"]), ("Mul", ["GO(0)", "sigmoid"], ["GI(0)"])],
    **dict.fromkeys(("Ceil", "Floor", "Round", "Sign"), _ZERO),
}
_registered: set[str] = set()


def has_gradient_builder() -> bool:
    """Return True if this onnxruntime is a training build with the forward-backward graph builder."""
    return hasattr(pybind, "GradientGraphBuilder")


CUSTOM_OPERATORS: ContextVar[str | None] = ContextVar("library of custom operators", default=None)
"""A library of custom operators that graphs have, which the builder must know to load them."""


def require_library(path: str) -> None:
    """Raise RuntimeError if a file is not a library of custom operators that this onnxruntime loads."""
    onnxruntime.SessionOptions().register_custom_ops_library(path)


def build_gradient_graph(model: bytes, *, wrt: Iterable[str], of: str) -> bytes:
    """Run onnxruntime-training's gradient builder; it raises RuntimeError for graphs that it refuses."""
    _register_gradients()
    builder = pybind.GradientGraphBuilder(model, {of}, set(wrt), of, _builder_options())
    builder.build()
    return bytes(builder.get_model())


def optimized_for_training(model: bytes, *, wrt: Iterable[str]) -> bytes:
    """Return the graph as onnxruntime-training's transformers leave it, with what ``wrt`` needs kept apart."""
    return bytes(pybind.get_optimized_model(model, set(wrt), _builder_options()))


def _builder_options() -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if (library := CUSTOM_OPERATORS.get()) is not None:
        options.register_custom_ops_library(library)
    operator_libraries.add_known(options, {operator_libraries.OPTION: library})
    return options


def _register_gradients() -> None:
    """Define gradients that the builder lacks, once per process; only of operators without attributes."""
    for op_type, nodes in _GRADIENTS.items():
        if op_type not in _registered:
            pybind.register_gradient_definition(f"::{op_type}", [_definition(*node) for node in nodes])
            _registered.add(op_type)


def _definition(op_type: str, inputs: list[str], outputs: list[str]) -> Any:
    node = pybind.GradientNodeDefinition()
    node.op_type, node.domain, node.inputs, node.outputs, node.attributes = op_type, "", inputs, outputs, []
    return node

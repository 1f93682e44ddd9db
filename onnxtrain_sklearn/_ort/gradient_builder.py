"""The gradient builder of onnxruntime-training, and gradients that it lacks.

:func:`build_gradient_graph` runs the builder. It has no gradient for the operators of :data:`_GRADIENTS`, which are
registered once per process. A registered definition holds for an operator type whatever its attributes, so only
operators without attributes are among them.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any

from .packages import onnxruntime, pybind
from .sessions import LIBRARY_OPTION, add_known_libraries

# Nodes of a definition: operator, inputs, outputs. I(0) is the operand, O(0) the result, GI and GO their gradients.
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
    for op_type, definition in _GRADIENTS.items():
        if op_type in _registered:
            continue
        nodes = []
        for kind, inputs, outputs in definition:
            node = pybind.GradientNodeDefinition()
            node.op_type, node.domain, node.inputs, node.outputs, node.attributes = kind, "", inputs, outputs, []
            nodes.append(node)
        pybind.register_gradient_definition(f"::{op_type}", nodes)
        _registered.add(op_type)
    builder = pybind.GradientGraphBuilder(model, {of}, set(wrt), of, _builder_options())
    builder.build()
    return bytes(builder.get_model())


def optimized_for_training(model: bytes, *, wrt: Iterable[str]) -> bytes:
    """Return the graph after onnxruntime-training's transformers, which keep the values that ``wrt`` needs."""
    return bytes(pybind.get_optimized_model(model, set(wrt), _builder_options()))


def _builder_options() -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if (library := CUSTOM_OPERATORS.get()) is not None:
        options.register_custom_ops_library(library)
    add_known_libraries(options, {LIBRARY_OPTION: library})
    return options

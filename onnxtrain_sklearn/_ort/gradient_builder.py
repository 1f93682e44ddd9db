"""The gradient builder of onnxruntime-training, the gradients that it lacks, and adapter files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import numpy as np

from ..exceptions import ModelError, RuntimeNotFoundError
from . import custom_operators
from .packages import onnxruntime, pybind, version

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
    custom_operators.add_known(options, {custom_operators.OPTION: library})
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


# Adapter files of onnxruntime: named arrays that replace inputs with defaults at run time.


IDENTIFIER, LARGEST = b"TORT", 2**31 - 1
"""The bytes 4 to 8 of an adapter file, and the largest size of one, which is a FlatBuffer."""


def write_adapter(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]) -> None:
    """Write ``arrays`` to an ``.onnx_adapter`` file."""
    _require_adapters("Save the adapter where a newer one is, from a pickle of the estimator, or take to_onnx().")
    values = {n: onnxruntime.OrtValue.ortvalue_from_numpy(np.asarray(a, order="C")) for n, a in arrays.items()}
    adapter = onnxruntime.AdapterFormat()
    adapter.set_adapter_version(1)
    adapter.set_model_version(1)
    adapter.set_parameters(values)
    adapter.export_adapter(os.fspath(path))


def read_adapter(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Return the arrays of an ``.onnx_adapter`` file."""
    _require_adapters("Read the adapter where a newer one is, and give its arrays as a dict.")
    what = f"{os.fspath(path)} is not an adapter file of onnxruntime"
    with open(path, "rb") as file:  # onnxruntime reads all of a file before it looks at its beginning
        if file.read(8)[4:] != IDENTIFIER or os.fstat(file.fileno()).st_size > LARGEST:
            raise ModelError(f"{what}: it does not begin like one, or is too large.")
    try:
        adapter = onnxruntime.AdapterFormat.read_adapter(os.fspath(path))  # the values lie in its memory
        found = adapter.get_parameters()
    except Exception as error:  # each release has another class for it
        raise ModelError(f"{what}: {error}") from error
    arrays = {name: value.numpy() for name, value in found.items()}  # they lie in its memory, too
    places = sorted((array.ctypes.data, array.nbytes) for array in arrays.values() if array.nbytes)
    if any(start + length > following for (start, length), (following, _) in pairwise(places)):
        raise ModelError(f"{what}: its arrays overlap.")
    return {name: np.array(array) for name, array in arrays.items()}


def _require_adapters(advice: str) -> None:
    if not hasattr(onnxruntime, "AdapterFormat"):
        raise RuntimeNotFoundError(
            f"Adapter files need onnxruntime 1.20 or newer, and {version()} is installed. {advice}"
        )

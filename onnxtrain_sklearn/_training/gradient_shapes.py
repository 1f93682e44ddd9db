"""The shapes in which a pass writes the gradients of its parameters.

A Reshape at the end of a graph copies the whole gradient into the memory that is bound to the output. The vector of
gradients is flat, so the memory can be bound in the shape in which the gradient is computed instead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx_ir as ir

from .._graph.edits import bypass
from .._graph.queries import dims, fixed, kind
from .._runtime.binding import Array, DeviceArray
from .._runtime.sessions import InferenceSession

RESHAPING = frozenset(("Flatten", "Reshape", "Squeeze", "Unsqueeze"))
"""Operators that change nothing but the shape."""


def return_before_reshapes(graph: ir.Graph, names: Collection[str]) -> None:
    """Return the gradients of ``names`` in the shapes in which they are computed, under their names."""
    wanted = {f"{name}_grad" for name in names}
    for output in [value for value in graph.outputs if value.name in wanted]:
        node = output.producer()
        if node is None or kind(node) not in RESHAPING or output.uses():
            continue
        source, name = node.inputs[0], output.name
        if source is not None and _is_computed(source, graph) and source.dtype is output.dtype:
            bypass(node, source)
            output.name, source.name = None, name


def _is_computed(value: ir.Value, graph: ir.Graph) -> bool:
    """Whether ``graph`` computes ``value``, in a shape that is known, and does not return it already."""
    node = value.producer()
    return node is not None and node.graph is graph and not value.is_graph_output() and fixed(dims(value))


def in_written_shapes(session: InferenceSession, gradients: Mapping[str, Array]) -> dict[str, Array]:
    """Return views of the arrays in the shapes in which the session writes them, where it knows all sizes."""
    shapes = {value.name: value.shape for value in session.get_outputs()}
    return {name: _in_shape(array, shapes[name]) for name, array in gradients.items()}


def _in_shape(array: Array, shape: list[object] | None) -> Array:
    if not fixed(shape) or tuple(shape) == tuple(array.shape):
        return array
    return array.part(0, shape) if isinstance(array, DeviceArray) else array.reshape(shape)

"""The shapes in which a pass writes the gradients of its parameters.

A Reshape at the end of a graph copies the whole gradient into the memory that is bound to the output. The vector of
gradients is flat, so the memory can be bound in the shape in which the gradient is computed instead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx_ir as ir

from .._graph.queries import dims, fixed, kind
from .._runtime.binding import Array, DeviceArray
from .._runtime.sessions import InferenceSession

RESHAPING = frozenset(("Flatten", "Reshape", "Squeeze", "Unsqueeze"))
"""Operators that change nothing but the shape."""


def return_before_reshapes(graph: ir.Graph, names: Collection[str]) -> None:
    """Return the gradients of ``names`` in the shapes in which they are computed, under their names."""
    wanted = {f"{name}_grad" for name in names}
    outputs, dropped = list(graph.outputs), list[ir.Node]()
    returned = set(outputs)
    for i, output in enumerate(outputs):
        node = output.producer()
        if output.name not in wanted or node is None or kind(node) not in RESHAPING or output.uses():
            continue
        source, name = node.inputs[0], output.name
        if source is None or source in returned or source.dtype is not output.dtype:
            continue
        if _is_computed(source, graph):
            outputs[i], output.name, source.name = source, None, name
            returned.add(source)
            dropped.append(node)
    graph.outputs.clear()  # once: to find each of them among all takes longer than the rest
    graph.outputs.extend(outputs)
    graph.remove(dropped, safe=True)


def _is_computed(value: ir.Value, graph: ir.Graph) -> bool:
    """Whether ``graph`` computes ``value``, in a shape that is known."""
    node = value.producer()
    return node is not None and node.graph is graph and fixed(dims(value))


def in_written_shapes(session: InferenceSession, gradients: Mapping[str, Array]) -> dict[str, Array]:
    """Return views of the arrays in the shapes in which the session writes them, where it knows all sizes."""
    shapes = {value.name: value.shape for value in session.get_outputs()}
    return {name: _in_shape(array, shapes[name]) for name, array in gradients.items()}


def _in_shape(array: Array, shape: list[object] | None) -> Array:
    if shape == [*array.shape] or not fixed(shape):
        return array
    return array.part(0, shape) if isinstance(array, DeviceArray) else array.reshape(shape)

"""States of Loops and Scans: those that no iteration changes, and the shapes of those that change.

ONNX's inference leaves shapes inside Loops unknown, as a state may change its shape in each iteration.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from .edits import remove_states
from .queries import dims, every_node, graphs_in
from .shapes import infer_shapes

_LEADING = {"Loop": (2, 1), "Scan": (0, 0)}
"""Inputs of a node and of its body, and outputs of the body, before those of the states."""


def read_constant_states(graph: ir.Graph) -> None:
    """Let bodies read from outside what no iteration changes, in place: JAX's loops take their weights as states."""
    for node in every_node(graph):
        if node.op_type in _LEADING and not node.domain:
            first, done = _LEADING[node.op_type]
            remove_states(node, _constant_states(node), first, done)


def _constant_states(node: ir.Node) -> list[int]:
    """Return the numbers of the states that each iteration returns as it got them."""
    body = node.attributes["body"].as_graph()
    first, done = _LEADING[node.op_type]
    last = len(node.inputs) - node.attributes.get_int("num_scan_inputs", 0)  # a Scan may return what it goes along
    pairs = zip(list(body.inputs)[first:last], list(body.outputs)[done:], node.outputs, strict=False)
    return [i for i, (x, y, end) in enumerate(pairs) if _before_identities(y) is x and not end.is_graph_output()]


def _before_identities(value: ir.Value) -> ir.Value:
    while (node := value.producer()) is not None and node.op_type == "Identity" and not node.domain:
        assert node.inputs[0] is not None
        value = node.inputs[0]
    return value


def infer_loops(model: ir.Model) -> None:
    """Set the opsets of bodies, and the shapes of Loop states that keep their initial shape; in place."""
    nodes = every_node(model.graph)
    for graph in (graph for node in nodes for graph in graphs_in(node)):
        graph.opset_imports.update(model.graph.opset_imports)
    loops = [node for node in nodes if node.op_type == "Loop" and not node.domain]
    assumed = [state for loop in loops for state in _assume_initial_shapes(loop)]
    while assumed:
        for value in [v for loop in loops for node in _body_nodes(loop) for v in node.outputs]:
            value.shape = None
        infer_shapes(model)
        kept = [state for state in assumed if state.holds()]
        if kept == assumed:
            break
        for state in assumed:
            if state not in kept:
                state.value.shape = state.declared
        assumed = kept
    ends = [end for loop in loops for end in _ends_of_known_shape(loop)]
    for end, shape in ends:
        end.shape = shape
    if ends:
        infer_shapes(model)


def _ends_of_known_shape(loop: ir.Node) -> Iterator[tuple[ir.Value, ir.Shape]]:
    """Yield the results of states that keep their shape, with this shape, if they have none."""
    body = loop.attributes["body"].as_graph()
    for x, y, end in zip(list(body.inputs)[2:], list(body.outputs)[1:], loop.outputs, strict=False):
        shape = dims(x)
        if end.shape is None and shape == dims(y) and shape is not None and None not in shape:
            yield end, ir.Shape(shape)


@dataclass(frozen=True, eq=False)
class _LoopState:
    """A state of a Loop, assumed to have the shape of its initial value."""

    value: ir.Value
    declared: ir.Shape | None
    becomes: ir.Value

    def holds(self) -> bool:
        """Whether an iteration keeps the shape, and therefore all do."""
        shape = dims(self.value)
        return shape == dims(self.becomes) and None not in (shape or [])


def _assume_initial_shapes(loop: ir.Node) -> list[_LoopState]:
    body = loop.attributes["body"].as_graph()
    states = []
    for start, x, y in zip(list(loop.inputs)[2:], list(body.inputs)[2:], list(body.outputs)[1:], strict=False):
        if start is not None and start.shape is not None and dims(x) != dims(start):
            states.append(_LoopState(x, x.shape, y))
            x.type, x.shape = start.type, ir.Shape(list(start.shape))
    return states


def _body_nodes(loop: ir.Node) -> Iterator[ir.Node]:
    yield from loop.attributes["body"].as_graph().all_nodes()

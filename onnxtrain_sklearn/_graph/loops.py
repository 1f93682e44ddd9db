"""Shapes inside of Loops, which ONNX's inference leaves open: a state may change its shape from round to round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from .queries import dims
from .shapes import infer_shapes


def infer_loops(model: ir.Model) -> None:
    """Tell bodies the opset, and those of Loops the shapes of states that keep what they begin with; in place."""
    for graph in model.graph.subgraphs():
        graph.opset_imports.update(model.graph.opset_imports)
    loops = [node for node in model.graph.all_nodes() if node.op_type == "Loop" and not node.domain]
    assumed = [state for loop in loops for state in _begin_as_given(loop)]
    while assumed:
        for value in [v for loop in loops for node in _inside(loop) for v in node.outputs]:
            value.shape = None
        infer_shapes(model)
        kept = [state for state in assumed if state.holds()]
        if kept == assumed:
            return
        for state in assumed:
            if state not in kept:
                state.value.shape = state.declared
        assumed = kept


@dataclass(frozen=True, eq=False)
class _State:
    """A state of a Loop whose shape is assumed to be that of the value it begins with."""

    value: ir.Value
    declared: ir.Shape | None
    becomes: ir.Value

    def holds(self) -> bool:
        """Whether an iteration leaves the shape as it is, so that all do."""
        shape = dims(self.value)
        return shape == dims(self.becomes) and None not in (shape or [])


def _begin_as_given(loop: ir.Node) -> list[_State]:
    body = loop.attributes["body"].as_graph()
    states = []
    for start, x, y in zip(list(loop.inputs)[2:], list(body.inputs)[2:], list(body.outputs)[1:], strict=False):
        if start is not None and start.shape is not None and dims(x) != dims(start):
            states.append(_State(x, x.shape, y))
            x.type, x.shape = start.type, ir.Shape(list(start.shape))
    return states


def _inside(loop: ir.Node) -> Iterator[ir.Node]:
    yield from loop.attributes["body"].as_graph().all_nodes()

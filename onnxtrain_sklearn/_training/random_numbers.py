"""Random nodes of a graph that is trained: their numbers come from the host, as those of Dropout do.

So they follow ``random_state``, on all engines, and an unpickled estimator goes on with the numbers that would have
come. A ``seed`` in the graph does not count.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from .._graph.builder import GraphBuilder
from .._graph.edits import replace_node
from .._graph.queries import attribute, describe, dims, every_node, fixed
from .._graph.random_nodes import NORMAL, UNIFORM, is_random
from .._graph.shapes import infer_shapes
from ..exceptions import UnsupportedOperatorError
from .dropout import STEM

NewInput = Callable[[], ir.Value]
"""Adds an input with uniform numbers of [0, 1) in the shape of what a node draws."""


def expose_random(model: ir.Model) -> list[ir.Value]:
    """Compute the numbers of random nodes from uniform ones, in place; return the new inputs that hold these."""
    nodes = [n for n in every_node(model.graph) if is_random(n) and n.op_type != "Multinomial"]
    inputs: list[ir.Value] = []
    op = GraphBuilder(model.graph, prefix="onnxtrain/random")
    for node in nodes:
        _expose_node(op, node, inputs)
    if inputs:
        model.graph.inputs.extend(inputs)
        model.graph.sort()
        infer_shapes(model)
    return inputs


def _expose_node(op: GraphBuilder, node: ir.Node, inputs: list[ir.Value]) -> None:
    drawn = node.outputs[0]
    sizes = dims(drawn)
    if node.graph is not op.graph or not fixed(sizes):
        reason = "it is in a subgraph" if node.graph is not op.graph else "the shape of its numbers cannot be inferred"
        raise UnsupportedOperatorError(
            f"{describe(node)} cannot be trained: {reason}, so its numbers cannot be drawn by random_state. Take it "
            f"out, or export the model in evaluation mode."
        )

    def draw() -> ir.Value:
        inputs.append(ir.val(f"{STEM}_number_{len(inputs)}", ir.DataType.FLOAT, sizes))
        return inputs[-1]

    op.dtype = ir.DataType.FLOAT
    replace_node(op, node, [op.Cast(_distributed(op, node, draw), to=drawn.dtype or ir.DataType.FLOAT)])


def _distributed(op: GraphBuilder, node: ir.Node, draw: NewInput) -> ir.Value:
    """Return float32 numbers of the distribution of a node."""
    if node.op_type in UNIFORM:
        low, high = attribute(node, "low", 0.0), attribute(node, "high", 1.0)
        return op.Add(op.Mul(draw(), high - low), low)
    if node.op_type in NORMAL:  # by Box and Muller
        radius = op.Sqrt(op.Mul(op.Log(op.Sub(1.0, draw())), -2.0))
        standard = op.Mul(radius, op.Cos(op.Mul(draw(), 2 * np.pi)))
        return op.Add(op.Mul(standard, attribute(node, "scale", 1.0)), attribute(node, "mean", 0.0))
    probability = node.inputs[0]
    assert probability is not None
    return op.Cast(op.Less(draw(), op.Cast(probability, to=ir.DataType.FLOAT)), to=ir.DataType.FLOAT)

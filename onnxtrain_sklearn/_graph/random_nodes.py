"""Random nodes in the graph that predicts: the numbers that they draw are replaced by what they are on average.

Layers such as stochastic depth and Gaussian noise draw numbers in training, and pass their input on in evaluation,
which is their mean. The mean is exact where the numbers only scale, shift or select other values.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..exceptions import UnsupportedOperatorError
from .builder import GraphBuilder
from .edits import replace_node
from .queries import attribute, describe, every_node, is_read, operand

UNIFORM, NORMAL = frozenset({"RandomUniform", "RandomUniformLike"}), frozenset({"RandomNormal", "RandomNormalLike"})
DRAWING = UNIFORM | NORMAL | {"Bernoulli", "Multinomial"}

_WITH_GENERATOR = DRAWING | set("Dropout BiasDropout BitmaskDropout BitmaskBiasDropout Sampling".split())
"""Operators with a generator of random numbers that belongs to the session."""

_LESS = frozenset({("Less", 0), ("LessOrEqual", 0), ("Greater", 1), ("GreaterOrEqual", 1)})
_MORE = frozenset({("Less", 1), ("LessOrEqual", 1), ("Greater", 0), ("GreaterOrEqual", 0)})
_LINEAR = frozenset("Add Cast Div Expand Identity Mul Neg Reshape Sub Sum Unsqueeze".split())


def is_random(node: ir.Node) -> bool:
    """Whether a node draws random numbers in inference too."""
    return node.op_type in DRAWING and not node.domain


def is_stateless(graph: ir.Graph) -> bool:
    """Whether runs of a session do not depend on earlier ones."""
    return all(node.op_type not in _WITH_GENERATOR for node in every_node(graph))


def replace_random(graph: ir.Graph) -> None:
    """Replace random numbers by their means, in place; raise UnsupportedOperatorError where a mean is not defined."""
    nodes = [node for node in every_node(graph) if is_random(node)]
    for node in nodes:
        if node.graph is not graph:
            raise _refused(node, "it is in a subgraph")
        op = GraphBuilder(graph, dtype=node.outputs[0].dtype or ir.DataType.FLOAT, prefix="mean", constant_nodes=True)
        _replace_draw(op, node)
    if nodes:
        graph.sort()


def _replace_draw(op: GraphBuilder, node: ir.Node) -> None:
    if node.op_type == "Bernoulli":
        p = node.inputs[0]
        assert p is not None
        replace_node(op, node, [op.Cast(p, to=op.dtype)])
    elif node.op_type in NORMAL and _is_linear(node.outputs[0]):
        replace_node(op, node, [_of_drawn_shape(op, node, attribute(node, "mean", 0.0))])
    elif node.op_type in UNIFORM:
        _replace_uniform(op, node)
    else:
        raise _refused(node, "its numbers do not only scale or shift others")


def _is_linear(value: ir.Value, depth: int = 8) -> bool:
    """Whether what is computed from ``value`` is linear in it, up to a sum with another value."""
    if not depth or value.is_graph_output():
        return not value.is_graph_output()
    for node, index in value.uses():
        if node.domain or node.op_type not in _LINEAR or (node.op_type == "Div" and index):
            return False
        if node.op_type not in ("Add", "Sub", "Sum") and not _is_linear(node.outputs[0], depth - 1):
            return False
    return True


def _of_drawn_shape(op: GraphBuilder, node: ir.Node, number: float) -> ir.Value:
    """Return numbers in the shape that the node draws."""
    if "shape" in node.attributes:
        return op.Expand(number, np.array(node.attributes["shape"].as_ints(), np.int64))
    return op.Expand(number, op.Shape(node.inputs[0]))


def _replace_uniform(op: GraphBuilder, node: ir.Node) -> None:
    """Replace what numbers of a uniform distribution decide by its probability."""
    low, high = attribute(node, "low", 0.0), attribute(node, "high", 1.0)
    for user, index in list(node.outputs[0].uses()):
        other = operand(user, 1 - index) if len(user.inputs) == 2 else None
        if other is None or user.domain:
            raise _refused(node, f"{describe(user)} reads its numbers")
        if (user.op_type, index) in _LESS | _MORE:
            share = op.Clip(op.Div(op.Sub(other, low), high - low), 0.0, 1.0)
            share = share if (user.op_type, index) in _LESS else op.Sub(1.0, share)
            _replace_decision(op, node, user, op.Mul(share, _of_drawn_shape(op, node, 1.0)))
        elif user.op_type == "Add" and (low, high) == (0.0, 1.0):
            floors = [n for n, _ in user.outputs[0].uses()]
            if not floors or any(n.op_type != "Floor" for n in floors):
                raise _refused(node, f"{describe(user)} reads its numbers")
            for floor in floors:  # 1 with the probability ``other``
                replace_node(op, floor, [op.Mul(other, _of_drawn_shape(op, node, 1.0))])
        else:
            raise _refused(node, f"{describe(user)} reads its numbers")
    if not is_read(node.outputs[0]):
        op.graph.remove(node, safe=True)


def _replace_decision(op: GraphBuilder, source: ir.Node, decision: ir.Node, share: ir.Value) -> None:
    """Replace the results that a random condition selects by their mean."""
    for user, index in list(decision.outputs[0].uses()):
        if user.op_type == "Cast" and (user.outputs[0].dtype or op.dtype).is_floating_point():
            replace_node(op, user, [op.Cast(share, to=user.attributes["to"].as_int())])
        elif user.op_type == "Where" and index == 0:
            yes, no = user.inputs[1], user.inputs[2]
            assert yes is not None
            assert no is not None
            replace_node(op, user, [op.Add(op.Mul(share, yes), op.Mul(op.Sub(1.0, share), no))])
        else:
            raise _refused(source, f"{describe(user)} reads what they decide")
    if not is_read(decision.outputs[0]):
        op.graph.remove(decision, safe=True)


def _refused(node: ir.Node, reason: str) -> UnsupportedOperatorError:
    return UnsupportedOperatorError(
        f"{describe(node)} draws random numbers, also in predictions, and cannot be replaced by their mean: {reason}. "
        f"Export the model in evaluation mode (in PyTorch: model.eval()), or take the node out."
    )

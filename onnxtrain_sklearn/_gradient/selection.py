"""Nodes whose results are read only where a condition selects them, such as ``Where(x > 0, Log(x), 0)``.

Where the condition leaves a result out, its cotangent is zero, but a derivative there may be infinite or NaN, and zero
times that is NaN. Rules of such nodes return zero where the cotangent is zero. A NaN that is selected still shows.
"""

from __future__ import annotations

import onnx_ir as ir

from .._graph.queries import every_node

SELECTED, MISSING = "selected by a condition", "selected by IsNaN"
"""Keys of a node's ``meta``."""

STEEP = frozenset("Acos Acosh Asin Atanh Cosh Exp Log Reciprocal Sinh Sqrt Tan".split())
"""Operators of one operand with a derivative that is not bounded."""

OTHERS = frozenset("Div LogSoftmax Mul Pow ReduceL2 ReduceLogSum ReduceLogSumExp Softmax".split())
"""Further operators whose rules multiply by numbers that may be infinite or NaN."""

_PASSED = (
    STEEP
    | OTHERS
    | frozenset(
        "Abs Add Cast Ceil Clip Cos Elu Erf Expand Flatten Gather Identity LeakyRelu Max Min Neg Relu Reshape Sigmoid "
        "Sin Slice Softplus Split Squeeze Sub Sum Tanh Transpose Unsqueeze Where Dropout".split()
    )
)
"""Operators through which an element stays apart from most others; not products of matrices."""


def mark_selected(graph: ir.Graph) -> bool:
    """Note in the ``meta`` of nodes that a condition selects their results; return whether one of them is steep."""
    steep = False
    for node in every_node(graph):
        if node.op_type == "Where" and not node.domain:
            kind = MISSING if _tests_for_nan(node.inputs[0]) else SELECTED
            steep |= _mark(node, kind)
    return steep


def _mark(where: ir.Node, kind: str) -> bool:
    front, seen, steep = list(where.inputs[1:]), set(), False
    while front:
        value = front.pop()
        node = None if value is None else value.producer()
        if node is None or node in seen or node.domain or node.op_type not in _PASSED:
            continue
        seen.add(node)
        node.meta[kind] = True
        steep |= node.op_type in STEEP | {"LogSoftmax", "Softmax"} and (kind == MISSING or node.op_type in _ENDLESS)
        front += node.inputs[1:] if node.op_type == "Where" else node.inputs
    return steep


_ENDLESS = frozenset({"Acos", "Acosh", "Asin", "Atanh", "Log", "Reciprocal", "Sqrt"})
"""Operators with an infinite derivative at a finite number."""


def _tests_for_nan(condition: ir.Value | None, depth: int = 4) -> bool:
    node = None if condition is None else condition.producer()
    if node is None or not depth:
        return False
    if node.op_type == "IsNaN":
        return True
    passes = node.op_type in ("And", "Cast", "Expand", "Not", "Or", "Unsqueeze")
    return passes and any(_tests_for_nan(x, depth - 1) for x in node.inputs)

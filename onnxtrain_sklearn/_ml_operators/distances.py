"""Rewrite pairwise distances: the operator CDist of onnxruntime, and loops over rows.

:func:`squared_distances` and :func:`root` are also the distances of kernels, neighbors and Gaussian processes. The
gradient of a distance of zero is zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ..graph import GraphBuilder
from .context import LazyValue, RewriteRule, RewrittenNode

_ELEMENT_BY_ELEMENT = frozenset({"Abs", "Add", "Div", "Exp", "Identity", "Mul", "Neg", "Pow", "Sqrt", "Sub"})
_REDUCTIONS = frozenset({"ReduceMax", "ReduceMean", "ReduceSum", "ReduceSumSquare"})


def squared_distances(op: GraphBuilder, a: ir.Value, b: ir.Value, center: np.ndarray | None = None) -> ir.Value:
    """Return |a_i|² - 2 a_i·b_j + |b_j|², not below zero.

    Both are shifted by ``center`` first if it is given, which reduces cancellation.
    """
    if center is not None:
        a, b = op.Sub(a, center.astype(np.float32)), op.Sub(b, center.astype(np.float32))
    rows = op.ReduceSum(op.Mul(a, a), axes=[1], keepdims=True)
    columns = op.Transpose(op.ReduceSum(op.Mul(b, b), axes=[1], keepdims=True), perm=[1, 0])
    return op.Relu(op.Add(op.Sub(rows, op.Mul(op.Gemm(a, b, transB=1), 2.0)), columns))


def root(op: GraphBuilder, squared: ir.Value) -> ir.Value:
    """Return the square root of numbers that are not below zero, with gradient zero at zero instead of infinity."""
    apart = op.Greater(squared, 0.0)
    return op.Where(apart, op.Sqrt(op.Where(apart, squared, 1.0)), 0.0)


def _cdist(r: RewrittenNode) -> Sequence[LazyValue]:
    metric = r.attribute("metric", "sqeuclidean")
    if metric not in ("euclidean", "sqeuclidean"):
        r.refuse(f"metric {metric!r} is neither 'euclidean' nor 'sqeuclidean'")

    def distances() -> ir.Value:
        constant = ir.convenience.get_const_tensor(r.input(1))
        center = None if constant is None else constant.numpy().mean(axis=0)
        squared = squared_distances(r.op, r.matrix(0), r.matrix(1), center)
        return squared if metric == "sqeuclidean" else root(r.op, squared)

    return (distances,)


def _scan_over_rows(r: RewrittenNode) -> Sequence[LazyValue | None]:
    """Replace a Scan that compares each row with all rows of a matrix: compute all pairs at once.

    In its body the state is a constant matrix and the scanned row a vector. Here the body runs once, on tensors of
    three axes: rows of the loop, rows of the state, features. Any other loop is kept.
    """
    body, kept = r.node.attributes["body"].as_graph(), (None, None)
    axes = ("scan_input_axes", "scan_output_axes", "scan_input_directions", "scan_output_directions")
    if len(r.node.inputs) != 2 or len(r.node.outputs) != 2 or any(any(r.attribute(name, ())) for name in axes):
        return kept
    state = body.outputs[0]
    while (node := state.producer()) is not None and node.op_type == "Identity" and node.inputs[0] is not None:
        state = node.inputs[0]
    if state is not body.inputs[0] or not all(_runs_on_three_axes(body, node) for node in body):
        return kept
    return r.input, lambda: _all_pairs(r, body)


def _runs_on_three_axes(body: ir.Graph, node: ir.Node) -> bool:
    """Return True if a node is elementwise, with at most single numbers as other operands, or reduces the features."""
    if node.domain:
        return False
    if node.op_type in _ELEMENT_BY_ELEMENT:
        return all(v is not None and _is_element_or_number(body, v) for v in node.inputs)
    drops = "keepdims" in node.attributes and node.attributes["keepdims"].as_int() == 0
    if node.op_type not in _REDUCTIONS or not drops:
        return False
    if "axes" in node.attributes:
        return list(node.attributes["axes"].as_ints()) in ([1], [-1])
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    tensor = None if axes is None else ir.convenience.get_const_tensor(axes)
    return tensor is not None and tensor.numpy().tolist() in ([1], [-1])


def _is_element_or_number(body: ir.Graph, value: ir.Value) -> bool:
    if value.name in body.initializers:
        return value.const_value is not None and value.const_value.size == 1
    node = value.producer()
    return value in body.inputs or (node is not None and node.graph is body)


def _all_pairs(r: RewrittenNode, body: ir.Graph) -> ir.Value:
    op = r.op
    known: dict[ir.Value, ir.Value] = {
        body.inputs[0]: op.Unsqueeze(r.input(0), axes=[0]),
        body.inputs[1]: op.Unsqueeze(r.input(1), axes=[1]),
    }
    for node in body:
        if node.op_type in _REDUCTIONS:
            assert node.inputs[0] is not None
            value, operator = known[node.inputs[0]], node.op_type
            if operator == "ReduceSumSquare":  # both engines differentiate a product
                value, operator = op.Mul(value, value), "ReduceSum"
            known[node.outputs[0]] = op.emit(operator, value, axes=[2], keepdims=0)[0]
        else:
            inputs = [_operand(known, v) for v in node.inputs]
            known[node.outputs[0]] = op.emit(node.op_type, *inputs)[0]
    return known[body.outputs[1]]


def _operand(known: dict[ir.Value, ir.Value], value: ir.Value | None) -> ir.Value | np.ndarray:
    assert value is not None
    if value in known:
        return known[value]
    assert value.const_value is not None
    return value.const_value.numpy()


RULES: dict[tuple[str, str], RewriteRule] = {
    ("", "Scan"): _scan_over_rows,
    ("com.microsoft", "CDist"): _cdist,
}

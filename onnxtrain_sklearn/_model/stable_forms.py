"""Rewrite sigmoids and softplus made of exponentials, whose gradients are NaN where the exponential overflows.

:func:`use_stable_forms` bounds the exponent, with a rule for each operator that may end such an expression.
``1 / (1 + exp(z))`` is 0 for z > 88.7 in float32, and right. Its gradient, ``-exp(z) / (1 + exp(z))²``, is computed as
infinity times zero. With z bounded by 88 the value is the same but for 6e-39, and the gradient is finite. The operator
``Sigmoid`` is no substitute: onnxruntime's is never below 1.5e-8.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from .._ir.edits import remove_unread, replace_value
from .._ir.queries import operand
from ..graph import GraphBuilder
from .expressions import negation_operand, number_of, same_expression, without_bound


def use_stable_forms(model: ir.Model) -> bool:
    """Bound the exponents of sigmoids and softplus in the main graph, in place; return True if there were any."""
    graph = model.graph
    if graph.opset_imports.get("", 0) < 8 or not any(node.op_type == "Exp" for node in graph):
        return False  # before opset 8, Min does not broadcast
    op = GraphBuilder(graph, prefix="stable", constant_nodes=True)
    replaced = []
    for node in list(graph):
        rule = None if node.domain else _RULES.get(node.op_type)
        if rule is not None and (made := rule(op, node)) is not None:
            replace_value(op, node.outputs[0], made)
            replaced.append(node)
    if replaced:
        graph.sort()
        remove_unread(graph, list(graph))
    return bool(replaced)


def _reciprocal(op: GraphBuilder, node: ir.Node) -> ir.Value | None:
    """Match 1 / (1 + exp(z))."""
    z = _exponent_of_sum(operand(node, 0))
    return None if z is None else _bounded(op, z)


def _quotient(op: GraphBuilder, node: ir.Node) -> ir.Value | None:
    """Match 1 / (1 + exp(z)), or exp(z) / (1 + exp(z))."""
    above, z = operand(node, 0), _exponent_of_sum(operand(node, 1))
    if z is None or above is None:
        return None
    if number_of(above) == 1.0:
        return _bounded(op, z) if _keeps_rank(above, z) else None
    return _bounded(op, _negated(op, z)) if _is_exponential(above, z) else None


def _product(op: GraphBuilder, node: ir.Node) -> ir.Value | None:
    """Match exp(z) * (1 / (1 + exp(z))), whose second factor has been replaced already."""
    for above, factor in ((operand(node, 0), operand(node, 1)), (operand(node, 1), operand(node, 0))):
        maker = None if factor is None else factor.producer()
        if above is None or maker is None or maker.domain or maker.op_type != "Reciprocal":
            continue
        bounded = _exponent_of_sum(operand(maker, 0))
        z = None if bounded is None else without_bound(bounded)
        if z is not None and _is_exponential(above, z):
            return _bounded(op, _negated(op, z))
    return None


def _power(op: GraphBuilder, node: ir.Node) -> ir.Value | None:
    """Match (1 + exp(z)) ** -1."""
    exponent = operand(node, 1)
    if exponent is None or number_of(exponent) != -1.0:
        return None
    z = _exponent_of_sum(operand(node, 0))
    return _bounded(op, z) if z is not None and _keeps_rank(exponent, z) else None


def _logarithm(op: GraphBuilder, node: ir.Node) -> ir.Value | None:
    """Match log(1 + exp(z)) of float32; onnxruntime has no Softplus of float64, where 709 is the limit."""
    z = _exponent_of_sum(operand(node, 0))
    return op.Softplus(z) if z is not None and z.dtype is ir.DataType.FLOAT else None


_RULES: dict[str, Callable[[GraphBuilder, ir.Node], ir.Value | None]] = {
    "Div": _quotient,
    "Log": _logarithm,
    "Mul": _product,
    "Pow": _power,
    "Reciprocal": _reciprocal,
}


def _exponent_of_sum(value: ir.Value | None) -> ir.Value | None:
    """Return z where ``value`` is 1 + exp(z) of the shape of z."""
    node = None if value is None else value.producer()
    if node is None or node.domain or node.op_type not in ("Add", "Sum") or len(node.inputs) != 2:
        return None
    for one, exponential in ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])):
        maker = None if exponential is None else exponential.producer()
        if one is None or number_of(one) != 1.0 or maker is None or maker.domain or maker.op_type != "Exp":
            continue
        z = operand(maker, 0)
        if z is not None and _keeps_rank(one, z):
            return z
    return None


def _keeps_rank(number: ir.Value, z: ir.Value) -> bool:
    """Return True if a constant of one element has no more axes than z, so that no axis is added to it."""
    tensor = ir.convenience.get_const_tensor(number)
    return tensor is not None and len(tensor.shape) <= (0 if z.shape is None else len(z.shape))


def _is_exponential(value: ir.Value, z: ir.Value) -> bool:
    maker = value.producer()
    return maker is not None and not maker.domain and maker.op_type == "Exp" and same_expression(operand(maker, 0), z)


def _negated(op: GraphBuilder, z: ir.Value) -> ir.Value:
    positive = negation_operand(z)
    return op.Neg(z) if positive is None else positive


def _bounded(op: GraphBuilder, z: ir.Value) -> ir.Value | None:
    """Return 1 / (1 + exp(min(z, b))), where b is the largest whole number whose exponential is finite."""
    if z.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE) or without_bound(z) is not z:
        return None
    kind = z.dtype.numpy()
    bound = np.array(np.floor(np.log(np.finfo(kind).max)), kind)
    return op.Reciprocal(op.Add(op.Exp(op.Min(z, bound)), np.array(1, kind)))

"""Between which bounds a value lies, whatever the weights of its graph are: interval arithmetic over its operators.

What an operator that is not listed gives can be any number, and so can what is trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import onnx_ir as ir

from .final_activation import activation_of
from .patterns import is_row_sum

Range: TypeAlias = tuple[float, float]

ANY: Range = (-math.inf, math.inf)
UNIT: Range = (0.0, 1.0)
_POSITIVE: Range = (0.0, math.inf)
_SIGNED: Range = (-1.0, 1.0)
_DEEP = 24


def range_of(value: ir.Value | None) -> Range:
    """Return the least and the greatest number that ``value`` can hold, as far as its operators tell."""
    return _range(value, _DEEP, {})


def _range(value: ir.Value | None, depth: int, known: dict[ir.Value, Range]) -> Range:
    if value is None:
        return ANY
    if value not in known:
        known[value] = _computed(value, depth, known)
    return known[value]


def _computed(value: ir.Value, depth: int, known: dict[ir.Value, Range]) -> Range:
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is not None:
        return _range_of_constant(value, tensor)
    node = value.producer()
    if node is None or node.domain or not depth:
        return ANY
    found = activation_of(value)
    if found is not None and found.link != "exp":
        return (-math.inf, 0.0) if found.log else UNIT
    if node.op_type in _FIXED:
        return _FIXED[node.op_type]
    if node.op_type in _SELECTING:
        return _range(node.inputs[0], depth - 1, known)
    rule = _RULES.get(node.op_type)
    return ANY if rule is None else rule(node, [_range(x, depth - 1, known) for x in node.inputs])


def _range_of_constant(value: ir.Value, tensor: ir.TensorProtocol) -> Range:
    """Numbers of an initializer may be trained, but for a single one."""
    if tensor.size == 0 or (value.is_initializer() and tensor.size > 1) or not tensor.dtype.is_floating_point():
        return ANY
    numbers = tensor.numpy()
    return float(numbers.min()), float(numbers.max())


_FIXED: dict[str, Range] = {
    "Abs": _POSITIVE,
    "Cos": _SIGNED,
    "Erf": _SIGNED,
    "HardSigmoid": UNIT,
    "ReduceL1": _POSITIVE,
    "ReduceL2": _POSITIVE,
    "ReduceSumSquare": _POSITIVE,
    "Sigmoid": UNIT,
    "Sin": _SIGNED,
    "Softmax": UNIT,
    "Softplus": _POSITIVE,
    "Softsign": _SIGNED,
    "Sqrt": _POSITIVE,
    "Tanh": _SIGNED,
}

_SELECTING = frozenset(
    "Cast Dropout Expand Flatten Gather GatherElements GatherND GlobalAveragePool GlobalMaxPool Identity "
    "MaxPool ReduceMax ReduceMean ReduceMin Reshape Slice Split Squeeze Tile Transpose Unsqueeze".split()
)
"""Operators that choose among the numbers of their first input, or take means of them."""


def _bounds(numbers: Sequence[float]) -> Range:
    known = [0.0 if math.isnan(x) else x for x in numbers]  # 0 times infinity
    return min(known), max(known)


def _product(a: Range, b: Range) -> Range:
    return _bounds([x * y for x in a for y in b])


def _add(node: ir.Node, given: list[Range]) -> Range:
    return sum(low for low, _ in given), sum(high for _, high in given)


def _sub(node: ir.Node, given: list[Range]) -> Range:
    return given[0][0] - given[1][1], given[0][1] - given[1][0]


def _mul(node: ir.Node, given: list[Range]) -> Range:
    if node.inputs[0] is node.inputs[1]:
        return 0.0, max(given[0][0] ** 2, given[0][1] ** 2)
    return _product(*given)


def _div(node: ir.Node, given: list[Range]) -> Range:
    low, high = given[1]
    above, below = node.inputs
    if given[0][0] >= 0 and above is not None and below is not None and is_row_sum(below, of=above):
        return UNIT
    if low < 0 < high or not high:
        return (0.0, math.inf) if low >= 0 and given[0][0] >= 0 else ANY
    inverse = (1 / high if math.isfinite(high) else 0.0, 1 / low if low else math.inf)
    return _product(given[0], inverse)


def _mean(node: ir.Node, given: list[Range]) -> Range:
    low, high = _add(node, given)
    return low / len(given), high / len(given)


def _union(node: ir.Node, given: list[Range]) -> Range:
    return min(low for low, _ in given), max(high for _, high in given)


def _where(node: ir.Node, given: list[Range]) -> Range:
    return _union(node, given[1:])


def _clip(node: ir.Node, given: list[Range]) -> Range:
    low, high = given[0]
    least = node.attributes["min"].as_float() if "min" in node.attributes else _given(node, given, 1)[0]
    most = node.attributes["max"].as_float() if "max" in node.attributes else _given(node, given, 2)[1]
    return max(low, least), min(high, most)


def _given(node: ir.Node, given: list[Range], position: int) -> Range:
    there = len(node.inputs) > position and node.inputs[position] is not None
    return given[position] if there else ANY


def _neg(node: ir.Node, given: list[Range]) -> Range:
    return -given[0][1], -given[0][0]


def _relu(node: ir.Node, given: list[Range]) -> Range:
    return max(given[0][0], 0.0), max(given[0][1], 0.0)


def _sum(node: ir.Node, given: list[Range]) -> Range:
    return _POSITIVE if given[0][0] >= 0 else ANY


def _reduced_product(node: ir.Node, given: list[Range]) -> Range:
    low, high = given[0]
    return UNIT if low >= 0 and high <= 1 else _POSITIVE if low >= 0 else ANY


def _pow(node: ir.Node, given: list[Range]) -> Range:
    low, high = given[1]
    if low != high or not math.isfinite(low):
        return ANY
    even = low % 2 == 0
    return _POSITIVE if even or given[0][0] >= 0 else ANY


def _max(node: ir.Node, given: list[Range]) -> Range:
    return max(low for low, _ in given), max(high for _, high in given)


def _min(node: ir.Node, given: list[Range]) -> Range:
    return min(low for low, _ in given), min(high for _, high in given)


def _exp(node: ir.Node, given: list[Range]) -> Range:
    low, high = (math.exp(min(bound, 700.0)) for bound in given[0])
    return low, high if given[0][1] < 700 else math.inf


def _log(node: ir.Node, given: list[Range]) -> Range:
    return -math.inf, math.log(given[0][1]) if 0 < given[0][1] < math.inf else math.inf


_RULES: dict[str, Callable[[ir.Node, list[Range]], Range]] = {
    "Add": _add,
    "Clip": _clip,
    "Concat": _union,
    "Div": _div,
    "Exp": _exp,
    "Log": _log,
    "Max": _max,
    "Mean": _mean,
    "Min": _min,
    "Mul": _mul,
    "Neg": _neg,
    "Pow": _pow,
    "ReduceProd": _reduced_product,
    "ReduceSum": _sum,
    "Relu": _relu,
    "Sub": _sub,
    "Sum": _add,
    "Where": _where,
}

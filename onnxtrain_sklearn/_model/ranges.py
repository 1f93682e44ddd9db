"""Interval arithmetic: bounds of a value that hold for all weights of its graph.

:func:`range_of` returns the bounds, which follow from the operators upstream. Each operator in ``_FIXED``,
``_SELECTING`` and ``_INTERVAL_RULES`` maps the intervals of its inputs to the interval of its output. Trained values
and results of operators without a rule are unbounded: an interval may be too wide, but never too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import onnx_ir as ir

from .activation import activation_of, is_row_sum

Interval: TypeAlias = tuple[float, float]

UNBOUNDED: Interval = (-math.inf, math.inf)
UNIT: Interval = (0.0, 1.0)
_POSITIVE: Interval = (0.0, math.inf)
_UP_TO_ONE: Interval = (-1.0, 1.0)
_MAX_OPERATORS = 24  # depth of the search


def range_of(value: ir.Value | None) -> Interval:
    """Return the smallest and the largest number that ``value`` can hold, if its operators determine them."""
    return _known_range(value, _MAX_OPERATORS, {})


def _known_range(value: ir.Value | None, depth: int, known: dict[ir.Value, Interval]) -> Interval:
    if value is None:
        return UNBOUNDED
    if value not in known:
        known[value] = _computed_range(value, depth, known)
    return known[value]


def _computed_range(value: ir.Value, depth: int, known: dict[ir.Value, Interval]) -> Interval:
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is not None:
        # an initializer of several numbers is unbounded, because it may be trained
        trained = value.is_initializer() and tensor.size > 1
        if tensor.size == 0 or trained or not tensor.dtype.is_floating_point():
            return UNBOUNDED
        numbers = tensor.numpy()
        return float(numbers.min()), float(numbers.max())
    node = value.producer()
    if node is None or node.domain or not depth:
        return UNBOUNDED
    found = activation_of(value)
    if found is not None and found.link != "exp":
        return (-math.inf, 0.0) if found.log else UNIT
    if node.op_type in _FIXED:
        return _FIXED[node.op_type]
    if node.op_type in _SELECTING:
        return _known_range(node.inputs[0], depth - 1, known)
    rule = _INTERVAL_RULES.get(node.op_type)
    return UNBOUNDED if rule is None else rule(node, [_known_range(x, depth - 1, known) for x in node.inputs])


_FIXED: dict[str, Interval] = {
    "Abs": _POSITIVE,
    "Cos": _UP_TO_ONE,
    "Erf": _UP_TO_ONE,
    "HardSigmoid": UNIT,
    "ReduceL1": _POSITIVE,
    "ReduceL2": _POSITIVE,
    "ReduceSumSquare": _POSITIVE,
    "Sigmoid": UNIT,
    "Sin": _UP_TO_ONE,
    "Softmax": UNIT,
    "Softplus": _POSITIVE,
    "Softsign": _UP_TO_ONE,
    "Sqrt": _POSITIVE,
    "Tanh": _UP_TO_ONE,
}
"""Operators whose range does not depend on their inputs."""

_SELECTING = frozenset(
    "Cast Dropout Expand Flatten Gather GatherElements GatherND GlobalAveragePool GlobalMaxPool Identity "
    "MaxPool ReduceMax ReduceMean ReduceMin Reshape Slice Split Squeeze Tile Transpose Unsqueeze".split()
)
"""Operators that select numbers of their first input, or average them."""


def _range_of_add(node: ir.Node, operands: list[Interval]) -> Interval:
    return sum(low for low, _ in operands), sum(high for _, high in operands)


def _range_of_mul(node: ir.Node, operands: list[Interval]) -> Interval:
    if node.inputs[0] is node.inputs[1]:  # a square is not negative
        return 0.0, max(operands[0][0] ** 2, operands[0][1] ** 2)
    return _range_of_product(*operands)


def _range_of_div(node: ir.Node, operands: list[Interval]) -> Interval:
    low, high = operands[1]
    above, below = node.inputs
    if operands[0][0] >= 0 and above is not None and below is not None and is_row_sum(below, of=above):
        return UNIT
    if low < 0 < high or not high:
        return (0.0, math.inf) if low >= 0 and operands[0][0] >= 0 else UNBOUNDED
    inverse = (1 / high if math.isfinite(high) else 0.0, 1 / low if low else math.inf)
    return _range_of_product(operands[0], inverse)


def _range_of_product(a: Interval, b: Interval) -> Interval:
    products = [x * y for x in a for y in b]
    known = [0.0 if math.isnan(x) else x for x in products]  # 0 times an infinite bound is 0, because values are finite
    return min(known), max(known)


def _range_of_mean(node: ir.Node, operands: list[Interval]) -> Interval:
    low, high = _range_of_add(node, operands)
    return low / len(operands), high / len(operands)


def _range_of_union(node: ir.Node, operands: list[Interval]) -> Interval:
    return min(low for low, _ in operands), max(high for _, high in operands)


def _range_of_clip(node: ir.Node, operands: list[Interval]) -> Interval:
    low, high = operands[0]
    least = node.attributes["min"].as_float() if "min" in node.attributes else _operand_range(node, operands, 1)[0]
    most = node.attributes["max"].as_float() if "max" in node.attributes else _operand_range(node, operands, 2)[1]
    return max(low, least), min(high, most)


def _operand_range(node: ir.Node, operands: list[Interval], position: int) -> Interval:
    there = len(node.inputs) > position and node.inputs[position] is not None
    return operands[position] if there else UNBOUNDED


def _range_of_reduced_product(node: ir.Node, operands: list[Interval]) -> Interval:
    low, high = operands[0]
    return UNIT if low >= 0 and high <= 1 else _POSITIVE if low >= 0 else UNBOUNDED


def _range_of_pow(node: ir.Node, operands: list[Interval]) -> Interval:
    low, high = operands[1]
    if low != high or not math.isfinite(low):  # the exponent varies
        return UNBOUNDED
    even = low % 2 == 0
    return _POSITIVE if even or operands[0][0] >= 0 else UNBOUNDED


def _range_of_exp(node: ir.Node, operands: list[Interval]) -> Interval:
    low, high = (math.exp(min(bound, 700.0)) for bound in operands[0])  # math.exp raises OverflowError beyond 709
    return low, high if operands[0][1] < 700 else math.inf


_INTERVAL_RULES: dict[str, Callable[[ir.Node, list[Interval]], Interval]] = {
    "Add": _range_of_add,
    "Clip": _range_of_clip,
    "Concat": _range_of_union,
    "Div": _range_of_div,
    "Exp": _range_of_exp,
    "Log": lambda node, x: (-math.inf, math.log(x[0][1]) if 0 < x[0][1] < math.inf else math.inf),
    "Max": lambda node, x: (max(low for low, _ in x), max(high for _, high in x)),
    "Mean": _range_of_mean,
    "Min": lambda node, x: (min(low for low, _ in x), min(high for _, high in x)),
    "Mul": _range_of_mul,
    "Neg": lambda node, x: (-x[0][1], -x[0][0]),
    "Pow": _range_of_pow,
    "ReduceProd": _range_of_reduced_product,
    "ReduceSum": lambda node, x: _POSITIVE if x[0][0] >= 0 else UNBOUNDED,
    "Relu": lambda node, x: (max(x[0][0], 0.0), max(x[0][1], 0.0)),
    "Sub": lambda node, x: (x[0][0] - x[1][1], x[0][1] - x[1][0]),
    "Sum": _range_of_add,
    "Where": lambda node, x: _range_of_union(node, x[1:]),  # x[0] is the condition
}

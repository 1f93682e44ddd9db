"""Match the subexpressions that exporters write around sigmoids, softmaxes and exponentials.

The recognition of a final activation, the bounds of outputs and the rewrite of overflowing exponentials read graphs
with the same functions: they look through operators that change only the shape of a value, or nothing, and through tiny
bounds and summands that keep a number off zero. They read constants of the graph and no number that it computes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

NARROW = 1e-4
"""Bounds within this distance of 0 and 1 only keep logarithms finite and are not part of the model."""

MAX_DEPTH = 32
"""Operators that are followed, at most; real final activations consist of fewer."""

SHAPE_ONLY = frozenset({"Cast", "Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators that may change only the shape of their first input; :func:`keeps_layout` decides for a node."""

_FLOAT_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)

_NEUTRAL = {"Mul": 1.0, "Div": 1.0, "Pow": 1.0, "Add": 0.0, "Sub": 0.0}
"""The constant operand with which an operator returns its other input."""


def number_of(value: ir.Value | None) -> float | None:
    """Return the number of a constant with one element, else None."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return float(tensor.numpy().ravel()[0]) if tensor is not None and tensor.size == 1 else None


def same_expression(one: ir.Value | None, other: ir.Value | None, depth: int = 4) -> bool:
    """Return True if two values are computed by the same expression, which some exporters write twice."""
    if one is other or one is None or other is None:
        return one is other
    a, b = one.producer(), other.producer()
    if a is None or b is None or not depth or (a.op_type, a.domain) != (b.op_type, b.domain):
        number = number_of(one)
        return number is not None and number == number_of(other)
    alike = len(a.inputs) == len(b.inputs) and {k: str(v) for k, v in a.attributes.items()} == {
        k: str(v) for k, v in b.attributes.items()
    }
    return alike and all(same_expression(x, y, depth - 1) for x, y in zip(a.inputs, b.inputs, strict=True))


def negation_operand(value: ir.Value) -> ir.Value | None:
    """Return x where ``value`` is -x, by Neg, by a product with -1 or by 0 - x."""
    node = value.producer()
    if node is None or node.domain:
        return None
    if node.op_type == "Mul" and -1.0 in (numbers := [number_of(x) for x in node.inputs]):
        return node.inputs[1 - numbers.index(-1.0)]
    zero = node.op_type == "Sub" and number_of(node.inputs[0]) == 0.0
    return node.inputs[0] if node.op_type == "Neg" else node.inputs[1] if zero else None


def neutral_operand(node: ir.Node) -> ir.Value | None:
    """Return the input that a sum, product or power with a neutral constant leaves unchanged."""
    number = _NEUTRAL.get(node.op_type)
    if number is None or node.domain:
        return None
    sides = (0, 1) if node.op_type in ("Mul", "Add") else (0,)
    return next((node.inputs[i] for i in sides if number_of(node.inputs[1 - i]) == number), None)


def without_bound(value: ir.Value) -> ir.Value:
    """Return x where ``value`` is min(x, b), and b is the bound below which an exponential is finite.

    ``stable_forms`` writes these bounds: 88 in float32, 709 in float64.
    """
    node = value.producer()
    if node is None or node.domain or node.op_type != "Min" or len(node.inputs) != 2 or node.inputs[0] is None:
        return value
    return node.inputs[0] if number_of(node.inputs[1]) in (88.0, 709.0) else value


def without_epsilon(value: ir.Value | None) -> ir.Value | None:
    """Return the other summand where ``value`` is a sum with a tiny constant, else ``value``."""
    node = None if value is None else value.producer()
    if node is None or node.domain or node.op_type != "Add":
        return value
    tiny = [x is not None and 0 < (number_of(x) or 0) <= NARROW for x in node.inputs]
    return node.inputs[1 - tiny.index(True)] if any(tiny) else value


def without_reshaping(value: ir.Value) -> ir.Value:
    """Return the value before changes of its shape, and before tiny bounds or summands."""
    for _ in range(MAX_DEPTH):
        node = value.producer()
        if node is None or node.domain or not node.inputs or node.inputs[0] is None:
            return value
        tiny = node.op_type in ("Clip", "Max", "Add") and _keeps_off_zero(node)
        if node.op_type != "Expand" and not tiny and not (node.op_type in SHAPE_ONLY and keeps_layout(node)):
            return value
        value = node.inputs[0]
    return value


def keeps_layout(node: ir.Node) -> bool:
    """Return True if a node of ``SHAPE_ONLY`` returns the same floats, in the same order and rows."""
    x = node.inputs[0]
    if x is None or node.op_type == "Identity":
        return x is not None
    if node.op_type == "Cast":
        return bool(x.dtype and x.dtype.is_floating_point() and node.outputs[0].dtype in _FLOAT_TYPES)
    if node.op_type == "Dropout":
        return len(node.inputs) < 3 or node.inputs[2] is None or number_of(node.inputs[2]) == 0.0
    if node.op_type == "Transpose":
        return _keeps_order(node, x)
    return True


def _keeps_order(node: ir.Node, x: ir.Value) -> bool:
    """Return True if a Transpose moves only axes of size one."""
    if x.shape is None:
        return False
    order = node.attributes["perm"].as_ints() if "perm" in node.attributes else range(len(x.shape))[::-1]
    long = [axis for axis in order if x.shape[axis] != 1]
    return long == sorted(long)


def _keeps_off_zero(node: ir.Node) -> bool:
    if node.op_type == "Clip":
        return (clip_bound(node, "min", 1) or 0) <= NARROW and clip_bound(node, "max", 2) is None
    return len(node.inputs) == 2 and 0 <= (number_of(node.inputs[1]) or -1) <= NARROW


def clip_bound(node: ir.Node, name: str, position: int) -> float | None:
    """Return a bound of Clip, None where it is left out; a computed bound counts as the tightest."""
    if name in node.attributes:
        return node.attributes[name].as_float()
    if len(node.inputs) <= position or node.inputs[position] is None:
        return None
    number = number_of(node.inputs[position])
    return (float("inf") if name == "min" else -float("inf")) if number is None else number


def is_row_sum(value: ir.Value, *, of: ir.Value | None) -> bool:
    """Return True if ``value`` is the sum over each row (or the L1 norm), of ``of`` where that is given."""
    node = without_reshaping(value).producer()
    if node is None or node.domain or node.op_type not in ("ReduceL1", "ReduceSum"):
        return False
    x = node.inputs[0]
    if x is None or not is_per_row(x, reduced_axes(node)):
        return False
    return of is None or same_expression(without_reshaping(x), without_reshaping(of))


def is_per_row(x: ir.Value | None, axes: Sequence[int], *, flattens: bool = False) -> bool:
    """Return True if a reduction over ``axes`` covers each whole row; with ``flattens``, over all later axes too."""
    if x is None or x.shape is None or len(axes) != 1:
        return False
    rank = len(x.shape)
    axis = axes[0] + rank if axes[0] < 0 else axes[0]
    long = [i for i in range(rank) if x.shape[i] != 1]
    rest = [i for i in long if i < axis] if flattens else [i for i in long if i != axis]
    return rank > 1 and len(rest) == 1 and rest[0] < axis


def is_per_position(x: ir.Value | None, axis: int, flattens: bool) -> bool:
    """Return True if ``axis`` may be the axis of classes at each position of a row; the data show which axis is."""
    if x is None or x.shape is None or flattens:
        return False
    return len(x.shape) > 2 and axis % len(x.shape) in (1, len(x.shape) - 1)


def reduced_axes(node: ir.Node) -> Sequence[int]:
    """Return the axes of a reduction where they are constant, else none."""
    if "axes" in node.attributes:
        return node.attributes["axes"].as_ints()
    tensor = ir.convenience.get_const_tensor(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else None
    return () if tensor is None else [int(axis) for axis in tensor.numpy().ravel()]


def without_maximum(exponent: ir.Value) -> ir.Value:
    """Return the scores before the subtraction of their row maximum, which does not change a softmax."""
    node = exponent.producer()
    if node is None or node.domain or node.op_type != "Sub" or node.inputs[1] is None:
        return exponent
    bounded = without_reshaping(node.inputs[1])
    largest = without_reshaping(_without_lower_bound(bounded)).producer()
    own = largest is not None and largest.op_type == "ReduceMax" and same_expression(largest.inputs[0], node.inputs[0])
    return node.inputs[0] if own and node.inputs[0] is not None else exponent


def _without_lower_bound(value: ir.Value) -> ir.Value:
    """Return x where ``value`` is max(x, -inf): JAX starts a maximum from there."""
    node = value.producer()
    if node is None or node.domain or node.op_type != "Max" or len(node.inputs) != 2:
        return value
    for bound, other in (node.inputs, node.inputs[::-1]):
        if other is not None and number_of(bound) == -math.inf:
            return other
    return value

"""Operators that compute each element on its own, as LLVM instructions on vectors of any width.

:data:`EMIT` holds the function of each ONNX operator; functions with a formula of their own are in :mod:`.functions`.
Truth values are numbers, 0 and 1, in registers and in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from .functions import FUNCTIONS
from .llvm_text import Text, literal, vector_type

EmitElements: TypeAlias = Callable[..., str]
"""Called with a text, the names of the operands, and their width; adds the result and returns its name."""


def instruction(name: str, text: Text, operands: Sequence[str], width: int) -> str:
    """Add the result of an instruction; more than two operands are joined from left to right."""
    result = operands[0]
    for one in operands[1:]:
        result = text.value(f"{name} {vector_type(width)} {result}, {one}")
    return result


def extreme(name: str, text: Text, operands: Sequence[str], width: int) -> str:
    """Add the greatest or the least operand; NaN if one is NaN."""
    result = operands[0]
    for one in operands[1:]:
        result = text.call(name, [result, one], width)
    return result


def comparison(test: str, text: Text, operands: Sequence[str], width: int) -> str:
    """Add 1 where the comparison holds, 0 elsewhere."""
    truth = _compared(text, test, operands, width)
    return text.value(f"uitofp {_truths(width)} {truth} to {vector_type(width)}")


def _compared(text: Text, test: str, operands: Sequence[str], width: int) -> str:
    return text.value(f"fcmp {test} {vector_type(width)} {operands[0]}, {operands[1]}")


def _truths(width: int) -> str:
    return "i1" if width == 1 else f"<{width} x i1>"


def is_nonzero(text: Text, operands: Sequence[str], width: int) -> str:
    """Add 1 where the operand is not 0, and for NaN, as a conversion to bool does."""
    return comparison("une", text, [operands[0], literal(0.0, width)], width)


def second_or_third(text: Text, operands: Sequence[str], width: int) -> str:
    """Add the second operand where the first one is true, the third elsewhere."""
    condition = _compared(text, "une", [operands[0], literal(0.0, width)], width)
    second, third = (f"{vector_type(width)} {one}" for one in operands[1:])
    return text.value(f"select {_truths(width)} {condition}, {second}, {third}")


def differs(text: Text, operands: Sequence[str], width: int) -> str:
    """Add 1 where one of two truth values is true, but not both."""
    return comparison("une", text, operands, width)


def is_nan(text: Text, operands: Sequence[str], width: int) -> str:
    """Add 1 where the operand is NaN."""
    return comparison("uno", text, [operands[0]] * 2, width)


def is_infinite(
    text: Text, operands: Sequence[str], width: int, *, detect_negative: int = 1, detect_positive: int = 1
) -> str:
    """Add 1 where the operand is infinite, with a sign that is to be detected."""
    bounds = [math.inf] * bool(detect_positive) + [-math.inf] * bool(detect_negative)
    found = [comparison("oeq", text, [operands[0], literal(bound, width)], width) for bound in bounds]
    return extreme("maximum", text, found, width) if found else literal(0.0, width)


def opposite(text: Text, operands: Sequence[str], width: int) -> str:
    """Add 1 where the operand is 0."""
    return text.value(f"fsub {vector_type(width)} {literal(1.0, width)}, {operands[0]}")


def clipped(text: Text, operands: Sequence[str], width: int) -> str:
    """Add the first operand, at least the second and at most the third."""
    return extreme("minimum", text, [extreme("maximum", text, operands[:2], width), operands[2]], width)


def unchanged(text: Text, operands: Sequence[str], width: int) -> str:
    """Return the operand."""
    return operands[0]


def of_first(function: Callable[..., str], text: Text, operands: Sequence[str], width: int, **settings: float) -> str:
    """Add a function of the only operand, with the node's attributes as settings."""
    return function(text, operands[0], width, **settings)


TESTS = {"Equal": "oeq", "Greater": "ogt", "GreaterOrEqual": "oge", "Less": "olt", "LessOrEqual": "ole"}

EMIT: Mapping[str, EmitElements] = {
    **{name: partial(of_first, function) for name, function in FUNCTIONS.items()},
    **{name: partial(comparison, test) for name, test in TESTS.items()},
    "Add": partial(instruction, "fadd"),
    "And": partial(instruction, "fmul"),
    "Clip": clipped,
    "Div": partial(instruction, "fdiv"),
    "Identity": unchanged,
    "IsInf": is_infinite,
    "IsNaN": is_nan,
    "Max": partial(extreme, "maximum"),
    "Min": partial(extreme, "minimum"),
    "Mul": partial(instruction, "fmul"),
    "Not": opposite,
    "Or": partial(extreme, "maximum"),
    "Sub": partial(instruction, "fsub"),
    "Sum": partial(instruction, "fadd"),
    "Where": second_or_third,
    "Xor": differs,
}
"""Operators of numbers and truth values, by their names in ONNX."""

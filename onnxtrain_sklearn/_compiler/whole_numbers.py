"""Operators on integers, which are held as float32: exact below 2**24, rounded once from there on.

What moves integers moves numbers. Sums and products require exact operands, and comparisons that numbers from 2**24 on
are not equal, as only integers that are rounded to the same number can compare otherwise than these do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from .._graph import queries
from .arithmetic import Floats, at_least, at_most
from .elementwise import EMIT, TESTS, is_nonzero
from .operands import first_operand, operand_views
from .plan import LARGEST_INTEGER, FunctionPlan, NotCompiledError
from .text import Text
from .views import View

WHOLE = {ir.DataType.INT64: 2.0**63, ir.DataType.INT32: 2.0**31}
"""Types of integers, and the end of their ranges."""

MOVING = frozenset(
    "Abs Cast Concat ConstantOfShape Expand Flatten Gather GatherElements Identity Max Min Neg OneHot Reshape "
    "ScatterElements Sign Slice Split Squeeze Transpose Trilu Unsqueeze Where".split()
)
"""Operators for which rounded integers are as good as rounded results."""

EXACT = frozenset(("Add", "Mul", "Sub"))
"""Operators whose results are rounded once if their operands are exact."""


def require_integers(plan: FunctionPlan, node: ir.Node) -> None:
    """Raise where an operator does not compute with the integers of a node; let runs fail where it would be wrong."""
    if not any(value.dtype in WHOLE for value in _values(node)):
        return
    if node.op_type in EXACT:
        for value in _computed_operands(node):
            _require_exact_integers(plan, node, plan.view(value))
    elif node.op_type in TESTS:
        if len(_computed_operands(node)) == len(node.inputs):  # constants are exact
            _require_exact_integers(plan, node, plan.elementwise(_where_equal, operand_views(plan, node)))
    elif node.op_type not in MOVING:
        raise NotCompiledError(f"{queries.describe(node)} computes with integers")


def _values(node: ir.Node) -> list[ir.Value]:
    """Return the operands that are computed, and the results."""
    return [*_computed_operands(node), *node.outputs]


def _computed_operands(node: ir.Node) -> list[ir.Value]:
    return [value for value in node.inputs if value is not None and queries.constant(value) is None]


def _require_exact_integers(plan: FunctionPlan, node: ir.Node, view: View) -> None:
    plan.require(
        view,
        (1.0 - LARGEST_INTEGER, LARGEST_INTEGER),
        f"{queries.describe(node)} computes with the integer {{}}. engine='compiled' does so with those below 2**24: "
        f"use engine='portable'",
    )


def _where_equal(text: Text, operands: Sequence[str], width: int) -> str:
    """Add the first operand where it is equal to the second, 0 elsewhere."""
    first, second = (Floats(text, width, name) for name in operands)
    return first.where("oeq", second, first, 0.0).name


def cast(plan: FunctionPlan, node: ir.Node) -> View:
    """Return the operand of a Cast in the type that it names."""
    value, to = first_operand(node), ir.DataType(queries.attribute(node, "to", 0))
    source, given = plan.view(value), value.dtype
    if to is ir.DataType.BOOL:
        return source if given is ir.DataType.BOOL else plan.elementwise(is_nonzero, [source])
    if to is ir.DataType.FLOAT:
        return plan.elementwise(EMIT["Add"], [source, plan.number(0.0)]) if given in WHOLE else source  # no -0
    if to not in WHOLE:
        raise NotCompiledError(f"{queries.describe(node)} converts to {to.name}, which is not compiled")
    if given in WHOLE:
        _require_range(plan, node, source, given, to)
    return source if given in WHOLE or given is ir.DataType.BOOL else plan.elementwise(_truncated(WHOLE[to]), [source])


def _require_range(plan: FunctionPlan, node: ir.Node, view: View, given: ir.DataType, to: ir.DataType) -> None:
    if WHOLE[to] < WHOLE[given]:
        plan.require(view, (-WHOLE[to], WHOLE[to]), f"{queries.describe(node)} gets the integer {{}}, which {to} lacks")


def _truncated(end: float) -> Callable[[Text, Sequence[str], int], str]:
    """Return what adds the integer towards zero, the nearest that a type has; the least for NaN."""

    def emit(text: Text, operands: Sequence[str], width: int) -> str:
        x = Floats(text, width, operands[0])
        whole = at_least(-end, at_most(end, x.call("trunc")))
        return x.where("uno", 0.0, -end, whole).name

    return emit

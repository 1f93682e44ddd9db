"""Operands of nodes as views of a plan, for the modules that translate nodes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .._graph import queries
from .plan import FunctionPlan, NotCompiledError
from .views import View


def first_operand(node: ir.Node) -> ir.Value:
    """Return the first input of a node, which its operator requires."""
    value = node.inputs[0]
    assert value is not None
    return value


def operand_views(plan: FunctionPlan, node: ir.Node) -> list[View]:
    """Return the views of the inputs that are given."""
    return [plan.view(value) for value in node.inputs if value is not None]


def known_operand(node: ir.Node, index: int) -> np.ndarray | None:
    """Return the array of an input that has to be a constant; None where it is left out."""
    value = queries.operand(node, index)
    if value is None:
        return None
    array = queries.constant(value)
    if array is None:
        raise NotCompiledError(f"{queries.describe(node)} computes {value.name!r}, which has to be a constant")
    return array


def loaded(plan: FunctionPlan, view: View) -> View:
    """Return a view that can be read from memory."""
    return view if view.buffer.number is None else plan.copy(view)

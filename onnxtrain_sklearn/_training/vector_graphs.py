"""Small graphs over whole vectors that run in place: accumulated gradients and averaged weights, and a copy."""

from __future__ import annotations

import onnx_ir as ir

from .._graph.builder import new_graph
from .._graph.edits import append_output

TOTAL, SHARE = "total", "share"
AVERAGE, STEP_WEIGHT = "average", "step_weight"


def accumulation_graph(size: int, kind: ir.DataType, *, first: bool, last: bool) -> ir.Model:
    r"""Return the graph that adds the gradient of a minibatch, times its share of the weights, to the total.

    .. math:: G ← G + s_i g_i, \quad s_i = w_i / \sum_j w_j

    That makes the weighted mean over a group of minibatches. The ``first`` of a group replaces the total; the ``last``
    writes the result over the gradients.
    """
    gradients, share = ir.val("gradients", kind, (size,)), ir.val(SHARE, kind, ())
    total = ir.val(TOTAL, kind, (size,))
    op = new_graph([gradients, share] if first else [gradients, share, total], kind, "accumulate")
    part = op.Mul(gradients, share)
    append_output(op.graph, part if first else op.Add(total, part), "sum", gradients if last else total)
    return ir.Model(op.graph, ir_version=8)


def average_graph(size: int, kind: ir.DataType) -> ir.Model:
    """Return the graph that moves ``average`` towards ``parameters`` by the share ``step_weight`` of their distance."""
    average, parameters = ir.val(AVERAGE, kind, (size,)), ir.val("parameters", kind, (size,))
    weight = ir.val(STEP_WEIGHT, kind, ())
    op = new_graph([average, parameters, weight], kind, "average")
    moved = op.Add(average, op.Mul(op.Sub(parameters, average), weight))
    append_output(op.graph, moved, f"new_{AVERAGE}", average)
    return ir.Model(op.graph, ir_version=8)


def step_weight(decay: float, steps: int) -> float:
    r"""Return the weight of the latest parameters in the average after so many steps.

    .. math:: \bar p_t = \bar p_{t-1} + \frac{1 - d}{1 - d^t} (p_t - \bar p_{t-1})

    is the moving average of decay d that starts from zero, divided by 1 - dᵗ: the initial weights are not part of it.
    """
    return (1.0 - decay) / (1.0 - decay**steps)


def copy_graph(size: int, kind: ir.DataType) -> ir.Model:
    """Return the graph that copies the vector ``moved`` to ``statistics``."""
    value = ir.val("moved", kind, (size,))
    op = new_graph([value], kind, "copy")
    append_output(op.graph, op.Identity(value), "statistics", value)
    return ir.Model(op.graph, ir_version=8)

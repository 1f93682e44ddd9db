"""Terms that optimizers share: the penalty of weight decay, running averages."""

from __future__ import annotations

from typing import Protocol

from onnx_ir import Value

from .._graph.builder import GraphBuilder, Operand
from .scheduled_decay import WEIGHT_DECAY
from .update_graph import Named


class Decaying(Protocol):
    """An optimizer with weight decay."""

    weight_decay: float


def scalar_operand(value: object) -> Operand:
    """Return a hyper-parameter as an operand: where a schedule changes it, it is a value of the graph already."""
    return value if isinstance(value, Value) else float(value)  # type: ignore[arg-type]


def with_penalty(
    op: GraphBuilder, gradients: Value, parameters: Value, optimizer: Decaying, coefficients: Named
) -> Value:
    """Emit the gradients plus the weight decay times the parameters."""
    if not optimizer.weight_decay:
        return gradients
    return op.Add(gradients, op.Mul(parameters, coefficients.get(WEIGHT_DECAY, float(optimizer.weight_decay))))


def running_average(op: GraphBuilder, old: Value, x: Value, decay: float, gap: Value | None = None) -> Value:
    """Emit the new average ``decay * old + (1 - decay) * x``; ``gap`` is ``x - old`` where it is known."""
    # Three passes, as β a + (1 - β) x takes, but rounded to float32 that one's 0.999 and 0.001 do not add up to one.
    gap = op.Sub(x, old) if gap is None else gap
    return op.Add(old, op.Mul(gap, 1.0 - float(decay))) if decay >= 0.5 else op.Sub(x, op.Mul(gap, float(decay)))

"""Weight decay that changes from step to step: it becomes a coefficient of the update graph."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from onnx_ir import Value

from .._graph.builder import GraphBuilder
from ..exceptions import ModelError

WEIGHT_DECAY = "weight_decay"
"""The parameter of an optimizer, and the coefficient that stands for it where a schedule changes it."""


class ScheduledDecay:
    """An optimizer whose weight decay is multiplied by a factor at each step.

    :meth:`coefficients` are those of the optimizer with the weight decay of the step, and that number itself under the
    name "weight_decay". The optimizer uses either.
    """

    def __init__(self, optimizer: Any) -> None:
        self.optimizer, self.weight_decay = copy.copy(optimizer), float(optimizer.weight_decay)
        self.elementwise: bool = optimizer.elementwise

    moves_without_gradient = True

    def state(self) -> dict[str, float]:
        """Return the vectors of the optimizer and their initial values."""
        return dict(self.optimizer.state())

    def coefficients(self, learning_rate: float, t: int, factor: float = 1.0) -> dict[str, float | int]:
        """Return the scalars of step ``t``."""
        now = vars(self.optimizer)[WEIGHT_DECAY] = self.weight_decay * factor
        return {**self.optimizer.coefficients(learning_rate, t), WEIGHT_DECAY: now}

    def emit_coefficients(self, op: GraphBuilder, learning_rate: Value, t: Value, factor: Value) -> dict[str, Value]:
        """Emit what :meth:`coefficients` returns; meanwhile the weight decay is a value of the graph."""
        now = vars(self.optimizer)[WEIGHT_DECAY] = op.Mul(factor, self.weight_decay)
        try:
            found: dict[str, Value] = self.optimizer.emit_coefficients(op, learning_rate, t)
        except TypeError as error:
            raise ModelError(
                f"{type(self.optimizer).__name__}.emit_coefficients does not take a weight decay that a schedule "
                f"changes: {error}. Hand self.weight_decay to the operators as it is, without float()."
            ) from error
        return {**found, WEIGHT_DECAY: now}

    def update(
        self,
        op: GraphBuilder,
        parameters: Value,
        gradients: Value,
        state: Mapping[str, Value],
        coefficients: Mapping[str, Value],
    ) -> tuple[Value, dict[str, Value]]:
        """Emit one step of the optimizer."""
        vars(self.optimizer)[WEIGHT_DECAY] = self.weight_decay
        emitted: tuple[Value, dict[str, Value]] = self.optimizer.update(op, parameters, gradients, state, coefficients)
        return emitted

    def fused(self) -> None:
        """Return None: the kernels are chosen before."""

    def changes(self, used: set[str]) -> bool:
        """Whether the factor changes any of the coefficients that the graph uses."""
        one, half = self.coefficients(0.001, 1), self.coefficients(0.001, 1, 0.5)
        return any(one[name] != half[name] for name in used)

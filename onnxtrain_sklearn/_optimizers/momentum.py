"""Optimizers whose steps follow the gradient, or a running average of it: SGD and Lion."""

from __future__ import annotations

from typing import ClassVar

from onnx_ir import Value

from .._graph.builder import GraphBuilder
from .._support.rules import BELOW_ONE, FRACTION, NOT_NEGATIVE, Rules
from .base import Optimizer
from .terms import with_penalty
from .update_graph import Coefficients, Named, Step


class SGD(Optimizer):
    r"""Stochastic gradient descent.

    .. math:: g_t ← g_t + λ p, \quad m_t = μ m_{t-1} + (1 - τ) g_t, \quad p ← p - η m_t

    or, with Nesterov's momentum, :math:`p ← p - η (g_t + μ m_t)`. The definition of ``torch.optim.SGD``. Sutskever et
    al., "On the importance of initialization and momentum in deep learning", ICML 2013.

    Parameters
    ----------
    momentum : float, default=0.0
        μ, in [0, 1).
    nesterov : bool, default=False
        Nesterov's momentum; needs ``momentum > 0`` and ``dampening == 0``.
    dampening : float, default=0.0
        τ, in [0, 1], applied from the second step on, as PyTorch does.
    weight_decay : float, default=0.0
        λ, in [0, inf), added to the gradient.

    Examples
    --------
    >>> from onnxtrain_sklearn import SGD, OrtGradientClassifier
    >>> OrtGradientClassifier(optimizer=SGD(momentum=0.9), learning_rate_init=0.05)
    OrtGradientClassifier(learning_rate_init=0.05, optimizer=SGD(momentum=0.9))
    """

    name = "sgd"
    valid: ClassVar[Rules] = {
        "momentum": (BELOW_ONE,),
        "nesterov": (bool,),
        "dampening": (FRACTION,),
        "weight_decay": (NOT_NEGATIVE,),
    }

    def __init__(
        self, momentum: float = 0.0, nesterov: bool = False, dampening: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        self.momentum = momentum
        self.nesterov = nesterov
        self.dampening = dampening
        self.weight_decay = weight_decay

    def validate(self) -> None:
        super().validate()
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ValueError(f"SGD(nesterov=True) needs momentum in (0, 1) and dampening == 0, got {self!r}.")

    @property
    def moves_without_gradient(self) -> bool:
        return bool(self.momentum or self.weight_decay)

    def state(self) -> dict[str, float]:
        return {"momentum": 0.0} if self.momentum else {}

    def coefficients(self, learning_rate: float, t: int) -> Coefficients:
        if not (self.momentum and self.dampening):
            return super().coefficients(learning_rate, t)
        return {"learning_rate": float(learning_rate), "weight": 1.0 if t == 1 else 1.0 - float(self.dampening)}

    def emit_coefficients(self, op: GraphBuilder, learning_rate: Value, t: Value) -> dict[str, Value]:
        found = super().emit_coefficients(op, learning_rate, t)
        if self.momentum and self.dampening:
            found["weight"] = op.Where(op.Equal(t, 1.0), 1.0, 1.0 - float(self.dampening))
        return found

    def update(self, op: GraphBuilder, parameters: Value, gradients: Value, state: Named, coefficients: Named) -> Step:
        g, mu = with_penalty(op, gradients, parameters, self, coefficients), float(self.momentum)
        if not mu:
            return op.Sub(parameters, op.Mul(g, coefficients["learning_rate"])), {}
        weighted = op.Mul(g, coefficients["weight"]) if self.dampening else g
        momentum = op.Add(op.Mul(state["momentum"], mu), weighted)
        direction = op.Add(g, op.Mul(momentum, mu)) if self.nesterov else momentum
        return op.Sub(parameters, op.Mul(direction, coefficients["learning_rate"])), {"momentum": momentum}

    def fused(self) -> Optimizer | None:
        return None if self.momentum or self.weight_decay else _FusedSGD()


class Lion(Optimizer):
    r"""Lion: steps of one size, by the sign of a running average of the gradient.

    .. math:: p ← p - η (\operatorname{sign}(β_1 m_{t-1} + (1 - β_1) g_t) + λ p), \quad
        m_t = β_2 m_{t-1} + (1 - β_2) g_t

    Every element moves by η, so learning rates are three to ten times smaller than those of :class:`AdamW`. One vector
    of state instead of two. Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023, algorithm 2.

    Parameters
    ----------
    beta_1, beta_2 : float, default=0.9 and 0.99
        Shares of the average in the step and in the next average, in [0, 1).
    weight_decay : float, default=0.0
        λ, in [0, inf), relative to the learning rate.

    Examples
    --------
    >>> from onnxtrain_sklearn.optimizers import Lion
    >>> Lion(weight_decay=0.1)
    Lion(weight_decay=0.1)
    """

    name = "lion"
    valid: ClassVar[Rules] = {"beta_1": (BELOW_ONE,), "beta_2": (BELOW_ONE,), "weight_decay": (NOT_NEGATIVE,)}

    def __init__(self, beta_1: float = 0.9, beta_2: float = 0.99, weight_decay: float = 0.0) -> None:
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.weight_decay = weight_decay

    def state(self) -> dict[str, float]:
        return {"momentum": 0.0}

    def update(self, op: GraphBuilder, parameters: Value, gradients: Value, state: Named, coefficients: Named) -> Step:
        ahead = op.Sub(state["momentum"], gradients)  # the only reader of the old momentum
        direction = op.Sign(op.Add(gradients, op.Mul(ahead, float(self.beta_1))))
        direction = with_penalty(op, direction, parameters, self, coefficients)
        momentum = op.Add(gradients, op.Mul(ahead, float(self.beta_2)))
        return op.Sub(parameters, op.Mul(direction, coefficients["learning_rate"])), {"momentum": momentum}


class _FusedSGD(Optimizer):
    def update(self, op: GraphBuilder, parameters: Value, gradients: Value, state: Named, coefficients: Named) -> Step:
        inputs = coefficients["learning_rate"], parameters, gradients
        return op.emit("SGDOptimizer", *inputs, domain="com.microsoft")[0], {}

"""Stochastic gradient descent, with momentum and Nesterov's momentum."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from onnx_ir import Value

from .._utils.params import BELOW_ONE, FRACTION, NOT_NEGATIVE, Rules
from ..exceptions import InvalidParameterError
from ..graph import GraphBuilder
from .base import Named, Optimizer, Parameter, Slot, Step, StepOptions, with_decay
from .scalars import Number, where

if TYPE_CHECKING:
    from typing_extensions import Unpack


class SGD(Optimizer):
    r"""Stochastic gradient descent.

    .. math:: g_t ← g_t + λ p, \quad m_t = μ m_{t-1} + (1 - τ) g_t, \quad p ← p - η m_t

    or, with Nesterov's momentum, :math:`p ← p - η (g_t + μ m_t)`. As ``torch.optim.SGD``: τ counts from the second step
    on. Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013.

    Parameters
    ----------
    momentum : float, default=0.0
        μ, in [0, 1).
    nesterov : bool, default=False
        Nesterov's momentum; needs ``momentum > 0`` and ``dampening == 0``.
    dampening : float, default=0.0
        τ, in [0, 1].
    weight_decay : float, default=0.0
        λ, in [0, inf), added to the gradient.
    {options}

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
        self,
        momentum: float = 0.0,
        nesterov: bool = False,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        **options: Unpack[StepOptions],
    ) -> None:
        super().__init__(**options)
        self.momentum = momentum
        self.nesterov = nesterov
        self.dampening = dampening
        self.weight_decay = weight_decay

    def validate(self) -> None:
        super().validate()
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise InvalidParameterError(
                f"SGD(nesterov=True) needs momentum in (0, 1) and dampening == 0, got {self!r}."
            )

    @property
    def moves_without_gradient(self) -> bool:
        return bool(self.momentum or self.weight_decay)

    def slots(self, p: Parameter) -> dict[str, Slot]:
        return {"momentum": Slot(p.shape)} if self.momentum else {}

    def scalars(self, learning_rate: Number, t: Number) -> dict[str, Number]:
        if not (self.momentum and self.dampening):
            return {"learning_rate": learning_rate}
        return {"learning_rate": learning_rate, "weight": where(t == 1, 1.0, 1.0 - self.dampening)}

    def update(self, op: GraphBuilder, p: Value, g: Value, state: Named, k: Named) -> Step:
        g, mu = with_decay(op, g, p, self, k), self.momentum
        if not mu:
            return op.Sub(p, op.Mul(g, k["learning_rate"])), {}
        weighted = op.Mul(g, k["weight"]) if self.dampening else g
        momentum = op.Add(op.Mul(state["momentum"], mu), weighted)
        direction = op.Add(g, op.Mul(momentum, mu)) if self.nesterov else momentum
        return op.Sub(p, op.Mul(direction, k["learning_rate"])), {"momentum": momentum}

    def fused(self) -> Optimizer | None:
        return None if self.momentum or self.weight_decay else _FusedSGD()


class _FusedSGD(Optimizer):
    """SGD without momentum in one kernel; tests/optimizers/test_fused_kernels.py compares it with the formula."""

    def update(self, op: GraphBuilder, p: Value, g: Value, state: Named, k: Named) -> Step:
        inputs = k["learning_rate"], p, g
        return op.emit("SGDOptimizer", *inputs, domain="com.microsoft")[0], {}

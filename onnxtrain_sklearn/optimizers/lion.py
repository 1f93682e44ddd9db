"""Lion: steps of one size, by the sign of a running average of the gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from onnx_ir import Value

from .._utils.params import BELOW_ONE, NOT_NEGATIVE, Rules
from ..graph import GraphBuilder
from .base import Named, Optimizer, Parameter, Slot, Step, StepOptions, with_decay

if TYPE_CHECKING:
    from typing_extensions import Unpack


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
    {options}

    Examples
    --------
    >>> from onnxtrain_sklearn.optimizers import Lion
    >>> Lion(weight_decay=0.1)
    Lion(weight_decay=0.1)
    """

    name = "lion"
    valid: ClassVar[Rules] = {"beta_1": (BELOW_ONE,), "beta_2": (BELOW_ONE,), "weight_decay": (NOT_NEGATIVE,)}

    def __init__(
        self, beta_1: float = 0.9, beta_2: float = 0.99, weight_decay: float = 0.0, **options: Unpack[StepOptions]
    ) -> None:
        super().__init__(**options)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.weight_decay = weight_decay

    def slots(self, p: Parameter) -> dict[str, Slot]:
        return {"momentum": Slot(p.shape)}

    def update(self, op: GraphBuilder, p: Value, g: Value, state: Named, k: Named) -> Step:
        ahead = op.Sub(state["momentum"], g)  # the only node that reads the old momentum, which is overwritten
        direction = op.Sign(op.Add(g, op.Mul(ahead, self.beta_1)))
        direction = with_decay(op, direction, p, self, k)
        momentum = op.Add(g, op.Mul(ahead, self.beta_2))
        return op.Sub(p, op.Mul(direction, k["learning_rate"])), {"momentum": momentum}
